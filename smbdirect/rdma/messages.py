"""Credits of the RDMA API's messages: no side sends more than the other has receives for. No I/O.

Each message begins with the receives that its sender has posted since the last one. The last credit is kept for a
message that grants some: so the two sides never wait for each other.
"""

from typing import Annotated, NamedTuple

from smbdirect.codec import Buffer, Codec
from smbdirect.errors import DecodeError
from smbdirect.fields import Int8ul, Int16ul, Int32ul

_VERSION = 1
MIN_RECEIVES = 4
MAX_PRIVATE_DATA = 48
"""Bytes. RDMA CM has room for 56 in a request. [IBTA A11]"""


class _Header(NamedTuple):
    granted: Annotated[int, Int16ul]
    kind: Annotated[int, Int16ul] = 0


class Terms(NamedTuple):
    """What each side says when the connection is set up, in front of the program's private data."""

    version: Annotated[int, Int8ul] = _VERSION
    private_length: Annotated[int, Int8ul] = 0
    """Bytes of the program's private data, which some fabrics pad."""
    receives: Annotated[int, Int16ul] = 0
    """Receives that this side has posted."""
    message_size: Annotated[int, Int32ul] = 0
    """Bytes that fit in each of them, without the header."""


HEADER = Codec(_Header)
_TERMS = Codec(Terms)
DATA, GRANT = 0, 1
"""Kinds of messages: one of the program, and one that only grants credits."""


def pack_terms(receives: int, message_size: int, private_data: bytes) -> bytes:
    """Return what is sent when the connection is set up. Raise ``ValueError`` for too much private data."""
    if len(private_data) > MAX_PRIVATE_DATA:
        raise ValueError(f"private data: at most {MAX_PRIVATE_DATA} bytes, not {len(private_data)}")
    terms = Terms(private_length=len(private_data), receives=receives, message_size=message_size)
    return _TERMS.pack(terms) + private_data


def unpack_terms(data: Buffer) -> tuple[Terms, bytes]:
    """Return the peer's terms and its program's private data. Raise ``DecodeError`` if it does not speak this API."""
    # RoCE's set-up pads private data with zeros, or leaves out those at its end.
    data = bytes(data).ljust(_TERMS.size + MAX_PRIVATE_DATA, b"\0")
    terms = _TERMS.unpack(data[: _TERMS.size])
    if terms.version != _VERSION or terms.receives < MIN_RECEIVES:
        raise DecodeError(f"the peer offers version {terms.version} with {terms.receives} receives")
    if terms.private_length > MAX_PRIVATE_DATA:
        raise DecodeError("private data cut short")
    return terms, bytes(data[_TERMS.size : _TERMS.size + terms.private_length])


class Credits:
    """The credits of one connection, in both directions."""

    def __init__(self, receives: int) -> None:
        self.receives = receives
        """Receives of this side."""
        self.available = 0
        """Messages that the peer has room for."""
        self.owed = 0
        """Receives posted here that the peer does not know of."""

    @property
    def may_send(self) -> bool:
        """Whether a message may be sent now."""
        return self.available > 1 or (self.available == 1 and self.owed > 0)

    @property
    def must_grant(self) -> bool:
        """Whether the peer has to learn of receives, even without a message for it."""
        return self.owed >= max(self.receives // 2, 1) and self.available > 0

    def header(self, kind: int) -> bytes:
        """Spend a credit, and return the header of the message."""
        self.available -= 1
        granted, self.owed = self.owed, 0
        return HEADER.pack(_Header(granted, kind))

    def arrived(self, message: memoryview) -> bool:
        """Take the credits of a message. Return whether it is one of the program. Raise ``DecodeError``."""
        if len(message) < HEADER.size:
            raise DecodeError("message without a header")
        granted, kind = HEADER.unpack(message[: HEADER.size])
        if kind not in (DATA, GRANT):
            raise DecodeError(f"message of unknown kind {kind}")
        self.available += granted
        return kind == DATA
