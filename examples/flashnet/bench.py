"""Compare five ways to read a file of another process, on this machine and in the same run.

    python examples/flashnet bench --markdown docs/flashnet.md

Every way has one server process and this process as its client. The rounds take turns, and the medians are shown: the
latency of one read after the other, the reads per second with several in flight, and the processor time of the server
for each of these. The file is in the server's page cache.
"""

import argparse
import asyncio
import getpass
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import benches

from flashnet.client import connect
from flashnet.lender import Lender
from smb3server import client as smb
from smb3server.client.options import OneSided, Rdma
from smb3server.lab.bench import machine, page
from smb3server.lab.bench.cases import size_name
from smb3server.service import Service, Share, User
from smbdirect import rdma

HERE = Path(__file__).resolve().parent
SIZES = (4096, 1 << 20)
FILE = 64 << 20
DEPTH = 8
"""Reads in flight for the throughput."""
_REQUEST = struct.Struct("<QQ")
Read = Callable[[int, int], Awaitable[object]]
"""Reads some bytes at an offset."""


class Round(NamedTuple):
    latency: float
    """Microseconds."""
    rate: float
    """Reads per second."""
    processor: float
    """Microseconds of the server for each read."""


class Server:
    """A server in a process of its own."""

    def __init__(self, role: str, folder: str) -> None:
        command = [sys.executable, str(HERE), "bench", "--serve", role, folder]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.ports = [int(port) for port in self.process.stdout.readline().split()]

    def used(self) -> float:
        """Return the seconds of processor time so far."""
        return benches.processor_time(self.process.pid)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


async def serve_lender(folder: str) -> None:
    async with rdma.listen("iwarp") as listener:
        print(listener.address[1], flush=True)
        await Lender(Path(folder)).serve(listener)


async def serve_smb(folder: str) -> None:
    share = Share("data", folder, force_user=getpass.getuser(), one_sided=True)
    async with Service(
        shares=[share],
        users=[User("u", password="pw")],
        allow_root=True,
        listen=["127.0.0.1"],
        port=0,
        rdma="iwarp",
        rdma_port=0,
    ) as service:
        print(*(address.rpartition(":")[2] for address in service.addresses()), flush=True)
        await asyncio.Event().wait()


async def serve_sockets(folder: str) -> None:
    loop = asyncio.get_running_loop()

    async def attend(sock: socket.socket) -> None:
        with sock, open(f"{folder}/file", "rb") as file:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while len(request := await loop.sock_recv(sock, _REQUEST.size)) == _REQUEST.size:
                offset, length = _REQUEST.unpack(request)
                await loop.sock_sendfile(sock, file, offset, length)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        print(listener.getsockname()[1], flush=True)
        async with asyncio.TaskGroup() as clients:
            while True:
                clients.create_task(attend((await loop.sock_accept(listener))[0]))


async def by_sockets(stack: AsyncExitStack, ports: list[int]) -> Read:
    """One connection for each read in flight."""
    loop = asyncio.get_running_loop()
    free: list[tuple[socket.socket, memoryview]] = []
    for _ in range(DEPTH):
        sock = stack.enter_context(socket.create_connection(("127.0.0.1", ports[0])))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        free.append((sock, memoryview(bytearray(max(SIZES)))))

    async def read(offset: int, length: int) -> None:
        sock, into = free.pop()
        await loop.sock_sendall(sock, _REQUEST.pack(offset, length))
        got = 0
        while got < length:
            got += await loop.sock_recv_into(sock, into[got:length])
        free.append((sock, into))

    return read


async def by_smb(stack: AsyncExitStack, ports: list[int], fabric: Rdma, one_sided: OneSided) -> Read:
    url = f"smb://u@127.0.0.1:{ports[0]}/data"
    share = await stack.enter_async_context(
        smb.connect(url, password="pw", rdma=fabric, rdma_port=ports[-1], one_sided=one_sided)
    )
    file = await stack.enter_async_context(await share.open("file", "rb"))
    await file.read_at(0, 4096)
    assert ("one-sided" in share.moved) is (one_sided == "auto")
    return file.read_at


