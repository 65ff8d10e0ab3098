"""Compare plain TCP with RDMA in user space: latency, throughput and processor time by block size.

    python -m tools.bench.tcp_or_rdma [--rounds N] [--seconds S] [--page docs/tcp-or-rdma.md]

A block goes from one process to another one, which answers; with an RDMA Read, the block is fetched. With touched
buffers the sender's program writes every byte before, and the receiver's program reads every byte after. The systems
take turns in each round. The medians of the rounds are shown; one MB is 1e6 bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import socket
import statistics
import struct
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, Protocol

import matplotlib
from matplotlib.figure import Figure

from smb3server.lab.bench import machine, page
from smb3server.lab.bench.cases import size_name
from smb3server.lab.bench.errors import BenchError
from smb3server.process import output
from smbdirect.providers.base import (
    Access,
    Completion,
    ConnectionRequest,
    Operation,
    Provider,
    Read,
    RemoteSegment,
    Send,
    Status,
    Write,
)
from smbdirect.providers.iwarp import IwarpProvider
from smbdirect.providers.roce import RoceProvider
from tools.bench.iwarp import DESCRIPTOR, Bench, Meter, Peer
from tools.bench.report import plots

PART = "tcp-or-rdma"
"""What stands between the page's markers."""
SIZES = tuple(64 << 2 * step for step in range(9))
"""64 bytes to 4 MiB."""
DEPTH = 4
"""Blocks in flight where throughput and processor time are measured. Latency is measured with one."""
SERVER = "127.0.0.2"
"""RoCEv2 has one UDP port per address: each process needs an address of its own."""
_BLOCK = struct.Struct("<I?")
"""Length of a block, and whether its receiver reads it."""
_MADE, _SOUGHT = b"\x55" * SIZES[-1], b"\xff"


class Point(NamedTuple):
    """One line of a picture at one size."""

    system: str
    touched: bool
    size: int


class Sample(NamedTuple):
    """One round of a point."""

    latency: float
    """Seconds for one block after the other."""
    rate: float
    """Bytes per second with ``DEPTH`` blocks in flight."""
    processor: float
    """Processor seconds of both processes for each block then."""


class System(Protocol):
    """A way for blocks to the other process."""

    process: int
    """That process."""

    async def exchange(self, size: int, touched: bool, depth: int, seconds: float) -> tuple[int, float]:
        """Move blocks for a while. Return how many, and the seconds that it took."""


def _read(memory: bytearray, size: int) -> None:
    """Look at every byte: what is sought is in none of them."""
    if memory.find(_SOUGHT, 0, size) >= 0:
        raise AssertionError("not what was sent")


# -- TCP ------------------------------------------------------------------------------------------------------------


def _fill(sock: socket.socket, view: memoryview) -> bool:
    """Receive until ``view`` is full. Return False if the peer has closed the connection."""
    while len(view):
        got = sock.recv_into(view)
        if not got:
            return False
        view = view[got:]
    return True


def _tcp_peer(pipe: Connection) -> None:
    memory, head = bytearray(SIZES[-1]), bytearray(_BLOCK.size)
    view = memoryview(memory)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        sock, _ = listener.accept()
    with sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while _fill(sock, memoryview(head)):
            size, touched = _BLOCK.unpack(head)
            if not _fill(sock, view[:size]):
                return
            if touched:
                _read(memory, size)
            sock.sendall(b"x")


class Tcp:
    """Blocking sockets: nothing in Python is faster."""

    def __init__(self, sock: socket.socket, process: int) -> None:
        self.process = process
        self._sock = sock
        self._memory = memoryview(bytearray(SIZES[-1]))
        self._answer = memoryview(bytearray(1))

    async def exchange(self, size: int, touched: bool, depth: int, seconds: float) -> tuple[int, float]:
        block, head = self._memory[:size], _BLOCK.pack(size, touched)
        began = time.perf_counter()
        count = flying = 0
        while True:
            while flying < depth and time.perf_counter() - began < seconds:
                if touched:
                    block[:] = memoryview(_MADE)[:size]
                self._send(head, block)
                flying += 1
            if not flying:
                return count, time.perf_counter() - began
            if not _fill(self._sock, self._answer):
                raise ConnectionResetError("the other process has ended")
            flying -= 1
            count += 1

    def _send(self, head: bytes, block: memoryview) -> None:
        sent = self._sock.sendmsg([head, block])
        if sent < len(head) + len(block):
            self._sock.sendall(block[sent - len(head) :])


