"""The systems that ``bench`` compares: how their servers are started, filled with values, and read from."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from rstore.client import Client, Region, connect

SIZES = (8, 64, 4096, 65536, 1 << 20)
SERVERS = (1, 2, 4, 8)
SHARDED = (8, 4096, 65536)
"""Sizes of the values that lie at several servers."""
VALUES = 64
DEPTH = 16
"""Reads in flight, at all servers together."""
ORDER = random.Random(1).sample(range(VALUES), VALUES)
"""In which the values are read, again and again."""
_SILENT = 10.0
"""Seconds after which a server that does not answer has failed."""


class System(Protocol):
    """One of those that are compared, with as many server processes as ``SERVERS`` has at most."""

    name: str

    def processes(self, servers: int) -> list[int]:
        """Return the processes that hold the values when there are so many servers."""

    async def alone(self, size: int, seconds: float) -> int:
        """Read one after the other from one server. Return how many."""

    async def flow(self, servers: int, size: int, seconds: float) -> int:
        """Read with ``DEPTH`` in flight. Return how many."""


def value(number: int, size: int) -> bytes:
    return bytes([number + 1]) * size


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(*words: str) -> Iterator[int]:
    """Run a server, and yield its process. If this program is killed, the end of its input ends a server of RStore."""
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               process_group=0)  # fmt: skip
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()


# -- Redis and memcached --------------------------------------------------------------------------------------------


class Words(Protocol):
    """What is said to a server."""

    name: str
    program: str
    version: str
    """The option that asks for its version."""

    def command(self, port: int) -> list[str]: ...
    def put(self, key: bytes, data: bytes) -> bytes: ...
    def get(self, key: bytes) -> bytes: ...
    def answer(self, key: bytes, data: bytes) -> bytes:
        """Return the whole answer of a get."""

    stored: bytes
    """The answer of a put."""


class Redis:
    name, program, version, stored = "Redis", "redis-server", "--version", b"+OK\r\n"

    def command(self, port: int) -> list[str]:
        return ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]

    def put(self, key: bytes, data: bytes) -> bytes:
        return b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(data), data)

    def get(self, key: bytes) -> bytes:
        return b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key)

    def answer(self, key: bytes, data: bytes) -> bytes:
        return b"$%d\r\n%s\r\n" % (len(data), data)


class Memcached:
    name, program, version, stored = "memcached", "memcached", "-V", b"STORED\r\n"

    def command(self, port: int) -> list[str]:
        return ["-l", "127.0.0.1", "-p", str(port), "-U", "0", "-t", "1", "-I", "4m", "-u", "root"]

    def put(self, key: bytes, data: bytes) -> bytes:
        return b"set %s 0 0 %d\r\n%s\r\n" % (key, len(data), data)

    def get(self, key: bytes) -> bytes:
        return b"get %s\r\n" % key

    def answer(self, key: bytes, data: bytes) -> bytes:
        return b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key, len(data), data)


def _key(number: int, size: int) -> bytes:
    return b"%02d-%07d" % (number, size)


def _connected(port: int) -> socket.socket:
    for _ in range(200):
        try:
            sock = socket.create_connection(("127.0.0.1", port), _SILENT)
        except OSError:
            time.sleep(0.05)
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
    raise OSError(f"nothing listens on port {port}")


class TextSystem:
    """Servers that a line asks, with a socket to each and the client's own sharding."""

    def __init__(self, words: Words, stack: contextlib.ExitStack) -> None:
        self.name, self.words = words.name, words
        ports = [free_port() for _ in range(SERVERS[-1])]
        program = shutil.which(words.program) or words.program
        self._pids = [stack.enter_context(running(program, *words.command(port))) for port in ports]
        self._sockets = [stack.enter_context(_connected(port)) for port in ports]
        self._into = memoryview(bytearray(SIZES[-1] + 4096))
        for number, size in {(0, size) for size in SIZES} | set(itertools.product(range(VALUES), SHARDED)):
            key, data = _key(number, size), value(number, size)
            for sock in self._sockets:
                self._ask(sock, words.put(key, data), words.stored)
                self._ask(sock, words.get(key), words.answer(key, data))

    def processes(self, servers: int) -> list[int]:
        return self._pids[:servers]

    def _ask(self, sock: socket.socket, request: bytes, answer: bytes) -> None:
        sock.sendall(request)
        if self._receive(sock, len(answer)) != answer:
            raise OSError(f"{self.name} gave another answer")

    def _receive(self, sock: socket.socket, length: int) -> memoryview:
        into, got = self._into[:length], 0
        while got < length:
            count = sock.recv_into(into[got:])
            if not count:
                raise OSError(f"{self.name} has closed the connection")
            got += count
        return into

    async def alone(self, size: int, seconds: float) -> int:
        sock, key = self._sockets[0], _key(0, size)
        request, length = self.words.get(key), len(self.words.answer(key, bytes(size)))
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(10):
                sock.sendall(request)
                self._receive(sock, length)
            count += 10
        return count

    async def flow(self, servers: int, size: int, seconds: float) -> int:
        requests = [self.words.get(_key(number, size)) for number in range(VALUES)]
        length = len(self.words.answer(_key(0, size), bytes(size)))
        values = itertools.cycle(ORDER)
        partial = [0] * servers
        count = flying = 0
        with selectors.DefaultSelector() as selector:
            for server in range(servers):
                selector.register(self._sockets[server], selectors.EVENT_READ, server)
            end, more = time.perf_counter() + seconds, DEPTH
            while flying or more:
                together = [b""] * servers
                for number in itertools.islice(values, more):
                    together[number % servers] += requests[number]
                for server, request in enumerate(together):
                    if request:
                        self._sockets[server].sendall(request)
                flying += more
                answered = 0
                ready = selector.select(_SILENT)
                if not ready:
                    raise OSError(f"{self.name} does not answer")
                for key, _ in ready:
                    got = self._sockets[key.data].recv_into(self._into)
                    if not got:
                        raise OSError(f"{self.name} has closed the connection")
                    whole, partial[key.data] = divmod(partial[key.data] + got, length)
                    answered += whole
                count += answered
                flying -= answered
                if flying < 0:
                    raise OSError(f"{self.name} gave more answers than it was asked for")
                more = answered if time.perf_counter() < end else 0
        if any(partial):
            raise OSError(f"{self.name} gave an answer of another length")
        return count


