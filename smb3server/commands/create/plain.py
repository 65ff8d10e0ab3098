"""Opens an existing file whose other opens do not matter to it, for a CREATE alone in its message: its short form.

The checks of ``handler`` and ``opening`` in their order, without what only matters to others, and without objects for a
request that may have to wait. Whatever is not ordinary is left to the handler, before any state has changed. [MS-FSA
2.1.5.1.2]

Others may have the file open, but without caching rights. The CREATE may ask for caching rights, and about the file by
the create contexts MxAc and QFid.
"""

from __future__ import annotations

import codecs
import functools
import struct
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, cast

from smb3server.access import decide
from smb3server.access.caller import Caller
from smb3server.backends.base import Backend, Described, FolderNotRead, Handle, Kind, OpenRequest, Path
from smb3server.backends.names import split_plain
from smb3server.commands.create import describing, handler, looking, registry, sharing
from smb3server.commands.create.contexts import NOTHING
from smb3server.commands.info import presentation
from smb3server.dispatch.request import Host
from smb3server.dispatch.short_forms import SHORT_FORMS, Begin, Body, Found, whole
from smb3server.files import symlinks
from smb3server.state.caller import caller_of
from smb3server.state.objects import Connection, Open, Session, TreeConnect
from smb3server.state.share import ShareType
from smb3server.wire import attributes as attr
from smb3server.wire import create_contexts as contexts
from smb3server.wire.create import CREATE_REQUEST, CreateAction, pack_response
from smb3server.wire.header import HEADER_SIZE, Command
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.status import StatusError
from smbdirect.codec import new_record
from smbdirect.errors import DecodeError

_DISK, _DIRECTORY, _OPENED = ShareType.DISK, Kind.DIRECTORY, CreateAction.OPENED
_NO_OPLOCK, _LEASE = int(OplockLevel.NONE), int(OplockLevel.LEASE)
_ARCHIVE_OR_FOLDER = attr.ARCHIVE | attr.DIRECTORY
_END = CREATE_REQUEST.end
_LONGEST_CONTEXTS = 512
"""Bytes of create contexts up to which they are looked at."""
_FIXED = struct.Struct(f"{CREATE_REQUEST.size}s")
_NONE: Mapping[bytes, Any] = {}
_FILE_ID, _LEVEL_AT, _FILE_ID_AT = struct.Struct("<QQ"), 2, 64
"""The FileId; offsets of OplockLevel and FileId in the body of a response."""


class _Asked(NamedTuple):
    """What the fixed part of the request asks for."""

    fields: looking.Fields
    oplock: int
    name_at: int
    """Where the name is in the request: in its buffer, if it ends before the message does."""
    name_end: int
    contexts_at: int
    """Where the create contexts are, in the same way. Both are 0 if there are none."""
    contexts_end: int


@functools.lru_cache(maxsize=1024)
def _asked(fixed: bytes) -> _Asked | None:
    """Return what the fixed part of a request asks for. None: it is not ordinary. The answer depends on nothing else,
    and a client asks alike for all files whose names have one length."""
    (
        _,
        _,
        oplock,
        impersonation,
        _,
        _,
        access,
        attributes,
        share_access,
        disposition,
        options,
        at,
        length,
        more,
        area,
    ) = CREATE_REQUEST.fields_from(fixed)
    fields = looking.fields_of(impersonation, access, attributes, share_access, disposition, options)
    if (
        fields is None
        or length & 1
        or (length and at < _END)
        or (area and (area > _LONGEST_CONTEXTS or more & 7 or more < _END))
    ):
        return None
    name = (at, at + length) if length else (0, 0)
    about = (more, more + area) if area else (0, 0)
    return _Asked(fields, oplock, *name, *about)


Lease = contexts.Lease | contexts.LeaseV2
Wishes = tuple["Lease | None", Mapping[bytes, Any]]
"""The lease that is asked for, and what else the create contexts ask about the file."""


