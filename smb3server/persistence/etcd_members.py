"""The members of an etcd cluster, in the order in which all threads use them: one that fails is avoided by all."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence


class Members:
    """The members of one etcd cluster. May be used by several threads."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        """``endpoints``: base addresses, used in turn."""
        self._endpoints = deque(endpoints)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._endpoints)

    @property
    def first(self) -> str:
        """The endpoint to use now."""
        return self._endpoints[0]

    def sorted(self) -> list[str]:
        """Return all endpoints, in the same order each time."""
        with self._lock:
            return sorted(self._endpoints)

    def avoid(self, endpoint: str) -> None:
        """Use the next endpoint instead of one that does not work properly. Does nothing if it is not the first."""
        with self._lock:
            if self._endpoints[0] == endpoint:
                self._endpoints.rotate(-1)
