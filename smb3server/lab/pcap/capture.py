"""Read frames from pcap and pcapng files, compressed or not, from the disk or standard input, one after the other."""

from __future__ import annotations

import heapq
import io
import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class CaptureError(Exception):
    """The file is not a capture."""


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


_SWAP_WINDOW = 32
"""Frames that may be between two that are swapped."""
_CLOCK_STEP = 1.0
"""Seconds back that are no swap: the clock was set."""
_PCAP_MAGIC = {
    b"\xd4\xc3\xb2\xa1": ("<", 1e-6),
    b"\xa1\xb2\xc3\xd4": (">", 1e-6),
    b"\x4d\x3c\xb2\xa1": ("<", 1e-9),
    b"\xa1\xb2\x3c\x4d": (">", 1e-9),
}
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
"""Tells zlib to expect the header and the trailer of gzip."""
_SECTION_HEADER, _INTERFACE, _SIMPLE, _ENHANCED, _OBSOLETE = 0x0A0D0D0A, 1, 3, 6, 2
_SECTION_MAGIC = struct.pack("<I", _SECTION_HEADER)
_OPTION_TIME_RESOLUTION, _OPTION_TIME_OFFSET = 9, 14
_STEP = 1 << 20
_MAX_RECORD = 64 << 20
"""Bytes of a record beyond which its length is taken for damage: no link has such frames."""


