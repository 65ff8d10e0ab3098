"""Searches a directory lazily, without opening its entries."""

from __future__ import annotations

import itertools
import os
import stat as stat_module
from collections.abc import Callable, Generator, Sequence

from smb3server.backends import names
from smb3server.backends.base import DirectoryEntry, FileInfo, Search
from smb3server.backends.local import syscalls
from smb3server.backends.local.metadata import MetadataStore
from smb3server.backends.local.resolve import Resolver

_NAMES = 256
"""Names that are read at a time. Those that match wait until their turn comes to be looked at."""


def _read_names(directory: int) -> Generator[list[str], None, None]:
    with os.scandir(directory) as entries:
        while found := [entry.name for entry in itertools.islice(entries, _NAMES)]:
            yield found


class Folder:
    """A directory whose entries are looked at.

    ``descriptor`` is for reading, and no one else uses it. It is closed when this is closed or dropped."""

    def __init__(self, descriptor: int, store: MetadataStore, resolver: Resolver) -> None:
        self.descriptor = descriptor
        self.resolver = resolver
        self._store = store
        self.names = _read_names(descriptor)
        """Its on-disk names, some at a time."""

    def close(self) -> None:
        """Close the descriptor. This may be called again."""
        self.names.close()
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    __del__ = close

    def entry(self, name: str, shown: str) -> DirectoryEntry | None:
        """Return the entry with an on-disk name. None if it does not exist, or its metadata may not be read.

        ``shown`` is its name on the wire. A symlink is shown as its target if that is beneath the share's root, and as
        a symlink otherwise."""
        info = self._info(name)
        return None if info is None else DirectoryEntry(shown, info)

    def infos(self, disk_names: Sequence[str]) -> list[FileInfo | None]:
        """Return the metadata of many entries, as ``entry`` does. This looks at the ordinary ones all at once."""
        found = self._store.ordinary_entries(self.descriptor, disk_names)
        if None in found:
            found = [self._info(name) if info is None else info for name, info in zip(disk_names, found, strict=True)]
        return found

    def _info(self, name: str) -> FileInfo | None:
        raw = os.fsencode(name)
        try:
            stat = syscalls.statx_at(self.descriptor, raw)
            if stat_module.S_ISLNK(stat.mode):
                return self._symlink(name, raw, stat)
            return self._store.info(stat, self._store.load_entry(self.descriptor, raw, stat))
        except (FileNotFoundError, PermissionError):
            return None

    def _symlink(self, name: str, raw: bytes, stat: syscalls.Statx) -> FileInfo:
        try:
            target, target_stat = self.resolver.follow(self.descriptor, name)
        except OSError:
            # The link is dangling, loops or leads outside the share: show the link itself, so that it can be deleted.
            return self._store.info(stat, self._store.load_entry(self.descriptor, raw, stat))
        try:
            return self._store.info(target_stat, self._store.load(f"/proc/self/fd/{target}", target_stat))
        finally:
            os.close(target)


class FolderSearch(Search):
    """A search that reads the whole directory. It takes ``folder`` over."""

    def __init__(self, folder: Folder, here: FileInfo, above: FileInfo, matches: Callable[[str], bool]) -> None:
        """``here`` and ``above`` are shown for '.' and '..'."""
        self._folder = folder
        self._matches = matches
        self._dots = [
            entry for entry in (DirectoryEntry(".", here), DirectoryEntry("..", above)) if matches(entry.name)
        ]
        # Names that were read, match, and were not looked at yet. Invariant: both lists are of the same length.
        self._on_disk: list[str] = []
        self._shown: list[str] = []
        # What the last call returned: '.' and '..', or other entries with their names.
        self._last: tuple[list[DirectoryEntry], list[str], list[str]] = ([], [], [])

    def read(self, most: int) -> Sequence[DirectoryEntry] | None:
        if self._folder.descriptor < 0:
            return None
        if self._dots:
            found, self._dots = self._dots[:most], self._dots[most:]
            self._last = found, [], []
            return found
        if not self._on_disk:
            names_read = next(self._folder.names, None)
            if names_read is None:
                self.close()
                return None
            self._take(names_read)
        on_disk, shown = self._on_disk[:most], self._shown[:most]
        infos = self._folder.infos(on_disk)
        del self._on_disk[:most], self._shown[:most]
        if None in infos:
            there = [info is not None for info in infos]
            on_disk, shown = list(itertools.compress(on_disk, there)), list(itertools.compress(shown, there))
            infos = [info for info in infos if info is not None]
        self._last = [], on_disk, shown
        # DirectoryEntry(name, info) of each, made by no code in Python: a listing has thousands.
        return list(map(tuple.__new__, itertools.repeat(DirectoryEntry), zip(shown, infos, strict=True)))

    def unread(self, count: int) -> None:
        dots, on_disk, shown = self._last
        self._dots[:0] = dots[-count:]
        self._on_disk[:0] = on_disk[-count:]
        self._shown[:0] = shown[-count:]

    def _take(self, on_disk: Sequence[str]) -> None:
        """Keep the names that match."""
        excludes = self._folder.resolver.excludes
        for name, shown in zip(on_disk, names.to_wire_all(on_disk), strict=True):
            if self._matches(shown) and not excludes(name):
                self._on_disk.append(name)
                self._shown.append(shown)

    def close(self) -> None:
        self._folder.close()


class NameSearch(Search):
    """A search for one name on the wire, in any case, which may be an 8.3 name. It takes ``folder`` over.

    It does not read the directory if the names in it are cached."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._is_over = False

    def read(self, most: int) -> Sequence[DirectoryEntry] | None:
        if self._is_over:
            return None
        found = self._find()
        self._is_over = True
        return None if found is None else [found]

    def unread(self, count: int) -> None:
        self._is_over = False

    def _find(self) -> DirectoryEntry | None:
        folder, name = self._folder, self._name
        try:
            disk = names.to_disk(name)
        except names.InvalidName:
            return None
        if not folder.resolver.excludes(disk):
            found = folder.entry(disk, names.to_wire(disk))
            if found is not None:
                return found
        actual = folder.resolver.cache.find(folder.descriptor, disk)
        if actual is None or folder.resolver.excludes(actual):
            return None
        shown = names.to_wire(actual)
        return folder.entry(actual, shown)

    def close(self) -> None:
        self._is_over = True
        self._folder.close()
