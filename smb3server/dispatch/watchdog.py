"""Logs the requests that held up the event loop for long.

If it is off, it is not called and costs nothing. If it is on, it reads the clocks twice per command.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from smb3server.wire.header import Command

log = logging.getLogger(__name__)

KEPT = 32
"""Number of turns kept for reports."""
LOGS_PER_MINUTE = 6
"""Limit of log lines."""


class Turn(NamedTuple):
    """A turn of the event loop that took too long."""

    when: float
    """Seconds since 1970."""
    seconds: float
    processor: float
    """Seconds of processor time. The rest was spent waiting, e.g. for a disk or for the processor."""
    command: str
    client: str
    path: str
    """Path of the request's file, or empty."""


class Watchdog:
    """The watchdog of one server."""

    def __init__(self, limit: float) -> None:
        """``limit`` is the time in seconds that one command may take in a turn of the event loop."""
        self.limit = limit
        self.count = 0
        """Number of turns so far that took longer."""
        self.worst: Turn | None = None
        self.turns: deque[Turn] = deque(maxlen=KEPT)
        self.on_slow: Callable[[Turn], None] = lambda turn: None
        """Called for each turn that took too long."""
        self._logged = 0
        self._minute = 0.0

    def finished(
        self, command: int, client: str, path: Callable[[], Sequence[str]], start: tuple[float, float]
    ) -> None:
        """Note the end of the work on a command. ``path`` is called if it took too long. ``start`` has the values of
        ``time.monotonic`` and ``time.thread_time`` at its beginning."""
        began, processor = start
        seconds = time.monotonic() - began
        if seconds < self.limit:
            return
        turn = Turn(
            time.time(),
            seconds,
            time.thread_time() - processor,
            Command(command).name if command in Command.__members__.values() else str(command),
            client,
            "/".join(path()),
        )
        self.count += 1
        self.turns.append(turn)
        if self.worst is None or turn.seconds > self.worst.seconds:
            self.worst = turn
        self._log(turn, began)
        self.on_slow(turn)

    def _log(self, turn: Turn, now: float) -> None:
        if now - self._minute > 60:
            self._minute, self._logged = now, 0
        self._logged += 1
        if self._logged <= LOGS_PER_MINUTE:
            log.warning(
                "%s of %s held up all other requests for %.0f ms (%.0f ms of processor time)%s",
                turn.command,
                turn.client,
                turn.seconds * 1000,
                turn.processor * 1000,
                f": {turn.path!r}" if turn.path else "",
            )
