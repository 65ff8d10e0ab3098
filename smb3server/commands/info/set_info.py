"""SET_INFO. [MS-SMB2 3.3.5.21, MS-FSA 2.1.5.15]"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from smb3server.access import posix_security, required
from smb3server.access.of_handle import set_security
from smb3server.access.privileges import Privilege
from smb3server.backends.base import Handle
from smb3server.commands.apple import nfs_aces
from smb3server.commands.info import quotas, waits
from smb3server.commands.info.rename import Link, Rename
from smb3server.commands.info.waits import cut
from smb3server.dispatch.long_work import run_steps
from smb3server.dispatch.lookup import find_open, handle_of
from smb3server.dispatch.request import Pending, Response, TreeRequest, handles
from smb3server.dispatch.reserving import reserve
from smb3server.dispatch.stable_storage import after_flush
from smb3server.files import write_times
from smb3server.state import change_reports, deletions, file_events
from smb3server.state.caller import caller_of
from smb3server.state.objects import Open
from smb3server.wire import attributes as attr
from smb3server.wire import file_info as wire
from smb3server.wire.change_notify import Action, NotifyFilter
from smb3server.wire.create import CreateOptions
from smb3server.wire.create_contexts import parse_eas
from smb3server.wire.file_info import DispositionFlags, FileInfoClass
from smb3server.wire.fs_info import FsInfoClass
from smb3server.wire.header import Command
from smb3server.wire.query_info import InfoType, SecurityInformation
from smb3server.wire.set_info import SET_INFO_RESPONSE, SetInfoRequest, SetInfoResponse, parse_set_info_request
from smb3server.wire.status import NtStatus, StatusError

_DONE = SET_INFO_RESPONSE.pack(SetInfoResponse())
_DOCUMENTED_SET = frozenset(
    {
        FileInfoClass.MOVE_CLUSTER,
        FileInfoClass.OBJECT_ID,
        FileInfoClass.QUOTA,
        FileInfoClass.REPARSE_POINT,
        FileInfoClass.TRACKING,
        FileInfoClass.MAILSLOT_SET,
        FileInfoClass.SFIO_RESERVE,
    }
)
"""Levels that can be set according to MS-FSCC 2.4, but are not supported."""
_SETTABLE_VOLUME = frozenset({FsInfoClass.LABEL, FsInfoClass.CONTROL, FsInfoClass.OBJECT_ID})
"""Levels of a volume that can be set according to MS-FSCC 2.5, but are not supported."""
_CHANGE_DATA = frozenset({FileInfoClass.ALLOCATION, FileInfoClass.END_OF_FILE})

_ALERT_MODE = int(CreateOptions.SYNCHRONOUS_IO_ALERT | CreateOptions.SYNCHRONOUS_IO_NONALERT)
"""At most one of the two bits may be set."""
_SETTABLE_MODE = int(CreateOptions.WRITE_THROUGH | CreateOptions.SEQUENTIAL_ONLY) | _ALERT_MODE
_MAX_EA_BYTES = 65536 - 5

SetResult = Response | Pending | None


class SetLevel(NamedTuple):
    """An information level that can be set."""

    apply: Callable[[TreeRequest, Open, memoryview], SetResult]
    minimum_size: int
    """Minimum length of the data in bytes. Shorter data fails with INFO_LENGTH_MISMATCH."""


def done() -> Response:
    """Return the response of a SET_INFO that succeeded."""
    return Response([_DONE])


@handles(Command.SET_INFO, TreeRequest)
def set_info(request: TreeRequest) -> Response | Pending:
    """Set information of a file or its security. [MS-SMB2 3.3.5.21]"""
    body, data = parse_set_info_request(request.message)
    opened = find_open(request, body.file_id)
    if body.buffer_length > request.connection.max_transact_size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if body.info_type == InfoType.FILE:
        return _set_file(request, opened, body, data)
    if body.info_type == InfoType.SECURITY:
        return _set_security(request, opened, body, data)
    if body.info_type == InfoType.FILESYSTEM:
        # 3.3.5.21.2, MS-FSA 2.1.5.16: no properties of a volume can be set here, and most nowhere.
        known = body.info_class in _SETTABLE_VOLUME
        raise StatusError(NtStatus.NOT_SUPPORTED if known else NtStatus.INVALID_INFO_CLASS)
    if body.info_type == InfoType.QUOTA:
        quotas.set_quotas(request, opened, data)
        return done()
    raise StatusError(NtStatus.INVALID_PARAMETER)


_OF_NO_DISK: dict[int, NtStatus] = {
    FileInfoClass.RENAME: NtStatus.NOT_SUPPORTED,
    FileInfoClass.RENAME_EX: NtStatus.NOT_SUPPORTED,
    FileInfoClass.LINK: NtStatus.INVALID_PARAMETER,
    FileInfoClass.LINK_EX: NtStatus.INVALID_PARAMETER,
}
"""What an open of a virtual disk cannot do. [MS-RSVD 3.2.5.9]"""


def _set_file(request: TreeRequest, opened: Open, body: SetInfoRequest, data: memoryview) -> Response | Pending:
    """Set information of a file. [MS-SMB2 3.3.5.21.1]"""
    if opened.pipe is not None:
        raise StatusError(NtStatus.NOT_SUPPORTED)
    level = _LEVELS.get(body.info_class)
    if level is None:
        known = body.info_class in _DOCUMENTED_SET
        raise StatusError(NtStatus.NOT_SUPPORTED if known else NtStatus.INVALID_INFO_CLASS)
    if len(data) < level.minimum_size:
        raise StatusError(NtStatus.INFO_LENGTH_MISMATCH)
    if opened.virtual_disk is not None and body.info_class in _OF_NO_DISK:
        raise StatusError(_OF_NO_DISK[body.info_class])
    required.check(opened.granted_access, required.SET_FILE[body.info_class])
    write_times.changing_entry(opened)
    result = level.apply(request, opened, data)
    if result is not None:
        return result
    return after_flush(request, opened, done()) if body.info_class in _CHANGE_DATA else done()


def report(opened: Open, completion_filter: int, entry: bool = True) -> None:
    """Tell watchers that the file, or its stream, was modified.

    ``entry``: this concerns the file's entry in its directory, so that leases on the directory are broken."""
    handle = handle_of(opened)
    if not change_reports.somebody_listens(opened):
        return
    action = Action.MODIFIED_STREAM if handle.stream else Action.MODIFIED
    tell = change_reports.report if entry else change_reports.notify
    try:
        path = handle.path
    except FileNotFoundError:
        # It was unlinked while it was open: no folder has it any longer.
        return
    tell(opened, path, action, completion_filter, handle.stream)


