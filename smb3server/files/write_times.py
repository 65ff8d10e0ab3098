"""The last write time that clients see: a write shows at once, unless it came through an open that has set the time.
[MS-FSA 2.1.4.17, 2.1.1.6: Open.UserSetModificationTime]

The store's own time changes with every write. When an open that has set the time writes, what clients have seen until
then hides the store's time, and is stored at the close of that open. [MS-FSCC 2.4.7]

``delayed_write_times`` does what earlier versions of Windows did, on shares that want it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from smb3server.backends.base import FileInfo, Handle
from smb3server.wire import attributes as attr

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


class WriteTimes(Protocol):
    """The last write time of one open file."""

    shown: int | None
    """The FILETIME that clients see. None means the time of the store."""

    def must_note(self, opened: TimedOpen) -> bool:
        """Return whether ``changing`` has anything to do."""

    def changing(self, opened: TimedOpen) -> None:
        """Note that an open is about to change the file's data or size."""

    def make_visible(self, handle: Handle) -> None:
        """Make the time of the last write visible, for FLUSH and for changes of sizes and times."""

    def set(self, opened: TimedOpen, value: int) -> None:
        """Note that a client sets, freezes or thaws the last write time. A time it sets is in the store already.

        ``value`` is a FILETIME, ``FREEZE``, ``THAW`` or 0 for no change."""

    def closing(self, opened: TimedOpen) -> None:
        """Make the time final for writes so far, before ``opened`` is closed."""


class TimedFile(Protocol):
    """What this module needs of an open file."""

    write_time: WriteTimes | None

    @property
    def opens(self) -> Sequence[TimedOpen]: ...


@dataclass(slots=True, eq=False)
class WriteTime:
    """The last write time of an open file of which some open has set the time. Implements ``WriteTimes``."""

    # Invariant: _hider is None if, and only if, shown is None.

    shown: int | None = None
    _setters: set[TimedOpen] = field(default_factory=set)
    """Opens whose writes do not change the time (Open.UserSetModificationTime)."""
    _hider: TimedOpen | None = None
    """The open whose writes the store's time shows, and clients do not see."""

    def must_note(self, opened: TimedOpen) -> bool:
        return (opened in self._setters) == (self.shown is None)

    def changing(self, opened: TimedOpen) -> None:
        handle = opened.handle
        if opened not in self._setters or handle is None:
            self._hider = self.shown = None
        elif self.shown is None:
            self._hider, self.shown = opened, handle.info().last_write_time

    def make_visible(self, handle: Handle) -> None:
        """Do nothing: what is to be seen is seen at once."""

    def set(self, opened: TimedOpen, value: int) -> None:
        if value == THAW:
            self._setters.discard(opened)
        elif value:
            self._setters.add(opened)
            if value != FREEZE:
                self._hider = self.shown = None

    def closing(self, opened: TimedOpen) -> None:
        self._setters.discard(opened)
        if self._hider is opened:
            handle, shown = opened.handle, self.shown
            self._hider = self.shown = None
            if handle is not None:
                handle.set_times(last_write=shown)


def visible(file: TimedFile | None, info: FileInfo) -> FileInfo:
    """Return ``info`` with the last write time that clients see."""
    if file is None or file.write_time is None or file.write_time.shown is None:
        return info
    return info._replace(last_write_time=file.write_time.shown)


def set_by(opened: TimedOpen, value: int) -> None:
    """Note that a client sets, freezes or thaws the last write time, as ``WriteTimes.set``."""
    file = opened.file
    if file is None:
        return
    if file.write_time is None:
        file.write_time = WriteTime()
    file.write_time.set(opened, value)


def changing(opened: TimedOpen) -> None:
    """Note that an open is about to change the file's data or size. [MS-FSA 2.1.4.17]"""
    if opened.lacks_archive:
        _set_archive(opened)
    file = opened.file
    if file is not None and file.write_time is not None and file.write_time.must_note(opened):
        file.write_time.changing(opened)


def _set_archive(opened: TimedOpen) -> None:
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
