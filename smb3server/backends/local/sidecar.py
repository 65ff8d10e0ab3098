"""The side-car store: what does not fit into extended attributes, as files in a directory clients never see.

Layout: ``files/<first two digits of key>/<key>/<item>``; a key is 32 hexadecimal digits. Everything happens relative to
descriptors of directories that this process (or one like it) made, mode 0700, never through a symlink.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SideCar:
    """A directory for items of files. ``open_parent`` returns a new descriptor of the directory that ``name`` is in.
    Nothing is created before the first use."""

    def __init__(self, open_parent: Callable[[], int], name: str, read_only: bool = False) -> None:
        self._open_parent = open_parent
        self._name = name
        self._read_only = read_only
        self._files: int | None = None

    def close(self) -> None:
        if self._files is not None:
            os.close(self._files)
            self._files = None

    def _root(self, create: bool) -> int | None:
        if self._files is not None:
            return self._files
        create = create and not self._read_only
        parent = self._open_parent()
        try:
            top = _enter(parent, self._name, create)
        finally:
            os.close(parent)
        if top is None:
            return None
        try:
            # Root's own is as good: a server that gave up being root goes on with what it had.
            if os.fstat(top).st_uid not in (0, os.geteuid()):
                raise PermissionError(errno.EACCES, "side-car directory belongs to another user", self._name)
            self._files = _enter(top, "files", create)
        finally:
            os.close(top)
        return self._files

    def directory(self, key: str, create: bool = False) -> int | None:
        """Return a descriptor of the key's directory, which the caller closes; None if it does not exist. Raises EROFS
        if it would have to be created on a read-only share."""
        root = self._root(create)
        if root is not None:
            shard = _enter(root, key[:2], create and not self._read_only)
            if shard is not None:
                try:
                    found = _enter(shard, key, create and not self._read_only)
                finally:
                    os.close(shard)
                if found is not None:
                    return found
        if create:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return None

    def read(self, key: str, item: str, limit: int) -> bytes | None:
        """Return the content of an item, at most ``limit`` bytes; None if it does not exist."""
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
        """Replace an item as a whole, or not at all."""
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
        directory = self.directory(key)
        if directory is None:
            return
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(item, dir_fd=directory)
        finally:
            os.close(directory)

    def remove_all(self, key: str) -> None:
        """Remove everything of a file that is gone. Open items stay usable."""
        directory = self.directory(key)
        if directory is None or self._read_only:
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
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            return None
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    return os.open(name, _DIRECTORY, dir_fd=parent)
