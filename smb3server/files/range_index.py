"""An index of byte ranges that finds overlaps without a look at all ranges.

The ranges are sorted by offset and split into chunks. Each chunk knows how far its ranges reach and who owns them. A
look-up, an insertion or a removal costs about the square root of the number of ranges, for any choice of ranges by a
client.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

CHUNK = 256
"""A chunk is split when it has more than twice as many ranges."""
Key = tuple[int, int]
"""(offset, sequence number of the insertion)."""


class Range(Protocol):
    """A range of ``length`` bytes. An empty range lies between the byte before ``offset`` and the byte at it."""

    offset: int
    length: int

    @property
    def owner(self) -> object:
        """The owner of the range. It is hashable and equal to itself only."""


T = TypeVar("T", bound=Range)


class _Chunk(Generic[T]):
    """Ranges that are neighbours in the order of their keys."""

    # Invariant: keys is sorted, and ranges[i] has keys[i].
    # Invariant: owners counts the ranges of each owner and has no zero counts.

    __slots__ = ("end", "keys", "owners", "ranges")

    def __init__(self, keys: list[Key], ranges: list[T]) -> None:
        self.keys = keys
        self.ranges = ranges
        self.owners = Counter(entry.owner for entry in ranges)
        self.end = max((entry.offset + entry.length - 1 for entry in ranges), default=-1)
        """Offset of the last byte that a range of the chunk covers."""

    def overlaps(self, first: int, last: int, excluded: object) -> bool:
        return any(
            entry.offset <= last and entry.offset + entry.length > first and entry.owner is not excluded
            for entry in self.ranges
        )

    def overlapping(self, first: int, last: int) -> list[T]:
        return [entry for entry in self.ranges if entry.offset <= last and entry.offset + entry.length > first]


@dataclass(slots=True, eq=False)
class RangeIndex(Generic[T]):
    """An index of ranges, initially empty."""

    # Invariant: chunks are not empty and sorted by key; _firsts[i] is the first key of _chunks[i].
    _chunks: list[_Chunk[T]] = field(default_factory=list)
    _firsts: list[Key] = field(default_factory=list)
    _keys: dict[T, Key] = field(default_factory=dict)
    _next: int = 0

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def first_offset(self) -> int | None:
        """The lowest offset of a range; None if there is none."""
        return self._firsts[0][0] if self._firsts else None

    def add(self, entry: T) -> None:
        """Add a range. Its owner, offset and length must not change while it is here."""
        self._next += 1
        key = self._keys[entry] = (entry.offset, self._next)
        if not self._chunks:
            self._chunks.append(_Chunk([key], [entry]))
            self._firsts.append(key)
            return
        index = max(bisect_right(self._firsts, key) - 1, 0)
        chunk = self._chunks[index]
        place = bisect_left(chunk.keys, key)
        chunk.keys.insert(place, key)
        chunk.ranges.insert(place, entry)
        chunk.owners[entry.owner] += 1
        chunk.end = max(chunk.end, entry.offset + entry.length - 1)
        self._firsts[index] = chunk.keys[0]
        if len(chunk.keys) > 2 * CHUNK:
            halves = [
                _Chunk(chunk.keys[:CHUNK], chunk.ranges[:CHUNK]),
                _Chunk(chunk.keys[CHUNK:], chunk.ranges[CHUNK:]),
            ]
            self._chunks[index : index + 1] = halves
            self._firsts[index : index + 1] = [half.keys[0] for half in halves]

    def remove(self, entry: T) -> None:
        """Remove a range that was added. Its owner, offset and length must not have changed since."""
        key = self._keys.pop(entry)
        index = bisect_right(self._firsts, key) - 1
        chunk = self._chunks[index]
        place = bisect_left(chunk.keys, key)
        del chunk.keys[place]
        del chunk.ranges[place]
        if not chunk.keys:
            del self._chunks[index]
            del self._firsts[index]
            return
        self._firsts[index] = chunk.keys[0]
        chunk.owners[entry.owner] -= 1
        if not chunk.owners[entry.owner]:
            del chunk.owners[entry.owner]
        if entry.offset + entry.length - 1 == chunk.end:
            chunk.end = max(other.offset + other.length - 1 for other in chunk.ranges)

    def overlapped(self, offset: int, length: int, excluded: object = None) -> bool:
        """Return whether a range with another owner than ``excluded`` overlaps the given one.

        An empty range overlaps only ranges with bytes on both sides of it, so never another empty one."""
        last = offset + length - 1
        for first, chunk in zip(self._firsts, self._chunks, strict=True):
            if first[0] > last:
                return False
            if chunk.end < offset or (len(chunk.owners) == 1 and excluded in chunk.owners):
                continue
            if chunk.overlaps(offset, last, excluded):
                return True
        return False

    def overlapping(self, offset: int, length: int) -> list[T]:
        """Return the ranges that overlap the given one, as ``overlapped`` has it."""
        last = offset + length - 1
        found: list[T] = []
        for first, chunk in zip(self._firsts, self._chunks, strict=True):
            if first[0] > last:
                break
            if chunk.end >= offset:
                found += chunk.overlapping(offset, last)
        return found
