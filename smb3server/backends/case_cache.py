"""Case-insensitive look-up by scanning directories, with a bounded cache of their names."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from smb3server.backends import names, syscalls

MAX_NAMES = 262144
"""Names kept over all directories; a directory with more is scanned anew every time."""
TUNNEL_SECONDS = 15.0
"""As long as Windows remembers."""
MAX_TUNNEL = 1024
_BATCH = 4096
"""Names folded at a time."""
RACY_NS = 50_000_000
"""A directory changed less than this before its scan may change again without its time stamps showing it."""
RACY_SECONDS = 1.0
"""For so long such a scan (or one kept up to date from our own changes) is believed."""


class _Directory:
    __slots__ = ("ambiguous", "expires", "names", "stamp")

    def __init__(self, stamp: tuple[int, int]) -> None:
        self.stamp = stamp
        self.names: dict[str, str] = {}
        self.ambiguous = False
        self.expires: float | None = None

    def find(self, folded: str) -> str | None:
        found = self.names.get(folded)
        if found is None and names.may_be_short(folded):
            # Names are hashed rather than kept by 8.3 name, which changes would outdate: nobody asks often.
            for candidate in names.candidates(folded, self.names):
                disk = self.names[candidate]
                if names.short_name(names.to_wire(disk)) == folded:
                    return disk
        return found


class Before(NamedTuple):
    """State of a directory before a change of ours."""

    key: tuple[int, int]
    entry: _Directory | None


class CaseCache:
    """Thread-safe. Directories are given as open descriptors (O_PATH will do)."""

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._directories: OrderedDict[tuple[int, int], _Directory] = OrderedDict()
        self._count = 0
        self._tunnel: OrderedDict[tuple[tuple[int, int], str], tuple[str, float]] = OrderedDict()
        """Long names gone from a directory by directory and 8.3 name, and when to forget them."""
        self._lock = threading.Lock()
        self.scans = 0

    def find(self, directory: int, disk_name: str) -> str | None:
        """On-disk name of the entry equal to ``disk_name`` but for case (or for the mapping of characters), or of the
        one that has it as its 8.3 name.

        Directories one may not read, and ones that vanish meanwhile, match nothing.
        """
        folded = names.upcase(names.to_wire(disk_name))
        stat = syscalls.statx(directory)
        with self._lock:
            entry = self._valid((stat.dev, stat.ino), (stat.mtime, stat.ctime))
            if entry is not None:
                return entry.find(folded)
        try:
            return self._scan(directory, stat, folded)
        except (PermissionError, FileNotFoundError):
            return None

    def _valid(self, key: tuple[int, int], stamp: tuple[int, int]) -> _Directory | None:
        entry = self._directories.get(key)
        if entry is None:
            return None
        if entry.stamp != stamp or (entry.expires is not None and time.monotonic() > entry.expires):
            self._drop(key)
            return None
        self._directories.move_to_end(key)
        return entry

    def _drop(self, key: tuple[int, int]) -> None:
        entry = self._directories.pop(key, None)
        if entry is not None:
            self._count -= len(entry.names)

    def _scan(self, directory: int, stat: syscalls.Statx, folded: str) -> str | None:
        self.scans += 1
        entry = _Directory((stat.mtime, stat.ctime))
        if time.time_ns() - stat.mtime < RACY_NS:
            entry.expires = time.monotonic() + RACY_SECONDS
        found: str | None = None
        table: dict[str, str] | None = entry.names
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        try:
            with os.scandir(descriptor) as scan:
                while batch := [item.name for item in itertools.islice(scan, _BATCH)]:
                    keys = names.fold_all(batch)
                    if folded in keys:
                        equal = [name for key, name in zip(keys, batch, strict=True) if key == folded]
                        found = min(equal if found is None else [found, *equal])
                    if table is not None and len(table) + len(batch) > self._max_names:
                        table = None
                    if table is not None:
                        self._enter(entry, keys, batch)
        finally:
            os.close(descriptor)
        if table is not None:
            with self._lock:
                key_of = (stat.dev, stat.ino)
                self._drop(key_of)
                self._directories[key_of] = entry
                self._count += len(table)
                while self._count > self._max_names and len(self._directories) > 1:
                    self._drop(next(iter(self._directories)))
                return found or entry.find(folded)
        return found

    @staticmethod
    def _enter(entry: _Directory, keys: list[str], batch: list[str]) -> None:
        table = entry.names
        before = len(table)
        fresh = dict(zip(keys, batch, strict=True))
        if table.keys().isdisjoint(fresh) and len(fresh) == len(batch):
            table.update(fresh)
            return
        for key, name in zip(keys, batch, strict=True):
            table[key] = min(table.setdefault(key, name), name)
        entry.ambiguous = entry.ambiguous or len(table) < before + len(batch)

    def _remember(self, directory: tuple[int, int], disk_name: str) -> None:
        short = names.short_name(names.to_wire(disk_name))
        if short:
            with self._lock:
                self._tunnel[directory, short] = (disk_name, time.monotonic() + TUNNEL_SECONDS)
                if len(self._tunnel) > MAX_TUNNEL:
                    self._tunnel.popitem(last=False)

    def tunnelled(self, directory: int, disk_name: str) -> str:
        """The name under which to create ``disk_name``: if that is the 8.3 name of one removed a moment ago, the long
        one, as NTFS does it for programs that save by removing and creating again (tunneling,
        MS-FSA 2.1.1.1)."""
        folded = names.upcase(disk_name)
        if not self._tunnel or not names.may_be_short(folded):
            return disk_name
        stat = syscalls.statx(directory)
        with self._lock:
            long, deadline = self._tunnel.pop(((stat.dev, stat.ino), folded), (disk_name, 0.0))
        return long if deadline > time.monotonic() else disk_name

    def before(self, directory: int) -> Before:
        """Call before a change of ours in ``directory``, and ``after`` when it is done: saves the next scan."""
        stat = syscalls.statx(directory)
        key = (stat.dev, stat.ino)
        with self._lock:
            return Before(key, self._valid(key, (stat.mtime, stat.ctime)))

    def after(self, before: Before, directory: int, added: str | None = None, removed: Sequence[str] = ()) -> None:
        for name in removed:
            self._remember(before.key, name)
        entry = before.entry
        if entry is None:
            return
        stat = syscalls.statx(directory)
        with self._lock:
            if self._directories.get(before.key) is not entry:
                return
            if removed and entry.ambiguous:
                self._drop(before.key)
                return
            self._count -= len(entry.names)
            for name in removed:
                entry.names.pop(names.upcase(names.to_wire(name)), None)
            if added is not None and entry.names.setdefault(names.upcase(names.to_wire(added)), added) != added:
                entry.ambiguous = True
            self._count += len(entry.names)
            entry.stamp = (stat.mtime, stat.ctime)
            if entry.expires is None:
                entry.expires = time.monotonic() + RACY_SECONDS