class _Unzipped(io.RawIOBase):
    """The contents of a stream in gzip format. A damaged or truncated one ends where it can still be read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._inflate = zlib.decompressobj(_GZIP_WINDOW)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = b""
        while not data:
            packed = self._inflate.unconsumed_tail or self._inflate.unused_data or self._stream.read(1 << 16)
            if not packed:
                return 0
            if self._inflate.eof:  # Several members make one file.
                self._inflate = zlib.decompressobj(_GZIP_WINDOW)
            try:
                data = self._inflate.decompress(packed, len(view))
            except zlib.error:
                return 0
        view[: len(data)] = data
        return len(data)


@contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """Open a capture for reading; ``-`` is standard input. Raises ``OSError``."""
    raw: BinaryIO = sys.stdin.buffer if name == "-" else open(name, "rb")  # noqa: SIM115  # closed below
    try:
        buffered = io.BufferedReader(cast(io.RawIOBase, raw), 1 << 20)
        if buffered.peek(2)[:2] == _GZIP_MAGIC:
            yield io.BufferedReader(_Unzipped(buffered), 1 << 20)
        else:
            yield buffered
        if name == "-":
            buffered.detach()
    finally:
        if name != "-":
            raw.close()


class Frames:
    """The frames of a stream, in file order. Iterate once.

    A file that ends within a record, or is damaged, ends the iteration. ``ended_early`` then says why: what came before
    is still good.
    """

    def __init__(self, stream: BinaryIO) -> None:
        """Read the beginning of the file. Raises ``CaptureError`` if it is no capture."""
        self._stream = stream
        self.ended_early = ""
        magic = self._read(4)
        if magic in _PCAP_MAGIC:
            self._frames = self._pcap(*_PCAP_MAGIC[magic])
        elif magic == _SECTION_MAGIC:
            self._frames = self._pcapng()
        else:
            raise CaptureError("neither pcap nor pcapng")

    def __iter__(self) -> Iterator[Frame]:
        return self._frames

    def _read(self, size: int) -> bytes:
        """Return ``size`` bytes, or fewer at the end of the file."""
        # A file object allocates what it is asked for before it reads. A damaged file may ask for much and have little.
        data = self._stream.read(min(size, _STEP))
        while len(data) < size and (more := self._stream.read(min(size - len(data), _STEP))):
            data += more
        return data

    def _whole(self, size: int, what: str) -> bytes:
        """Return ``size`` bytes, or nothing if the file has fewer; only in front of a record is that no loss."""
        data = self._read(size) if size <= _MAX_RECORD else b""
        if len(data) == size:
            return data
        if size > _MAX_RECORD:
            self.ended_early = f"the file is damaged: {what} of {size} bytes"
        elif not self.ended_early and (data or what != "record header"):
            self.ended_early = f"the file ends within a {what}"
        return b""

    def _pcap(self, order: str, unit: float) -> Iterator[Frame]:
        header = self._whole(20, "file header")
        if not header:
            return
        link_type = struct.unpack_from(order + "I", header, 16)[0] & 0xFFFF
        record = struct.Struct(order + "IIII")
        number = 0
        while fields := self._whole(16, "record header"):
            seconds, fraction, captured, original = record.unpack(fields)
            data = self._whole(captured, "frame")
            if captured and not data:
                return
            number += 1
            yield Frame(number, seconds + fraction * unit, link_type, data, original)

    def _pcapng(self) -> Iterator[Frame]:
        order, number = "<", 0
        interfaces: list[_Interface] = []
        kind, rest = _SECTION_HEADER, self._whole(4, "block")
        while rest:
            if kind == _SECTION_HEADER:
                start = self._whole(4, "block")
                if not start:
                    return
                order = "<" if start == b"\x4d\x3c\x2b\x1a" else ">"
                interfaces = []
                rest += start
            (length,) = struct.unpack_from(order + "I", rest)
            if length < 12 or length % 4:
                self.ended_early = f"the file is damaged: block of {length} bytes"
                return
            body = (rest[4:] + self._whole(length - 4 - len(rest), "block"))[:-4]
            if len(body) != length - 12:
                return
            if kind == _INTERFACE and len(body) >= 8:
                interfaces.append(_interface(body, order))
            elif kind in (_ENHANCED, _SIMPLE, _OBSOLETE):
                frame = _packet_block(kind, body, order, interfaces, number + 1)
                if frame is None:
                    self.ended_early = f"the file is damaged: block of packet {number + 1}"
                    return
                number += 1
                yield frame
            header = self._whole(8, "record header")
            if not header:
                return
            # The number of a section header reads the same in both byte orders.
            (kind,) = struct.unpack_from(order + "I", header)
            rest = header[4:]


class _Interface(NamedTuple):
    link_type: int
    unit: float
    offset: int


def _interface(body: bytes, order: str) -> _Interface:
    unit, offset, at = 1e-6, 0, 8
    while at + 4 <= len(body):
        code, length = struct.unpack_from(order + "HH", body, at)
        value = body[at + 4 : at + 4 + length]
        if code == _OPTION_TIME_RESOLUTION and value:
            unit = float(2.0 ** -(value[0] & 0x7F) if value[0] & 0x80 else 10.0 ** -value[0])
        elif code == _OPTION_TIME_OFFSET and len(value) == 8:
            (offset,) = struct.unpack(order + "q", value)
        elif code == 0:
            break
        at += 4 + (length + 3 & ~3)
    return _Interface(struct.unpack_from(order + "H", body)[0], unit, offset)


def _packet_block(kind: int, body: bytes, order: str, interfaces: list[_Interface], number: int) -> Frame | None:
    """Return the frame of a packet block, or None if the block is damaged."""
    if kind == _SIMPLE:
        if len(body) < 4 or not interfaces:
            return None
        (original,) = struct.unpack_from(order + "I", body)
        return Frame(number, 0.0, interfaces[0].link_type, body[4 : 4 + original], original)
    if len(body) < 20:
        return None
    # The obsolete block has a 16-bit interface and a 16-bit count of drops in the place of the interface.
    interface = struct.unpack_from(order + ("I" if kind == _ENHANCED else "H"), body)[0]
    high, low, captured, original = struct.unpack_from(order + "IIII", body, 4)
    if interface >= len(interfaces) or captured > len(body) - 20:
        return None
    link_type, unit, offset = interfaces[interface]
    return Frame(number, offset + (high << 32 | low) * unit, link_type, body[20 : 20 + captured], original)


class TimeOrder:
    """Puts frames in the order of their times: captures of several queues of a network card have neighbours swapped.

    ``add`` and ``rest`` return the frames whose turn has come.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Frame]] = []
        self._latest = 0.0

    def add(self, frame: Frame) -> Iterator[Frame]:
        """Take the next frame of the file."""
        if frame.time < self._latest - _CLOCK_STEP:
            yield from self.rest()
            self._latest = frame.time
        self._latest = max(self._latest, frame.time)
        heapq.heappush(self._waiting, (frame.time, frame.number, frame))
        if len(self._waiting) > _SWAP_WINDOW:
            yield heapq.heappop(self._waiting)[2]

    def rest(self) -> Iterator[Frame]:
        """Return what is left."""
        while self._waiting:
            yield heapq.heappop(self._waiting)[2]
