"""Distinguishes the server's own changes from those of other programs, which inotify reports alike.

Each name that the server creates, removes or renames is expected once. Changes of content and metadata are judged by
the file: if it is open for writing here, or was changed here a moment ago, they count as the server's own.
"""

from __future__ import annotations

import time
from collections import deque

from smb3server.backends.base import FileKey
from smb3server.backends.local import syscalls

SECONDS = 1.0
"""Seconds for which events are attributed to a change that the server made."""
_MAX_ENTRIES = 8192


class OwnChanges:
    """The recent changes by this server to the files of one backend."""

    def __init__(self) -> None:
        self.watched = False
        """Whether a watcher needs the changes. Without one only the files open for writing are recorded."""
        # Invariant: the deadlines (of ``time.monotonic``) of a key are in ascending order, and there is at least one.
        self._expected: dict[tuple[FileKey, str, int], deque[float]] = {}
        self._touched: dict[FileKey, float] = {}
        # Invariant: the number of opens for writing, at least 1.
        self._writers: dict[FileKey, int] = {}

    def opened(self, key: FileKey) -> None:
        """Record that a file was opened for writing."""
        self._writers[key] = self._writers.get(key, 0) + 1

    def closed(self, key: FileKey) -> None:
        """Record that an open for writing has ended."""
        count = self._writers.get(key, 0)
        if count > 1:
            self._writers[key] = count - 1
        else:
            self._writers.pop(key, None)
        self.touch(key)

    def touch(self, key: FileKey) -> None:
        """Record that the server has changed a file."""
        if not self.watched:
            return
        now = time.monotonic()
        if len(self._touched) >= _MAX_ENTRIES:
            self._touched = {other: until for other, until in self._touched.items() if until > now}
            if len(self._touched) >= _MAX_ENTRIES:
                self._touched.clear()
        self._touched[key] = now + SECONDS

    def expect(self, directory: int, name: str, event: int) -> None:
        """Expect ``event`` (an inotify bit) for ``name`` in ``directory`` (a descriptor)."""
        if not self.watched:
            return
        now = time.monotonic()
        if len(self._expected) >= _MAX_ENTRIES:
            self._expected = {key: until for key, until in self._expected.items() if until[-1] > now}
            if len(self._expected) >= _MAX_ENTRIES:
                self._expected.clear()
        stat = syscalls.statx(directory)
        deadlines = self._expected.setdefault((FileKey(stat.dev, stat.ino), name, event), deque())
        # In a directory without a watch no event removes deadlines. They would pile up for a name that is created and
        # removed again and again.
        while deadlines and deadlines[0] <= now:
            deadlines.popleft()
        deadlines.append(now + SECONDS)

    def is_expected(self, directory: FileKey, name: str, event: int) -> bool:
        """Return whether an event was expected. The expectation is then over."""
        key = (directory, name, event)
        deadlines = self._expected.get(key)
        if deadlines is None:
            return False
        now = time.monotonic()
        found = False
        while deadlines and not found:
            found = deadlines.popleft() > now
        if not deadlines:
            del self._expected[key]
        return found

    def is_touched(self, key: FileKey) -> bool:
        """Return whether the server may have made a change of content or metadata that was just reported."""
        return key in self._writers or self._touched.get(key, 0.0) > time.monotonic()
