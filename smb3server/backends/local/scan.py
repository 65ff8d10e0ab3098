"""Enumerating a directory: lazily, without opening its entries."""

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
    """Return the entries of a directory. This takes over ``directory``, a descriptor for reading, and closes it when
    done or dropped.

    Entries that vanish meanwhile are left out. A symlink appears as its target if that is below the share's root, as a
    symlink otherwise."""
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
    """Return the entries whose names match, as ``scan`` does; None for each other entry, of which only the name is
    read."""
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
    """Return the entry called ``name`` on the wire, in any case, if it exists: without reading the directory if its
    names are known. This takes over ``directory`` as ``search`` does."""
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
            # It may have been found by its 8.3 name, which searches do not look at.
            if names.upcase(shown) == names.upcase(name):
                found = _entry(directory, actual, shown, store, resolver)
        yield found
    finally:
        os.close(directory)


def _everything(_: str) -> bool:
    return True


def _entry(directory: int, name: str, shown: str, store: MetadataStore, resolver: Resolver) -> DirectoryEntry | None:
    """Return an entry; None if it is gone, or may not be looked at."""
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
        # Dangling, looping or leading outside: the link itself, which can be deleted.
        return file_info(stat, store.load_entry(directory, os.fsencode(name), stat))
    try:
        return file_info(target_stat, store.load(f"/proc/self/fd/{target}", target_stat))
    finally:
        os.close(target)
