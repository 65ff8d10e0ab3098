"""Transports for clients: direct TCP and SMB Direct."""

from __future__ import annotations

import asyncio
import socket

from smb3server.net.tcp import TcpTransport
from smbdirect.core.settings import Settings
from smbdirect.message_transport import MessageTransport
from smbdirect.providers.base import Provider
from smbdirect.transport.listen import connect
from smbdirect.transport.pool import BufferPool

MAX_MESSAGE_SIZE = (8 << 20) + (1 << 16)
"""Largest response accepted, in bytes."""


RECEIVE_SIZE = 8192
"""MaxReceiveSize of a client, as on Windows: servers may then send as much in one piece. [MS-SMBD 3.1.4.1]"""


async def open_tcp(host: str, port: int = 445, timeout: float = 5.0) -> MessageTransport:
    """Connect over TCP. Raises ``OSError``, and ``TimeoutError`` after ``timeout`` seconds."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout):
        (family, kind, protocol, _, address), *_ = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, address)
        except BaseException:
            sock.close()
            raise
    transport = TcpTransport(sock, BufferPool(), MAX_MESSAGE_SIZE)
    transport.trust(MAX_MESSAGE_SIZE)
    return transport


async def open_rdma(
    provider: Provider, host: str, port: int = 5445, settings: Settings | None = None, timeout: float = 5.0
) -> MessageTransport:
    """Connect with SMB Direct over ``provider``. Raises ``ConnectionLost`` or ``ProtocolError``."""
    settings = settings or Settings(max_receive_size=RECEIVE_SIZE)
    transport = await connect(provider, host, port, settings, timeout=timeout)
    transport.trust(MAX_MESSAGE_SIZE)
    return transport
