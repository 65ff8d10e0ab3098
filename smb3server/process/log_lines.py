"""Log lines with text from peers: escaped, bounded in length and limited in number.

An unauthenticated peer may choose the names, addresses and errors in them. Unprintable characters are escaped, so that
no peer can forge a line or control the terminal that shows it.

A place in the code that logs has a budget for each source (the message's first argument: the peer's address, by
convention) and one for all sources together. A long line counts as several. Lines beyond the budget are suppressed and
counted. A line reports the count; the budget of the place pays for that line, too, so the number of lines has a limit
for any number of sources. For each place that raises an exception, one traceback is written per interval: it says as
much as the next thousand. Debug lines are not limited.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from types import TracebackType
from typing import NamedTuple, TextIO

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MAX_LENGTH = 2000
"""Most characters of a message."""
PER_SOURCE = 50
"""Most lines of one place and source in a burst."""
PER_PLACE = 100
"""Most lines of one place in a burst, of all sources together."""
SOURCE_RATE, PLACE_RATE = 0.5, 5.0
"""Lines per second by which the budgets grow."""
LINE = 200
"""Characters that count as one line."""
TRACE_INTERVAL = 60.0
"""Seconds between two tracebacks of one place."""
QUIET = 10.0
"""Seconds without a line after which the number of suppressed lines is reported."""
MAX_KEYS = 4096


class Event(NamedTuple):
    """What a line reports, as data: the attribute ``event`` of its record. A record without one is text alone."""

    name: str
    source: str
    """Whose budget pays for the line: the peer's address."""
    fields: Mapping[str, object]


def event_of(record: logging.LogRecord) -> Event | None:
    """Return the event that a record reports, if it reports one."""
    found = getattr(record, "event", None)
    return found if isinstance(found, Event) else None


def printable(text: str, most: int = MAX_LENGTH) -> str:
    """Escape unprintable characters, and truncate ``text`` to ``most`` characters."""
    if len(text) > most:
        text = f"{text[:most]}... ({len(text) - most} more)"
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def printable_tree(value: object) -> object:
    """Escape every string in a value that consists of dictionaries and lists."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_tree(key): printable_tree(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [printable_tree(entry) for entry in value]
    return value


class LineFormatter(logging.Formatter):
    """A formatter that escapes messages and marks the lines of a traceback, so that none looks like a message."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        return "\n".join(f"| {printable(line)}" for line in super().formatException(ei).split("\n"))


class _Budget:
    """The number of lines that may be written now, and the suppressed lines."""

    __slots__ = ("at", "left", "like", "most", "rate", "suppressed")

    def __init__(self, most: float, rate: float, now: float) -> None:
        self.most = most
        self.rate = rate
        self.left = most
        self.at = now
        self.suppressed = 0
        self.like = ("", 0, "")
        """Logger, level and text of the first line that was suppressed. Not the record: it may hold a traceback, whose
        frames keep many objects alive."""

    def take(self, record: logging.LogRecord, now: float) -> bool:
        """Pay for ``record`` and return True, or count it as suppressed and return False."""
        self.left = min(self.most, self.left + (now - self.at) * self.rate)
        self.at = now
        text = record.getMessage()
        if self.left >= 1:
            # The budget may become negative at the expense of later lines, so that a long line can be written as well.
            self.left -= 1 + min(len(text), MAX_LENGTH) // LINE
            return True
        if not self.suppressed:
            self.like = record.name, record.levelno, printable(text, 200)
        self.suppressed += 1
        return False

    def take_over(self, other: _Budget, now: float) -> bool:
        """Pay for the line that reports what ``other`` has suppressed and return True, or add its count to this one and
        return False."""
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
        """Return the line that reports the number of suppressed lines, and reset the count."""
        name, level, text = self.like
        text = f"{self.suppressed} more suppressed like: {text}"
        self.suppressed = 0
        return logging.LogRecord(name, level, __file__, 0, text, None, None)


class _Key(NamedTuple):
    """The owner of a budget: a place, or (with ``of``) one source or kind of exception at that place."""

    place: tuple[str, int]
    of: Hashable = None


class LimitedHandler(logging.StreamHandler[TextIO]):
    """A handler that writes to a stream as many lines as the budgets allow."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._budgets: OrderedDict[_Key, _Budget] = OrderedDict()
        """The least recently used first. Invariant: at most ``MAX_KEYS``."""
        self._suppressing: dict[_Key, _Budget] = {}
        """Budgets with suppressed lines; the one that has been quiet for the longest time is first."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record if its budgets allow it."""
        now = self._clock()
        self._tell_overdue(now)
        if record.levelno <= logging.DEBUG or self._allows(record, now):
            super().emit(record)

    def close(self) -> None:
        """Report everything that was suppressed."""
        while self._suppressing:
            key, budget = next(iter(self._suppressing.items()))
            del self._suppressing[key]
            super().emit(budget.told())
        super().close()

    def _allows(self, record: logging.LogRecord, now: float) -> bool:
        event = event_of(record)
        place = (record.pathname, record.lineno) if event is None else (event.name, 0)
        if record.exc_info and record.exc_info[0] is not None:
            trace = record.exc_info[2]
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            raised = (trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace is not None else None
            return self._take(_Key(place, (raised, record.exc_info[0])), record, 1, 1 / TRACE_INTERVAL, now)
        first = record.args[0] if isinstance(record.args, tuple) and record.args else ""
        # An address may come with its port, and one peer has many ports.
        source = printable(str(first[0] if isinstance(first, tuple) and first else first), 100)
        if event is not None:
            source = printable(event.source, 100)
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
        """Return the budget of ``key``, a new one if there is none, and mark it as used last."""
        budget = self._budgets.pop(key, None) or _Budget(most, rate, now)
        self._budgets[key] = budget
        if len(self._budgets) > MAX_KEYS:
            other, oldest = self._budgets.popitem(last=False)
            if self._suppressing.pop(other, None) is not None:
                self._tell(other, oldest, now)
        return budget

    def _tell(self, key: _Key, budget: _Budget, now: float) -> None:
        """Report what was suppressed. For a source, do so only if the budget of the place allows it."""
        if key.of is not None:
            above = _Key(key.place)
            place = self._budget(above, PER_PLACE, PLACE_RATE, now)
            if not place.take_over(budget, now):
                self._suppressing.setdefault(above, place)
                return
        super().emit(budget.told())

    def _tell_overdue(self, now: float) -> None:
        """Report what was suppressed at places that have been quiet since."""
        while self._suppressing:
            key, budget = next(iter(self._suppressing.items()))
            if now - budget.at < QUIET:
                return
            del self._suppressing[key]
            self._tell(key, budget, now)
