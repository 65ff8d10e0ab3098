"""Decoding that all message modules share: the fixed part, and variable parts checked against the message.

A message is the view from its SMB2 header to its end, because offsets in messages count from the header. Every offset
and length from a peer is checked before it is used. If something does not fit, ``DecodeError`` is raised, and the
dispatcher answers INVALID_PARAMETER (MS-SMB2 3.3.5.2.x).
"""

from __future__ import annotations

import codecs
from functools import partial
from typing import Any, TypeVar

from smb3server.wire.header import HEADER_SIZE
from smbdirect.codec import Buffer, Codec
from smbdirect.errors import DecodeError

R = TypeVar("R", bound=tuple[Any, ...])


class Message(Codec[R]):
    """The codec of a message: its fixed part behind the SMB2 header, and the variable part that it may have."""

    def __init__(self, record: type[R], tail: tuple[str, str] | None = None, name: str = "variable part") -> None:
        """Derive the codec. StructureSize is the record's default.

        ``tail``: the fields with offset and length of the variable part. ``name`` is its name in errors.
        """
        super().__init__(record)
        self.make = partial(tuple.__new__, record)
        self._structure_size: int = record._field_defaults["structure_size"]  # type: ignore[attr-defined]
        self.end = HEADER_SIZE + self.size
        """Offset in the message at which the fixed part ends."""
        self._tail = tail
        self._name = name

    def parse(self, message: Buffer) -> R:
        """Decode the fixed part. Raises ``DecodeError`` if it is incomplete or has another StructureSize."""
        if len(message) < self.end:
            raise DecodeError(f"fixed part of {self.size} bytes in a message of {len(message)}")
        record = self.make(self.fields_from(message, HEADER_SIZE))
        if record[0] != self._structure_size:
            raise DecodeError(f"{type(record).__name__}: StructureSize {record[0]}, not {self._structure_size}")
        return record

    def parse_both(self, message: memoryview) -> tuple[R, memoryview]:
        """Decode the fixed part and return it with the variable part. Raises ``DecodeError``."""
        record = self.parse(message)
        assert self._tail is not None
        offset, length = self._tail
        return record, tail(message, getattr(record, offset), getattr(record, length), self.end, self._name)

    def build(self, record: R, data: Buffer = b"") -> bytes:
        """Encode a request with its variable part, which has at least one byte on the wire."""
        assert self._tail is not None
        if data:
            record = record._replace(**dict(zip(self._tail, (self.end, len(data)), strict=True)))  # type: ignore[attr-defined]
        return self.pack_fields(*record) + (bytes(data) or b"\0")


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
