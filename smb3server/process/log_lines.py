"""Log lines that peers have a part in: escaped, bounded, and limited in number.

Names, addresses and errors in them may be whatever a stranger chose. What cannot be printed is escaped, so that nobody
forges a line or reaches the terminal that shows it.

A place in the code that logs has a budget for each source (the message's first argument: the peer's address, by
convention) and one for all. A long line counts as several. What exceeds it is counted, and the count is told, which
the place's budget pays for, too: no number of sources makes more lines than that. Tracebacks are told once in a while
for
each place where the exception was raised: one of them says what the next thousand would. Debug lines are not limited.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import NamedTuple, TextIO

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MAX_LENGTH = 2000
"""Characters of a message."""
PER_SOURCE = 50
"""Lines of one place and source at once."""
PER_PLACE = 100
"""Lines of one place at once, of all sources together."""
SOURCE_RATE, PLACE_RATE = 0.5, 5.0
"""Lines a second that the budgets grow by."""
LINE = 200
"""Characters that count as one line."""
TRACE_INTERVAL = 60.0
"""Seconds between two tracebacks of one place."""
QUIET = 10.0
"""Seconds without a line after which what was suppressed is told."""
MAX_KEYS = 4096


def printable(text: str, most: int = MAX_LENGTH) -> str:
    """Escape what cannot be printed, and cut what is longer than ``most`` characters."""
    if len(text) > most:
        text = f"{text[:most]}... ({len(text) - most} more)"
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def printable_tree(value: object) -> object:
    """Escape every string of a value made of dictionaries and lists."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_tree(key): printable_tree(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [printable_tree(entry) for entry in value]
    return value


class LineFormatter(logging.Formatter):
    """Escapes messages; the lines of a traceback are marked, so that none looks like a message."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        return "\n".join(f"| {printable(line)}" for line in super().formatException(ei).split("\n"))


class _Budget:
    """Lines that may be written now, and what could not be."""

    __slots__ = ("at", "left", "like", "most", "rate", "suppressed")

    def __init__(self, most: float, rate: float, now: float) -> None:
        self.most = most
        self.rate = rate
        self.left = most
        self.at = now
        self.suppressed = 0
        self.like = ("", 0, "")
        """Logger, level and text of the first line that was suppressed. Not the record: it may hold a traceback, and
        that all that was going on."""

    def take(self, record: logging.LogRecord, now: float) -> bool:
        self.left = min(self.most, self.left + (now - self.at) * self.rate)
        self.at = now
        text = record.getMessage()
        if self.left >= 1:
            # What is over goes to the account of the lines to come: a long line, too, is told when it was quiet.
            self.left -= 1 + min(len(text), MAX_LENGTH) // LINE
            return True
        if not self.suppressed:
            self.like = record.name, record.levelno, printable(text, 200)
        self.suppressed += 1
        return False

    def take_over(self, other: _Budget, now: float) -> bool:
        """Pay for the line that tells what ``other`` has suppressed, or count that as suppressed here: False."""
        self.left = min(self.most, self.left + (now - self.at) * self.rate)
        self.at = now
        if self.left >= 1:
            self.left -= 1
            return True
        if not self.suppressed:
            self.like = other.like
        self.suppressed += other.suppressed
        other.suppressed = 0
        return False

    def told(self) -> logging.LogRecord:
        """Give the line that tells of those that were suppressed, and count anew."""
        name, level, text = self.like
        text = f"{self.suppressed} more suppressed like: {text}"
        self.suppressed = 0
        return logging.LogRecord(name, level, __file__, 0, text, None, None)


class _Key(NamedTuple):
    """Whose budget: a place's, or that of one source or kind of exception there."""

    place: tuple[str, int]
    of: Hashable = None


class LimitedHandler(logging.StreamHandler[TextIO]):
    """Writes to a stream what the budgets allow."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._budgets: OrderedDict[_Key, _Budget] = OrderedDict()
        """The least recently used first."""
        self._suppressing: dict[_Key, _Budget] = {}
        """Those with something to tell, the one first that is quiet for longest."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record if its budgets allow it."""
        now = self._clock()
        self._tell_overdue(now)
        if record.levelno <= logging.DEBUG or self._allows(record, now):
            super().emit(record)

    def close(self) -> None:
        """Tell what was suppressed to the end."""
        while self._suppressing:
            key, budget = next(iter(self._suppressing.items()))
            del self._suppressing[key]
            super().emit(budget.told())
        super().close()

    def _allows(self, record: logging.LogRecord, now: float) -> bool:
        place = (record.pathname, record.lineno)
        if record.exc_info and record.exc_info[0] is not None:
            trace = record.exc_info[2]
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            raised = (trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace is not None else None
            return self._take(_Key(place, (raised, record.exc_info[0])), record, 1, 1 / TRACE_INTERVAL, now)
        first = record.args[0] if isinstance(record.args, tuple) and record.args else ""
        # An address may come with its port, which a peer has many of.
        source = printable(str(first[0] if isinstance(first, tuple) and first else first), 100)
        return self._take(_Key(place, source), record, PER_SOURCE, SOURCE_RATE, now) and self._take(
            _Key(place), record, PER_PLACE, PLACE_RATE, now
        )

    def _take(self, key: _Key, record: logging.LogRecord, most: float, rate: float, now: float) -> bool:
        budget = self._budget(key, most, rate, now)
        allowed = budget.take(record, now)
        self._suppressing.pop(key, None)
        if not allowed:
            self._suppressing[key] = budget
        elif budget.suppressed:
            budget.left -= 1
            self._tell(key, budget, now)
        return allowed

    def _budget(self, key: _Key, most: float, rate: float, now: float) -> _Budget:
        """Find or make it; it is the one used last now."""
        budget = self._budgets.pop(key, None) or _Budget(most, rate, now)
        self._budgets[key] = budget
        if len(self._budgets) > MAX_KEYS:
            other, oldest = self._budgets.popitem(last=False)
            if self._suppressing.pop(other, None) is not None:
                self._tell(other, oldest, now)
        return budget

    def _tell(self, key: _Key, budget: _Budget, now: float) -> None:
        """Tell what was suppressed; of a source, only if the place has lines left."""
        if key.of is not None:
            above = _Key(key.place)
            place = self._budget(above, PER_PLACE, PLACE_RATE, now)
            if not place.take_over(budget, now):
                self._suppressing.setdefault(above, place)
                return
        super().emit(budget.told())

    def _tell_overdue(self, now: float) -> None:
        """Tell what was suppressed at places that are quiet since."""
        while self._suppressing:
            key, budget = next(iter(self._suppressing.items()))
            if now - budget.at < QUIET:
                return
            del self._suppressing[key]
            self._tell(key, budget, now)


def set_up(level: str, stream: TextIO, wanted: Callable[[logging.LogRecord], bool] = lambda record: True) -> None:
    """Send what is ``wanted`` of the process's log to ``stream``."""
    handler = LimitedHandler(stream)
    handler.addFilter(wanted)
    handler.setFormatter(LineFormatter(FORMAT))
    logging.basicConfig(level=level, handlers=[handler])
