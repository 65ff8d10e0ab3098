"""What this project changes of aioquic's connections: how much a peer may send, and client certificates.

aioquic lets a peer have as many bytes on the way as it has sent before, and cannot be paused. Here the window is
bounded, and grows no further while nobody takes what has arrived. [RFC 9000 4]
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import Limit, QuicConnection
from aioquic.quic.packet import QuicFrameType

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

# What ends a connection is told to whoever has it. Strangers must not fill the log.
logging.getLogger("quic").setLevel(logging.ERROR)

ALPN = "smb"
"""The protocol that both ends name in the TLS handshake. [MS-SMB2 2.1]"""
UNTRUSTED_WINDOW = 32768
"""Most bytes on the way from a peer without a session."""
TRUSTED_WINDOW = 20 << 20
"""Most bytes on the way from others. What a client may send for its credits fits (``state.objects.QUIC_CREDITS``), so
that it never waits for the window: Samba's client aborts then (ngtcp2 asserts that a packet is not left unfinished)."""
IDLE_TIMEOUT = 180.0
"""Seconds without a packet after which a connection has ended, as over TCP."""
RECEIVE_BUFFER = 4 << 20
"""Bytes of datagrams that the kernel keeps, if its net.core.rmem_max allows it."""
STREAM = 0
"""The first stream that a client opens. It is the only one. [RFC 9000 2.1]"""
_DATAGRAM = 1350
"""Bytes of the largest datagram sent: tunnels take some of the 1,500 of an Ethernet."""


def configuration(client: bool) -> QuicConfiguration:
    """Return what both ends have in common."""
    return QuicConfiguration(
        is_client=client,
        alpn_protocols=[ALPN],
        idle_timeout=IDLE_TIMEOUT,
        max_datagram_size=_DATAGRAM,
        max_data=TRUSTED_WINDOW if client else UNTRUSTED_WINDOW,
        # The window of the connection is the one that counts.
        max_stream_data=1 << 60,
    )


class Window(Limit):
    """MAX_DATA: how many bytes the peer may send in all. [RFC 9000 4.1]

    aioquic doubles ``value`` whenever more than half of it is used. Here that moves the window on instead.
    """

    def __init__(self, size: int) -> None:
        self._value = self.size = size
        self.open = True
        """Whether what arrives is taken. If not, the peer may fill the window, and then has to wait."""
        super().__init__(QuicFrameType.MAX_DATA, "max_data", size)

    @property
    def value(self) -> int:
        """The bytes from the beginning of the connection on."""
        return self._value

    @value.setter
    def value(self, _wanted: int) -> None:
        if self.open and self._value - self.used < self.size // 2:
            self._value = self.used + self.size

    used: int = 0

    def widen(self, size: int) -> None:
        """Let the peer have ``size`` bytes on the way from now on."""
        self.size = size
        self._value = max(self._value, self.used + size)


def bound(quic: QuicConnection, size: int) -> Window:
    """Bound what the peer may have on the way to ``size`` bytes, which may change. Call this before the handshake."""
    window = Window(size)
    quic._local_max_data = window
    return window


def ask_for_certificate(quic: QuicConnection) -> None:
    """Ask the client for a certificate in the handshake. Call this before it begins. [RFC 8446 4.3.2]"""
    initialize = quic._initialize

    def initialize_and_ask(peer_cid: bytes) -> None:
        initialize(peer_cid)
        quic.tls._request_client_certificate = True

    quic._initialize = initialize_and_ask  # type: ignore[method-assign]


def certificates_of(quic: QuicConnection) -> list[Certificate]:
    """Return the certificate that the peer has proved, and those it sent with it. Empty: it has none."""
    first = quic.tls._peer_certificate
    return [] if first is None else [first, *quic.tls._peer_certificate_chain]


def unacknowledged(quic: QuicConnection) -> int:
    """Return how many bytes given to the connection the peer has not acknowledged."""
    stream = quic._streams.get(STREAM)
    return 0 if stream is None else stream.sender._buffer_stop - stream.sender._buffer_start
