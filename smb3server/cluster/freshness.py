"""Which events are new: nobody who kept one can have nodes act upon it a second time.

An event has a number that nobody guesses, and the store's version from just before it was put there. Nodes remember the
numbers of late, and act upon no event from before that. They take the store's version for time: it only grows, and is
the same for all.
"""

from __future__ import annotations

import secrets
from typing import Any

INTERVAL = 15.0
"""Seconds between two calls of ``advance``. An event is good for one to two of them."""


def stamped(event: dict[str, Any], version: int) -> dict[str, Any]:
    """The event as it goes to the store, whose version is ``version``."""
    return {**event, "number": secrets.token_hex(8), "after": version}


class Freshness:
    """Of one node. Before the first ``advance`` nothing is new."""

    def __init__(self) -> None:
        self._horizon: int | None = None
        self._next = 0
        self._seen: dict[str, int] = {}

    @property
    def started(self) -> bool:
        return self._horizon is not None

    def advance(self, version: int) -> None:
        """Time goes by; the store's version is ``version`` now. The first time: nothing of before is new."""
        self._horizon = version if self._horizon is None else self._next
        self._next = version
        horizon = self._horizon
        self._seen = {number: after for number, after in self._seen.items() if after >= horizon}

    def is_new(self, event: dict[str, Any]) -> bool:
        """Whether to act upon it; from now on it is not new."""
        number, after = event.get("number"), event.get("after")
        if self._horizon is None or not isinstance(number, str) or not isinstance(after, int):
            return False
        if after < self._horizon or number in self._seen:
            return False
        self._seen[number] = after
        return True
