"""The side-car store: files in a directory that clients never see. They hold data too large for extended attributes.

Layout: ``files/<first two digits of key>/<key>/<item>``; a key is 32 hexadecimal digits. All access is relative to
descriptors of directories with mode 0700 that this process (or one like it) made, and never follows a symlink.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SideCar:
    """The side-car store of one share.

    ``open_parent`` returns a new descriptor of the directory that contains ``name``. Nothing is created before it is
    needed."""

    def __init__(self, open_parent: Callable[[], int], name: str, read_only: bool = False) -> None:
        self._open_parent = open_parent
        self._name = name
        self.read_only = read_only
        self._files: int | None = None

    def close(self) -> None:
        """Close the store's descriptor. The next use opens it again."""
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
        return self._files

    def directory(self, key: str, create: bool = False) -> int | None:
        """Return a descriptor of the key's directory, which the caller closes. None if it does not exist.

        Raises ``OSError``: EROFS if it was to be created in a read-only store."""
        root = self._root(create)
        if root is not None:
            shard = _enter(root, key[:2], create and not self.read_only)
            if shard is not None:
                try:
                    found = _enter(shard, key, create and not self.read_only)
                finally:
                    os.close(shard)
                if found is not None:
                    return found
        if create:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return None

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
        """Replace the item as a whole, or raise ``OSError`` and leave it as it was."""
        directory = self.directory(key, create=True)
        if directory is None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        temporary = f"t-{secrets.token_hex(8)}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            try:
                with open(os.open(temporary, flags, 0o600, dir_fd=directory), "wb") as file:
                    file.write(data)
                os.rename(temporary, item, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=directory)
                raise
        finally:
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
        """Remove all items of a deleted file. Open descriptors of them stay usable."""
        directory = self.directory(key)
        if directory is None or self.read_only:
            return
        try:
            for item in os.listdir(directory):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(item, dir_fd=directory)
        finally:
            os.close(directory)
        shard = os.open(key[:2], _DIRECTORY, dir_fd=self._root(False))
        try:
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(key, dir_fd=shard)
        finally:
            os.close(shard)


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
