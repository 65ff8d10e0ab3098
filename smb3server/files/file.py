"""Open files: the state that all opens of one stream share, in one table for all shares. [MS-FSA 2.1.1.3 - 2.1.1.5]

``server.file_table`` maps (FileKey, folded stream name) to ``File``. A file is removed from it with its last open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from smb3server.files import share_modes
from smb3server.files.caching import Breaks, Caching, Holder, Lease, LeaseTables
from smb3server.files.locks import LockTable
from smb3server.wire.create import Access
from smb3server.wire.upcase import upcase

if TYPE_CHECKING:
    from smb3server.backends.base import FileInfo, FileKey, Handle
    from smb3server.files.write_times import WriteTimes

STAT_ACCESS = int(Access.READ_ATTRIBUTES | Access.WRITE_ATTRIBUTES | Access.SYNCHRONIZE)
"""An open with no more access than this neither breaks oplocks nor prevents that they are granted. [MS-FSA
2.1.5.1.2]"""
LEASE_STAT_ACCESS = STAT_ACCESS | int(Access.READ_CONTROL)


class Usage(Protocol):
    """The resources of the server that one user holds."""

    locks: int
    """Byte-range locks held."""


class FileOpen(Protocol):
    """What a file needs of each of its opens."""

    granted_access: int
    share_access: int
    parent_lease_key: bytes | None

    @property
    def handle(self) -> Handle | None: ...

    @property
    def caching(self) -> object:
        """The oplock or lease of the open."""
        ...

    @property
    def usage(self) -> Usage | None: ...

    def begin_io(self) -> None:
        """Keep the handle from being closed until ``end_io``."""
        ...

    def end_io(self) -> None:
        """Undo one ``begin_io``."""
        ...


Opened = TypeVar("Opened", bound=FileOpen)


def _count_locks(owner: FileOpen, more: int) -> None:
    usage = owner.usage
    if usage is not None:
        usage.locks += more


def is_stat_open(access: int) -> bool:
    """Return whether an open with ``access`` is for attributes only and does not affect oplocks."""
    return not access & ~STAT_ACCESS


def end_of_data(info: FileInfo) -> int:
    """Return the offset up to which clients can cache a stream, in bytes. A byte-range lock that begins here or beyond
    it has nothing to do with caching. [MS-FSA 2.1.5.8, 2.1.5.18: AllocationSize]

    Files of the host that are sparse, or very small, have fewer blocks than their size tells."""
    return max(info.allocation_size, info.end_of_file)


class Deleter(NamedTuple, Generic[Opened]):
    """The open that requested the deletion of a file."""

    opened: Opened
    handle: Handle
    parent_lease_key: bytes | None
    posix: bool
    """The name goes with the close of this open, and not with the last one. [MS-FSCC 2.4.12, POSIX_SEMANTICS]"""


class File(Generic[Opened]):
    """One stream of a file that is open."""

    __slots__ = (
        "caching",
        "delete_pending",
        "deleter",
        "key",
        "last_closed",
        "link_deletions",
        "locks",
        "opens",
        "stream",
        "table",
        "unwatch",
        "write_time",
    )

    def __init__(self, table: FileTable[Opened], key: FileKey, stream: str) -> None:
        self.table = table
        self.key = key
        self.stream = stream
        self.opens: list[Opened] = []
        self.delete_pending = False
        """The file is removed at the last close, and until then new opens fail with DELETE_PENDING. Change it with
        ``mark`` and ``keep`` only."""
        self.deleter: Deleter[Opened] | None = None
        """The open that requested the deletion. Also None if it was requested in an earlier run of the server."""
        # Invariant: deleter is None unless delete_pending.
        self.link_deletions: dict[Opened, Deleter[Opened]] = {}
        """Requests to delete one of several hard links, by the open that made them. See ``state.deletions``."""
        self.last_closed: tuple[Opened, Handle] | None = None
        """The last open of a file to be deleted, while other streams of the file are still open."""
        self.unwatch: Callable[[], None] | None = None
        """Stops the watch for changes by programs of the host. None if the file is not watched."""
        self.write_time: WriteTimes | None = None
        """None means that clients see the last write time of the store: no open has set it."""
        self.locks: LockTable[Opened] = LockTable(table.breaks.call_soon, _count_locks)
        self.caching: Caching[Opened] = Caching(table.breaks)

    def share_conflict(self, access: int, share: int, exclude: Opened | None = None) -> bool:
        """Return whether an open with ``access`` and ``share`` violates the sharing of the file's other opens.

        DELETE on the unnamed stream must be shared by the opens of the file's other streams, too."""
        opens = self.opens if exclude is None else [opened for opened in self.opens if opened is not exclude]
        if opens and share_modes.conflicts(opens, access, share):
            return True
        if not self.stream and access & Access.DELETE:
            for other in self.table.streams(self.key):
                if other is not self and any(
                    opened.granted_access & share_modes.SHARED
                    and share_modes.denied(Access.DELETE, opened.share_access)
                    for opened in other.opens
                ):
                    return True
        return False

    def other_opens(self, exclude: Opened | None, lease: Lease[Opened] | None) -> bool:
        """Return whether an open other than ``exclude`` forbids exclusive caching: it is not for attributes only, and
        does not hold ``lease``."""
        return any(
            opened is not exclude
            and not is_stat_open(opened.granted_access)
            and (lease is None or opened.caching is not lease)
            for opened in self.opens
        )

    def mark(self, opened: Opened, posix: bool = False) -> None:
        """Delete the file at its last close, with the name and the rights of this open. The last close may be that of
        another open, but not with ``posix``."""
        self.release_deleter()
        self.delete_pending = True
        self.deleter = self._deleter(opened, posix)

    def mark_link(self, opened: Opened, posix: bool) -> None:
        """Delete the name that ``opened`` was made by, when the last open made by it is closed."""
        deleter = self._deleter(opened, posix)
        self.keep_link(opened)
        if deleter is not None:
            self.link_deletions[opened] = deleter

    @staticmethod
    def _deleter(opened: Opened, posix: bool) -> Deleter[Opened] | None:
        if opened.handle is None:
            return None
        # Keep the handle beyond the close of its open, as no other handle has this name and these rights.
        opened.begin_io()
        return Deleter(opened, opened.handle, opened.parent_lease_key, posix)

    def keep(self) -> None:
        """Withdraw the request to delete the file. Those to delete single names stay."""
        self.delete_pending = False
        self.release_deleter()

    def keep_link(self, opened: Opened) -> None:
        """Withdraw the request that ``opened`` made to delete its name, or forget it, as it is done."""
        if self.link_deletions.pop(opened, None) is not None:
            opened.end_io()

    def release_deleter(self) -> None:
        """Release the open that requested the deletion."""
        deleter, self.deleter = self.deleter, None
        if deleter is not None:
            deleter.opened.end_io()

    def data_changes(self, holder: Holder[Opened] | None) -> None:
        """Break the caching rights of others for a write, a truncation or a byte-range lock. Cheap without any."""
        if self.caching.holders:
            self.caching.break_for_write(holder)