# -- RStore ---------------------------------------------------------------------------------------------------------


class RStore:
    """Memory servers, and regions that are striped over some of them: unit ``k`` has value ``k``. Reads are one-sided:
    the servers' programs do nothing, their NICs in user space do."""

    def __init__(self, fabric: str, client: Client, pids: dict[int, int], regions: dict[int, Region]) -> None:
        self.name = f"RStore ({fabric})"
        self.client, self.regions = client, regions
        self._pids = pids

    @classmethod
    async def start(cls, fabric: str, stack: contextlib.AsyncExitStack) -> RStore:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        port = free_port()
        program = [sys.executable, str(Path(__file__).parent), "--fabric", fabric, "--master", f"127.0.0.1:{port}"]
        program.append("--until-eof")
        stack.enter_context(running(*program, "master", "--state", f"{folder}/state"))
        pids: dict[int, int] = {}
        for _ in range(SERVERS[-1]):
            address = f"127.0.0.1:{(own := free_port())}"
            pids[own] = stack.enter_context(running(*program, "serve", "--memory", "16M", "--address", address))
        client = await cls._joined(fabric, port, stack)
        regions = {}
        for servers in SERVERS:
            region = await client.create(f"values-{servers}", VALUES * SHARDED[-1], unit=SHARDED[-1], columns=servers)
            for number in range(VALUES):
                data = value(number, SHARDED[-1])
                await region.write(data, number * SHARDED[-1])
                if await region.read(number * SHARDED[-1], len(data)) != data:
                    raise OSError("RStore gave another answer")
            regions[servers] = region
        return cls(fabric, client, pids, regions)

    @staticmethod
    async def _joined(fabric: str, port: int, stack: contextlib.AsyncExitStack) -> Client:
        """Return a client, as soon as all memory servers are there."""
        deadline = time.monotonic() + 30
        while True:
            try:
                client = await stack.enter_async_context(connect(fabric, "127.0.0.1", port))
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)
        while len(await client.servers()) < SERVERS[-1]:
            if time.monotonic() > deadline:
                raise OSError("the store did not start")
            await asyncio.sleep(0.1)
        return client

    def processes(self, servers: int) -> list[int]:
        return [self._pids[port] for _, port in self.regions[servers].layout.addresses.values()]

    async def alone(self, size: int, seconds: float) -> int:
        region, into = self.regions[1], bytearray(size)
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(10):
                await region.read_into(into)
            count += 10
        return count

    async def flow(self, servers: int, size: int, seconds: float) -> int:
        region, values, count = self.regions[servers], itertools.cycle(ORDER), 0
        end = time.perf_counter() + seconds

        async def chain() -> None:
            nonlocal count
            into = bytearray(size)
            while time.perf_counter() < end:
                await region.read_into(into, next(values) * SHARDED[-1])
                count += 1

        async with asyncio.TaskGroup() as chains:
            for _ in range(DEPTH):
                chains.create_task(chain())
        return count
