"""Reporting what an open has changed: to the share's watchers, and to clients that cache the open's directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smb3server.files import directory_leases
from smb3server.files.notify import fold
from smb3server.wire.change_notify import Action, NotifyFilter

if TYPE_CHECKING:
    from smb3server.backends.base import Path
    from smb3server.state.objects import Open


def somebody_listens(opened: Open) -> bool:
    """Return whether there may be a watcher or a directory lease that changes through this open concern.

    If not, the caller need not find out what has changed."""
    return bool(opened.tree.share.notify) or (
        opened.file is not None and bool(opened.file.table.leases.directory_leases)
    )


def report(opened: Open, path: Path, action: int, completion_filter: int, stream: str = "") -> None:
    """Report that ``opened`` changed ``path``. The other parameters are those of ``NotifyHub.report``."""
    opened.tree.share.notify.report(path, action, completion_filter, stream)
    if not stream:
        _entry_changed(opened, path)


def report_rename(opened: Open, old: Path, new: Path, directory: bool) -> None:
    """Report that ``opened`` was renamed."""
    opened.tree.share.notify.report_rename(old, new, directory)
    _entry_changed(opened, old)
    if fold(old[:-1]) != fold(new[:-1]):
        _entry_changed(opened, new)


def report_write(opened: Open) -> None:
    """Report that the file changes, now and once more when it is closed. Call it with the first WRITE of an open.

    Clients that cache the directory are notified only at the close, as by Windows (smb2.lease.v2_request)."""
    opened.wrote = True
    _report_data(opened, closing=False)
    opened.on_close.append(lambda: _report_data(opened, closing=True))


def _report_data(opened: Open, closing: bool) -> None:
    handle = opened.handle
    if handle is None or not somebody_listens(opened):
        return
    try:
        path = handle.path
    except FileNotFoundError:
        return
    if handle.stream:
        which = NotifyFilter.STREAM_SIZE | NotifyFilter.STREAM_WRITE
        report(opened, path, Action.MODIFIED_STREAM, which, handle.stream)
    elif closing:
        report(opened, path, Action.MODIFIED, NotifyFilter.SIZE | NotifyFilter.LAST_WRITE)
    else:
        opened.tree.share.notify.report(path, Action.MODIFIED, NotifyFilter.SIZE | NotifyFilter.LAST_WRITE)


def _entry_changed(opened: Open, path: Path) -> None:
    file, backend = opened.file, opened.tree.share.backend
    if file is not None and backend is not None and file.table.leases.directory_leases:
        directory_leases.entry_changed(file.table, backend, path, opened.parent_lease)
