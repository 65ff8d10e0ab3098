"""Byte-range locks of one stream (MS-FSA 2.1.5.7, 2.1.5.8 and the conflict rule 2.1.4.10). No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

MAX_OFFSET = (1 << 64) - 1


@dataclass(slots=True, eq=False)
class Lock:
    owner: object
    """The open that holds it; locks of two opens of one client are different owners."""
    offset: int
    length: int
    exclusive: bool


@dataclass(slots=True, eq=False)
class Waiter:
    """A blocking lock that waits. ``on_granted`` is called once the lock is held."""

    lock: Lock
    on_granted: Callable[[], None]
    on_closed: Callable[[], None]
    """Called instead when the owner goes away."""


def valid_range(offset: int, length: int) -> bool:
    """False where the range ends beyond 2^64 - 1 (STATUS_INVALID_LOCK_RANGE)."""
    return length == 0 or offset + length - 1 <= MAX_OFFSET


def overlaps(offset1: int, length1: int, offset2: int, length2: int) -> bool:
    """An empty range overlaps only what holds bytes on both sides of it, hence never another empty one."""
    return offset1 <= offset2 + length2 - 1 and offset2 <= offset1 + length1 - 1


@dataclass(slots=True)
class LockTable:
    """``if table.locks`` is the data path's cheap test for "no locks at all"."""

    locks: list[Lock] = field(default_factory=list)
    waiters: list[Waiter] = field(default_factory=list)

    def conflicts(self, owner: object, offset: int, length: int, exclusive: bool) -> bool:
        """A new lock conflicts with what overlaps it, unless both are shared or a shared one is laid over one's own
        exclusive one."""
        return any(
            overlaps(offset, length, lock.offset, lock.length)
            and (exclusive or (lock.exclusive and lock.owner is not owner))
            for lock in self.locks
        )

    def acquire(self, owner: object, offset: int, length: int, exclusive: bool) -> bool:
        """Take the lock unless it conflicts."""
        if self.conflicts(owner, offset, length, exclusive):
            return False
        self.locks.append(Lock(owner, offset, length, exclusive))
        return True

    def wait(
        self,
        owner: object,
        offset: int,
        length: int,
        exclusive: bool,
        on_granted: Callable[[], None],
        on_closed: Callable[[], None],
    ) -> Waiter:
        """Queue a lock that could not be taken now. End it with ``cancel``."""
        waiter = Waiter(Lock(owner, offset, length, exclusive), on_granted, on_closed)
        self.waiters.append(waiter)
        return waiter

    def cancel(self, waiter: Waiter) -> bool:
        """True if it was still waiting."""
        if waiter in self.waiters:
            self.waiters.remove(waiter)
            return True
        return False

    def locks_of(self, owner: object) -> list[Lock]:
        return [lock for lock in self.locks if lock.owner is owner]

    def release(self, owner: object, offset: int, length: int) -> Lock | None:
        """Unlock exactly one lock of exactly this range; of several the exclusive one goes first.
        None if there is none."""
        found = None
        for lock in self.locks:
            if lock.owner is owner and lock.offset == offset and lock.length == length:
                if lock.exclusive:
                    found = lock
                    break
                found = found or lock
        if found is None:
            return None
        self.locks.remove(found)
        self.grant_waiters()
        return found

    def release_newest(self, owner: object, offset: int, length: int, exclusive: bool) -> None:
        """Undo an ``acquire`` of a request that failed further on."""
        for index in range(len(self.locks) - 1, -1, -1):
            lock = self.locks[index]
            if (lock.owner, lock.offset, lock.length, lock.exclusive) == (owner, offset, length, exclusive):
                del self.locks[index]
                break
        self.grant_waiters()

    def release_owner(self, owner: object) -> None:
        """The open is closed: its locks go, its waiters are told (``on_closed``)."""
        gone = [waiter for waiter in self.waiters if waiter.lock.owner is owner]
        if gone:
            self.waiters = [waiter for waiter in self.waiters if waiter.lock.owner is not owner]
        kept = [lock for lock in self.locks if lock.owner is not owner]
        released = len(kept) != len(self.locks)
        self.locks[:] = kept
        for waiter in gone:
            waiter.on_closed()
        if released:
            self.grant_waiters()

    def transfer(self, old: object, new: object) -> None:
        """Durable reconnect: the locks now belong to ``new``."""
        for lock in self.locks:
            if lock.owner is old:
                lock.owner = new

    def grant_waiters(self) -> None:
        """Give those who wait what has become free."""
        granted: list[Waiter] = []
        waiting: list[Waiter] = []
        for waiter in self.waiters:
            lock = waiter.lock
            if self.conflicts(lock.owner, lock.offset, lock.length, lock.exclusive):
                waiting.append(waiter)
            else:
                self.locks.append(lock)
                granted.append(waiter)
        self.waiters = waiting
        for waiter in granted:
            waiter.on_granted()

    def denies_read(self, owner: object, offset: int, length: int) -> bool:
        """Somebody else's exclusive lock covers part of it (MS-FSA 2.1.5.2). Reads of nothing never conflict."""
        return length > 0 and any(
            lock.exclusive and lock.owner is not owner and overlaps(offset, length, lock.offset, lock.length)
            for lock in self.locks
        )

    def denies_write(self, owner: object, offset: int, length: int) -> bool:
        """Anybody else's lock, or a shared one even of one's own (MS-FSA 2.1.5.3)."""
        return length > 0 and any(
            (lock.owner is not owner or not lock.exclusive) and overlaps(offset, length, lock.offset, lock.length)
            for lock in self.locks
        )
