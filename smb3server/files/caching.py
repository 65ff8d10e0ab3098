"""Oplocks and leases of one stream as a state machine. [MS-SMB2 3.3.1.4, 3.3.4.6, 3.3.4.7; MS-FSA 2.1.4.12, 2.1.5.18]

Both grant caching rights. An oplock belongs to one open, a lease to all opens that name its key. This module does no
I/O and has no clock: notifications and timers go through ``Breaks``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from smb3server.wire.oplock_break import LeaseState, OplockLevel

NONE, READ, HANDLE, WRITE = (int(LeaseState.NONE), int(LeaseState.READ), int(LeaseState.HANDLE), int(LeaseState.WRITE))
VALID_LEASES = frozenset([READ, READ | HANDLE, READ | WRITE, READ | HANDLE | WRITE])
BREAK_TIMEOUT = 35.0
"""Seconds that a client has to acknowledge a break. [MS-SMB2 3.3.2.1]"""

LEVEL_STATES: dict[int, int] = {
    OplockLevel.NONE: NONE,
    OplockLevel.II: READ,
    OplockLevel.EXCLUSIVE: READ | WRITE,
    OplockLevel.BATCH: READ | WRITE | HANDLE,
}


Owner = TypeVar("Owner")
"""The open that holds an oplock, or one of those that share a lease. This module uses nothing of it."""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None: ...


class Breaks(Protocol[Owner]):
    """The timers and connections that the state machine uses."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` after ``delay`` seconds."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in a turn of its own, so that an exception in it does not affect the caller."""

    def notify_lease(self, lease: Lease[Owner], current: int, new: int, ack_required: bool) -> bool | None:
        """Send a lease break notification. Return True if it was sent and False if no connection could take it.

        None means that the client is disconnected but may come back. Call ``Holder.resend`` when it does."""

    def notify_oplock(self, oplock: Oplock[Owner], level: int) -> bool | None:
        """Send an oplock break notification. Return the same values as ``notify_lease``."""

    def changed(self, holder: Holder[Owner]) -> None:
        """Record that the holder's state, or its break, has changed."""


class Loan(Protocol):
    """The data of a stream, lent to a client that reads and writes it by RDMA without requests. It stands on the rights
    of one holder."""

    @property
    def holder(self) -> object: ...

    needs: int
    """The rights without which it ends."""

    def end(self, why: str) -> None:
        """Let the client touch nothing any more from the return on, and remove this from ``Caching.loans``."""


