"""Oplocks and leases of one stream as a state machine (MS-SMB2 3.3.1.4, 3.3.4.6, 3.3.4.7; MS-FSA 2.1.4.12, 2.1.5.18).

Both are caching rights: oplock levels are the combinations that one open may hold, leases the same for all opens that
name one key. No I/O and no clock here: notifications and timers go through ``Breaks``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from smb3server.wire.oplock_break import LeaseState, OplockLevel

NONE, READ, HANDLE, WRITE = (int(LeaseState.NONE), int(LeaseState.READ), int(LeaseState.HANDLE), int(LeaseState.WRITE))
VALID_LEASES = frozenset([READ, READ | HANDLE, READ | WRITE, READ | HANDLE | WRITE])
BREAK_TIMEOUT = 35.0
"""Seconds a client has to acknowledge (MS-SMB2 3.3.2.1)."""

LEVEL_STATES: dict[int, int] = {
    OplockLevel.NONE: NONE,
    OplockLevel.II: READ,
    OplockLevel.EXCLUSIVE: READ | WRITE,
    OplockLevel.BATCH: READ | WRITE | HANDLE,
}


Owner = TypeVar("Owner")
"""The open that holds an oplock, or one of those that share a lease. Nothing is asked of it here."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class Breaks(Protocol[Owner]):
    """The outside of the state machine."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer: ...

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in a turn of its own: what it raises is nobody else's failure."""
        ...

    def notify_lease(self, lease: Lease[Owner], current: int, new: int, ack_required: bool) -> bool | None:
        """Send a lease break notification; False when no connection could take it, None when its client is away but
        may come back: ``Holder.resend`` then."""
        ...

    def notify_oplock(self, oplock: Oplock[Owner], level: int) -> bool | None:
        """Send an oplock break notification; the result is as for a lease."""
        ...

    def changed(self, holder: Holder[Owner]) -> None:
        """State, or what is to become of it, is not what it was."""
        ...


