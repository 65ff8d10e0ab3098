"""Turns of the event loop: callbacks whose failure affects no other code, and work that waits for its own turn."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import ParamSpec

log = logging.getLogger(__name__)

_P = ParamSpec("_P")


def call_apart(callback: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
    """Call ``callback`` now. Log an exception instead of raising it."""
    try:
        callback(*args, **kwargs)
    except Exception:
        log.exception("a callback failed")


def call_in_own_turn(callback: Callable[[], object]) -> None:
    """Call ``callback`` in the next turn of the event loop. Log an exception instead of raising it."""
    asyncio.get_running_loop().call_soon(call_apart, callback)


class Turns:
    """The work of a server that can be delayed: one piece is done in each turn of the event loop, however much is
    waiting."""

    def __init__(self) -> None:
        self._asking: deque[Callable[[], None]] = deque()
        """Invariant: ``_next`` is running or among the loop's next calls if and only if this is not empty."""

    def add(self, work: Callable[[], None]) -> None:
        """Call ``work`` in a later turn of the event loop, after the work that was added before."""
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