class Holder(Generic[Owner]):
    """Caching rights of one open, or of the opens that share a lease."""

    __slots__ = ("breaking", "caching", "required", "requested", "state", "timer")

    # Invariant: requested is a subset of state.
    # Invariant: unless breaking, state == requested == required, and timer is None.
    # Invariant: a holder with any right left, or breaking, is in caching.holders; no other is.

    def __init__(self, caching: Caching[Owner], state: int) -> None:
        self.caching = caching
        self.state = state
        """Rights that the client has now. During a break it keeps them until it acknowledges."""
        self.breaking = False
        """A notification that requires an acknowledgment was sent, or waits for the client to come back."""
        self.requested = state
        """Rights that the client may keep according to the last notification."""
        self.required = state
        """Rights that the client may keep in the end: fewer than ``requested`` if another break began during this
        one."""
        self.timer: Timer | None = None
        """Runs while a delivered notification waits for its acknowledgment. None during a break means that the client
        is disconnected."""

    def _ack_needed(self) -> bool:
        """Return whether a break from the current state requires an acknowledgment."""
        raise NotImplementedError

    def _limit(self, state: int) -> int:
        """Return the highest state at or below ``state`` that this kind of holder can have."""
        raise NotImplementedError

    def _notify(self, current: int, new: int, ack_required: bool) -> bool | None:
        raise NotImplementedError

    def _count_break(self, count: int) -> None:
        """Count new breaks in Lease.Epoch. The further steps of a break are not counted."""

    def lower(self, to: int) -> None:
        """Start a break to ``to``. During a break, take the other rights away in its next step."""
        to = self._limit(self.state & to)
        if self.caching.loans:
            self.caching.end_loans("its caching rights are broken", self, to)
        if self.breaking:
            self.required &= to
        elif self.state & ~to:
            self.required = to
            self._start(to)

    def _start(self, to: int, further: bool = False) -> bool:
        """Notify the client. Return whether the break now waits for its acknowledgment.

        ``further`` marks the next step of a break of which the last step was acknowledged."""
        current = self.state
        ack = self._ack_needed()
        self.requested = to
        self.breaking = ack
        if not ack:
            self.state = to
        delivered = self._notify(current, to, ack) if further else self._announce(current, to, ack)
        self.caching.breaks.changed(self)
        if ack:
            self._wait_for_ack(delivered)
        else:
            self.caching.prune()
        return self.breaking

    def _announce(self, current: int, to: int, ack: bool) -> bool | None:
        """Notify the client of a new break. It is counted when it is sent: a client that comes back is first answered
        with the epoch that it knows. [MS-SMB2 3.3.4.7]"""
        self._count_break(1)
        delivered = self._notify(current, to, ack)
        if delivered is None:
            self._count_break(-1)
        return delivered

    def _wait_for_ack(self, delivered: bool | None) -> None:
        """Start the timer if the notification was delivered. Take all rights from a client that cannot be notified and
        will not come back. [MS-SMB2 3.3.4.6, 3.3.4.7]"""
        if delivered:
            self.timer = self.caching.breaks.call_later(BREAK_TIMEOUT, self.time_out)
        elif delivered is False and self.breaking:
            self.end_break(NONE)

    def resend(self) -> None:
        """Notify a client that has reconnected of the break that began in its absence. [MS-SMB2 3.3.5.9.12]"""
        if self.breaking and self.timer is None:
            self._wait_for_ack(self._announce(self.state, self.requested, True))

    def acknowledge(self, state: int) -> bool:
        """Take the client's acknowledgment: it keeps ``state``. Return False, and change nothing, if no break waits for
        one or ``state`` is more than the notification allowed."""
        if not self.breaking or state & ~self.requested:
            return False
        if state & ~self.required:
            self._stop_timer()
            self.state = state
            # On the way from write or handle caching to nothing, Windows stops at read caching.
            step = self.required | (READ if state & (HANDLE | WRITE) and self.required == NONE else NONE)
            if not self._start(self._limit(state & step), further=True):
                self.caching.finished()
            return True
        self.end_break(state)
        return True

    def time_out(self) -> None:
        """Take all rights away because no acknowledgment came in time. [MS-SMB2 3.3.6.1, 3.3.6.5]"""
        if self.breaking:
            self.end_break(NONE)

    def end_break(self, state: int) -> None:
        """End the break with ``state`` and wake the operations that wait for it."""
        if self.caching.loans:
            self.caching.end_loans("its caching rights are given up", self, state)
        self._stop_timer()
        self.breaking = False
        self.state = self.requested = self.required = state
        self.caching.breaks.changed(self)
        self.caching.prune()
        self.caching.finished()

    def _stop_timer(self) -> None:
        timer, self.timer = self.timer, None
        if timer is not None:
            timer.cancel()


class Oplock(Holder[Owner]):
    """An oplock of one open: Open.OplockLevel and Open.OplockState. [MS-SMB2 3.3.1.10]"""

    __slots__ = ("level", "level2", "open")

    def __init__(self, caching: Caching[Owner], owner: Owner, level: int) -> None:
        super().__init__(caching, LEVEL_STATES[level])
        self.open = owner
        self.level = level
        self.level2 = True
        """Whether it may be broken to level II rather than to none."""

    def _ack_needed(self) -> bool:
        return bool(self.state & WRITE)

    def _limit(self, state: int) -> int:
        return state & READ if self.level2 else NONE

    def _notify(self, current: int, new: int, ack_required: bool) -> bool | None:
        if not ack_required:
            self.level = OplockLevel.NONE
        return self.caching.breaks.notify_oplock(self, OplockLevel.II if new & READ else OplockLevel.NONE)

    def end_break(self, state: int) -> None:
        self.level = OplockLevel.II if state & READ else OplockLevel.NONE
        super().end_break(state)


class Lease(Holder[Owner]):
    """A lease of one client on one stream. ``opens`` are the opens that named its key. [MS-SMB2 3.3.1.12]"""

    __slots__ = ("client_guid", "directory", "epoch", "key", "opens", "parent_key", "version")

    def __init__(self, caching: Caching[Owner], client_guid: bytes, key: bytes, version: int) -> None:
        super().__init__(caching, NONE)
        self.client_guid = client_guid
        self.key = key
        self.version = version
        self.directory = False
        self.epoch = 0
        self.parent_key: bytes | None = None
        self.opens: list[Owner] = []

    def _ack_needed(self) -> bool:
        return bool(self.state & (WRITE | HANDLE))

    def _limit(self, state: int) -> int:
        return state if state & READ else NONE

    def _count_break(self, count: int) -> None:
        if self.version == 2:
            self.epoch = (self.epoch + count) & 0xFFFF

    def _notify(self, current: int, new: int, ack_required: bool) -> bool | None:
        return self.caching.breaks.notify_lease(self, current, new, ack_required)


