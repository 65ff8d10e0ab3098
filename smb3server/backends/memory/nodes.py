"""What the memory backend keeps: contents, files, names."""

from __future__ import annotations

import errno
import time

from smb3server.backends.base import MAX_DESCRIPTOR_BYTES, FileInfo, FileKey, Kind
from smb3server.backends.eas import ea_size
from smb3server.wire import attributes as attr
from smb3server.wire import filetime

BLOCK = 4096
VOLUME = 1


def now() -> int:
    return filetime.from_ns(time.time_ns())


class Data:
    """Content of a file or stream."""

    __slots__ = ("content", "counted", "reserved")

    def __init__(self) -> None:
        self.counted = True
        self.content = bytearray()
        self.reserved = 0

    @property
    def allocation(self) -> int:
        return max(self.reserved, -(-len(self.content) // BLOCK) * BLOCK)


class Node:
    """A file or directory, whatever its names are."""

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
        self.streams: dict[str, tuple[str, Data]] = {}
        self.children: dict[str, Entry] = {}
        self.eas: list[tuple[bytes, bytes]] = []
        self.descriptor: bytes | None = None
        self.reparse: bytes | None = None
        self.links = 0
        self.creation = self.last_access = self.last_write = self.change = now()

    def info(self, data: Data | None = None) -> FileInfo:
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
    """A name: what a handle was opened by; renames change it in place."""

    __slots__ = ("name", "node", "parent")

    def __init__(self, parent: Entry | None, name: str, node: Node) -> None:
        self.parent = parent
        self.name = name
        self.node = node


def checked_descriptor(descriptor: bytes) -> bytes:
    if len(descriptor) > MAX_DESCRIPTOR_BYTES:
        raise OSError(errno.E2BIG, "security descriptor larger than 64 KiB")
    return bytes(descriptor)
