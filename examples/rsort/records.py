"""Records of 100 bytes, as gensort makes them with -a and valsort judges them.

A record is a key of 10 printable bytes, its number, filler, and CR LF: ``LC_ALL=C sort`` sorts such a file, too.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SIZE = 100
KEY = 10
_BLOCK = 1 << 14
"""Records that are made from one seed: any part of a file can be made by itself."""

Records = NDArray[np.uint8]
"""One record in each row."""


def generate(first: int, count: int, seed: int) -> bytes:
    """Return records ``first`` to ``first + count`` of the file with this seed."""
    made = []
    at = first
    while at < first + count:
        block, skip = divmod(at, _BLOCK)
        stop = min(first + count - block * _BLOCK, _BLOCK)
        keys = np.random.default_rng((seed, block)).integers(32, 127, (_BLOCK, KEY), dtype=np.uint8)
        for row in range(skip, stop):
            number = block * _BLOCK + row
            filler = b"0123456789ABCDEF"[number % 16 : number % 16 + 1] * 52
            made.append(keys[row].tobytes() + b"  %032X  " % number + filler + b"\r\n")
        at = block * _BLOCK + stop
    return b"".join(made)


def records_of(data: bytes | bytearray | memoryview) -> Records:
    """Return whole records as rows. Raise ``ValueError`` if the last one is cut off."""
    found = np.frombuffer(data, dtype=np.uint8)
    if len(found) % SIZE:
        raise ValueError(f"{len(found)} bytes are not whole records of {SIZE}")
    return found.reshape(-1, SIZE)


def keys_of(records: Records) -> tuple[NDArray[np.uint64], NDArray[np.uint16]]:
    """Return the keys as numbers: their first 8 bytes, and the 2 behind them."""
    head = np.ascontiguousarray(records[:, :8]).view(">u8").reshape(-1).astype(np.uint64)
    tail = np.ascontiguousarray(records[:, 8:KEY]).view(">u2").reshape(-1).astype(np.uint16)
    return head, tail


def in_order(records: Records) -> Records:
    """Return the records sorted by key. Equal keys keep their order."""
    head, tail = keys_of(records)
    return records[np.lexsort((tail, head))]


class Verdict(NamedTuple):
    """What valsort says of a file, or of a part of it."""

    records: int
    checksum: int
    """The sum of the CRC-32 of all records: the same before and after sorting."""
    unordered: int
    """Records whose key is smaller than that of the one before."""
    duplicates: int
    """Records that have the key of the one before."""
    first: bytes
    last: bytes

    def __add__(self, other: Verdict) -> Verdict:  # type: ignore[override]
        """Join the verdict of the part that follows."""
        if not self.records or not other.records:
            return other if other.records else self
        return Verdict(
            self.records + other.records,
            self.checksum + other.checksum,
            self.unordered + other.unordered + (other.first < self.last),
            self.duplicates + other.duplicates + (other.first == self.last),
            self.first,
            other.last,
        )


NOTHING = Verdict(0, 0, 0, 0, b"", b"")


def judge(data: bytes | bytearray | memoryview) -> Verdict:
    """Judge a part of a file."""
    records = records_of(data)
    if not len(records):
        return NOTHING
    head, tail = keys_of(records)
    same = head[1:] == head[:-1]
    smaller = (head[1:] < head[:-1]) | (same & (tail[1:] < tail[:-1]))
    view = memoryview(data)
    checksum = sum(zlib.crc32(view[at : at + SIZE]) for at in range(0, len(view), SIZE))
    first, last = records[0, :KEY].tobytes(), records[-1, :KEY].tobytes()
    duplicates = int((same & (tail[1:] == tail[:-1])).sum())
    return Verdict(len(records), checksum, int(smaller.sum()), duplicates, first, last)


def judge_file(path: Path, piece: int = 1 << 24) -> Verdict:
    """Judge a whole file. Raise ``ValueError`` if the last record is cut off."""
    verdict, size = NOTHING, piece // SIZE * SIZE
    with path.open("rb") as file:
        while data := file.read(size):
            verdict += judge(data)
    return verdict
