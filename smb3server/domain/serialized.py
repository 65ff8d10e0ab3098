"""Reads structures that NDR has serialized, as the PAC has them. [MS-RPCE 2.2.6, C706 14]

A count is compared with the bytes that are there before anything is made of it.
"""

from __future__ import annotations

import struct

from smb3server.access.descriptor import Sid

_HEADERS = struct.Struct("<BBH4xI4x")
"""Version, byte order and size of the first header; the size of what follows the second. [MS-RPCE 2.2.6.1, 2.2.6.2]"""
_LITTLE_ENDIAN = 0x10
_MAX_SUB_AUTHORITIES = 15


class Serialized:
    """One serialized structure, read from its begin to its end. All methods raise ``ValueError`` for a malformed one.

    Pointers come first, and what they point to follows the structure or the array that they are in, in their order."""

    def __init__(self, data: bytes | bytearray) -> None:
        """Read the headers. The structure itself is behind a pointer, which is to be read next."""
        if len(data) < _HEADERS.size:
            raise ValueError("a serialized structure is cut short")
        version, order, header, size = _HEADERS.unpack_from(data)
        if (version, order, header) != (1, _LITTLE_ENDIAN, 8) or size > len(data) - _HEADERS.size:
            raise ValueError("malformed headers of a serialized structure")
        self._data = memoryview(data)[: _HEADERS.size + size]
        # The headers take 16 bytes, so that places are aligned in the whole as they are in the structure.
        self._at = _HEADERS.size

    def _take(self, size: int, alignment: int) -> memoryview:
        start = self._at + -self._at % alignment
        if start + size > len(self._data):
            raise ValueError("a serialized structure is cut short")
        self._at = start + size
        return self._data[start : self._at]

    def u16(self) -> int:
        return int.from_bytes(self._take(2, 2), "little")

    def u32(self) -> int:
        return int.from_bytes(self._take(4, 4), "little")

    def pointer(self) -> bool:
        """Return whether a pointer leads anywhere."""
        return self.u32() != 0

    def counted(self, count: int, size: int) -> int:
        """Read the number of elements of an array, of ``size`` bytes or more each. Return it, which must be
        ``count``."""
        if self.u32() != count:
            raise ValueError("an array has not as many elements as its structure says")
        if count * size > len(self._data) - self._at:
            raise ValueError("an array is cut short")
        return count

    def octets(self, count: int) -> bytes:
        """Read an array of bytes."""
        return bytes(self._take(self.counted(count, 1), 1))

    def integers(self, count: int, signed: bool) -> tuple[int, ...]:
        """Read an array of integers of 64 bits."""
        data = self._take(8 * self.counted(count, 8), 8)
        return struct.unpack(f"<{count}{'q' if signed else 'Q'}", data)

    def pointers(self, count: int) -> list[bool]:
        """Read an array of pointers."""
        return [self.pointer() for _ in range(self.counted(count, 4))]

    def text(self) -> str:
        """Read a string that ends with a null character, and is returned without."""
        most, offset, count = self.u32(), self.u32(), self.u32()
        if offset or not 0 < count <= most:
            raise ValueError("malformed string")
        found = bytes(self._take(2 * count, 2)).decode("utf-16-le")
        if not found.endswith("\0"):
            raise ValueError("a string without an end")
        return found[:-1]

    def sid(self) -> Sid:
        """Read an RPC_SID. [MS-DTYP 2.4.2.3]"""
        count = self.u32()
        if count > _MAX_SUB_AUTHORITIES:
            raise ValueError("malformed SID")
        data = self._take(8 + 4 * count, 4)
        if data[1] != count:
            raise ValueError("malformed SID")
        return Sid.unpack(data)
