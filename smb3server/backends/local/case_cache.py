"""Looks names up ignoring case, by reading directories. A bounded cache holds their names.

A small directory is read at once. If the caller can wait (``Patience``), a large one is read on another thread:
``find`` raises ``FolderNotRead``, and is called again when the reading is over.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from smb3server.backends import names
from smb3server.backends.base import FolderNotRead
from smb3server.backends.local import syscalls
from smb3server.backends.local.folder_names import FolderNames
from smb3server.process.change_times import may_hide_a_change
from smb3server.wire.upcase import upcase

MAX_BYTES = 96 << 20
"""Bytes of memory for the names in all directories of a share. Names in a directory that needs more than that (about
three million names) are found only by their exact case."""
TUNNEL_SECONDS = 15.0
"""Seconds for which the name of a removed file is remembered, as in Windows."""
MAX_TUNNEL = 1024
AT_ONCE = 4096
"""Names that are read at once even if the caller can wait. This takes some milliseconds."""
_BATCH = 512
"""Names that are read per step. Other threads may run after each step."""
RACY_SECONDS = 1.0
"""Seconds for which names are used if the directory's time stamps may hide another change (``change_times``), or if the
names were updated by the server's own changes."""
_RACY_SHARE = 20
"""The names of a directory are used for this many times as long as reading them took, if that is longer. Then reading a
directory that changes all the time takes at most a twentieth of a processor."""
_GRACE = 0.5
"""Seconds for which the names read on another thread are used despite changes, so that the waiting requests can use
them."""


class _Directory:
    """The cached names of one directory."""

    __slots__ = ("believed_until", "complete", "counted", "expires", "names", "patience", "stamp")

    def __init__(self, stamp: tuple[int, int]) -> None:
        self.stamp = stamp
        self.names: FolderNames | None = FolderNames()
        """None means that there are too many names to keep."""
        self.complete = False
        self.counted = 0
        """Bytes for which the directory counts in ``CaseCache._bytes``."""
        self.expires: float | None = None
        """When the names are no longer used (``time.monotonic``). None means that only the time stamps decide."""
        self.patience = RACY_SECONDS
        """Seconds for which the names are used if the time stamps cannot be relied on."""
        self.believed_until = 0.0
        """Until then the names are used despite changes (``time.monotonic``)."""


class Reading:
    """A directory that is being read on another thread. See ``smb3server.backends.base.Reading``."""

    def __init__(self, steps: Iterator[None]) -> None:
        self.steps = steps
        self.started = False
        self.waiting: list[Callable[[Exception | None], None]] = []


def give_way() -> None:
    """Let another thread have the interpreter if one waits for it."""
    time.sleep(0)


class Before(NamedTuple):
    """The state of a directory before a change by this server."""

    key: tuple[int, int]
    entry: _Directory | None
    current: bool
    """Whether the names in ``entry`` were up to date."""


class Patience(Protocol):
    """Knows whether the callers that look names up can wait."""

    defer_reading: bool
    """While set, ``CaseCache.find`` raises ``FolderNotRead`` rather than read a large directory."""


class Addition(NamedTuple):
    """A name that is about to be added to a directory."""

    before: Before
    name: str
    """On disk."""
    hash: int
    """``names.fold(name).hash``."""
    present: str | None
    """The existing entry that has the name, in any case. None means that the name is free."""


