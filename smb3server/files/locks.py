"""Byte-range locks of one stream, without I/O and without a clock. [MS-FSA 2.1.5.7, 2.1.5.8; conflicts: 2.1.4.10]"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

MAX_OFFSET = (1 << 64) - 1
CHUNK = 256
"""A chunk is split when it has more than twice as many ranges."""
_Key = tuple[int, int]
"""(offset, sequence number of the insertion)."""
AT_ONCE = 256
"""Waiting requests that are looked at in one turn."""
_Exact = tuple[int, int, bool]
"""(offset, length, exclusive)."""


Owner = TypeVar("Owner")
"""The open that holds locks. This module uses nothing of it."""


@dataclass(slots=True, eq=False)
class Lock(Generic[Owner]):
    """One byte-range lock. Offset and length are in bytes."""

    owner: Owner
    """The open that holds it. Two opens of one client are different owners."""
    offset: int
    length: int
    exclusive: bool


class _Chunk(Generic[Owner]):
    """Ranges that are neighbours in the order of their keys."""

    # Invariant: keys is sorted, and ranges[i] has keys[i].
    # Invariant: owners counts the ranges of each owner and has no zero counts.

    __slots__ = ("end", "keys", "owners", "ranges")

    def __init__(self, keys: list[_Key], ranges: list[Lock[Owner]]) -> None:
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

    def overlapping(self, first: int, last: int) -> list[Lock[Owner]]:
        return [entry for entry in self.ranges if entry.offset <= last and entry.offset + entry.length > first]


@dataclass(slots=True, eq=False)
class RangeIndex(Generic[Owner]):
    """An index of byte ranges, initially empty, that finds overlaps without a look at all ranges.

    The ranges are sorted by offset and split into chunks. Each chunk knows how far its ranges reach and who owns them.
    A look-up, an insertion or a removal costs about the square root of the number of ranges, for any choice of ranges
    by a client."""

    # Invariant: chunks are not empty and sorted by key; _firsts[i] is the first key of _chunks[i].
    _chunks: list[_Chunk[Owner]] = field(default_factory=list)
    _firsts: list[_Key] = field(default_factory=list)
    _keys: dict[Lock[Owner], _Key] = field(default_factory=dict)
    _next: int = 0

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def first_offset(self) -> int | None:
        """The lowest offset of a range; None if there is none."""
        return self._firsts[0][0] if self._firsts else None

    def add(self, entry: Lock[Owner]) -> None:
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

    def remove(self, entry: Lock[Owner]) -> None:
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

    def overlapping(self, offset: int, length: int) -> list[Lock[Owner]]:
        """Return the ranges that overlap the given one, as ``overlapped`` has it."""
        last = offset + length - 1
        found: list[Lock[Owner]] = []
        for first, chunk in zip(self._firsts, self._chunks, strict=True):
            if first[0] > last:
                break
            if chunk.end >= offset:
                found += chunk.overlapping(offset, last)
        return found


@dataclass(slots=True, eq=False)
class Waiter(Generic[Owner]):
    """A blocking lock request that waits. Unless it is cancelled, one callback is called, in a turn of its own."""

    lock: Lock[Owner]
    number: int
    """Requests that began to wait earlier have lower numbers."""
    on_granted: Callable[[], None]
    """Called when the lock is held."""
    on_closed: Callable[[], None]
    """Called when the owner is closed, or has unlocked the range."""


def valid_range(offset: int, length: int) -> bool:
    """Return whether the range ends at or below 2^64 - 1. If not, the status is STATUS_INVALID_LOCK_RANGE."""
    return length == 0 or offset + length - 1 <= MAX_OFFSET


_NO_RANGES: RangeIndex[Any] = RangeIndex()
"""Has no ranges, and never gets any."""


@dataclass(slots=True, eq=False)
class LockTable(Generic[Owner]):
    """The locks of one stream, and the requests that wait for locks.

    ``if table.locks`` is the cheap test of the data path for "no locks at all". A malicious client may hold very many
    locks, so only operations on all locks of one owner iterate over locks."""

    _call_soon: Callable[[Callable[[], None]], None]
    """Calls a callback in a turn of its own."""
    _count: Callable[[Owner, int], None] = lambda owner, more: None
    """Called with the owner and the change of the number of its locks."""
    locks: dict[Lock[Owner], None] = field(default_factory=dict)
    """In the order in which they were taken. Only this class changes it."""
    # Invariant: a lock of locks is in exactly one of _exclusive and _shared, and in _by_owner.
    waiters: dict[Lock[Owner], Waiter[Owner]] = field(default_factory=dict)
    """Requests whose lock is not held yet, oldest first. Only this class changes it."""
    # Invariant: a lock of waiters is in _wanted, and in _waiting under its owner.
    # An index of its own is made for the first range: most files are opened and closed without any.
    _wanted: RangeIndex[Owner] = _NO_RANGES
    _waiting: dict[Owner, dict[Lock[Owner], None]] = field(default_factory=dict)
    _number: int = 0
    _freed: list[Lock[Owner]] = field(default_factory=list)
    """Locks that were released, and whose ranges somebody may wait for."""
    _granted: dict[Waiter[Owner], None] = field(default_factory=dict)
    """Requests that hold their lock and have not been notified yet. None of them is in ``waiters``."""
    _exclusive: RangeIndex[Owner] = _NO_RANGES
    _shared: RangeIndex[Owner] = _NO_RANGES
    _by_owner: dict[Owner, dict[_Exact, list[Lock[Owner]]]] = field(default_factory=dict)

    def add(self, lock: Lock[Owner]) -> None:
        """Add a lock without a check for conflicts."""
        self.locks[lock] = None
        if lock.exclusive:
            if self._exclusive is _NO_RANGES:
                self._exclusive = RangeIndex()
            self._exclusive.add(lock)
        else:
            if self._shared is _NO_RANGES:
                self._shared = RangeIndex()
            self._shared.add(lock)
        exact = (lock.offset, lock.length, lock.exclusive)
        self._by_owner.setdefault(lock.owner, {}).setdefault(exact, []).append(lock)
        self._count(lock.owner, 1)

    def _remove(self, owner: Owner, offset: int, length: int, exclusive: bool) -> Lock[Owner] | None:
        """Remove and return the newest lock with exactly these properties, or return None."""
        owned = self._by_owner.get(owner)
        same = owned.get((offset, length, exclusive)) if owned is not None else None
        if owned is None or same is None:
            return None
        lock = same.pop()
        if not same:
            del owned[offset, length, exclusive]
        if not owned:
            del self._by_owner[owner]
        del self.locks[lock]
        (self._exclusive if exclusive else self._shared).remove(lock)
        self._count(owner, -1)
        if self.waiters:
            self._freed.append(lock)
        return lock

    def conflicts(self, owner: Owner, offset: int, length: int, exclusive: bool) -> bool:
        """Return whether a new lock conflicts with one that is held. [MS-FSA 2.1.4.10]

        Overlapping locks conflict unless both are shared, or the new one is shared and the held one has the same
        owner."""
        if exclusive:
            return self._exclusive.overlapped(offset, length) or self._shared.overlapped(offset, length)
        return self._exclusive.overlapped(offset, length, owner)

    def acquire(self, owner: Owner, offset: int, length: int, exclusive: bool) -> bool:
        """Take the lock unless it conflicts. Return whether it was taken."""
        if self.conflicts(owner, offset, length, exclusive):
            return False
        self.add(Lock(owner, offset, length, exclusive))
        return True

    def wait(
        self,
        owner: Owner,
        offset: int,
        length: int,
        exclusive: bool,
        on_granted: Callable[[], None],
        on_closed: Callable[[], None],
    ) -> Waiter[Owner]:
        """Queue a lock that could not be taken now. ``cancel`` withdraws it."""
        self._number += 1
        waiter = Waiter(Lock(owner, offset, length, exclusive), self._number, on_granted, on_closed)
        self.waiters[waiter.lock] = waiter
        if self._wanted is _NO_RANGES:
            self._wanted = RangeIndex()
        self._wanted.add(waiter.lock)
        self._waiting.setdefault(owner, {})[waiter.lock] = None
        return waiter

    def _forget(self, lock: Lock[Owner]) -> Waiter[Owner]:
        """Remove a waiting request."""
        self._wanted.remove(lock)
        waiting = self._waiting[lock.owner]
        del waiting[lock]
        if not waiting:
            del self._waiting[lock.owner]
        return self.waiters.pop(lock)

    def cancel(self, waiter: Waiter[Owner]) -> bool:
        """Withdraw a waiting request. Return False if it has already been notified.

        On True it does not hold the lock, and no callback will be called."""
        if waiter.lock in self.waiters:
            self._forget(waiter.lock)
            return True
        if waiter in self._granted:
            del self._granted[waiter]
            lock = waiter.lock
            self.release_newest(lock.owner, lock.offset, lock.length, lock.exclusive)
            return True
        return False

    def any_below(self, offset: int) -> bool:
        """Return whether a lock of any owner begins below ``offset``. [MS-FSA 2.1.5.18]"""
        return any(
            index.first_offset is not None and index.first_offset < offset for index in (self._exclusive, self._shared)
        )

    def holds_any(self, owner: Owner) -> bool:
        """Return whether ``owner`` holds a lock."""
        return owner in self._by_owner

    def locks_of(self, owner: Owner) -> list[Lock[Owner]]:
        """Return all locks that ``owner`` holds."""
        return [lock for same in self._by_owner.get(owner, {}).values() for lock in same]

    def count_of(self, owner: Owner) -> int:
        """Return the number of locks that ``owner`` holds or waits for."""
        return len(self._waiting.get(owner, ())) + sum(len(same) for same in self._by_owner.get(owner, {}).values())

    def release(self, owner: Owner, offset: int, length: int, grant: bool = True) -> Lock[Owner] | None:
        """Release and return one lock of exactly this range, or return None. An exclusive lock is released first.

        With ``grant`` false the caller must call ``grant_waiters`` when it has released all its locks."""
        released = self._remove(owner, offset, length, True) or self._remove(owner, offset, length, False)
        if released is not None and grant:
            self.grant_waiters()
        return released

    def release_newest(self, owner: Owner, offset: int, length: int, exclusive: bool, grant: bool = True) -> None:
        """Undo an ``acquire`` of a request that failed later. ``grant``: as for ``release``."""
        self._remove(owner, offset, length, exclusive)
        if grant:
            self.grant_waiters()

    def release_owner(self, owner: Owner) -> None:
        """Release all locks of an open that is closed, and end its waiting requests with ``on_closed``."""
        if not (self.locks or self.waiters or self._granted):
            return
        gone = [self._forget(lock) for lock in list(self._waiting.get(owner, ()))]
        for waiter in [waiter for waiter in self._granted if waiter.lock.owner is owner]:
            del self._granted[waiter]
            gone.append(waiter)
        locks = self.locks_of(owner)
        for lock in locks:
            del self.locks[lock]
            (self._exclusive if lock.exclusive else self._shared).remove(lock)
        self._by_owner.pop(owner, None)
        self._count(owner, -len(locks))
        for waiter in gone:
            self._call_soon(waiter.on_closed)
        if locks and self.waiters:
            self._freed += locks
            self.grant_waiters()

    def grant_waiters(self) -> None:
        """Grant the waiting locks that no longer conflict, oldest first, where locks were released.

        They are held on return, except for those beyond the first ``AT_ONCE`` that come in later turns. Their requests
        are notified in a later turn."""
        freed, self._freed = self._freed, []
        found: dict[Lock[Owner], None] = {}
        for lock in freed:
            if len(found) == len(self.waiters):
                break
            found.update(dict.fromkeys(self._wanted.overlapping(lock.offset, lock.length)))
        self._grant(sorted(found, key=lambda lock: self.waiters[lock].number))

    def retry(self, waiter: Waiter[Owner]) -> None:
        """Grant a waiting lock if it no longer conflicts, whether or not a lock was released."""
        if waiter.lock in self.waiters:
            self._grant([waiter.lock])

    def _grant(self, candidates: list[Lock[Owner]]) -> None:
        for lock in candidates[:AT_ONCE]:
            if lock in self.waiters and not self.conflicts(lock.owner, lock.offset, lock.length, lock.exclusive):
                waiter = self._forget(lock)
                self.add(lock)
                self._granted[waiter] = None
                self._call_soon(partial(self._notify_granted, waiter))
        if len(candidates) > AT_ONCE:
            self._call_soon(partial(self._grant, candidates[AT_ONCE:]))

    def _notify_granted(self, waiter: Waiter[Owner]) -> None:
        """Notify a granted request. The owner may have given the lock up meanwhile by ``cancel`` or by an unlock."""
        if waiter not in self._granted:
            return
        del self._granted[waiter]
        if waiter.lock in self.locks:
            waiter.on_granted()
        else:
            waiter.on_closed()

    def denies_read(self, owner: Owner, offset: int, length: int) -> bool:
        """Return whether an exclusive lock of another owner overlaps the range, if it is not empty. [MS-FSA 2.1.5.2]"""
        return length > 0 and self._exclusive.overlapped(offset, length, owner)

    def denies_write(self, owner: Owner, offset: int, length: int) -> bool:
        """Return whether a lock of another owner or a shared lock of any owner overlaps the range. [MS-FSA 2.1.5.3]"""
        return length > 0 and (
            self._exclusive.overlapped(offset, length, owner) or self._shared.overlapped(offset, length)
        )
