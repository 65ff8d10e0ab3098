"""How a client asks for files to read and write by RDMA without requests: two private FSCTLs, and what it says when it
opens the RDMA connection for it. docs/flashnet.md describes the exchange.

The codes are FILE_DEVICE_NETWORK_FILE_SYSTEM, METHOD_BUFFERED and FILE_ANY_ACCESS with the functions 0x8D0 and 0x8D1:
0x800 to 0xFFF are for vendors. A server that does not know them answers INVALID_DEVICE_REQUEST. [MS-SMB2 3.3.5.15]
"""

import enum
from typing import Annotated, NamedTuple

from smbdirect.codec import Buffer, Codec
from smbdirect.errors import DecodeError
from smbdirect.fields import Bytes, Int16ul

VERSION = 1
TICKET_LENGTH = 16
_MAGIC = b"SMB3LEND"
"""What the private data of such an RDMA connection begins with. SMB Direct connections have none of this."""


class LendRights(enum.IntFlag):
    """What the client wants to do with the file."""

    READ = 1
    WRITE = 2


class TicketResponse(NamedTuple):
    """Output of ONE_SIDED_TICKET, which has no input: what the RDMA connection of this session shows."""

    version: Annotated[int, Int16ul]
    reserved: Annotated[int, Int16ul]
    ticket: Annotated[bytes, Bytes(TICKET_LENGTH)]


class LendRequest(NamedTuple):
    """Input of ONE_SIDED_LEND. The output is a handle of ``smbdirect.rdma`` for the file from its begin to its end."""

    version: Annotated[int, Int16ul]
    rights: Annotated[int, Int16ul]


TICKET_RESPONSE = Codec(TicketResponse)
LEND_REQUEST = Codec(LendRequest)


def pack_private_data(ticket: bytes) -> bytes:
    """Return what the client says when it opens the RDMA connection."""
    return _MAGIC + ticket


def ticket_of(private_data: Buffer) -> bytes:
    """Return the ticket. Raise ``DecodeError`` if the connection is for something else."""
    data = bytes(private_data)
    if len(data) != len(_MAGIC) + TICKET_LENGTH or not data.startswith(_MAGIC):
        raise DecodeError("not a connection for one-sided transfers")
    return data[len(_MAGIC) :]