# Levels


def _basic(request: TreeRequest, opened: Open, data: memoryview) -> None:
    """Set times and attributes. Change nothing unless all values are valid. [MS-FSA 2.1.5.15.2]"""
    record = wire.BASIC.unpack(data)
    handle = handle_of(opened)
    attributes = record.attributes
    times = record[:4]
    if any(time < -2 for time in times):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if attributes & attr.DIRECTORY and not opened.is_directory:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if attributes & attr.TEMPORARY and opened.is_directory:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    changed = 0
    if attributes:
        before = handle.info().attributes
        # FSCTL_SET_SPARSE alone makes a file sparse or not. [MS-FSA 2.1.5.15.2]
        handle.set_attributes(attributes & ~attr.SPARSE | before & attr.SPARSE)
        after = handle.info().attributes
        if before != after:
            changed |= NotifyFilter.ATTRIBUTES
        if opened.file is not None and not opened.is_directory:
            write_times.attributes_changed(opened.file, after)
    set_times(opened, times)
    for time, bit in zip(times, _TIME_FILTERS, strict=True):
        if time > 0:
            changed |= bit
    # A change time alone breaks leases on the directory, and no watcher can ask for it.
    if changed or times[3] > 0:
        report(opened, changed)


_TIME_FILTERS = (NotifyFilter.CREATION, NotifyFilter.LAST_ACCESS, NotifyFilter.LAST_WRITE, 0)


