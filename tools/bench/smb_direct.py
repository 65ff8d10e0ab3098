"""Measure READ and WRITE over SMB Direct: the server's processor time per operation and the round trip, beside TCP and
beside a bare ping-pong of the same provider.

    python -m tools.bench.smb_direct [--fabrics tcp,gmac,iwarp] [--cases read-1k,write-1m] [--depths 1,4] [--rounds N]

Cases up to 8 KiB carry their data in the message (``read-1k``, ``read-8k``), unless their name says ``direct``: there
the server moves the data by RDMA. ``gmac`` is TCP with signatures. A ``ping`` is a Send of as many bytes in each
direction, without SMB. The load is made by one process with one connection, which keeps ``depth`` requests in flight.

Over ``loopback``, client and server are one process: its processor time is that of both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import NamedTuple

from smb3server.client.protocol import Client, open_rdma, open_tcp
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.lab.bench.load import Case, Load, last_message_id, run
from smb3server.lab.bench.rdma_client import over_loopback
from smb3server.process import output
from smb3server.wire.create import CreateDisposition
from smbdirect.message_transport import MessageTransport
from smbdirect.providers.base import Completion, ConnectionRequest, Endpoint, Operation, Provider, Send, Status
from smbdirect.providers.iwarp import IwarpProvider
from smbdirect.providers.loopback import LoopbackProvider
from tools.support import own_user
from tools.support.server_process import running

KIB, MIB = 1024, 1024 * 1024
FILE_SIZE = 16 * MIB
_PINGS = 16
"""Receives of each end of a ping-pong."""


CASES = {
    "read-1k": Case(False, KIB, False),
    "read-8k": Case(False, 8 * KIB, False),
    "write-1k": Case(True, KIB, False),
    "write-8k": Case(True, 8 * KIB, False),
    "read-4k-direct": Case(False, 4 * KIB, True),
    "write-4k-direct": Case(True, 4 * KIB, True),
    "read-64k": Case(False, 64 * KIB, True),
    "write-64k": Case(True, 64 * KIB, True),
    "read-512k": Case(False, 512 * KIB, True),
    "write-512k": Case(True, 512 * KIB, True),
    "read-1m": Case(False, MIB, True),
    "write-1m": Case(True, MIB, True),
}


class Figures(NamedTuple):
    """What one round found, per operation, in microseconds."""

    processor: float
    elapsed: float


@contextlib.asynccontextmanager
async def logged_on(transport: MessageTransport, sign: bool) -> AsyncIterator[Load]:
    """Log on, open the file and write it once."""
    client = await Client.connect(transport, (0x0311,))
    session = await client.log_on("u", "pw", sign=sign)
    tree = await session.tree_connect("share")
    file = await tree.create("file", READ_WRITE, CreateDisposition.OPEN_IF)
    await tree.write(file, 0, bytes(FILE_SIZE))
    yield Load(client, session, tree, file, await last_message_id(client) + 1, FILE_SIZE)
    transport.abort("measured")


class Pinger:
    """One end of a bare ping-pong: answers each message with one of ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self._data = memoryview(bytearray(size))
        self._deadline = 0.0
        self.messages = 0
        self.done = asyncio.Event()

    def prepare(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._receives = [memoryview(bytearray(len(self._data))) for _ in range(_PINGS)]
        for index, buffer in enumerate(self._receives):
            endpoint.post_receive(buffer, index)
        endpoint.on_completions = self._completed
        endpoint.on_closed = lambda reason: self.done.set()

    def serve(self, seconds: float) -> None:
        """Begin with the first message."""
        self._deadline = time.perf_counter() + seconds
        self._endpoint.post([Send([self._data])])

    def _completed(self, completions: Sequence[Completion]) -> None:
        for item in completions:
            index = item.context
            if item.operation is not Operation.RECEIVE or item.status is not Status.OK or not isinstance(index, int):
                continue
            self.messages += 1
            self._endpoint.post_receive(self._receives[index], index)
            if self._deadline and time.perf_counter() > self._deadline:
                self.done.set()
            else:
                self._endpoint.post([Send([self._data], signalled=self.messages % _PINGS == 0)])


async def answer_pings(provider: Provider, size: int, ready: Callable[[int], None], ended: asyncio.Event) -> None:
    """Be the other end of a ping-pong until ``ended``."""
    tasks: list[asyncio.Task[None]] = []

    def on_request(request: ConnectionRequest) -> None:
        Pinger(size).prepare(request.prepare())
        tasks.append(asyncio.ensure_future(request.accept()))

    listener = await provider.listen("127.0.0.1", 0, on_request)
    ready(listener.address[1])
    await ended.wait()
    await listener.close()


def ponging(pipe: Pipe, size: int) -> None:
    """Run the other end's process."""

    async def main() -> None:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), ended.set)
        await answer_pings(IwarpProvider(), size, pipe.send, ended)

    run(main())