@contextlib.contextmanager
def _tcp() -> Iterator[Tcp]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_tcp_peer, args=(theirs,), daemon=True)
    process.start()
    try:
        with socket.create_connection(("127.0.0.1", ours.recv())) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield Tcp(sock, process.pid or 0)
    finally:
        process.kill()
        process.join()


# -- RDMA -----------------------------------------------------------------------------------------------------------


def _provider(fabric: str, udp_port: int) -> Provider:
    return IwarpProvider() if fabric == "iWARP" else RoceProvider(udp_port)


def _free_udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Receiver(Peer):
    """The other process: it reads the block that a message announces, and answers."""

    def completed(self, completions: Sequence[Completion]) -> None:
        for item in completions:
            if item.operation is Operation.RECEIVE and item.status is Status.OK and isinstance(item.context, int):
                size, touched = _BLOCK.unpack_from(self.buffers[item.context])
                if touched:
                    _read(self.memory.obj, size)  # type: ignore[arg-type]
        super().completed(completions)


def _rdma_peer(pipe: Connection, fabric: str, udp_port: int) -> None:
    async def main() -> None:
        peer = Receiver(SIZES[-1])
        endpoint = await _provider(fabric, udp_port).connect(SERVER, pipe.recv(), peer.prepare)
        region = endpoint.register(peer.memory, Access.REMOTE_READ | Access.REMOTE_WRITE)
        endpoint.post([Send([DESCRIPTOR.pack(region.address, region.token, region.length)])])
        await peer.closed.wait()

    asyncio.run(main())


class Sender(Bench):
    """This process: it writes blocks and announces them, or fetches them."""

    def __init__(self) -> None:
        super().__init__(SIZES[-1], 0.0, 1)
        self.touched = False
        self.memory = bytearray(SIZES[-1])

    def start_one(self) -> None:
        size = self.size
        local, remote = memoryview(self.memory)[:size], self.remote._replace(length=size)
        if self.kind == "read":
            self.endpoint.post([Read([local], remote)])
            return
        if self.touched:
            local[:] = memoryview(_MADE)[:size]
        announced = _BLOCK.pack(size, self.touched)
        self.endpoint.post([Write([local], remote, signalled=False), Send([announced], signalled=False)])

    def step(self) -> None:
        if self.touched and self.kind == "read":
            _read(self.memory, self.size)
        super().step()


class Rdma:
    """One kind of operation on a fabric."""

    def __init__(self, sender: Sender, kind: str, process: int) -> None:
        self.process = process
        self._sender, self._kind = sender, kind

    async def exchange(self, size: int, touched: bool, depth: int, seconds: float) -> tuple[int, float]:
        sender = self._sender
        sender.size, sender.touched, sender.depth, sender.seconds = size, touched, depth, seconds
        rate = await sender.measure(self._kind)
        return sender.operations, sender.operations * size / rate


@contextlib.asynccontextmanager
async def _rdma(fabric: str) -> AsyncIterator[dict[str, System]]:
    ours, theirs = multiprocessing.Pipe()
    udp_port = _free_udp_port()
    process = multiprocessing.Process(target=_rdma_peer, args=(theirs, fabric, udp_port), daemon=True)
    process.start()
    sender = Sender()
    tasks: list[asyncio.Task[None]] = []

    def on_request(request: ConnectionRequest) -> None:
        sender.prepare(request.prepare())
        tasks.append(asyncio.ensure_future(request.accept()))

    listener = await _provider(fabric, udp_port).listen(SERVER, 0, on_request)
    ours.send(listener.address[1])
    try:
        async with asyncio.timeout(20):
            found: RemoteSegment = await sender.ready
        # The peer's memory holds nothing that is sought, also before the first block.
        sender.endpoint.post([Write([_MADE], found)])
        pid = process.pid or 0
        yield {f"{fabric}, Write + Send": Rdma(sender, "write", pid), f"{fabric}, Read": Rdma(sender, "read", pid)}
    finally:
        sender.endpoint.disconnect()
        await listener.close()
        await asyncio.sleep(0.05)
        process.kill()
        process.join()


# -- the run --------------------------------------------------------------------------------------------------------


async def _sample(system: System, size: int, touched: bool, seconds: float) -> Sample:
    count, spent = await system.exchange(size, touched, 1, seconds)
    latency = spent / count
    meter = Meter(system.process)
    count, spent = await system.exchange(size, touched, DEPTH, seconds)
    used = meter.result(0.0, count)
    return Sample(latency, count * size / spent, used.ours + used.theirs)


