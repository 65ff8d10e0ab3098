"""Closing an open of a file, and deleting the file, or one of its names, with the last one. [MS-FSA 2.1.5.4, 2.1.5.5,
2.1.5.15.3]

Most files have one name, and ``File.delete_pending`` says it all. If a file has several hard links, an open was made by
one of them (Open.Link). Then this name alone is deleted, when the last open made by it is closed: those made by other
names do not count, and can still be made. (``File.link_deletions``)

POSIX opens keep no name: it is deleted when no others are left. They work on without it, as after unlink(2).
"""

from __future__ import annotations

import errno
import logging

from smb3server.access.caller import Caller
from smb3server.backends.base import Backend, FolderNotRead, Handle, Kind, Path
from smb3server.files.caching import Holder, Lease
from smb3server.files.file import Deleter, File
from smb3server.files.recycling import problem
from smb3server.state import audit, change_reports, file_events
from smb3server.state.objects import Open, TreeConnect
from smb3server.wire.change_notify import Action, NotifyFilter
from smb3server.wire.create import Access, CreateOptions
from smb3server.wire.status import NtStatus, StatusError

log = logging.getLogger(__name__)
_DELETE = int(Access.DELETE)
_NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT))


def prepare_to_keep(tree: TreeConnect, handle: Handle, caller: Caller) -> None:
    """Make ready to keep a file whose deletion is asked for. Raises ``StatusError``: CANNOT_DELETE or DISK_FULL if its
    share has a recycle folder and the file could not be moved there."""
    share = tree.share
    if share.recycling is None or share.backend is None:
        return
    try:
        share.recycling.prepare(share.backend, handle, tree.session.identity, caller)
    except FolderNotRead:
        raise
    except OSError as error:
        log.warning("share %s: a deletion is refused, as the file cannot be kept: %s", share.name, problem(error))
        raise StatusError(NtStatus.DISK_FULL if error.errno in _NO_SPACE else NtStatus.CANNOT_DELETE) from error


def mark(opened: Open, posix: bool = False) -> None:
    """Request the deletion of the file, or of the name that ``opened`` was made by. Raises ``OSError``.

    ``posix``: the name goes when this open is closed, though others stay open. [MS-FSCC 2.4.12]"""
    file, handle = opened.file, opened.handle
    if file is None or handle is None:
        return
    file.caching.end_loans("the file is to be deleted")
    if not file.stream and handle.kind is Kind.FILE and handle.info().link_count > 1:
        file.mark_link(opened, posix)
    else:
        file.mark(opened, posix)


def withdraw(opened: Open) -> None:
    """Withdraw the request to delete what ``mark`` would request."""
    file = opened.file
    if file is None:
        return
    file.keep()
    for asked, deletion in list(file.link_deletions.items()):
        if concerns(deletion, opened):
            file.keep_link(asked)


def is_pending(file: File[Open] | None, backend: Backend | None, path: Path) -> bool:
    """Return whether an open of ``file`` by the name ``path`` must fail with DELETE_PENDING."""
    if file is None or file.delete_pending:
        return file is not None
    return any(_has_name(deletion, backend, path) for deletion in file.link_deletions.values())


def of_open(opened: Open) -> bool:
    """Return whether what ``opened`` is an open of will be deleted (Open.Link.IsDeleted or Open.Stream.IsDeleted)."""
    file = opened.file
    if file is None or file.delete_pending:
        return file is not None
    return any(concerns(deletion, opened) for deletion in file.link_deletions.values())


def concerns(deletion: Deleter[Open], opened: Open) -> bool:
    """Return whether ``opened``, an open of the same file, was made by the name that is to be deleted (Open.Link).

    Renames do not change this."""
    if deletion.opened is opened:
        return True
    try:
        return opened.handle is not None and _has_name(deletion, opened.store, opened.handle.path)
    except OSError:
        # The name of this open is gone. That is no reason to keep another one.
        return False


