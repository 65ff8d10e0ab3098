"""Accepting only new events, so that a copy of an old event has no effect.

An event has a random number that cannot be guessed, and the store's version from just before it was stored. Nodes
remember the numbers of recent events, and ignore all older events. The store's version serves as the clock: it only
grows, and is the same for all nodes.
"""

from __future__ import annotations

import secrets
from typing import Any

INTERVAL = 15.0
"""Seconds between two calls of ``advance``. An event stays valid for one to two intervals."""


def stamped(event: dict[str, Any], version: int) -> dict[str, Any]:
    """Return the event with its number and the store's present ``version``."""
    return {**event, "number": secrets.token_hex(8), "after": version}


class Freshness:
    """The recent events of one node. Before the first ``advance`` no event is new."""

    def __init__(self) -> None:
        self._horizon: int | None = None
        """The store's version before which all events are old."""
        self._next = 0
        """The next horizon."""
        self._seen: dict[str, int] = {}
        """The version of each event seen since the horizon, by number."""

    @property
    def started(self) -> bool:
        """Whether ``advance`` has been called."""
        return self._horizon is not None

    def advance(self, version: int) -> None:
        """Move the horizon. ``version``: the store's present one.

        After the first call, all events from before it are old."""
        self._horizon = version if self._horizon is None else self._next
        self._next = version
        horizon = self._horizon
        self._seen = {number: after for number, after in self._seen.items() if after >= horizon}

    def is_new(self, event: dict[str, Any]) -> bool:
        """Return whether the event is new, and remember it: the next call returns False."""
        number, after = event.get("number"), event.get("after")
        if self._horizon is None or not isinstance(number, str) or not isinstance(after, int):
            return False
        if after < self._horizon or number in self._seen:
            return False
        self._seen[number] = after
        return True
