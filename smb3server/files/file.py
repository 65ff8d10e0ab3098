"""Files that are open: what all opens of one stream share (MS-FSA 2.1.1.3 - 2.1.1.5), in one table for all shares.

``server.file_table`` maps (FileKey, folded stream name) to ``File``; a file leaves it with its last open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from smb3server.files import share_modes
from smb3server.files.caching import Breaks, Caching, Holder, Lease, LeaseTables
from smb3server.files.locks import LockTable
from smb3server.wire.create import Access

if TYPE_CHECKING:
    from smb3server.backends.base import FileKey, Handle
    from smb3server.files.write_times import WriteTime

STAT_ACCESS = int(Access.READ_ATTRIBUTES | Access.WRITE_ATTRIBUTES | Access.SYNCHRONIZE)
"""An open with no more than this neither breaks oplocks nor stands in the way of granting them (MS-FSA 2.1.5.1.2)."""
LEASE_STAT_ACCESS = STAT_ACCESS | int(Access.READ_CONTROL)


class Usage(Protocol):
    """What one user has of the server."""

    locks: int
    """Byte-range locks held."""


class FileOpen(Protocol):
    """What a file asks of each of its opens."""

    granted_access: int
    share_access: int
    parent_lease: tuple[bytes, bytes] | None

    @property
    def handle(self) -> Handle | None: ...

    @property
    def caching(self) -> object:
        """Its oplock or lease."""
        ...

    @property
    def usage(self) -> Usage | None: ...

    def begin_io(self) -> None:
        """Keep the handle from being closed until ``end_io``."""
        ...

    def end_io(self) -> None: ...


Opened = TypeVar("Opened", bound=FileOpen)


def _count_locks(owner: FileOpen, more: int) -> None:
    usage = owner.usage
    if usage is not None:
        usage.locks += more


def is_stat_open(access: int) -> bool:
    return not access & ~STAT_ACCESS


class Deleter(NamedTuple, Generic[Opened]):
    """The open through which a file's deletion was asked for."""

    opened: Opened
    handle: Handle
    parent_lease: tuple[bytes, bytes] | None
    """``Open.parent_lease``, as it was then."""


class File(Generic[Opened]):
    """One stream."""

    __slots__ = (
        "caching",
        "delete_pending",
        "deleter",
        "key",
        "last_closed",
        "locks",
        "opens",
        "stream",
        "table",
        "uncover",
        "write_time",
    )

    def __init__(self, table: FileTable[Opened], key: FileKey, stream: str) -> None:
        self.table = table
        self.key = key
        self.stream = stream
        self.opens: list[Opened] = []
        self.delete_pending = False
        """Removed at the last close; until then new opens fail with DELETE_PENDING. ``mark`` and ``keep`` change it."""
        self.deleter: Deleter[Opened] | None = None
        """Who had it marked so. None, too, where an earlier run of the server did it for somebody."""
        self.last_closed: tuple[Opened, Handle] | None = None
        """The last open of a file to be deleted, while other streams of it are still open."""
        self.uncover: Callable[[], None] | None = None
        """Set while host changes to it are watched for; stops that."""
        self.write_time: WriteTime | None = None
        """None until something is written or the last write time is set."""
        self.locks: LockTable[Opened] = LockTable(table.breaks.call_soon, _count_locks)
        self.caching: Caching[Opened] = Caching(table.breaks)

    def share_conflict(self, access: int, share: int, exclude: Opened | None = None) -> bool:
        """SHARING_VIOLATION for a new open? DELETE on a file's unnamed stream is asked of its other streams, too."""
        opens = [entry for entry in self.opens if entry is not exclude]
        if share_modes.conflicts(opens, access, share):
            return True
        if not self.stream and access & Access.DELETE:
            for other in self.table.streams(self.key):
                if other is not self and any(
                    entry.granted_access & share_modes.SHARED and share_modes.denied(Access.DELETE, entry.share_access)
                    for entry in other.opens
                ):
                    return True
        return False

    def other_opens(self, own: Opened | None, lease: Lease[Opened] | None) -> bool:
        """Any open, beyond those of the same lease and those for attributes only, that forbids exclusive caching?"""
        return any(
            entry is not own
            and not is_stat_open(entry.granted_access)
            and (lease is None or entry.caching is not lease)
            for entry in self.opens
        )

    def mark(self, by: Opened) -> None:
        """Delete the file at the last close, by the name and with the rights of this open, whoever closes last."""
        self.let_go()
        self.delete_pending = True
        if by.handle is not None:
            # The handle outlives its open: no other has that name and those rights.
            by.begin_io()
            self.deleter = Deleter(by, by.handle, by.parent_lease)

    def keep(self) -> None:
        """Do not delete the file after all."""
        self.delete_pending = False
        self.let_go()

    def let_go(self) -> None:
        """Forget who had it marked."""
        deleter, self.deleter = self.deleter, None
        if deleter is not None:
            deleter.opened.end_io()

    def data_changes(self, by: Holder[Opened] | None) -> None:
        """Tell other clients' caches (write, truncation, byte-range lock). Cheap when nobody caches."""
        if self.caching.holders:
            self.caching.break_for_write(by)


class FileTable(Generic[Opened]):
    def __init__(self, breaks: Breaks[Opened]) -> None:
        self.breaks = breaks
        self.leases: LeaseTables[Opened] = LeaseTables()
        self._files: dict[FileKey, dict[str, File[Opened]]] = {}

    def find(self, key: FileKey, stream: str = "") -> File[Opened] | None:
        streams = self._files.get(key)
        return streams.get(stream.upper()) if streams is not None else None

    def get(self, key: FileKey, stream: str = "") -> File[Opened]:
        """The file's entry, made if there is none. Give it back with ``release`` when it did not get an open."""
        streams = self._files.setdefault(key, {})
        folded = stream.upper()
        file = streams.get(folded)
        if file is None:
            file = streams[folded] = File(self, key, stream)
        return file

    def streams(self, key: FileKey) -> list[File[Opened]]:
        return list(self._files.get(key, {}).values())

    def release(self, file: File[Opened]) -> None:
        """Forget the file if nothing is open any more."""
        if file.opens or file.last_closed is not None:
            return
        if file.uncover is not None:
            file.uncover()
        streams = self._files.get(file.key)
        if streams is not None and streams.get(file.stream.upper()) is file:
            del streams[file.stream.upper()]
            if not streams:
                del self._files[file.key]

    def __len__(self) -> int:
        return len(self._files)
