"""Byte-range locks of one stream (MS-FSA 2.1.5.7, 2.1.5.8 and the conflict rule 2.1.4.10). No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from smb3server.files.range_index import RangeIndex

MAX_OFFSET = (1 << 64) - 1
_Exact = tuple[int, int, bool]
"""(offset, length, exclusive)."""


Owner = TypeVar("Owner")
"""The open that holds locks. Nothing is asked of it here."""


@dataclass(slots=True, eq=False)
class Lock(Generic[Owner]):
    owner: Owner
    """The open that holds it; locks of two opens of one client are different owners."""
    offset: int
    length: int
    exclusive: bool


@dataclass(slots=True, eq=False)
class Waiter(Generic[Owner]):
    """A blocking lock that waits. ``on_granted`` is called once the lock is held, in a turn of its own."""

    lock: Lock[Owner]
    on_granted: Callable[[], None]
    on_closed: Callable[[], None]
    """Called instead, in a turn of its own, when the owner goes away."""


def valid_range(offset: int, length: int) -> bool:
    """False where the range ends beyond 2^64 - 1 (STATUS_INVALID_LOCK_RANGE)."""
    return length == 0 or offset + length - 1 <= MAX_OFFSET


class LockTable(Generic[Owner]):
    """``if table.locks`` is the data path's cheap test for "no locks at all". A file may have very many locks of a
    client that means no good: nothing here but the end of their owner looks at all of them."""

    __slots__ = ("_by_owner", "_call_soon", "_count", "_exclusive", "_granted", "_shared", "locks", "waiters")

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], None],
        count: Callable[[Owner, int], None] = lambda owner, more: None,
    ) -> None:
        """``call_soon`` calls in a turn of its own. ``count`` is told of how many locks more, or less, an owner has."""
        self._call_soon = call_soon
        self._count = count
        self.locks: dict[Lock[Owner], None] = {}
        """In the order they were taken. To be changed by this class only."""
        self.waiters: list[Waiter[Owner]] = []
        self._granted: dict[Waiter[Owner], None] = {}
        """Those that hold their lock and do not know it yet."""
        self._exclusive: RangeIndex[Lock[Owner]] = RangeIndex()
        self._shared: RangeIndex[Lock[Owner]] = RangeIndex()
        self._by_owner: dict[Owner, dict[_Exact, list[Lock[Owner]]]] = {}

    def add(self, lock: Lock[Owner]) -> None:
        """Hold it, conflicts or not."""
        self.locks[lock] = None
        (self._exclusive if lock.exclusive else self._shared).add(lock)
        exact = (lock.offset, lock.length, lock.exclusive)
        self._by_owner.setdefault(lock.owner, {}).setdefault(exact, []).append(lock)
        self._count(lock.owner, 1)

    def _remove(self, owner: Owner, offset: int, length: int, exclusive: bool) -> Lock[Owner] | None:
        """The newest of exactly these."""
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
        return lock

    def conflicts(self, owner: Owner, offset: int, length: int, exclusive: bool) -> bool:
        """A new lock conflicts with what overlaps it, unless both are shared or a shared one is laid over one's own
        exclusive one."""
        if exclusive:
            return self._exclusive.overlapped(offset, length) or self._shared.overlapped(offset, length)
        return self._exclusive.overlapped(offset, length, owner)

    def acquire(self, owner: Owner, offset: int, length: int, exclusive: bool) -> bool:
        """Take the lock unless it conflicts."""
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
        """Queue a lock that could not be taken now. End it with ``cancel``."""
        waiter = Waiter(Lock(owner, offset, length, exclusive), on_granted, on_closed)
        self.waiters.append(waiter)
        return waiter

    def cancel(self, waiter: Waiter[Owner]) -> bool:
        """True if it was still waiting: then it is told of nothing, and has no lock."""
        if waiter in self.waiters:
            self.waiters.remove(waiter)
            return True
        if waiter in self._granted:
            del self._granted[waiter]
            lock = waiter.lock
            self.release_newest(lock.owner, lock.offset, lock.length, lock.exclusive)
            return True
        return False

    def locks_of(self, owner: Owner) -> list[Lock[Owner]]:
        return [lock for same in self._by_owner.get(owner, {}).values() for lock in same]

    def count_of(self, owner: Owner) -> int:
        """Locks held and waited for."""
        waiting = sum(waiter.lock.owner is owner for waiter in self.waiters)
        return waiting + sum(len(same) for same in self._by_owner.get(owner, {}).values())

    def release(self, owner: Owner, offset: int, length: int, grant: bool = True) -> Lock[Owner] | None:
        """Unlock exactly one lock of exactly this range; of several the exclusive one goes first.
        None if there is none. Without ``grant`` the caller calls ``grant_waiters`` when it has released everything."""
        found = self._remove(owner, offset, length, True) or self._remove(owner, offset, length, False)
        if found is not None and grant:
            self.grant_waiters()
        return found

    def release_newest(self, owner: Owner, offset: int, length: int, exclusive: bool) -> None:
        """Undo an ``acquire`` of a request that failed further on."""
        self._remove(owner, offset, length, exclusive)
        self.grant_waiters()

    def release_owner(self, owner: Owner) -> None:
        """The open is closed: its locks go, its waiters are told (``on_closed``)."""
        gone = [waiter for waiter in self.waiters if waiter.lock.owner is owner]
        if gone:
            self.waiters = [waiter for waiter in self.waiters if waiter.lock.owner is not owner]
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
        if locks:
            self.grant_waiters()

    def grant_waiters(self) -> None:
        """Give those who wait what has become free. They hold it when this returns, and are told soon."""
        waiting: list[Waiter[Owner]] = []
        for waiter in self.waiters:
            lock = waiter.lock
            if self.conflicts(lock.owner, lock.offset, lock.length, lock.exclusive):
                waiting.append(waiter)
            else:
                self.add(lock)
                self._granted[waiter] = None
                self._call_soon(partial(self._tell, waiter))
        self.waiters = waiting

    def _tell(self, waiter: Waiter[Owner]) -> None:
        """Its lock is held, unless the owner has given it up meanwhile: by ``cancel``, or by unlocking the range."""
        if waiter not in self._granted:
            return
        del self._granted[waiter]
        if waiter.lock in self.locks:
            waiter.on_granted()
        else:
            waiter.on_closed()

    def denies_read(self, owner: Owner, offset: int, length: int) -> bool:
        """Somebody else's exclusive lock covers part of it (MS-FSA 2.1.5.2). Reads of nothing never conflict."""
        return length > 0 and self._exclusive.overlapped(offset, length, owner)

    def denies_write(self, owner: Owner, offset: int, length: int) -> bool:
        """Anybody else's lock, or a shared one even of one's own (MS-FSA 2.1.5.3)."""
        return length > 0 and (
            self._exclusive.overlapped(offset, length, owner) or self._shared.overlapped(offset, length)
        )
