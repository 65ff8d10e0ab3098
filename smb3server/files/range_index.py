"""Ranges by where they lie: whether anything overlaps is told without looking at all of them.

Sorted by offset and cut into chunks, each of which knows how far its ranges reach and whose they are. A look-up, an
insertion or a removal costs about the square root of their number, whatever a client makes them look like.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from typing import Generic, Protocol, TypeVar

CHUNK = 256
Key = tuple[int, int]
"""(offset, number of insertion)."""


class Range(Protocol):
    """Covers ``length`` bytes; an empty one lies between the byte before ``offset`` and the one there."""

    offset: int
    length: int

    @property
    def owner(self) -> object:
        """Whose it is; told apart by equality."""
        ...


T = TypeVar("T", bound=Range)


class _Chunk(Generic[T]):
    __slots__ = ("end", "keys", "owners", "ranges")

    def __init__(self, keys: list[Key], ranges: list[T]) -> None:
        self.keys = keys
        self.ranges = ranges
        self.owners = Counter(entry.owner for entry in ranges)
        self.end = max((entry.offset + entry.length - 1 for entry in ranges), default=-1)
        """The last byte that one of them covers."""

    def overlaps(self, first: int, last: int, but: object) -> bool:
        return any(
            entry.offset <= last and entry.offset + entry.length > first and entry.owner is not but
            for entry in self.ranges
        )


class RangeIndex(Generic[T]):
    """Empty when made."""

    __slots__ = ("_chunks", "_firsts", "_keys", "_next")

    def __init__(self) -> None:
        self._chunks: list[_Chunk[T]] = []
        self._firsts: list[Key] = []
        """Of each chunk, its first key."""
        self._keys: dict[T, Key] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, entry: T) -> None:
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
        """One that was added, and whose owner, offset and length are what they were then."""
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

    def overlapped(self, offset: int, length: int, but: object = None) -> bool:
        """Whether one overlaps the range given, of another owner than ``but``. An empty range overlaps only what holds
        bytes on both sides of it, hence never another empty one."""
        last = offset + length - 1
        for first, chunk in zip(self._firsts, self._chunks, strict=True):
            if first[0] > last:
                return False
            if chunk.end < offset or (len(chunk.owners) == 1 and but in chunk.owners):
                continue
            if chunk.overlaps(offset, last, but):
                return True
        return False
