"""The last write time as Windows shows it (MS-FSA 2.1.4.17): a write shows two seconds later, on flush or on close.

The store's own time changes with every write; what differs from it lies over it here, while the file is open. After the
two seconds further writes show on close only. A time that a client sets stays, whatever its handle writes; so does one
that it freezes (-1), until it thaws it (-2) or closes (MS-FSCC 2.4.7).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from smb3server.wire import filetime

if TYPE_CHECKING:
    from smb3server.backends.base import FileInfo, Handle

WRITE_TIME_DELAY = 2.0
_RECENT = 0.05
"""Seconds: a write so short before the close has the right time already."""
_RESOLUTION = 156250
"""FILETIME units: what is written within a tick of Windows' clock, 1/64 s, does not change the time."""
FREEZE, THAW = -1, -2


class TimedOpen(Protocol):
    """What is asked of an open."""

    @property
    def handle(self) -> Handle | None: ...

    @property
    def file(self) -> TimedFile | None:
        """None for a pipe."""
        ...


class TimedFile(Protocol):
    """What is asked of an open file."""

    write_time: WriteTime | None

    @property
    def opens(self) -> Sequence[TimedOpen]: ...


class WriteTime:
    """One open file's."""

    __slots__ = ("_file", "_first", "_timer", "dirty", "pinned_by", "settled", "shown")

    def __init__(self, file: TimedFile) -> None:
        self._file = file
        self.dirty = False
        """Written to since the time last became visible."""
        self.settled = False
        self.shown: int | None = None
        """FILETIME instead of the store's; None: the store's."""
        self.pinned_by: TimedOpen | None = None
        """Set or frozen through this open."""
        self._first = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def writing(self, handle: Handle) -> None:
        """Called before data is written, unless ``dirty``."""
        if self.shown is None:
            self.shown = handle.info().last_write_time
        self.dirty = True
        loop = asyncio.get_running_loop()
        self._first = loop.time()
        if not self.settled and self.pinned_by is None:
            self._timer = loop.call_later(WRITE_TIME_DELAY, self._on_timer)

    def _on_timer(self) -> None:
        handle = next((entry.handle for entry in self._file.opens if entry.handle is not None), None)
        if handle is not None:
            self.settle(handle)

    def settle(self, handle: Handle) -> None:
        """What was written shows now."""
        self._stop_timer()
        if self.dirty and self.pinned_by is None:
            self.dirty = False
            self.settled = True
            self.shown = handle.info().last_write_time

    def set(self, opened: TimedOpen, value: int) -> None:
        """A client has set the last write time (and the store has it), freezes or thaws it."""
        handle = opened.handle
        if handle is None or value == 0:
            return
        if value == THAW:
            if self.pinned_by is opened:
                self.pinned_by = None
                self.dirty = False
                self.shown = None
            return
        self._stop_timer()
        self.pinned_by = opened
        if value == FREEZE:
            self.shown = self.shown or handle.info().last_write_time
        else:
            self.shown = value
        self.dirty = False

    def closing(self, opened: TimedOpen) -> None:
        """``opened`` is about to be closed."""
        handle = opened.handle
        if handle is None:
            return
        if self.pinned_by is opened:
            if self.dirty and self.shown is not None:
                handle.set_times(last_write=self.shown)
            self.pinned_by = None
            self.dirty = False
        elif self.pinned_by is None and self.dirty:
            now = filetime.from_ns(time.time_ns())
            if self.shown is not None and 0 <= now - self.shown < _RESOLUTION:
                handle.set_times(last_write=self.shown)
            elif asyncio.get_running_loop().time() - self._first > _RECENT:
                handle.set_times(last_write=now)
            self.dirty = False
        if not self.dirty:
            self._stop_timer()
            self.shown = None if self.pinned_by is None else self.shown
            self.settled = False

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


def visible(file: TimedFile | None, info: FileInfo) -> FileInfo:
    """``info`` with the last write time that clients are to see."""
    if file is None or file.write_time is None or file.write_time.shown is None:
        return info
    return info._replace(last_write_time=file.write_time.shown)


def of(file: TimedFile) -> WriteTime:
    if file.write_time is None:
        file.write_time = WriteTime(file)
    return file.write_time


def settle(opened: TimedOpen) -> None:
    """FLUSH, and changes of sizes and times, make it visible."""
    file, handle = opened.file, opened.handle
    if file is not None and handle is not None and file.write_time is not None:
        file.write_time.settle(handle)


def closing(opened: TimedOpen) -> None:
    file = opened.file
    if file is not None and file.write_time is not None:
        file.write_time.closing(opened)
