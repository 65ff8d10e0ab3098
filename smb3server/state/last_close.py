"""Closing an open of a file, and deleting the file with its last open. [MS-FSA 2.1.5.4]"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from smb3server.files.caching import Lease
from smb3server.state import change_reports, deletions, file_events, recycling
from smb3server.wire.change_notify import Action, NotifyFilter

if TYPE_CHECKING:
    from smb3server.backends.base import Handle, Path
    from smb3server.files.caching import Holder
    from smb3server.files.file import Deleter, File
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
    if opened.delete_on_close and not _keeps_entries(opened):
        if file.opens or _other_streams_open(file):
            _mark(file, opened)
        else:
            file.mark(opened)
        # A client that keeps the file open only for its cache would delay the deletion.
        file.caching.break_handles(holder)
        if file.opens and opened.is_directory and opened.handle is not None:
            opened.tree.share.notify.directory_deleted(opened.handle.path)
    if file.link_deletions or file.stream:
        _delete_names(file, opened)
    if file.deleter is not None and file.deleter.posix and file.deleter.opened is opened:
        _remove(opened, file.deleter, file.deleter.handle, file.stream)
        file.keep()
    if file.opens:
        return
    if file.delete_pending and opened.handle is not None:
        if not file.stream and _other_streams_open(file):
            # It is deleted with the last handle of any of its streams. The name stays taken until then.
            file.last_closed = (opened, opened.handle)
            opened.begin_io()
            return
        _remove_last(file, opened, opened.handle)
    file.table.release(file)
    base = file.table.find(file.key) if file.stream else None
    if base is not None:
        _stream_closed(base)


def _keeps_entries(opened: Open) -> bool:
    """Return whether ``opened`` is of a directory that is not empty: then the close requests no deletion.
    [MS-FSA 2.1.5.5, phase 1]"""
    if not opened.is_directory or opened.handle is None or opened.handle.stream:
        return False
    try:
        return not deletions.is_empty(opened.handle)
    except OSError as error:
        # Nothing is known of its entries. The host refuses to remove it if it has any.
        log.info("delete on close: %s", error)
        return False


def _stream_closed(file: File[Open]) -> None:
    """Do a deletion that waited for the last open of another stream of this file."""
    if file.last_closed is None or _other_streams_open(file):
        return
    (opened, handle), file.last_closed = file.last_closed, None
    _remove_last(file, opened, handle)
    opened.end_io()
    file.table.release(file)


def _other_streams_open(file: File[Open]) -> bool:
    return any(other is not file and other.opens for other in file.table.streams(file.key))


def _mark(file: File[Open], opened: Open) -> None:
    """Note that the file, or one of its names, is to be deleted with an open that is not closed yet."""
    try:
        deletions.mark(opened)
    except OSError as error:
        log.info("delete on close: %s", error)
        file.mark(opened)


def _delete_names(file: File[Open], closed: Open) -> None:
    """Delete the names that no open was made by any more. [MS-FSA 2.1.5.5, phase 3]"""
    named = file.table.find(file.key) if file.stream else file
    if named is None or not named.link_deletions:
        return
    opens = [opened for stream in file.table.streams(file.key) for opened in stream.opens]
    for asked, deletion in list(named.link_deletions.items()):
        at_once = deletion.posix and asked is closed
        if at_once or not any(deletions.concerns(deletion, opened) for opened in opens):
            _remove(closed, deletion, deletion.handle, "")
            named.keep_link(asked)
    if named is not file:
        file.table.release(named)


def _remove_last(file: File[Open], opened: Open, handle: Handle) -> None:
    """Delete a file with its last open, ``opened``."""
    deleter = file.deleter
    _remove(opened, deleter, deleter.handle if deleter is not None else handle, file.stream)
    file.release_deleter()


def _recycle(asked: Open, handle: Handle) -> Path | None:
    """Move a file to the recycle folder of its share, if it has one. Return the new path, or None if it is not to be
    kept. Raises ``OSError`` if it cannot be moved: it stays.

    ``asked``: the open that requested the deletion."""
    tree = asked.tree
    share = tree.share
    if share.recycling is None or asked.store is None:
        return None
    try:
        caller = tree.caller[1] if tree.caller is not None else None
        return share.recycling.keep(asked.store, handle, tree.session.identity, tree.user, caller)
    except OSError as error:
        log.warning("share %s: a file was not deleted, as it cannot be kept: %s", share.name, recycling.problem(error))
        raise


def _remove(opened: Open, deleter: Deleter[Open] | None, handle: Handle, stream: str) -> None:
    """Delete what ``handle`` names, at the close of ``opened``, and report it. Errors are logged."""
    try:
        path = handle.path
        kept = None if stream else _recycle(deleter.opened if deleter is not None else opened, handle)
        if kept is None:
            handle.unlink()
    except OSError as error:
        # The directory is not empty, or a program of the host was faster. There is no reply that could carry the error.
        log.info("delete on close: %s", error)
        if opened.tree.share.audit is not None:
            file_events.deleted(deleter.opened if deleter is not None else opened, opened.path, error)
        return
    if opened.tree.share.audit is not None:
        file_events.deleted(deleter.opened if deleter is not None else opened, path)
    if opened.is_directory:
        opened.tree.share.notify.directory_deleted(path)
    if stream:
        change_reports.notify(opened, path, Action.REMOVED_STREAM, NotifyFilter.STREAM_NAME, stream)
        return
    kind = NotifyFilter.DIR_NAME if opened.is_directory else NotifyFilter.FILE_NAME
    change_reports.notify(opened, path, Action.REMOVED, kind)
    if kept is not None:
        change_reports.notify(opened, kept, Action.ADDED, kind)
        change_reports.entry_changed(opened, kept, None)
    # A lease is spared only if both opens named its key: the one that requested the deletion, and the last one.
    asked = deleter.parent_lease_key if deleter is not None else None
    change_reports.entry_changed(opened, path, asked if asked == opened.parent_lease_key else None)
