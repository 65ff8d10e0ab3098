"""Tables of unauthenticated peers: what each of their sources holds, and which of them is evicted from a full table.

A source is an IPv4 address or an IPv6 /64: a host that has one address of a /64 usually has all of them. When a table
is full, the source that holds most of it loses its oldest entry before a newcomer is refused. Peers that have
authenticated are in none of these tables.
"""

from __future__ import annotations

import functools
import ipaddress
import time
from collections.abc import Callable

GRACE = 5.0
"""Seconds during which a newcomer whose source holds as much cannot evict an entry: a peer may finish its logon."""

SMALL_MESSAGE = 8192
"""An unauthenticated peer needs no allowance for a message of up to this many bytes."""

MEMORY_GRACE = 1.0
"""Seconds during which a newcomer whose source holds as much cannot evict a longer message: more than its arrival
takes."""

MEMORY_LIMIT = 4 << 20
"""Most bytes that the longer messages of all unauthenticated peers may take together."""


@functools.lru_cache(maxsize=4096)
def source_of(address: str) -> str:
    """Return the source to which ``address`` belongs. A string that is not an IP address is a source of its own."""
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
    """One entry of a table. Call ``leave`` when the peer has disconnected or authenticated."""

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
        """Remove the entry from its table. Idempotent."""
        table, self._table = self._table, None
        if table is not None:
            table.forget(self)

    def evict(self) -> None:
        """Leave, and call the owner's ``drop``."""
        self.leave()
        self._drop()


class UnauthenticatedPeers:
    """A table of bounded size. The unit of its sizes is connections or bytes."""

    def __init__(
        self, limit: int, per_source: int = 0, grace: float = GRACE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``limit`` applies to all sources together, ``per_source`` to each (0 means that there is no such limit). For
        ``grace`` seconds a newcomer whose source holds as much cannot evict an entry."""
        self.limit = limit
        self.per_source = per_source
        # Invariant: taken is the sum of the sizes of all entries and the sum of _held.values(); at most limit.
        self.taken = 0
        self.evicted = 0
        """How many entries were evicted."""
        self.refused = 0
        """How many newcomers were refused."""
        self._grace = grace
        self._clock = clock
        self._sources: dict[str, dict[UnauthenticatedPeer, None]] = {}
        """Entries of each source, the oldest first. Invariant: no source without entries is in it."""
        self._held: dict[str, int] = {}
        """What each source holds. Invariant: every value is positive."""
        self._ranks: dict[int, dict[str, None]] = {}
        """Sources by the size that they hold: finds the source that holds most without looking at all of them."""
        self._most = 0
        """Invariant: no source holds more than this."""

    def __len__(self) -> int:
        return sum(map(len, self._sources.values()))

    def held_by(self, address: str) -> int:
        """Return what the source of ``address`` holds."""
        return self._held.get(source_of(address), 0)

    def enter(self, address: str, drop: Callable[[], None], size: int = 1) -> UnauthenticatedPeer | None:
        """Add an entry for a peer at ``address``; return None if there is no room. ``drop`` is called once, after the
        entry was removed, if the entry is evicted."""
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
        """Evict the source's oldest entry. Return False if there is none, or if it is in its grace period and
        ``at_once`` is not set."""
        oldest = next(iter(self._sources[source]), None) if source in self._sources else None
        if oldest is None or (not at_once and now - oldest.entered < self._grace):
            return False
        self.evicted += 1
        oldest.evict()
        return True

    def forget(self, entry: UnauthenticatedPeer) -> None:
        """Remove an entry; only its ``leave`` calls this."""
        entries = self._sources[entry.source]
        del entries[entry]
        if not entries:
            del self._sources[entry.source]
        self._hold(entry.source, -entry.size)

    def _hold(self, source: str, change: int) -> None:
        """Add ``change`` to what the source holds, and move it to its new rank."""
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
        """Return the source that holds most."""
        if self._most not in self._ranks:
            # In a table of connections the next lower rank is close; in a table of bytes there are few ranks.
            self._most = max(self._ranks)
        return next(iter(self._ranks[self._most]))


class Allowance:
    """The share of one unauthenticated peer in the memory that all of them may use together."""

    __slots__ = ("_entry", "_table")

    def __init__(self, table: UnauthenticatedPeers) -> None:
        """Hold nothing yet. The sizes in ``table`` are bytes."""
        self._table = table
        self._entry: UnauthenticatedPeer | None = None

    def take(self, address: str, size: int, evicted: Callable[[], None]) -> bool:
        """Replace the held share by ``size`` bytes for the peer at ``address``; return False if they are refused.
        ``evicted`` is called if the memory of this peer's unfinished message is needed for another peer."""
        if size <= SMALL_MESSAGE:
            return True
        self.give_back()
        self._entry = self._table.enter(address, evicted, size)
        return self._entry is not None

    def give_back(self) -> None:
        """Give up the held share. Idempotent."""
        entry, self._entry = self._entry, None
        if entry is not None:
            entry.leave()
