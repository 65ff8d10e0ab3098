"""Reporting what an open has changed: to the share's watchers, and to those who cache the directory it is in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smb3server.files import directory_leases
from smb3server.files.notify import fold
from smb3server.wire.change_notify import Action, NotifyFilter

if TYPE_CHECKING:
    from smb3server.backends.base import Path
    from smb3server.state.objects import Open


def somebody_listens(by: Open) -> bool:
    """Return whether changes through this open may concern anybody. False saves making them out."""
    return bool(by.tree.share.notify) or (by.file is not None and bool(by.file.table.leases.directory_leases))


def report(by: Open, path: Path, action: int, completion_filter: int, stream: str = "") -> None:
    """Report that ``by`` changed ``path``. The meaning of the rest is that of ``NotifyHub.report``."""
    by.tree.share.notify.report(path, action, completion_filter, stream)
    if not stream:
        _entry_changed(by, path)


def report_rename(by: Open, old: Path, new: Path, directory: bool) -> None:
    """Report that ``by`` was renamed."""
    by.tree.share.notify.report_rename(old, new, directory)
    _entry_changed(by, old)
    if fold(old[:-1]) != fold(new[:-1]):
        _entry_changed(by, new)


def report_write(opened: Open) -> None:
    """Report that the file changes, now and once more when it is closed. Call it with the first WRITE of an open.

    Those who cache the directory hear of it only at the close, as from Windows (smb2.lease.v2_request)."""
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


def _entry_changed(by: Open, path: Path) -> None:
    file, backend = by.file, by.tree.share.backend
    if file is not None and backend is not None and file.table.leases.directory_leases:
        directory_leases.entry_changed(file.table, backend, path, by.parent_lease)
