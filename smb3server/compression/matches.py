"""Finding what data repeats, for the compressors in Python."""

from __future__ import annotations

MIN_MATCH = 3
"""Bytes of the shortest match. [MS-XCA 2.1.4.1]"""


class Finder:
    """Remembers where each sequence of three bytes was last."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._last: dict[bytes, int] = {}

    def longest(self, at: int, first: int, window: int, limit: int) -> tuple[int, int]:
        """Return length and distance of a match for the bytes at ``at``, and remember these. Length 0: there is none.

        ``first``: the first position that may be repeated. ``window``: the largest distance. ``limit``: the most bytes.
        """
        data, key = self._data, self._data[at : at + MIN_MATCH]
        if limit < MIN_MATCH:
            return 0, 0
        found = self._last.get(key, -1)
        self._last[key] = at
        if found < first or at - found > window:
            return 0, 0
        length = MIN_MATCH
        while length < limit and data[found + length] == data[at + length]:
            length += 1
        return length, at - found


def repeat(into: memoryview, at: int, distance: int, length: int) -> bool:
    """Repeat ``length`` bytes from ``distance`` bytes before ``at``. The two may overlap. Return False, with nothing
    written, if that begins before ``into`` or ends behind it."""
    if distance > at or length > len(into) - at:
        return False
    while length:
        # Each round doubles what can be copied at once.
        step = min(distance, length)
        into[at : at + step] = into[at - distance : at - distance + step]
        at += step
        length -= step
        distance += step
    return True