class Holder(Generic[Owner]):
    """Caching rights of one open, or of the opens that share a lease."""

    __slots__ = ("breaking", "caching", "required", "requested", "state", "timer")

    # Invariant: requested is a subset of state.
    # Invariant: unless breaking, state == requested == required, and timer is None.
    # Invariant: a holder with any right left, or breaking, is in caching.holders; no other is.

    def __init__(self, caching: Caching[Owner], state: int) -> None:
        self.caching = caching
        self.state = state
        """What the client may do now. During a break it keeps this until it acknowledges."""
        self.breaking = False
        """A notification that asks for an acknowledgment was sent, or waits for the client to come back."""
        self.requested = state
        """What the notification allows the client to keep."""
        self.required = state
        """What the client may keep in the end. Less than ``requested`` where another break began during this one."""
        self.timer: Timer | None = None
        """Runs while a delivered notification waits for its acknowledgment. None during a break: the client is away."""

    def _ack_needed(self) -> bool:
        raise NotImplementedError

    def _limit(self, state: int) -> int:
        """The nearest state at or below ``state`` that this kind of holder can have."""
        raise NotImplementedError

    def _notify(self, current: int, new: int, ack_required: bool) -> bool | None:
        raise NotImplementedError

    def _count_break(self) -> None:
        """A new break begins; its further steps do not count (Lease.Epoch)."""

    def lower(self, to: int) -> None:
        """Start taking away everything not in ``to``; or, during a break, ask for more in its next step."""
        to = self._limit(self.state & to)
        if self.breaking:
            self.required &= to
        elif self.state & ~to:
            self.required = to
            self._start(to)

    def _start(self, to: int, further: bool = False) -> bool:
        """Tell the client; True if the break now waits for its acknowledgment. ``further``: the next step of a break
        that was acknowledged."""
        current = self.state
        ack = self._ack_needed()
        self.requested = to
        self.breaking = ack
        if not ack:
            self.state = to
        if not further:
            self._count_break()
        delivered = self._notify(current, to, ack)
        self.caching.breaks.changed(self)
        if ack:
            self._wait_for_ack(delivered)
        else:
            self.caching.prune()
        return self.breaking

    def _wait_for_ack(self, delivered: bool | None) -> None:
        """The clock starts with the notification; a client that cannot be told and will not come back has lost its
        caching rights (3.3.4.6, 3.3.4.7)."""
        if delivered:
            self.timer = self.caching.breaks.call_later(self.caching.break_timeout, self.time_out)
        elif delivered is False and self.breaking:
            self.end_break(NONE)

    def resend(self) -> None:
        """The client is back: tell it of the break that began while it was away (3.3.5.9.12)."""
        if self.breaking and self.timer is None:
            self._wait_for_ack(self._notify(self.state, self.requested, True))

    def acknowledge(self, state: int) -> bool:
        """The client goes down to ``state``; False if that is more than it was told (nothing changes then)."""
        if not self.breaking or state & ~self.requested:
            return False
        if state & ~self.required:
            self._stop_timer()
            self.state = state
            # From handle caching to nothing Windows goes by way of read caching.
            step = self.required | (READ if state & (HANDLE | WRITE) and self.required == NONE else NONE)
            if not self._start(self._limit(state & step), further=True):
                self.caching.finished()
            return True
        self.end_break(state)
        return True

    def time_out(self) -> None:
        """No acknowledgment in time: everything is lost (3.3.6.1, 3.3.6.5)."""
        if self.breaking:
            self.end_break(NONE)

    def end_break(self, state: int) -> None:
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
    """An oplock of one open (3.3.1.10: Open.OplockLevel, Open.OplockState)."""

    __slots__ = ("level", "level2", "open")

    def __init__(self, caching: Caching[Owner], owner: Owner, level: int) -> None:
        super().__init__(caching, LEVEL_STATES[level])
        self.open = owner
        self.level = level
        self.level2 = True
        """Whether it may go down to level II rather than to nothing."""

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
    """3.3.1.12. ``opens`` are the opens that named the key."""

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

    def _count_break(self) -> None:
        if self.version == 2:
            self.epoch = (self.epoch + 1) & 0xFFFF

    def _notify(self, current: int, new: int, ack_required: bool) -> bool | None:
        return self.caching.breaks.notify_lease(self, current, new, ack_required)


def _goes_with_write(holder: Holder[Owner], own: Holder[Owner] | None) -> bool:
    """Return whether a write by the holder ``own`` ends what ``holder`` caches: see ``Caching.break_for_write``."""
    return holder is not own or (isinstance(holder, Oplock) and not holder.state & WRITE)


