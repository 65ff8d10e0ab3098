"""A cache of parsed security descriptors and of the access they grant to tokens, with bounded memory.

Parsing a descriptor of 64 KiB takes milliseconds, and every CREATE needs the descriptor of the folder. Clients choose
the stored descriptors, so the cache is bounded by the memory of its entries, not by their number.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from smb3server.access.check import Token, granted_access
from smb3server.access.descriptor import Control, SecurityDescriptor, unpack

LIMIT = 16 << 20
"""Bytes of memory that all entries together may take."""
_PER_BYTE = 13
"""Bytes of memory for each packed byte: at most 12 for the parsed form (entries with the smallest SIDs), and 1 for the
key."""
_PER_ENTRY = 600
_PER_TOKEN = 120
"""Bytes of memory for an entry's answer for one token. The token itself is shared."""


class KnownDescriptor:
    """One stored descriptor. ``parsed`` is None if it is malformed, or in another program's format."""

    __slots__ = ("data", "granted", "has_dacl", "parsed")

    def __init__(self, data: bytes) -> None:
        self.data = data
        try:
            self.parsed: SecurityDescriptor | None = unpack(data)
        except ValueError:
            self.parsed = None
        self.has_dacl = self.parsed is not None and bool(self.parsed.control & Control.DACL_PRESENT)
        """Whether the descriptor has a DACL. A null DACL counts."""
        self.granted: dict[Token, int] = {}

    @property
    def size(self) -> int:
        """Memory that the entry takes, in bytes: an upper bound."""
        return _PER_ENTRY + _PER_BYTE * len(self.data) + _PER_TOKEN * len(self.granted)


class KnownDescriptors:
    """Parsed descriptors by their packed form; the least recently used are dropped first. Any thread may ask."""

    def __init__(self, limit: int = LIMIT) -> None:
        """Create an empty cache. ``limit`` is the memory that its entries may take together, in bytes."""
        self._limit = limit
        self._entries: OrderedDict[bytes, KnownDescriptor] = OrderedDict()
        """The most recently used entry is the last."""
        self._lock = threading.Lock()
        # Invariant (while nobody holds the lock): size is the sum of the sizes of all entries, and at most the limit.
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, data: bytes) -> KnownDescriptor:
        """Return the entry of a packed descriptor. Parses it if it is not in the cache."""
        with self._lock:
            known = self._entries.get(data)
            if known is not None:
                self._entries.move_to_end(data)
                return known
        made = KnownDescriptor(data)
        with self._lock:
            # Another thread may have been quicker.
            known = self._entries.setdefault(data, made)
            if known is made:
                self._charge(made.size)
        return known

    def granted(self, known: KnownDescriptor, token: Token) -> int:
        """Return the access that a descriptor gives to a token. Raises ``ValueError`` if the descriptor is
        malformed."""
        granted = known.granted.get(token)
        if granted is not None:
            return granted
        if known.parsed is None:
            raise ValueError("damaged security descriptor")
        granted = granted_access(known.parsed, token)
        with self._lock:
            is_new = token not in known.granted
            known.granted[token] = granted
            if is_new and self._entries.get(known.data) is known:
                self._charge(_PER_TOKEN)
        return granted

    def _charge(self, size: int) -> None:
        self.size += size
        while self.size > self._limit:
            self.size -= self._entries.popitem(last=False)[1].size
