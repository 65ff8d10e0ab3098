"""Stored descriptors that were asked about lately: parsed, with what they grant to whom, in bounded memory.

Parsing a descriptor of 64 KiB takes milliseconds, and the folder above is asked at every CREATE. Clients choose what is
stored, so entries are dropped by the memory that they take, not by their number.
"""

from __future__ import annotations

from collections import OrderedDict

from smb3server.access.check import Token, granted_access
from smb3server.access.descriptor import Control, SecurityDescriptor, unpack

LIMIT = 16 << 20
"""Bytes that all entries may take."""
_PER_BYTE = 13
"""Bytes of memory for a packed byte, parsed: 12 at most (entries with the smallest SIDs), and the key itself."""
_PER_ENTRY = 600
_PER_TOKEN = 120
"""Bytes of an entry's answer for one token; the token itself is shared."""


class KnownDescriptor:
    """One stored descriptor. ``parsed`` is None if it is damaged, or another program's."""

    __slots__ = ("data", "granted", "has_dacl", "parsed")

    def __init__(self, data: bytes) -> None:
        self.data = data
        try:
            self.parsed: SecurityDescriptor | None = unpack(data)
        except ValueError:
            self.parsed = None
        self.has_dacl = self.parsed is not None and bool(self.parsed.control & Control.DACL_PRESENT)
        """Whether it says who may do what, be it by a null DACL."""
        self.granted: dict[Token, int] = {}

    @property
    def size(self) -> int:
        """Bytes of memory that it takes, an upper bound."""
        return _PER_ENTRY + _PER_BYTE * len(self.data) + _PER_TOKEN * len(self.granted)


class KnownDescriptors:
    """Descriptors by their packed form. Invariant: ``size`` is the sum of the entries' sizes and at most ``limit``."""

    def __init__(self, limit: int = LIMIT) -> None:
        """``limit`` is the memory that they may take together, in bytes."""
        self._limit = limit
        self._entries: OrderedDict[bytes, KnownDescriptor] = OrderedDict()
        """The latest asked about is the last."""
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, data: bytes) -> KnownDescriptor:
        """Return a descriptor parsed, or a note that it cannot be."""
        known = self._entries.get(data)
        if known is not None:
            self._entries.move_to_end(data)
            return known
        known = KnownDescriptor(data)
        self._entries[data] = known
        self._charge(known.size)
        return known

    def granted(self, known: KnownDescriptor, token: Token) -> int:
        """Return what a descriptor that could be parsed gives to a token."""
        granted = known.granted.get(token)
        if granted is not None:
            return granted
        if known.parsed is None:
            raise ValueError("damaged security descriptor")
        granted = known.granted[token] = granted_access(known.parsed, token)
        if self._entries.get(known.data) is known:
            self._charge(_PER_TOKEN)
        return granted

    def _charge(self, size: int) -> None:
        self.size += size
        while self.size > self._limit:
            self.size -= self._entries.popitem(last=False)[1].size