class Caching(Generic[Owner]):
    """All holders of one stream."""

    __slots__ = ("_arriving", "_settling", "break_timeout", "breaks", "holders", "waiters")

    def __init__(self, breaks: Breaks[Owner], break_timeout: float = BREAK_TIMEOUT) -> None:
        self.breaks = breaks
        self.break_timeout = break_timeout
        self.holders: list[Holder[Owner]] = []
        """Those with any right left, or breaking."""
        self.waiters: list[Callable[[], None]] = []
        self._arriving: set[object] = set()
        """Writes received whose data is still on its way."""
        self._settling: list[tuple[set[object], Callable[[], None]]] = []

    def arrives(self, write: object) -> None:
        """A write was received whose data comes by RDMA Read; ``arrived`` follows."""
        self._arriving.add(write)

    def arrived(self, write: object) -> None:
        """It is stored, or failed."""
        self._arriving.discard(write)
        if self._settling:
            for awaited, callback in self._settling[:]:
                awaited.discard(write)
                if not awaited:
                    self._settling.remove((awaited, callback))
                    self.breaks.call_soon(callback)

    def after_arrivals(self, callback: Callable[[], None]) -> bool:
        """Call once, in a turn of its own, when all that arrives now has arrived; False, and no call, if nothing
        does."""
        if not self._arriving:
            return False
        self._settling.append((set(self._arriving), callback))
        return True

    def others(self, own: Holder[Owner] | None) -> Iterable[Holder[Owner]]:
        return [holder for holder in self.holders if holder is not own]

    def add(self, holder: Holder[Owner]) -> None:
        if holder not in self.holders and (holder.state or holder.breaking):
            self.holders.append(holder)

    def drop(self, holder: Holder[Owner]) -> None:
        """Its last open is closed: nothing is left to be acknowledged."""
        if holder in self.holders:
            self.holders.remove(holder)
        was_breaking = holder.breaking
        holder.breaking = False
        holder.state = holder.requested = holder.required = NONE
        holder._stop_timer()
        if was_breaking:
            self.finished()

    def prune(self) -> None:
        self.holders = [holder for holder in self.holders if holder.state or holder.breaking]

    def wait(self, callback: Callable[[], None]) -> None:
        """Call once, in a turn of its own, when a break here comes to an end."""
        self.waiters.append(callback)

    def unwait(self, callback: Callable[[], None]) -> None:
        if callback in self.waiters:
            self.waiters.remove(callback)

    def finished(self) -> None:
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
        """Break what an open by somebody else cannot live with; True if it must wait for an acknowledgment.

        Write caching always goes; handle caching goes only if that may resolve a sharing violation; overwriting takes
        everything. ``spare_leases``: the open is one that only oplocks mind.
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
        """Data changes (write, truncation, a byte-range lock): nobody else may cache any. Nobody is waited for.

        A level II oplock has no key to know its owner by, so even the owner's goes.
        """
        for holder in list(self.holders):
            if _goes_with_write(holder, own):
                holder.lower(NONE)

    def break_handles(self, own: Holder[Owner] | None) -> bool:
        """Others shall close what they hold open only for caching; True if that needs waiting for."""
        wait = False
        for holder in self.others(own):
            if holder.state & HANDLE:
                holder.lower(holder.state & ~HANDLE)
                wait = wait or holder.breaking
        return wait

    def grant_oplock(
        self, owner: Owner, level: int, other_opens: bool, locked: bool, level2: bool = True
    ) -> Oplock[Owner] | None:
        """The best oplock at or below ``level`` (MS-FSA 2.1.5.18.1); None if that is none."""
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

    def grant_lease(self, lease: Lease[Owner], wanted: int, other_opens: bool, locked: bool, directory: bool) -> None:
        """Give ``lease`` as much of ``wanted`` as possible (MS-FSA 2.1.5.18.2); never takes anything away."""
        if wanted not in VALID_LEASES:
            wanted = NONE
        asked = wanted
        others = self.others(lease)
        if other_opens or others or directory:
            wanted &= ~WRITE
        if any(isinstance(holder, Oplock) and holder.state for holder in others):
            wanted &= ~HANDLE
        if locked and not wanted & WRITE:
            wanted = NONE
        if asked != wanted and lease.state:
            # An upgrade is granted whole or not at all.
            return
        if not lease.breaking and lease.state != wanted and not lease.state & ~wanted:
            lease.state = lease.requested = lease.required = wanted
            if lease.version == 2:
                lease.epoch = (lease.epoch + 1) & 0xFFFF
            self.add(lease)
            self.breaks.changed(lease)


class LeaseTables(Generic[Owner]):
    """GlobalLeaseTableList (3.3.1.4): per client, leases by key."""

    def __init__(self) -> None:
        self._leases: dict[tuple[bytes, bytes], Lease[Owner]] = {}
        self.directory_leases = 0
        """How many are on directories: while 0, changes need not look for them."""

    def find(self, client_guid: bytes, key: bytes) -> Lease[Owner] | None:
        return self._leases.get((client_guid, key))

    def add(self, lease: Lease[Owner]) -> None:
        self._leases[lease.client_guid, lease.key] = lease
        self.directory_leases += lease.directory

    def remove(self, lease: Lease[Owner]) -> None:
        if self._leases.pop((lease.client_guid, lease.key), None) is not None:
            self.directory_leases -= lease.directory

    def __len__(self) -> int:
        return len(self._leases)
