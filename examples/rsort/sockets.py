"""The same buckets behind plain TCP sockets, for ``bench`` alone: what the shuffle costs without RDMA.

A server has the memory of its buckets, and a thread for each connection that moves bytes between socket and memory.
A client asks with a header and waits for the answer, as a write to RStore waits for its fence.
"""

from __future__ import annotations

import multiprocessing
import socket
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

_HEADER = struct.Struct(">B24sQQ")
"""What is asked, the name of the bucket, offset and length."""
_CREATE, _WRITE, _READ, _FREE = range(4)
_DONE = b"."


def _receive(sock: socket.socket, into: memoryview) -> bool:
    """Fill ``into``. Return False if the peer has closed the connection."""
    while len(into):
        got = sock.recv_into(into)
        if not got:
            return False
        into = into[got:]
    return True


def _serve(sock: socket.socket, buckets: dict[bytes, memoryview]) -> None:
    header = bytearray(_HEADER.size)
    while _receive(sock, memoryview(header)):
        asked, name, offset, length = _HEADER.unpack(header)
        if asked == _CREATE:
            buckets[name] = memoryview(bytearray(length))
        elif asked == _FREE:
            del buckets[name]
        elif asked == _WRITE:
            if not _receive(sock, buckets[name][offset : offset + length]):
                return
        else:
            sock.sendall(buckets[name][offset : offset + length])
            continue
        sock.sendall(_DONE)


def _server(pipe: Connection) -> None:
    """Run a server process until it is killed."""
    buckets: dict[bytes, memoryview] = {}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        while True:
            sock, _ = listener.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_serve, args=(sock, buckets), daemon=True).start()


class _Link(NamedTuple):
    """A connection to a server."""

    sock: socket.socket
    lock: threading.Lock


class Bucket:
    """A bucket at its server. The methods are those of ``rstore``'s regions."""

    def __init__(self, link: _Link, name: bytes) -> None:
        self._link, self._name = link, name

    def ask(self, what: int, offset: int, length: int, data: Any = b"", into: Any = None) -> None:
        """Send a request with ``data``, and wait for the answer. Raise ``ConnectionResetError``."""
        answer = memoryview(bytearray(len(_DONE))) if into is None else into
        with self._link.lock:
            self._link.sock.sendall(_HEADER.pack(what, self._name, offset, length))
            self._link.sock.sendall(data)
            if not _receive(self._link.sock, answer):
                raise ConnectionResetError("the server has closed the connection")

    def write(self, data: Any, offset: int) -> None:
        view = memoryview(data).cast("B")
        self.ask(_WRITE, offset, len(view), view)

    def read_into(self, into: Any, offset: int = 0) -> None:
        view = memoryview(into).cast("B")
        self.ask(_READ, offset, len(view), into=view)


class Store:
    """Connections to all servers. A bucket's name says at which one it is. The methods are ``rstore.Store``'s."""

    def __init__(self, ports: tuple[int, ...], capacity: int) -> None:
        self._capacity = capacity
        self._links = [_Link(socket.create_connection(("127.0.0.1", port)), threading.Lock()) for port in ports]
        for link in self._links:
            link.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def servers(self) -> list[dict[str, int]]:
        return [{"capacity": self._capacity, "used": 0} for _ in self._links]

    def create(self, name: str, size: int, **_: Any) -> None:
        self[name].ask(_CREATE, 0, size)

    def __getitem__(self, name: str) -> Bucket:
        raw = name.encode()
        return Bucket(self._links[zlib.crc32(raw) % len(self._links)], raw)

    def __delitem__(self, name: str) -> None:
        self[name].ask(_FREE, 0, 0)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links:
            link.sock.close()


class BehindSockets(NamedTuple):
    """The counterpart of ``sort.InRStore``."""

    ports: tuple[int, ...]
    capacity: int

    def open(self) -> Store:
        return Store(self.ports, self.capacity)


@contextmanager
def socket_servers(number: int, capacity: int) -> Iterator[BehindSockets]:
    """Run server processes for as long as the block lasts."""
    context = multiprocessing.get_context("spawn")
    processes = []
    try:
        ports = []
        for _ in range(number):
            ours, theirs = context.Pipe()
            process = context.Process(target=_server, args=(theirs,), daemon=True)
            process.start()
            processes.append(process)
            if not ours.poll(20):
                raise OSError("a server of the comparison did not start")
            ports.append(ours.recv())
        yield BehindSockets(tuple(ports), capacity)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
