"""The last lines of the log, for those who look at the running server."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from smb3server.process.log_lines import printable

MAX_LINES = 500
MAX_LENGTH = 1000
"""Characters of a line."""


class Line(NamedTuple):
    """One line of the log."""

    number: int
    """Counts all lines from 1 on."""
    time: float
    """Seconds since 1970."""
    level: str
    source: str
    text: str


class LogTail(logging.Handler):
    """Remembers the last lines. Add it to the root logger, and remove it at the end."""

    def __init__(self, wanted: Callable[[logging.LogRecord], bool]) -> None:
        super().__init__()
        self.addFilter(wanted)
        # Invariant: at most MAX_LINES entries, the oldest first.
        self._lines: deque[Line] = deque(maxlen=MAX_LINES)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Remember a record, without its traceback."""
        self._count += 1
        text = printable(record.getMessage(), MAX_LENGTH)
        self._lines.append(Line(self._count, record.created, record.levelname.lower(), record.name, text))

    def after(self, number: int) -> list[Line]:
        """Return the lines that are younger than the one of that number."""
        return [line for line in self._lines if line.number > number]
