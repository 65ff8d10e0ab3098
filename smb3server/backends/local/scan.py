"""Lists a directory lazily, without opening its entries."""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Callable, Iterator

from smb3server.backends import names
from smb3server.backends.base import DirectoryEntry, FileInfo
from smb3server.backends.local import syscalls
from smb3server.backends.local.metadata import MetadataStore, file_info
from smb3server.backends.local.resolve import Resolver


def scan(
    directory: int, here: FileInfo, above: FileInfo, store: MetadataStore, resolver: Resolver
) -> Iterator[DirectoryEntry]:
    """Yield the entries of a directory, '.' and '..' first.

    ``directory`` is a descriptor for reading that no one else uses; it is closed when the iterator ends or is dropped.
    ``here`` and ``above`` are shown for '.' and '..'. Entries that vanish meanwhile are omitted. A symlink is shown as
    its target if that is beneath the share's root, and as a symlink otherwise.
    """
    for entry in search(directory, here, above, store, resolver, _everything):
        if entry is not None:
            yield entry


def search(
    directory: int,
    here: FileInfo,
    above: FileInfo,
    store: MetadataStore,
    resolver: Resolver,
    matches: Callable[[str], bool],
) -> Iterator[DirectoryEntry | None]:
    """Yield entries whose names match, as ``scan`` does, and None for every other entry, which costs its name only."""
    try:
        yield DirectoryEntry(".", here) if matches(".") else None
        yield DirectoryEntry("..", above) if matches("..") else None
        to_wire = names.to_wire
        is_private = names.is_private
        with os.scandir(directory) as entries:
            for entry in entries:
                name = entry.name
                if is_private(name):
                    continue
                shown = to_wire(name)
                yield _entry(directory, name, shown, store, resolver) if matches(shown) else None
    finally:
        os.close(directory)


def one(directory: int, name: str, store: MetadataStore, resolver: Resolver) -> Iterator[DirectoryEntry | None]:
    """Yield the entry called ``name`` on the wire, in any case, if there is one.

    This does not read the directory if the names in it are cached. ``directory`` is closed as by ``search``."""
    try:
        try:
            disk = names.to_disk(name)
        except names.InvalidName:
            return
        found = None
        if not names.is_private(disk):
            found = _entry(directory, disk, names.to_wire(disk), store, resolver)
        if found is None:
            actual = resolver.cache.find(directory, disk)
            if actual is None or names.is_private(actual):
                return
            shown = names.to_wire(actual)
            # The cache also finds names by their 8.3 names, which a search must not match.
            if names.upcase(shown) == names.upcase(name):
                found = _entry(directory, actual, shown, store, resolver)
        yield found
    finally:
        os.close(directory)


def _everything(_: str) -> bool:
    return True


def _entry(directory: int, name: str, shown: str, store: MetadataStore, resolver: Resolver) -> DirectoryEntry | None:
    """Return a directory entry. None if it does not exist, or its metadata may not be read."""
    raw = name.encode() if name.isascii() else os.fsencode(name)
    try:
        stat = syscalls.statx_at(directory, raw)
        if stat_module.S_ISLNK(stat.mode):
            info = _symlink(directory, name, store, resolver, stat)
        else:
            info = file_info(stat, store.load_entry(directory, raw, stat))
    except (FileNotFoundError, PermissionError):
        return None
    return DirectoryEntry(shown, info)


def _symlink(directory: int, name: str, store: MetadataStore, resolver: Resolver, stat: syscalls.Statx) -> FileInfo:
    try:
        target, target_stat = resolver.follow(directory, name)
    except OSError:
        # The link is dangling, loops or leads outside the share: show the link itself, so that it can be deleted.
        return file_info(stat, store.load_entry(directory, os.fsencode(name), stat))
    try:
        return file_info(target_stat, store.load(f"/proc/self/fd/{target}", target_stat))
    finally:
        os.close(target)