def _goes_with_write(holder: Holder[Owner], own: Holder[Owner] | None) -> bool:
    """Return whether a write by the holder ``own`` ends what ``holder`` caches: see ``Caching.break_for_write``."""
    return holder is not own or (isinstance(holder, Oplock) and not holder.state & WRITE)


class Caching(Generic[Owner]):
    """The oplocks and leases of one stream, and the operations that wait for breaks of them."""

    __slots__ = ("_awaited_arrivals", "arriving", "breaks", "holders", "loans", "waiters")

    def __init__(self, breaks: Breaks[Owner]) -> None:
        self.breaks = breaks
        self.holders: list[Holder[Owner]] = []
        """Holders that have any right left, or are breaking."""
        self.waiters: list[Callable[[], None]] = []
        """Called when a break ends."""
        self.loans: list[Loan] = []
        """What is lent. Whoever is about to let others rely on the stream ends it first: ``end_loans``."""
        # Invariant: the holder of each has the rights that it needs, and no break of them has begun.
        self.arriving: set[object] = set()
        """Received writes whose data has not arrived yet. Add with ``arrives`` or here, remove with ``arrived``."""
        self._awaited_arrivals: list[tuple[set[object], Callable[[], None]]] = []
        """Writes that are awaited, and the callback for when all of them have arrived."""
        # Invariant: each set in _awaited_arrivals is a non-empty subset of arriving.

    def arrives(self, write: object) -> None:
        """Note a received write whose data comes by RDMA Read. ``arrived`` must follow."""
        self.arriving.add(write)

    def arrived(self, write: object) -> None:
        """Note that the data of ``write`` is stored, or that the write failed."""
        self.arriving.discard(write)
        if self._awaited_arrivals:
            for awaited, callback in self._awaited_arrivals[:]:
                awaited.discard(write)
                if not awaited:
                    self._awaited_arrivals.remove((awaited, callback))
                    self.breaks.call_soon(callback)

    def after_arrivals(self, callback: Callable[[], None]) -> bool:
        """Call ``callback`` once, in a turn of its own, when the writes that are arriving now have arrived.

        Return False, without any call, if no write is arriving."""
        if not self.arriving:
            return False
        self._awaited_arrivals.append((set(self.arriving), callback))
        return True

    def others(self, own: Holder[Owner] | None) -> Iterable[Holder[Owner]]:
        """Return all holders except ``own``."""
        return [holder for holder in self.holders if holder is not own]

    def add(self, holder: Holder[Owner]) -> None:
        """Add a holder unless it is there already or has no rights."""
        if holder not in self.holders and (holder.state or holder.breaking):
            self.holders.append(holder)

    def end_loans(self, why: str, holder: Holder[Owner] | None = None, left: int = NONE) -> None:
        """End all loans; with ``holder`` those that need more than ``left`` of its rights. ``why`` is for the log."""
        for loan in self.loans[:]:
            if holder is None or (loan.holder is holder and loan.needs & ~left):
                loan.end(why)

    def drop(self, holder: Holder[Owner]) -> None:
        """Remove a holder whose last open is closed, and end its break, if there is one."""
        if self.loans:
            self.end_loans("its caching rights end", holder)
        if holder in self.holders:
            self.holders.remove(holder)
        was_breaking = holder.breaking
        holder.breaking = False
        holder.state = holder.requested = holder.required = NONE
        holder._stop_timer()
        if was_breaking:
            self.finished()

    def prune(self) -> None:
        """Remove the holders that have lost all rights."""
        self.holders = [holder for holder in self.holders if holder.state or holder.breaking]

    def wait(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, in a turn of its own, when a break of this stream ends."""
        self.waiters.append(callback)

    def unwait(self, callback: Callable[[], None]) -> None:
        """Undo ``wait``. Do nothing if ``callback`` has already been called."""
        if callback in self.waiters:
            self.waiters.remove(callback)

    def finished(self) -> None:
        """Call all waiters, as a break has ended."""
        waiters, self.waiters = self.waiters, []
        for callback in waiters:
            self.breaks.call_soon(callback)

    def break_for_open(
        self,
        own: Holder[Owner] | None,
        overwrite: bool,
        sharing_violation: bool,
        first: bool,
        spare_leases: bool = False,
    ) -> bool:
        """Break the rights that conflict with a new open. Return whether the open must wait for an acknowledgment.

        Write caching is always broken. Handle caching is broken only if that may resolve a sharing violation. An open
        that overwrites the file breaks everything. With ``spare_leases`` the open breaks oplocks only.
        """
        mask = HANDLE if sharing_violation else WRITE
        wait = False
        for holder in self.others(own):
            if spare_leases and isinstance(holder, Lease):
                continue
            state = holder.state
            to = NONE if overwrite and not sharing_violation else state & ~mask
            limited = holder._limit(to)
            if not state & ~to:
                wait = wait or holder.breaking
                continue
            was_breaking = holder.breaking
            holder.lower(limited)
            if holder.breaking and (state & mask or (was_breaking and not first)):
                wait = True
        return wait

    def is_broken_by_write(self, own: Holder[Owner] | None) -> bool:
        """Return whether ``break_for_write`` has anything to do."""
        return any(_goes_with_write(holder, own) for holder in self.holders)

    def break_for_write(self, own: Holder[Owner] | None) -> None:
        """Break all rights of others because of a write, a truncation or a byte-range lock. Do not wait for them.

        The level II oplock of the open that writes is broken, too, as an oplock has no key to recognize its owner by.
        """
        for holder in list(self.holders):
            if _goes_with_write(holder, own):
                holder.lower(NONE)

    def break_handles(self, own: Holder[Owner] | None) -> bool:
        """Break the handle caching of others, so that they close files they keep open only for caching.

        A batch oplock goes altogether: no level of an oplock keeps files open without it. Return whether the caller
        must wait for an acknowledgment. [MS-FSA 2.1.4.12, FileRenameInformation]"""
        wait = False
        for holder in self.others(own):
            if holder.state & HANDLE:
                holder.lower(holder.state & ~HANDLE if isinstance(holder, Lease) else NONE)
                wait = wait or holder.breaking
        return wait

    def grant_oplock(
        self, owner: Owner, level: int, other_opens: bool, locked: bool, level2: bool = True
    ) -> Oplock[Owner] | None:
        """Grant and return the highest possible oplock at or below ``level``, or None if none is. [MS-FSA 2.1.5.18.1]

        ``other_opens``: the stream has other opens that exclude exclusive caching. ``locked``: a byte-range lock begins
        where it has data.
        ``level2``: the oplock may be of level II, now or after a break."""
        state = LEVEL_STATES.get(level, NONE)
        if any(
            holder.state & WRITE or (isinstance(holder, Lease) and holder.state & HANDLE) for holder in self.holders
        ):
            state = NONE
        if (other_opens or self.holders) and state:
            state, level = READ, OplockLevel.II
        if locked and not state & WRITE:
            state = NONE
        if not state or (level == OplockLevel.II and not level2):
            return None
        oplock = Oplock(self, owner, level)
        oplock.level2 = level2
        self.add(oplock)
        return oplock

    def grant_lease(
        self, lease: Lease[Owner], requested: int, other_opens: bool, locked: bool, directory: bool
    ) -> None:
        """Grant ``lease`` as much of the requested state as possible. Never take anything away. [MS-FSA 2.1.5.18.2]

        ``other_opens`` and ``locked`` are as for an oplock. ``directory`` excludes write caching."""
        if requested not in VALID_LEASES:
            requested = NONE
        granted = requested
        others = self.others(lease)
        if other_opens or others or directory:
            granted &= ~WRITE
        if any(isinstance(holder, Oplock) and holder.state for holder in others):
            granted &= ~HANDLE
        if locked and not granted & WRITE:
            granted = NONE
        if requested != granted and lease.state:
            # An upgrade is granted completely or not at all.
            return
        if not lease.breaking and lease.state != granted and not lease.state & ~granted:
            lease.state = lease.requested = lease.required = granted
            if lease.version == 2:
                lease.epoch = (lease.epoch + 1) & 0xFFFF
            self.add(lease)
            self.breaks.changed(lease)


class LeaseTables(Generic[Owner]):
    """All leases by client and key: GlobalLeaseTableList. [MS-SMB2 3.3.1.4]"""

    def __init__(self) -> None:
        self._leases: dict[tuple[bytes, bytes], Lease[Owner]] = {}
        self.directory_leases = 0
        """Number of leases on directories. While it is 0, changes need not look for them."""
        # Invariant: directory_leases is the number of values of _leases whose directory is true.

    def find(self, client_guid: bytes, key: bytes) -> Lease[Owner] | None:
        """Return the lease with this key of a client, or None."""
        return self._leases.get((client_guid, key))

    def add(self, lease: Lease[Owner]) -> None:
        """Add a new lease. ``directory`` of it must not change later."""
        self._leases[lease.client_guid, lease.key] = lease
        self.directory_leases += lease.directory

    def remove(self, lease: Lease[Owner]) -> None:
        """Remove a lease. Do nothing if it is not there."""
        if self._leases.pop((lease.client_guid, lease.key), None) is not None:
            self.directory_leases -= lease.directory

    def __len__(self) -> int:
        return len(self._leases)
