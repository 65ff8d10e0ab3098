"""HTTP for strangers: how many connections there may be, and how long each may take. The module loads aiohttp.

A connection has places in the tables of unauthenticated peers from its acceptance, before TLS, until it ends or its
user is known. It is dropped when the next request does not arrive in time, however many bytes of it came.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Collection
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from smb3server.net.door import Door
from smbdirect.unauthenticated import UnauthenticatedPeer, UnauthenticatedPeers

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT = 5.0
"""Seconds for TLS."""
FIRST_REQUEST = 10.0
"""Seconds from the acceptance of a connection to the end of its first request's head."""
NEXT_REQUEST = 30.0
"""The same from the end of an answer."""
BODY_TIMEOUT = 10.0
"""Seconds for a request's body."""
MAX_KNOWN = 128
"""Most connections of users who have logged on."""


def _is_a_fault(record: logging.LogRecord) -> bool:
    """Return whether a line of aiohttp's is about this server. Requests that are none, and clients that go away, are
    not worth a traceback: strangers could fill the log."""
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, HttpProcessingError | ConnectionError):
        return True
    log.debug("request by HTTP: %s", type(error).__name__)
    return False


_requests = logging.getLogger(f"{__name__}.requests")
_requests.addFilter(_is_a_fault)


class _Visitor:
    """One connection: its places in the tables, and its time limit."""

    def __init__(self, door: HttpDoor, address: str) -> None:
        self.address = address
        self.places: list[UnauthenticatedPeer] = []
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.WriteTransport | None = None
        self._door = door
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, seconds: float | None) -> None:
        """Drop the connection after ``seconds``, unless this is called again before. None means no limit."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self.drop)

    def drop(self) -> None:
        """End the connection at once."""
        self.ended()
        if self.transport is not None:
            self.transport.abort()
        elif self.task is not None:
            self.task.cancel()

    def leave(self) -> None:
        """Leave the tables of unauthenticated peers."""
        for place in self.places:
            place.leave()
        self.places.clear()

    def ended(self) -> None:
        """Forget the connection. Idempotent."""
        self.limit(None)
        self.leave()
        self._door.forget(self)


class _Connection(RequestHandler):
    """aiohttp's side of a connection."""

    def __init__(self, server: web.Server, visitor: _Visitor) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # As its own default, which the type leaves out.
            keepalive_timeout=NEXT_REQUEST,
            lingering_time=1.0,
            logger=_requests,
        )
        self.visitor = visitor

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.BaseProtocol``."""
        # uvloop's transports are not instances of asyncio's classes.
        self.visitor.transport = cast(asyncio.WriteTransport, transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See ``asyncio.BaseProtocol``."""
        self.visitor.ended()
        super().connection_lost(exc)


class HttpDoor:
    """Serves one aiohttp application. Call ``start``, ``listen`` for each socket, then ``close``."""

    def __init__(
        self,
        application: web.Application,
        admits: Callable[[str], bool],
        tables: Collection[UnauthenticatedPeers],
        context: ssl.SSLContext | None = None,
        shutdown_timeout: float = 1.0,
    ) -> None:
        """``admits`` returns whether an address may connect. Each connection has a place in all ``tables``, or is
        refused. ``context``: for TLS. ``shutdown_timeout``: seconds that requests have to end when the door closes."""
        self._admits = admits
        self._tables = tables
        self._context = context
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=shutdown_timeout)
        self._doors: list[Door] = []
        self._visitors: set[_Visitor] = set()
        self._known: set[_Visitor] = set()
        application.middlewares.insert(0, _timed)

    @property
    def connections(self) -> int:
        """Return how many connections there are, those that are still in the TLS handshake included."""
        return len(self._visitors)

    async def start(self) -> None:
        """Prepare the application."""
        await self._runner.setup()

    def listen(self, listening: socket.socket) -> None:
        """Serve a listening socket."""
        self._doors.append(Door(listening, self._admits, self._enter))

    def _enter(self, sock: socket.socket, address: str) -> None:
        visitor = _Visitor(self, address)
        for table in self._tables:
            place = table.enter(address, functools.partial(self._evicted, visitor))
            if place is None:
                log.warning("%s: too many connections by HTTP that have not logged on", address)
                visitor.ended()
                sock.close()
                return
            visitor.places.append(place)
        self._visitors.add(visitor)
        visitor.limit(FIRST_REQUEST)
        visitor.task = asyncio.get_running_loop().create_task(self._open(sock, visitor))

    @staticmethod
    def _evicted(visitor: _Visitor) -> None:
        log.debug("%s: connection by HTTP gives way to another one", visitor.address)
        visitor.drop()

    async def _open(self, sock: socket.socket, visitor: _Visitor) -> None:
        """Hand a connection to aiohttp, after its TLS handshake."""
        server = self._runner.server
        assert server is not None
        secure = self._context is not None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Connection(server, visitor),
                sock,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT if secure else None,
            )
        except (OSError, asyncio.CancelledError) as error:
            # ssl.SSLError is an OSError; only an eviction or the door's end cancels.
            log.debug("%s: no connection by HTTP: %s", visitor.address, error)
            visitor.ended()
            sock.close()

    def forget(self, visitor: _Visitor) -> None:
        """Count a connection no longer. Only the connection calls this."""
        self._visitors.discard(visitor)
        self._known.discard(visitor)

    def know(self, request: web.Request) -> None:
        """Count the connection of a request among those of users who have logged on: no stranger can displace it."""
        visitor = _visitor(request)
        if visitor is not None and visitor not in self._known and len(self._known) < MAX_KNOWN:
            self._known.add(visitor)
            visitor.leave()

    async def close(self) -> None:
        """Stop listening, and end all requests."""
        for door in self._doors:
            door.close()
        waiting = [visitor.task for visitor in self._visitors if visitor.task is not None and visitor.transport is None]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await self._runner.cleanup()


def _visitor(request: web.Request) -> _Visitor | None:
    return request.protocol.visitor if isinstance(request.protocol, _Connection) else None


@web.middleware
async def _timed(request: web.Request, handler: Callable[[web.Request], object]) -> web.StreamResponse:
    """Measure no time while a request is served, and begin again with the next one."""
    visitor = _visitor(request)
    if visitor is not None:
        visitor.limit(None)
    try:
        return await handler(request)  # type: ignore[misc, no-any-return]
    finally:
        if visitor is not None and not (request.transport is None or request.transport.is_closing()):
            visitor.limit(NEXT_REQUEST)


@contextlib.asynccontextmanager
async def body_in_time() -> AsyncIterator[None]:
    """Read the body of a request inside. One that takes too long is answered 408."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            yield
    except TimeoutError as error:
        raise web.HTTPRequestTimeout(text="The request did not arrive in time.") from error
