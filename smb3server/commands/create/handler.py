"""CREATE. The work on the file itself is in ``opening``, caching rights are in ``sharing``. [MS-SMB2 3.3.5.9]"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from smb3server.access import masks
from smb3server.backends.base import Kind
from smb3server.commands.create import checks, durable, previous, sharing
from smb3server.commands.create.contexts import NOTHING, CreateContexts, Opener
from smb3server.commands.create.describing import describe
from smb3server.commands.create.opening import Opening
from smb3server.commands.create.posix import agreed
from smb3server.commands.create.registry import KINDS, decode
from smb3server.commands.create.virtual_disks import DiskOpening, without_suffix
from smb3server.commands.info import quotas
from smb3server.commands.info.waits import one_step
from smb3server.dispatch.chain import Fresh
from smb3server.dispatch.long_work import on_worker
from smb3server.dispatch.request import Interim, Pending, Response, TreeRequest, handles
from smb3server.dispatch.reserving import reserve
from smb3server.dispatch.waiting import retry
from smb3server.files import symlinks
from smb3server.files.caching import Lease
from smb3server.process.long_work import Steps
from smb3server.rpc.pipes import open_pipe
from smb3server.state import file_events
from smb3server.state.caller import caller_of
from smb3server.state.durable import Key, Replayable
from smb3server.state.objects import Open
from smb3server.state.server_state import ServerState
from smb3server.state.share import ShareType
from smb3server.wire import attributes as attr
from smb3server.wire import create_contexts as wire
from smb3server.wire.create import (
    Access,
    CreateAction,
    CreateOptions,
    CreateRequest,
    CreateResponse,
    pack_response,
    parse_request,
)
from smb3server.wire.header import Command, HeaderFlags
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.posix import VERSION
from smb3server.wire.status import NtStatus, StatusError
from smb3server.wire.svhdx import OPEN_DEVICE_CONTEXT
from smbdirect.codec import new_record

# A name of a module costs less to look up than a member of an enumeration.
_PIPE, _AT_ONCE = ShareType.PIPE, Interim.AT_ONCE
_NO_OPLOCK, _LEASE = int(OplockLevel.NONE), int(OplockLevel.LEASE)
_REPLAY = int(HeaderFlags.REPLAY_OPERATION)
_FOR_BACKUP = int(CreateOptions.OPEN_FOR_BACKUP_INTENT)
_DFS = int(HeaderFlags.DFS_OPERATIONS)
_READ_WRITE = masks.FILE_GENERIC_READ | masks.FILE_GENERIC_WRITE
"""The access that MAXIMUM_ALLOWED grants to a pipe."""


@handles(Command.CREATE, TreeRequest)
def create(request: TreeRequest) -> Response | Pending:
    """Open or create a file or a directory, or open a pipe. [MS-SMB2 3.3.5.9]"""
    body, name, raw_contexts = parse_request(request.message)
    connection, session, tree, server = request.connection, request.session, request.tree, request.host.server
    opens = server.opens
    if len(session.open_table) >= server.settings.max_opens:
        raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)
    pipe = tree.share.type is _PIPE
    asked = NOTHING if pipe or not raw_contexts else decode(raw_contexts, connection.dialect)
    if VERSION in asked.others:
        asked = agreed(asked, connection, tree.share)
    if session.usage is not None and asked.reconnect is None:
        # An open to which a client reconnects is counted already. Dormant opens take no descriptor.
        server.ceilings.check_open(session.usage, len(opens.by_id) - opens.dormant, opens.limit)
    if pipe:
        checks.check_access(body.impersonation_level, body.desired_access)
        return _create_on_pipe(request, body, name)
    if request.header.flags & _DFS:
        name = tree.share.below(name)
    caller = caller_of(session, tree, server.accounts)
    if body.create_options & _FOR_BACKUP:
        caller = caller.opening_for_backup()
    opener: Opener = new_record(
        Opener,
        (
            session,
            tree,
            caller,
            connection.client_guid,
            connection.dialect,
            connection.server_capabilities,
            request.header.status & 0xFFFF,
        ),
    )
    backend = tree.share.backend
    if name[:1] == "$" and backend is not None and backend.quotas is not None and name.lower() == quotas.FILE_NAME:
        # What quotas are asked of is a file on NTFS. Here it is the root, with no more rights than the user has there.
        name, body = "", body._replace(desired_access=int(Access.MAXIMUM_ALLOWED), create_options=0)
    is_disk = False
    if tree.share.rules.shared_virtual_disks:
        name, is_disk = without_suffix(name, asked)
    if asked.reconnect is not None:
        return _reconnect(server, opener, body, name, asked)
    if asked.durable_v2 is not None:
        replayed = bool(request.header.flags & _REPLAY)
        answer = _answer_again(server, opener, body, name, asked, replayed)
        if answer is not None:
            return answer
    seconds = 0
    if tree.share.as_of:
        seconds = tree.share.as_of
    elif tree.share.snapshots is not None and (asked.posix is None or asked.timewarp):
        # POSIX opens may have any name.
        seconds, name = previous.asked_for(name, asked.timewarp)
    try:
        checked = checks.check(body, name, asked, opener.caller, tree.share.rules.streams)
    except checks.BadNameError as error:
        if seconds:
            raise
        return retry(request, partial(_refuse_name, opener, error), _AT_ONCE)
    opening = _opening(server, opener, body, asked, checked, seconds, is_disk)
    for context in asked.others:
        if (before := KINDS[context].before) is not None:
            before(opening, asked.others[context])
    # If an oplock break delays the request, the client gets an interim response at once, as from Windows.
    attempt = partial(_attempt, request, opening)
    begin = None
    if asked.durable_v2 is not None and (key := durable.key_of(connection.client_guid, asked)) is not None:
        begin = partial(_may_come_again, opening, key)
    return retry(request, attempt, _AT_ONCE, begin)


def _refuse_name(opener: Opener, error: checks.BadNameError) -> Response:
    """Refuse a name that breaks a rule, after its folder was looked for. Raises ``StatusError``, ``FolderNotRead``."""
    backend, user = opener.tree.share.backend, opener.caller.user
    if backend is None or not error.folder:
        raise error
    backend.defer_reading = True
    try:
        if backend.stat(error.folder, user).attributes & attr.DIRECTORY:
            raise error
        raise StatusError(NtStatus.OBJECT_PATH_NOT_FOUND)
    except (FileNotFoundError, NotADirectoryError):
        link = symlinks.on_the_way(backend, error.folder, user)
        raise link or StatusError(NtStatus.OBJECT_PATH_NOT_FOUND) from None
    finally:
        backend.defer_reading = False


def _create_on_pipe(request: TreeRequest, body: CreateRequest, name: str) -> Response:
    """Open a named pipe. Raises OBJECT_NAME_NOT_FOUND if there is no such pipe, and CONNECTION_REFUSED for the folder
    of the pipes, as Samba does: programs know from it that pipes cannot be listed."""
    if not name:
        raise StatusError(NtStatus.CONNECTION_REFUSED)
    opens = request.server.opens
    granted = masks.map_generic(body.desired_access) & ~int(Access.MAXIMUM_ALLOWED)
    if body.desired_access & Access.MAXIMUM_ALLOWED:
        granted = _READ_WRITE
    opened = Open(
        opens.new_file_id(),
        request.session,
        request.tree,
        (name,),
        store=None,
        pipe=open_pipe(request, name),
        granted_access=granted,
        maximal_access=request.tree.maximal_access,
        share_access=body.share_access,
    )
    opens.add(opened)
    response = pack_response(
        CreateResponse(
            oplock_level=OplockLevel.NONE,
            create_action=CreateAction.OPENED,
            allocation_size=4096,
            file_attributes=attr.NORMAL,
            persistent=opened.file_id[0],
            volatile=opened.file_id[1],
        )
    )
    return Response([response], file_id=opened.file_id)


def _opening(
    server: ServerState,
    opener: Opener,
    body: CreateRequest,
    asked: CreateContexts,
    checked: checks.Checked,
    seconds: int = 0,
    is_disk: bool = False,
) -> Opening:
    share = opener.tree.share
    backend = share.backend
    if backend is not None and asked.posix is not None:
        backend = backend.as_posix()
    if backend is None:
        raise StatusError(NtStatus.NETWORK_NAME_DELETED)
    lease = asked.lease if body.requested_oplock_level == _LEASE else None
    if asked.timewarp or seconds:
        if share.snapshots is None:
            # There are no snapshots, so no file existed at that time.
            raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
        access = opener.tree.maximal_access
        return previous.PreviousOpening(
            opener, body, asked, *checked, backend, server, lease, share.snapshots, seconds, backend, access
        )
    kind = DiskOpening if is_disk else Opening
    return kind(opener, body, asked, *checked, backend, server, lease)


def _reconnect(server: ServerState, opener: Opener, body: CreateRequest, name: str, asked: CreateContexts) -> Response:
    """Answer a client that reconnects to a durable open. [MS-SMB2 3.3.5.9.7, 3.3.5.9.12]

    The fixed part of the request is ignored, except for name and oplock level."""
    checked = checks.check_name(body, name, asked.posix is not None)
    opening = _opening(server, opener, body, asked, checked)
    try:
        opened = durable.reconnect(opener, asked, server.opens, opening.path, opening.lease is not None)
    except StatusError as error:
        kind = "persistent" if durable.is_persistent(asked) else "durable"
        server.events.reopen_failed(opener.session, opener.tree.share, name.replace("\\", "/"), kind, error.status)
        raise
    return _respond_again(opening, opened)


def _answer_again(
    server: ServerState, opener: Opener, body: CreateRequest, name: str, asked: CreateContexts, replayed: bool
) -> Response | None:
    """Answer a CREATE that was processed before. None means that it is new. [MS-SMB2 3.3.5.9, 3.3.5.9.10]

    ``replayed``: whether the client marked the request as a replay."""
    key = durable.key_of(opener.client_guid, asked)
    if key is None:
        return None
    tree, opens = opener.tree, server.opens
    earlier = opens.replays.find(key, replayed, opener.session, asked.lease_key)
    if earlier is None:
        earlier = durable.persistent_of(opener, asked, key, replayed, opens)
    if earlier is None:
        return None
    if earlier.durable is None or not earlier.durable.disconnected:
        return _respond_to_replay(earlier, body)
    checked = checks.check(body, name, asked, opener.caller, tree.share.rules.streams)
    opening = _opening(server, opener, body, asked, checked)
    durable.revive(earlier, opener, body, opens)
    opening.action = CreateAction(earlier.create_action)
    return _respond_again(opening, earlier, key)


def _may_come_again(opening: Opening, key: Key, pending: Pending) -> Callable[[], None]:
    """Enter a CREATE that waits, so that a replay of it gets FILE_NOT_AVAILABLE. Return a function that ends this."""
    replays = opening.server.opens.replays
    replays.wait(key, pending, opening.opener.session)
    return partial(replays.done, key)


def _attempt(request: TreeRequest, opening: Opening) -> Response | Coroutine[Any, Any, Response]:
    """Open the file. Return the response, or a coroutine that makes it if work is left for a worker thread. If that
    fails, the open is closed and a new file is removed. Raises the errors of ``Opening.attempt``."""
    opened = opening.attempt()
    steps = None
    try:
        if opening.free is None:
            size = opening.contexts.allocation_size
            if size is not None:
                steps = _reservation(request, opening, opened, size)
            if steps is None:
                if size is not None and opened.handle is not None:
                    opening.info = opened.handle.info()
                return _respond(opening, opened)
    except BaseException:
        _take_back(opening, opened)
        raise
    return _finish_slowly(request, opening, opened, steps)


async def _finish_slowly(request: TreeRequest, opening: Opening, opened: Open, steps: Steps | None) -> Response:
    """Do the rest of the work on a worker thread, and return the response. Until then the open is in the tables, and
    its client does not know of it."""
    try:
        if opening.free is not None:
            await on_worker(request, opened, one_step(opening.free))
            opening.finish_overwriting(opened)
            if opening.contexts.allocation_size is not None:
                steps = _reservation(request, opening, opened, opening.contexts.allocation_size)
        if steps is not None:
            await on_worker(request, opened, steps)
        if opened.handle is None:
            raise StatusError(NtStatus.FILE_CLOSED)
        opening.info = opened.handle.info()
        return _respond(opening, opened)
    except BaseException:
        _take_back(opening, opened)
        raise


def _reservation(request: TreeRequest, opening: Opening, opened: Open, size: int) -> Steps | None:
    """Begin to reserve what AllocationSize asks for, if the file is new or overwritten. Return the steps; None means
    that nothing is left to do. ``size``: bytes."""
    handle = opened.handle
    if opening.action == CreateAction.OPENED or handle is None or handle.kind != Kind.FILE:
        return None
    if size <= handle.info().end_of_file:
        return None
    return reserve(request, opened, size)


def _take_back(opening: Opening, opened: Open) -> None:
    """Close an open whose CREATE fails after all, and remove the file if it is new."""
    if opening.action == CreateAction.CREATED and opened.handle is not None:
        with contextlib.suppress(OSError):
            opening.undo_creation(opened.handle)
    opening.server.opens.close(opened)


def _respond(opening: Opening, opened: Open) -> Response:
    """Grant caching rights and durability, store a persistent open, and return the response."""
    asked, opener, opens = opening.contexts, opening.opener, opening.server.opens
    level, lease = sharing.grant(
        opening.server, opened, opener.client_guid, opener.dialect, opening.body.requested_oplock_level, opening.lease
    )
    more = [lease] if lease is not None else []
    for context in asked.others:
        if (after := KINDS[context].after) is not None:
            after(opening, opened, asked.others[context])
    if asked.durable or asked.durable_v2 is not None:
        promise = durable.grant(opened, asked, opener, opens)
        if promise is not None:
            more.append(promise)
    if opens.persistence is not None:
        _store(opening, opened)
    if opening.info is None:
        raise StatusError(NtStatus.INTERNAL_ERROR)
    fields, answers = describe(opening, opened, opening.info, level)
    if asked.durable_v2 is not None:
        key = durable.key_of(opener.client_guid, asked)
        if key is not None and durable.is_eligible(opened):
            opens.replays.remember(opened, Replayable(key, fields, answers))
    if opener.tree.share.audit is not None:
        file_events.opened(opened)
        opening.audit_success(opened)
    fresh: Fresh | None = None
    if not opening.settled:
        fresh = new_record(Fresh, (opened, opening.info, opening.path_on_disk))
    contexts = [*answers, *more]
    if opened.virtual_disk is not None:
        # Microsoft's suite takes the context of durability from the first place.
        contexts.sort(key=lambda context: context.name == OPEN_DEVICE_CONTEXT)
    return Response([pack_response(fields, contexts)], file_id=opened.file_id, fresh=fresh)


def _store(opening: Opening, opened: Open) -> None:
    """Begin to store a persistent open. The response is held until it, and the name of a new file, are stored."""
    handle, persistence = opened.handle, opening.server.opens.persistence
    if persistence is None or handle is None:
        return
    created = opening.action == CreateAction.CREATED
    persistence.changed(opened, partial(_take_back, opening, opened), handle.flush if created else None)


def _respond_to_replay(opened: Open, body: CreateRequest) -> Response:
    """Answer a replay as the first time, but with the caching rights as they are now. [MS-SMB2 3.3.5.9.10]"""
    kept = opened.replayable
    if kept is None:
        raise StatusError(NtStatus.INTERNAL_ERROR)
    level = durable.level_for(opened, body.requested_oplock_level)
    more = _lease_of(opened)
    if opened.durable is not None and (opened.durable.persistent or level in (OplockLevel.BATCH, OplockLevel.LEASE)):
        more.append(durable.response_v2(opened.durable))
    fields = kept.response._replace(oplock_level=level)
    return Response([pack_response(fields, [*kept.answers, *more])], file_id=opened.file_id)


def _respond_again(opening: Opening, opened: Open, replayed: Key | None = None) -> Response:
    """Describe an open as it is now: to a client that reconnects, or that comes back with a replay of its CREATE.

    ``replayed``: the key of the CREATE that is replayed. It may be replayed again."""
    if opened.handle is None:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    more = _lease_of(opened)
    if replayed is not None and opened.durable is not None:
        more.append(durable.response_v2(opened.durable))
    fields, answers = describe(opening, opened, opened.handle.info(), durable.oplock_level(opened))
    if replayed is not None:
        opening.server.opens.replays.remember(opened, Replayable(replayed, fields, answers))
    return Response([pack_response(fields, [*answers, *more])], file_id=opened.file_id)


def _lease_of(opened: Open) -> list[wire.RawContext]:
    """Return the context that describes the lease of an open, if it has one."""
    return [sharing.lease_context(opened.caching)] if isinstance(opened.caching, Lease) else []
