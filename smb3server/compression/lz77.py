"""Plain LZ77. [MS-XCA 2.3, 2.4]"""

from __future__ import annotations

import struct

from smb3server.compression.matches import MIN_MATCH, Finder, repeat

_WINDOW = 8192
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")


class _Packer:
    """The output of a compressor: flags, and between them bytes and matches."""

    def __init__(self) -> None:
        self.out = bytearray(4)
        self._flags = self._count = self._flags_at = 0
        self._half = 0
        """Where the byte is whose high half is still free; 0: there is none."""

    def add_byte(self, value: int) -> None:
        self.out.append(value)
        self._flag(0)

    def add_match(self, length: int, distance: int) -> None:
        out, rest = self.out, length - MIN_MATCH
        out += _U16.pack((distance - 1) << 3 | min(rest, 7))
        if rest >= 7:
            self._add_length(rest - 7)
        self._flag(1)

    def _add_length(self, rest: int) -> None:
        """Add a length of 10 and more: 4 bits of it, then 8, 16 or 32."""
        out = self.out
        if self._half:
            out[self._half] |= min(rest, 15) << 4
            self._half = 0
        else:
            self._half = len(out)
            out.append(min(rest, 15))
        if rest >= 15 + 255:
            whole = rest + 7
            out += b"\xff" + (_U16.pack(whole) if whole < 1 << 16 else _U16.pack(0) + _U32.pack(whole))
        elif rest >= 15:
            out.append(rest - 15)

    def _flag(self, flag: int) -> None:
        self._flags = self._flags << 1 | flag
        self._count += 1
        if self._count == 32:
            _U32.pack_into(self.out, self._flags_at, self._flags)
            self._flags = self._count = 0
            self._flags_at = len(self.out)
            self.out += bytes(4)

    def end(self) -> bytes:
        """Fill up the last flags with ones, and return the output."""
        free = 32 - self._count
        _U32.pack_into(self.out, self._flags_at, self._flags << free | (1 << free) - 1)
        return bytes(self.out)


def compress(data: bytes) -> bytes:
    """Return the compressed data."""
    finder, packer, at = Finder(data), _Packer(), 0
    while at < len(data):
        length, distance = finder.longest(at, 0, _WINDOW, len(data) - at)
        if length:
            packer.add_match(length, distance)
            at += length
        else:
            packer.add_byte(data[at])
            at += 1
    return packer.end()


def decompress(data: memoryview, into: memoryview) -> bool:
    """Decompress ``data`` to ``into``. Return whether it is well-formed and has exactly that length."""
    try:
        return _Unpacker(data).run(into)
    except (IndexError, struct.error):
        # It ends in the middle of something.
        return False


class _Unpacker:
    """Reads compressed data. Raises ``IndexError`` and ``struct.error`` if it ends too early."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0
        self._half: int | None = None
        """The half of a byte that the next length of 10 and more begins with."""

    def run(self, into: memoryview) -> bool:
        data, end, done = self._data, len(self._data), 0
        flags = left = 0
        while True:
            if not left:
                if self._at == end:
                    # An encoder may leave out flags for nothing.
                    return done == len(into)
                (flags,), left = _U32.unpack_from(data, self._at), 32
                self._at += 4
            left -= 1
            if not flags >> left & 1:
                if done == len(into):
                    # Linux 6.12: where the data ends with the 32nd flag, 32 zeros follow, which stand for bytes. By the
                    # letter of 2.4.4 they would have to be ones.
                    return self._at == end
                into[done] = data[self._at]
                self._at, done = self._at + 1, done + 1
                continue
            if self._at == end:
                return done == len(into)
            (word,) = _U16.unpack_from(data, self._at)
            self._at += 2
            length = word & 7
            if length == 7:
                length = self._long_length()
            if length < 0 or not repeat(into, done, (word >> 3) + 1, length + MIN_MATCH):
                return False
            done += length + MIN_MATCH

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _long_length(self) -> int:
        """Return a length of 10 and more, less ``MIN_MATCH``; -1 if it is malformed."""
        if self._half is None:
            pair = self._byte()
            length, self._half = pair & 15, pair >> 4
        else:
            length, self._half = self._half, None
        if length < 15:
            return length + 7
        length = self._byte()
        if length < 255:
            return length + 15 + 7
        (length,) = _U16.unpack_from(self._data, self._at)
        self._at += 2
        if not length:
            (length,) = _U32.unpack_from(self._data, self._at)
            self._at += 4
        return length if length >= 15 + 7 else -1
