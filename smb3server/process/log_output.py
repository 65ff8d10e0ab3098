"""Where the log goes, and how its lines look: text or JSON, to stderr, to the journal or to a file."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import TextIO

from smb3server.process import log_levels
from smb3server.process.log_levels import Levels
from smb3server.process.log_lines import FORMAT, LimitedHandler, LineFormatter, event_of, printable
from smb3server.process.own_files import check_planted_file
from smb3server.process.words import timestamp

FORMATS = ("text", "json")
_JOURNAL_TEXT = "%(levelname)s %(name)s: %(message)s"
"""The journal has the time."""
# Priorities of syslog(3), which sd-daemon(3) reads from the beginning of a line.
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (0, 7))


def open_append(path: Path) -> int:
    """Open a file for appending, and make it if there is none: readable by its owner and group.

    Raises ``OSError``, also for a file of another user in a folder where everybody may make files.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
    try:
        check_planted_file(descriptor, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class JsonFormatter(logging.Formatter):
    """Writes a record as one object on one line. JSON escapes what a peer has chosen.

    The fields are ``time`` (RFC 3339, UTC), ``level``, ``component``, ``message``, ``event`` and the event's own fields
    if the record reports one, and ``traceback`` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "component": log_levels.component_of(record.name),
            "message": printable(record.getMessage()),
        }
        event = event_of(record)
        if event is not None:
            line |= {"event": event.name, **event.fields}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info).split("\n")
        return json.dumps(line)


class _JournalFormatter(logging.Formatter):
    """Puts the priority in front of each line of another formatter."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        priority = next(number for level, number in _PRIORITIES if record.levelno >= level)
        return "\n".join(f"<{priority}>{line}" for line in self._inner.format(record).split("\n"))


def goes_to_journal(stream: TextIO) -> bool:
    """Return whether what is written to a stream goes to systemd's journal. [systemd.exec(5), JOURNAL_STREAM]"""
    given = os.environ.get("JOURNAL_STREAM", "")
    if not given:
        return False
    try:
        found = os.fstat(stream.fileno())
    except OSError:
        return False
    return given == f"{found.st_dev}:{found.st_ino}"


class LogOutput:
    """The log of this process. ``start`` it once; ``reopen`` it when its file was renamed."""

    def __init__(self, path: Path | None = None, form: str = "text") -> None:
        """``path``: the file; None means stderr. ``form``: one of ``FORMATS``. Raises ``OSError``."""
        self.path = path
        self._handler = LimitedHandler(self._open())
        journal = path is None and goes_to_journal(sys.stderr)
        formatter: logging.Formatter = JsonFormatter()
        if form == "text":
            formatter = LineFormatter(_JOURNAL_TEXT if journal else FORMAT)
        self._handler.setFormatter(_JournalFormatter(formatter) if journal else formatter)
        self._handler.addFilter(log_levels.is_wanted)

    def _open(self) -> TextIO:
        if self.path is None:
            return sys.stderr
        return os.fdopen(open_append(self.path), "a", encoding="utf-8", errors="backslashreplace")

    def start(self, levels: Levels) -> None:
        """Write the process's log from now on."""
        # A line that a full disk refuses is lost. It is no reason to write a traceback for each.
        logging.raiseExceptions = False
        logging.basicConfig(handlers=[self._handler], force=True)
        log_levels.apply(levels)

    def close(self) -> None:
        """Report what was suppressed, and close the file."""
        global _current  # noqa: PLW0603
        if _current is self:
            _current = None
        self._handler.close()
        if self.path is not None:
            self._handler.stream.close()

    def reopen(self) -> None:
        """Write further lines to a new file of the same name: the old one was renamed (logrotate). Raises ``OSError``,
        and goes on with the old file."""
        if self.path is None:
            return
        old = self._handler.setStream(self._open())
        if old is not None:
            old.close()


def start(levels: Levels, path: Path | None = None, form: str = "text") -> LogOutput:
    """Make the log of this process and start it. Raises ``OSError``."""
    global _current  # noqa: PLW0603
    _current = LogOutput(path, form)
    _current.start(levels)
    return _current


_current: LogOutput | None = None


def reopen() -> None:
    """Reopen the log of this process, if ``start`` has made one. Raises ``OSError``."""
    if _current is not None:
        _current.reopen()
