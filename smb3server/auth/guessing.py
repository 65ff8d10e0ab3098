"""Slow the guessing of passwords down, per account and per address, across connections and services.

A failed logon counts against its account and against the address it came from. Once either has more failures than are
free, the logons of that account or address are looked at one after the other, with a delay between two of them that
doubles with each further failure. Failures are forgotten by halves. What waits too long is refused unseen.

Successful logons count for nothing: thousands of clients that come back at once are not slowed. A user who logged on
from an address before is slowed neither by what others try at that account from elsewhere, nor by what others try at
other accounts from there.

Names that are no accounts count like those that are: the delay tells nobody which accounts exist.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from smbdirect.unauthenticated import source_of

HALF_LIFE = 300.0
"""Seconds in which half of the failures are forgotten."""
FIRST_DELAY = 0.25
"""Seconds between two logons after the first failure that is not free."""
MAX_STEPS = 8
"""Failures beyond the free ones that are remembered: what an attack of any length leaves behind is gone soon."""
MAX_ENTRIES = 8192
"""Entries of each table; the one that was used least recently makes room."""
NAME_LENGTH = 64
"""Characters of an account's name by which it is counted."""


class LogonDelayed(Exception):
    """The logon is looked at in ``seconds``: call the step again then. Nothing has changed."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"logon delayed by {seconds:.3f} s")
        self.seconds = seconds


class LogonRefused(Exception):
    """The logon is not looked at: too many wait, or the account is locked out."""

    def __init__(self, reason: str, locked: bool = False) -> None:
        super().__init__(reason)
        self.locked = locked


@dataclass(slots=True)
class _Failures:
    count: float = 0.0
    counted: float = 0.0
    """When ``count`` was right, in seconds of the clock."""
    next_slot: float = 0.0
    """When the next logon may be looked at."""
    in_a_row: int = 0
    """Without a success between them: for the lock-out."""
    locked_until: float = 0.0


_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class _Recent(Generic[_Key, _Value]):
    """A table of bounded size."""

    def __init__(self) -> None:
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: _Key) -> _Value | None:
        return self._entries.get(key)

    def put(self, key: _Key, value: _Value) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)

    def drop(self, key: _Key) -> None:
        self._entries.pop(key, None)


class Guesses:
    """What is known of failed logons. One object serves all listeners of a server."""

    def __init__(
        self,
        per_account: int = 10,
        per_address: int = 30,
        max_delay: float = 5.0,
        lockout_failures: int = 0,
        lockout_time: float = 900.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``per_account``, ``per_address``: failures that are free. ``max_delay``: seconds between two logons at most;
        0: nothing is slowed. ``lockout_failures``: failures in a row that lock an account out for ``lockout_time``
        seconds; 0: none is."""
        self.clock = clock
        self._per_account = per_account
        self._per_address = per_address
        self._max_delay = max_delay
        self._lockout_failures = lockout_failures
        self._lockout_time = lockout_time
        self._accounts: _Recent[str, _Failures] = _Recent()
        self._sources: _Recent[str, _Failures] = _Recent()
        self._proven: _Recent[tuple[str, str], int] = _Recent()
        """Failures since the last success, by account and source that had one."""

    def __len__(self) -> int:
        """Count the entries of all tables."""
        return len(self._accounts) + len(self._sources) + len(self._proven)

    def delay(self, account: str, address: str) -> float:
        """Reserve a place for a logon: the seconds until it may be looked at. Raises ``LogonRefused``."""
        name, source = _account_key(account), source_of(address)
        now = self.clock()
        entry = self._accounts.find(name)
        if entry is not None and entry.locked_until > now:
            raise LogonRefused("account is locked out", locked=True)
        if self._max_delay <= 0 or (name, source) in self._proven._entries:
            return 0.0
        slow = [
            (failures, interval)
            for failures, free in ((entry, self._per_account), (self._sources.find(source), self._per_address))
            if failures is not None and (interval := self._interval(failures, free, now))
        ]
        if not slow:
            return 0.0
        start = max(now, *(failures.next_slot for failures, _ in slow))
        if start - now > 2 * self._max_delay:
            raise LogonRefused("too many failed logons")
        for failures, interval in slow:
            failures.next_slot = start + interval
        return start - now

    def _interval(self, failures: _Failures, free: int, now: float) -> float:
        """Give the seconds between two logons; 0: not slowed."""
        excess = self._faded(failures, now) - free
        if excess < 0:
            return 0.0
        return float(min(FIRST_DELAY * 2.0 ** min(int(excess), MAX_STEPS), self._max_delay))

    @staticmethod
    def _faded(failures: _Failures, now: float) -> float:
        return failures.count * float(0.5 ** ((now - failures.counted) / HALF_LIFE))

    def failed(self, account: str, address: str) -> None:
        """Count a wrong proof, or a name that is no account."""
        name, source = _account_key(account), source_of(address)
        now = self.clock()
        pair = name, source
        since = self._proven.find(pair)
        if since is not None:
            # Somebody else may sit behind the same address: what is proven once is not for ever.
            if since + 1 >= self._per_account:
                self._proven.drop(pair)
            else:
                self._proven.put(pair, since + 1)
        entry = self._count(self._accounts, name, self._per_account, now)
        self._count(self._sources, source, self._per_address, now)
        entry.in_a_row += 1
        if self._lockout_failures and entry.in_a_row >= self._lockout_failures:
            entry.locked_until = now + self._lockout_time
            entry.in_a_row = 0

    def _count(self, table: _Recent[str, _Failures], key: str, free: int, now: float) -> _Failures:
        entry = table.find(key) or _Failures()
        entry.count = min(self._faded(entry, now) + 1, free + MAX_STEPS)
        entry.counted = now
        table.put(key, entry)
        return entry

    def succeeded(self, account: str, address: str) -> None:
        """Remember that the account's user logs on from that address. Failures are not forgotten for it: who has an
        account could clear his address with it between two guesses at others'."""
        name = _account_key(account)
        self._proven.put((name, source_of(address)), 0)
        entry = self._accounts.find(name)
        if entry is not None:
            entry.in_a_row = 0


def _account_key(name: str) -> str:
    return name[:NAME_LENGTH].casefold()