class FileTable(Generic[Opened]):
    """The open files of all shares, and all leases."""

    # Invariant: no value of _files is empty.

    def __init__(self, breaks: Breaks[Opened]) -> None:
        self.breaks = breaks
        self.leases: LeaseTables[Opened] = LeaseTables()
        self._files: dict[FileKey, dict[str, File[Opened]]] = {}

    def find(self, key: FileKey, stream: str = "") -> File[Opened] | None:
        """Return the entry of an open file, or None if the stream is not open."""
        streams = self._files.get(key)
        return streams.get(stream and upcase(stream)) if streams is not None else None

    def get(self, key: FileKey, stream: str = "") -> File[Opened]:
        """Return the file's entry, and create it if needed. Call ``release`` if it does not get an open."""
        streams = self._files.setdefault(key, {})
        folded = stream and upcase(stream)
        file = streams.get(folded)
        if file is None:
            file = streams[folded] = File(self, key, stream)
        return file

    def streams(self, key: FileKey) -> list[File[Opened]]:
        """Return the open streams of a file."""
        return list(self._files.get(key, {}).values())

    def release(self, file: File[Opened]) -> None:
        """Remove the file from the table if it has no opens left."""
        if file.opens or file.last_closed is not None or file.link_deletions:
            return
        if file.unwatch is not None:
            file.unwatch()
        streams = self._files.get(file.key)
        if streams is not None and streams.get(file.stream and upcase(file.stream)) is file:
            del streams[file.stream and upcase(file.stream)]
            if not streams:
                del self._files[file.key]

    def __len__(self) -> int:
        return len(self._files)