class CaseCache:
    """Names of directories, for look-ups ignoring case. It is thread-safe. Directories are given as open descriptors,
    which may be O_PATH."""

    def __init__(self, max_bytes: int = MAX_BYTES, patience: Patience | None = None) -> None:
        """Create an empty cache. ``max_bytes``: memory for names.

        ``patience``: knows whether callers can wait. None means that this object's ``defer_reading`` says it."""
        self._patience: Patience = patience or self
        self._max_bytes = max_bytes
        self._directories: OrderedDict[tuple[int, int], _Directory] = OrderedDict()
        self._bytes = 0
        # Invariant: ``_bytes`` is the sum of ``counted`` over ``_directories``. Only complete entries count for more
        # than 0.
        self._readings: dict[tuple[int, int], Reading] = {}
        self._tunnel: OrderedDict[tuple[tuple[int, int], str], tuple[str, float]] = OrderedDict()
        """Removed long names by directory and 8.3 name, with the time to forget them (``time.monotonic``)."""
        self._lock = threading.Lock()
        self.scans = 0
        self.defer_reading = False
        """Whether callers can wait, if no ``patience`` was given."""
        self.exact = False
        """Whether case matters: then a name is found by itself alone."""
        self.excludes: Callable[[str], bool] = names.is_private
        """Returns whether an on-disk name exists for no client."""

    def find(self, directory: int, disk_name: str, stat: syscalls.Statx | None = None) -> str | None:
        """Return the on-disk name of the entry that equals ``disk_name`` except for case (or the mapping of
        characters), or that has it as its 8.3 name.

        None also for directories that one may not read, or that vanish meanwhile. Raises ``FolderNotRead``. ``stat``:
        that of the directory, taken before the exact name was looked up. None means that it is taken now."""
        if self.exact:
            return None
        folded = names.fold(disk_name)
        if stat is None:
            stat = syscalls.statx(directory)
        key, stamp = (stat.dev, stat.ino), (stat.mtime, stat.ctime)
        with self._lock:
            entry = self._valid(key, stamp)
            if entry is not None and entry.complete:
                return entry.names.find(folded) if entry.names is not None else None
            reading = self._readings.get(key)
        if reading is not None and self._patience.defer_reading:
            raise FolderNotRead(reading)
        try:
            entry = self._read(directory, stat, reading is None)
        except (PermissionError, FileNotFoundError):
            return None
        return entry.names.find(folded) if entry.names is not None else None

    def _valid(self, key: tuple[int, int], stamp: tuple[int, int]) -> _Directory | None:
        """Return the entry of a directory that is complete or being read. Call it under the lock."""
        entry = self._directories.get(key)
        if entry is None:
            return None
        now = time.monotonic()
        if (
            entry.complete
            and now > entry.believed_until
            and (entry.stamp != stamp or (entry.expires is not None and now > entry.expires))
        ):
            self._drop(key)
            return None
        self._directories.move_to_end(key)
        return entry

    def _read(self, directory: int, stat: syscalls.Statx, keep: bool) -> _Directory:
        """Read a directory, or begin to and raise ``FolderNotRead``. ``keep``: later look-ups use it, too."""
        self.scans += 1
        key = (stat.dev, stat.ino)
        entry = _Directory((stat.mtime, stat.ctime))
        if may_hide_a_change(max(stat.mtime, stat.ctime)):
            entry.expires = time.monotonic() + RACY_SECONDS
        steps = self._steps(directory, entry, key if keep else None)
        next(steps)
        if keep:
            with self._lock:
                if key in self._directories:
                    self._drop(key)
                self._directories[key] = entry
        try:
            for count, _ in enumerate(steps):
                if self._patience.defer_reading and keep and count * _BATCH >= AT_ONCE:
                    reading = self._readings[key] = Reading(steps)
                    raise FolderNotRead(reading)
        except FolderNotRead:
            raise
        except BaseException:
            self._forget(key, entry)
            raise
        return entry

    def _steps(self, directory: int, entry: _Directory, key: tuple[int, int] | None) -> Iterator[None]:
        """Read a directory in steps. The first step opens it, with the caller's credentials."""
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        done = False
        spent = 0.0
        try:
            with os.scandir(descriptor) as scan:
                yield
                while True:
                    began = time.monotonic()
                    batch = [item.name for item in itertools.islice(scan, _BATCH)]
                    if not batch:
                        break
                    with self._lock:
                        if entry.names is not None:
                            entry.names.read(batch)
                            if entry.names.size > self._max_bytes:
                                entry.names = None
                    spent += time.monotonic() - began
                    yield
                    if key in self._readings:
                        give_way()
            done = True
        finally:
            os.close(descriptor)
            self._finish(entry, key, spent if done else None)

    def _finish(self, entry: _Directory, key: tuple[int, int] | None, spent: float | None) -> None:
        """Complete a directory that was read in ``spent`` seconds. None means that reading it has failed."""
        with self._lock:
            deferred = self._readings.pop(key, None) is not None if key is not None else False
            if spent is None:
                if key is not None and self._directories.get(key) is entry:
                    self._drop(key)
                return
            if entry.names is not None:
                entry.names.finish()
                if entry.names.size > self._max_bytes:
                    entry.names = None
            now = time.monotonic()
            entry.patience = max(RACY_SECONDS, _RACY_SHARE * spent)
            if entry.expires is not None:
                entry.expires = now + entry.patience
            if deferred:
                entry.believed_until = now + _GRACE
            entry.complete = True
            if key is not None and self._directories.get(key) is entry:
                entry.counted = entry.names.size if entry.names is not None else 0
                self._bytes += entry.counted
                if self._bytes > self._max_bytes:
                    self._make_room(entry)

    def _make_room(self, entry: _Directory) -> None:
        """Forget the directories that were used longest ago, except ``entry``. Call it under the lock."""
        for _ in range(len(self._directories)):
            if self._bytes <= self._max_bytes:
                return
            key, oldest = next(iter(self._directories.items()))
            if oldest.complete and oldest is not entry:
                self._drop(key)
            else:
                self._directories.move_to_end(key)

    def _drop(self, key: tuple[int, int]) -> None:
        self._bytes -= self._directories.pop(key).counted

    def _forget(self, key: tuple[int, int], entry: _Directory) -> None:
        with self._lock:
            if self._directories.get(key) is entry:
                self._drop(key)

    def _remember(self, directory: tuple[int, int], disk_name: str) -> None:
        short = names.short_name(names.to_wire(disk_name))
        if short:
            with self._lock:
                self._tunnel[directory, short] = (disk_name, time.monotonic() + TUNNEL_SECONDS)
                if len(self._tunnel) > MAX_TUNNEL:
                    self._tunnel.popitem(last=False)

    def tunnelled(self, directory: int, disk_name: str) -> str:
        """Return the name under which to create ``disk_name``. This is the long name of an entry removed a moment ago
        if ``disk_name`` is its 8.3 name, as on NTFS, for programs that save by removing and creating again. [MS-FSA
        2.1.1.1]"""
        if not self._tunnel:
            return disk_name
        folded = upcase(disk_name)
        if not names.may_be_short(folded):
            return disk_name
        stat = syscalls.statx(directory)
        with self._lock:
            long, deadline = self._tunnel.pop(((stat.dev, stat.ino), folded), (disk_name, 0.0))
        return long if deadline > time.monotonic() else disk_name

    def before(self, directory: int) -> Before:
        """Return the state of ``directory`` before this server changes it.

        Pass it to ``after`` when the change is done. Then the directory need not be read again."""
        return self._before(syscalls.statx(directory))

    def _before(self, stat: syscalls.Statx) -> Before:
        key, stamp = (stat.dev, stat.ino), (stat.mtime, stat.ctime)
        with self._lock:
            entry = self._valid(key, stamp)
            return Before(key, entry, entry is not None and entry.stamp == stamp)

    def before_adding(self, directory: int, name: str) -> Addition:
        """Return the results of ``before`` and ``find`` for a name on the wire that is about to be added.

        Raises ``OSError`` for a name that no file can have."""
        disk_name = names.to_disk(name)
        if self.excludes(disk_name):
            raise PermissionError(errno.EACCES, "reserved name", disk_name)
        if self._tunnel:
            disk_name = self.tunnelled(directory, disk_name)
        folded = names.fold(disk_name)
        before = self._before(syscalls.statx(directory))
        entry, present = before.entry, None
        if self.exact:
            # O_EXCL refuses the name if it is taken.
            return Addition(before, disk_name, folded.hash, None)
        if entry is None or not entry.complete:
            present = self.find(directory, disk_name)
            before = self.before(directory)
        elif entry.names is not None:
            with self._lock:
                present = entry.names.find(folded)
        if present is not None and self.excludes(present):
            present = None
        return Addition(before, disk_name, folded.hash, present)

    def after(
        self,
        before: Before,
        directory: int,
        added: str | None = None,
        removed: Sequence[str] = (),
        added_hash: int | None = None,
    ) -> None:
        """Update the names of ``directory`` after this server has changed it.

        ``before``: the result of ``before``. ``added``, ``removed``: on-disk names. ``added_hash``:
        ``names.fold(added).hash``, if it is known."""
        for name in removed:
            self._remember(before.key, name)
        entry = before.entry
        if entry is None:
            return
        stat = syscalls.statx(directory)
        with self._lock:
            if self._directories.get(before.key) is not entry:
                return
            if entry.names is not None:
                for name in removed:
                    entry.names.remove(name)
                if added is not None:
                    entry.names.add(added, names.fold(added).hash if added_hash is None else added_hash)
                if removed and entry.complete and entry.names.outdated:
                    self._drop(before.key)
                    return
                if entry.complete:
                    self._bytes += entry.names.size - entry.counted
                    entry.counted = entry.names.size
                    if self._bytes > self._max_bytes:
                        self._make_room(entry)
            if before.current:
                entry.stamp = (stat.mtime, stat.ctime)
                if entry.expires is None:
                    entry.expires = time.monotonic() + entry.patience


class ExactNames:
    """What a ``CaseCache`` is to look-ups for which case matters: it tells the cache of changes and asks it nothing."""

    def __init__(self, cache: CaseCache) -> None:
        self._cache = cache

    def find(self, directory: int, disk_name: str, stat: syscalls.Statx | None = None) -> str | None:
        """Return None: a name is found by itself alone."""
        return None

    def before_adding(self, directory: int, name: str) -> Addition:
        """Do ``CaseCache.before_adding``. An entry whose name differs in case does not matter."""
        disk_name = names.to_disk(name)
        if self._cache.excludes(disk_name):
            raise PermissionError(errno.EACCES, "reserved name", disk_name)
        return Addition(self._cache.before(directory), disk_name, names.fold(disk_name).hash, None)

    def before(self, directory: int) -> Before:
        """Do ``CaseCache.before``."""
        return self._cache.before(directory)

    def after(
        self,
        before: Before,
        directory: int,
        added: str | None = None,
        removed: Sequence[str] = (),
        added_hash: int | None = None,
    ) -> None:
        """Do ``CaseCache.after``."""
        self._cache.after(before, directory, added, removed, added_hash)
