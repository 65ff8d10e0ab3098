"""The names in one directory, for look-ups ignoring case and by 8.3 name. They take little memory beyond the names.

Names are stored one behind the other in chunks. Each chunk has a sorted index of 64-bit numbers. The upper half of a
number is the hash of a name without regard to case, from which its 8.3 name is made as well; the lower half is the
position of the name in the chunk. A look-up takes one binary search per chunk: some tens of microseconds among a
million names. The index takes 8 bytes per name.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from smb3server.backends import names
from smb3server.wire.upcase import upcase

CHUNK = 8192
"""Names per chunk. Sorting them takes about two milliseconds."""
_OVERHEAD = 200
"""Approximate bytes of memory for a name that was added or removed after the directory was read."""


class _Chunk:
    """Names with an index, which do not change."""

    __slots__ = ("_index", "_text", "size")

    def __init__(self, disk_names: Sequence[str], hashes: Sequence[int]) -> None:
        encoded = [os.fsencode(name) for name in disk_names]
        starts = accumulate((len(name) + 1 for name in encoded), initial=0)
        self._text = b"\0".join(encoded)
        # ``zip`` ends with ``hashes``, because ``starts`` has one item more.
        self._index = array("Q", sorted(value << 32 | start for value, start in zip(hashes, starts, strict=False)))
        self.size = len(self._text) + 8 * len(self._index)

    def find(self, value: int) -> Iterator[str]:
        """Return the on-disk names that have this hash."""
        index, text = self._index, self._text
        at = bisect_left(index, value << 32)
        while at < len(index) and index[at] >> 32 == value:
            start = index[at] & 0xFFFFFFFF
            end = text.find(b"\0", start)
            yield os.fsdecode(text[start : end if end >= 0 else len(text)])
            at += 1


class FolderNames:
    """The names in a directory. ``read`` fills it; ``add`` and ``remove`` note changes, also while it is being read."""

    def __init__(self) -> None:
        self.size = 500
        """Approximate bytes of memory."""
        self.count = 0
        """The number of names given to ``read``."""
        self._chunks: list[_Chunk] = []
        self._names: list[str] = []
        """Names that were read and are in no chunk yet. Invariant: ``_hashes`` has their hashes in the same order."""
        self._hashes: list[int] = []
        self._added: dict[int, list[str]] = {}
        self._removed: set[str] = set()

    def read(self, disk_names: Sequence[str]) -> None:
        """Take names as they come out of the directory; call ``finish`` after the last."""
        self._names += disk_names
        self._hashes += map(names.name_hash, names.fold_all(disk_names))
        self.count += len(disk_names)
        if len(self._names) >= CHUNK:
            self.finish()

    def finish(self) -> None:
        """Make a chunk of the names that are in none yet."""
        if self._names:
            chunk = _Chunk(self._names, self._hashes)
            self._chunks.append(chunk)
            self.size += chunk.size
            self._names, self._hashes = [], []

    def add(self, disk_name: str, value: int) -> None:
        """Note that a name was, or may have been, added to the directory. ``value``: ``names.fold(disk_name).hash``."""
        self._removed.discard(disk_name)
        present = self._added.setdefault(value, [])
        if disk_name not in present:
            present.append(disk_name)
            self.size += len(disk_name) + _OVERHEAD
            if len(self._added) >= CHUNK:
                self._make_chunk()

    def _make_chunk(self) -> None:
        """Make a chunk of the added names."""
        listed = [(name, value) for value, present in self._added.items() for name in present]
        self.size -= sum(len(name) + _OVERHEAD for name, _ in listed)
        self._added.clear()
        chunk = _Chunk([name for name, _ in listed], [value for _, value in listed])
        self._chunks.append(chunk)
        self.size += chunk.size

    def remove(self, disk_name: str) -> None:
        """Note that a name is gone from the directory."""
        value = names.fold(disk_name).hash
        present = self._added.get(value, [])
        if disk_name in present:
            present.remove(disk_name)
            self.size -= len(disk_name) + _OVERHEAD
            if not present:
                del self._added[value]
        if disk_name not in self._removed:
            self._removed.add(disk_name)
            self.size += len(disk_name) + _OVERHEAD

    @property
    def outdated(self) -> bool:
        """Whether so many names are gone that reading the directory again takes less memory."""
        return len(self._removed) > max(CHUNK, self.count // 4)

    def _with_hash(self, value: int) -> Iterator[str]:
        for chunk in self._chunks:
            for name in chunk.find(value):
                if name not in self._removed:
                    yield name
        yield from self._added.get(value, ())

    def find(self, name: names.Folded) -> str | None:
        """Return the on-disk name that equals ``name`` when folded, else the one with ``name`` as its 8.3 name.

        Of several names the smallest is returned."""
        folded = name.text
        found = [entry for entry in self._with_hash(name.hash) if upcase(names.to_wire(entry)) == folded]
        if found:
            return min(found)
        if "~" not in folded:
            return None
        value = names.hash_in_short_name(folded) if names.may_be_short(folded) else None
        if value is not None:
            found = [entry for entry in self._with_hash(value) if names.short_name(names.to_wire(entry)) == folded]
        return min(found) if found else None
