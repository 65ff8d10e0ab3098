"""Files that are open: what all opens of one stream share (MS-FSA 2.1.1.3 - 2.1.1.5), in one table for all shares.

``server.file_table`` maps (FileKey, folded stream name) to ``File``; a file leaves it with its last open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from smb3server.files import notify, share_modes
from smb3server.files.caching import Breaks, Caching, Holder, Lease, LeaseTables
from smb3server.files.locks import LockTable
from smb3server.wire.change_notify import Action, NotifyFilter
from smb3server.wire.create import Access

if TYPE_CHECKING:
    from smb3server.backends.base import FileKey, Handle
    from smb3server.files.write_times import WriteTime
    from smb3server.state.ceilings import Usage
    from smb3server.state.objects import Open

log = logging.getLogger(__name__)

STAT_ACCESS = int(Access.READ_ATTRIBUTES | Access.WRITE_ATTRIBUTES | Access.SYNCHRONIZE)
"""An open with no more than this neither breaks oplocks nor stands in the way of granting them (MS-FSA 2.1.5.1.2)."""
LEASE_STAT_ACCESS = STAT_ACCESS | int(Access.READ_CONTROL)


def _count_locks(owner: object, more: int) -> None:
    usage: Usage | None = getattr(owner, "usage", None)
    if usage is not None:
        usage.locks += more


def is_stat_open(access: int) -> bool:
    return not access & ~STAT_ACCESS


class Deleter(NamedTuple):
    """The open through which a file's deletion was asked for."""

    opened: Open
    handle: Handle
    parent_lease: tuple[bytes, bytes] | None
    """``Open.parent_lease``, as it was then."""


