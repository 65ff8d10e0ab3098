"""An event loop without sockets and threads, whose clock moves only when nothing else is left to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class Stuck(Exception):
    """A task waits for something that will never happen."""


class _Clock:
    """What the loop has in place of a selector: to wait is to move the clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise Stuck
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks and timers. Work for other threads is done at once, on this one."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Clock()

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._selector.now

    def _process_events(self, event_list: list[object]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """No other thread waits."""

    def run_in_executor(self, executor: object, func: Callable[[*_Ts], _T], *args: *_Ts) -> asyncio.Future[_T]:
        """Do the work now."""
        future: asyncio.Future[_T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def pass_time(self, seconds: float) -> None:
        """Run until nothing is left to do within so many virtual seconds."""
        self.run_until_complete(asyncio.sleep(seconds))