async def by_flashnet(stack: AsyncExitStack, ports: list[int]) -> Read:
    client = await stack.enter_async_context(connect("iwarp", "127.0.0.1", ports[0]))
    return (await client.open("file")).read


WAYS: dict[str, tuple[str, Callable[[AsyncExitStack, list[int]], Awaitable[Read]]]] = {
    "sockets, sendfile": ("sockets", by_sockets),
    "SMB READ, TCP": ("smb", lambda stack, ports: by_smb(stack, ports, "off", "off")),
    "SMB READ, SMB Direct (iwarp)": ("smb", lambda stack, ports: by_smb(stack, ports, "iwarp", "off")),
    "one-sided, share (iwarp)": ("smb", lambda stack, ports: by_smb(stack, ports, "iwarp", "auto")),
    "one-sided, folder (iwarp)": ("lender", by_flashnet),
}
ROLES = {"sockets": serve_sockets, "smb": serve_smb, "lender": serve_lender}


async def measure(server: Server, read: Read, size: int, seconds: float) -> Round:
    """Measure one way: half of the time one read after the other, half with several in flight."""
    places = [random.randrange(FILE // size) * size for _ in range(512)]

    async def chain(until: float) -> int:
        count = 0
        while time.perf_counter() < until:
            await read(places[count % len(places)], size)
            count += 1
        return count

    begin = time.perf_counter()
    alone = await chain(begin + seconds / 2)
    middle, used = time.perf_counter(), server.used()
    together = sum(await asyncio.gather(*(chain(middle + seconds / 2) for _ in range(DEPTH))))
    spent, used = time.perf_counter() - middle, server.used() - used
    return Round((middle - begin) / alone * 1e6, together / spent, used / together * 1e6)


async def compare(rounds: int, seconds: float) -> dict[tuple[int, str], list[Round]]:
    """Return the rounds by size and way."""
    found: dict[tuple[int, str], list[Round]] = {}
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        Path(folder, "file").write_bytes(os.urandom(1 << 20) * (FILE >> 20))
        ways: list[tuple[str, Server, Read]] = []
        for name, (role, make) in WAYS.items():
            server = Server(role, folder)
            stack.callback(server.stop)
            ways.append((name, server, await make(stack, server.ports)))
        for number in range(rounds + 1):
            print(f"round {number} of {rounds}" if number else "warming up", file=sys.stderr)
            for size in SIZES:
                for name, server, read in ways:
                    measured = await measure(server, read, size, seconds if number else 0.1)
                    if number:  # the first warms up
                        found.setdefault((size, name), []).append(measured)
    return found


async def serve(role: str, folder: str) -> None:
    """Be one of the servers."""
    await ROLES[role](folder)


def result(found: dict[tuple[int, str], list[Round]], extent: str) -> benches.Result:
    """Return table and picture. ``extent`` says how much was measured."""
    lines = [["read", "way", "latency µs", f"reads/s, {DEPTH}", "server µs", "reads/s core"]]
    for (size, name), rounds in found.items():
        latency, rate, used = (statistics.median(values) for values in zip(*rounds, strict=True))
        lines.append([size_name(size), name, f"{latency:.0f}", f"{rate:.0f}", f"{used:.0f}", f"{1e6 / used:.0f}"])
    plots = [
        benches.Bars(f"{size_name(size)}, {title}", {
            name: [getattr(one, field) for one in rounds] for (of, name), rounds in found.items() if of == size
        })
        for field, title in (("latency", "latency, µs"), ("processor", "processor time of the server, µs"))
        for size in SIZES
    ]  # fmt: skip
    return benches.Result(
        "Latency and the server's processor time by the way of access",
        machine.briefly(extent),
        page.grid(lines, "rlrrrr"),
        plots,
    )


async def run(options: argparse.Namespace) -> None:
    """Measure everything, print it, and write it to the page."""
    found = await compare(options.rounds, options.seconds)
    extent = f"{options.rounds} rounds of {options.seconds:g} s for each way and size"
    benches.publish(options, result(found, extent))