def set_times(opened: Open, times: tuple[int, int, int, int]) -> None:
    """Set the times of creation, last access, last write and change, in FILETIME units.

    0 does not change a time. -1 stops and -2 resumes the updates of a time by this open. Setting a time stops its
    updates, too. [MS-FSCC 2.4.7]"""
    write_times.make_visible(opened)
    creation, access, write, change = (time if time > 0 else None for time in times)
    if (creation, access, write, change) != (None, None, None, None):
        handle_of(opened).set_times(creation, access, write, change)
    if any(times[1:]):
        write_times.set_by(opened, write_times.Times(*times[1:]))


def _disposition(request: TreeRequest, opened: Open, data: memoryview) -> SetResult:
    return _set_disposition(request, opened, bool(wire.DISPOSITION.unpack(data).delete_pending), 0)


def _disposition_ex(request: TreeRequest, opened: Open, data: memoryview) -> SetResult:
    """Set or withdraw the deletion of the file. ON_CLOSE changes FILE_DELETE_ON_CLOSE instead. [MS-FSA 2.1.5.15.4]"""
    flags = wire.DISPOSITION_EX.unpack(data).flags
    if flags & DispositionFlags.ON_CLOSE:
        if not opened.delete_on_close:
            raise StatusError(NtStatus.NOT_SUPPORTED)
        before = opened.delete_on_close
        opened.delete_on_close = bool(flags & DispositionFlags.DELETE)
        _store_deletion(request, opened, before, None)
        return None
    return _set_disposition(request, opened, bool(flags & DispositionFlags.DELETE), flags)


def _set_disposition(request: TreeRequest, opened: Open, delete: bool, flags: int) -> SetResult:
    """Set or withdraw the request to delete the file at its last close. [MS-FSA 2.1.5.15.3, 2.1.5.15.4]

    Others lose their handle caching first, as 2.1.4.12 has it for dispositions (Windows does so; 2.1.5.15.3 does not
    mention it): the file is gone with the close of this open if they kept it open only for their caches."""
    file = opened.file
    if file is None:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if not delete:
        before = deletions.of_open(opened)
        deletions.withdraw(opened)
        _store_deletion(request, opened, None, before)
        return None

    def mark() -> Response:
        check_deletable(opened, bool(flags & DispositionFlags.IGNORE_READONLY_ATTRIBUTE))
        caller = caller_of(opened.session, opened.tree, request.server.accounts)
        deletions.prepare_to_keep(opened.tree, handle_of(opened), caller)
        waits.break_handles(opened, [file])
        before = deletions.of_open(opened)
        deletions.mark(opened, bool(flags & DispositionFlags.POSIX_SEMANTICS))
        _store_deletion(request, opened, None, before)
        if opened.is_directory:
            opened.tree.share.notify.directory_deleted(handle_of(opened).path)
        return done()

    return waits.change(request, opened, mark)


def _store_deletion(request: TreeRequest, opened: Open, on_close: bool | None, pending: bool | None) -> None:
    """Store the changed deletion of the file if it has persistent opens.

    ``on_close`` and ``pending`` are the previous values, restored if this fails. None means not changed."""

    def undo() -> None:
        if on_close is not None:
            opened.delete_on_close = on_close
        if pending is not None:
            if pending:
                deletions.mark(opened)
            else:
                deletions.withdraw(opened)

    request.server.opens.store_all(opened, undo)


def check_deletable(opened: Open, ignore_readonly: bool = False) -> None:
    """Check that the file may be deleted. Raises ``StatusError``: CANNOT_DELETE for a read-only file and the root of
    the share, DIRECTORY_NOT_EMPTY. Raises ``OSError``."""
    handle = handle_of(opened)
    if not handle.path and not handle.stream:
        raise StatusError(NtStatus.CANNOT_DELETE)
    recycling, store = opened.tree.share.recycling, opened.store
    if recycling and store and opened.is_directory and recycling.holds(handle.path, store.name_rules):
        raise StatusError(NtStatus.CANNOT_DELETE)
    if not (ignore_readonly or opened.posix) and handle.info().attributes & attr.READONLY:
        raise StatusError(NtStatus.CANNOT_DELETE)
    handle.check_unlink()
    if opened.is_directory and not handle.stream and not deletions.is_empty(handle):
        raise StatusError(NtStatus.DIRECTORY_NOT_EMPTY)


