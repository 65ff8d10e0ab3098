"""One iWARP connection between two processes over loopback, and raw TCP beside it. ``fabrics`` is the command.

Each operation is that of a server for one READ (RDMA Write + Send) or one WRITE (RDMA Read). The peer answers it before
the next one starts (depth 1).
"""

from __future__ import annotations

import asyncio
import mmap
import multiprocessing
import os
import socket
import struct
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from smbdirect.providers.base import (
    Access,
    Completion,
    ConnectionRequest,
    Endpoint,
    Operation,
    Read,
    RemoteSegment,
    Send,
    Status,
    Write,
)
from smbdirect.providers.iwarp import IwarpProvider

DESCRIPTOR = struct.Struct("<QII")
_PROCESSORS = sorted(os.sched_getaffinity(0))


class Result(NamedTuple):
    """What one kind of operation cost."""

    rate: float
    """Bytes per second."""
    ours: float
    """Processor time of this process per operation, in seconds."""
    theirs: float
    """Processor time of the peer's process per operation, in seconds."""


def processor_time(pid: int) -> float:
    """Return the seconds that all threads of a process have run."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def pin(first: int, second: int, together: bool) -> None:
    """Put two processes on one processor, or each on one of its own."""
    os.sched_setaffinity(first, {_PROCESSORS[0]})
    os.sched_setaffinity(second, {_PROCESSORS[0 if together else -1]})


class Meter:
    """Measures the processor time of both sides from its making to ``result``."""

    def __init__(self, peer: int, placed: str = "") -> None:
        """``peer`` is the process of the peer. ``placed``: see ``fabrics``."""
        self._pids = (os.getpid(), peer)
        if placed:
            pin(*self._pids, placed == "together")
        self._times = [processor_time(pid) for pid in self._pids]

    def result(self, rate: float, operations: int) -> Result:
        times = [processor_time(pid) - before for pid, before in zip(self._pids, self._times, strict=True)]
        return Result(rate, times[0] / operations, times[1] / operations)


def pages(size: int) -> memoryview:
    """Return memory that begins with a page, as a server's buffers do. How fast the kernel copies depends on the place
    in the page."""
    return memoryview(mmap.mmap(-1, size))


def raw_peer(pipe: Connection, size: int) -> None:
    """Receive messages of ``size`` bytes and acknowledge each with one byte."""
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname()[1])
    sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = pages(size)
    while True:
        got = 0
        while got < size:
            count = sock.recv_into(buffer[got:])
            if not count:
                return
            got += count
        sock.sendall(b"x")


def bench_raw(size: int, seconds: float, placed: str = "") -> Result:
    """Measure plain sends, one outstanding."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=raw_peer, args=(theirs, size), daemon=True)
    process.start()
    with socket.create_connection(("127.0.0.1", ours.recv())) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = pages(size)
        operations = 0
        meter = Meter(process.pid or 0, placed)
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            sock.sendall(data)
            sock.recv(1)
            operations += 1
        result = meter.result(operations * size / (time.perf_counter() - start), operations)
    process.join()
    return result


class Peer:
    """The client: it exposes one region, sends its address, and answers each message with an empty one."""

    def __init__(self, size: int) -> None:
        self.memory = pages(size)
        self.closed = asyncio.Event()

    def prepare(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.buffers = [memoryview(bytearray(64)) for _ in range(64)]
        for index, buffer in enumerate(self.buffers):
            endpoint.post_receive(buffer, index)
        endpoint.on_completions = self.completed
        endpoint.on_closed = lambda reason: self.closed.set()

    def completed(self, completions: Sequence[Completion]) -> None:
        for item in completions:
            if item.operation is Operation.RECEIVE and item.status is Status.OK:
                index = item.context
                if isinstance(index, int):
                    self.endpoint.post_receive(self.buffers[index], index)
                self.endpoint.post([Send([b""], signalled=False)])


def iwarp_peer(pipe: Connection, size: int, crc: bool, large: bool) -> None:
    """Run the client's process."""

    async def main() -> None:
        peer = Peer(size)
        provider = IwarpProvider(crc=crc, large_fpdus=large)
        endpoint = await provider.connect("127.0.0.1", pipe.recv(), peer.prepare)
        region = endpoint.register(peer.memory, Access.REMOTE_READ | Access.REMOTE_WRITE)
        endpoint.post([Send([DESCRIPTOR.pack(region.address, region.token, region.length)])])
        await peer.closed.wait()

    asyncio.run(main())


class Bench:
    """The server's side: it repeats one operation for a while."""

    def __init__(self, size: int, seconds: float, depth: int) -> None:
        self.size = size
        self.seconds = seconds
        self.depth = depth
        self.local = pages(size)
        self.ready: asyncio.Future[RemoteSegment] = asyncio.get_running_loop().create_future()
        self.done = asyncio.Event()
        self.running = False
        self.left = 0
        self.operations = 0

    def prepare(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.buffers = [memoryview(bytearray(64)) for _ in range(64)]
        for index, buffer in enumerate(self.buffers):
            endpoint.post_receive(buffer, index)
        endpoint.on_completions = self.completed

    def completed(self, completions: Sequence[Completion]) -> None:
        for item in completions:
            if item.status is not Status.OK:
                return
            if item.operation is Operation.RECEIVE:
                index = item.context
                if not isinstance(index, int):
                    continue
                if item.length:
                    address, token, length = DESCRIPTOR.unpack_from(self.buffers[index])
                    self.ready.set_result(RemoteSegment(token, address, length))
                self.endpoint.post_receive(self.buffers[index], index)
                if self.running and self.kind == "write":
                    self.step()
            elif item.operation is Operation.READ:
                self.step()

    def step(self) -> None:
        self.operations += 1
        if time.perf_counter() < self.deadline:
            self.start_one()
            return
        self.left -= 1
        if not self.left:
            self.running = False
            self.done.set()

    def start_one(self) -> None:
        if self.kind == "write":
            self.endpoint.post(
                [Write([self.local], self.remote, signalled=False), Send([b"response"], signalled=False)]
            )
        else:
            self.endpoint.post([Read([self.local], self.remote)])

    async def measure(self, kind: str) -> float:
        """Return the bytes per second."""
        self.kind = kind
        self.remote = await self.ready
        self.operations = 0
        self.left = self.depth
        self.running = True
        self.done.clear()
        start = time.perf_counter()
        self.deadline = start + self.seconds
        for _ in range(self.depth):
            self.start_one()
        await self.done.wait()
        return self.operations * self.size / (time.perf_counter() - start)


async def bench_iwarp(
    size: int, seconds: float, crc: bool, large: bool, depth: int, placed: str = ""
) -> dict[str, Result]:
    """Measure each kind of operation."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=iwarp_peer, args=(theirs, size, crc, large), daemon=True)
    process.start()
    bench = Bench(size, seconds, depth)
    tasks: list[asyncio.Task[None]] = []

    def on_request(request: ConnectionRequest) -> None:
        bench.prepare(request.prepare())
        tasks.append(asyncio.ensure_future(request.accept()))

    provider = IwarpProvider(crc=crc, large_fpdus=large)
    listener = await provider.listen("127.0.0.1", 0, on_request)
    ours.send(listener.address[1])
    results = {}
    for kind in ("write", "read"):
        meter = Meter(process.pid or 0, placed)
        rate = await bench.measure(kind)
        results[kind] = meter.result(rate, bench.operations)
    bench.endpoint.disconnect()
    await listener.close()
    await asyncio.sleep(0.05)
    process.join()
    return results
