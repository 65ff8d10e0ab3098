"""Open files, streams and directories of the local backend."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import struct
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

from smb3server.backends import names
from smb3server.backends.base import (
    FILE_MODE_BITS,
    FOLDER_MODE_BITS,
    DataVersion,
    Described,
    FileInfo,
    FileKey,
    Handle,
    Kind,
    Path,
    Search,
    StreamInfo,
    User,
    check_times,
)
from smb3server.backends.eas import ea_size, merge_eas
from smb3server.backends.local import file_io, page_cache, release, reparse, scan, syscalls
from smb3server.backends.local.impersonate import ActAs, space_of
from smb3server.backends.local.mappings import MappedFile
from smb3server.backends.local.metadata import Blob, Metadata, MetadataStore
from smb3server.backends.local.namespace import Namespace
from smb3server.backends.local.own_changes import OwnChanges
from smb3server.backends.local.resolve import Resolver
from smb3server.backends.local.retention import Retention
from smb3server.backends.local.streams import FEW, StreamStore
from smb3server.backends.local.syscalls import Statx
from smb3server.backends.name_rules import stream_key
from smb3server.wire import attributes as attr
from smb3server.wire import filetime
from smb3server.wire.file_info import EaEntry
from smbdirect.codec import Buffer
from smbdirect.message_transport import FileRange, Payload

_Change = Callable[[Metadata], None]

_EA_HEADER = struct.Struct("<BH")
_POSIX_ACL = "system.posix_acl_access"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.E2BIG, errno.ERANGE, errno.ENOMEM)
"""Errors of file systems that cannot keep an ACL of this size."""
_SPECIAL_BITS = 0o7000
_MOST_UNREADABLE = 4096
"""Set-user-id, set-group-id, sticky. On a folder they control who may delete, and which group new files get."""
_CHANGE_SLACK = 10_000_000
"""Nanoseconds after a change time was stored in which a new st_ctime counts as caused by the storing."""


class HandleHost(Protocol):
    """The part of the backend that its handles use."""

    resolver: Resolver
    store: MetadataStore
    streams: StreamStore
    namespace: Namespace
    own: OwnChanges
    unreadable: set[FileKey]
    """Files whose storage failed."""
    retention: Retention | None
    """Which files may not be changed any more. None: none."""

    def check_writable(self) -> None:
        """Raise ``OSError`` (EROFS) if the share is read-only."""

    def info_of(self, descriptor: int, reference: int | str) -> FileInfo:
        """Return the metadata of the file itself, independent of the open stream."""

    def parent_info(self, descriptor: int, here: FileInfo) -> FileInfo:
        """Return what '..' shows in the directory ``descriptor``, whose own metadata is ``here``."""

    def sync_parent(self, components: list[str]) -> None:
        """Make the name at the end of a path on disk durable. Raises ``OSError``."""


class LocalHandle(Handle):
    """A file, stream or directory of the host."""

    __slots__ = (
        "_backend",
        "_data",
        "_fd",
        "_mapped",
        "_name_synced",
        "_ref",
        "_space",
        "_user",
        "_writable",
        "created",
        "file_created",
        "key",
        "kind",
        "stream",
    )

    def __init__(
        self,
        backend: HandleHost,
        descriptor: int,
        stat: Statx,
        kind: Kind,
        data: int | None,
        user: User | None,
        *,
        is_path: bool,
        writable: bool,
        stream: str = "",
        created: bool = False,
    ) -> None:
        """Take over the descriptors: ``descriptor`` is the file itself, O_PATH if ``is_path``, and ``data`` is for its
        data or that of the stream, None without one."""
        self._backend = backend
        # ``_fd`` is the file itself: O_PATH, unless access to data was requested. Invariant: ``_data``, which bytes are
        # read from and written to, is ``_fd``, or the descriptor of an alternate stream, or None.
        self._fd = descriptor
        self._ref: int | str = f"/proc/self/fd/{descriptor}" if is_path else descriptor
        self._data = data
        self._writable = writable
        self._user = user
        self._space = space_of(user)
        self._mapped: MappedFile | None = None
        # Whether ``flush`` need not make the name durable. A stream is also found by the attributes and the name of its
        # file, which another handle may have made.
        self._name_synced = not created and not stream
        self.key = tuple.__new__(FileKey, (stat.dev, stat.ino))
        self.kind = kind
        self.stream = stream
        self.created = created
        self.file_created = created and not stream
        if writable:
            backend.own.opened(self.key)
        elif created:
            backend.own.touch(self.key)

    # -- names

    @property
    def path(self) -> Path:
        return tuple(map(names.to_wire, self.disk_path()))

    def disk_path(self) -> list[str]:
        """Return the on-disk components of ``path``. Raises FileNotFoundError if the file has no name."""
        return self._backend.resolver.disk_path(self._descriptor())

    def fileno(self) -> int | None:
        return self._data

    def place(self) -> int:
        """Return the descriptor of the directory, for calls such as openat(2). The caller must not close it.

        Raises NotADirectoryError for anything else."""
        if self.kind != Kind.DIRECTORY or self.stream:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return self._descriptor()

    def _descriptor(self) -> int:
        if self._fd < 0:
            raise OSError(errno.EBADF, "handle is closed")
        return self._fd

    def _data_descriptor(self) -> int:
        if self._data is None:
            raise OSError(errno.EBADF, "not opened for data")
        return self._data

    # -- data

    def data_version(self) -> DataVersion:
        stat = os.fstat(self._data_descriptor())
        return DataVersion(stat.st_ctime_ns, stat.st_size)

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> int:
        return file_io.read_into(self._data_descriptor(), buffers, offset)

    def cached(self, offset: int, length: int) -> FileRange | None:
        descriptor = self._data
        unreadable = self._backend.unreadable
        if descriptor is None or (unreadable and self.key in unreadable):
            return None
        size = os.fstat(descriptor).st_size
        length = min(length, size - offset)
        if length <= 0 or not page_cache.holds(descriptor, offset, length):
            return None
        if self._mapped is None:
            self._mapped = MappedFile()
        memory = self._mapped.part(descriptor, offset, length, size)
        return FileRange(descriptor, offset, length, memory, self.storage_failed) if memory is not None else None

    def storage_failed(self) -> None:
        unreadable = self._backend.unreadable
        if len(unreadable) >= _MOST_UNREADABLE:
            unreadable.clear()
        unreadable.add(self.key)

    def write_from(self, buffers: Sequence[Buffer], offset: int) -> int:
        data = self._data
        with self._space:
            return file_io.write_from(self._data_descriptor() if data is None else data, buffers, offset)

    def take_in(self, payload: Payload, offset: int) -> None:
        file_io.check_range(offset, payload.length)
        with self._space:
            payload.move_to(self._data_descriptor(), offset)

    def flush(self) -> None:
        if self._data is not None:
            os.fsync(self._data)
        elif self.kind in (Kind.FILE, Kind.DIRECTORY):
            self._sync_file()
        if not self._name_synced:
            with contextlib.suppress(FileNotFoundError):
                if self.stream:
                    self._sync_stream_name()
                self._backend.sync_parent(self.disk_path())
            self._name_synced = True

    def _sync_file(self) -> None:
        # An O_PATH descriptor cannot be synced.
        descriptor = os.open(f"/proc/self/fd/{self._descriptor()}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _sync_stream_name(self) -> None:
        """Make durable by what the stream is found: its item's name, and the key in the file's attributes."""
        stat = syscalls.statx(self._descriptor())
        self._backend.streams.sync(self._backend.store.key(stat, self._backend.store.load(self._ref, stat)))
        if self.kind in (Kind.FILE, Kind.DIRECTORY):
            self._sync_file()

    @contextlib.contextmanager
    def _for_writing(self) -> Iterator[int]:
        """Yield the data descriptor, or a temporary one if this handle is not open for writing.

        The server truncates a file that it supersedes even without access for writing."""
        self._changing()
        if self._writable and self._data is not None:
            yield self._data
            return
        if self.stream:
            descriptor = os.open(f"/proc/self/fd/{self._data_descriptor()}", os.O_WRONLY | os.O_CLOEXEC)
        elif self.kind == Kind.FILE:
            with ActAs(self._user):
                descriptor = os.open(
                    f"/proc/self/fd/{self._descriptor()}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                )
        else:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def shrinking(self, size: int) -> Callable[[], None] | None:
        descriptor = self._data
        if descriptor is None or not self._writable:
            return None
        stat = os.fstat(descriptor)
        if size >= stat.st_size or not release.is_large(stat, size):
            return None
        self._changing()
        return functools.partial(self._truncate, descriptor, size)

    def _truncate(self, descriptor: int, size: int) -> None:
        with self._space:
            file_io.truncate(descriptor, size)

    def truncate(self, size: int) -> None:
        with self._for_writing() as descriptor:
            self._truncate(descriptor, size)

    def allocating(self, size: int) -> Iterator[None] | None:
        descriptor = self._data
        if descriptor is None or not self._writable:
            return None
        stat = os.fstat(descriptor)
        if size - max(stat.st_size, stat.st_blocks * 512) < release.LARGE:
            return None
        self._changing()
        return self._as_user(file_io.allocate(descriptor, size))

    def allocate(self, size: int) -> None:
        with self._for_writing() as descriptor, self._space:
            for _ in file_io.allocate(descriptor, size):
                pass

    def zeroing(self, offset: int, length: int, deallocate: bool = False) -> Iterator[None] | None:
        descriptor = self._data
        if descriptor is None or not self._writable:
            return None
        if min(length, os.fstat(descriptor).st_size - offset) < release.LARGE:
            return None
        self._changing()
        sparse = deallocate or bool(self.info().attributes & attr.SPARSE)
        return self._as_user(file_io.zero_range(descriptor, offset, length, sparse))

    def filling(self) -> Iterator[None] | None:
        descriptor = self._data
        if descriptor is None or not self._writable:
            return None
        stat = os.fstat(descriptor)
        if stat.st_blocks * 512 >= stat.st_size:
            return None
        self._changing()
        return self._as_user(file_io.fill_holes(descriptor))

    def zero_range(self, offset: int, length: int, deallocate: bool = False) -> None:
        sparse = deallocate or bool(self.info().attributes & attr.SPARSE)
        with self._for_writing() as descriptor, self._space:
            for _ in file_io.zero_range(descriptor, offset, length, sparse):
                pass

    def _as_user(self, steps: Iterator[None]) -> Iterator[None]:
        """Take steps on another thread with the credentials of the user who opened the file: they count for quotas."""
        running = True
        while running:
            with self._space:
                running = next(steps, True) is None
            yield

    def allocated_ranges(self, offset: int, length: int, limit: int = file_io.MAX_RANGES) -> list[tuple[int, int]]:
        return file_io.allocated_ranges(self._data_descriptor(), offset, length, limit)

    def copy_range(self, source: Handle, source_offset: int, offset: int, length: int) -> int:
        origin = source.fileno()
        if origin is None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        with self._space:
            return file_io.copy_range(origin, source_offset, self._data_descriptor(), offset, length)

    def clone_range(self, source: Handle, source_offset: int, offset: int, length: int) -> None:
        origin = source.fileno()
        if origin is None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        with self._space:
            file_io.clone_range(origin, source_offset, self._data_descriptor(), offset, length)

    def set_compressed(self, compressed: bool) -> None:
        self._changing()
        if self.stream:
            file_io.set_compressed(self._data_descriptor(), compressed)
            return
        # An O_PATH descriptor cannot set the flag. The right to write is not needed: the flag is no data.
        descriptor = os.open(f"/proc/self/fd/{self._descriptor()}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            file_io.set_compressed(descriptor, compressed)
        finally:
            os.close(descriptor)

    # -- metadata

    def info(self) -> FileInfo:
        stat = syscalls.statx(self._descriptor())
        metadata = self._backend.store.load(self._ref, stat)
        return self._backend.store.info(
            stat, metadata, syscalls.statx(self._data_descriptor()) if self.stream else None
        )

    def describe(self) -> Described:
        stat = syscalls.statx(self._descriptor())
        data = syscalls.statx(self._data_descriptor()) if self.stream else None
        return self._backend.store.describe(self._ref, stat, data)

    def set_times(
        self,
        creation: int | None = None,
        last_access: int | None = None,
        last_write: int | None = None,
        change: int | None = None,
    ) -> None:
        """Set times. POSIX cannot set the change time, so ``change`` is stored until the file changes again."""
        self._changing()
        stat = syscalls.statx(self._descriptor())
        check_times(creation, last_access, last_write, change)
        if last_access is not None or last_write is not None:
            atime = stat.atime if last_access is None else filetime.to_ns(last_access)
            mtime = stat.mtime if last_write is None else filetime.to_ns(last_write)
            os.utime(self._ref, ns=(atime, mtime))
        if creation is not None or change is not None:

            def times(metadata: Metadata) -> None:
                if creation is not None:
                    metadata.creation = creation
                if change is not None:
                    # Storing this sets st_ctime, to the time as of the kernel's last tick at the latest.
                    metadata.change, metadata.change_until = change, time.time_ns() + _CHANGE_SLACK

            self._change(times)

    def set_attributes(self, attributes: int) -> None:
        settable = attr.DIRECTORY_SETTABLE if self.kind == Kind.DIRECTORY else attr.SETTABLE
        self._change(lambda metadata: setattr(metadata, "attributes", attributes & settable))

    def _changing(self) -> None:
        self._backend.check_writable()
        self._backend.own.touch(self.key)

    def _deleting(self) -> None:
        self._changing()

    def _change(self, change: _Change) -> None:
        self._changing()
        self._backend.store.change(self._ref, syscalls.statx(self._descriptor()), change)

    def eas(self) -> list[EaEntry]:
        raw = self._blob(Blob.EA)
        return [] if raw is None else _unpack_eas(raw)

    def set_eas(self, changes: Sequence[EaEntry], replace: bool = False) -> None:
        eas = merge_eas(() if replace else self.eas(), changes)
        size = ea_size(eas)
        self._set_blob(Blob.EA, _pack_eas(eas) if eas else None, lambda metadata: setattr(metadata, "ea_size", size))

    def security_descriptor(self) -> bytes | None:
        return self._blob(Blob.DESCRIPTOR)

    def set_security_descriptor(self, descriptor: bytes) -> None:
        self._set_blob(Blob.DESCRIPTOR, bytes(descriptor))

    def set_permissions(
        self, uid: int | None, gid: int | None, mode: int | None = None, acl: bytes | None = None
    ) -> None:
        if self.kind == Kind.SYMLINK:
            return
        self._changing()
        with ActAs(self._user):
            before = os.stat(self._ref)
            kept = before.st_mode & _SPECIAL_BITS if self.kind == Kind.DIRECTORY else 0
            if before.st_mode & _SPECIAL_BITS != kept:
                # Remove them first: with a new owner, group or mode they would grant rights that were not intended.
                os.chmod(self._ref, before.st_mode & 0o777)
            if uid is not None or gid is not None:
                os.chown(self._ref, -1 if uid is None else uid, -1 if gid is None else gid)
            if mode is None:
                return
            try:
                if acl is not None:
                    os.setxattr(self._ref, _POSIX_ACL, acl)
                else:
                    os.removexattr(self._ref, _POSIX_ACL)
            except OSError as error:
                # A file system without ACLs has only the mode, and one without room for this one, too.
                if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP, *_NO_ROOM):
                    raise
                if acl is not None:
                    self._remove_acl()
                acl = None
            if acl is None:
                os.chmod(self._ref, mode & 0o777 | kept)

    def _remove_acl(self) -> None:
        try:
            os.removexattr(self._ref, _POSIX_ACL)
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
                raise

    def set_mode(self, mode: int) -> None:
        if self.kind == Kind.SYMLINK:
            raise OSError(errno.EOPNOTSUPP, "a symbolic link has no mode")
        self._changing()
        with ActAs(self._user):
            os.chmod(self._ref, mode & (FOLDER_MODE_BITS if self.kind == Kind.DIRECTORY else FILE_MODE_BITS))

    def reparse_point(self) -> bytes | None:
        if self.kind == Kind.SYMLINK:
            return reparse.symlink_buffer(os.readlink("", dir_fd=self._descriptor()))
        if self.kind == Kind.OTHER:
            stat = os.stat(self._ref)
            return reparse.special_buffer(stat.st_mode, stat.st_rdev)
        return self._blob(Blob.REPARSE)

    def set_reparse_point(self, data: bytes | None) -> None:
        if self.kind not in (Kind.FILE, Kind.DIRECTORY):
            raise OSError(errno.EINVAL, "only files and directories can have a reparse point")
        tag = 0 if data is None else reparse.check(data)
        self._set_blob(Blob.REPARSE, data, lambda metadata: setattr(metadata, "reparse_tag", tag))

    def _blob(self, kind: Blob) -> bytes | None:
        return self._backend.store.blob(self._ref, syscalls.statx(self._descriptor()), kind)

    def _set_blob(self, kind: Blob, value: bytes | None, change: _Change | None = None) -> None:
        self._changing()
        self._backend.store.set_blob(self._ref, syscalls.statx(self._descriptor()), kind, value, change)

    # -- streams

    def streams(self) -> list[StreamInfo]:
        stat = syscalls.statx(self._descriptor())
        metadata = self._backend.store.load(self._ref, stat)
        found = []
        if self.kind == Kind.FILE:
            main = self._backend.store.info(stat, metadata)
            found.append(StreamInfo("", main.end_of_file, main.allocation_size))
        if metadata.present & Blob.STREAMS:
            found.extend(self._backend.streams.list(self._backend.store.key(stat, metadata)))
        return found

    def listing_streams(self, found: list[StreamInfo]) -> Iterator[None] | None:
        stat = syscalls.statx(self._descriptor())
        metadata = self._backend.store.load(self._ref, stat)
        if not metadata.present & Blob.STREAMS:
            return None
        key = self._backend.store.key(stat, metadata)
        if not self._backend.streams.has_many(key):
            return None
        return self._list_streams(found, stat, metadata, key)

    def _list_streams(self, found: list[StreamInfo], stat: Statx, metadata: Metadata, key: str) -> Iterator[None]:
        alternate: list[StreamInfo] = []
        yield from self._backend.streams.listing(key, alternate)
        if self.kind == Kind.FILE:
            main = self._backend.store.info(stat, metadata)
            found.append(StreamInfo("", main.end_of_file, main.allocation_size))
        found += alternate

    def removing_streams(self, spared: Collection[str], removed: list[str]) -> Iterator[None] | None:
        stat = syscalls.statx(self._descriptor())
        metadata = self._backend.store.load(self._ref, stat)
        if not metadata.present & Blob.STREAMS:
            return None
        self._changing()
        key = self._backend.store.key(stat, metadata)
        steps = self._remove_streams(key, spared, removed)
        if self._backend.streams.has_many(key):
            return steps
        for _ in steps:
            pass
        return None

    def _remove_streams(self, key: str, spared: Collection[str], removed: list[str]) -> Iterator[None]:
        found: list[StreamInfo] = []
        yield from self._backend.streams.listing(key, found)
        for number, stream in enumerate(found):
            if stream_key(stream.name) not in spared:
                self._backend.streams.remove(key, stream.name)
                removed.append(stream.name)
            if number % FEW == FEW - 1:
                yield
        if not self._backend.streams.has_any(key):
            self._change(_clear_streams)

    def _current_stream(self, key: str) -> str:
        """Return the name of the stream as it is now: another handle may have renamed it."""
        self.stream = self._backend.streams.name_of(key, self._data_descriptor())
        return self.stream

    def rename_stream(self, name: str, replace: bool) -> None:
        if not self.stream or not name:
            raise OSError(errno.EINVAL, "only an alternate stream can be renamed, and it needs a name")
        names.check_stream_name(name)
        self._backend.check_writable()
        stat = syscalls.statx(self._descriptor())
        key = self._backend.store.key(stat, self._backend.store.load(self._ref, stat))
        self._backend.streams.rename(key, self._current_stream(key), name, replace)
        self.stream = name
        self._name_synced = False

    # -- the name space

    def rename(self, target: Path, replace: bool, user: User | None = None) -> None:
        if self.stream:
            raise OSError(errno.EINVAL, "an alternate stream is renamed by rename_stream")
        self._changing()
        self._backend.namespace.rename(self._descriptor(), self.kind, target, replace, user)
        self._name_synced = False

    def link(self, target: Path, replace: bool, user: User | None = None) -> None:
        if self.kind == Kind.DIRECTORY:
            raise PermissionError(errno.EPERM, "no hard links to directories")
        self._changing()
        self._backend.namespace.link(self._descriptor(), target, replace, user)

    def check_unlink(self) -> None:
        self._backend.check_writable()
        if not self.stream:
            self._backend.namespace.check_unlink(self._descriptor(), self._user)

    def unlink(self) -> None:
        if not self.stream:
            self._deleting()
            self._backend.namespace.unlink(self._descriptor(), self.kind, self._ref, self._user)
            return
        self._backend.check_writable()
        stat = syscalls.statx(self._descriptor())
        metadata = self._backend.store.load(self._ref, stat)
        key = self._backend.store.key(stat, metadata)
        self._backend.streams.remove(key, self._current_stream(key))
        if not self._backend.streams.has_any(key):
            self._change(_clear_streams)

    def note_deletion(self) -> None:
        self._changing()
        self._backend.store.note_deletion(self._ref, syscalls.statx(self._descriptor()), time.time_ns())

    def search(self, matches: Callable[[str], bool], only: str | None = None) -> Search:
        directory, here, above = self._for_scan()
        folder = scan.Folder(directory, self._backend.store, self._backend.resolver)
        if only is not None and only not in (".", ".."):
            return scan.NameSearch(folder, only)
        return scan.FolderSearch(folder, here, above, matches)

    def has_vetoed(self) -> bool:
        resolver = self._backend.resolver
        if not resolver.has_vetoes:
            return False
        directory, _, _ = self._for_scan()
        try:
            with os.scandir(directory) as entries:
                return any(resolver.excludes(entry.name) and not names.is_private(entry.name) for entry in entries)
        finally:
            os.close(directory)

    def _for_scan(self) -> tuple[int, FileInfo, FileInfo]:
        """Return a descriptor for reading the directory, and what '.' and '..' show."""
        if self.kind != Kind.DIRECTORY:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        here = self.info() if not self.stream else self._backend.info_of(self._descriptor(), self._ref)
        above = self._backend.parent_info(self._descriptor(), here)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        if isinstance(self._ref, int):
            # This user opened the directory for listing, and the right was checked then.
            return os.open(".", flags, dir_fd=self._fd), here, above
        with ActAs(self._user):
            return os.open(".", flags, dir_fd=self._fd), here, above

    def close(self) -> None:
        descriptor, data = self._fd, self._data
        self._fd, self._data = -1, None
        if self._mapped is not None:
            # Before the descriptor: what uses a removed file last waits until its space is free.
            self._mapped.close()
        if descriptor >= 0 and self._writable:
            self._backend.own.closed(self.key)
        if self.kind == Kind.DIRECTORY and descriptor >= 0:
            os.close(descriptor)
        elif descriptor >= 0:
            release.close(descriptor)
        if data is not None and data != descriptor:
            release.close(data)


def _clear_streams(metadata: Metadata) -> None:
    metadata.present &= ~Blob.STREAMS


def _pack_eas(eas: Sequence[EaEntry]) -> bytes:
    """Pack EAs for the store. Flags lie behind the EAs, one byte each, as the value of an EA without a name."""
    packed = b"".join(_EA_HEADER.pack(len(ea.name), len(ea.value)) + ea.name + ea.value for ea in eas)
    flags = bytes(ea.flags for ea in eas)
    return packed + _EA_HEADER.pack(0, len(flags)) + flags if any(flags) else packed


def _unpack_eas(raw: bytes) -> list[EaEntry]:
    """Unpack stored EAs. A truncated entry ends them: a user of the host may have written it."""
    eas: list[EaEntry] = []
    offset = 0
    while offset + _EA_HEADER.size <= len(raw):
        name_length, value_length = _EA_HEADER.unpack_from(raw, offset)
        offset += _EA_HEADER.size
        value = offset + name_length
        end = value + value_length
        if end > len(raw):
            break
        if name_length:
            eas.append(EaEntry(raw[offset:value], raw[value:end]))
        else:
            flags = raw[value:end].ljust(len(eas), b"\0")
            eas = [ea._replace(flags=flag) for ea, flag in zip(eas, flags, strict=False)]
        offset = end
    return eas
