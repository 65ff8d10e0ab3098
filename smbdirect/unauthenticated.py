"""Unauthenticated peers: what each of their sources holds, and which of them gives way when there are too many.

A source is an IPv4 address or an IPv6 /64: a host that has one address of a /64 usually has all of them. When a table
is full, the source that has most of it loses its oldest entry before a newcomer is refused. Peers that have
authenticated are in no such table.
"""

from __future__ import annotations

import functools
import ipaddress
import time
from collections.abc import Callable

GRACE = 5.0
"""Seconds that an entry is safe from newcomers of sources that have as much: a peer that is about to log on may finish.
"""

SMALL_MESSAGE = 8192
"""Bytes of a message up to which an unauthenticated peer needs no allowance."""

MEMORY_GRACE = 1.0
"""Seconds that a longer message is safe from newcomers whose source has as much: longer than it takes to arrive."""

MEMORY_LIMIT = 4 << 20
"""Bytes of their longer messages, all unauthenticated peers together."""


@functools.lru_cache(maxsize=4096)
def source_of(address: str) -> str:
    """Give the source that an address counts for. What is no address counts for itself."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            return str(ipaddress.IPv6Address(int(parsed) >> 64 << 64)) + "/64"
        parsed = parsed.ipv4_mapped
    return str(parsed)


class UnauthenticatedPeer:
    """One entry of a table: call ``leave`` when the peer is gone or has authenticated."""

    __slots__ = ("_drop", "_table", "entered", "size", "source")

    def __init__(
        self, table: UnauthenticatedPeers, source: str, size: int, drop: Callable[[], None], now: float
    ) -> None:
        self._table: UnauthenticatedPeers | None = table
        self._drop = drop
        self.source = source
        self.size = size
        self.entered = now

    def leave(self) -> None:
        """Make room. Idempotent."""
        table, self._table = self._table, None
        if table is not None:
            table.forget(self)

    def evict(self) -> None:
        """Leave, and have the owner end what the entry stands for."""
        self.leave()
        self._drop()


class UnauthenticatedPeers:
    """A table of bounded size. Sizes are in units of the table's own: connections, or bytes."""

    def __init__(
        self,
        limit: int,
        per_source: int = 0,
        grace: float = GRACE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``limit``: of all sources. ``per_source``: of each; 0: no limit of its own. ``grace``: seconds that an entry
        is safe from newcomers whose source has as much."""
        self.limit = limit
        self.per_source = per_source
        self.taken = 0
        self.evicted = 0
        """Entries that had to give way."""
        self.refused = 0
        """Newcomers without a place."""
        self._grace = grace
        self._clock = clock
        self._sources: dict[str, dict[UnauthenticatedPeer, None]] = {}
        """Entries of each source, the oldest first."""
        self._held: dict[str, int] = {}
        self._ranks: dict[int, dict[str, None]] = {}
        """Sources by what they hold, so that the greediest is found without a look at all of them."""
        self._most = 0
        """Not less than what any source holds."""

    def __len__(self) -> int:
        return sum(map(len, self._sources.values()))

    def held_by(self, address: str) -> int:
        """Give what the source of ``address`` has."""
        return self._held.get(source_of(address), 0)

    def enter(self, address: str, drop: Callable[[], None], size: int = 1) -> UnauthenticatedPeer | None:
        """Take a place for a peer at ``address``; None if there is none. ``drop`` is called, once and after the entry
        is gone, if the place is needed for somebody else."""
        source = source_of(address)
        now = self._clock()
        own = self._held.get(source, 0)
        if size > self.limit or (self.per_source and size > self.per_source):
            self.refused += 1
            return None
        while self.per_source and own + size > self.per_source:
            if not self._evict_from(source, now):
                self.refused += 1
                return None
            own = self._held.get(source, 0)
        while self.taken + size > self.limit:
            greediest = self._greediest()
            held = self._held[greediest]
            mine = self._held.get(source, 0) + size
            if not self._evict_from(greediest, now, at_once=greediest != source and held >= mine and held > size):
                self.refused += 1
                return None
        entry = UnauthenticatedPeer(self, source, size, drop, now)
        self._sources.setdefault(source, {})[entry] = None
        self._hold(source, size)
        return entry

    def _evict_from(self, source: str, now: float, at_once: bool = False) -> bool:
        """End the source's oldest entry, unless it is young and not ``at_once``."""
        oldest = next(iter(self._sources[source]), None) if source in self._sources else None
        if oldest is None or (not at_once and now - oldest.entered < self._grace):
            return False
        self.evicted += 1
        oldest.evict()
        return True

    def forget(self, entry: UnauthenticatedPeer) -> None:
        """Take an entry out; only its ``leave`` calls this."""
        entries = self._sources[entry.source]
        del entries[entry]
        if not entries:
            del self._sources[entry.source]
        self._hold(entry.source, -entry.size)

    def _hold(self, source: str, change: int) -> None:
        before = self._held.get(source, 0)
        after = before + change
        self.taken += change
        if before:
            rank = self._ranks[before]
            del rank[source]
            if not rank:
                del self._ranks[before]
        if after:
            self._held[source] = after
            self._ranks.setdefault(after, {})[source] = None
            self._most = max(self._most, after)
        else:
            del self._held[source]

    def _greediest(self) -> str:
        """Find the source that has most."""
        if self._most not in self._ranks:
            # Where sizes are connections the next lower rank is close; where they are bytes there are few ranks.
            self._most = max(self._ranks)
        return next(iter(self._ranks[self._most]))


class Allowance:
    """What one unauthenticated peer holds of the memory that all of them share."""

    __slots__ = ("_entry", "_table")

    def __init__(self, table: UnauthenticatedPeers) -> None:
        """``table``: of bytes."""
        self._table = table
        self._entry: UnauthenticatedPeer | None = None

    def take(self, address: str, size: int, evicted: Callable[[], None]) -> bool:
        """Replace what is held by ``size`` bytes for the peer at ``address``; False if it may not have them.
        ``evicted`` is called if others need the memory more than this peer's unfinished message."""
        if size <= SMALL_MESSAGE:
            return True
        self.give_back()
        self._entry = self._table.enter(address, evicted, size)
        return self._entry is not None

    def give_back(self) -> None:
        """Hold nothing any more. Idempotent."""
        entry, self._entry = self._entry, None
        if entry is not None:
            entry.leave()
