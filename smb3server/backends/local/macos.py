"""The store of a share for Macs: a local one whose streams follow the rules of Apple's file servers.

- AFP_AfpInfo always has 60 bytes. Reads and writes begin at its start, and all-zero Finder information is none.
- AFP_Resource is removed by cutting it to nothing, not by deletion.
- For Macs, any named stream without data is none: it is not listed, opening it finds nothing, and it is gone with its
  last handle. For other clients it is a stream, as on Windows.
- What Macs, netatalk and Samba keep of a file elsewhere is moved into its streams when these are first looked at.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import cast

from smb3server.backends import names
from smb3server.backends.base import (
    NO_FINDER_DATA,
    Backend,
    Described,
    FileInfo,
    FileKey,
    FinderData,
    Handle,
    Kind,
    OpenedFile,
    OpenRequest,
    Path,
    StreamInfo,
    User,
)
from smb3server.backends.local import foreign_streams, syscalls
from smb3server.backends.local.backend import LocalBackend, PosixStore
from smb3server.backends.local.backups import Backups
from smb3server.backends.local.handle import LocalHandle
from smb3server.backends.local.metadata import Blob
from smb3server.backends.local.streams import Owner, StreamStore
from smb3server.backends.local.syscalls import Statx
from smb3server.backends.name_rules import stream_key
from smb3server.wire import apple
from smbdirect.codec import Buffer
from smbdirect.message_transport import FileRange

_INFO_KEY, _RESOURCE_KEY = stream_key(apple.AFP_INFO), stream_key(apple.AFP_RESOURCE)
_BLANK_INFO = apple.AFP_INFO_LAYOUT.pack(apple.AfpInfo())
_SIZE = apple.AFP_INFO_SIZE
_LEAST = 3
"""Bytes of the shortest write that Apple's server takes for AFP_AfpInfo."""


class MacStreams(StreamStore):
    """Streams of which those without data do not count, or count for some clients only."""

    by_mac = False
    """Whether a Mac is opening a stream."""

    def open(self, key: str, name: str, flags: int, owner: Owner) -> tuple[int, str]:
        """As in ``StreamStore``. What is opened for writing can be read, too."""
        if flags & os.O_ACCMODE == os.O_WRONLY:
            flags = flags & ~os.O_ACCMODE | os.O_RDWR
        descriptor, given = super().open(key, name, flags, owner)
        try:
            if not _counts(descriptor, name, self.by_mac):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, given

    def create(self, key: str, name: str, owner: Owner) -> int:
        """As in ``StreamStore``. A stream that does not count may be there, and be open."""
        try:
            return super().create(key, name, owner)
        except FileExistsError:
            descriptor, _ = super().open(key, name, os.O_RDWR, owner)
            if _counts(descriptor, name, self.by_mac):
                os.close(descriptor)
                raise
            os.ftruncate(descriptor, 0)
            return descriptor

    def listing(self, key: str, found: list[StreamInfo]) -> Iterator[None]:
        everything: list[StreamInfo] = []
        yield from super().listing(key, everything)
        for stream in everything:
            name = stream_key(stream.name)
            if name == _INFO_KEY:
                counts = self.info(key) is not None
            else:
                counts = (stream.size > 0 or name != _RESOURCE_KEY) and stream.name != foreign_streams.UNFINISHED
            if counts:
                found.append(stream)

    def info(self, key: str) -> apple.AfpInfo | None:
        """Return AFP_AfpInfo of a file. None if it has none."""
        try:
            descriptor, _ = super().open(key, apple.AFP_INFO, os.O_RDONLY | os.O_CLOEXEC, (0, 0))
        except FileNotFoundError:
            return None
        try:
            return apple.parse_afp_info(os.pread(descriptor, _SIZE + 1, 0))
        finally:
            os.close(descriptor)

    def resource_size(self, key: str) -> int:
        """Return the bytes of a file's resource fork. 0 if it has none."""
        try:
            descriptor, _ = super().open(key, apple.AFP_RESOURCE, os.O_RDONLY | os.O_CLOEXEC, (0, 0))
        except FileNotFoundError:
            return 0
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)


def _counts(descriptor: int, name: str, by_mac: bool) -> bool:
    """Return whether an open stream is one for a client."""
    key = stream_key(name)
    if key == _INFO_KEY:
        return apple.parse_afp_info(os.pread(descriptor, _SIZE + 1, 0)) is not None
    return os.fstat(descriptor).st_size > 0 or not (by_mac or key == _RESOURCE_KEY)


