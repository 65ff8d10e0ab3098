"""Telling the server's own changes from those made on the host behind it.

A store's watch reports both alike, and the server reports its own itself, better. Whatever the server did is noted here
and the store's later word of the same thing dropped. Kept per watcher; bounded; forgotten after a moment.
"""

from __future__ import annotations

from collections.abc import Callable

from smb3server.wire.change_notify import Action

Key = tuple[str, ...]

MEMORY = 2.0
"""Seconds within which the store tells what the server did."""
MAX_ENTRIES = 8192
"""More changes than this within that time: the oldest are forgotten, at the price of telling something twice."""

_APPEARED = frozenset({Action.ADDED, Action.RENAMED_NEW_NAME})
_GONE = frozenset({Action.REMOVED, Action.RENAMED_OLD_NAME})


def _kind(action: int) -> int:
    if action in _APPEARED:
        return 1
    return 2 if action in _GONE else 0


class EchoFilter:
    """``now`` is a clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._expected: dict[tuple[Key, int], tuple[float, int]] = {}
        """(deadline, how often) by path and kind of action; in order of deadline."""

    def own(self, key: Key, action: int) -> None:
        """The server did this."""
        now = self._now()
        self._forget(now)
        for kind in {_kind(action), 0}:
            _, count = self._expected.pop((key, kind), (0.0, 0))
            self._expected[key, kind] = (now + MEMORY, count + 1)

    def is_echo(self, key: Key, action: int) -> bool:
        """Is this, from the store, only word of what the server did? Each creation or removal is heard of once,
        modifications (of which one change makes many) any number of times."""
        self._forget(self._now())
        kind = _kind(action)
        found = self._expected.get((key, kind))
        if found is None:
            return False
        if kind:
            deadline, count = found
            if count > 1:
                self._expected[key, kind] = (deadline, count - 1)
            else:
                del self._expected[key, kind]
        return True

    def _forget(self, now: float) -> None:
        expected = self._expected
        while expected:
            first = next(iter(expected))
            if expected[first][0] > now and len(expected) < MAX_ENTRIES:
                return
            del expected[first]
