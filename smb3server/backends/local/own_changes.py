"""Distinguishes the server's own changes from those of other programs, which inotify reports alike.

Each name that the server creates, removes or renames is expected once. Changes of content and metadata are judged by
the file: if it is open for writing here, or was changed here a moment ago, they count as the server's own.

Where the folders of two backends of this process are the same, or one lies in the other, each knows the changes of the
other: they are news for its watchers, but no changes by another program.

A change is remembered for a moment, and beyond that until its event has been read: an event loop that was held up reads
events late, and the clock would then take the server's own changes for those of others.
"""

from __future__ import annotations

import enum
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from smb3server.backends.base import FileKey
from smb3server.backends.local import syscalls

SECONDS = 1.0
"""Seconds for which events are attributed to a change that the server made."""
_MAX_ENTRIES = 8192


class Maker(enum.Enum):
    """Who made a change."""

    BACKEND = "this backend"
    SERVER = "another backend of this server"
    HOST = "another program"


_backends: weakref.WeakSet[OwnChanges] = weakref.WeakSet()
"""The changes of every backend of this process that is not closed. Servers on several event loops share them."""
_meeting = threading.Lock()
"""Held while a backend joins or leaves the others."""


class RecentChanges:
    """Changes of the last moments by one maker. Any thread may record them: worker threads make changes as well."""

    def __init__(self) -> None:
        self.settle_later: Callable[[], None] | None = None
        """Asks the watcher to call ``settle`` when it has read the events of the next ``SECONDS``. None while no
        watcher needs the changes: then only the files open for writing are recorded."""
        self._settling = False
        """Whether ``settle`` will be called."""
        self._lock = threading.Lock()
        """Held while what follows is changed."""
        # Invariant: the deadlines (of ``time.monotonic``) of a key are in ascending order, and there is at least one.
        self._expected: dict[tuple[FileKey, str, int], deque[float]] = {}
        self._touched: dict[FileKey, float] = {}

    def touch(self, key: FileKey) -> None:
        """Record that a file was changed."""
        if self.settle_later is None:
            return
        with self._lock:
            if len(self._touched) >= _MAX_ENTRIES:
                self._touched.clear()
            self._touched[key] = time.monotonic() + SECONDS
            self._settle_later()

    def expect(self, key: tuple[FileKey, str, int]) -> None:
        """Expect an event, of which ``key`` has the directory, the name and the inotify bit."""
        if self.settle_later is None:
            return
        with self._lock:
            if len(self._expected) >= _MAX_ENTRIES:
                self._expected.clear()
            deadlines = self._expected.setdefault(key, deque())
            deadlines.append(time.monotonic() + SECONDS)
            self._settle_later()

    def _settle_later(self) -> None:
        """Ask for ``settle``. To be called under the lock."""
        ask = self.settle_later
        if ask is not None and not self._settling:
            self._settling = True
            ask()

    def is_expected(self, directory: FileKey, name: str, event: int) -> bool:
        """Return whether an event was expected. The expectation is then over."""
        key = (directory, name, event)
        with self._lock:
            deadlines = self._expected.get(key)
            if deadlines is None:
                return False
            deadlines.popleft()
            if not deadlines:
                del self._expected[key]
            return True

    def is_touched(self, key: FileKey) -> bool:
        """Return whether a change of content or metadata that was just reported may be one of these."""
        return key in self._touched

    def settle(self, read_until: float) -> None:
        """Forget the changes of which the time was up at ``read_until``.

        All events up to then have been read. An expectation that is left is for a directory without a watch, or its
        event was merged with another."""
        with self._lock:
            self._settling = False
            self._touched = {key: until for key, until in self._touched.items() if until > read_until}
            for key, deadlines in list(self._expected.items()):
                while deadlines and deadlines[0] <= read_until:
                    deadlines.popleft()
                if not deadlines:
                    del self._expected[key]
            if self._touched or self._expected:
                self._settle_later()


class OwnChanges:
    """The recent changes by this server to the files of one backend."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """``root``: the folder of the backend."""
        self.here = RecentChanges()
        """Changes through this backend."""
        self.elsewhere = RecentChanges()
        """Changes through the backends whose folders hold this one's folder, or lie in it."""
        # Invariant: the number of opens for writing, at least 1.
        self._writers: dict[FileKey, int] = {}
        self._root = os.path.realpath(root)
        with _meeting:
            self._others = [other for other in _backends if _overlap(self._root, other._root)]
            for other in self._others:
                other._others = [*other._others, self]
            _backends.add(self)

    def close(self) -> None:
        """Tell the other backends of no more changes, and hear of none. Idempotent."""
        with _meeting:
            _backends.discard(self)
            others, self._others = self._others, []
            for other in others:
                other._others = [one for one in other._others if one is not self]

    def notice(self, settle_later: Callable[[], None] | None) -> None:
        """Record changes from now on: a watcher needs them, which ``settle_later`` asks to call ``settle``. None ends
        this."""
        self.here.settle_later = self.elsewhere.settle_later = settle_later

    def settle(self, read_until: float) -> None:
        """See ``RecentChanges.settle``."""
        self.here.settle(read_until)
        self.elsewhere.settle(read_until)

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

    def is_written(self, key: FileKey) -> bool:
        """Return whether somebody has a file open for writing, here or through another backend of its folder."""
        return key in self._writers or any(key in other._writers for other in self._others)

    def touch(self, key: FileKey) -> None:
        """Record that the server has changed a file."""
        self.here.touch(key)
        for other in self._others:
            other.elsewhere.touch(key)

    def expect(self, directory: int, name: str, event: int) -> None:
        """Expect ``event`` (an inotify bit) for ``name`` in ``directory`` (a descriptor)."""
        expecting = [self.here, *(other.elsewhere for other in self._others)]
        if all(changes.settle_later is None for changes in expecting):
            return
        stat = syscalls.statx(directory)
        for changes in expecting:
            changes.expect((FileKey(stat.dev, stat.ino), name, event))

    def maker_of_name(self, directory: FileKey, name: str, event: int) -> Maker:
        """Return who made, removed or renamed an entry. The expectation of it is then over."""
        if self.here.is_expected(directory, name, event):
            return Maker.BACKEND
        return Maker.SERVER if self.elsewhere.is_expected(directory, name, event) else Maker.HOST

    def maker_of_data(self, key: FileKey) -> Maker:
        """Return who may have made a change of content or metadata that was just reported."""
        if key in self._writers or self.here.is_touched(key):
            return Maker.BACKEND
        if self.elsewhere.is_touched(key) or self.is_written(key):
            return Maker.SERVER
        return Maker.HOST


def _overlap(one: str, other: str) -> bool:
    """Return whether the folders are the same, or one lies in the other."""
    return os.path.commonpath((one, other)) in (one, other)
