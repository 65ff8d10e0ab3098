"""What every message module does first: the fixed part, then variable parts checked against the message.

A message is the view from its SMB2 header to its end, because the offsets on the wire count from the header. Nothing a
peer claims is sliced before it is checked. Whatever does not fit is a ``DecodeError``, which the dispatcher answers
with INVALID_PARAMETER (MS-SMB2 3.3.5.2.x).
"""

from __future__ import annotations

from typing import Any, TypeVar

from smb3server.wire.header import HEADER_SIZE
from smbdirect.codec import Buffer, Codec
from smbdirect.errors import DecodeError

R = TypeVar("R", bound=tuple[Any, ...])


def fixed(codec: Codec[R], message: Buffer, structure_size: int) -> R:
    """The fixed part behind the SMB2 header; ``DecodeError`` if it is cut or its StructureSize is another."""
    if len(message) < HEADER_SIZE + codec.size:
        raise DecodeError(f"fixed part of {codec.size} bytes in a message of {len(message)}")
    record = codec.make(codec.fields_from(message, HEADER_SIZE))
    if record[0] != structure_size:
        raise DecodeError(f"{type(record).__name__}: StructureSize {record[0]}, not {structure_size}")
    return record


def tail(message: memoryview, offset: int, length: int, minimum: int, name: str = "variable part") -> memoryview:
    """``length`` bytes at ``offset`` of the message (from its SMB2 header). Empty for length 0, whatever the offset;
    ``DecodeError`` if the range starts inside the fixed part (before ``minimum``) or ends behind the message."""
    if length == 0:
        return message[:0]
    if offset < minimum or offset + length > len(message):
        raise DecodeError(f"{name}: {length} bytes at {offset} in a message of {len(message)}")
    return message[offset : offset + length]


def record_at(codec: Codec[R], data: Buffer, offset: int = 0) -> R:
    """A record inside data that came from the peer."""
    if offset < 0 or len(data) < offset + codec.size:
        raise DecodeError(f"{codec.size} bytes at {offset} in data of {len(data)}")
    return codec.unpack(data, offset)


def decode_name(data: Buffer) -> str:
    """UTF-16LE text; unpaired surrogates survive (Windows names are any 16-bit units), an odd length is a
    ``DecodeError``."""
    if len(data) % 2:
        raise DecodeError("name with an odd number of bytes")
    return bytes(data).decode("utf-16-le", "surrogatepass")


def encode_name(name: str) -> bytes:
    return name.encode("utf-16-le", "surrogatepass")
