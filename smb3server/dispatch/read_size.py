"""The length of READs on a connection: MaxReadSize, and how Linux is kept to it when it encrypts. [MS-SMB2 3.3.5.4]

By RDMA a READ may be as long as one transfer of the fabric. Data in a message must fit the client's MaxFragmentedSize
(MS-SMBD 3.1.1.1). When NEGOTIATE is answered it is not known which of them a client will use, and MaxReadSize never
changes. So clients are offered the size for RDMA unless it is known that they will not use RDMA.

Linux with ``seal`` ignores the MaxFragmentedSize that it has stated. It sizes its READs by MaxReadSize and by the
credits it holds (``smb2_wait_mtu_credits``). So it gets few credits; 3.3.1.2 leaves their number to the server. A
response that is too long cannot be handled later: the receive path of Linux posts no receive again before all fragments
of a message have arrived, so a response of 1 MiB waits for SMB Direct credits forever.
"""

from __future__ import annotations

from typing import Protocol

from smb3server.crypto.encryption import TRANSFORM_SIZE
from smb3server.wire.header import HEADER_SIZE
from smb3server.wire.read_write import READ_RESPONSE
from smbdirect.message_transport import MessageTransport

RESPONSE_OVERHEAD = 1024
"""Bytes of a message that are not available for data: the headers of SMB2, READ and encryption, and other replies of
the same compound."""

_PAGE = 4096
"""Bytes of a page. READs of whole pages suit the page caches of client and server."""

_CREDIT_BYTES = 65536
"""Bytes that one credit pays for. [MS-SMB2 3.1.5.2]"""

_READ_OVERHEAD = HEADER_SIZE + READ_RESPONSE.size

RESERVED_CREDITS = 10
"""Credits that Linux never uses for the length of a READ: it leaves 8 unused, and keeps one each for an echo and an
oplock break."""


class _Offered(Protocol):
    """The settings that ``read_offer`` needs. Sizes are in bytes."""

    max_io_size: int
    rdma_read_size: int


def inline_limit(transport: MessageTransport) -> int:
    """Return the bytes of data that any response may carry in one message to the client."""
    return (transport.max_outbound_message_size - RESPONSE_OVERHEAD) & -_PAGE


def read_offer(transport: MessageTransport, settings: _Offered, inline: bool) -> int:
    """Return MaxReadSize in bytes. ``inline``: it is known that no READ of this client will use RDMA."""
    limit = inline_limit(transport)
    rdma = transport.rdma
    if rdma is not None and not inline:
        limit = max(limit, min(settings.rdma_read_size, rdma.max_read_write_size))
    return min(settings.max_io_size, limit)


def fits_message(transport: MessageTransport, length: int, encrypted: bool) -> bool:
    """Return whether a READ response with ``length`` bytes of data fits into one message to the client.

    The result is exact, because Linux that signs requests just 164 bytes less than its MaxFragmentedSize."""
    overhead = _READ_OVERHEAD + TRANSFORM_SIZE if encrypted else _READ_OVERHEAD
    return overhead + length <= transport.max_outbound_message_size


def sealed_credits(transport: MessageTransport) -> int:
    """Return how many credits a client may hold so that Linux, if it encrypts, requests no more than fits a message."""
    room = transport.max_outbound_message_size - _READ_OVERHEAD - TRANSFORM_SIZE
    return RESERVED_CREDITS + max(1, room // _CREDIT_BYTES)
