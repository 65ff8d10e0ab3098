"""Transports for clients: direct TCP and SMB Direct."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from smb3server.net.tcp import TcpTransport
from smbdirect.message_transport import MessageTransport
from smbdirect.rdma.pool import BufferPool

if TYPE_CHECKING:
    from smbdirect.core.settings import Settings
    from smbdirect.providers.base import Provider

MAX_MESSAGE_SIZE = (8 << 20) + (1 << 16)
"""Largest response accepted, in bytes."""


RECEIVE_SIZE = 8192
"""MaxReceiveSize of a client, as on Windows: servers may then send as much in one piece. [MS-SMBD 3.1.4.1]"""


MAX_ADDRESSES = 8
"""Most addresses of a name that are tried."""
ATTEMPT_DELAY = 0.25
"""Seconds until the next address is tried beside one that does not answer. [RFC 8305 5]"""
_NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""What says little about a server: this machine has no address of the family, or no route."""
_SMB1_NEGOTIATE = b"\xffSMB\x72" + bytes(4) + b"\x18\x01\x28" + bytes(20) + b"\0\x0c\0\x02NT LM 0.12\0"
"""SMB_COM_NEGOTIATE for the one dialect of SMB 1 that is left. [MS-CIFS 2.2.4.52.1]"""


async def open_tcp(host: str, port: int = 445, timeout: float = 5.0) -> MessageTransport:
    """Connect over TCP to one of the addresses of ``host``.

    Raises ``OSError``, and ``TimeoutError`` after ``timeout`` seconds.
    """
    async with asyncio.timeout(timeout):
        sock = await _connected(await addresses_of(host, port))
    transport = TcpTransport(sock, BufferPool(), MAX_MESSAGE_SIZE)
    transport.trust(MAX_MESSAGE_SIZE)
    return transport


async def addresses_of(host: str, port: int) -> list[tuple[Any, ...]]:
    """Return what ``getaddrinfo`` knows of a host for TCP: its families in turn, ``MAX_ADDRESSES`` at most.
    [RFC 8305 4]
    """
    # A name that is text has the tables of international names loaded, which takes long.
    name = host.encode("ascii") if host.isascii() else host
    try:
        # An address needs no name server, and so no thread.
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    families = dict.fromkeys(entry[0] for entry in found)
    by_family = [[entry for entry in found if entry[0] == family] for family in families]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*by_family))
    return [entry for entry in turns if entry is not None][:MAX_ADDRESSES]


async def _connected(addresses: Sequence[tuple[Any, ...]]) -> socket.socket:
    """Return a socket that is connected to the first address that answers. [RFC 8305 5]"""
    left = iter(addresses)
    attempts: set[asyncio.Task[socket.socket]] = set()
    failures: list[BaseException] = []
    following = next(left, None)
    try:
        while following is not None or attempts:
            if following is not None:
                attempts.add(asyncio.create_task(_connect(*following)))
                following = next(left, None)
            ended, _ = await asyncio.wait(
                attempts, timeout=None if following is None else ATTEMPT_DELAY, return_when=asyncio.FIRST_COMPLETED
            )
            for attempt in ended:
                failure = attempt.exception()
                if failure is None:
                    attempts.discard(attempt)
                    return attempt.result()
                attempts.discard(attempt)
                failures.append(failure)
    finally:
        for attempt in attempts:
            attempt.cancel()
        for other in await asyncio.gather(*attempts, return_exceptions=True):
            if isinstance(other, socket.socket):
                other.close()
    raise next((error for error in failures if getattr(error, "errno", 0) not in _NO_WAY), failures[0])


async def _connect(family: int, kind: int, protocol: int, _name: str, address: Any) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


async def speaks_smb1(host: str, port: int = 445, timeout: float = 2.0) -> bool:
    """Return whether a server that does not take SMB 2 speaks SMB 1, which this client does not. [MS-CIFS 3.3.5.42]"""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(len(_SMB1_NEGOTIATE).to_bytes(4, "big") + _SMB1_NEGOTIATE)
                answer = await reader.readexactly(39)
                # After the length: protocol and command; after the header: the number of words, and DialectIndex.
                return answer[4:9] == b"\xffSMB\x72" and answer[36] > 0 and answer[37:39] != b"\xff\xff"
            finally:
                writer.transport.abort()
    return False


async def open_rdma(
    provider: Provider, host: str, port: int = 5445, settings: Settings | None = None, timeout: float = 5.0
) -> MessageTransport:
    """Connect with SMB Direct over ``provider``. Raises ``ConnectionLost`` or ``ProtocolError``."""
    # Who moves no data by RDMA does not pay for the imports.
    from smbdirect.core.settings import Settings
    from smbdirect.transport.listen import connect

    settings = settings or Settings(max_receive_size=RECEIVE_SIZE)
    transport = await connect(provider, host, port, settings, timeout=timeout)
    transport.trust(MAX_MESSAGE_SIZE)
    return transport