class MacBackend(LocalBackend):
    """A directory of this machine, for Macs."""

    streams: MacStreams
    stream_store = MacStreams

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.handle_type = MacHandle
        self.open_streams: dict[FileKey, int] = {}
        """How many handles a stream's item has. Those without any are left out."""
        self.complaints: set[FileKey] = set()
        """Files whose foreign metadata cannot be moved."""
        self._backups = Backups()

    def backups_size(self) -> int:
        return self._backups.size(self._root)

    def counting_backups(self) -> Iterator[None] | None:
        return self._backups.counting(self._root)

    def as_posix(self) -> Backend:
        if self._posix is None:
            self._posix = _PosixMacStore(self)
        return self._posix

    def stream_type(self, name: str) -> type[LocalHandle]:
        key = stream_key(name)
        return _AfpInfoHandle if key == _INFO_KEY else _ResourceHandle if key == _RESOURCE_KEY else _StreamHandle

    def take_over(self, descriptor: int, stat: Statx) -> Statx:
        """Move into a file's streams what is kept elsewhere. Return the file's stat after that."""
        if self.read_only or self.streams.refused or not foreign_streams.take_over(self, descriptor, stat):
            return stat
        return syscalls.statx(descriptor)

    def find_number(self, number: int) -> Path:
        file_id = self.file_ids.of_number(number)
        if file_id is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        try:
            descriptor = self.file_ids.open(file_id)
        except FileNotFoundError:
            raise
        except OSError as error:
            # No file system agrees about numbers that it never gave.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
        try:
            return tuple(map(names.to_wire, self.resolver.disk_path(descriptor)))
        finally:
            os.close(descriptor)

    def open(self, request: OpenRequest) -> Handle:
        return self._for_client(super().open(request), request)

    def open_described(self, request: OpenRequest) -> OpenedFile:
        found = super().open_described(request)
        self._for_client(found.handle, request)
        return found

    def create_in(self, folder: Handle, request: OpenRequest) -> OpenedFile:
        found = super().create_in(folder, request)
        self._for_client(found.handle, request)
        return found

    @staticmethod
    def _for_client(handle: Handle, request: OpenRequest) -> Handle:
        cast(MacHandle, handle).by_mac = request.by_mac
        return handle

    def _open_stream(self, request: OpenRequest, descriptor: int, stat: Statx, kind: Kind) -> LocalHandle:
        stat = self.take_over(descriptor, stat)
        self.streams.by_mac = request.by_mac
        try:
            return super()._open_stream(request, descriptor, stat, kind)
        finally:
            self.streams.by_mac = False


class _PosixMacStore(PosixStore, MacBackend):
    """A store for Macs as the POSIX extensions see it."""

    __slots__ = ()


class MacHandle(LocalHandle):
    """A file or folder of a share for Macs."""

    __slots__ = ("by_mac",)

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.by_mac = False

    @property
    def _mac(self) -> MacBackend:
        return cast(MacBackend, self._backend)

    def _take_over(self) -> Statx:
        descriptor = self._descriptor()
        return self._mac.take_over(descriptor, syscalls.statx(descriptor))

    def streams(self) -> list[StreamInfo]:
        self._take_over()
        return self._counting(super().streams())

    def _counting(self, streams: list[StreamInfo]) -> list[StreamInfo]:
        return [stream for stream in streams if stream.size or not stream.name or not self.by_mac]

    def listing_streams(self, found: list[StreamInfo]) -> Iterator[None] | None:
        self._take_over()
        everything: list[StreamInfo] = []
        steps = super().listing_streams(everything)
        return None if steps is None else self._count(steps, everything, found)

    def _count(self, steps: Iterator[None], everything: list[StreamInfo], found: list[StreamInfo]) -> Iterator[None]:
        yield from steps
        found += self._counting(everything)

    def removing_streams(self, spared: Collection[str], removed: list[str]) -> Iterator[None] | None:
        self._take_over()
        return super().removing_streams(spared, removed)

    def rename(self, target: Path, replace: bool, user: User | None = None) -> None:
        self._take_over()
        super().rename(target, replace, user)

    def unlink(self) -> None:
        self._take_over()
        super().unlink()

    def lasting_number(self) -> int:
        descriptor, ids = self._descriptor(), self._mac.file_ids
        file_id = ids.of(descriptor, syscalls.statx(descriptor))
        return ids.number(file_id) if file_id is not None else 0

    def finder_data(self) -> FinderData:
        if self.kind not in (Kind.FILE, Kind.DIRECTORY):
            return NO_FINDER_DATA
        stat = self._take_over()
        metadata = self._backend.store.load(self._ref, stat)
        if not metadata.present & Blob.STREAMS:
            return NO_FINDER_DATA
        key = self._backend.store.key(stat, metadata)
        streams = self._mac.streams
        info = streams.info(key)
        finder = info.finder_info if info is not None else NO_FINDER_DATA.finder_info
        return FinderData(streams.resource_size(key), finder)


