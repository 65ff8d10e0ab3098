"""Turns of work that can be put off: one in each turn of the event loop, however many ask for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Turns:
    """A server's."""

    def __init__(self) -> None:
        self._asking: deque[Callable[[], None]] = deque()

    def add(self, work: Callable[[], None]) -> None:
        """Call ``work`` in a turn of the event loop to come, after those who asked before."""
        self._asking.append(work)
        if len(self._asking) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        work = self._asking[0]
        try:
            work()
        finally:
            self._asking.popleft()
            if self._asking:
                asyncio.get_running_loop().call_soon(self._next)
