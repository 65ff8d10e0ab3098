"""Decoding that all message modules share: the fixed part, and variable parts checked against the message.

A message is the view from its SMB2 header to its end, because offsets in messages count from the header. Every offset
and length from a peer is checked before it is used. If something does not fit, ``DecodeError`` is raised, and the
dispatcher answers INVALID_PARAMETER (MS-SMB2 3.3.5.2.x).
"""

from __future__ import annotations

import codecs
from typing import Any, TypeVar

from smb3server.wire.header import HEADER_SIZE
from smbdirect.codec import Buffer, Codec
from smbdirect.errors import DecodeError

R = TypeVar("R", bound=tuple[Any, ...])


def fixed(codec: Codec[R], message: Buffer, structure_size: int) -> R:
    """Decode the fixed part behind the SMB2 header. Raises ``DecodeError`` if it is incomplete or has another
    StructureSize."""
    if len(message) < HEADER_SIZE + codec.size:
        raise DecodeError(f"fixed part of {codec.size} bytes in a message of {len(message)}")
    record = codec.make(codec.fields_from(message, HEADER_SIZE))
    if record[0] != structure_size:
        raise DecodeError(f"{type(record).__name__}: StructureSize {record[0]}, not {structure_size}")
    return record


def tail(message: memoryview, offset: int, length: int, minimum: int, name: str = "variable part") -> memoryview:
    """Return ``length`` bytes at ``offset`` of the message, counted from its SMB2 header.

    The result is empty for length 0, whatever the offset. ``minimum`` is the end of the fixed part. Raises
    ``DecodeError`` if the range starts before it or ends behind the message. ``name`` is for the error's text.
    """
    if length == 0:
        return message[:0]
    if offset < minimum or offset + length > len(message):
        raise DecodeError(f"{name}: {length} bytes at {offset} in a message of {len(message)}")
    return message[offset : offset + length]


def record_at(codec: Codec[R], data: Buffer, offset: int = 0) -> R:
    """Decode a record inside data from the peer. Raises ``DecodeError`` if it is incomplete."""
    if offset < 0 or len(data) < offset + codec.size:
        raise DecodeError(f"{codec.size} bytes at {offset} in data of {len(data)}")
    return codec.unpack(data, offset)


def decode_name(data: Buffer) -> str:
    """Decode UTF-16LE text. Unpaired surrogates are kept, because Windows names consist of any 16-bit units.

    Raises ``DecodeError`` for an odd length.
    """
    if len(data) % 2:
        raise DecodeError("name with an odd number of bytes")
    return codecs.utf_16_le_decode(data, "surrogatepass", True)[0]


def encode_name(name: str) -> bytes:
    """Encode text as UTF-16LE, including unpaired surrogates."""
    return name.encode("utf-16-le", "surrogatepass")