class File:
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

    def __init__(self, table: FileTable, key: FileKey, stream: str) -> None:
        self.table = table
        self.key = key
        self.stream = stream
        self.opens: list[Open] = []
        self.delete_pending = False
        """Removed at the last close; until then new opens fail with DELETE_PENDING. ``mark`` and ``keep`` change it."""
        self.deleter: Deleter | None = None
        """Who had it marked so. None, too, where an earlier run of the server did it for somebody."""
        self.last_closed: tuple[Open, Handle] | None = None
        """The last open of a file to be deleted, while other streams of it are still open."""
        self.uncover: Callable[[], None] | None = None
        """Set while host changes to it are watched for; stops that."""
        self.write_time: WriteTime | None = None
        """None until something is written or the last write time is set."""
        self.locks = LockTable(table.breaks.call_soon, _count_locks)
        self.caching = Caching(table.breaks, table.break_timeout)

    def share_conflict(self, access: int, share: int, exclude: Open | None = None) -> bool:
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

    def other_opens(self, own: Open | None, lease: Lease | None) -> bool:
        """Any open, beyond those of the same lease and those for attributes only, that forbids exclusive caching?"""
        return any(
            entry is not own
            and not is_stat_open(entry.granted_access)
            and (lease is None or entry.caching is not lease)
            for entry in self.opens
        )

    def mark(self, by: Open) -> None:
        """Delete the file at the last close, by the name and with the rights of this open, whoever closes last."""
        self._let_go()
        self.delete_pending = True
        if by.handle is not None:
            # The handle outlives its open: no other has that name and those rights.
            by.begin_io()
            self.deleter = Deleter(by, by.handle, by.parent_lease)

    def keep(self) -> None:
        """Do not delete the file after all."""
        self.delete_pending = False
        self._let_go()

    def _let_go(self) -> None:
        deleter, self.deleter = self.deleter, None
        if deleter is not None:
            deleter.opened.end_io()

    def close_open(self, closing: Open) -> None:
        """One open less: its locks, oplock or share of a lease; with the last one a pending deletion happens."""
        self.opens.remove(closing)
        self.locks.release_owner(closing)
        holder, closing.caching = closing.caching, None
        if isinstance(holder, Lease):
            holder.opens.remove(closing)
            if not holder.opens:
                self.table.leases.remove(holder)
        self._closed(closing, holder)
        # Last: whoever waited for this holder tries again, and a deletion has to be over by then.
        if holder is not None and not (isinstance(holder, Lease) and holder.opens):
            self.caching.drop(holder)

    def _closed(self, closing: Open, holder: Holder | None) -> None:
        """Deletion, at once or when the last open goes; those who only cache are asked to go."""
        if closing.delete_on_close:
            self.mark(closing)
            # Whoever keeps it open only for its cache stands in the way of the deletion.
            self.caching.break_handles(holder)
            self._store_deletion(closing)
            if self.opens and closing.is_directory and closing.handle is not None:
                notify.directory_deleted(closing.tree.share, closing.handle.path)
        if self.opens:
            return
        if self.delete_pending and closing.handle is not None:
            if not self.stream and self._other_streams_open():
                # Gone with the last handle of any of its streams; the name stays taken until then.
                self.last_closed = (closing, closing.handle)
                closing.begin_io()
                return
            self._remove(closing, closing.handle)
        self.table.release(self)
        base = self.table.find(self.key) if self.stream else None
        if base is not None:
            base.stream_closed()

    def _store_deletion(self, closing: Open) -> None:
        """Persistent opens that are left keep in mind, over a restart, that the file ends with the last of them."""
        persistence = closing.session.server.persistence
        if persistence is not None:
            for entry in self.opens:
                persistence.changed(entry)

    def stream_closed(self) -> None:
        """Another stream of this file has no open any more: what waited for that happens."""
        if self.last_closed is None or self._other_streams_open():
            return
        (last, handle), self.last_closed = self.last_closed, None
        self._remove(last, handle)
        last.end_io()
        self.table.release(self)

    def _other_streams_open(self) -> bool:
        return any(other is not self and other.opens for other in self.table.streams(self.key))

    def _remove(self, last: Open, handle: Handle) -> None:
        deleter = self.deleter
        try:
            if deleter is not None:
                handle = deleter.handle
            path = handle.path
            handle.unlink()
        except OSError as error:
            # Not empty, or somebody behind the server was faster: there is no reply left to tell it in.
            log.info("delete on close: %s", error)
            return
        finally:
            self._let_go()
        if last.is_directory:
            notify.directory_deleted(last.tree.share, path)
        if (deleter.parent_lease if deleter is not None else None) != last.parent_lease:
            # Who closes it last need not be who wanted it gone: both must know, or nobody is spared the break.
            last.parent_lease = None
        if self.stream:
            notify.report(last, path, Action.REMOVED_STREAM, NotifyFilter.STREAM_NAME, self.stream)
        else:
            kind = NotifyFilter.DIR_NAME if last.is_directory else NotifyFilter.FILE_NAME
            notify.report(last, path, Action.REMOVED, kind)

    def data_changes(self, by: Open | None) -> None:
        """Tell other clients' caches (write, truncation, byte-range lock). Cheap when nobody caches."""
        if self.caching.holders:
            self.caching.break_for_write(by.caching if by is not None else None)


class FileTable:
    def __init__(self, breaks: Breaks, break_timeout: float = 35.0) -> None:
        self.breaks = breaks
        self.break_timeout = break_timeout
        self.leases = LeaseTables()
        self._files: dict[FileKey, dict[str, File]] = {}

    def find(self, key: FileKey, stream: str = "") -> File | None:
        streams = self._files.get(key)
        return streams.get(stream.upper()) if streams is not None else None

    def get(self, key: FileKey, stream: str = "") -> File:
        """The file's entry, made if there is none. Give it back with ``release`` when it did not get an open."""
        streams = self._files.setdefault(key, {})
        folded = stream.upper()
        file = streams.get(folded)
        if file is None:
            file = streams[folded] = File(self, key, stream)
        return file

    def streams(self, key: FileKey) -> list[File]:
        return list(self._files.get(key, {}).values())

    def release(self, file: File) -> None:
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

    def open_files(self) -> list[File]:
        return [file for streams in self._files.values() for file in streams.values()]
