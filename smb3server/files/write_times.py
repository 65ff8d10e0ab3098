"""The times that clients see of an open file: a write shows at once, unless it came through an open that has set the
time. [MS-FSA 2.1.4.17, 2.1.1.6: Open.UserSetModificationTime, UserSetChangeTime, UserSetAccessTime]

Alternate streams share the times of their file. The store keeps their data apart, so a write to one has to set the time
of the file. The store's own times change with every other write. When an open that has set a time writes, what clients
have seen until then hides the store's time, and is stored at the close of that open. [MS-FSCC 2.4.7]
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from smb3server.backends.base import FileInfo, Handle
from smb3server.wire import attributes as attr
from smb3server.wire import filetime

FREEZE, THAW = -1, -2


class TimedOpen(Protocol):
    """What this module needs of an open."""

    @property
    def handle(self) -> Handle | None: ...

    @property
    def file(self) -> TimedFile | None:
        """None for a pipe."""

    lacks_archive: bool
    """FILE_ATTRIBUTE_ARCHIVE is to be set with the next change of data."""


class Times(NamedTuple):
    """FILETIMEs that hide those of the store, or what a client does to them. None, or 0: nothing."""

    last_access: int | None = None
    last_write: int | None = None
    change: int | None = None


class WriteTimes(Protocol):
    """The times of one open file."""

    shared: bool
    """Whether they count for all streams of the file."""

    @property
    def shown(self) -> Times:
        """The times that clients see in place of the store's."""

    def keeps_write_time(self, opened: TimedOpen) -> bool:
        """Return whether writes of an open leave the last write time as it is."""

    def must_note(self, opened: TimedOpen) -> bool:
        """Return whether ``changing`` has anything to do."""

    def changing(self, opened: TimedOpen) -> None:
        """Note that an open is about to change the file's data or size."""

    def changing_entry(self, opened: TimedOpen) -> None:
        """Note that an open is about to change what the file has besides its data."""

    def make_visible(self, handle: Handle) -> None:
        """Make the time of the last write visible, for FLUSH and for changes of sizes and times."""

    def set(self, opened: TimedOpen, values: Times) -> None:
        """Note that a client sets, freezes or thaws times. Times that it sets are in the store already.

        Each value is a FILETIME, ``FREEZE``, ``THAW`` or 0 for no change."""

    def closing(self, opened: TimedOpen) -> None:
        """Make the times final for writes so far, before ``opened`` is closed."""


class TimedFile(Protocol):
    """What this module needs of an open file."""

    write_time: WriteTimes | None
    stream: str

    @property
    def opens(self) -> Sequence[TimedOpen]: ...

    def share_times(self, times: WriteTimes) -> None:
        """Give the times to all open streams of the file that have none."""


@dataclass(slots=True, eq=False)
class _Held:
    """One time of an open file that some open has set."""

    # Invariant: hider is None if, and only if, shown is None.

    read: Callable[[FileInfo], int]
    """Returns the time from the store's metadata."""
    at_once: bool = False
    """Whether a frozen time is hidden from its freezing on: the store changes it without ``changing``."""
    shown: int | None = None
    setters: set[TimedOpen] = field(default_factory=set)
    """Opens that do not change the time (Open.UserSetModificationTime and its likes)."""
    hider: TimedOpen | None = None
    """The open whose changes the store's time shows, and clients do not see."""

    def must_note(self, opened: TimedOpen) -> bool:
        return (opened in self.setters) == (self.shown is None)

    def changing(self, opened: TimedOpen) -> None:
        handle = opened.handle
        if opened not in self.setters or handle is None:
            self.hider = self.shown = None
        elif self.shown is None:
            self.hider, self.shown = opened, self.read(handle.info())

    def set(self, opened: TimedOpen, value: int) -> None:
        if value == THAW:
            self.setters.discard(opened)
        elif value:
            self.setters.add(opened)
            if value != FREEZE:
                self.hider = self.shown = None
            elif self.at_once:
                self.changing(opened)

    def closing(self, opened: TimedOpen) -> int | None:
        """Return the time to be stored, if there is one."""
        self.setters.discard(opened)
        if self.hider is not opened:
            return None
        shown, self.hider, self.shown = self.shown, None, None
        return shown


