"""Slows down the guessing of passwords, per account and per address, across connections and services.

A failed logon counts against its account and against the address it came from. If either has reached its number of free
failures, the logons of that account or address are verified one after the other. The delay between two of them doubles
with each further failure. Half of the failures are forgotten in each ``HALF_LIFE``. A logon that would have to wait too
long is refused without being verified.

Successful logons do not count: thousands of clients that reconnect at the same time are not delayed. A user who has
logged on from an address before is not delayed by failures of others at that account from other addresses, nor by
failures of others at other accounts from that address.

Names without an account count like accounts: the delay does not show which accounts exist.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

from smbdirect.unauthenticated import source_of

HALF_LIFE = 300.0
"""Seconds in which half of the failures are forgotten."""
FIRST_DELAY = 0.25
"""Seconds between two logons when delays begin. The delay doubles with each further failure."""
MAX_STEPS = 8
"""Failures beyond the free ones that are remembered. The limit ends the effect of an attack of any length soon after
it."""
MAX_ENTRIES = 8192
"""Entries of each table. A new entry replaces the one that was updated least recently."""
NAME_LENGTH = 64
"""Characters of an account's name that are compared for counting."""


class LogonDelayed(Exception):
    """The logon may be verified in ``seconds``: repeat the step then. Nothing has changed."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"logon delayed by {seconds:.3f} s")
        self.seconds = seconds


class LogonRefused(Exception):
    """The logon is not verified: too many logons are waiting, or the account is locked out (``locked``)."""

    def __init__(self, reason: str, locked: bool = False) -> None:
        super().__init__(reason)
        self.locked = locked


@dataclass(slots=True)
class _Failures:
    """The failed logons of one account or one source."""

    count: float = 0.0
    """Failures that were remembered at the time ``counted``. They fade with ``HALF_LIFE``."""
    counted: float = 0.0
    """Time to which ``count`` applies, in seconds of the clock."""
    next_slot: float = 0.0
    """Earliest time at which the next logon may be verified, in seconds of the clock."""
    in_a_row: int = 0
    """Failures since the last success, for the lock-out."""
    locked_until: float = 0.0
    """End of the lock-out, in seconds of the clock."""


_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class _Recent(OrderedDict[_Key, _Value]):
    """A table that drops the entry that was updated least recently, so that it has at most ``MAX_ENTRIES``."""

    def put(self, key: _Key, value: _Value) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > MAX_ENTRIES:
            self.popitem(last=False)


class Guesses:
    """The failed logons of all listeners of one server."""

    def __init__(
        self,
        per_account: int = 10,
        per_address: int = 30,
        max_delay: float = 5.0,
        lockout_failures: int = 0,
        lockout_time: float = 900.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without failures.

        ``per_account`` and ``per_address`` are the free failures: after so many failures logons are delayed.
        ``max_delay`` is the maximum delay between two logons in seconds; 0 means that no logon is delayed.
        ``lockout_failures`` in a row lock an account out for ``lockout_time`` seconds; 0 means that no account is
        locked out.
        """
        self.clock = clock
        self._lock = threading.Lock()
        """Logons are counted on the event loop, changes of passwords on worker threads."""
        self.set_limits(per_account, per_address, max_delay, lockout_failures, lockout_time)
        self._accounts: _Recent[str, _Failures] = _Recent()
        self._sources: _Recent[str, _Failures] = _Recent()
        self._proven: _Recent[tuple[str, str], int] = _Recent()
        """Failures since the last success, by account and source that have had a success."""

    def set_limits(
        self, per_account: int, per_address: int, max_delay: float, lockout_failures: int, lockout_time: float
    ) -> None:
        """Set the limits, as for ``__init__``. What was counted so far stays counted."""
        self._per_account = per_account
        self._per_address = per_address
        self._max_delay = max_delay
        self._lockout_failures = lockout_failures
        self._lockout_time = lockout_time

    def __len__(self) -> int:
        """Return the number of entries of all tables."""
        return len(self._accounts) + len(self._sources) + len(self._proven)

    def begin(self, account: str, address: str, weight: int = 1) -> float:
        """Reserve a time slot for a logon, and return the seconds until it may be verified.

        The guess counts as ``weight`` failures before it is verified, so that guesses at the same time are counted
        before the first of them ends. Call ``proved`` if it was right, or ``withdraw`` if it proved nothing wrong.
        Raises ``LogonRefused``, and then counts nothing.
        """
        with self._lock:
            name, source = _account_key(account), source_of(address)
            delay = self._delay(name, source, self.clock())
            self._fail(name, source, weight)
            return delay

    def withdraw(self, account: str, address: str, weight: int = 1) -> None:
        """Take back what ``begin`` counted."""
        with self._lock:
            self._withdraw(_account_key(account), source_of(address), weight)

    def proved(self, account: str, address: str, weight: int = 1) -> None:
        """Take back what ``begin`` counted, and remember that the account's user logs on from that address.

        Earlier failures of the address are kept. Otherwise an attacker with an account could clear them by logging on
        between two guesses at other accounts.
        """
        with self._lock:
            name, source = _account_key(account), source_of(address)
            self._withdraw(name, source, weight)
            self._succeed(name, source)

    def _withdraw(self, name: str, source: str, weight: int) -> None:
        entry = self._accounts.get(name)
        if entry is not None and entry.locked_until > self.clock():
            # This guess, or one that began with it, has locked the account.
            entry.in_a_row, entry.locked_until = self._lockout_failures - 1, 0.0
        elif entry is not None:
            entry.in_a_row = max(entry.in_a_row - 1, 0)
        for table, key in ((self._accounts, name), (self._sources, source)):
            failures = table.get(key)
            if failures is not None:
                failures.count = max(failures.count - weight, 0.0)
                if not failures.count and not failures.in_a_row:
                    table.pop(key, None)

    def _delay(self, name: str, source: str, now: float) -> float:
        entry = self._accounts.get(name)
        if entry is not None and entry.locked_until > now:
            raise LogonRefused("account is locked out", locked=True)
        if self._max_delay <= 0 or (name, source) in self._proven:
            return 0.0
        slow = [
            (failures, interval)
            for failures, free in ((entry, self._per_account), (self._sources.get(source), self._per_address))
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
        """Return the seconds between two logons. 0 means no delay."""
        excess = self._faded(failures, now) - free
        if excess < 0:
            return 0.0
        return float(min(FIRST_DELAY * 2.0 ** min(int(excess), MAX_STEPS), self._max_delay))

    @staticmethod
    def _faded(failures: _Failures, now: float) -> float:
        """Return the failures that are still remembered at the time ``now``."""
        return failures.count * float(0.5 ** ((now - failures.counted) / HALF_LIFE))

    def _fail(self, name: str, source: str, weight: int) -> None:
        now = self.clock()
        pair = name, source
        since = self._proven.get(pair)
        if since is not None:
            # Another user may share the address, so one success does not exempt it forever.
            if since + weight >= self._per_account:
                self._proven.pop(pair, None)
            else:
                self._proven.put(pair, since + weight)
        entry = self._count(self._accounts, name, self._per_account, now, weight)
        self._count(self._sources, source, self._per_address, now, weight)
        entry.in_a_row += 1
        if self._lockout_failures and entry.in_a_row >= self._lockout_failures:
            entry.locked_until = now + self._lockout_time
            entry.in_a_row = 0

    def _count(self, table: _Recent[str, _Failures], key: str, free: int, now: float, weight: int) -> _Failures:
        entry = table.get(key) or _Failures()
        entry.count = min(self._faded(entry, now) + weight, free + MAX_STEPS)
        entry.counted = now
        table.put(key, entry)
        return entry

    def _succeed(self, name: str, source: str) -> None:
        self._proven.put((name, source), 0)
        entry = self._accounts.get(name)
        if entry is not None:
            entry.in_a_row = 0


def _account_key(name: str) -> str:
    return name[:NAME_LENGTH].casefold()
