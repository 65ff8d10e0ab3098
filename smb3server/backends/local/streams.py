"""Alternate data streams, kept as files in the side-car store. They are as large, sparse and fast as files.

The content of a stream is in the item ``s-<hash of its upper-cased name>``, which belongs to the owner of the file: it
counts for the owner's quota. Its name as given is an extended attribute of the item. While a stream is being renamed,
and where there are no extended attributes, the name is in ``n-<hash>``, which then decides.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
from collections.abc import Iterator

from smb3server.backends.base import StreamInfo
from smb3server.backends.local import syscalls
from smb3server.backends.local.sidecar import SideCar
from smb3server.wire.upcase import upcase

MAX_STREAMS = 4096
"""Alternate streams of one file."""
FEW = 128
"""Streams that are listed at once."""
_MAX_NAME_BYTES = 2048
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.E2BIG, errno.ERANGE)
_Streams = list[StreamInfo]
Owner = tuple[int, int]
"""User and group id of a file."""


def _hash(name: str) -> str:
    return hashlib.blake2b(upcase(name).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _missing(name: str = "") -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


class StreamStore:
    """The alternate streams of a share's files. ``key`` is always the file's key in the side-car store."""

    def __init__(self, sidecar: SideCar, namespace: str | None = None) -> None:
        """``namespace``: of the attribute that has a stream's name. None means that there are none."""
        self._sidecar = sidecar
        self._attribute = f"{namespace}.smb3.stream".encode() if namespace else None
        self.refused = ""
        """Why streams can be neither made nor written here. "" if they can."""

    def _check_writable(self, name: str) -> None:
        if self.refused:
            raise PermissionError(errno.EACCES, self.refused, name)

    def open(self, key: str, name: str, flags: int, owner: Owner) -> tuple[int, str]:
        """Return a descriptor, and the name as it was given at the stream's creation. Raises ``FileNotFoundError``."""
        directory = self._sidecar.directory(key)
        if directory is None:
            raise _missing(name)
        try:
            digest = _hash(name)
            descriptor = os.open(f"s-{digest}", flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                if flags & os.O_ACCMODE != os.O_RDONLY:
                    self._check_writable(name)
                    _give(descriptor, owner)
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
        raise _missing()

    def create(self, key: str, name: str, owner: Owner) -> int:
        """Create a stream. Return a descriptor for reading and writing.

        Raises ``FileExistsError``, and ``OSError`` (ENOSPC) for more than ``MAX_STREAMS`` streams."""
        self._check_writable(name)
        directory = self._sidecar.directory(key, create=True)
        if directory is None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)
        digest = _hash(name)
        try:
            if sum(item.startswith("s-") for item in os.listdir(directory)) >= MAX_STREAMS:
                raise OSError(errno.ENOSPC, "too many streams", name)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(f"s-{digest}", flags, 0o600, dir_fd=directory)
            try:
                _give(descriptor, owner)
                self._set_name(key, descriptor, digest, name)
            except BaseException:
                os.close(descriptor)
                os.unlink(f"s-{digest}", dir_fd=directory)
                raise
        finally:
            os.close(directory)
        return descriptor

    def _set_name(self, key: str, descriptor: int, digest: str, name: str) -> None:
        """Store the name of a stream."""
        packed = name.encode("utf-8", "surrogatepass")
        if self._attribute is not None:
            try:
                os.setxattr(descriptor, self._attribute, packed)
            except OSError as error:
                if error.errno not in (*_UNSUPPORTED, *_NO_ROOM):
                    raise
            else:
                self._sidecar.remove(key, f"n-{digest}")
                return
        self._sidecar.write(key, f"n-{digest}", packed)

    def _name(self, directory: int, digest: str, beside: bool = True) -> str | None:
        """Return a stream's name. None if the stream's creation was interrupted. ``beside``: it may be in an item
        of its own."""
        if beside:
            try:
                descriptor = os.open(f"n-{digest}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            except FileNotFoundError:
                pass
            else:
                with open(descriptor, "rb") as file:
                    return file.read(_MAX_NAME_BYTES).decode("utf-8", "surrogatepass")
        if self._attribute is None:
            return None
        try:
            stored = syscalls.getxattr_at(directory, b"s-" + digest.encode(), self._attribute)
        except OSError as error:
            if error.errno not in (*_UNSUPPORTED, errno.ENOENT):
                raise
            return None
        return stored.decode("utf-8", "surrogatepass") if stored is not None else None

    def sync(self, key: str) -> None:
        """Make the names of a file's streams durable. Raises ``OSError``."""
        self._sidecar.sync(key)

    def has_many(self, key: str) -> bool:
        """Return whether a file has more than ``FEW`` streams, so that listing them takes long."""
        return len(list(itertools.islice(self._items(key), FEW + 1))) > FEW

    def has_any(self, key: str) -> bool:
        """Return whether a file has alternate streams."""
        return next(self._items(key), None) is not None

    def _items(self, key: str) -> Iterator[str]:
        """Iterate over the items with the content of streams. Each call reads as much of the directory as is taken."""
        directory = self._sidecar.directory(key)
        if directory is None:
            return
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.name.startswith("s-"):
                        yield entry.name
        finally:
            os.close(directory)

    def list(self, key: str) -> _Streams:
        """Return the alternate streams of a file, sorted by name in upper case."""
        found: _Streams = []
        for _ in self.listing(key, found):
            pass
        return found

    def listing(self, key: str, found: _Streams) -> Iterator[None]:
        """Add the streams of a file to ``found``, in steps of ``FEW`` streams. They are sorted at the end."""
        directory = self._sidecar.directory(key)
        if directory is None:
            return
        try:
            items = os.listdir(directory)
            beside = {item[2:] for item in items if item.startswith("n-")}
            for number, item in enumerate(items):
                if number % FEW == FEW - 1:
                    yield
                if not item.startswith("s-"):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    # One that is removed meanwhile is none.
                    name = self._name(directory, item[2:], item[2:] in beside)
                    if name is not None:
                        stat = syscalls.statx_at(directory, item.encode())
                        found.append(StreamInfo(name, stat.size, max(stat.blocks * 512, -(-stat.size // 4096) * 4096)))
        finally:
            os.close(directory)
        found.sort(key=lambda stream: upcase(stream.name))

    def remove(self, key: str, name: str) -> None:
        """Remove a stream. Raises ``FileNotFoundError``."""
        digest = _hash(name)
        directory = self._sidecar.directory(key)
        if directory is None:
            raise _missing(name)
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
            raise _missing(name)
        try:
            if old_digest != digest and not replace:
                with contextlib.suppress(FileNotFoundError):
                    os.stat(f"s-{digest}", dir_fd=directory, follow_symlinks=False)
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
            # The new name beside the content decides until it is stored with it: an interruption harms nothing.
            self._sidecar.write(key, f"n-{digest}", new.encode("utf-8", "surrogatepass"))
            if old_digest != digest:
                os.rename(f"s-{old_digest}", f"s-{digest}", src_dir_fd=directory, dst_dir_fd=directory)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"n-{old_digest}", dir_fd=directory)
            descriptor = os.open(f"s-{digest}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                self._set_name(key, descriptor, digest, new)
            finally:
                os.close(descriptor)
        finally:
            os.close(directory)


def _give(descriptor: int, owner: Owner) -> None:
    """Give a stream to the owner of its file, as far as this server may."""
    stat = os.fstat(descriptor)
    if (stat.st_uid, stat.st_gid) != owner:
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, *owner)
