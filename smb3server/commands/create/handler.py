"""CREATE (MS-SMB2 3.3.5.9). What concerns the file itself is in ``opening``, caching rights in ``granting``."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from smb3server.access import decide, masks
from smb3server.backends import names
from smb3server.backends.base import FileInfo
from smb3server.commands.create import granting
from smb3server.commands.create.opening import Opening
from smb3server.commands.info import presentation
from smb3server.commands.info.truncate import one_step
from smb3server.dispatch.long_work import on_worker
from smb3server.dispatch.request import Interim, Pending, Response, TreeRequest, handles
from smb3server.dispatch.waiting import retry
from smb3server.files.caching import Lease
from smb3server.files.notify import fold
from smb3server.process.long_work import Steps
from smb3server.state import durable, replay
from smb3server.state.objects import Open
from smb3server.state.opens import client_guid_of
from smb3server.state.share import ShareType
from smb3server.wire import attributes as attr
from smb3server.wire import create_contexts as contexts
from smb3server.wire.create import (
    CREATE_FLAG_REPARSEPOINT,
    Access,
    CreateAction,
    CreateDisposition,
    CreateOptions,
    CreateRequest,
    CreateResponse,
    pack_response,
    parse_request,
)
from smb3server.wire.header import Command
from smb3server.wire.negotiate import Dialect
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.status import NtStatus, StatusError

_DELEGATION = 3
"""The highest impersonation level (2.2.13)."""
_VALID_ATTRIBUTES = 0x00007FB7
_UNSUPPORTED_OPTIONS = int(
    CreateOptions.CREATE_TREE_CONNECTION | CreateOptions.OPEN_BY_FILE_ID | CreateOptions.RESERVE_OPFILTER
)
_INVALID_OPTIONS = 0xFF000000


@handles(Command.CREATE, TreeRequest)
def create(request: TreeRequest) -> Response | Pending:
    record, name, raw_contexts = parse_request(request.message)
    tree, session = request.tree, request.session
    server = request.server
    if len(session.open_table) >= server.settings.max_opens:
        raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)
    pipe = tree.share.type == ShareType.PIPE
    found: dict[bytes, Any] = {}
    if not pipe:
        found = contexts.decode_requests(raw_contexts)
        durable.check_contexts(found, request.connection.dialect)
        if durable.wants_reconnect(found):
            # To an open that is counted already.
            return _reconnect(request, record, name, found)
    if session.usage is not None:
        server.ceilings.check_open(session.usage, server.opens.with_descriptor, server.opens.limit)
    if pipe:
        return _open_pipe(request, record, name)
    revived = durable.revived(request, found)
    earlier = request.server.opens.replays.find(request, found) if revived is None else None
    if earlier is not None:
        return _respond_to_replay(earlier, record)
    _check_fields(record)
    opening = _prepare(request, record, name, found)
    if revived is not None:
        opening.action = CreateAction(revived.create_action)
        return _respond_again(opening, revived, replayed=True)
    _close_same_application(request, found, opening)
    return _attempt(opening)


def _reconnect(request: TreeRequest, record: CreateRequest, name: str, found: dict[bytes, Any]) -> Response:
    """3.3.5.9.7, 3.3.5.9.12: but for name and oplock level, the fixed part does not count."""
    tree = request.tree
    if tree.share.backend is None:
        raise StatusError(NtStatus.NETWORK_NAME_DELETED)
    try:
        path, stream, _ = names.split_path(name)
    except names.InvalidName:
        raise StatusError(NtStatus.OBJECT_NAME_INVALID) from None
    opening = Opening(request, record, tree.share.backend, path, stream, None, None, found, 0)
    leased = opening.wanted_lease is not None
    return _respond_again(opening, durable.reconnect(request, found, path, leased))


def _close_same_application(request: TreeRequest, found: dict[bytes, Any], opening: Opening) -> None:
    """3.3.5.9.13: an application that fails over to another client takes its opens from the one before."""
    asked = found.get(contexts.APP_INSTANCE_ID)
    connection = request.connection
    if asked is None or connection.dialect < Dialect.SMB_3_0:
        return
    version = _app_instance_version(request, found)
    for entry in list(request.server.opens.by_application.get(asked.app_instance_id, ())):
        if (
            client_guid_of(entry) == connection.client_guid
            or entry.tree.share is not request.tree.share
            or fold(entry.path) != fold(opening.path)
            or (entry.file is not None and entry.file.stream.upper() != opening.stream.upper())
        ):
            continue
        if entry.app_instance_version is not None and (version is None or entry.app_instance_version >= version):
            raise StatusError(NtStatus.FILE_FORCED_CLOSED)
        if entry.handle is not None and opening.may_read(entry.handle):
            request.server.opens.close(entry)


def _app_instance_version(request: TreeRequest, found: dict[bytes, Any]) -> tuple[int, int] | None:
    """2.2.13.2.15: high and low; only dialect 3.1.1 has it."""
    asked: contexts.AppInstanceVersion | None = found.get(contexts.APP_INSTANCE_VERSION)
    if asked is None or request.connection.dialect < Dialect.SMB_3_1_1:
        return None
    return asked.version_high, asked.version_low


def _check_fields(record: CreateRequest) -> None:
    """What can be told from the request alone (MS-SMB2 3.3.5.9, then MS-FSA 2.1.5.1 phase 1)."""
    if record.impersonation_level > _DELEGATION:
        raise StatusError(NtStatus.BAD_IMPERSONATION_LEVEL)
    options, desired = record.create_options, record.desired_access
    if desired & masks.INVALID_BITS or desired == 0:
        raise StatusError(NtStatus.ACCESS_DENIED)
    if options & _INVALID_OPTIONS:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if options & _UNSUPPORTED_OPTIONS:
        raise StatusError(NtStatus.NOT_SUPPORTED)
    if (
        record.share_access & ~7
        or record.create_disposition > CreateDisposition.OVERWRITE_IF
        or record.file_attributes & ~_VALID_ATTRIBUTES
    ):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    directory = bool(options & CreateOptions.DIRECTORY_FILE)
    if directory:
        if options & CreateOptions.NON_DIRECTORY_FILE or record.file_attributes & attr.TEMPORARY:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        if record.create_disposition in (
            CreateDisposition.SUPERSEDE,
            CreateDisposition.OVERWRITE,
            CreateDisposition.OVERWRITE_IF,
        ):
            raise StatusError(NtStatus.INVALID_PARAMETER)
    if (
        options & CreateOptions.NO_INTERMEDIATE_BUFFERING
        and desired & (Access.APPEND_DATA | Access.WRITE_DATA) == Access.APPEND_DATA
    ):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if options & CreateOptions.DELETE_ON_CLOSE and not desired & (
        Access.DELETE | Access.GENERIC_ALL | Access.MAXIMUM_ALLOWED
    ):
        raise StatusError(NtStatus.ACCESS_DENIED)


def _prepare(request: TreeRequest, record: CreateRequest, name: str, found: dict[bytes, Any]) -> Opening:
    """Name, contexts and the tree's access."""
    tree = request.tree
    if tree.share.backend is None:
        raise StatusError(NtStatus.NETWORK_NAME_DELETED)
    if name.startswith("\\"):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if contexts.TIMEWARP in found and found[contexts.TIMEWARP].timestamp:
        # No snapshots: no file has ever existed then.
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    if contexts.EA_BUFFER in found and record.create_options & CreateOptions.NO_EA_KNOWLEDGE:
        raise StatusError(NtStatus.ACCESS_DENIED)
    if ":" in name and not tree.share.streams:
        raise StatusError(NtStatus.OBJECT_NAME_INVALID)
    trailing = name.endswith("\\")
    # A POSIX name has no slash: like Samba, take it for what the client means.
    name = name.replace("/", "\\")
    try:
        path, stream, said = names.split_path(name[:-1] if trailing else name)
    except names.InvalidName:
        above = ".." in name.split("\\")
        raise StatusError(NtStatus.OBJECT_PATH_SYNTAX_BAD if above else NtStatus.OBJECT_NAME_INVALID) from None
    directory = _directory(record, trailing, said, stream)
    desired = masks.map_generic(record.desired_access)
    if desired & Access.ACCESS_SYSTEM_SECURITY:
        # SeSecurityPrivilege, which nobody has here.
        raise StatusError(NtStatus.PRIVILEGE_NOT_HELD)
    wanted = decide.Wanted(desired, record.create_disposition, record.create_options)
    decide.check_share(wanted, tree.maximal_access)
    user = tree.user
    if request.connection.dialect < 0x0210:
        found.pop(contexts.REQUEST_LEASE, None)
    elif request.connection.dialect < 0x0300 and isinstance(found.get(contexts.REQUEST_LEASE), contexts.LeaseV2):
        del found[contexts.REQUEST_LEASE]
    return Opening(request, record, tree.share.backend, path, stream, directory, user, found, desired)


