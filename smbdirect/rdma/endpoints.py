"""Listening and connecting for programs."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from smbdirect.errors import ConnectionLost, DecodeError, ProviderError
from smbdirect.providers.base import CloseCause, CloseReason, ConnectionRequest, Endpoint, Provider
from smbdirect.providers.base import Listener as ProviderListener
from smbdirect.providers.make import make_provider
from smbdirect.rdma.connection import MESSAGE_SIZE, RECEIVES, Connection
from smbdirect.rdma.errors import NotSupported
from smbdirect.rdma.messages import MIN_RECEIVES, pack_terms, unpack_terms
from smbdirect.rdma.pool import BufferPool
from smbdirect.rdma.regions import Domain

_log = logging.getLogger(__name__)

Fabric = str | Provider
"""``"iwarp"``, ``"roce"`` or ``"verbs"``, or a provider."""

_providers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Provider]] = weakref.WeakKeyDictionary()
"""The providers of each event loop, by name: one fabric has one set of ports."""
_BACKLOG = 64
"""Established connections that wait for the program to take them."""


def provider_of(fabric: Fabric) -> Provider:
    """Return the provider of a fabric for the running event loop. Raise ``ProviderError`` with a remedy if the fabric
    cannot be used here."""
    if not isinstance(fabric, str):
        return fabric
    known = _providers.setdefault(asyncio.get_running_loop(), {})
    if fabric not in known:
        known[fabric] = make_provider(fabric)
    return known[fabric]


def domain(fabric: Fabric) -> Domain:
    """Return a new domain, whose regions serve all connections that are made with it. Raise ``NotSupported`` if the
    fabric registers memory for each connection."""
    provider = provider_of(fabric)
    try:
        return Domain(provider.shared_regions(), provider.capabilities)
    except ProviderError as error:
        raise NotSupported(str(error)) from error


def _check(receives: int, message_size: int) -> None:
    if not MIN_RECEIVES <= receives <= 0xFFFF:
        raise ValueError(f"receives: {MIN_RECEIVES} to 65535, not {receives}")
    if not 0 < message_size <= 1 << 24:
        raise ValueError(f"message_size: 1 byte to 16 MiB, not {message_size}")


def answer(
    request: ConnectionRequest, pool: BufferPool, domain: Domain | None, receives: int, message_size: int
) -> Connection:
    """Return the connection that a request asks for; ``ConnectionRequest.accept`` with ``pack_terms`` establishes it.

    Raise ``DecodeError`` if the peer does not speak this API, ``ProviderError`` and ``ConnectionLost``. The request can
    be rejected then."""
    terms, private_data = unpack_terms(request.private_data)
    endpoint = request.prepare()
    if domain is not None:
        endpoint.share(domain.regions)
    connection = Connection(endpoint, pool, receives, message_size, private_data)
    connection.domain = domain
    connection.established(terms, initiator=False)
    return connection


class Listener:
    """A listening address. Iterate over it for the connections of peers."""

    def __init__(self, pool: BufferPool, domain: Domain | None, receives: int, message_size: int) -> None:
        self.address: tuple[str, int] = ("", 0)
        self.private_data = b""
        """What peers are told when they connect."""
        self._pool = pool
        self._domain = domain
        self._receives = receives
        self._message_size = message_size
        self._listener: ProviderListener | None = None
        self._ready: asyncio.Queue[Connection | None] = asyncio.Queue()
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._accepting: set[asyncio.Task[None]] = set()

    def attach(self, listener: ProviderListener) -> None:
        """Take over the provider's listener."""
        self._listener = listener
        self.address = listener.address

    def on_request(self, request: ConnectionRequest) -> None:
        """Accept a connection request, or reject it if the peer does not speak this API or too many wait."""
        if self._ready.qsize() >= _BACKLOG:
            _log.warning("%s: connection refused: %d wait for the program", request.peer_address, _BACKLOG)
            request.reject()
            return
        try:
            connection = answer(request, self._pool, self._domain, self._receives, self._message_size)
        except (ConnectionLost, DecodeError, ProviderError) as error:
            _log.warning("%s: connection refused: %s", request.peer_address, error)
            request.reject()
            return
        self._connections.add(connection)
        task = asyncio.get_running_loop().create_task(self._accept(request, connection))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def _accept(self, request: ConnectionRequest, connection: Connection) -> None:
        try:
            await request.accept(pack_terms(self._receives, self._message_size, self.private_data))
        except (ConnectionLost, ProviderError) as error:
            _log.info("%s: not established: %s", request.peer_address, error)
            connection.abort("not established")
            return
        self._ready.put_nowait(connection)

    async def accept(self) -> Connection:
        """Return the next connection. Raise ``ConnectionLost`` if the listener is closed."""
        connection = await self._ready.get()
        if connection is None:
            self._ready.put_nowait(None)
            raise ConnectionLost("the listener was closed")
        return connection

    async def __aiter__(self) -> AsyncIterator[Connection]:
        while True:
            connection = await self._ready.get()
            if connection is None:
                self._ready.put_nowait(None)
                return
            yield connection

    async def close(self) -> None:
        """Stop listening, and end all connections that were accepted. Idempotent."""
        if self._listener is not None:
            await self._listener.close()
        for task in tuple(self._accepting):
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for connection in tuple(self._connections):
            connection.abort("the listener was closed")
        for connection in tuple(self._connections):
            await connection.close()
        self._ready.put_nowait(None)