def _held() -> tuple[_Held, _Held, _Held]:
    return (
        _Held(lambda info: info.last_access_time, at_once=True),
        _Held(lambda info: info.last_write_time),
        _Held(lambda info: info.change_time),
    )


@dataclass(slots=True, eq=False)
class WriteTime:
    """The times of an open file of which some open has set one. Implements ``WriteTimes``."""

    _held: tuple[_Held, _Held, _Held] = field(default_factory=_held)
    """Those of last access, last write and change."""
    shared = True

    def keeps_write_time(self, opened: TimedOpen) -> bool:
        return opened in self._held[1].setters

    @property
    def shown(self) -> Times:
        access, write, change = self._held
        return Times(access.shown, write.shown, change.shown)

    def must_note(self, opened: TimedOpen) -> bool:
        return any(held.must_note(opened) for held in self._held)

    def changing(self, opened: TimedOpen) -> None:
        for held in self._held:
            held.changing(opened)

    def changing_entry(self, opened: TimedOpen) -> None:
        self._held[2].changing(opened)

    def make_visible(self, handle: Handle) -> None:
        """Do nothing: what is to be seen is seen at once."""

    def set(self, opened: TimedOpen, values: Times) -> None:
        for held, value in zip(self._held, values, strict=True):
            held.set(opened, value or 0)

    def closing(self, opened: TimedOpen) -> None:
        handle = opened.handle
        access, write, change = (held.closing(opened) for held in self._held)
        if handle is not None and (access, write, change) != (None, None, None):
            handle.set_times(last_access=access, last_write=write, change=change)


def visible(file: TimedFile | None, info: FileInfo) -> FileInfo:
    """Return ``info`` with the times that clients see."""
    if file is None or file.write_time is None:
        return info
    access, write, change = file.write_time.shown
    return info._replace(
        last_access_time=info.last_access_time if access is None else access,
        last_write_time=info.last_write_time if write is None else write,
        change_time=info.change_time if change is None else change,
    )


def set_by(opened: TimedOpen, values: Times) -> None:
    """Note that a client sets, freezes or thaws times, as ``WriteTimes.set``."""
    file = opened.file
    if file is None:
        return
    if file.write_time is None:
        file.share_times(WriteTime())
    if file.write_time is not None:
        file.write_time.set(opened, values)


def changing(opened: TimedOpen) -> None:
    """Note that an open is about to change the file's data or size. [MS-FSA 2.1.4.17]"""
    if opened.lacks_archive:
        set_archive(opened)
    file = opened.file
    if file is None:
        return
    times = file.write_time
    if times is not None and times.must_note(opened):
        times.changing(opened)
    if file.stream and opened.handle is not None and not (times is not None and times.keeps_write_time(opened)):
        # The data matters more: it may be written where the times of the file cannot be set.
        with contextlib.suppress(OSError):
            opened.handle.set_times(last_write=filetime.from_ns(time.time_ns()))


def changing_entry(opened: TimedOpen) -> None:
    """Note that an open is about to change what the file has besides its data: attributes, names, rights."""
    file = opened.file
    if file is not None and file.write_time is not None:
        file.write_time.changing_entry(opened)


def set_archive(opened: TimedOpen) -> None:
    """Set FILE_ATTRIBUTE_ARCHIVE, as data, name or EAs of the file change. Do nothing for a directory.
    [MS-FSA 2.1.4.17, 2.1.5.15.6]"""
    if not opened.lacks_archive:
        return
    handle = opened.handle
    opened.lacks_archive = False
    if handle is None:
        return
    # The attribute tells backup programs what to look at. It is not worth failing a write for.
    with contextlib.suppress(OSError):
        attributes = handle.info().attributes
        if not attributes & attr.ARCHIVE:
            handle.set_attributes(attributes | attr.ARCHIVE)


def attributes_changed(file: TimedFile, attributes: int) -> None:
    """Note the attributes that a client has given to a file."""
    for opened in file.opens:
        opened.lacks_archive = not attributes & attr.ARCHIVE


def make_visible(opened: TimedOpen) -> None:
    """Make the last write time visible: for FLUSH, and for changes of sizes and times."""
    file, handle = opened.file, opened.handle
    if file is not None and handle is not None and file.write_time is not None:
        file.write_time.make_visible(handle)


def closing(opened: TimedOpen) -> None:
    """Make the last write time final before ``opened`` is closed."""
    file = opened.file
    if file is not None and file.write_time is not None:
        file.write_time.closing(opened)


