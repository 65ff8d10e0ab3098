"""How late the event loop is: a timer that looks how long after its time it is called."""

from __future__ import annotations

import asyncio

from smb3server.dispatch.measuring import CLASSES

INTERVAL = 0.25
"""Seconds between two looks."""


class LoopLag:
    """The delays of one event loop. ``start`` it, then ``stop`` it."""

    def __init__(self) -> None:
        self.classes = [0] * CLASSES
        """By class, as the times of requests: the number of looks."""
        self.seconds = 0.0
        """The sum of all delays."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look from now on."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(loop.time() + INTERVAL, self._look, loop.time() + INTERVAL)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, due: float) -> None:
        self.note(asyncio.get_running_loop().time() - due)
        self.start()

    def note(self, delay: float) -> None:
        """Count a delay in seconds."""
        delay = max(delay, 0.0)
        self.classes[min(int(delay * 1e6).bit_length(), CLASSES - 1)] += 1
        self.seconds += delay
