"""Whole FPDUs as values: an oracle for the sender and the receiver, which cut and place them piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from smbdirect.codec import Buffer
from smbdirect.errors import DecodeError
from smbdirect.providers.iwarp import ddp, mpa
from smbdirect.providers.iwarp.ddp import TAGGED_HEADER, UNTAGGED_HEADER, TaggedHeader, UntaggedHeader


class Fpdu(NamedTuple):
    """One FPDU. ``crc`` is the field as received; zero if CRC is off."""

    header: TaggedHeader | UntaggedHeader
    payload: memoryview
    crc: int
    size: int
    """Bytes on the wire."""
    opcode: int


def decode_fpdu(buffer: Buffer, offset: int = 0) -> Fpdu:
    """Return the FPDU at ``offset``. Raise ``DecodeError`` if it is incomplete or too short for its headers."""
    view = memoryview(buffer)[offset:]
    if len(view) < 4:
        raise DecodeError("FPDU without a header", "RFC 5044 4.1")
    length = view[0] << 8 | view[1]
    size = mpa.fpdu_size(length)
    tagged = view[2] & ddp.TAGGED
    needed = ddp.TAGGED_HEADER_SIZE if tagged else ddp.UNTAGGED_HEADER_SIZE
    if length < needed or size > len(view):
        raise DecodeError(f"ULPDU of {length} bytes, {len(view)} bytes left", "RFC 5041 4")
    header = TAGGED_HEADER.unpack(view) if tagged else UNTAGGED_HEADER.unpack(view)
    crc = int.from_bytes(view[size - 4 : size], "little")
    return Fpdu(header, view[2 + needed : 2 + length], crc, size, header.rdmap_control & 0x0F)


def iter_fpdus(buffer: Buffer) -> Iterator[Fpdu]:
    """Yield all FPDUs of one direction of a stream, after the MPA frames."""
    offset = 0
    while offset < len(buffer):
        fpdu = decode_fpdu(buffer, offset)
        yield fpdu
        offset += fpdu.size


def encode_fpdu(header: TaggedHeader | UntaggedHeader, payload: Buffer, crc: bool) -> bytes:
    """Return the bytes of one FPDU; ``header.ulpdu_length`` must fit the payload."""
    packed = TAGGED_HEADER.pack(header) if isinstance(header, TaggedHeader) else UNTAGGED_HEADER.pack(header)
    data = packed + payload
    return data + mpa.trailer(len(data) - 2, crc32c(data) if crc else None)
