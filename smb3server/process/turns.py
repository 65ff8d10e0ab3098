"""Turns of the event loop: callbacks that fail for themselves alone, and work that waits for a turn of its own."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import ParamSpec

log = logging.getLogger(__name__)

_P = ParamSpec("_P")


def call_apart(callback: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
    """Call ``callback`` now. Log what it raises, instead of raising it."""
    try:
        callback(*args, **kwargs)
    except Exception:
        log.exception("a callback failed")


def call_in_own_turn(callback: Callable[[], object]) -> None:
    """Call ``callback`` in the next turn of the event loop. Log what it raises."""
    asyncio.get_running_loop().call_soon(call_apart, callback)


class Turns:
    """Work of a server that can be put off: one piece in each turn of the event loop, however many ask for them."""

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
