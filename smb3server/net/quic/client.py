"""Connecting to a server over QUIC. [MS-SMB2 3.2.4.2.1]"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import QuicEvent

from smb3server.net.quic.connection import RECEIVE_BUFFER, TRUSTED_WINDOW, bound, configuration
from smb3server.net.quic.transport import QuicProtocol, QuicTransport
from smbdirect.message_transport import MessageTransport
from smbdirect.rdma.pool import BufferPool

PORT = 443
SYSTEM_AUTHORITIES = ssl.get_default_verify_paths()


class _ClientProtocol(QuicProtocol):
    """The library's connection, which hears of errors of its socket."""

    def __init__(self, quic: QuicConnection) -> None:
        super().__init__(quic)
        self.on_error: Callable[[Exception], None] = lambda error: None

    def error_received(self, error: Exception) -> None:
        """Note that nothing listens at the server's port, say. Until the handshake is done, that is its end."""
        self.on_error(error)


async def open_quic(
    host: str,
    port: int = PORT,
    authority: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    timeout: float = 5.0,
    max_message_size: int = 8 << 20,
) -> MessageTransport:
    """Connect to ``host``, whose certificate has to be for that name.

    ``authority``: PEM file with whom to trust; None means the machine's. ``certificate`` and ``key``: PEM files of this
    client. Raises ``OSError``, ``ValueError`` for files that cannot be used, and ``TimeoutError`` after ``timeout``
    seconds.
    """
    made = configuration(client=True)
    made.server_name = host
    if authority is not None:
        made.load_verify_locations(cafile=str(authority))
    else:
        made.load_verify_locations(SYSTEM_AUTHORITIES.cafile, SYSTEM_AUTHORITIES.capath)
    if certificate is not None:
        made.load_cert_chain(certificate, key)
    failure: OSError | None = None
    async with asyncio.timeout(timeout):
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                return await _connect(made, family, (str(address[0]), port), max_message_size)
            except OSError as error:
                failure = error
    raise failure or OSError(f"{host}: no address")


async def _connect(
    made: QuicConfiguration, family: int, address: tuple[str, int], max_message_size: int
) -> MessageTransport:
    """Connect to one address. Raises ``OSError``."""
    loop = asyncio.get_running_loop()
    quic = QuicConnection(configuration=made)
    window = bound(quic, TRUSTED_WINDOW)
    # Connected, so that the kernel says when nothing listens there.
    endpoint, protocol = await loop.create_datagram_endpoint(
        lambda: _ClientProtocol(quic), remote_addr=address, family=family
    )
    sock = endpoint.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    connected: asyncio.Future[None] = loop.create_future()
    protocol.on_event = partial(_handshake, connected)
    protocol.on_error = partial(_fail, connected)
    try:
        protocol.connect(address)
        await connected
    except BaseException:
        protocol.close()
        protocol.give_up_socket()
        raise
    protocol.on_error = lambda error: None
    name = sock.getsockname()
    transport = QuicTransport(protocol, window, BufferPool(), max_message_size, (name[0], name[1]), address, True)
    transport.trust(max_message_size)
    return transport


def _handshake(connected: asyncio.Future[None], event: QuicEvent) -> None:
    if isinstance(event, events.HandshakeCompleted) and not connected.done():
        connected.set_result(None)
    elif isinstance(event, events.ConnectionTerminated):
        why = event.reason_phrase or f"error {event.error_code:#x}"
        _fail(connected, ConnectionRefusedError(f"QUIC: {why}"))


def _fail(connected: asyncio.Future[None], error: Exception) -> None:
    if not connected.done():
        connected.set_exception(error)