def _directory(record: CreateRequest, trailing: bool, said: bool | None, stream: str) -> bool | None:
    """What the object must be, by options and name; None leaves it open."""
    options = record.create_options
    if options & CreateOptions.DIRECTORY_FILE:
        if stream or said is False:
            raise StatusError(NtStatus.NOT_A_DIRECTORY)
        return True
    if options & CreateOptions.NON_DIRECTORY_FILE:
        if trailing:
            raise StatusError(NtStatus.OBJECT_NAME_INVALID)
        if said is True:
            raise StatusError(NtStatus.FILE_IS_A_DIRECTORY)
        return None if stream else False
    if trailing and said is None:
        return True
    return said


def _attempt(opening: Opening) -> Response | Pending:
    """Until a break is over the client is told at once that it has to wait, as Windows does."""
    return retry(
        opening.request,
        lambda: _conclude(opening, opening.attempt()),
        Interim.AT_ONCE,
        partial(_may_come_again, opening),
    )


def _may_come_again(opening: Opening, pending: Pending) -> Callable[[], None]:
    """From now on a replay of this CREATE is told to wait for it. Returns what ends that."""
    replays = opening.request.server.opens.replays
    key = replay.key_of(opening.request, opening.asked)
    if key is None:
        return lambda: None
    replays.wait(key, pending)
    return partial(replays.done, key)


