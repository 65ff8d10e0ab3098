"""CHANGE_NOTIFY. [MS-SMB2 3.3.5.19]"""

from __future__ import annotations

from functools import partial

from smb3server.backends.base import Path
from smb3server.dispatch.lookup import find_open
from smb3server.dispatch.request import Interim, Pending, Response, TreeRequest, handles
from smb3server.files.notify import NotifyHub, Waiting, Watcher, from_backend
from smb3server.state.objects import Open
from smb3server.wire.change_notify import WATCH_TREE, parse_change_notify_request
from smb3server.wire.create import Access
from smb3server.wire.header import Command
from smb3server.wire.query_info import build_output_response
from smb3server.wire.status import NtStatus, StatusError

_WRITES = int(Access.WRITE_DATA | Access.APPEND_DATA | Access.WRITE_ATTRIBUTES | Access.WRITE_EA)

_ERROR = 0xC0000000
"""Severity bits of a status. [MS-ERREF 2.3]"""


@handles(Command.CHANGE_NOTIFY, TreeRequest)
def change_notify(request: TreeRequest) -> Pending:
    """Wait for changes in a directory. Changes since the last request are answered immediately. [MS-SMB2 3.3.5.19]"""
    body = parse_change_notify_request(request.message)
    opened = find_open(request, body.file_id)
    if not opened.tree.share.rules.change_notify:
        raise StatusError(NtStatus.NOT_IMPLEMENTED)
    if body.output_buffer_length > request.connection.max_transact_size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if not opened.is_directory or opened.handle is None:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if not opened.granted_access & Access.READ_DATA:
        raise StatusError(NtStatus.ACCESS_DENIED)
    if opened.file is not None and opened.file.delete_pending:
        raise StatusError(NtStatus.DELETE_PENDING)
    watcher: Watcher | None = opened.watcher
    if watcher is None:
        recursive = bool(body.flags & WATCH_TREE)
        watcher = _start(request, opened, body.completion_filter, recursive, body.output_buffer_length)
    pending = request.pend(Interim.AT_ONCE)

    def cancelled() -> None:
        session, tree = opened.session, opened.tree
        if session.session_id not in request.server.sessions.by_id or tree.tree_id not in session.tree_connect_table:
            # The session or tree connect ends, and the open with it.
            watcher.end(NtStatus.NOTIFY_CLEANUP)
            return
        if waiting is not None:
            watcher.forget(waiting)
        pending.fail(StatusError(NtStatus.CANCELLED))

    waiting: Waiting | None = None
    pending.on_cancel = cancelled
    waiting = watcher.wait(partial(_answer, pending), body.output_buffer_length)
    return pending


def _answer(pending: Pending, status: int, output: bytes) -> None:
    if status & _ERROR == _ERROR:
        pending.fail(StatusError(status))
    else:
        pending.complete(Response([build_output_response(len(output)), output], status))


def _start(request: TreeRequest, opened: Open, completion_filter: int, recursive: bool, limit: int) -> Watcher:
    """Start the watch of an open on its directory. ``limit``: bytes of changes kept. Raises ``StatusError``."""
    share = opened.tree.share
    handle = opened.handle
    if handle is None or opened.store is None:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    session = opened.session
    if session.watchers >= request.server.settings.max_watchers:
        raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)
    usage = session.usage
    if usage is not None:
        request.server.ceilings.check_watchers(usage)
    # In a snapshot nothing happens, whatever does at the same path of the share.
    hub = NotifyHub() if opened.store.is_snapshot else share.notify
    watcher = hub.watch(handle.path, completion_filter, recursive, limit)
    opened.watcher = watcher
    session.watchers += 1
    if usage is not None:
        usage.watchers += 1

    def end() -> None:
        session.watchers -= 1
        if usage is not None:
            usage.watchers -= 1
        watcher.end(NtStatus.NOTIFY_CLEANUP)

    opened.on_close.append(end)
    backend, file = opened.store, opened.file

    def open_here(path: Path) -> bool:
        try:
            changed = file.table.find(backend.stat(path).key) if file is not None else None
        except OSError:
            return False
        return changed is not None and any(other.granted_access & _WRITES for other in changed.opens)

    if not backend.is_snapshot:
        watcher.stop_backend = backend.watch(handle, recursive, from_backend(watcher, open_here))
    return watcher
