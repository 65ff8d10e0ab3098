"""Folders in a share that the server makes in its own name, because users may not make them for each other.

Nobody can prepare such a folder for another user: one that is there already counts only if its owner on the host, and
the security descriptor that is stored with it, are those that the server gives it.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module

from smb3server.backends import names
from smb3server.backends.base import KeptFolder, Path
from smb3server.backends.local import syscalls
from smb3server.backends.local.impersonate import may_act
from smb3server.backends.local.metadata import Blob, MetadataStore
from smb3server.backends.local.resolve import Resolver

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def keep(resolver: Resolver, store: MetadataStore, path: Path, wanted: KeptFolder) -> bytes:
    """Do ``Backend.keep_folder``, with the rights of the server. Raises ``OSError``."""
    disk = [names.to_disk(component) for component in path]
    name = disk[-1]
    if any(map(resolver.excludes, disk)):
        raise PermissionError(errno.EACCES, "veto_files has this name", name)
    parent = resolver.open_exact(disk[:-1])
    try:
        try:
            folder = os.open(name, _FOLDER, dir_fd=parent)
        except FileNotFoundError:
            if wanted.descriptor is None:
                raise
            return _make(resolver, store, parent, name, wanted)
        except OSError as error:
            raise OSError(error.errno, "this is no folder, but a file or a symlink", name) from None
        try:
            return _check(store, folder, name, wanted)
        finally:
            os.close(folder)
    finally:
        os.close(parent)


def _owner(wanted: KeptFolder) -> int | None:
    """Return the user id that the folder is to belong to. None means the server."""
    return wanted.user.uid if wanted.user is not None and may_act() else None


def _make(resolver: Resolver, store: MetadataStore, parent: int, name: str, wanted: KeptFolder) -> bytes:
    present = resolver.cache.find(parent, name)
    if present is not None:
        raise FileExistsError(errno.EEXIST, "another name that differs in case is there", present)
    before = resolver.cache.before(parent)
    os.mkdir(name, 0o700, dir_fd=parent)
    try:
        folder = os.open(name, _FOLDER, dir_fd=parent)
        try:
            _finish(store, folder, wanted)
        finally:
            os.close(folder)
    except BaseException:
        os.rmdir(name, dir_fd=parent)
        raise
    resolver.cache.after(before, parent, added=name)
    return wanted.descriptor or b""


def _finish(store: MetadataStore, folder: int, wanted: KeptFolder) -> None:
    """Give the folder descriptor, mode and owner."""
    store.set_blob(folder, syscalls.statx(folder), Blob.DESCRIPTOR, wanted.descriptor)
    os.fchmod(folder, wanted.mode)
    if wanted.user is not None and _owner(wanted) is not None:
        os.fchown(folder, wanted.user.uid, wanted.user.gid)


def _check(store: MetadataStore, folder: int, name: str, wanted: KeptFolder) -> bytes:
    """Take a folder that is there already, or raise PermissionError. Return its descriptor."""
    stat = syscalls.statx(folder)
    uid, stored = _owner(wanted), store.blob(folder, stat, Blob.DESCRIPTOR)
    # The folder of root counts: a server that has given up root goes on with it.
    if stat.uid not in ({0, os.geteuid()} if uid is None else {uid}) or not wanted.accepts(stored):
        raise PermissionError(
            errno.EACCES, f"made by somebody else (uid {stat.uid}); remedy: remove or rename it", name
        )
    if wanted.descriptor is not None and stored != wanted.descriptor:
        store.set_blob(folder, stat, Blob.DESCRIPTOR, wanted.descriptor)
    if stat_module.S_IMODE(stat.mode) & 0o777 != wanted.mode:
        os.fchmod(folder, wanted.mode)
    return wanted.descriptor or stored or b""
