"""What happens to a file when one of its opens is closed: above all its deletion, with the last (MS-FSA 2.1.5.4)."""

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


def leave(file: File[Open], closing: Open) -> None:
    """Take one open from its file, with its locks and its oplock or share of a lease. A pending deletion happens with
    the last open. The open's handle is still there, and the caller's to close."""
    file.opens.remove(closing)
    file.locks.release_owner(closing)
    holder, closing.caching = closing.caching, None
    if isinstance(holder, Lease):
        holder.opens.remove(closing)
        if not holder.opens:
            file.table.leases.remove(holder)
    _closed(file, closing, holder)
    # Last: whoever waited for this holder tries again, and a deletion has to be over by then.
    if holder is not None and not (isinstance(holder, Lease) and holder.opens):
        file.caching.drop(holder)


def _closed(file: File[Open], closing: Open, holder: Holder[Open] | None) -> None:
    """Delete the file, at once or when the last open goes. Ask those to go who only cache."""
    if closing.delete_on_close:
        file.mark(closing)
        # Whoever keeps it open only for its cache stands in the way of the deletion.
        file.caching.break_handles(holder)
        if file.opens and closing.is_directory and closing.handle is not None:
            closing.tree.share.notify.directory_deleted(closing.handle.path)
    if file.opens:
        return
    if file.delete_pending and closing.handle is not None:
        if not file.stream and _other_streams_open(file):
            # Gone with the last handle of any of its streams; the name stays taken until then.
            file.last_closed = (closing, closing.handle)
            closing.begin_io()
            return
        _remove(file, closing, closing.handle)
    file.table.release(file)
    base = file.table.find(file.key) if file.stream else None
    if base is not None:
        _stream_closed(base)


def _stream_closed(file: File[Open]) -> None:
    """Do what waited for the last open of another stream of this file."""
    if file.last_closed is None or _other_streams_open(file):
        return
    (last, handle), file.last_closed = file.last_closed, None
    _remove(file, last, handle)
    last.end_io()
    file.table.release(file)


def _other_streams_open(file: File[Open]) -> bool:
    return any(other is not file and other.opens for other in file.table.streams(file.key))


def _remove(file: File[Open], last: Open, handle: Handle) -> None:
    deleter = file.deleter
    try:
        if deleter is not None:
            handle = deleter.handle
        path = handle.path
        handle.unlink()
    except OSError as error:
        # Not empty, or a program of the host was faster. There is no reply left that could carry the error.
        log.info("delete on close: %s", error)
        return
    finally:
        file.let_go()
    if last.is_directory:
        last.tree.share.notify.directory_deleted(path)
    if (deleter.parent_lease if deleter is not None else None) != last.parent_lease:
        # The last closer may not be the open that requested deletion. The break is skipped only if both named the same
        # parent lease key.
        last.parent_lease = None
    if file.stream:
        change_reports.report(last, path, Action.REMOVED_STREAM, NotifyFilter.STREAM_NAME, file.stream)
    else:
        kind = NotifyFilter.DIR_NAME if last.is_directory else NotifyFilter.FILE_NAME
        change_reports.report(last, path, Action.REMOVED, kind)