async def measure(rounds: int, seconds: float, sizes: Sequence[int] = SIZES) -> dict[Point, list[Sample]]:
    """Measure every point ``rounds`` times, in turns. Each measurement takes ``seconds``, twice."""
    found: dict[Point, list[Sample]] = {}
    async with contextlib.AsyncExitStack() as stack:
        systems: dict[str, System] = {"TCP": stack.enter_context(_tcp())}
        for fabric in ("iWARP", "RoCEv2"):
            systems |= await stack.enter_async_context(_rdma(fabric))
        for system in systems.values():
            await system.exchange(sizes[0], False, 1, seconds / 10)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            for size in sizes:
                for touched in (False, True):
                    for name, system in systems.items():
                        sample = await _sample(system, size, touched, seconds)
                        found.setdefault(Point(name, touched, size), []).append(sample)
    return found


_COLUMNS = (
    ("latency, µs", lambda sample: sample.latency * 1e6),
    ("throughput, MB/s", lambda sample: sample.rate / 1e6),
    ("processor time of both, µs per block", lambda sample: sample.processor * 1e6),
)
_COLOURS = {"TCP": "#2f7ed8", "Write + Send": "#1a9e77", "Read": "#c2519c"}


def draw(results: dict[Point, list[Sample]], fabric: str, path: Path) -> None:
    """Draw the picture of a fabric, with TCP beside it: lines are medians, bands reach from the lowest to the highest
    round, dashed lines are touched buffers."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for number, (title, value) in enumerate(_COLUMNS):
        axes = figure.add_subplot(1, 3, number + 1)
        for name in dict.fromkeys(point.system for point in results if point.system.startswith(("TCP", fabric))):
            for touched in (False, True):
                points = [(p.size, list(map(value, s))) for p, s in results.items() if p[:2] == (name, touched)]
                label, dash = (f"{name}, touched", "--") if touched else (name, "-")
                plots.line(axes, label, points, _COLOURS[name.rpartition(", ")[2]], dash)
        sizes = sorted({point.size for point in results})
        plots.label(axes, title, "block", sizes, [size_name(size) for size in sizes])
    plots.write(figure, figure.axes, path)


def _table(results: dict[Point, list[Sample]], value: int) -> str:
    names = list(dict.fromkeys(point.system for point in results))
    head = [size for name in names for size in (name, "touched")]
    lines = [["block", *head]]
    for size in dict.fromkeys(point.size for point in results):
        row = [size_name(size)]
        for name in names:
            for touched in (False, True):
                samples = results[Point(name, touched, size)]
                row.append(page.number(statistics.median(map(_COLUMNS[value][1], samples))))
        lines.append(row)
    return page.grid(lines, "r" * len(lines[0]))


def document(results: dict[Point, list[Sample]], pictures: str, rounds: int, seconds: float) -> str:
    """Return what stands on the page: circumstances, pictures and tables."""
    measured = machine.briefly(f"{rounds} rounds of {seconds:g} s for each value")
    parts = [f"{measured} Both processes are on one machine."]
    if pictures:
        for fabric in ("iWARP", "RoCEv2"):
            parts.append(f"![{fabric} and TCP by block size]({pictures}/tcp-or-rdma-{fabric.lower()}.svg)")
    parts += [f"### {title}\n\n{_table(results, value)}" for value, (title, _) in enumerate(_COLUMNS)]
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.tcp_or_rdma",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.12, help="of each of about 1000 measurements")
    parser.add_argument("--page", type=Path, help="write tables and pictures between the markers of this page")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds must be positive")
    try:
        if options.page:
            page.check_page(options.page, PART)
        results = asyncio.run(measure(options.rounds, options.seconds))
        folder = options.page.parent / "pictures" if options.page else None
        if folder is not None:
            folder.mkdir(exist_ok=True)
            with matplotlib.rc_context(fname=plots.STYLE):
                for fabric in ("iWARP", "RoCEv2"):
                    draw(results, fabric, folder / f"tcp-or-rdma-{fabric.lower()}.svg")
        text = document(results, folder.name if folder else "", options.rounds, options.seconds)
        if options.page:
            page.rewrite(options.page, text, PART)
        else:
            print(text)
    except (BenchError, OSError) as error:
        print(f"tcp_or_rdma: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
