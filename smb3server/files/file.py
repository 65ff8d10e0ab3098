"""Open files: the state that all opens of one stream share, in one table for all shares. [MS-FSA 2.1.1.3 - 2.1.1.5]

``server.file_table`` maps (FileKey, folded stream name) to ``File``. A file is removed from it with its last open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from smb3server.backends.base import Backend, FileInfo, FileKey, Handle, Path
from smb3server.files.caching import NONE, Breaks, Caching, Holder, Lease, LeaseTables
from smb3server.files.locks import LockTable
from smb3server.files.write_times import WriteTimes
from smb3server.wire.create import Access, ShareAccess
from smb3server.wire.upcase import upcase

STAT_ACCESS = int(Access.READ_ATTRIBUTES | Access.WRITE_ATTRIBUTES | Access.SYNCHRONIZE)
"""An open with no more access than this neither breaks oplocks nor hinders their grant. [MS-FSA 2.1.5.1.2]"""
LEASE_STAT_ACCESS = STAT_ACCESS | int(Access.READ_CONTROL)
_READS, _WRITES = int(Access.READ_DATA | Access.EXECUTE), int(Access.WRITE_DATA | Access.APPEND_DATA)
_DELETE = int(Access.DELETE)
_SHARED = _READS | _WRITES | _DELETE
"""Access rights that share modes are about. An open with none of them conflicts with no other."""
_SHARE_READ, _SHARE_WRITE, _SHARE_DELETE = int(ShareAccess.READ), int(ShareAccess.WRITE), int(ShareAccess.DELETE)


class Usage(Protocol):
    """The resources of the server that one user holds."""

    locks: int
    """Byte-range locks held."""


class Sharer(Protocol):
    """An open, as share modes see it."""

    granted_access: int
    share_access: int


class FileOpen(Sharer, Protocol):
    """What a file needs of each of its opens."""

    parent_lease_key: bytes | None

    @property
    def handle(self) -> Handle | None: ...

    @property
    def caching(self) -> object:
        """The oplock or lease of the open."""

    @property
    def usage(self) -> Usage | None: ...

    def begin_io(self) -> None:
        """Keep the handle from being closed until ``end_io``."""

    def end_io(self) -> None:
        """Undo one ``begin_io``."""


Opened = TypeVar("Opened", bound=FileOpen)


def _count_locks(owner: FileOpen, more: int) -> None:
    usage = owner.usage
    if usage is not None:
        usage.locks += more


def is_stat_open(access: int) -> bool:
    """Return whether an open with ``access`` is for attributes only and does not affect oplocks."""
    return not access & ~STAT_ACCESS


def _denied(access: int, share: int) -> bool:
    """Return whether ``access`` has a right that ``share`` denies to others."""
    return bool(
        (access & _READS and not share & _SHARE_READ)
        or (access & _WRITES and not share & _SHARE_WRITE)
        or (access & _DELETE and not share & _SHARE_DELETE)
    )


def conflicts(opens: Iterable[Sharer], access: int, share: int) -> bool:
    """Return whether an open with ``access`` and ``share`` conflicts with one of ``opens``. [MS-FSA 2.1.5.1.2.2]"""
    if not access & _SHARED:
        return False
    return any(
        existing.granted_access & _SHARED
        and (_denied(access, existing.share_access) or _denied(existing.granted_access, share))
        for existing in opens
    )


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


@dataclass(slots=True, eq=False, repr=False)
class File(Generic[Opened]):
    """One stream of a file that is open."""

    table: FileTable[Opened]
    key: FileKey
    stream: str
    opens: list[Opened] = field(default_factory=list)
    delete_pending: bool = False
    """The file is removed at the last close, and until then new opens fail with DELETE_PENDING. Change it with ``mark``
    and ``keep`` only."""
    deleter: Deleter[Opened] | None = None
    """The open that requested the deletion. Also None if it was requested in an earlier run of the server."""
    # Invariant: deleter is None unless delete_pending.
    link_deletions: dict[Opened, Deleter[Opened]] = field(default_factory=dict)
    """Requests to delete one of several hard links, by the open that made them. See ``state.deletions``."""
    last_closed: tuple[Opened, Handle] | None = None
    """The last open of a file to be deleted, while other streams of the file are still open."""
    unwatch: Callable[[], None] | None = None
    """Stops the watch for changes by programs of the host. None if the file is not watched."""
    write_time: WriteTimes | None = None
    """None means that clients see the times of the store: no open has set one."""
    locks: LockTable[Opened] = field(init=False)
    caching: Caching[Opened] = field(init=False)

    def __post_init__(self) -> None:
        self.locks = LockTable(self.table.breaks.call_soon, _count_locks)
        self.caching = Caching(self.table.breaks)

    def share_conflict(self, access: int, share: int, exclude: Opened | None = None) -> bool:
        """Return whether an open with ``access`` and ``share`` violates the sharing of the file's other opens.

        DELETE on the unnamed stream must be shared by the opens of the file's other streams, and an open of one of
        those must share DELETE if the unnamed stream is open with it."""
        opens = self.opens if exclude is None else [opened for opened in self.opens if opened is not exclude]
        if opens and conflicts(opens, access, share):
            return True
        if self.stream:
            whole = self.table.find(self.key) if access & _SHARED and not share & _SHARE_DELETE else None
            return whole is not None and any(opened.granted_access & _DELETE for opened in whole.opens)
        if access & _DELETE:
            return any(
                opened.granted_access & _SHARED and not opened.share_access & _SHARE_DELETE
                for other in self.table.streams(self.key)
                if other is not self
                for opened in other.opens
            )
        return False

    def share_times(self, times: WriteTimes) -> None:
        """Give the times to all open streams of the file that have none."""
        for other in self.table.streams(self.key):
            if other.write_time is None:
                other.write_time = times

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

    def break_directory_leases(self, spared: bytes | None = None) -> None:
        """Break the leases on this directory, as its entries have changed.

        A change takes read caching from every lease. As handle caching alone is not a valid lease, this takes all of
        it. Leases with the key ``spared``, which the changing open named as its parent's, stay, because their holder
        made the change (SMB2_CREATE_REQUEST_LEASE_V2.ParentLeaseKey). The key alone decides, whichever client holds the
        lease. The change does not wait for acknowledgments. [MS-FSA 2.1.4.12 (PARENT_OBJECT), 2.1.4.12.2]"""
        for holder in tuple(self.caching.holders):
            if isinstance(holder, Lease) and holder.key != spared:
                holder.lower(NONE)

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
        self.alone: File[Opened] = File(self, FileKey(0, 0), "")
        """The file of an open that comes and goes in one turn, while nobody else has its file open. It is in no table,
        and has neither opens nor locks nor caching rights."""

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
            shared = None
            if streams:
                times = (other.write_time for other in streams.values())
                shared = next((found for found in times if found is not None and found.shared), None)
            file = streams[folded] = File(self, key, stream, write_time=shared)
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

    def entry_changed(self, backend: Backend, path: Path, spared: bytes | None) -> None:
        """Break the leases on the parent directory of ``path``, which was created, removed, renamed or changed.
        ``spared`` as for ``File.break_directory_leases``."""
        if not path:
            return
        try:
            key = backend.stat(path[:-1]).key
        except OSError:
            # The directory has been removed, too, and its leases with it.
            return
        directory = self.find(key)
        if directory is not None:
            directory.break_directory_leases(spared)

    def __len__(self) -> int:
        return len(self._files)
