"""Which of etcd's members is asked, by whatever thread: what one finds silent, the others leave, too."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence


class Members:
    """``endpoints``: base addresses, asked in turn."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self._endpoints = deque(endpoints)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._endpoints)

    @property
    def first(self) -> str:
        """Whom to ask now."""
        return self._endpoints[0]

    def avoid(self, endpoint: str) -> None:
        """It does not answer as it should. Nothing changes if it is not the first (any more)."""
        with self._lock:
            if self._endpoints[0] == endpoint:
                self._endpoints.rotate(-1)