def is_empty(folder: Handle) -> bool:
    """Return whether a directory has no entries. Raises ``OSError``."""
    entries = folder.scan()
    try:
        return all(entry.name in (".", "..") for entry in entries) and not folder.has_vetoed()
    finally:
        close = getattr(entries, "close", None)
        if close is not None:
            close()


def _has_name(deletion: Deleter[Open], backend: Backend | None, path: Path) -> bool:
    try:
        return (
            backend is not None
            and deletion.opened.store is not None
            and deletion.opened.store.whole is backend.whole
            and backend.name_rules.same(deletion.handle.path, path)
        )
    except OSError:
        return False


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
    if opened.delete_on_close or file.delete_pending or file.link_deletions or file.stream:
        _closed(file, opened, holder)
    elif not file.opens:
        file.table.release(file)
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
        if file.delete_pending and all(other.posix for other in file.opens) and not _other_streams_open(file):
            _remove_last(file, opened, opened.handle)
            file.keep()
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
        return not is_empty(opened.handle)
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
        mark(opened)
    except OSError as error:
        log.info("delete on close: %s", error)
        file.mark(opened)


def _delete_names(file: File[Open], closed: Open) -> None:
    """Delete the names that no open was made by any more. [MS-FSA 2.1.5.5, phase 3]"""
    named = file.table.find(file.key) if file.stream else file
    if named is None or not named.link_deletions:
        return
    # POSIX opens keep no name.
    opens = [opened for stream in file.table.streams(file.key) for opened in stream.opens if not opened.posix]
    for asked, deletion in list(named.link_deletions.items()):
        at_once = deletion.posix and asked is closed
        if at_once or not any(concerns(deletion, opened) for opened in opens):
            _remove(closed, deletion, deletion.handle, "")
            named.keep_link(asked)
    if named is not file:
        file.table.release(named)


def _remove_last(file: File[Open], opened: Open, handle: Handle | None) -> None:
    """Delete a file with its last open, ``opened``."""
    deleter = file.deleter
    handle = deleter.handle if deleter is not None else handle
    if handle is not None:
        _remove(opened, deleter, handle, file.stream)
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
        caller, user = tree.caller[1] if tree.caller is not None else None, tree.user
        if caller is not None and asked.create_options & CreateOptions.OPEN_FOR_BACKUP_INTENT:
            caller = caller.opening_for_backup()
            user = caller.user
        return share.recycling.keep(asked.store, handle, tree.session.identity, user, caller)
    except OSError as error:
        log.warning("share %s: a file was not deleted, as it cannot be kept: %s", share.name, problem(error))
        raise


def _audited_descriptor(opened: Open, handle: Handle) -> bytes | None:
    """Return the stored descriptor of a file that is to be deleted, if the audit of its share asks SACLs."""
    share = opened.tree.share.audit
    if share is None or audit.SACL not in share.kinds:
        return None
    try:
        return handle.security_descriptor()
    except OSError as error:
        log.warning("share %s: the SACL of a file could not be read: %s", opened.tree.share.name, error.strerror)
        return None


def _remove(opened: Open, deleter: Deleter[Open] | None, handle: Handle, stream: str) -> None:
    """Delete what ``handle`` names, at the close of ``opened``, and report it. Errors are logged."""
    by_user = deleter.opened if deleter is not None else opened
    descriptor = _audited_descriptor(opened, handle)
    try:
        path = handle.path
        kept = None if stream else _recycle(by_user, handle)
        if kept is None:
            handle.unlink()
    except OSError as error:
        # The directory is not empty, or a program of the host was faster. There is no reply that could carry the error.
        log.info("delete on close: %s", error)
        if opened.tree.share.audit is not None:
            file_events.deleted(by_user, opened.path, error)
        return
    if opened.tree.share.audit is not None:
        file_events.deleted(by_user, path)
        if descriptor is not None and by_user.tree.caller is not None:
            token = by_user.tree.caller[1].token
            file_events.by_sacl(by_user.tree, (path, stream), descriptor, token, _DELETE, operation="delete")
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
