"""Alternate data streams, kept as files in the side-car store. They are as large, sparse and fast as files.

The content of a stream is in the item ``s-<hash of its upper-cased name>``, its name as given is in ``n-<hash>``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os

from smb3server.backends.base import StreamInfo
from smb3server.backends.local import syscalls
from smb3server.backends.local.sidecar import SideCar
from smb3server.backends.names import upcase

MAX_STREAMS = 4096
"""Alternate streams of one file."""
_MAX_NAME_BYTES = 2048


def _hash(name: str) -> str:
    return hashlib.blake2b(upcase(name).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class StreamStore:
    """The alternate streams of a share's files. ``key`` is always the file's key in the side-car store."""

    def __init__(self, sidecar: SideCar) -> None:
        self._sidecar = sidecar

    def open(self, key: str, name: str, flags: int) -> tuple[int, str]:
        """Return a descriptor, and the name as it was given at the stream's creation. Raises ``FileNotFoundError``."""
        directory = self._sidecar.directory(key)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        try:
            digest = _hash(name)
            descriptor = os.open(f"s-{digest}", flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                return descriptor, self._name(directory, digest) or name
            except BaseException:
                os.close(descriptor)
                raise
        finally:
            os.close(directory)

    def name_of(self, key: str, descriptor: int) -> str:
        """Return the present name of an open stream. Raises ``FileNotFoundError`` if it was removed."""
        item = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        directory = self._sidecar.directory(key)
        if directory is not None:
            try:
                name = self._name(directory, item[2:]) if item.startswith("s-") and len(item) == 34 else None
            finally:
                os.close(directory)
            if name is not None:
                return name
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def create(self, key: str, name: str) -> int:
        """Create a stream. Return a descriptor for reading and writing.

        Raises ``FileExistsError``, and ``OSError`` (ENOSPC) for more than ``MAX_STREAMS`` streams."""
        directory = self._sidecar.directory(key, create=True)
        if directory is None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)
        digest = _hash(name)
        try:
            if len(os.listdir(directory)) >= 2 * MAX_STREAMS:
                raise OSError(errno.ENOSPC, "too many streams", name)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(f"s-{digest}", flags, 0o600, dir_fd=directory)
        finally:
            os.close(directory)
        try:
            self._sidecar.write(key, f"n-{digest}", name.encode("utf-8", "surrogatepass"))
        except BaseException:
            os.close(descriptor)
            self._sidecar.remove(key, f"s-{digest}")
            raise
        return descriptor

    @staticmethod
    def _name(directory: int, digest: str) -> str | None:
        """Return a stream's name. None if the stream's creation was interrupted."""
        try:
            descriptor = os.open(f"n-{digest}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        except FileNotFoundError:
            return None
        with open(descriptor, "rb") as file:
            return file.read(_MAX_NAME_BYTES).decode("utf-8", "surrogatepass")

    def list(self, key: str) -> list[StreamInfo]:
        """Return the alternate streams of a file, sorted by name in upper case."""
        directory = self._sidecar.directory(key)
        if directory is None:
            return []
        found = []
        try:
            for item in os.listdir(directory):
                if not item.startswith("s-"):
                    continue
                name = self._name(directory, item[2:])
                if name is not None:
                    stat = syscalls.statx_at(directory, item.encode())
                    found.append(StreamInfo(name, stat.size, max(stat.blocks * 512, -(-stat.size // 4096) * 4096)))
        finally:
            os.close(directory)
        found.sort(key=lambda stream: upcase(stream.name))
        return found

    def remove(self, key: str, name: str) -> None:
        """Remove a stream. Raises ``FileNotFoundError``."""
        digest = _hash(name)
        directory = self._sidecar.directory(key)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        try:
            os.unlink(f"s-{digest}", dir_fd=directory)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"n-{digest}", dir_fd=directory)
        finally:
            os.close(directory)

    def rename(self, key: str, name: str, new: str, replace: bool) -> None:
        """Rename a stream. Raises ``FileNotFoundError``; ``FileExistsError`` if ``new`` exists and not ``replace``."""
        old_digest, digest = _hash(name), _hash(new)
        directory = self._sidecar.directory(key)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        try:
            if old_digest != digest:
                if not replace:
                    with contextlib.suppress(FileNotFoundError):
                        os.stat(f"s-{digest}", dir_fd=directory, follow_symlinks=False)
                        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
                self._sidecar.write(key, f"n-{digest}", new.encode("utf-8", "surrogatepass"))
                os.rename(f"s-{old_digest}", f"s-{digest}", src_dir_fd=directory, dst_dir_fd=directory)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"n-{old_digest}", dir_fd=directory)
            else:
                self._sidecar.write(key, f"n-{digest}", new.encode("utf-8", "surrogatepass"))
        finally:
            os.close(directory)
