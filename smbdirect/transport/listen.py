"""Listening for and connecting SMB Direct transports. [MS-SMBD 3.1.4.1, 3.1.7.2]"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from smbdirect.core.connection import Role
from smbdirect.core.settings import Settings
from smbdirect.errors import ConnectionLost, ProviderError
from smbdirect.message_transport import InboundMessage, OnTransport
from smbdirect.providers.base import ConnectionRequest, Endpoint, Listener, Provider, ignore
from smbdirect.rdma.pool import BufferPool
from smbdirect.transport.smb_direct import SmbDirectTransport
from smbdirect.unauthenticated import UnauthenticatedPeer, UnauthenticatedPeers

_log = logging.getLogger(__name__)

MAX_UNAUTHENTICATED = 4096
"""Most negotiating connections of a listener that shares no table with others."""


class SmbDirectListener:
    """A listening endpoint for SMB Direct."""

    def __init__(
        self,
        on_transport: OnTransport,
        settings: Settings,
        pool: BufferPool,
        admits: Callable[[str], bool] = lambda host: True,
        unauthenticated: UnauthenticatedPeers | None = None,
    ) -> None:
        self.address: tuple[str, int] = ("", 0)
        self.unauthenticated = UnauthenticatedPeers(MAX_UNAUTHENTICATED) if unauthenticated is None else unauthenticated
        self._places: dict[SmbDirectTransport, UnauthenticatedPeer] = {}
        """The table entries of connections that have proved their address and are negotiating."""
        self.transports: set[SmbDirectTransport] = set()
        """Connections that have not finished negotiating."""
        self.on_change: Callable[[], None] = ignore
        """Called after ``down`` has changed."""
        self.divert: Callable[[ConnectionRequest], bool] = lambda request: False
        """Takes the requests for connections that are to be something else than SMB Direct, and returns True for
        those."""
        self._on_transport = on_transport
        self._settings = settings
        self._pool = pool
        self._admits = admits
        self._listener: Listener | None = None
        self._accepting: set[asyncio.Task[None]] = set()

    def attach(self, listener: Listener) -> None:
        """Take over the address and the state of the provider's listener."""
        self._listener = listener
        self.address = listener.address
        listener.on_change = self._changed

    def _changed(self) -> None:
        self.on_change()

    @property
    def down(self) -> str:
        """Why no peer can connect at present; empty if peers can connect."""
        return self._listener.down if self._listener is not None else ""

    def on_request(self, request: ConnectionRequest) -> None:
        """Accept or reject a connection request. [MS-SMBD 3.1.7.2]"""
        if not self._admits(request.peer_address[0]):
            request.reject()
            return
        if request.private_data and self.divert(request):
            return
        loop = asyncio.get_running_loop()
        try:
            transport = SmbDirectTransport(request.prepare(), Role.PASSIVE, self._settings, self._pool, loop)
        except ProviderError as error:
            _log.warning("%s: connection refused: %s", request.peer_address, error)
            request.reject()
            return
        transport.on_established = self._established
        self.transports.add(transport)
        transport.start(_ignore_message, lambda error: self._forget(transport))
        task = loop.create_task(self._accept(request, transport))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def _accept(self, request: ConnectionRequest, transport: SmbDirectTransport) -> None:
        try:
            await request.accept()
        except (ConnectionLost, ProviderError) as error:
            _log.info("%s: not established: %s", request.peer_address, error)
            self._forget(transport)
            transport.abort("not established")
            return
        if transport not in self.transports:
            return  # it has negotiated already, or was lost
        host = request.peer_address[0]
        place = self.unauthenticated.enter(host, lambda: transport.abort("too many connections"))
        if place is None:
            _log.warning("%s: too many connections", host)
            transport.abort("too many connections")
        else:
            self._places[transport] = place

    def _forget(self, transport: SmbDirectTransport) -> None:
        self.transports.discard(transport)
        place = self._places.pop(transport, None)
        if place is not None:
            place.leave()

    def _established(self, transport: SmbDirectTransport) -> None:
        self._forget(transport)
        transport.detach()
        self._on_transport(transport)

    async def close(self) -> None:
        """Stop listening and end the connections that are still negotiating; established ones remain."""
        if self._listener is not None:
            await self._listener.close()
        for transport in tuple(self.transports):
            transport.abort("the listener was closed")
        for task in tuple(self._accepting):
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)


def _ignore_message(message: InboundMessage) -> None:
    message.release()


async def listen(
    provider: Provider,
    host: str,
    port: int,
    on_transport: OnTransport,
    settings: Settings | None = None,
    *,
    pool: BufferPool | None = None,
    admits: Callable[[str], bool] = lambda host: True,
    unauthenticated: UnauthenticatedPeers | None = None,
) -> SmbDirectListener:
    """Accept SMB Direct connections and pass each of them to ``on_transport`` once it has negotiated.

    ``admits`` returns whether a host may connect. ``unauthenticated`` is the table of connections that are negotiating,
    which listeners may share; None means a table of this listener's own.

    Until the upper layer calls ``trust``, a peer gets few credits and may send only short messages. Raises ``OSError``
    or ``ProviderError`` if listening on the address is impossible.
    """
    listener = SmbDirectListener(on_transport, settings or Settings(), pool or BufferPool(), admits, unauthenticated)
    listener.attach(await provider.listen(host, port, listener.on_request))
    return listener


async def connect(
    provider: Provider,
    host: str,
    port: int,
    settings: Settings | None = None,
    *,
    pool: BufferPool | None = None,
    timeout: float = 5.0,
) -> SmbDirectTransport:
    """Connect and negotiate. [MS-SMBD 3.1.4.1]

    ``timeout`` is in seconds and applies to the RDMA connection; negotiation has its own timer.

    Raises ``ConnectionLost``, or the ``ProtocolError`` that ended the negotiation.
    """
    loop = asyncio.get_running_loop()
    established: asyncio.Future[None] = loop.create_future()
    made: list[SmbDirectTransport] = []

    def prepare(endpoint: Endpoint) -> None:
        made.append(SmbDirectTransport(endpoint, Role.ACTIVE, settings or Settings(), pool or BufferPool(), loop))

    def ready(transport: SmbDirectTransport) -> None:
        transport.detach()
        if not established.done():
            established.set_result(None)

    def ended(error: BaseException | None) -> None:
        if not established.done():
            established.set_exception(error or ConnectionLost("closed by the peer during negotiation"))

    await provider.connect(host, port, prepare, timeout=timeout)
    (transport,) = made
    transport.on_established = ready
    transport.start(_ignore_message, ended)
    transport.begin()
    try:
        await established
    except asyncio.CancelledError:
        transport.abort("cancelled")
        raise
    return transport