WRITE_TIME_DELAY = 2.0
"""Seconds after which a write shows."""
_RECENT = 0.05
"""Seconds. The time of the store is right if the write came at most this long before the close."""
_RESOLUTION = 156250
"""FILETIME units. Writes within one tick of the clock of Windows, 1/64 s, do not change the time."""


@dataclass(slots=True, eq=False)
class DelayedWriteTime:
    """The last write time as earlier versions of Windows show it: a write shows two seconds later, on a flush or on
    close. Implements ``WriteTimes``, for shares with ``delayed_write_times``. [MS-FSA 2.1.4.17 note 43]

    The store's own time changes with every write. While the file is open, a different time can hide it here. After the
    two seconds, further writes show on close only. A time that a client sets is not changed by writes of the same open.
    A time that it freezes (-1) stays until it thaws it (-2) or closes. [MS-FSCC 2.4.7]"""

    _file: TimedFile
    dirty: bool = False
    """The file was written to since the time last became visible."""
    visible_once: bool = False
    """A write has become visible already: further ones show on close or flush only."""
    _shown: int | None = None
    """The FILETIME that clients see. None means the time of the store."""
    pinned_by: TimedOpen | None = None
    """The open that has set or frozen the time."""
    _first: float = 0.0
    """When the first write came that made the file dirty, by the clock of the event loop."""
    _timer: asyncio.TimerHandle | None = None
    shared = False

    def keeps_write_time(self, opened: TimedOpen) -> bool:
        return self.pinned_by is opened

    @property
    def shown(self) -> Times:
        return Times(last_write=self._shown)

    def must_note(self, opened: TimedOpen) -> bool:
        return not self.dirty

    def changing(self, opened: TimedOpen) -> None:
        """Keep the present time visible."""
        handle = opened.handle
        if handle is None:
            return
        if self._shown is None:
            self._shown = handle.info().last_write_time
        self.dirty = True
        loop = asyncio.get_running_loop()
        self._first = loop.time()
        if not self.visible_once and self.pinned_by is None:
            self._timer = loop.call_later(WRITE_TIME_DELAY, self._on_timer)

    def changing_entry(self, opened: TimedOpen) -> None:
        """Do nothing: a change time shows at once."""

    def _on_timer(self) -> None:
        handle = next((opened.handle for opened in self._file.opens if opened.handle is not None), None)
        if handle is not None and (handle.queue is None or handle.queue.is_here):
            self.make_visible(handle)
        elif handle is not None and handle.queue is not None:
            handle.queue.add(self._on_timer)

    def make_visible(self, handle: Handle) -> None:
        """Make the time of the last write visible, unless an open has set or frozen the time."""
        self._stop_timer()
        if self.dirty and self.pinned_by is None:
            self.dirty = False
            self.visible_once = True
            self._shown = handle.info().last_write_time

    def set(self, opened: TimedOpen, values: Times) -> None:
        """Note that a client sets, freezes or thaws the last write time. A time it sets is in the store already.

        The other times are the store's."""
        handle, value = opened.handle, values.last_write
        if handle is None or not value:
            return
        if value == THAW:
            if self.pinned_by is opened:
                self.pinned_by = None
                self.dirty = False
                self._shown = None
            return
        self._stop_timer()
        self.pinned_by = opened
        if value == FREEZE:
            self._shown = self._shown or handle.info().last_write_time
        else:
            self._shown = value
        self.dirty = False

    def closing(self, opened: TimedOpen) -> None:
        """Make the time final for writes so far, before ``opened`` is closed."""
        handle = opened.handle
        if handle is None:
            return
        if self.pinned_by is opened:
            if self.dirty and self._shown is not None:
                handle.set_times(last_write=self._shown)
            self.pinned_by = None
            self.dirty = False
        elif self.pinned_by is None and self.dirty:
            now = filetime.from_ns(time.time_ns())
            if self._shown is not None and 0 <= now - self._shown < _RESOLUTION:
                handle.set_times(last_write=self._shown)
            elif asyncio.get_running_loop().time() - self._first > _RECENT:
                handle.set_times(last_write=now)
            self.dirty = False
        if not self.dirty:
            self._stop_timer()
            self._shown = None if self.pinned_by is None else self._shown
            self.visible_once = False

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