def _wishes(area: bytes, dialect: int, oplock: int) -> Wishes | None:
    """Return what create contexts ask for. None: they are not ordinary."""
    if oplock != _LEASE:
        about = looking.contexts_of(area, dialect)
        return (None, about) if about is not None else None
    try:
        found = registry.decode(contexts.parse_contexts(memoryview(area)), dialect)
    except (DecodeError, StatusError):
        return None
    others = found.others
    if not others.keys() <= looking.ABOUT_THE_FILE or found != NOTHING._replace(lease=found.lease, others=others):
        return None
    return found.lease, _same(tuple(others.items()))


@functools.lru_cache(maxsize=64)
def _same(others: tuple[tuple[bytes, Any], ...]) -> Mapping[bytes, Any]:
    """Return one mapping for all requests that ask about the file alike."""
    return dict(others)


class _Known(NamedTuple):
    """What was found out about a file. All of it follows from the other fields."""

    found: Described
    """What the store had found. It finds the same object as long as the file has not changed (``KeptAttributes``)."""
    asked: _Asked
    wishes: Mapping[bytes, Any]
    circumstances: tuple[Any, ...]
    """See ``_opened``."""
    maximal: int
    granted: int
    start: bytes
    """The body of the response before the OplockLevel, between it and the FileId, and behind that."""
    middle: bytes
    end: bytes


_MOST_KNOWN = 4096
_known: OrderedDict[tuple[int, int, int], _Known] = OrderedDict()
"""By the ids of what was found, of what was asked, and of what the contexts asked. The entry keeps these alive."""


class _Asking(NamedTuple):
    """Who asks for what."""

    host: Host
    connection: Connection
    session: Session
    tree: TreeConnect
    sequence: int
    backend: Backend
    caller: Caller
    asked: _Asked
    path: Path
    lease: Lease | None
    wishes: Mapping[bytes, Any]


def look(
    connection: Connection, session: Session, tree: TreeConnect | None, sequence: int, message: memoryview
) -> Found | None:
    """See ``ShortForm.look``."""
    found = _WHOLE.look(connection, session, tree, sequence, message)
    if found is None or tree is None:
        return None
    asked = _asked(*_FIXED.unpack_from(message, HEADER_SIZE))
    if asked is None or asked.name_end > len(message) or asked.contexts_end > len(message):
        return found
    return None, partial(_create, connection, session, tree, sequence, message, asked), None


def _create(
    connection: Connection, session: Session, tree: TreeConnect, sequence: int, message: memoryview, asked: _Asked
) -> Body | Begin:
    """Open the file, or return the handler."""
    # What runs the requests of a connection is the host of all of them.
    host = cast(Host, connection.host)
    share, server = tree.share, host.server
    backend, opens = share.backend, server.opens
    if (
        backend is None
        or share.type is not _DISK
        or share.as_of
        or share.rules.delayed_write_times
        or backend.retains
        or tree.apple
        or opens.dormant
        or sequence > 0xFFFF
        or len(session.open_table) >= server.settings.max_opens
    ):
        return handler.create
    lease, wishes = None, _NONE
    if asked.contexts_end:
        understood = _wishes(bytes(message[asked.contexts_at : asked.contexts_end]), connection.dialect, asked.oplock)
        if understood is None:
            return handler.create
        lease, wishes = understood
        if lease is not None and server.file_table.leases.find(connection.client_guid, lease.lease_key) is not None:
            return handler.create
    name = codecs.utf_16_le_decode(message[asked.name_at : asked.name_end], "surrogatepass", True)[0]
    path = split_plain(name) if name else ()
    usage = session.usage
    if (
        path is None
        or name.startswith(("@", "$"))
        or (usage is not None and not server.ceilings.admits(usage, len(opens.by_id), opens.limit))
    ):
        return handler.create
    caller, fields = caller_of(session, tree, server.accounts), asked.fields
    asking: _Asking = new_record(
        _Asking, (host, connection, session, tree, sequence, backend, caller, asked, path, lease, wishes)
    )
    missing: Exception | None = None
    backend.defer_reading = True
    try:
        decide.check_share(fields.wanted, caller.share)
        # As ``opening.Opening._backend_request`` for a file that exists.
        request = OpenRequest(
            path,
            read=fields.reads,
            write=fields.writes,
            directory=fields.directory,
            open_reparse_point=not fields.follow,
            user=caller.user,
        )
        try:
            handle, found, _, on_disk = backend.open_described(request)
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = symlinks.on_the_way(backend, path, caller.user) or error
        else:
            body = None
            try:
                body = _opened(asking, handle, found, on_disk)
            finally:
                if body is None:
                    handle.close()
            if body is not None:
                return body, None
    except (OSError, StatusError, FolderNotRead):
        # The handler finds out what the client is told, or waits.
        return handler.create
    finally:
        backend.defer_reading = False
    if missing is not None:
        raise missing
    return handler.create


