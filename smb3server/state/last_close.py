"""Closing an open of a file, and deleting the file with its last open. [MS-FSA 2.1.5.4]"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from smb3server.files.caching import Lease
from smb3server.state import change_reports
from smb3server.wire.change_notify import Action, NotifyFilter

if TYPE_CHECKING:
    from smb3server.backends.base import Handle
    from smb3server.files.caching import Holder
    from smb3server.files.file import File
    from smb3server.state.objects import Open

log = logging.getLogger(__name__)


def leave(file: File[Open], opened: Open) -> None:
    """Remove an open from its file, with its locks and its oplock or share of a lease. [MS-FSA 2.1.5.4]

    Do a pending deletion with the last open. The caller closes the open's handle afterwards."""
    file.opens.remove(opened)
    file.locks.release_owner(opened)
    holder, opened.caching = opened.caching, None
    if isinstance(holder, Lease):
        holder.opens.remove(opened)
        if not holder.opens:
            file.table.leases.remove(holder)
    _closed(file, opened, holder)
    # Last: requests that waited for this holder try again, and a deletion has to be over by then.
    if holder is not None and not (isinstance(holder, Lease) and holder.opens):
        file.caching.drop(holder)


def _closed(file: File[Open], opened: Open, holder: Holder[Open] | None) -> None:
    """Delete the file, now or with its last open, if ``opened`` or an earlier open requested it."""
    if opened.delete_on_close:
        file.mark(opened)
        # A client that keeps the file open only for its cache would delay the deletion.
        file.caching.break_handles(holder)
        if file.opens and opened.is_directory and opened.handle is not None:
            opened.tree.share.notify.directory_deleted(opened.handle.path)
    if file.opens:
        return
    if file.delete_pending and opened.handle is not None:
        if not file.stream and _other_streams_open(file):
            # It is deleted with the last handle of any of its streams. The name stays taken until then.
            file.last_closed = (opened, opened.handle)
            opened.begin_io()
            return
        _remove(file, opened, opened.handle)
    file.table.release(file)
    base = file.table.find(file.key) if file.stream else None
    if base is not None:
        _stream_closed(base)


def _stream_closed(file: File[Open]) -> None:
    """Do a deletion that waited for the last open of another stream of this file."""
    if file.last_closed is None or _other_streams_open(file):
        return
    (opened, handle), file.last_closed = file.last_closed, None
    _remove(file, opened, handle)
    opened.end_io()
    file.table.release(file)


def _other_streams_open(file: File[Open]) -> bool:
    return any(other is not file and other.opens for other in file.table.streams(file.key))


def _remove(file: File[Open], opened: Open, handle: Handle) -> None:
    """Delete a file, whose last open was ``opened``, and report it. Errors are logged."""
    deleter = file.deleter
    try:
        if deleter is not None:
            handle = deleter.handle
        path = handle.path
        handle.unlink()
    except OSError as error:
        # The directory is not empty, or a program of the host was faster. There is no reply that could carry the error.
        log.info("delete on close: %s", error)
        return
    finally:
        file.release_deleter()
    if opened.is_directory:
        opened.tree.share.notify.directory_deleted(path)
    if file.stream:
        change_reports.notify(opened, path, Action.REMOVED_STREAM, NotifyFilter.STREAM_NAME, file.stream)
        return
    kind = NotifyFilter.DIR_NAME if opened.is_directory else NotifyFilter.FILE_NAME
    change_reports.notify(opened, path, Action.REMOVED, kind)
    # A lease is spared only if both opens named its key: the one that requested the deletion, and the last one.
    asked = deleter.parent_lease_key if deleter is not None else None
    change_reports.entry_changed(opened, path, asked if asked == opened.parent_lease_key else None)
