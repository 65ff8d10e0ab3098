"""Distinguishes the server's own changes from those of other programs, which inotify reports alike.

Each name that the server creates, removes or renames is expected once. Changes of content and metadata are judged by
the file: if it is open for writing here, or was changed here a moment ago, they count as the server's own.

A change is remembered for a moment, and beyond that until its event has been read: an event loop that was held up reads
events late, and the clock would then take the server's own changes for those of others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from smb3server.backends.base import FileKey
from smb3server.backends.local import syscalls

SECONDS = 1.0
"""Seconds for which events are attributed to a change that the server made."""
_MAX_ENTRIES = 8192


class OwnChanges:
    """The recent changes by this server to the files of one backend."""

    def __init__(self) -> None:
        self.settle_later: Callable[[], None] | None = None
        """Asks the watcher to call ``settle`` when it has read the events of the next ``SECONDS``. None while no
        watcher needs the changes: then only the files open for writing are recorded."""
        self._settling = False
        """Whether ``settle`` will be called."""
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
        if self.settle_later is None:
            return
        if len(self._touched) >= _MAX_ENTRIES:
            self._touched.clear()
        self._touched[key] = time.monotonic() + SECONDS
        self._settle_later(self.settle_later)

    def expect(self, directory: int, name: str, event: int) -> None:
        """Expect ``event`` (an inotify bit) for ``name`` in ``directory`` (a descriptor)."""
        if self.settle_later is None:
            return
        if len(self._expected) >= _MAX_ENTRIES:
            self._expected.clear()
        stat = syscalls.statx(directory)
        deadlines = self._expected.setdefault((FileKey(stat.dev, stat.ino), name, event), deque())
        deadlines.append(time.monotonic() + SECONDS)
        self._settle_later(self.settle_later)

    def _settle_later(self, ask: Callable[[], None]) -> None:
        if not self._settling:
            self._settling = True
            ask()

    def is_expected(self, directory: FileKey, name: str, event: int) -> bool:
        """Return whether an event was expected. The expectation is then over."""
        key = (directory, name, event)
        deadlines = self._expected.get(key)
        if deadlines is None:
            return False
        deadlines.popleft()
        if not deadlines:
            del self._expected[key]
        return True

    def is_touched(self, key: FileKey) -> bool:
        """Return whether the server may have made a change of content or metadata that was just reported."""
        return key in self._writers or key in self._touched

    def settle(self, read_until: float) -> None:
        """Forget the changes of which the time was up at ``read_until``.

        All events up to then have been read. An expectation that is left is for a directory without a watch, or its
        event was merged with another."""
        self._settling = False
        self._touched = {key: until for key, until in self._touched.items() if until > read_until}
        for key, deadlines in list(self._expected.items()):
            while deadlines and deadlines[0] <= read_until:
                deadlines.popleft()
            if not deadlines:
                del self._expected[key]
        if (self._touched or self._expected) and self.settle_later is not None:
            self._settle_later(self.settle_later)