async def ping(fabric: str, size: int, seconds: float) -> Figures:
    """Return the round trip of a bare ping-pong, and this process's processor time for one."""
    near = Pinger(size)
    ended = asyncio.Event()
    process = pipe = None
    provider: Provider
    endpoint: Endpoint
    if fabric == "loopback":
        provider = LoopbackProvider()
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        other = asyncio.create_task(answer_pings(provider, size, port.set_result, ended))
        endpoint = await provider.connect("127.0.0.1", await port, near.prepare)
    else:
        provider = IwarpProvider()
        pipe, theirs = multiprocessing.Pipe()
        process = multiprocessing.Process(target=ponging, args=(theirs, size), daemon=True)
        process.start()
        other = asyncio.create_task(asyncio.sleep(0))
        endpoint = await provider.connect("127.0.0.1", pipe.recv(), near.prepare)
    began, processor = time.perf_counter(), time.process_time()
    near.serve(seconds)
    await near.done.wait()
    elapsed, processor = time.perf_counter() - began, time.process_time() - processor
    endpoint.abort()
    ended.set()
    await other
    if process is not None and pipe is not None:
        pipe.send(None)
        process.join()
    return Figures(processor / near.messages * 1e6, elapsed / near.messages * 1e6)


Found = dict[tuple[str, str, int], list[Figures]]


async def measure(options: argparse.Namespace, folder: Path) -> Found:
    """Run all cases in all rounds; the fabrics take turns."""
    share = folder / "share"
    share.mkdir()
    found: Found = {}
    arguments = ["--share", own_user.option("share", share), "--user", "u:pw", "--listen", "127.0.0.1"]
    arguments += ["--port", "0", "--rdma-port", "0", "--rdma=iwarp"]
    async with contextlib.AsyncExitStack() as stack:
        server = stack.enter_context(running(folder, "", arguments)) if options.remote else None
        loads: dict[str, Load] = {}
        for fabric in options.fabrics:
            if fabric == "loopback":
                transport = await stack.enter_async_context(over_loopback(share, "share", "u", "pw"))
            elif server is None:
                continue
            elif fabric == "iwarp":
                transport = await open_rdma(IwarpProvider(), "127.0.0.1", server.ports["iwarp"])
            else:
                transport = await open_tcp("127.0.0.1", server.port)
            loads[fabric] = await stack.enter_async_context(logged_on(transport, fabric == "gmac"))

        def processor_time(fabric: str) -> float:
            return time.process_time() if fabric == "loopback" or server is None else server.processor_time()

        for number in range(options.rounds + 1):
            for name in options.cases:
                for depth in options.depths:
                    for fabric, driver in loads.items():
                        before = processor_time(fabric)
                        elapsed = await driver.run(CASES[name], depth, options.seconds)
                        used = processor_time(fabric) - before
                        if number:  # The first round warms up.
                            figures = Figures(used / driver.operations * 1e6, elapsed / driver.operations * 1e6)
                            found.setdefault((name, fabric, depth), []).append(figures)
            for fabric in set(loads) & {"iwarp", "loopback"}:
                for size in sorted({CASES[name].size for name in options.cases if not CASES[name].direct}):
                    figures = await ping(fabric, size, options.seconds)
                    if number:
                        found.setdefault((f"ping-{size // KIB}k", fabric, 1), []).append(figures)
    return found


def report(found: Found) -> None:
    """Print medians and ranges."""
    print(f"{'case':16} {'fabric':9} depth  us CPU (range)           us per operation (range)     MB/s")
    for (name, fabric, depth), rounds in sorted(found.items(), key=lambda item: (item[0][0], item[0][2], item[0][1])):
        columns = []
        for index in (0, 1):
            values = [figures[index] for figures in rounds]
            columns.append(f"{statistics.median(values):8.1f} ({min(values):.1f}-{max(values):.1f})")
        case = CASES.get(name)
        rate = f"{case.size / statistics.median([item.elapsed for item in rounds]):8.0f}" if case else ""
        print(f"{name:16} {fabric:9} {depth:5}  {columns[0]:24}  {columns[1]:26} {rate}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.smb_direct", description=__doc__)
    parser.add_argument("--fabrics", default="tcp,gmac,iwarp,loopback", help="of tcp, gmac, iwarp, loopback")
    parser.add_argument("--cases", default=",".join(CASES), help="names, or beginnings of names")
    parser.add_argument("--depths", default="1,4")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each round of each case")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write all rounds to this file")
    options = parser.parse_args()
    options.fabrics = options.fabrics.split(",")
    options.remote = options.fabrics != ["loopback"]
    wanted = tuple(options.cases.split(","))
    options.cases = [name for name in CASES if name.startswith(wanted)]
    options.depths = [int(depth) for depth in options.depths.split(",")]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        found = run(measure(options, Path(name)))
    report(found)
    if options.json:
        options.json.write_text(json.dumps([[*key, rounds] for key, rounds in found.items()]))


if __name__ == "__main__":
    sys.exit(output.run(main))
