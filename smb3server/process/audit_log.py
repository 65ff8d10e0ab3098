"""Writes records of the audit as lines of JSON, on a thread of its own.

The event loop never waits for the disk. Records wait in a queue of limited length. A record that finds it full is
lost, and so are those that the disk refuses (ENOSPC, EIO): serving goes on. What is lost is counted. A line with the
event ``lost`` tells how many, in the file as soon as it takes lines again, and in the log. Each record is one line,
which a peer cannot forge: JSON escapes what it has chosen.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from smb3server.process.log_output import open_append
from smb3server.process.words import timestamp

log = logging.getLogger(__name__)

MAX_QUEUED = 16384
"""Records that may wait for the disk."""
BATCH = 512
"""Records that are written by one call."""
COMPLAINTS = 60.0
"""Seconds between two lines in the log about lost records."""
JOINED = 5.0
"""Seconds for which the end of the server waits for the disk."""
THREAD = "audit"
_NEWLINE = ord("\n")


def _is_torn(path: Path) -> bool:
    """Return whether a file ends within a line."""
    try:
        with path.open("rb") as file:
            return file.seek(0, os.SEEK_END) > 0 and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
    except OSError as error:
        log.debug("audit_file %s: %s", path, error)
        return False


class AuditLog:
    """The audit's file. Call ``put`` from one thread; ``close`` once."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Open the file. Raises ``OSError``."""
        self.path = path
        self.written = 0
        self.lost = 0
        """Records that were neither written nor are in the queue."""
        self._clock = clock
        self._descriptor = open_append(path)
        self._queue: deque[tuple[float, Mapping[str, object]]] = deque()
        self._changed = threading.Condition()
        # Guarded by _changed: _queue, lost, _told, _closing, _reopen.
        self._told = 0
        """How many of ``lost`` the file tells of."""
        self._complained = 0.0
        self._torn = _is_torn(path)
        """Whether the file ends within a record, as the disk was full."""
        self._closing = False
        self._reopen = False
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        self._thread.start()

    def put(self, record: Mapping[str, object]) -> None:
        """Queue a record, or count it as lost."""
        with self._changed:
            if self._closing or len(self._queue) >= MAX_QUEUED:
                self.lost += 1
                return
            self._queue.append((self._clock(), record))
            if len(self._queue) == 1:
                self._changed.notify()

    def reopen(self) -> None:
        """Write further records to a new file of the same name: the old one was renamed (logrotate)."""
        with self._changed:
            self._reopen = True
            self._changed.notify()

    def close(self) -> None:
        """Write what is queued, and close the file."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(JOINED)
        if not self._thread.is_alive():
            os.close(self._descriptor)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._queue or self._closing or self._reopen):
                    self._changed.wait()
                batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
                untold = self.lost - self._told
                reopen, self._reopen = self._reopen, False
                ends = self._closing and not batch
            if reopen:
                self._open_again()
            if ends:
                return
            if untold:
                batch.insert(0, (self._clock(), {"event": "lost", "records": untold}))
            self._write(batch, untold)

    def _open_again(self) -> None:
        try:
            descriptor = open_append(self.path)
        except OSError as error:
            log.error("audit_file %s cannot be opened again, and the old file stays in use: %s", self.path, error)
            return
        os.close(self._descriptor)
        self._descriptor, self._torn = descriptor, _is_torn(self.path)

    def _write(self, batch: list[tuple[float, Mapping[str, object]]], untold: int) -> None:
        if not batch:
            return
        lines = [json.dumps({"time": timestamp(when), **record}) for when, record in batch]
        data, done = ("\n".join(lines) + "\n").encode(), 0
        try:
            if self._torn:
                # What a full disk has left of a record stays a line of its own.
                os.write(self._descriptor, b"\n")
                self._torn = False
            while done < len(data):
                done += os.write(self._descriptor, data[done:] if done else data)
        except OSError as error:
            whole = data.count(b"\n", 0, done)
            self._torn = self._torn or (done > 0 and data[done - 1] != _NEWLINE)
            told = bool(untold) and whole > 0
            with self._changed:
                self.lost += len(batch) - bool(untold) - (whole - told)
                self.written += whole - told
                self._told += untold if told else 0
            now = time.monotonic()
            if not self._complained or now - self._complained > COMPLAINTS:
                self._complained = now
                log.error(
                    "audit_file %s: %s; %d records are lost so far; remedy: free space", self.path, error, self.lost
                )
            return
        with self._changed:
            self.written += len(batch) - bool(untold)
            self._told += untold


class AuditLines:
    """The audit in the server's log, for servers without an audit file."""

    def put(self, record: Mapping[str, object]) -> None:
        """Write a record to the log, as JSON."""
        logging.getLogger("smb3server.audit").info("%s", json.dumps(dict(record)))

    def close(self) -> None:
        """Do nothing: the log goes on."""
