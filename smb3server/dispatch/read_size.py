"""How long READs may be on a connection (MaxReadSize, MS-SMB2 3.3.5.4), and how Linux is kept to it when it encrypts.

By RDMA a READ may be as long as the fabric moves. What it returns in a message must fit the client's MaxFragmentedSize
(MS-SMBD 3.1.1.1). Which of the two it will be is not known when NEGOTIATE is answered, and MaxReadSize never changes.
So everybody is offered what RDMA moves, except where it is known that RDMA will not be used.

Linux with ``seal`` takes no notice of the MaxFragmentedSize that it has stated. It sizes its READs by MaxReadSize and
by the credits it holds (``smb2_wait_mtu_credits``). So it gets few credits; 3.3.1.2 leaves their number to the server.
Nothing helps afterwards: its receive path gives no receive back before all fragments of a message are there, so a
response of 1 MiB waits for SMB Direct credits for ever.
"""

from __future__ import annotations

from typing import Protocol

from smb3server.crypto.encryption import TRANSFORM_SIZE
from smb3server.wire.header import HEADER_SIZE
from smb3server.wire.read_write import READ_RESPONSE
from smbdirect.message_transport import MessageTransport

RESPONSE_OVERHEAD = 1024
"""Bytes that a response's data leaves free in a message: headers of SMB2, READ and encryption, and of whatever else
shares a compound with it."""

_PAGE = 4096
"""READs of whole pages suit the client's page cache and the server's."""

_CREDIT_BYTES = 65536
"""What one credit pays for (MS-SMB2 3.1.5.2)."""

_READ_OVERHEAD = HEADER_SIZE + READ_RESPONSE.size

RESERVED_CREDITS = 10
"""Credits that Linux never spends on the length of a READ: 8 are left over, one each is kept for an echo and an oplock
break."""


class _Offered(Protocol):
    """What ``read_offer`` asks of a server's settings."""

    max_io_size: int
    rdma_read_size: int


def inline_limit(transport: MessageTransport) -> int:
    """Bytes of data that any response may carry in one message to the client."""
    return (transport.max_outbound_message_size - RESPONSE_OVERHEAD) & -_PAGE


def read_offer(transport: MessageTransport, settings: _Offered, inline: bool) -> int:
    """MaxReadSize, bytes. ``inline``: it is known that no READ of this client will go by RDMA."""
    limit = inline_limit(transport)
    rdma = transport.rdma
    if rdma is not None and not inline:
        limit = max(limit, min(settings.rdma_read_size, rdma.max_read_write_size))
    return min(settings.max_io_size, limit)


def fits_message(transport: MessageTransport, length: int, encrypted: bool) -> bool:
    """Whether the client can take a READ response with ``length`` bytes of data in one message. Exact: Linux that signs
    asks for 164 bytes less than its MaxFragmentedSize."""
    overhead = _READ_OVERHEAD + TRANSFORM_SIZE if encrypted else _READ_OVERHEAD
    return overhead + length <= transport.max_outbound_message_size


def sealed_credits(transport: MessageTransport) -> int:
    """How many credits a client may hold so that Linux, where it encrypts, asks for no more than a message holds."""
    room = transport.max_outbound_message_size - _READ_OVERHEAD - TRANSFORM_SIZE
    return RESERVED_CREDITS + max(1, room // _CREDIT_BYTES)
