"""Distinguishes changes that the server made from those made by programs of the host.

A store's watch reports both. The server reports its own changes itself, with more detail. So each watcher notes them
here, and drops the store's later report of the same change. The notes are bounded and expire after ``MEMORY`` seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from smb3server.wire.change_notify import Action

Key = tuple[str, ...]

MEMORY = 2.0
"""Seconds within which the store reports a change that the server made."""
MAX_ENTRIES = 8192
"""Limit of the notes. Beyond it the oldest are dropped, so a change may be reported twice."""

_APPEARED = frozenset({Action.ADDED, Action.RENAMED_NEW_NAME})
_GONE = frozenset({Action.REMOVED, Action.RENAMED_OLD_NAME})


def _kind(action: int) -> int:
    if action in _APPEARED:
        return 1
    return 2 if action in _GONE else 0


class EchoFilter:
    """The recent changes by the server below one watched directory."""

    def __init__(self, now: Callable[[], float]) -> None:
        """``now`` is a monotonic clock in seconds."""
        self._now = now
        self._expected: dict[tuple[Key, int], tuple[float, int]] = {}
        """(deadline, number of changes) by path and kind of action, in order of deadline."""

    def own(self, key: Key, action: int) -> None:
        """Note a change that the server made."""
        now = self._now()
        self._forget(now)
        for kind in {_kind(action), 0}:
            _, count = self._expected.pop((key, kind), (0.0, 0))
            self._expected[key, kind] = (now + MEMORY, count + 1)

    def is_echo(self, key: Key, action: int) -> bool:
        """Return whether a report of the store is about a change that the server made.

        The store reports each creation or removal once, but one modification any number of times."""
        self._forget(self._now())
        kind = _kind(action)
        noted = self._expected.get((key, kind))
        if noted is None:
            return False
        if kind:
            deadline, count = noted
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
