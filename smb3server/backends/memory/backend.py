"""A store in memory, for tests and what has no folder on the host. It implements the whole contract and uses nothing of
the host.

It ignores users: no kernel checks rights here, so the server alone does (security descriptors).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from smb3server.backends import names
from smb3server.backends.base import (
    Backend,
    Change,
    DataVersion,
    DirectoryEntry,
    Disposition,
    FileInfo,
    FileKey,
    Handle,
    Kind,
    ListedSearch,
    OpenRequest,
    Path,
    PathNotFound,
    Search,
    StreamInfo,
    User,
    VolumeInfo,
    check_times,
)
from smb3server.backends.eas import merge_eas
from smb3server.backends.local import file_io, reparse
from smb3server.backends.memory.nodes import BLOCK, VOLUME, Data, Entry, Node, checked_descriptor, now
from smb3server.wire import attributes as attr
from smb3server.wire.file_info import EaEntry
from smb3server.wire.upcase import upcase
from smbdirect.codec import Buffer

_ZERO_BLOCK = bytes(BLOCK)


def _oserror(code: int, name: str = "") -> OSError:
    return OSError(code, os.strerror(code), name)


class MemoryBackend(Backend):
    """The store of one share, in memory.

    ``capacity``: the bytes that all contents together may have; beyond them writing fails with ENOSPC."""

    case_sensitive = False
    supports_streams = True
    supports_reflink = False
    supports_compression = False

    def __init__(self, capacity: int = 256 << 20, read_only: bool = False, file_system_name: str = "NTFS") -> None:
        self.read_only = read_only
        self.file_system_name = file_system_name
        self.volume_serial = 0x5EED
        self.volume_created = now()
        self.capacity = capacity
        # Invariant: the sum of the lengths of all contents whose ``Data.counted`` is set.
        self.used = 0
        self._inodes = 1
        self.root = Entry(None, "", Node(1, Kind.DIRECTORY, 0))
        self.root.node.links = 1

    def check_writable(self) -> None:
        """Raise ``OSError`` (EROFS) if the store is read-only."""
        if self.read_only:
            raise _oserror(errno.EROFS)

    def resize(self, data: Data, size: int) -> None:
        """Cut or extend ``data`` to ``size`` bytes. Raises ``OSError`` (ENOSPC)."""
        growth = size - len(data.content)
        if growth > self.capacity - self.used or size > self.capacity:
            raise _oserror(errno.ENOSPC)
        if growth < 0:
            del data.content[size:]
        else:
            data.content.extend(bytes(growth))
        if data.counted:
            self.used += growth

    def discount(self, data: Data) -> None:
        """Stop counting deleted content as used. Open handles keep it."""
        if data.counted:
            data.counted = False
            self.used -= len(data.content)

    # -- look-up

    def find(self, path: Path) -> Entry:
        """Return the entry at ``path``. Raises ``PathNotFound`` for a missing ancestor, else ``FileNotFoundError``."""
        self.path_lookups += 1
        entry = self.root
        for index, component in enumerate(path):
            disk = names.to_disk(component)
            child = entry.node.children.get(upcase(names.to_wire(disk)))
            if entry.node.kind != Kind.DIRECTORY or (child is None and index < len(path) - 1):
                raise PathNotFound(errno.ENOENT, "no such directory", "/".join(path))
            if child is None or names.is_private(component):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/".join(path))
            entry = child
        return entry

    def parent_of(self, path: Path) -> tuple[Entry, str]:
        """Return the parent directory of ``path`` and the name in it.

        Raises ``PathNotFound``, and ``PermissionError`` for a reserved name."""
        try:
            parent = self.find(path[:-1])
        except FileNotFoundError:
            raise PathNotFound(errno.ENOENT, "no such directory", "/".join(path)) from None
        if parent.node.kind != Kind.DIRECTORY:
            raise PathNotFound(errno.ENOENT, "no such directory", "/".join(path))
        name = names.to_disk(path[-1])
        if names.is_private(name):
            raise PermissionError(errno.EACCES, "reserved name", name)
        return parent, names.to_wire(name)

    def attach(self, parent: Entry, name: str, node: Node, entry: Entry | None = None) -> Entry:
        """Give ``node`` a name in ``parent``. ``entry``: the detached entry to use again."""
        if entry is None:
            entry = Entry(parent, name, node)
        else:
            entry.parent, entry.name = parent, name
        parent.node.children[upcase(name)] = entry
        node.links += 1
        parent.node.last_write = parent.node.change = now()
        return entry

    def detach(self, entry: Entry) -> None:
        """Remove a name from its directory. Raises ``FileNotFoundError`` if it was removed before."""
        parent = entry.parent
        if parent is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), entry.name)
        del parent.node.children[upcase(entry.name)]
        entry.parent = None
        node = entry.node
        node.links -= 1
        node.change = parent.node.last_write = parent.node.change = now()
        if node.links == 0:
            for data in (node.data, *(data for _, data in node.streams.values())):
                self.discount(data)
            node.streams.clear()

    # -- the contract

    def open(self, request: OpenRequest) -> Handle:
        self.opens += 1
        name = "/".join(request.path)
        created = False
        try:
            entry = self.find(request.path)
        except PathNotFound:
            raise
        except FileNotFoundError:
            if request.disposition == Disposition.OPEN:
                raise
            self.check_writable()
            entry = self._create(request)
            created = True
        else:
            node = entry.node
            if request.directory is True and node.kind != Kind.DIRECTORY:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
            if request.directory is False and node.kind == Kind.DIRECTORY and not request.stream:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
            if request.disposition == Disposition.CREATE and not request.stream:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
            if request.write and self.read_only and node.kind == Kind.FILE:
                raise _oserror(errno.EROFS, name)
        file_created, stream = created, request.stream
        if stream:
            stream, created = self._open_stream(entry.node, request)
        handle = MemoryHandle(self, entry, stream, created, request)
        handle.file_created = file_created
        return handle

    def _create(self, request: OpenRequest) -> Entry:
        parent, name = self.parent_of(request.path)
        kind = Kind.DIRECTORY if request.directory is True and not request.stream else Kind.FILE
        self._inodes += 1
        node = Node(self._inodes, kind, request.attributes)
        if request.security_descriptor is not None:
            node.descriptor = checked_descriptor(request.security_descriptor)
        node.eas = merge_eas((), request.ea)
        return self.attach(parent, name, node)

    def _open_stream(self, node: Node, request: OpenRequest) -> tuple[str, bool]:
        found = node.streams.get(upcase(request.stream))
        if found is None:
            if request.disposition == Disposition.OPEN:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), request.stream)
            self.check_writable()
            node.streams[upcase(request.stream)] = (request.stream, Data())
            return request.stream, True
        if request.disposition == Disposition.CREATE:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), request.stream)
        return found[0], False

    def stat(self, path: Path, user: User | None = None) -> FileInfo:
        return self.find(path).node.info()

    def volume(self) -> VolumeInfo:
        free = self.capacity - self.used
        return VolumeInfo(self.capacity, free, free, BLOCK, 512)

    def watch(self, handle: Handle, recursive: bool, on_change: Callable[[Change], None]) -> Callable[[], None] | None:
        """Return None: only the server can change this store."""
        return None

    def close(self) -> None:
        """Do nothing: the contents live as long as the object."""


class MemoryHandle(Handle):
    """An open file, stream or directory of a ``MemoryBackend``."""

    __slots__ = (
        "_backend",
        "_closed",
        "_data",
        "_entry",
        "_opened_data",
        "_writable",
        "created",
        "file_created",
        "key",
        "kind",
        "stream",
    )

    def __init__(self, backend: MemoryBackend, entry: Entry, stream: str, created: bool, request: OpenRequest) -> None:
        node = entry.node
        self._backend = backend
        self._entry = entry
        self._data = node.streams[upcase(stream)][1] if stream else node.data
        self._opened_data = bool(stream) or (node.kind == Kind.FILE and (request.read or request.write))
        self._writable = request.write or (created and bool(stream))
        self._closed = False
        self.key = FileKey(VOLUME, node.inode)
        self.kind = node.kind
        self.stream = stream
        self.created = self.file_created = created

    def _node(self) -> Node:
        if self._closed:
            raise OSError(errno.EBADF, "handle is closed")
        return self._entry.node

    def _for_writing(self) -> Data:
        self._backend.check_writable()
        node = self._node()
        if node.kind == Kind.DIRECTORY and not self.stream:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        node.last_write = node.change = now()
        self._data.changed = time.time_ns()
        return self._data

    @property
    def path(self) -> Path:
        self._node()
        components: list[str] = []
        entry = self._entry
        while entry is not self._backend.root:
            components.append(entry.name)
            if entry.parent is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), entry.name)
            entry = entry.parent
        return tuple(reversed(components))

    def fileno(self) -> int | None:
        return None

    def info(self) -> FileInfo:
        return self._node().info(self._data if self.stream else None)

    # -- data

    def data_version(self) -> DataVersion:
        self._node()
        return DataVersion(self._data.changed, len(self._data.content))

    def read_into(self, buffers: Sequence[memoryview], offset: int) -> int:
        self._node()
        if not self._opened_data:
            raise OSError(errno.EBADF, "not opened for data")
        done = 0
        with memoryview(self._data.content) as content:
            for buffer in buffers:
                part = content[offset + done : offset + done + len(buffer)]
                buffer[: len(part)] = part
                done += len(part)
                if len(part) < len(buffer):
                    break
        return done

    def write_from(self, buffers: Sequence[Buffer], offset: int) -> int:
        if not self._writable:
            raise OSError(errno.EBADF, "not opened for writing")
        data = self._for_writing()
        length = sum(map(len, buffers))
        file_io.check_range(offset, length)
        if length and offset + length > len(data.content):
            self._backend.resize(data, offset + length)
        position = offset
        for buffer in buffers:
            data.content[position : position + len(buffer)] = buffer
            position += len(buffer)
        return length

    def flush(self) -> None:
        self._node()

    def truncate(self, size: int) -> None:
        file_io.check_range(size)
        data = self._for_writing()
        self._backend.resize(data, size)
        data.reserved = min(data.reserved, -(-size // BLOCK) * BLOCK)

    def allocate(self, size: int) -> None:
        file_io.check_range(size)
        node = self._node()
        last_write = node.last_write
        data = self._for_writing()
        if size < len(data.content):
            self._backend.resize(data, size)
        else:
            node.last_write = last_write
        if size > self._backend.capacity:
            raise _oserror(errno.ENOSPC)
        data.reserved = -(-size // BLOCK) * BLOCK

    def zero_range(self, offset: int, length: int, deallocate: bool = False) -> None:
        data = self._for_writing()
        length = min(length, len(data.content) - offset)
        if length > 0:
            data.content[offset : offset + length] = bytes(length)

    def allocated_ranges(self, offset: int, length: int, limit: int = 65536) -> list[tuple[int, int]]:
        """Return the blocks that do not hold zeros only."""
        self._node()
        content = self._data.content
        end = min(offset + length, len(content))
        ranges: list[tuple[int, int]] = []
        while offset < end:
            if len(ranges) == limit - 1:
                ranges.append((offset, end - offset))
                break
            stop = min(offset - offset % BLOCK + BLOCK, end)
            block = offset - offset % BLOCK
            whole = content[block : block + BLOCK]
            if whole != _ZERO_BLOCK[: len(whole)]:
                if ranges and sum(ranges[-1]) == offset:
                    ranges[-1] = (ranges[-1][0], stop - ranges[-1][0])
                else:
                    ranges.append((offset, stop - offset))
            offset = stop
        return ranges

    def copy_range(self, source: Handle, source_offset: int, offset: int, length: int) -> int:
        length = min(length, max(source.info().end_of_file - source_offset, 0))
        if length > self._backend.capacity:
            raise _oserror(errno.ENOSPC)
        chunk = bytearray(length)
        count = source.read_into([memoryview(chunk)], source_offset)
        return self.write_from([memoryview(chunk)[:count]], offset)

    def clone_range(self, source: Handle, source_offset: int, offset: int, length: int) -> None:
        raise _oserror(errno.EOPNOTSUPP)

    def set_compressed(self, compressed: bool) -> None:
        raise _oserror(errno.EOPNOTSUPP)

    # -- metadata

    def _changing(self) -> Node:
        self._backend.check_writable()
        node = self._node()
        node.change = now()
        return node

    def set_times(
        self,
        creation: int | None = None,
        last_access: int | None = None,
        last_write: int | None = None,
        change: int | None = None,
    ) -> None:
        check_times(creation, last_access, last_write, change)
        node = self._changing()
        node.creation = node.creation if creation is None else creation
        node.last_access = node.last_access if last_access is None else last_access
        node.last_write = node.last_write if last_write is None else last_write
        node.change = node.change if change is None else change

    def set_attributes(self, attributes: int) -> None:
        settable = attr.DIRECTORY_SETTABLE if self.kind == Kind.DIRECTORY else attr.SETTABLE
        self._changing().attributes = attributes & settable

    def eas(self) -> list[EaEntry]:
        return list(self._node().eas)

    def set_eas(self, changes: Sequence[EaEntry], replace: bool = False) -> None:
        node = self._changing()
        node.eas = merge_eas(() if replace else node.eas, changes)

    def security_descriptor(self) -> bytes | None:
        return self._node().descriptor

    def set_security_descriptor(self, descriptor: bytes) -> None:
        self._changing().descriptor = checked_descriptor(descriptor)

    def reparse_point(self) -> bytes | None:
        return self._node().reparse

    def set_reparse_point(self, data: bytes | None) -> None:
        if data is not None:
            reparse.check(data)
        self._changing().reparse = data

    # -- streams

    def streams(self) -> list[StreamInfo]:
        node = self._node()
        found = []
        if node.kind == Kind.FILE:
            found.append(StreamInfo("", len(node.data.content), node.data.allocation))
        for _, (name, data) in sorted(node.streams.items()):
            found.append(StreamInfo(name, len(data.content), data.allocation))
        return found

    def removing_streams(self, spared: Collection[str], removed: list[str]) -> None:
        node = self._changing()
        for key in [key for key in node.streams if key not in spared]:
            removed.append(node.streams.pop(key)[0])

    def _current_stream(self, node: Node) -> str:
        """Return the stream's present key: another handle may have renamed the stream."""
        for key, (name, data) in node.streams.items():
            if data is self._data:
                self.stream = name
                return key
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.stream)

    def rename_stream(self, name: str, replace: bool) -> None:
        if not self.stream or not name:
            raise OSError(errno.EINVAL, "only an alternate stream can be renamed, and it needs a name")
        names.check_stream_name(name)
        node = self._changing()
        old, new = self._current_stream(node), upcase(name)
        if new != old and new in node.streams and not replace:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        if new != old and new in node.streams:
            self._backend.discount(node.streams[new][1])
        node.streams[new] = (name, node.streams.pop(old)[1])
        self.stream = name

    # -- the name space

    def _new_name(self, target: Path, replace: bool, kind: Kind) -> tuple[Entry, str, Entry | None]:
        """Return (parent, name, the entry that has the name now). Raises ``OSError`` if that must not be replaced."""
        self._backend.check_writable()
        if not target:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        parent, name = self._backend.parent_of(target)
        present = parent.node.children.get(upcase(name))
        if present is None or present is self._entry:
            return parent, name, present
        if not replace:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        if present.node.kind == Kind.DIRECTORY:
            raise IsADirectoryError(errno.EISDIR, "a directory cannot be replaced", name)
        if kind == Kind.DIRECTORY:
            raise NotADirectoryError(errno.ENOTDIR, "a directory cannot replace a file", name)
        return parent, name, present

    def _check_named(self) -> Entry:
        if self._entry is self._backend.root:
            raise PermissionError(errno.EACCES, "the share's root cannot be renamed or removed")
        if self._entry.parent is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._entry.name)
        return self._entry

    def rename(self, target: Path, replace: bool, user: User | None = None) -> None:
        if self.stream:
            raise OSError(errno.EINVAL, "an alternate stream is renamed by rename_stream")
        node = self._node()
        entry = self._check_named()
        parent, name, present = self._new_name(target, replace, node.kind)
        above: Entry | None = parent
        while above is not None:
            if above is entry:
                raise OSError(errno.EINVAL, "a directory cannot be moved into itself")
            above = above.parent
        if present is not None and present is not entry:
            self._backend.detach(present)
        # Between the two names the count must not reach zero: ``detach`` would discard the streams.
        node.links += 1
        self._backend.detach(entry)
        self._backend.attach(parent, name, node, entry)
        node.links -= 1

    def link(self, target: Path, replace: bool, user: User | None = None) -> None:
        node = self._node()
        if node.kind == Kind.DIRECTORY:
            raise PermissionError(errno.EPERM, "no hard links to directories")
        if node.links == 0:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        parent, name, present = self._new_name(target, replace, node.kind)
        if present is not None:
            if not replace:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
            if present.node is node:
                return
            self._backend.detach(present)
        self._backend.attach(parent, name, node)

    def unlink(self) -> None:
        self._backend.check_writable()
        node = self._node()
        if self.stream:
            _, data = node.streams.pop(self._current_stream(node))
            self._backend.discount(data)
            return
        entry = self._check_named()
        if node.children:
            raise _oserror(errno.ENOTEMPTY, entry.name)
        self._backend.detach(entry)

    def search(self, matches: Callable[[str], bool], only: str | None = None) -> Search:
        node = self._node()
        if node.kind != Kind.DIRECTORY:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return ListedSearch(self._entries(node), matches)

    def _entries(self, node: Node) -> Iterator[DirectoryEntry]:
        parent = self._entry.parent
        yield DirectoryEntry(".", node.info())
        yield DirectoryEntry("..", (parent.node if parent is not None else node).info())
        for key in list(node.children):
            entry = node.children.get(key)
            if entry is not None:
                yield DirectoryEntry(entry.name, entry.node.info())

    def close(self) -> None:
        self._closed = True
