"""Enumerating a directory: lazily, without opening its entries."""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Iterator

from smb3server.backends import names, syscalls
from smb3server.backends.base import DirectoryEntry, FileInfo
from smb3server.backends.metadata import MetadataStore, file_info
from smb3server.backends.resolve import Resolver


def scan(
    directory: int, here: FileInfo, above: FileInfo, store: MetadataStore, resolver: Resolver
) -> Iterator[DirectoryEntry]:
    """Takes over ``directory``, a descriptor of its own for reading, and closes it when done or dropped.

    Entries that vanish meanwhile are left out. A symlink shows as what it leads to if it stays beneath the share's
    root, as a symlink otherwise.
    """
    try:
        yield DirectoryEntry(".", here)
        yield DirectoryEntry("..", above)
        to_wire = names.to_wire
        is_private = names.is_private
        statx_at = syscalls.statx_at
        load_entry = store.load_entry
        fsencode = os.fsencode
        with os.scandir(directory) as entries:
            for entry in entries:
                name = entry.name
                if is_private(name):
                    continue
                raw = name.encode() if name.isascii() else fsencode(name)
                try:
                    stat = statx_at(directory, raw)
                    if stat_module.S_ISLNK(stat.mode):
                        info = _symlink(directory, name, store, resolver, stat)
                    else:
                        info = file_info(stat, load_entry(directory, raw, stat))
                except (FileNotFoundError, PermissionError):
                    continue
                yield DirectoryEntry(to_wire(name), info)
    finally:
        os.close(directory)


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
