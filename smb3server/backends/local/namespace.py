"""Renames, links and unlinks open files. POSIX does this by name, so the file's identity is checked just before."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat as stat_module
from collections.abc import Iterator

from smb3server.backends import names
from smb3server.backends.base import Kind, Path, User
from smb3server.backends.local import release, syscalls
from smb3server.backends.local.impersonate import ActAs
from smb3server.backends.local.metadata import MetadataStore, Reference
from smb3server.backends.local.own_changes import OwnChanges
from smb3server.backends.local.resolve import Resolver
from smb3server.backends.local.syscalls import Statx
from smb3server.backends.local.watch import CREATE, DELETE, MOVED_FROM, MOVED_TO


def _exists(name: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)


class Namespace:
    """The names of the files of one share."""

    def __init__(self, resolver: Resolver, store: MetadataStore, own: OwnChanges, read_only: bool) -> None:
        self._resolver = resolver
        self._store = store
        self._own = own
        self.read_only = read_only

    def _check_writable(self) -> None:
        if self.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    @contextlib.contextmanager
    def _current(self, descriptor: int) -> Iterator[tuple[int, str, Statx]]:
        """Yield (parent's descriptor, on-disk name, stat) of an open file, after checking that it has the name.

        Raises FileNotFoundError if it has no name, PermissionError for the share's root."""
        components = self._resolver.disk_path(descriptor)
        if not components:
            raise PermissionError(errno.EACCES, "the share's root cannot be renamed or removed")
        parent = self._resolver.open_exact(components[:-1])
        try:
            stat = syscalls.statx(descriptor)
            named = syscalls.statx_at(parent, os.fsencode(components[-1]))
            if (named.dev, named.ino) != (stat.dev, stat.ino):
                raise FileNotFoundError(errno.ENOENT, "the name belongs to another file now", components[-1])
            yield parent, components[-1], stat
        finally:
            os.close(parent)

    @contextlib.contextmanager
    def _target(self, path: Path, user: User | None) -> Iterator[tuple[int, str, str, Statx | None]]:
        """Yield (parent's descriptor, requested name, name of the existing entry in any case, its stat) for a new name.

        Without an existing entry the third is the requested name, and the stat is None."""
        if not path:
            raise _exists("")
        wanted = names.to_disk(path[-1])
        with ActAs(user):
            parent, _ = self._resolver.open_parent(path)
        try:
            if self._resolver.excludes(wanted):
                raise PermissionError(errno.EACCES, "reserved name", wanted)
            present = wanted
            try:
                stat: Statx | None = syscalls.statx_at(parent, os.fsencode(wanted))
            except FileNotFoundError:
                stat = None
                actual = self._resolver.cache.find(parent, wanted)
                if actual is not None:
                    with contextlib.suppress(FileNotFoundError):
                        stat = syscalls.statx_at(parent, os.fsencode(actual))
                        present = actual
            yield parent, wanted, present, stat
        finally:
            os.close(parent)

    def rename(self, descriptor: int, kind: Kind, target: Path, replace: bool, user: User | None) -> None:
        """Rename an open file with the rights of ``user``. Raises ``OSError`` as ``Handle.rename`` does."""
        self._check_writable()
        cache = self._resolver.cache
        with self._current(descriptor) as (source_dir, source, stat), self._target(target, user) as there:
            target_dir, wanted, present, target_stat = there
            here = syscalls.statx(source_dir)
            beside = syscalls.statx(target_dir)
            same_directory = (here.dev, here.ino) == (beside.dev, beside.ino)
            itself = same_directory and present == source
            if itself and wanted == source:
                return
            if itself:
                target_stat = None
            same_file = target_stat is not None and (target_stat.dev, target_stat.ino) == (stat.dev, stat.ino)
            if target_stat is not None:
                self._check_replace(kind, target_stat, replace, present)
            before, before_target = cache.before(source_dir), cache.before(target_dir)
            replaced = None
            if target_stat is not None and target_stat.nlink == 1 and not same_file:
                replaced = self._store.load_entry(target_dir, os.fsencode(present), target_stat)
            with ActAs(user):
                if same_file:
                    # The target is another name of the same file: rename(2) would do nothing.
                    self._own.expect(target_dir, present, DELETE)
                    os.unlink(present, dir_fd=target_dir)
                    self._expect_move(source_dir, source, target_dir, wanted)
                    _rename_new(source_dir, source, target_dir, wanted)
                elif target_stat is not None:
                    self._expect_move(source_dir, source, target_dir, present)
                    _replace(source_dir, source, target_dir, present)
                else:
                    self._expect_move(source_dir, source, target_dir, wanted)
                    _rename_new(source_dir, source, target_dir, wanted)
                if target_stat is not None and present != wanted and not same_file:
                    self._expect_move(target_dir, present, target_dir, wanted)
                    _rename_new(target_dir, present, target_dir, wanted)
            if same_directory:
                cache.after(before, source_dir, removed=(source, present), added=wanted)
            else:
                cache.after(before, source_dir, removed=(source,))
                cache.after(before_target, target_dir, removed=(present,), added=wanted)
            if replaced is not None and target_stat is not None:
                self._store.forget(target_stat, replaced)

    def _expect_move(self, source_dir: int, source: str, target_dir: int, target: str) -> None:
        self._own.expect(source_dir, source, MOVED_FROM)
        self._own.expect(target_dir, target, MOVED_TO)

    @staticmethod
    def _check_replace(kind: Kind, target: Statx, replace: bool, name: str) -> None:
        if not replace:
            raise _exists(name)
        if stat_module.S_ISDIR(target.mode):
            raise IsADirectoryError(errno.EISDIR, "a directory cannot be replaced", name)
        if kind == Kind.DIRECTORY:
            raise NotADirectoryError(errno.ENOTDIR, "a directory cannot replace a file", name)

    def link(self, descriptor: int, target: Path, replace: bool, user: User | None) -> None:
        """Give an open file another name, with the rights of ``user``. Raises ``OSError``."""
        self._check_writable()
        stat = syscalls.statx(descriptor)
        origin = f"/proc/self/fd/{descriptor}"
        with self._target(target, user) as (directory, wanted, present, target_stat):
            if target_stat is not None:
                self._check_replace(Kind.FILE, target_stat, replace, present)
                if (target_stat.dev, target_stat.ino) == (stat.dev, stat.ino):
                    return
            before = self._resolver.cache.before(directory)
            if target_stat is None:
                self._own.expect(directory, wanted, CREATE)
                with ActAs(user):
                    os.link(origin, wanted, dst_dir_fd=directory, follow_symlinks=True)
                self._resolver.cache.after(before, directory, added=wanted)
                return
            replaced = self._store.load_entry(directory, os.fsencode(present), target_stat)
            temporary = f".smb3-{secrets.token_hex(8)}"
            self._own.expect(directory, temporary, CREATE)
            self._expect_move(directory, temporary, directory, present)
            with ActAs(user):
                os.link(origin, temporary, dst_dir_fd=directory, follow_symlinks=True)
                try:
                    _replace(directory, temporary, directory, present)
                except BaseException:
                    os.unlink(temporary, dir_fd=directory)
                    raise
            if target_stat.nlink == 1:
                self._store.forget(target_stat, replaced)

    def check_unlink(self, descriptor: int, user: User | None) -> None:
        """Raise PermissionError if ``user`` may not remove the name of the file. This takes write and search permission
        on the folder; in a sticky folder the user must own the file or the folder (unlink(2))."""
        with self._current(descriptor) as (parent, name, stat), ActAs(user):
            if not os.access(f"/proc/self/fd/{parent}", os.W_OK | os.X_OK, effective_ids=True):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
            folder = syscalls.statx(parent)
            acting = user.uid if user is not None else os.geteuid()
            if folder.mode & stat_module.S_ISVTX and acting not in (0, stat.uid, folder.uid):
                raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), name)

    def unlink(self, descriptor: int, kind: Kind, reference: Reference, user: User | None) -> None:
        """Remove the name of an open file with the rights of ``user``. Raises ``OSError``."""
        self._check_writable()
        with self._current(descriptor) as (parent, name, stat):
            metadata = self._store.load(reference, stat)
            before = self._resolver.cache.before(parent)
            self._own.expect(parent, name, DELETE)
            with ActAs(user):
                if kind == Kind.DIRECTORY:
                    os.rmdir(name, dir_fd=parent)
                else:
                    os.unlink(name, dir_fd=parent)
            self._resolver.cache.after(before, parent, removed=(name,))
            if kind == Kind.DIRECTORY or stat.nlink == 1:
                self._store.forget(stat, metadata)


def _replace(source_dir: int, source: str, target_dir: int, target: str) -> None:
    """Rename to a name that exists. The replaced file is freed on another thread if it is large."""
    held = release.hold(target_dir, target)
    try:
        os.rename(source, target, src_dir_fd=source_dir, dst_dir_fd=target_dir)
    finally:
        if held is not None:
            release.close(held)


def _rename_new(source_dir: int, source: str, target_dir: int, target: str) -> None:
    """Rename to a name that must not exist."""
    old, new = os.fsencode(source), os.fsencode(target)
    try:
        syscalls.renameat2(source_dir, old, target_dir, new, syscalls.RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        # File systems without RENAME_NOREPLACE return EINVAL. Then look the name up just before: another program can
        # still create it in between.
        try:
            syscalls.statx_at(target_dir, new)
        except FileNotFoundError:
            os.rename(source, target, src_dir_fd=source_dir, dst_dir_fd=target_dir)
        else:
            raise _exists(target) from None
