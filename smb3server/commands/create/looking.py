"""Looks at a file for CREATE, QUERY_INFO and CLOSE of one message, as ``dispatch.look_lane`` answers them.

An open for attributes alone of a file that nobody has open: the same checks as in ``opening``, in their order, without
what only matters to others. [MS-FSA 2.1.5.1.2, 2.1.5.12]
"""

from __future__ import annotations

from smb3server.access import decide
from smb3server.backends.base import Disposition, FolderNotRead, Kind, OpenRequest
from smb3server.backends.names import split_plain
from smb3server.commands import close
from smb3server.commands.create import checks, handler
from smb3server.commands.info import presentation, query_info
from smb3server.commands.info.file_levels import FILE_LEVELS
from smb3server.dispatch.chain import Fresh
from smb3server.dispatch.checks import CREDIT_SIZE
from smb3server.dispatch.look_lane import Look, Registered, Seen
from smb3server.dispatch.request import Host
from smb3server.state.caller import caller_of
from smb3server.state.objects import Connection, Open, Session, TreeConnect
from smb3server.state.share import ShareType
from smb3server.wire import attributes as attr
from smb3server.wire.close import POSTQUERY_ATTRIB
from smb3server.wire.close import parse_request as parse_close
from smb3server.wire.create import (
    CREATE_FLAG_REPARSEPOINT,
    Access,
    CreateAction,
    CreateDisposition,
    CreateOptions,
    CreateResponse,
    pack_response,
    parse_request,
)
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import HEADER_SIZE
from smb3server.wire.negotiate import Dialect
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.query_info import InfoType, build_output_response, parse_query_info_request
from smb3server.wire.status import StatusError
from smbdirect.errors import DecodeError

_LOOKS = int(Access.READ_ATTRIBUTES | Access.READ_EA | Access.READ_CONTROL | Access.SYNCHRONIZE)
"""The access of an ordinary look."""
_AS_IT_IS = int(CreateOptions.OPEN_REPARSE_POINT)
_OPTIONS = _AS_IT_IS | int(CreateOptions.DIRECTORY_FILE | CreateOptions.NON_DIRECTORY_FILE)
_OPEN, _OPENED, _NO_OPLOCK = int(CreateDisposition.OPEN), CreateAction.OPENED, int(OplockLevel.NONE)
_FILE_INFO, _LEVELS_WITH_STEPS = int(InfoType.FILE), frozenset((int(FileInfoClass.STREAM), int(FileInfoClass.FULL_EA)))
_EXISTING, _DIRECTORY, _DISK = Disposition.OPEN, Kind.DIRECTORY, ShareType.DISK
_SIZES = (57, 41, 24)
"""StructureSize of the requests."""


def look(
    host: Host,
    connection: Connection,
    session: Session,
    tree: TreeConnect,
    sequence: int,
    requests: tuple[memoryview, memoryview, memoryview],
) -> Seen | None:
    """See ``look_lane.Look.answer``."""
    share, server = tree.share, host.server
    backend, opens = share.backend, server.opens
    if (
        backend is None
        or share.type is not _DISK
        or share.audit is not None
        or share.as_of
        or backend.retains
        or tree.apple
        or opens.dormant
        or sequence > 0xFFFF
        or len(session.open_table) >= server.settings.max_opens
    ):
        return None
    create, query, closing = requests
    for request, size in zip(requests, _SIZES, strict=True):
        if len(request) < HEADER_SIZE + (size & ~1) or request[HEADER_SIZE] | request[HEADER_SIZE + 1] << 8 != size:
            return None
    try:
        body, name, contexts = parse_request(create)
        asked, data = parse_query_info_request(query)
        flags = parse_close(closing).flags
        if session.usage is not None:
            server.ceilings.check_open(session.usage, len(opens.by_id), opens.limit)
    except (DecodeError, StatusError):
        return None
    level = FILE_LEVELS.get(asked.info_class)
    path = split_plain(name)
    if (
        contexts
        or body.create_disposition != _OPEN
        or body.requested_oplock_level != _NO_OPLOCK
        or body.desired_access & ~_LOOKS
        or body.create_options & ~_OPTIONS
        or path is None
        or name[:1] in "@$"
        or asked.info_type != _FILE_INFO
        or asked.info_class in _LEVELS_WITH_STEPS
        or level is None
        or len(data)
        or not level.minimum_size <= asked.output_buffer_length <= CREDIT_SIZE
        or connection.dialect < level.minimum_dialect
        or level.access & ~body.desired_access
    ):
        return None
    caller = caller_of(session, tree, server.accounts)
    handle = None
    backend.defer_reading = True
    try:
        wanted, directory = checks.check_fields(
            body.impersonation_level,
            body.desired_access,
            body.file_attributes,
            body.share_access,
            body.create_disposition,
            body.create_options,
        )
        decide.check_share(wanted, caller.share)
        follow = not body.create_options & _AS_IT_IS
        handle, found, _, on_disk = backend.open_described(
            OpenRequest(path, "", _EXISTING, False, False, directory, not follow, user=caller.user)
        )
        info = found.info
        if (follow and info.reparse_tag == attr.TAG_SYMLINK) or server.file_table.find(handle.key) is not None:
            return None
        is_directory = handle.kind is _DIRECTORY
        maximal = caller.rights_on(backend, path, found)
        granted = decide.grant_existing(wanted, maximal, 0 if is_directory or backend.posix else info.attributes)
        opened = Open(
            opens.new_file_id(),
            session,
            tree,
            path,
            store=backend,
            granted_access=granted,
            maximal_access=maximal,
            share_access=body.share_access,
            desired_access=body.desired_access,
            create_options=body.create_options,
            is_directory=is_directory,
            handle=handle,
        )
        output = level.encode(opened, Fresh(opened, info, on_disk))
        if len(output) > asked.output_buffer_length:
            return None
        shown = presentation.shown(opened, info)
    except (OSError, StatusError, FolderNotRead):
        # The general way finds out what the client is told.
        return None
    finally:
        backend.defer_reading = False
        if handle is not None:
            handle.close()
    reparse = shown.attributes & attr.REPARSE_POINT and connection.dialect >= Dialect.SMB_3_0
    return (
        opened,
        pack_response(
            CreateResponse(
                89,
                _NO_OPLOCK,
                CREATE_FLAG_REPARSEPOINT if reparse else 0,
                _OPENED,
                shown.creation_time,
                shown.last_access_time,
                shown.last_write_time,
                shown.change_time,
                shown.allocation_size,
                shown.end_of_file,
                shown.attributes,
                0,
                *opened.file_id,
            )
        ),
        build_output_response(len(output)) + output,
        close.response(shown) if flags & POSTQUERY_ATTRIB else close.NO_ATTRIBUTES,
    )


Registered.look = Look((handler.create, query_info.query_info, close.close), look)
