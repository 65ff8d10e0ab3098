"""The last write time as earlier versions of Windows show it: a write shows two seconds later, on a flush or on close.
[MS-FSA 2.1.4.17 note 43]

The store's own time changes with every write. While the file is open, a different time can hide it here. After the two
seconds, further writes show on close only. A time that a client sets is not changed by writes of the same open. A time
that it freezes (-1) stays until it thaws it (-2) or closes. [MS-FSCC 2.4.7]
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from smb3server.backends.base import Handle
from smb3server.files.write_times import FREEZE, THAW, TimedFile, TimedOpen
from smb3server.wire import filetime

WRITE_TIME_DELAY = 2.0
"""Seconds after which a write shows."""
_RECENT = 0.05
"""Seconds. The time of the store is right if the write came at most this long before the close."""
_RESOLUTION = 156250
"""FILETIME units. Writes within one tick of the clock of Windows, 1/64 s, do not change the time."""


@dataclass(slots=True, eq=False)
class DelayedWriteTime:
    """The last write time of one open file. Implements ``write_times.WriteTimes``."""

    _file: TimedFile
    dirty: bool = False
    """The file was written to since the time last became visible."""
    visible_once: bool = False
    """A write has become visible already: further ones show on close or flush only."""
    shown: int | None = None
    """The FILETIME that clients see. None means the time of the store."""
    pinned_by: TimedOpen | None = None
    """The open that has set or frozen the time."""
    _first: float = 0.0
    """When the first write came that made the file dirty, by the clock of the event loop."""
    _timer: asyncio.TimerHandle | None = None

    def must_note(self, opened: TimedOpen) -> bool:
        return not self.dirty

    def changing(self, opened: TimedOpen) -> None:
        """Keep the present time visible."""
        handle = opened.handle
        if handle is None:
            return
        if self.shown is None:
            self.shown = handle.info().last_write_time
        self.dirty = True
        loop = asyncio.get_running_loop()
        self._first = loop.time()
        if not self.visible_once and self.pinned_by is None:
            self._timer = loop.call_later(WRITE_TIME_DELAY, self._on_timer)

    def _on_timer(self) -> None:
        handle = next((opened.handle for opened in self._file.opens if opened.handle is not None), None)
        if handle is not None:
            self.make_visible(handle)

    def make_visible(self, handle: Handle) -> None:
        """Make the time of the last write visible, unless an open has set or frozen the time."""
        self._stop_timer()
        if self.dirty and self.pinned_by is None:
            self.dirty = False
            self.visible_once = True
            self.shown = handle.info().last_write_time

    def set(self, opened: TimedOpen, value: int) -> None:
        """Note that a client sets, freezes or thaws the last write time. A time it sets is in the store already.

        ``value`` is a FILETIME, ``FREEZE``, ``THAW`` or 0 for no change."""
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
        """Make the time final for writes so far, before ``opened`` is closed."""
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
            self.visible_once = False

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