def _opened(asking: _Asking, handle: Handle, found: Described, on_disk: Path | None) -> bytes | None:
    """Make the open of a handle, and return the body of the response. None: the general way has to do it. If this
    raises, ``StatusError`` or ``OSError``, no open is left, and the caller closes the handle in both cases."""
    host, connection, session, tree, sequence, backend, caller, asked, path, lease, wishes = asking
    server, share, fields, info = host.server, tree.share, asked.fields, found.info
    if fields.follow and info.reparse_tag == attr.TAG_SYMLINK:
        return None
    is_directory = handle.kind is _DIRECTORY
    key = id(found), id(asked), id(wishes)
    circumstances = share.hides, backend.posix, backend.volume_serial, connection.dialect, caller, path, on_disk
    known = _known.get(key)
    if known is not None and known.circumstances == circumstances:
        maximal, granted = known.maximal, known.granted
    else:
        known = None
        maximal = caller.rights_on(backend, path, found)
        granted = decide.grant_existing(fields.wanted, maximal, 0 if is_directory or backend.posix else info.attributes)
    table = server.file_table
    file = table.find(handle.key)
    if file is not None and (
        file.delete_pending
        or file.link_deletions
        or file.caching.holders
        or file.share_conflict(granted, fields.share_access)
    ):
        return None
    file = table.get(handle.key)
    if file.write_time is not None:
        table.release(file)
        return None
    opened = Open(
        server.opens.new_file_id(),
        session,
        tree,
        path,
        store=backend,
        granted_access=granted,
        maximal_access=maximal,
        share_access=fields.share_access,
        create_options=fields.options,
        create_action=_OPENED,
        is_directory=is_directory,
        desired_access=fields.access,
        max_offset=backend.max_file_size,
        channel_sequence=sequence,
        file=file,
        lacks_archive=not info.attributes & _ARCHIVE_OR_FOLDER,
    )
    opened.use_handle(handle)
    if isinstance(lease, contexts.LeaseV2) and lease.flags & contexts.LeaseFlags.PARENT_LEASE_KEY_SET:
        opened.parent_lease_key = lease.parent_lease_key
    file.opens.append(opened)
    server.opens.add(opened)
    try:
        level, granted_lease = _NO_OPLOCK, None
        if asked.oplock != _NO_OPLOCK:
            level, granted_lease = sharing.grant(
                server, opened, connection.client_guid, connection.dialect, asked.oplock, lease
            )
        if known is not None and granted_lease is None:
            file_id = _FILE_ID.pack(*opened.file_id)
            return b"".join((known.start, bytes((level,)), known.middle, file_id, known.end))
        shown = presentation.shown(opened, info, on_disk)
        answers = describing.answers_to(wishes, opened, shown, backend) if wishes else []
        fixed = describing.fixed_part(opened, shown, level, _OPENED, connection.dialect)
        if granted_lease is not None:
            return pack_response(fixed, [*answers, granted_lease])
        body = pack_response(fixed, answers)
    except BaseException:
        server.opens.close(opened)
        raise
    if backend.keeps(found) and not (path and caller.needs_more(found)):
        _known[key] = _Known(
            found,
            asked,
            wishes,
            circumstances,
            maximal,
            granted,
            body[:_LEVEL_AT],
            body[_LEVEL_AT + 1 : _FILE_ID_AT],
            body[_FILE_ID_AT + _FILE_ID.size :],
        )
        if len(_known) > _MOST_KNOWN:
            _known.popitem(last=False)
    return body


_WHOLE = whole(Command.CREATE, handler.create)
SHORT_FORMS[Command.CREATE] = _WHOLE._replace(look=look)
