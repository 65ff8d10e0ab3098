"""Distinguishing changes of the server from those of other programs: inotify reports both without saying whose they
are.

Created, removed and renamed names are expected one by one. Content and metadata are attributed by file: changes of a
file that is open for writing here, or was changed here a moment ago, count as the server's own."""

from __future__ import annotations

import time
from collections import deque

from smb3server.backends.base import FileKey
from smb3server.backends.local import syscalls

SECONDS = 1.0
"""For so long a change of ours explains events."""
_MAX_ENTRIES = 8192


class OwnChanges:
    def __init__(self) -> None:
        self.watched = False
        """Whether anybody wants to know; without, nothing but open files is kept."""
        self._expected: dict[tuple[FileKey, str, int], deque[float]] = {}
        self._touched: dict[FileKey, float] = {}
        self._writers: dict[FileKey, int] = {}

    def opened(self, key: FileKey) -> None:
        """Note that the file was opened for writing."""
        self._writers[key] = self._writers.get(key, 0) + 1

    def closed(self, key: FileKey) -> None:
        count = self._writers.get(key, 0)
        if count > 1:
            self._writers[key] = count - 1
        else:
            self._writers.pop(key, None)
        self.touch(key)

    def touch(self, key: FileKey) -> None:
        if not self.watched:
            return
        now = time.monotonic()
        if len(self._touched) >= _MAX_ENTRIES:
            self._touched = {other: until for other, until in self._touched.items() if until > now}
            if len(self._touched) >= _MAX_ENTRIES:
                self._touched.clear()
        self._touched[key] = now + SECONDS

    def expect(self, directory: int, name: str, event: int) -> None:
        """Expect ``event`` (an inotify bit) for ``name`` in ``directory``: the server is about to cause it."""
        if not self.watched:
            return
        now = time.monotonic()
        if len(self._expected) >= _MAX_ENTRIES:
            self._expected = {key: until for key, until in self._expected.items() if until[-1] > now}
            if len(self._expected) >= _MAX_ENTRIES:
                self._expected.clear()
        stat = syscalls.statx(directory)
        deadlines = self._expected.setdefault((FileKey(stat.dev, stat.ino), name, event), deque())
        # Nobody uses them up in a directory that is not watched: a name that comes and goes all day has many.
        while deadlines and deadlines[0] <= now:
            deadlines.popleft()
        deadlines.append(now + SECONDS)

    def is_expected(self, directory: FileKey, name: str, event: int) -> bool:
        """Return whether an event was expected, and use up the expectation."""
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
        return key in self._writers or self._touched.get(key, 0.0) > time.monotonic()
