"""The HTTP port that Prometheus scrapes: ``GET /metrics``, and ``GET /healthz`` for load balancers.

It runs on the server's own event loop, so a scrape sees tables that nothing changes meanwhile. It knows no users: it
listens on this machine alone unless the configuration says otherwise. [RFC 9112]
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' text format."""
MAX_HEAD = 8192
"""Bytes of a request's head."""
MAX_CLIENTS = 16
PATIENCE = 5.0
"""Seconds for a request, and for its answer."""


class MetricsPort:
    """One listening port. ``start`` it, then ``close`` it, once."""

    def __init__(self, text: Callable[[], bytes]) -> None:
        """``text``: returns what a scrape gets."""
        self._text = text
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.address = ("", 0)

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises ``OSError``."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_HEAD)
        name = self._server.sockets[0].getsockname()
        self.address = name[0], name[1]

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        # So ``drain`` waits until the system has all of the answer.
        writer.transport.set_write_buffer_limits(0)
        try:
            async with asyncio.timeout(PATIENCE):
                if len(self._writers) > MAX_CLIENTS:
                    writer.write(_answer("503 Service Unavailable", b"too many clients\n", "text/plain"))
                else:
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._respond(head))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("metrics: %s", error)
            # A client that does not read would hold the rest of the answer, and the connection, for ever.
            writer.transport.abort()
        finally:
            self._writers.discard(writer)
            writer.close()

    def _respond(self, head: bytes) -> bytes:
        line = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(line) != 3 or not line[2].startswith("HTTP/1."):
            return _answer("400 Bad Request", b"not a request of HTTP/1\n", "text/plain")
        method, target, _ = line
        if method not in ("GET", "HEAD"):
            return _answer("405 Method Not Allowed", b"GET alone\n", "text/plain")
        path = target.partition("?")[0]
        if path == "/metrics":
            return _answer("200 OK", self._text(), CONTENT_TYPE, method == "GET")
        if path == "/healthz":
            return _answer("200 OK", b"ok\n", "text/plain", method == "GET")
        return _answer("404 Not Found", b"there are /metrics and /healthz\n", "text/plain", method == "GET")


def _answer(status: str, body: bytes, kind: str, with_body: bool = True) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (body if with_body else b"")
