"""Listening for SMB over QUIC. Who has not proved its address costs no memory. [RFC 9000 8.1.2]"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Any

from aioquic.asyncio.server import QuicServer
from aioquic.quic import events

from smb3server.net.quic.connection import (
    RECEIVE_BUFFER,
    STREAM,
    UNTRUSTED_WINDOW,
    Window,
    ask_for_certificate,
    bound,
    certificates_of,
)
from smb3server.net.quic.transport import REFUSED, QuicProtocol, QuicTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioquic.quic.configuration import QuicConfiguration
    from aioquic.quic.connection import NetworkAddress, QuicConnection
    from aioquic.quic.events import QuicEvent

    from smb3server.net.quic.certificates import ClientRules
    from smbdirect.message_transport import OnTransport
    from smbdirect.rdma.pool import BufferPool
    from smbdirect.unauthenticated import UnauthenticatedPeer, UnauthenticatedPeers

log = logging.getLogger(__name__)

CERTIFICATE_REQUIRED = 0x100 + 116
"""CRYPTO_ERROR with the alert certificate_required. [RFC 9000 20.1, RFC 8446 6.2]"""
CONNECTION_REFUSED = 0x2
"""[RFC 9000 20.1]"""


class QuicListener:
    """A listening address, which passes ``QuicTransport`` objects to ``on_transport``.

    A connection gets there when its handshake is done, its certificate is accepted and its first bytes have come.
    ``silent`` is the table of connections that are not so far.
    """

    def __init__(
        self,
        pool: BufferPool,
        on_transport: OnTransport,
        max_message_size: int,
        configuration: QuicConfiguration,
        rules: ClientRules,
        timeout: float,
        silent: UnauthenticatedPeers,
        admits: Callable[[str], bool],
    ) -> None:
        """Prepare for ``open``. ``timeout``: seconds until the first bytes."""
        self._pool = pool
        self._on_transport = on_transport
        self._max_message_size = max_message_size
        self.configuration = configuration
        """For new connections."""
        self._rules = rules
        self._timeout = timeout
        self._silent = silent
        self._admits = admits
        self.address: tuple[str, int] = ("", 0)
        self._endpoint: asyncio.DatagramTransport | None = None
        self._server: _Server | None = None
        self._arriving: set[_Arriving] = set()

    async def open(self, host: str, port: int) -> None:
        """Listen. Raises ``OSError``."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            sock.bind((host, port))
            name = sock.getsockname()
            self.address = name[0], name[1]
            self._endpoint, self._server = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: _Server(self), sock=sock
            )
        except BaseException:
            sock.close()
            raise

    def arrive(self, quic: QuicConnection, peer: NetworkAddress) -> QuicProtocol:
        """Return the protocol of a new connection, whose address is proved."""
        protocol = QuicProtocol(quic)
        host = str(peer[0])
        window = bound(quic, UNTRUSTED_WINDOW)
        if self._rules.asks:
            ask_for_certificate(quic)
        arriving = _Arriving(self, protocol, window, (host, int(peer[1])))
        place = self._silent.enter(host, arriving.drop) if self._admits(host) else None
        if place is None:
            log.warning("%s: %s", host, "too many connections" if self._admits(host) else "it may not connect")
            quic.close(error_code=CONNECTION_REFUSED)
        else:
            arriving.begin(place, self._timeout)
            self._arriving.add(arriving)
        return protocol

    def refusal(self, quic: QuicConnection) -> str:
        """Return why a connection's client may not connect; empty if it may."""
        return self._rules.refusal(certificates_of(quic))

    def arrived(self, arriving: _Arriving) -> QuicTransport:
        """Hand on a connection, and return its transport."""
        transport = QuicTransport(
            arriving.protocol, arriving.window, self._pool, self._max_message_size, self.address, arriving.peer
        )
        self._on_transport(transport)
        return transport

    def forget(self, arriving: _Arriving) -> None:
        """Note that a connection is handed on or has ended."""
        self._arriving.discard(arriving)

    async def close(self) -> None:
        """Stop listening. Established connections stay open, as the socket is theirs as well."""
        for arriving in list(self._arriving):
            arriving.drop()
        if self._server is not None:
            self._server.closing = True

    def end(self) -> None:
        """End all connections, and give up the socket."""
        if self._server is not None:
            self._server.close()


class _Server(QuicServer):
    """The library's server, with connections of our own."""

    def __init__(self, listener: QuicListener) -> None:
        super().__init__(configuration=listener.configuration, create_protocol=self._make, retry=True)
        self._listener = listener
        self._peer: NetworkAddress = ("", 0)
        self.closing = False

    def datagram_received(self, data: bytes | str, addr: NetworkAddress) -> None:
        """See ``QuicServer``. No packet of a stranger may end the server."""
        self._peer = addr
        self._configuration = self._listener.configuration
        try:
            super().datagram_received(data, addr)
        except Exception:
            log.exception("%s: a packet that QUIC cannot handle", addr[0])

    def error_received(self, error: Exception) -> None:
        """Ignore that a peer's port is closed: its connection ends by its time-out."""

    def _make(self, quic: QuicConnection, stream_handler: Any = None) -> QuicProtocol:
        if self.closing:
            quic.close(error_code=CONNECTION_REFUSED)
            return QuicProtocol(quic)
        return self._listener.arrive(quic, self._peer)


class _Arriving:
    """A connection from its first packet to its first bytes."""

    def __init__(self, listener: QuicListener, protocol: QuicProtocol, window: Window, peer: tuple[str, int]) -> None:
        self._listener = listener
        self.protocol = protocol
        self.window = window
        self.peer = peer
        self._place: UnauthenticatedPeer | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, place: UnauthenticatedPeer, timeout: float) -> None:
        """Wait for the first bytes, ``timeout`` seconds long."""
        self._place = place
        self._timer = asyncio.get_running_loop().call_later(timeout, self.drop)
        self.protocol.on_event = self._event

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._place is not None:
            self._place.leave()
        self._listener.forget(self)
        self.protocol.on_event = lambda event: None

    def drop(self, code: int = REFUSED) -> None:
        """End the connection."""
        self._leave()
        self.protocol.quic.close(error_code=code)
        self.protocol.transmit_soon()

    def _event(self, event: QuicEvent) -> None:
        if isinstance(event, events.HandshakeCompleted):
            refusal = self._listener.refusal(self.protocol.quic)
            if refusal:
                log.warning("%s: not let in over QUIC: %s", self.peer[0], refusal)
                self.drop(CERTIFICATE_REQUIRED)
        elif isinstance(event, events.ConnectionTerminated):
            self._leave()
        elif isinstance(event, events.StreamDataReceived):
            if event.stream_id != STREAM:
                self.drop()
                return
            self._leave()
            self._listener.arrived(self)
            # The transport has taken over.
            self.protocol.on_event(event)