@asynccontextmanager
async def listen(
    fabric: Fabric,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    domain: Domain | None = None,
    receives: int = RECEIVES,
    message_size: int = MESSAGE_SIZE,
    private_data: bytes = b"",
) -> AsyncIterator[Listener]:
    """Listen, as long as the ``async with`` block lasts.

    ``domain``: its regions serve every connection. ``receives`` and ``message_size`` (bytes) say how many messages of
    which length may be under way to this side. ``private_data`` is for each peer that connects. Raise ``ProviderError``
    or ``OSError`` if the address cannot be used."""
    _check(receives, message_size)
    provider = provider_of(fabric)
    listener = Listener(BufferPool(), domain, receives, message_size)
    listener.private_data = private_data
    listener.attach(await provider.listen(host, port, listener.on_request))
    try:
        yield listener
    finally:
        await listener.close()


@asynccontextmanager
async def connect(
    fabric: Fabric,
    host: str,
    port: int,
    *,
    domain: Domain | None = None,
    receives: int = RECEIVES,
    message_size: int = MESSAGE_SIZE,
    private_data: bytes = b"",
    timeout: float = 5.0,
) -> AsyncIterator[Connection]:
    """Connect, for as long as the ``async with`` block lasts. See ``listen``. ``timeout`` is in seconds. Raise
    ``ConnectionLost`` if the peer is not there or does not speak this API."""
    connection = await open_connection(
        fabric,
        host,
        port,
        domain=domain,
        receives=receives,
        message_size=message_size,
        private_data=private_data,
        timeout=timeout,
    )
    async with connection:
        yield connection


async def open_connection(
    fabric: Fabric,
    host: str,
    port: int,
    *,
    domain: Domain | None = None,
    receives: int = RECEIVES,
    message_size: int = MESSAGE_SIZE,
    private_data: bytes = b"",
    timeout: float = 5.0,
) -> Connection:
    """Do what ``connect`` does. The caller closes the connection."""
    _check(receives, message_size)
    provider = provider_of(fabric)
    made: list[Connection] = []

    def prepare(endpoint: Endpoint) -> None:
        if domain is not None:
            endpoint.share(domain.regions)
        made.append(Connection(endpoint, BufferPool(), receives, message_size))

    terms = pack_terms(receives, message_size, private_data)
    endpoint = await provider.connect(host, port, prepare, terms, timeout)
    connection = made[-1]
    connection.domain = domain
    connection.peer_address, connection.local_address = endpoint.peer_address, endpoint.local_address
    try:
        found, connection.private_data = unpack_terms(endpoint.private_data)
    except DecodeError as error:
        connection.abort(str(error))
        await connection.close()
        raise ConnectionLost(CloseReason(CloseCause.PROTOCOL, str(error))) from error
    connection.established(found, initiator=True)
    return connection
