"""LZ77+Huffman: blocks of 64 KiB, each with a table of codes of its own. [MS-XCA 2.1, 2.2]"""

from __future__ import annotations

import struct
from collections import deque

from smb3server.compression.matches import MIN_MATCH, Finder, repeat

_SYMBOLS = 512
_TABLE = 256
"""Bytes of a table: the lengths of all codes, four bits each."""
_BLOCK = 65536
_LONGEST = 15
"""Most bits of a code."""
_END = 256
"""The symbol behind the data."""
_WINDOW = 65535
_U16 = struct.Struct("<H")

_Item = tuple[int, int, int]
"""Symbol, length and distance. Length 0: the symbol stands for itself."""


def _lengths(counts: dict[int, int]) -> dict[int, int]:
    """Return the lengths of the codes, by symbol: Huffman's algorithm with two queues. [MS-XCA 2.1.4.2]

    If a code gets too long, frequent symbols are made less frequent."""
    if len(counts) == 1:
        # A table of one code is not complete. A second one, which is never used, completes it.
        (symbol,) = counts
        return {symbol: 1, symbol ^ 1: 1}
    while True:
        leaves = deque(
            (counts[symbol], (symbol,)) for symbol in sorted(counts, key=lambda symbol: (counts[symbol], symbol))
        )
        nodes: deque[tuple[int, tuple[int, ...]]] = deque()
        depths = dict.fromkeys(counts, 0)
        while len(leaves) + len(nodes) > 1:
            joined: list[tuple[int, tuple[int, ...]]] = []
            for _ in range(2):
                leaf_first = leaves and (not nodes or leaves[0][0] <= nodes[0][0])
                joined.append((leaves if leaf_first else nodes).popleft())
            (one, below), (other, beside) = joined
            for symbol in below + beside:
                depths[symbol] += 1
            nodes.append((one + other, below + beside))
        if max(depths.values()) <= _LONGEST:
            return depths
        counts = {symbol: (count + 1) // 2 for symbol, count in counts.items()}


def _codes(lengths: dict[int, int]) -> dict[int, int]:
    """Return the canonical codes: shorter ones first, of one length by symbol."""
    codes, code, before = {}, 0, 0
    for length, symbol in sorted((length, symbol) for symbol, length in lengths.items()):
        code <<= length - before
        codes[symbol], before = code, length
        code += 1
    return codes


class _Bits:
    """Writes bits in words of 16. The places of two words are reserved before the bytes that come between them. [MS-XCA
    2.1.4.3]"""

    def __init__(self, out: bytearray) -> None:
        self._out = out
        self._first, self._second = len(out), len(out) + 2
        self._word, self._free = 0, 16
        out += bytes(4)

    def put(self, count: int, value: int) -> None:
        if self._free >= count:
            self._free -= count
            self._word = self._word << count | value
            return
        over = count - self._free
        _U16.pack_into(self._out, self._first, (self._word << self._free | value >> over) & 0xFFFF)
        self._first, self._second = self._second, len(self._out)
        self._out += bytes(2)
        self._word, self._free = value & (1 << over) - 1, 16 - over

    def end(self) -> None:
        _U16.pack_into(self._out, self._first, self._word << self._free & 0xFFFF)


def _items(finder: Finder, data: bytes, start: int, end: int) -> list[_Item]:
    items: list[_Item] = []
    at = start
    while at < end:
        length, distance = finder.longest(at, 0, _WINDOW, end - at)
        if length:
            items.append((256 + min(length - MIN_MATCH, 15) + 16 * (distance.bit_length() - 1), length, distance))
            at += length
        else:
            items.append((data[at], 0, 0))
            at += 1
    return items


def compress(data: bytes) -> bytes:
    """Return the compressed data."""
    finder, out = Finder(data), bytearray()
    for start in range(0, max(len(data), 1), _BLOCK):
        end = min(start + _BLOCK, len(data))
        items = _items(finder, data, start, end)
        if end == len(data):
            items.append((_END, 0, 0))
        counts: dict[int, int] = {}
        for symbol, _, _ in items:
            counts[symbol] = counts.get(symbol, 0) + 1
        lengths = _lengths(counts)
        codes = _codes(lengths)
        out += bytes(lengths.get(at, 0) | lengths.get(at + 1, 0) << 4 for at in range(0, _SYMBOLS, 2))
        bits = _Bits(out)
        for symbol, length, distance in items:
            bits.put(lengths[symbol], codes[symbol])
            if not length:
                continue
            rest = length - MIN_MATCH
            if rest >= 15 + 255:
                out += b"\xff" + _U16.pack(rest)
            elif rest >= 15:
                out.append(rest - 15)
            more = distance.bit_length() - 1
            bits.put(more, distance - (1 << more))
        bits.end()
    return bytes(out)


def decompress(data: memoryview, into: memoryview) -> bool:
    """Decompress ``data`` to ``into``. Return whether it is well-formed. What comes behind the last byte is not looked
    at."""
    at = done = 0
    try:
        while done < len(into):
            block = _Block(data, at)
            done = block.run(into, done)
            if done < 0:
                return False
            at = block.at
    except (IndexError, struct.error):
        # It ends in the middle of something.
        return False
    return True


class _Block:
    """Reads one block. Raises ``IndexError`` and ``struct.error`` if it ends too early. [MS-XCA 2.2.4]"""

    def __init__(self, data: memoryview, at: int) -> None:
        table = data[at : at + _TABLE]
        lengths = [half for pair in table for half in (pair & 15, pair >> 4)]
        self._codes: dict[tuple[int, int], int] = {}
        """Symbols, by length and code."""
        self.complete = len(table) == _TABLE
        code = 0
        for bits in range(1, _LONGEST + 1):
            code <<= 1
            for symbol in range(len(lengths)):
                if lengths[symbol] == bits:
                    self._codes[bits, code] = symbol
                    code += 1
        self.complete &= code == 1 << _LONGEST
        self._data = data
        self.at = at + _TABLE
        self._bits = self._word() << 16 | self._word()
        self._extra = 16
        """Bits of ``_bits`` behind the next 16."""

    def _word(self) -> int:
        (word,) = _U16.unpack_from(self._data, self.at)
        self.at += 2
        return int(word)

    def _take(self, count: int) -> int:
        """Return the next bits."""
        value = self._bits >> (32 - count)
        self._bits = self._bits << count & 0xFFFFFFFF
        self._extra -= count
        if self._extra < 0:
            self._bits |= self._word() << -self._extra
            self._extra += 16
        return value

    def _symbol(self) -> int:
        for bits in range(1, _LONGEST + 1):
            symbol = self._codes.get((bits, self._bits >> (32 - bits)))
            if symbol is not None:
                self._take(bits)
                return symbol
        raise IndexError("no such code")

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def run(self, into: memoryview, done: int) -> int:
        """Decompress to ``into`` from ``done`` on. Return where that ends, -1 if the block is malformed."""
        end = done + _BLOCK
        if not self.complete:
            return -1
        while done < end and done < len(into):
            symbol = self._symbol()
            if symbol < 256:
                into[done] = symbol
                done += 1
                continue
            length, more = symbol & 15, symbol - 256 >> 4
            if length == 15:
                length += self._byte()
                if length == 15 + 255:
                    length = self._word()
                    if length < 15:
                        return -1
            distance = self._take(more) + (1 << more)
            if not repeat(into, done, distance, length + MIN_MATCH):
                return -1
            done += length + MIN_MATCH
        return done
