"""Contents, files and names of the memory backend."""

from __future__ import annotations

import errno
import time

from smb3server.backends.base import MAX_DESCRIPTOR_BYTES, FileInfo, FileKey, Kind
from smb3server.backends.eas import ea_size
from smb3server.wire import attributes as attr
from smb3server.wire import filetime
from smb3server.wire.file_info import EaEntry

BLOCK = 4096
"""Unit of allocation in bytes."""
VOLUME = 1
"""The volume number in every ``FileKey`` of a memory backend."""


def now() -> int:
    """Return the current time as a FILETIME."""
    return filetime.from_ns(time.time_ns())


class Data:
    """The content of a file or stream."""

    __slots__ = ("changed", "content", "counted", "reserved")

    def __init__(self) -> None:
        self.changed = time.time_ns()
        """When ``content`` was changed last, in ns since 1970. Clients cannot set it."""
        self.counted = True
        """Whether ``content`` counts in ``MemoryBackend.used``: not after the last name was deleted."""
        self.content = bytearray()
        self.reserved = 0
        """Bytes that a client has allocated, a multiple of ``BLOCK``."""

    @property
    def allocation(self) -> int:
        """Allocation size in bytes."""
        return max(self.reserved, -(-len(self.content) // BLOCK) * BLOCK)


class Node:
    """A file or directory, independent of its names."""

    __slots__ = (
        "attributes",
        "children",
        "creation",
        "data",
        "descriptor",
        "eas",
        "inode",
        "kind",
        "last_access",
        "last_write",
        "links",
        "reparse",
        "streams",
        "change",
    )

    def __init__(self, inode: int, kind: Kind, attributes: int) -> None:
        settable = attr.DIRECTORY_SETTABLE if kind == Kind.DIRECTORY else attr.SETTABLE
        self.inode = inode
        self.kind = kind
        self.attributes = attributes & settable or (attr.ARCHIVE if kind == Kind.FILE else 0)
        self.data = Data()
        # Keys are names in upper case, as ``upcase`` makes them.
        self.streams: dict[str, tuple[str, Data]] = {}
        self.children: dict[str, Entry] = {}
        self.eas: list[EaEntry] = []
        self.descriptor: bytes | None = None
        self.reparse: bytes | None = None
        # Invariant: the number of entries that name this node; the root counts one.
        self.links = 0
        self.creation = self.last_access = self.last_write = self.change = now()

    def info(self, data: Data | None = None) -> FileInfo:
        """Return the metadata. ``data``: the alternate stream whose sizes are reported in place of the file's."""
        attributes, tag, size, allocation = self.attributes, 0, 0, 0
        if self.kind == Kind.DIRECTORY:
            attributes |= attr.DIRECTORY
        else:
            size, allocation = len(self.data.content), self.data.allocation
        if data is not None:
            size, allocation = len(data.content), data.allocation
        if self.reparse is not None:
            attributes |= attr.REPARSE_POINT
            tag = int.from_bytes(self.reparse[:4], "little")
        return FileInfo(
            FileKey(VOLUME, self.inode),
            self.kind,
            attributes or attr.NORMAL,
            self.creation,
            self.last_access,
            self.last_write,
            self.change,
            size,
            allocation,
            self.links,
            ea_size(self.eas),
            tag,
            0o40777 if self.kind == Kind.DIRECTORY else 0o100666,
            0,
            0,
        )


class Entry:
    """A name that handles were opened by. A rename changes it in place."""

    __slots__ = ("name", "node", "parent")

    def __init__(self, parent: Entry | None, name: str, node: Node) -> None:
        self.parent = parent
        self.name = name
        self.node = node


def checked_descriptor(descriptor: bytes) -> bytes:
    """Return a security descriptor that may be stored. Raises ``OSError`` (E2BIG) if it is too large."""
    if len(descriptor) > MAX_DESCRIPTOR_BYTES:
        raise OSError(errno.E2BIG, "security descriptor larger than 64 KiB")
    return bytes(descriptor)