def _before_resizing(opened: Open, size: int) -> tuple[Handle, int]:
    """Check a size and break others' caching rights. Return handle and end of file. Raises ``StatusError``."""
    if size < 0 or opened.is_directory:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    handle = handle_of(opened)
    before = handle.info().end_of_file
    if opened.file is not None:
        opened.file.data_changes(opened.caching)
        if opened.file.caching.loans:
            opened.file.caching.end_loans("the file's size is set")
        write_times.changing(opened)
    return handle, before


def _end_of_file(request: TreeRequest, opened: Open, data: memoryview) -> Pending | None:
    """Set the end of file. [MS-FSA 2.1.5.15.5]"""
    size = wire.END_OF_FILE.unpack(data).end_of_file
    handle, before = _before_resizing(opened, size)

    def finish() -> None:
        handle.truncate(size)
        write_times.make_visible(opened)
        _report_size(opened, size != before)

    return cut(request, opened, size, finish, done())


def _allocation(request: TreeRequest, opened: Open, data: memoryview) -> Pending | None:
    """Set the allocation size. If it is below the end of file, truncate the file. [MS-FSA 2.1.5.15.1]"""
    size = wire.ALLOCATION.unpack(data).allocation_size
    handle, before = _before_resizing(opened, size)

    def reserved() -> Response:
        _report_size(opened, changed=False)
        return done()

    def finish() -> None:
        handle.allocate(size)
        _report_size(opened, size < before)

    if size <= before:
        return cut(request, opened, size, finish, done())
    steps = reserve(request, opened, size)
    if steps is not None:
        return run_steps(request, opened, steps, reserved)
    reserved()
    return None


def _report_size(opened: Open, changed: bool) -> None:
    """Report that the end of file or the allocation was set. ``changed``: the end of file is another now.

    Leases on the directory are broken in any case. [MS-FSA 2.1.5.15.1, 2.1.5.15.5]"""
    which = 0
    if changed:
        stream = handle_of(opened).stream
        which = NotifyFilter.STREAM_SIZE if stream else NotifyFilter.SIZE | NotifyFilter.LAST_WRITE
    report(opened, which)


def _position(request: TreeRequest, opened: Open, data: memoryview) -> None:
    """Set the current position. [MS-FSA 2.1.5.15.10]"""
    position = wire.POSITION.unpack(data).current_byte_offset
    if position < 0:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    opened.position = position


def _mode(request: TreeRequest, opened: Open, data: memoryview) -> None:
    """Set the mode of the open. It was opened for synchronous operations or not, and stays so. [MS-FSA 2.1.5.15.8]"""
    mode = wire.MODE.unpack(data).mode
    before = opened.create_options
    if mode & ~_SETTABLE_MODE or mode & _ALERT_MODE == _ALERT_MODE:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if bool(mode & _ALERT_MODE) != bool(before & _ALERT_MODE):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    settable = _SETTABLE_MODE
    if before & CreateOptions.NO_INTERMEDIATE_BUFFERING:
        settable &= ~int(CreateOptions.WRITE_THROUGH)
    opened.create_options = before & ~settable | mode & settable


def _full_ea(request: TreeRequest, opened: Open, data: memoryview) -> None:
    """Set extended attributes. [MS-FSA 2.1.5.15.6]"""
    handle = handle_of(opened)
    if handle.info().attributes & attr.REPARSE_POINT:
        raise StatusError(NtStatus.EAS_NOT_SUPPORTED)
    entries = parse_eas(data)
    merged = {entry.name.upper(): entry for entry in [*handle.eas(), *entries]}
    if sum(len(name) + len(value) + 9 for name, value, _ in merged.values() if value) > _MAX_EA_BYTES:
        raise StatusError(NtStatus.EA_TOO_LARGE)
    if entries:
        handle.set_eas(entries)
        write_times.set_archive(opened)
        report(opened, NotifyFilter.EA | NotifyFilter.ATTRIBUTES, entry=False)


def _name_change(kind: type[Rename | Link], extended: bool = False) -> SetLevel:
    """Return a level that gives a file another name, or one more."""

    def apply(request: TreeRequest, opened: Open, data: memoryview) -> Response | Pending:
        return kind(request, opened, wire.decode_rename(data, extended=extended)).start(done)

    return SetLevel(apply, 20)


