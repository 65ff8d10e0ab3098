"""Read frames from pcap and pcapng files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class CaptureError(Exception):
    """The file is not a capture, or it is damaged."""


class Frame(NamedTuple):
    """One frame of a capture."""

    number: int
    """Counted from 1, as in tshark."""
    time: float
    """Seconds since the epoch."""
    link_type: int
    data: bytes
    original_length: int
    """Bytes on the wire; more than ``len(data)`` if the capture truncated the frame."""


_PCAP_MAGIC = {
    b"\xd4\xc3\xb2\xa1": ("<", 1e-6),
    b"\xa1\xb2\xc3\xd4": (">", 1e-6),
    b"\x4d\x3c\xb2\xa1": ("<", 1e-9),
    b"\xa1\xb2\x3c\x4d": (">", 1e-9),
}
_SECTION_HEADER, _INTERFACE, _SIMPLE, _ENHANCED = 0x0A0D0D0A, 1, 3, 6
_FIXED_PART = {_INTERFACE: 8, _SIMPLE: 4, _ENHANCED: 20}
"""Bytes that the body of a block has at least, by its type."""
_OPTION_TIME_RESOLUTION = 9


def read_frames(path: Path) -> Iterator[Frame]:
    """Yield the frames of a file in file order.

    A record truncated by the end of the file ends the iteration without an error: the capture was stopped abruptly, and
    tshark does not do more than warn either. Raises ``CaptureError``.
    """
    data = path.read_bytes()
    if data[:4] in _PCAP_MAGIC:
        return _pcap(data)
    if data[:4] == struct.pack("<I", _SECTION_HEADER):
        return _pcapng(data)
    raise CaptureError(f"{path}: neither pcap nor pcapng")


def _pcap(data: bytes) -> Iterator[Frame]:
    order, unit = _PCAP_MAGIC[data[:4]]
    if len(data) < 24:
        raise CaptureError("pcap header cut off")
    (link_type,) = struct.unpack_from(order + "I", data, 20)
    record = struct.Struct(order + "IIII")
    offset, number = 24, 0
    while offset + record.size <= len(data):
        seconds, fraction, captured, original = record.unpack_from(data, offset)
        offset += record.size
        if offset + captured > len(data):
            return
        number += 1
        yield Frame(number, seconds + fraction * unit, link_type & 0xFFFF, data[offset : offset + captured], original)
        offset += captured


def _options(body: bytes, offset: int, order: str) -> Iterator[tuple[int, bytes]]:
    while offset + 4 <= len(body):
        code, length = struct.unpack_from(order + "HH", body, offset)
        if code == 0:
            return
        yield code, body[offset + 4 : offset + 4 + length]
        offset += 4 + (length + 3 & ~3)


def _time_unit(body: bytes, order: str) -> float:
    for code, value in _options(body, 8, order):
        if code == _OPTION_TIME_RESOLUTION and value:
            exponent = value[0] & 0x7F
            return float(2.0**-exponent if value[0] & 0x80 else 10.0**-exponent)
    return 1e-6


def _pcapng(data: bytes) -> Iterator[Frame]:
    order, offset, number = "<", 0, 0
    interfaces: list[tuple[int, float]] = []
    while offset + 12 <= len(data):
        (kind,) = struct.unpack_from(order + "I", data, offset)
        if kind == _SECTION_HEADER:
            order = "<" if data[offset + 8 : offset + 12] == b"\x4d\x3c\x2b\x1a" else ">"
            interfaces = []
        (length,) = struct.unpack_from(order + "I", data, offset + 4)
        if length < 12 or length % 4:
            raise CaptureError(f"block length {length} at {offset}")
        if offset + length > len(data):
            return
        body = data[offset + 8 : offset + length - 4]
        if len(body) < _FIXED_PART.get(kind, 0):
            raise CaptureError(f"block of type {kind} too short at {offset}")
        if kind == _INTERFACE:
            interfaces.append((struct.unpack_from(order + "H", body)[0], _time_unit(body, order)))
        elif kind == _ENHANCED:
            interface, high, low, captured, original = struct.unpack_from(order + "IIIII", body)
            if interface >= len(interfaces) or captured > len(body) - 20:
                raise CaptureError(f"damaged packet block at {offset}")
            link_type, unit = interfaces[interface]
            number += 1
            yield Frame(number, (high << 32 | low) * unit, link_type, body[20 : 20 + captured], original)
        elif kind == _SIMPLE and interfaces:
            (original,) = struct.unpack_from(order + "I", body)
            number += 1
            yield Frame(number, 0.0, interfaces[0][0], body[4 : 4 + original], original)
        offset += length