class _StreamHandle(MacHandle):
    """A named stream. One without data is removed with its last handle, if that is a Mac's."""

    __slots__ = ("_item",)

    def __init__(self, backend: MacBackend, *arguments: object, **options: object) -> None:
        super().__init__(backend, *arguments, **options)
        stat = os.fstat(self._data_descriptor())
        self._item = FileKey(stat.st_dev, stat.st_ino)
        backend.open_streams[self._item] = backend.open_streams.get(self._item, 0) + 1

    def _has_data(self) -> bool:
        return os.fstat(self._data_descriptor()).st_size > 0

    def unlink(self) -> None:
        # Others may have a stream open that is none yet.
        if self._has_data() or not self._vanishes:
            LocalHandle.unlink(self)

    @property
    def _vanishes(self) -> bool:
        """Whether it is none without data."""
        return self.by_mac

    def close(self) -> None:
        if self._data is not None:
            opened = self._mac.open_streams
            opened[self._item] -= 1
            if not opened[self._item]:
                del opened[self._item]
                if self._vanishes and not self._has_data() and not self._mac.read_only:
                    # It, or its file, may have been removed. If it stays it does not count.
                    with contextlib.suppress(OSError):
                        LocalHandle.unlink(self)
        super().close()


class _ResourceHandle(_StreamHandle):
    """AFP_Resource."""

    __slots__ = ()
    _vanishes = True

    def unlink(self) -> None:
        """Do nothing: Apple's servers keep a resource fork that is deleted, until it is cut to nothing."""


class _AfpInfoHandle(_StreamHandle):
    """AFP_AfpInfo. Its item is empty while there is no Finder information."""

    __slots__ = ()
    _vanishes = True

    def fileno(self) -> int | None:
        return None

    def _sized(self, info: FileInfo) -> FileInfo:
        return info._replace(end_of_file=_SIZE, allocation_size=max(info.allocation_size, 4096))

    def info(self) -> FileInfo:
        return self._sized(super().info())

    def describe(self) -> Described:
        found = super().describe()
        return found._replace(info=self._sized(found.info))

    def cached(self, offset: int, length: int) -> FileRange | None:
        return None

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> int:
        """Read from the start, wherever in it ``offset`` is, as Apple's server does."""
        if offset > _SIZE:
            return 0
        content = os.pread(self._data_descriptor(), _SIZE + 1, 0)
        left = memoryview(content if apple.parse_afp_info(content) is not None else _BLANK_INFO)
        count = 0
        for buffer in buffers:
            part = left[: len(buffer)]
            buffer[: len(part)] = part
            left = left[len(part) :]
            count += len(part)
        return count

    def write_from(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write from the start. Raises ``OSError`` (EINVAL) for what is no AFP_AfpInfo."""
        count = sum(map(len, buffers))
        data = b"".join(bytes(buffer[:_SIZE]) for buffer in buffers)[:_SIZE]
        content = data.ljust(_SIZE, b"\0")
        if count < (_SIZE if offset else _LEAST) or not apple.is_afp_info(content):
            raise OSError(errno.EINVAL, "no AFP_AfpInfo")
        self._changing()
        descriptor = self._data_descriptor()
        with self._space:
            if apple.parse_afp_info(content) is None:
                os.ftruncate(descriptor, 0)
            else:
                os.pwrite(descriptor, content, 0)
        return count

    def shrinking(self, size: int) -> Callable[[], None] | None:
        return None

    def truncate(self, size: int) -> None:
        """Do nothing: it has one size. Raises ``OSError`` (EOVERFLOW) for a larger one."""
        if size > _SIZE:
            raise OSError(errno.EOVERFLOW, "AFP_AfpInfo has 60 bytes")

    def allocating(self, size: int) -> Iterator[None] | None:
        return None

    def allocate(self, size: int) -> None:
        self.truncate(size)

    def zeroing(self, offset: int, length: int, deallocate: bool = False) -> Iterator[None] | None:
        return None

    def zero_range(self, offset: int, length: int, deallocate: bool = False) -> None:
        raise OSError(errno.EINVAL, "AFP_AfpInfo is written as a whole")

    def filling(self) -> Iterator[None] | None:
        return None
