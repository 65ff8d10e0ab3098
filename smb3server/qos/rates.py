"""Limits and measurements of rates. Times are those of a monotonic clock, in seconds. No clock is read here."""

from __future__ import annotations

_BURST = 0.1
"""Seconds by which a flow that was idle may be ahead of its limit."""
_WINDOW = 5.0
"""Seconds over which a rate is measured."""


class Limit:
    """Spreads operations so that their rate stays below a limit, as by the generic cell rate algorithm."""

    __slots__ = ("_next", "per_second")

    def __init__(self, per_second: float = 0) -> None:
        """``per_second``: units per second, 0 for any number."""
        self.per_second = per_second
        self._next = 0.0
        """When the next unit is due."""

    def admit(self, now: float, units: float) -> float:
        """Count an operation. Return the seconds that it has to wait, 0 if it may go on at once."""
        if not self.per_second:
            return 0.0
        due = max(self._next, now - _BURST)
        self._next = due + units / self.per_second
        return max(due - now, 0.0)


class Measured:
    """The mean rate of something over the last seconds."""

    __slots__ = ("_before", "_begin", "_count")

    def __init__(self, now: float) -> None:
        self._begin, self._count, self._before = now, 0.0, 0.0

    def add(self, now: float, units: float) -> None:
        """Count units."""
        self._turn(now)
        self._count += units

    def _turn(self, now: float) -> None:
        passed = now - self._begin
        if passed >= _WINDOW:
            self._before = self._count if passed < 2 * _WINDOW else 0.0
            self._begin, self._count = now, 0.0

    def rate(self, now: float) -> float:
        """Return the units per second."""
        self._turn(now)
        share = max(1 - (now - self._begin) / _WINDOW, 0.0)
        return (self._count + self._before * share) / _WINDOW
