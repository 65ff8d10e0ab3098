"""Files in folders of the server: a look at all of them, and their removal.

Users own what lies there, and may change it at any time, on the host as well. So every folder is entered from the one
above it, by a descriptor: no symlink is followed, and no other file system is entered.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Callable, Iterator, Sequence

from smb3server.backends import names
from smb3server.backends.base import FileKey, Kept, Path
from smb3server.backends.local import release, syscalls
from smb3server.backends.local.metadata import MetadataStore
from smb3server.backends.local.resolve import Resolver

_STEP = 128
"""Entries that are looked at in one step."""
_PIECE = 3000
"""Bytes of a path that are resolved at once. PATH_MAX is 4096."""
_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READING = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_INSIDE = (
    syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS | syscalls.RESOLVE_NO_XDEV
)
_VANISHED = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV))
"""Errors of a folder that is gone, or has become a file, a symlink or the place of another file system."""


def walk(resolver: Resolver, store: MetadataStore, folder: Path, found: Callable[[Kept], None]) -> Iterator[None]:
    """Do ``Backend.list_kept``, on any thread."""
    try:
        top = resolver.open_exact([names.to_disk(component) for component in folder])
    except FileNotFoundError:
        return
    try:
        _check_ours(top, folder)
        pending: list[list[str]] = [[]]
        while pending:
            yield from _look(resolver, store, (top, folder), pending.pop(), pending, found)
    finally:
        os.close(top)


def _check_ours(top: int, folder: Path) -> None:
    """Raise PermissionError if others may put something into the folder, or under its name."""
    stat = syscalls.statx(top)
    if stat.uid not in (0, os.geteuid()) or stat.mode & (stat_module.S_IWGRP | stat_module.S_IWOTH):
        raise PermissionError(errno.EACCES, f"others may write to it (uid {stat.uid})", "/".join(folder))


def _look(
    resolver: Resolver,
    store: MetadataStore,
    start: tuple[int, Path],
    inside: list[str],
    pending: list[list[str]],
    found: Callable[[Kept], None],
) -> Iterator[None]:
    """Look at the entries of one folder. Add the folders in it to ``pending``.

    ``start``: descriptor and path of the topmost folder. ``inside``: on-disk path from there."""
    top, folder = start
    try:
        place = enter(resolver, top, inside)
        try:
            reading = os.open(".", _READING, dir_fd=place)
        except BaseException:
            os.close(place)
            raise
    except OSError as error:
        if error.errno in _VANISHED or error.errno == errno.EACCES:
            # Without rights of root: a folder that its owner has closed.
            return
        raise
    try:
        path = (*folder, *map(names.to_wire, inside))
        count = 0
        try:
            with os.scandir(reading) as entries:
                for count, entry in enumerate(entries, 1):
                    _judge(store, place, path, entry.name, inside, pending, found)
                    if count % _STEP == 0:
                        yield
        finally:
            os.close(reading)
        if not count:
            stat = syscalls.statx(place)
            found(Kept(path, FileKey(stat.dev, stat.ino), True, 0, max(stat.ctime, stat.mtime)))
    finally:
        os.close(place)
    yield


def _judge(
    store: MetadataStore,
    place: int,
    path: Path,
    name: str,
    inside: list[str],
    pending: list[list[str]],
    found: Callable[[Kept], None],
) -> None:
    raw = os.fsencode(name)
    try:
        stat = syscalls.statx_at(place, raw)
        if stat_module.S_ISDIR(stat.mode):
            pending.append([*inside, name])
            return
        since = store.deletion(place, raw, stat) if stat_module.S_ISREG(stat.mode) else stat.ctime
    except FileNotFoundError:
        return
    except PermissionError:
        since = stat.ctime
    # Blocks that are not allocated yet count, holes do not.
    size = min(stat.size, stat.blocks * 512) if stat.blocks else stat.size
    found(Kept((*path, names.to_wire(name)), FileKey(stat.dev, stat.ino), False, size, since))


def enter(resolver: Resolver, top: int, inside: Sequence[str]) -> int:
    """Return an O_PATH descriptor of a folder below ``top``, on the same file system. Raises ``OSError``."""
    descriptor = os.open(".", _FLAGS, dir_fd=top)
    device = os.fstat(top).st_dev
    at = 0
    try:
        while at < len(inside):
            end = at + 1
            if resolver.openat2:
                size = len(os.fsencode(inside[at]))
                while end < len(inside) and (size := size + 1 + len(os.fsencode(inside[end]))) < _PIECE:
                    end += 1
                child = syscalls.openat2(descriptor, os.fsencode("/".join(inside[at:end])), _FLAGS, _INSIDE)
            else:
                child = os.open(inside[at], _FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = child
            if os.fstat(descriptor).st_dev != device:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), inside[end - 1])
            at = end
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def remove(
    resolver: Resolver, store: MetadataStore, path: Path, is_spared: Callable[[FileKey], bool], key: FileKey | None
) -> bool:
    """Do ``Backend.remove_kept``."""
    disk = [names.to_disk(component) for component in path]
    try:
        top = resolver.open_exact(disk[:1])
        try:
            parent = enter(resolver, top, disk[1:-1])
        finally:
            os.close(top)
    except OSError as error:
        if error.errno in _VANISHED:
            return False
        raise
    try:
        return _remove_in(store, parent, disk[-1], is_spared, key)
    except OSError as error:
        if error.errno in (*_VANISHED, errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    finally:
        os.close(parent)


def _remove_in(
    store: MetadataStore, parent: int, name: str, is_spared: Callable[[FileKey], bool], key: FileKey | None
) -> bool:
    raw = os.fsencode(name)
    stat = syscalls.statx_at(parent, raw)
    is_folder = stat_module.S_ISDIR(stat.mode)
    there = FileKey(stat.dev, stat.ino)
    if (there != key if key is not None else not is_folder) or is_spared(there):
        return False
    # A symlink, or a device, has no attributes of ours: looking for them must not follow or open it.
    plain = is_folder or stat_module.S_ISREG(stat.mode)
    metadata = store.load_entry(parent, raw, stat) if plain else None
    if is_folder:
        os.rmdir(name, dir_fd=parent)
    else:
        held = release.hold(parent, name)
        try:
            os.unlink(name, dir_fd=parent)
        finally:
            if held is not None:
                release.close(held)
    if metadata is not None and (is_folder or stat.nlink == 1):
        store.forget(stat, metadata)
    return True
