"""Compare reads of RStore with those of Redis and memcached, on this machine and in the same run.

    python examples/rstore/bench.py --seconds 0.5 --rounds 5

Every system has one server process and one client process. The rounds take turns, and the medians are shown: the
latency of one read after the other, the throughput, and the processor time of the server for each read.
"""

import argparse
import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

from rstore import Client, Region, connect  # noqa: E402

SIZES = (8, 64, 4096, 65536, 1 << 20)
_TICKS = os.sysconf("SC_CLK_TCK")


class Round(NamedTuple):
    microseconds: float
    """For one read, one after the other."""
    megabytes: float
    """Per second."""
    server: float
    """Microseconds of the server's processor for each read."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def processor(process: "subprocess.Popen[bytes]") -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Server:
    """A server process. ``get`` is one read of a value of ``size`` bytes."""

    name = ""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def measure(self, size: int, seconds: float) -> Round:
        get = self.reader(size)
        get()
        count, used, began = 0, processor(self.process), time.perf_counter()
        while (spent := time.perf_counter() - began) < seconds:
            for _ in range(10):
                get()
            count += 10
        used = processor(self.process) - used
        return Round(spent / count * 1e6, count * size / spent / 1e6, used / count * 1e6)

    def reader(self, size: int) -> Callable[[], None]:
        raise NotImplementedError

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def connected(port: int) -> socket.socket:
    for _ in range(100):
        try:
            sock = socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.05)
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
    raise OSError(f"nothing listens on port {port}")


class TextServer(Server):
    """Redis and memcached: a line asks, a value comes."""

    def __init__(self, *command: str, port: int) -> None:
        super().__init__(*command)
        self.socket = connected(port)
        self.into = memoryview(bytearray(SIZES[-1] + 4096))

    def ask(self, request: bytes, length: int) -> None:
        self.socket.sendall(request)
        got = 0
        while got < length:
            count = self.socket.recv_into(self.into[got:])
            if not count:
                raise OSError("the server has closed the connection")
            got += count


class Redis(TextServer):
    name = "Redis"

    def __init__(self) -> None:
        port = free_port()
        super().__init__("redis-server", "--port", str(port), "--save", "", "--appendonly", "no", port=port)

    def reader(self, size: int) -> Callable[[], None]:
        self.ask(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%s\r\n" % (size, bytes(size)), 5)
        length = len(b"$%d\r\n" % size) + size + 2
        return lambda: self.ask(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", length)


class Memcached(TextServer):
    name = "memcached"

    def __init__(self) -> None:
        port = free_port()
        options = ("-l", "127.0.0.1", "-p", str(port), "-U", "0", "-t", "1", "-I", "4m", "-u", "root")
        super().__init__("memcached", *options, port=port)

    def reader(self, size: int) -> Callable[[], None]:
        self.ask(b"set k 0 0 %d\r\n%s\r\n" % (size, bytes(size)), 8)
        length = len(b"VALUE k 0 %d\r\n" % size) + size + len(b"\r\nEND\r\n")
        return lambda: self.ask(b"get k\r\n", length)


class RStore(Server):
    """One memory server. Reads are one-sided: its program does nothing, its NIC in user space does."""

    def __init__(self, fabric: str) -> None:
        self.name = f"RStore ({fabric})"
        self._loop = asyncio.new_event_loop()
        self._folder = tempfile.mkdtemp()
        address = f"127.0.0.1:{free_port()}"
        program = (sys.executable, str(HERE), "--fabric", fabric, "--master", address)
        self._master = subprocess.Popen(
            [*program, "master", "--state", f"{self._folder}/state"], stdout=subprocess.DEVNULL
        )
        super().__init__(*program, "serve", "--memory", "64M")
        self._context = connect(fabric, "127.0.0.1", int(address.rpartition(":")[2]))
        self._client: Client = self._loop.run_until_complete(self._join())
        self._regions: dict[int, Region] = {}

    async def _join(self) -> Client:
        for _ in range(100):
            try:
                client = await self._context.__aenter__()
                while not await client.servers():
                    await asyncio.sleep(0.05)
            except (OSError, AttributeError):
                await asyncio.sleep(0.05)
            else:
                return client
        raise OSError("the store did not start")

    def measure(self, size: int, seconds: float) -> Round:
        return self._loop.run_until_complete(self._measure(size, seconds))

    async def _measure(self, size: int, seconds: float) -> Round:
        if size not in self._regions:
            self._regions[size] = await self._client.create(f"r{size}", size, unit=1 << 20)
        region, into = self._regions[size], bytearray(size)
        await region.read_into(into)
        count, used, began = 0, processor(self.process), time.perf_counter()
        while (spent := time.perf_counter() - began) < seconds:
            for _ in range(10):
                await region.read_into(into)
            count += 10
        used = processor(self.process) - used
        return Round(spent / count * 1e6, count * size / spent / 1e6, used / count * 1e6)

    def stop(self) -> None:
        self._loop.run_until_complete(self._context.__aexit__(None, None, None))
        super().stop()
        self._master.kill()
        self._master.wait()
        shutil.rmtree(self._folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fabric", default="iwarp", help="iwarp or roce")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    servers: list[Server] = []
    try:
        servers.append(RStore(options.fabric))
        for kind, program in ((Redis, "redis-server"), (Memcached, "memcached")):
            if shutil.which(program):
                servers.append(kind())
            else:
                print(f"not installed, left out: {program} (apt-get install redis-server memcached)", file=sys.stderr)
        print(f"{'bytes':>8}  {'system':16} {'latency':>10} {'throughput':>12} {'server':>12}")
        for size in SIZES:
            rounds: dict[str, list[Round]] = {server.name: [] for server in servers}
            for _ in range(options.rounds):
                for server in servers:
                    rounds[server.name].append(server.measure(size, options.seconds))
            for name, found in rounds.items():
                micro, mega, used = (statistics.median(column) for column in zip(*found, strict=True))
                print(f"{size:8}  {name:16} {micro:7.1f} us {mega:7.1f} MB/s {used:6.1f} us/read")
    finally:
        for server in servers:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
