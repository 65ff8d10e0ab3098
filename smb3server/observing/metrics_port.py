"""The HTTP port that Prometheus scrapes: ``GET /metrics``, and ``GET /healthz`` for load balancers.

It runs on the server's own event loop, so a scrape sees tables that nothing changes meanwhile. It knows no users: it
listens on this machine alone unless the configuration says otherwise, and admits the addresses that may use the server,
and this machine. [RFC 9112]
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable

from smb3server.net.door import Door
from smb3server.net.listener import listening_socket
from smbdirect.unauthenticated import UnauthenticatedPeer, UnauthenticatedPeers

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' text format."""
MAX_HEAD = 8192
"""Bytes of a request's head."""
MAX_CLIENTS, MAX_CLIENTS_PER_ADDRESS = 16, 8
PATIENCE = 5.0
"""Seconds for a request, and for its answer."""


class MetricsPort:
    """One listening port. ``start`` it, then ``close`` it, once."""

    def __init__(
        self, text: Callable[[], bytes | Awaitable[bytes]], admits: Callable[[str], bool] = lambda host: True
    ) -> None:
        """``text``: returns what a scrape gets. ``admits``: returns whether an address may use the server at all."""
        self._text = text
        self._admits = admits
        self._door: Door | None = None
        self._clients = UnauthenticatedPeers(MAX_CLIENTS, MAX_CLIENTS_PER_ADDRESS)
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ("", 0)

    def start(self, host: str, port: int) -> None:
        """Listen. Raises ``OSError``."""
        listening = listening_socket(host, port)
        name = listening.getsockname()
        self.address = name[0], name[1]
        self._door = Door(listening, lambda peer: is_this_machine(peer) or self._admits(peer), self._enter)

    @property
    def connections(self) -> int:
        """Return how many connections there are."""
        return len(self._tasks)

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._door is not None:
            self._door.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _enter(self, sock: socket.socket, address: str) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(sock))
        place = self._clients.enter(address, functools.partial(_cancel, task))
        if place is None:
            log.warning("%s: too many connections to the metrics", address)
            task.cancel()
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._ended(task, sock, place))

    def _ended(self, task: asyncio.Task[None], sock: socket.socket, place: UnauthenticatedPeer | None) -> None:
        # A task that was cancelled before its first turn has closed nothing.
        sock.close()
        self._tasks.discard(task)
        if place is not None:
            place.leave()

    async def _serve(self, sock: socket.socket) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                reader, writer = await asyncio.open_connection(sock=sock, limit=MAX_HEAD)
                # So ``drain`` waits until the system has all of the answer: a client that does not read would hold the
                # rest, and the connection, for ever.
                writer.transport.set_write_buffer_limits(0)
                try:
                    writer.write(await self._respond(await reader.readuntil(b"\r\n\r\n")))
                    await writer.drain()
                finally:
                    writer.transport.abort()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("metrics: %s", error)

    async def _respond(self, head: bytes) -> bytes:
        line = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(line) != 3 or not line[2].startswith("HTTP/1."):
            return _answer("400 Bad Request", b"not a request of HTTP/1\n", "text/plain")
        method, target, _ = line
        if method not in ("GET", "HEAD"):
            return _answer("405 Method Not Allowed", b"GET alone\n", "text/plain")
        path = target.partition("?")[0]
        if path == "/metrics":
            found = self._text()
            text = await found if isinstance(found, Awaitable) else found
            return _answer("200 OK", text, CONTENT_TYPE, method == "GET")
        if path == "/healthz":
            return _answer("200 OK", b"ok\n", "text/plain", method == "GET")
        return _answer("404 Not Found", b"there are /metrics and /healthz\n", "text/plain", method == "GET")


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def is_this_machine(address: str) -> bool:
    """Return whether a peer's address is a loopback address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _answer(status: str, body: bytes, kind: str, with_body: bool = True) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (body if with_body else b"")