def _valid_data_length(request: TreeRequest, opened: Open, data: memoryview) -> None:
    """Accept the valid data length that the file has: data is valid up to the end of file, whoever wrote it.
    Administrators have SeManageVolumePrivilege. [MS-FSA 2.1.5.15.17]"""
    if not request.server.accounts.privileges(opened.session.identity) & Privilege.MANAGE_VOLUME:
        raise StatusError(NtStatus.PRIVILEGE_NOT_HELD)
    length = wire.VALID_DATA_LENGTH.unpack(data).valid_data_length
    if opened.is_directory or length != handle_of(opened).info().end_of_file:
        raise StatusError(NtStatus.INVALID_PARAMETER)


def _short_name(request: TreeRequest, opened: Open, data: memoryview) -> None:
    """Refuse another short name: those that there are follow from the long ones. [MS-FSA 2.1.5.15]"""
    stream = handle_of(opened).stream
    raise StatusError(NtStatus.INVALID_PARAMETER if stream else NtStatus.SHORT_NAMES_NOT_ENABLED_ON_VOLUME)


def _pipe(request: TreeRequest, opened: Open, data: memoryview) -> None:
    """Refuse a mode of a pipe: this is a file. [MS-FSCC 2.4.29]"""
    raise StatusError(NtStatus.INVALID_PARAMETER)


_LEVELS: dict[int, SetLevel] = {
    FileInfoClass.BASIC: SetLevel(_basic, wire.BASIC.size),
    FileInfoClass.RENAME: _name_change(Rename),
    FileInfoClass.RENAME_EX: _name_change(Rename, extended=True),
    FileInfoClass.LINK: _name_change(Link),
    FileInfoClass.LINK_EX: _name_change(Link, extended=True),
    FileInfoClass.DISPOSITION: SetLevel(_disposition, 1),
    FileInfoClass.DISPOSITION_EX: SetLevel(_disposition_ex, 4),
    FileInfoClass.POSITION: SetLevel(_position, 8),
    FileInfoClass.FULL_EA: SetLevel(_full_ea, 0),
    FileInfoClass.MODE: SetLevel(_mode, 4),
    FileInfoClass.ALLOCATION: SetLevel(_allocation, 8),
    FileInfoClass.END_OF_FILE: SetLevel(_end_of_file, 8),
    FileInfoClass.VALID_DATA_LENGTH: SetLevel(_valid_data_length, wire.VALID_DATA_LENGTH.size),
    FileInfoClass.SHORT_NAME: SetLevel(_short_name, 4),
    FileInfoClass.PIPE: SetLevel(_pipe, 8),
}


def _set_security(request: TreeRequest, opened: Open, body: SetInfoRequest, data: memoryview) -> Response | Pending:
    """Set the security descriptor. Others lose their handle caching first. [MS-SMB2 3.3.5.21.3, MS-FSA 2.1.5.17]"""
    which = required.parts_of(body.additional_information)
    required.check_set_security(opened.granted_access, which, opened.tree.maximal_access)
    file = opened.file
    if file is None or opened.handle is None:
        raise StatusError(NtStatus.NOT_SUPPORTED)
    tree, accounts = opened.tree, request.server.accounts
    descriptor = bytes(data)

    def set_it() -> Response:
        waits.break_handles(opened, [file])
        write_times.changing_entry(opened)
        caller, keep = caller_of(opened.session, tree, accounts), tree.share.rules.keep_inherited_flag
        handle, parts, new, mode = handle_of(opened), which, descriptor, None
        if opened.posix and posix_security.change(handle, which, memoryview(descriptor), caller):
            parts = 0
        elif tree.apple and which & SecurityInformation.DACL:
            parts, new, mode = nfs_aces.taken_out(which, descriptor)
        if parts:
            set_security(handle, parts, memoryview(new), caller, accounts, keep_inherited_flag=keep)
        if mode is not None and mode != handle.info().mode & 0o777:
            handle.set_permissions(None, None, mode)
        if tree.share.audit is not None:
            file_events.permissions_changed(opened, which)
        report(opened, NotifyFilter.SECURITY, entry=False)
        return done()

    return waits.change(request, opened, set_it)