def _conclude(opening: Opening, opened: Open) -> Response | Coroutine[Any, Any, Response]:
    """The response, or what comes to it when a worker has done what takes long. Nothing is left of the open if this
    fails."""
    steps = None
    try:
        if opening.free is None:
            steps = opening.reservation(opened)
            if steps is None:
                if contexts.ALLOCATION_SIZE in opening.asked and opened.handle is not None:
                    opening.info = opened.handle.info()
                return _respond(opening, opened)
    except BaseException:
        _take_back(opening, opened)
        raise
    return _finish_slowly(opening, opened, steps)


async def _finish_slowly(opening: Opening, opened: Open, steps: Steps | None) -> Response:
    """Until it is over the open is in the tables, and its client does not know of it."""
    try:
        if opening.free is not None:
            await on_worker(opening.request, opened, one_step(opening.free))
            opening.finish_overwriting(opened)
            steps = opening.reservation(opened)
        if steps is not None:
            await on_worker(opening.request, opened, steps)
        if opened.handle is None:
            raise StatusError(NtStatus.FILE_CLOSED)
        opening.info = opened.handle.info()
        return _respond(opening, opened)
    except BaseException:
        _take_back(opening, opened)
        raise


def _take_back(opening: Opening, opened: Open) -> None:
    """CREATE fails after all."""
    if opening.action == CreateAction.CREATED and opened.handle is not None:
        with contextlib.suppress(OSError):
            opening.undo_creation(opened.handle)
    opening.request.server.opens.close(opened)


def _respond(opening: Opening, opened: Open) -> Response:
    level, lease_context = granting.grant(opening, opened)
    asked = opening.asked.get(contexts.APP_INSTANCE_ID)
    if asked is not None:
        opening.request.server.opens.join_application(opened, asked.app_instance_id)
        opened.app_instance_version = _app_instance_version(opening.request, opening.asked)
    more = [context for context in (lease_context, durable.grant(opening, opened)) if context is not None]
    _store(opening, opened)
    fields, answers = _answers(opening, opened, level)
    key = replay.key_of(opening.request, opening.asked)
    if key is not None:
        opening.request.server.opens.replays.remember(opened, replay.Replayable(key, fields, answers))
    return Response([pack_response(fields, [*answers, *more])], file_id=opened.file_id)


def _store(opening: Opening, opened: Open) -> None:
    """A persistent open is on stable storage, and so is the name of a new file, before the client hears of it."""
    handle = opened.handle
    persistence = opening.request.server.opens.persistence
    if persistence is None or handle is None:
        return
    created = opening.action == CreateAction.CREATED

    def undo() -> None:
        if created and opened.handle is not None:
            with contextlib.suppress(OSError):
                opening.undo_creation(handle)
        opening.request.server.opens.close(opened)

    persistence.changed(opened, undo, handle.flush if created else None)


def _respond_to_replay(opened: Open, record: CreateRequest) -> Response:
    """3.3.5.9.10: as the first time, but with the caching rights as they are now."""
    kept = opened.replayable
    if kept is None:
        raise StatusError(NtStatus.INTERNAL_ERROR)
    level = replay.level_for(opened, record.requested_oplock_level)
    more = []
    if isinstance(opened.caching, Lease):
        more.append(granting.lease_context(opened.caching))
    if opened.durable is not None and (opened.durable.persistent or level in (OplockLevel.BATCH, OplockLevel.LEASE)):
        more.append(durable.response_v2(opened.durable))
    fields = kept.response._replace(oplock_level=level)
    return Response([pack_response(fields, [*kept.answers, *more])], file_id=opened.file_id)


