"""The side-car store: files in a directory that clients never see. They hold data too large for extended attributes.

It lies in the root of the share: there its files count for the space and the quotas of the share's file system. Where
the server may not write there it lies in the state directory. What an earlier run has stored in the other place is
found there, and moved by ``take_over``.

Layout: ``files/<first two digits of key>/<key>/<item>``; a key is 32 hexadecimal digits. All access is relative to
descriptors of directories with mode 0700 that this process (or one like it) made, and never follows a symlink.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import secrets
from collections.abc import Callable

from smb3server.backends.local import release

_GONE = "gone-"
"""Begins the name of a directory that is about to be removed. Nothing in it counts."""
_FEW = 64
"""Items that are removed at once."""
_PIECE = 1 << 20
_LEVELS = 5
"""Directories from a key's to the one that the store lies in."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SideCar:
    """The side-car store of one share.

    ``open_parent`` returns a new descriptor of the directory that contains ``name``. Nothing is created before it is
    needed. ``other`` is a store of an earlier run: the items of a key are all in the one or all in the other."""

    def __init__(
        self, open_parent: Callable[[], int], name: str, read_only: bool = False, other: SideCar | None = None
    ) -> None:
        self._open_parent = open_parent
        self._name = name
        self.read_only = read_only
        self._files: int | None = None
        self._other = other

    def make_writable(self) -> None:
        """Allow changes from now on."""
        self.read_only = False
        if self._other is not None:
            self._other.make_writable()

    def close(self) -> None:
        """Close the store's descriptor. The next use opens it again."""
        if self._other is not None:
            self._other.close()
        if self._files is not None:
            os.close(self._files)
            self._files = None

    def _root(self, create: bool) -> int | None:
        if self._files is not None:
            return self._files
        create = create and not self.read_only
        parent = self._open_parent()
        try:
            top = _enter(parent, self._name, create)
        finally:
            os.close(parent)
        if top is None:
            return None
        try:
            # A directory of root is accepted: a server that has given up root continues with its own store.
            if os.fstat(top).st_uid not in (0, os.geteuid()):
                raise PermissionError(errno.EACCES, "side-car directory belongs to another user", self._name)
            self._files = _enter(top, "files", create)
        finally:
            os.close(top)
        if self._files is not None and not self.read_only:
            for name in os.listdir(self._files):
                if name.startswith(_GONE):
                    # The server ended before it was removed.
                    release.later(functools.partial(_remove_tree, self._opened(), name))
        return self._files

    def _opened(self) -> int:
        """Return a new descriptor of the store's directory."""
        return os.open(".", _DIRECTORY, dir_fd=self._files)

    def directory(self, key: str, create: bool = False) -> int | None:
        """Return a descriptor of the key's directory, which the caller closes. None if it does not exist.

        Raises ``OSError``: EROFS if it was to be created in a read-only store."""
        found = self._find(key, False)
        if found is None and self._other is not None:
            found = self._other.directory(key)
        if found is None and create:
            found = self._find(key, True)
            if found is None:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return found

    def _find(self, key: str, create: bool) -> int | None:
        root = self._root(create)
        if root is None:
            return None
        shard = _enter(root, key[:2], create and not self.read_only)
        if shard is None:
            return None
        try:
            return _enter(shard, key, create and not self.read_only)
        finally:
            os.close(shard)

    def read(self, key: str, item: str, limit: int) -> bytes | None:
        """Return the content of an item, at most ``limit`` bytes. None if it does not exist."""
        directory = self.directory(key)
        if directory is None:
            return None
        try:
            descriptor = os.open(item, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        except FileNotFoundError:
            return None
        finally:
            os.close(directory)
        with open(descriptor, "rb") as file:
            return file.read(limit)

    def write(self, key: str, item: str, data: bytes) -> None:
        """Replace the item as a whole, or raise ``OSError`` and leave it as it was. A loss of power does the one or the
        other, too."""
        directory = self.directory(key, create=True)
        if directory is None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        temporary = f"t-{secrets.token_hex(8)}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            try:
                with open(os.open(temporary, flags, 0o600, dir_fd=directory), "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(temporary, item, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=directory)
                raise
        finally:
            os.close(directory)

    def sync(self, key: str) -> None:
        """Make the names of the key's items durable, and all names that lead to them. Raises ``OSError``."""
        directory = self.directory(key)
        if directory is None:
            return
        for _ in range(_LEVELS):
            try:
                os.fsync(directory)
                above = os.open("..", _DIRECTORY, dir_fd=directory)
            finally:
                os.close(directory)
            directory = above
        os.close(directory)

    def remove(self, key: str, item: str) -> None:
        """Remove an item if it exists."""
        directory = self.directory(key)
        if directory is None:
            return
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(item, dir_fd=directory)
        finally:
            os.close(directory)

    def remove_all(self, key: str) -> None:
        """Remove all items of a deleted file. Open descriptors of them stay usable.

        Many are removed on another thread. They are out of reach at once."""
        if self.read_only:
            return
        if self._other is not None:
            self._other.remove_all(key)
        directory = self._find(key, False)
        if directory is None:
            return
        try:
            items = os.listdir(directory)
            for item in items if len(items) <= _FEW else ():
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(item, dir_fd=directory)
        finally:
            os.close(directory)
        root = self._root(False)
        shard = os.open(key[:2], _DIRECTORY, dir_fd=root)
        try:
            if len(items) <= _FEW:
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(key, dir_fd=shard)
                return
            gone = f"{_GONE}{secrets.token_hex(8)}"
            os.rename(key, gone, src_dir_fd=shard, dst_dir_fd=root)
        finally:
            os.close(shard)
        release.later(functools.partial(_remove_tree, self._opened(), gone))

    def take_over(self) -> int:
        """Move what is in the other store to this one. Return how many files' items were moved.

        Raises ``OSError``, for want of space for example: then the rest stays where it is, and is found there."""
        other = self._other
        source = other._root(False) if other is not None else None
        if source is None or self.read_only:
            return 0
        moved = 0
        for shard in os.listdir(source):
            for key in _list(source, shard) if len(shard) == 2 else ():
                self._take(source, shard, key)
                moved += 1
            with contextlib.suppress(OSError):
                os.rmdir(shard, dir_fd=source)
        return moved

    def _take(self, source: int, shard: str, key: str) -> None:
        """Move the items of one key. An interruption leaves them in the one store or in both."""
        root = self._root(True)
        if root is None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        temporary = f"{_GONE}{secrets.token_hex(8)}"
        os.mkdir(temporary, 0o700, dir_fd=root)
        try:
            for item in _list(source, f"{shard}/{key}"):
                _copy(source, f"{shard}/{key}/{item}", root, f"{temporary}/{item}")
            target = _enter(root, shard, True)
            assert target is not None
            try:
                # Fails if it is there already, by an earlier interruption: then all of it is.
                with contextlib.suppress(FileExistsError):
                    os.rename(temporary, key, src_dir_fd=root, dst_dir_fd=target)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
            finally:
                os.close(target)
        finally:
            _remove_tree(os.open(".", _DIRECTORY, dir_fd=root), temporary)
        _remove_tree(os.open(shard, _DIRECTORY, dir_fd=source), key)


def _list(parent: int, path: str) -> list[str]:
    descriptor = os.open(path, _DIRECTORY, dir_fd=parent)
    try:
        return os.listdir(descriptor)
    finally:
        os.close(descriptor)


def _copy(source: int, path: str, target: int, name: str) -> None:
    """Copy a file, with its holes, owner and attributes, as far as this server may, and make it durable."""
    origin = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
    try:
        copy = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target)
        try:
            stat, at = os.fstat(origin), 0
            while at < stat.st_size:
                try:
                    at = os.lseek(origin, at, os.SEEK_DATA)
                except OSError as error:
                    if error.errno != errno.ENXIO:
                        raise
                    break
                sent = os.pread(origin, _PIECE, at)
                at += os.pwrite(copy, sent, at)
            os.ftruncate(copy, stat.st_size)
            with contextlib.suppress(PermissionError):
                os.fchown(copy, stat.st_uid, stat.st_gid)
            for attribute in os.listxattr(origin):
                os.setxattr(copy, attribute, os.getxattr(origin, attribute))
            os.fsync(copy)
        finally:
            os.close(copy)
    finally:
        os.close(origin)


def _remove_tree(parent: int, name: str) -> None:
    """Remove a directory of files, if it is there, and close ``parent``."""
    try:
        directory = os.open(name, _DIRECTORY, dir_fd=parent)
        try:
            for item in os.listdir(directory):
                os.unlink(item, dir_fd=directory)
        finally:
            os.close(directory)
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return
    finally:
        os.close(parent)


def _enter(parent: int, name: str, create: bool) -> int | None:
    """Open a directory, which is created if ``create`` is set. None if it does not exist."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            return None
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    return os.open(name, _DIRECTORY, dir_fd=parent)
