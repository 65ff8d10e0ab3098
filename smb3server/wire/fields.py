"""What every message module does first: the fixed part, then variable parts checked against the message.

A message is the view from its SMB2 header to its end, because the offsets on the wire count from the header.
Whatever does not fit ends in ``StatusError(INVALID_PARAMETER)`` (MS-SMB2 3.3.5.2.x).
"""

from __future__ import annotations

from typing import Any, TypeVar

from smb3server.status import NtStatus, StatusError
from smb3server.wire.header import HEADER_SIZE
from smbdirect.codec import Buffer, Codec

R = TypeVar("R", bound=tuple[Any, ...])


def fixed(codec: Codec[R], message: Buffer, structure_size: int) -> R:
    """The fixed part after the header; its first field, StructureSize, must be ``structure_size``."""
    if len(message) < HEADER_SIZE + codec.size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    record = codec.unpack(message, HEADER_SIZE)
    if record[0] != structure_size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return record


def take(message: memoryview, offset: int, length: int, minimum: int) -> memoryview:
    """``length`` bytes at ``offset``, which must not lie before ``minimum`` (the end of the fixed part)."""
    if length == 0:
        return message[:0]
    if offset < minimum or offset + length > len(message):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return message[offset : offset + length]


def record_at(codec: Codec[R], data: Buffer, offset: int = 0) -> R:
    """A record inside data that came from the peer; INVALID_PARAMETER if it does not fit."""
    if offset < 0 or len(data) < offset + codec.size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return codec.unpack(data, offset)


def utf16(data: Buffer) -> str:
    """UTF-16LE text; unpaired surrogates survive as such (Windows names are any 16-bit units)."""
    if len(data) % 2:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return bytes(data).decode("utf-16-le", "surrogatepass")
