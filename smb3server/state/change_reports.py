"""Reporting what an open has changed: to the share's watchers, and to clients that cache the open's directory."""

from __future__ import annotations

from smb3server.backends.base import Path
from smb3server.state import file_events
from smb3server.state.objects import Open
from smb3server.wire.change_notify import Action, NotifyFilter


def somebody_listens(opened: Open) -> bool:
    """Return whether there may be a watcher or a directory lease that changes through this open concern.

    If not, the caller need not find out what has changed."""
    return bool(opened.tree.share.notify) or (
        opened.file is not None and bool(opened.file.table.leases.directory_leases)
    )


def notify(opened: Open, path: Path, action: int, completion_filter: int, stream: str = "") -> None:
    """Tell watchers that ``opened`` changed ``path``. The other parameters are those of ``NotifyHub.report``."""
    opened.tree.share.notify.report(path, action, completion_filter, stream)


def report(opened: Open, path: Path, action: int, completion_filter: int, stream: str = "") -> None:
    """Tell watchers as ``notify`` does, and break the leases on the directory of ``path``: its entry there has changed.

    Other changes are for watchers only: those of streams, extended attributes and security. [MS-FSA 2.1.5.15.6,
    2.1.5.17]"""
    notify(opened, path, action, completion_filter, stream)
    entry_changed(opened, path, opened.parent_lease_key)


def report_rename(opened: Open, old: Path, new: Path, directory: bool) -> None:
    """Report that ``opened`` was renamed."""
    if opened.tree.share.audit is not None:
        file_events.renamed(opened, old, new)
    opened.tree.share.notify.report_rename(old, new, directory)
    entry_changed(opened, old, opened.parent_lease_key)
    if opened.store is not None and not opened.store.name_rules.same(old[:-1], new[:-1]):
        entry_changed(opened, new, opened.parent_lease_key)


def report_write(opened: Open) -> None:
    """Report that the content of the file changes. Only the first call for an open does something: ``report_written``
    follows when it is closed."""
    if opened.wrote:
        return
    opened.wrote = True
    if opened.tree.share.audit is not None:
        file_events.written(opened)
    _report_data(opened, closing=False)


def report_written(opened: Open) -> None:
    """Report once more, as an open is closed, that the content of its file has changed.

    Clients that cache the directory are notified only here, as by Windows (smb2.lease.v2_request)."""
    _report_data(opened, closing=True)


def _report_data(opened: Open, closing: bool) -> None:
    handle = opened.handle
    if handle is None or not somebody_listens(opened):
        return
    try:
        path = handle.path
    except FileNotFoundError:
        return
    action, which = Action.MODIFIED, NotifyFilter.SIZE | NotifyFilter.LAST_WRITE
    if handle.stream:
        action, which = Action.MODIFIED_STREAM, NotifyFilter.STREAM_SIZE | NotifyFilter.STREAM_WRITE
    notify(opened, path, action, which, handle.stream)
    if closing:
        entry_changed(opened, path, opened.parent_lease_key)


def entry_changed(opened: Open, path: Path, spared: bytes | None) -> None:
    """Break the leases on the directory of ``path``, except those with the key ``spared``."""
    file, backend = opened.file, opened.store
    if file is not None and backend is not None and file.table.leases.directory_leases:
        file.table.entry_changed(backend, path, spared)
