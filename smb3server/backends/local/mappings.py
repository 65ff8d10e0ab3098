"""Pieces of files mapped into memory, so that the kernel copies them from the page cache to a socket in one step.

Nothing but a system call may look at the memory. A file can be cut off at any time: a system call then fails with
EFAULT, but any other access ends the process (SIGBUS).

All windows of the process together are bounded, since their pages count as memory of the process (``RssFile``,
``RssShmem``), and need page tables.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections import OrderedDict

WINDOW = 64 << 20
"""Bytes of a file from one window's start to that of the next."""
OVERLAP = 8 << 20
"""Bytes that a window has in common with the next one: a read that begins in it and is not longer lies in it."""
MAX_WINDOWS = 32
KEEP_SECONDS = 1.0
"""A window that was used in this time does not make room for another. Mapping costs more than it saves if no window is
used twice."""


class _Window:
    """A mapped piece of a file."""

    __slots__ = ("index", "memory", "owner", "used")

    def __init__(self, owner: MappedFile, index: int, memory: memoryview) -> None:
        self.owner = owner
        self.index = index
        self.memory = memory
        self.used = 0.0
        """When it was used last, in seconds of the monotonic clock."""


_recent: OrderedDict[_Window, None] = OrderedDict()
# Invariant: the windows of all files, the one that has not been used for the longest time first; at most MAX_WINDOWS.
_lock = threading.Lock()
"""Held while windows are looked for, made or given up: one file's window makes room for another's, and servers on
several event loops share the room."""


class MappedFile:
    """The windows of one open file."""

    __slots__ = ("_windows",)

    def __init__(self) -> None:
        self._windows: dict[int, _Window] = {}

    def part(self, descriptor: int, offset: int, length: int, size: int) -> memoryview | None:
        """Return ``length`` bytes from ``offset`` on of a file of ``size`` bytes, at least one.

        They stay mapped as long as the view exists, even after ``close``. None: they cannot be mapped, or others need
        the room."""
        index = offset // WINDOW
        start = offset - index * WINDOW
        with _lock:
            window = self._windows.get(index)
            if window is None or start + length > len(window.memory):
                window = self._map(descriptor, index, min(WINDOW + OVERLAP, size - index * WINDOW))
                if window is None or start + length > len(window.memory):
                    return None
            window.used = time.monotonic()
            _recent.move_to_end(window)
            return window.memory[start : start + length]

    # Under the lock:

    def _map(self, descriptor: int, index: int, length: int) -> _Window | None:
        self._forget(index)
        if len(_recent) >= MAX_WINDOWS:
            oldest = next(iter(_recent))
            if time.monotonic() - oldest.used < KEEP_SECONDS:
                return None
            oldest.owner._forget(oldest.index)
        try:
            mapped = mmap.mmap(descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ, offset=index * WINDOW)
        except (OSError, ValueError):  # ValueError: the file is shorter by now
            return None
        window = _Window(self, index, memoryview(mapped))
        self._windows[index] = window
        _recent[window] = None
        return window

    def _forget(self, index: int) -> None:
        window = self._windows.pop(index, None)
        if window is not None:
            del _recent[window]

    def close(self) -> None:
        """Unmap what no view needs."""
        with _lock:
            for index in list(self._windows):
                self._forget(index)