def _respond_again(opening: Opening, opened: Open, replayed: bool = False) -> Response:
    """To a reconnect, or to the replay of a CREATE that an earlier server did: the open as it is now."""
    if opened.handle is None:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    opening.info = opened.handle.info()
    more = [granting.lease_context(opened.caching)] if isinstance(opened.caching, Lease) else []
    if replayed and opened.durable is not None:
        more.append(durable.response_v2(opened.durable))
    fields, answers = _answers(opening, opened, durable.oplock_level(opened))
    return Response([pack_response(fields, [*answers, *more])], file_id=opened.file_id)


def _answers(opening: Opening, opened: Open, level: int) -> tuple[CreateResponse, list[contexts.RawContext]]:
    """The response's fixed part, and the contexts that say something about the file."""
    if opening.info is None:
        raise StatusError(NtStatus.INTERNAL_ERROR)
    info = presentation.shown(opened, opening.info)
    found = opening.asked
    answers: list[contexts.RawContext] = []
    if contexts.MAXIMAL_ACCESS in found:
        answers.append(_maximal_access(found[contexts.MAXIMAL_ACCESS], info, opened))
    if contexts.QUERY_ON_DISK_ID in found:
        data = contexts.ON_DISK_ID_RESPONSE_CODEC.pack(
            contexts.OnDiskIdResponse(info.key.inode & 0xFFFFFFFFFFFFFFFF, opening.backend.volume_serial)
        )
        answers.append(contexts.RawContext(contexts.QUERY_ON_DISK_ID, data))
    # 2.2.14: Flags count from dialect 3.0 on.
    reparse = info.attributes & attr.REPARSE_POINT and opening.request.connection.dialect >= Dialect.SMB_3_0
    fields = CreateResponse(
        oplock_level=level,
        flags=CREATE_FLAG_REPARSEPOINT if reparse else 0,
        create_action=opening.action,
        creation_time=info.creation_time,
        last_access_time=info.last_access_time,
        last_write_time=info.last_write_time,
        change_time=info.change_time,
        allocation_size=info.allocation_size,
        end_of_file=info.end_of_file,
        file_attributes=info.attributes,
        persistent=opened.file_id[0],
        volatile=opened.file_id[1],
    )
    return fields, answers


def _maximal_access(asked: contexts.Timewarp | None, info: FileInfo, opened: Open) -> contexts.RawContext:
    """3.3.5.9.5: a timestamp equal to the last write time means the client knows the answer already."""
    if asked is not None and asked.timestamp and asked.timestamp == info.last_write_time:
        answer = contexts.MaximalAccessResponse(NtStatus.NONE_MAPPED, 0)
    else:
        answer = contexts.MaximalAccessResponse(NtStatus.SUCCESS, opened.maximal_access)
    return contexts.RawContext(contexts.MAXIMAL_ACCESS, contexts.MAXIMAL_ACCESS_RESPONSE_CODEC.pack(answer))


def _open_pipe(request: TreeRequest, record: CreateRequest, name: str) -> Response:
    """A named pipe on IPC$; OBJECT_NAME_NOT_FOUND for one that nobody serves."""
    session, tree = request.session, request.tree
    if record.impersonation_level > _DELEGATION:
        raise StatusError(NtStatus.BAD_IMPERSONATION_LEVEL)
    pipes = importlib.import_module("smb3server.rpc.pipes")
    server = request.server
    pipe = pipes.open_pipe(request, name)
    granted = masks.map_generic(record.desired_access) & ~int(Access.MAXIMUM_ALLOWED)
    if record.desired_access & Access.MAXIMUM_ALLOWED:
        granted = 0x0012019F
    opened = Open(
        server.opens.new_file_id(),
        session,
        tree,
        (name,),
        granted_access=granted,
        maximal_access=tree.maximal_access,
        share_access=record.share_access,
    )
    opened.pipe = pipe
    server.opens.add(opened)
    body = pack_response(
        CreateResponse(
            oplock_level=OplockLevel.NONE,
            create_action=CreateAction.OPENED,
            allocation_size=4096,
            file_attributes=attr.NORMAL,
            persistent=opened.file_id[0],
            volatile=opened.file_id[1],
        )
    )
    return Response([body], file_id=opened.file_id)
