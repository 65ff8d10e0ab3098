"""Names what held up the event loop: a turn that took long is logged with the request it was for.

Off, it costs nothing: nobody calls it. On, it costs two looks at the clocks per command.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from smb3server.wire.header import Command

log = logging.getLogger(__name__)

KEPT = 32
"""Turns remembered for reports."""
LOGS_PER_MINUTE = 6


class Turn(NamedTuple):
    """One that took too long."""

    when: float
    """Seconds since 1970."""
    seconds: float
    processor: float
    """Of them with the processor; the rest was waiting, for a disk say, or other programs had it."""
    command: str
    client: str
    path: str
    """Of the file it was about; empty where there is none."""


class _Header(Protocol):
    @property
    def command(self) -> int: ...


class _Connection(Protocol):
    client_name: str


class _Open(Protocol):
    path: tuple[str, ...]


class Work(Protocol):
    """What it needs to know of a request."""

    @property
    def header(self) -> _Header: ...

    @property
    def connection(self) -> _Connection: ...

    @property
    def open(self) -> _Open | None: ...


class Watchdog:
    """A server's."""

    def __init__(self, limit: float) -> None:
        """``limit``: seconds that one command may take of a turn of the event loop."""
        self.limit = limit
        self.count = 0
        """Turns that took longer, so far."""
        self.worst: Turn | None = None
        self.turns: deque[Turn] = deque(maxlen=KEPT)
        self.on_slow: Callable[[Turn], None] = lambda turn: None
        """Called for each."""
        self._logged = 0
        self._minute = 0.0

    def finished(self, request: Work, began: float, processor: float) -> None:
        """A command was worked on from ``began`` (``time.monotonic``); ``processor`` is what ``time.thread_time`` said
        then."""
        seconds = time.monotonic() - began
        if seconds < self.limit:
            return
        command = request.header.command
        turn = Turn(
            time.time(),
            seconds,
            time.thread_time() - processor,
            Command(command).name if command in Command.__members__.values() else str(command),
            request.connection.client_name,
            "/".join(request.open.path) if request.open is not None else "",
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
