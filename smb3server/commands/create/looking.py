"""Looks at a file for CREATE, one more command and CLOSE of one message, as ``dispatch.look_lane`` answers them.

An open of an existing file that nobody else has open: the same checks as in ``opening``, in their order, without what
only matters to others. [MS-FSA 2.1.5.1.2, 2.1.5.12] READ and WRITE are answered by their short forms.

The CREATE may ask about the file by create contexts: Linux sends QFid with every CREATE, Windows MxAc and QFid.
"""

from __future__ import annotations

import codecs
import functools
import struct
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from smb3server.access import decide, masks
from smb3server.access.caller import Caller
from smb3server.backends.base import Backend, Described, FileInfo, FolderNotRead, Kind, OpenRequest, Path
from smb3server.backends.names import split_plain
from smb3server.commands import close, read, write
from smb3server.commands.create import checks, describing, handler, registry
from smb3server.commands.create.contexts import NOTHING
from smb3server.commands.info import presentation, query_info
from smb3server.commands.info.file_levels import FILE_LEVELS, FileLevel
from smb3server.dispatch.chain import Fresh
from smb3server.dispatch.checks import CREDIT_SIZE
from smb3server.dispatch.errno_status import as_status_error
from smb3server.dispatch.fetch import Fetch
from smb3server.dispatch.look_lane import Look, Registered, Requests, Seen
from smb3server.dispatch.reply import error_body
from smb3server.dispatch.request import Host
from smb3server.dispatch.short_forms import Long
from smb3server.state.caller import caller_of
from smb3server.state.objects import Connection, Open, Session, TreeConnect
from smb3server.state.opens import count_data
from smb3server.state.share import ShareType
from smb3server.wire import attributes as attr
from smb3server.wire import create_contexts as contexts
from smb3server.wire.close import CLOSE_REQUEST, POSTQUERY_ATTRIB
from smb3server.wire.create import (
    CREATE_REQUEST,
    Access,
    CreateAction,
    CreateDisposition,
    CreateOptions,
    pack_response,
)
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import HEADER_SIZE, Command
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.query_info import QUERY_INFO_REQUEST, InfoType, build_output_response
from smb3server.wire.status import StatusError
from smbdirect.codec import new_record
from smbdirect.errors import DecodeError

_READS, _WRITES = int(Access.READ_DATA | Access.EXECUTE), masks.WRITES_DATA
_ACCESS = (
    int(Access.READ_ATTRIBUTES | Access.READ_EA | Access.READ_CONTROL | Access.SYNCHRONIZE)
    | int(Access.WRITE_ATTRIBUTES | Access.WRITE_EA | Access.GENERIC_READ | Access.GENERIC_WRITE)
    | _READS
    | _WRITES
)
"""The access of an ordinary look. With the right to delete, the open would stand in the way of those of streams."""
_AS_IT_IS = int(CreateOptions.OPEN_REPARSE_POINT)
_OPTIONS = _AS_IT_IS | int(
    CreateOptions.DIRECTORY_FILE
    | CreateOptions.NON_DIRECTORY_FILE
    | CreateOptions.SEQUENTIAL_ONLY
    | CreateOptions.SYNCHRONOUS_IO_NONALERT
)
_OPEN, _OPENED, _NO_OPLOCK = int(CreateDisposition.OPEN), CreateAction.OPENED, int(OplockLevel.NONE)
_FILE_INFO, _LEVELS_WITH_STEPS = int(InfoType.FILE), frozenset((int(FileInfoClass.STREAM), int(FileInfoClass.FULL_EA)))
_DIRECTORY, _DISK = Kind.DIRECTORY, ShareType.DISK
ABOUT_THE_FILE = frozenset((contexts.MAXIMAL_ACCESS, contexts.QUERY_ON_DISK_ID))
"""The create contexts of an ordinary look."""
_LONGEST_CONTEXTS = 128
"""Bytes of create contexts up to which they are decoded once for all requests that have the same."""
_NONE: Mapping[bytes, Any] = {}
_CREATE_END, _QUERY_END, _CLOSE_END = CREATE_REQUEST.end, QUERY_INFO_REQUEST.end, CLOSE_REQUEST.end
_CREATE = struct.Struct(f"{CREATE_REQUEST.size}s")
_QUERY = struct.Struct("16s")
"""A QUERY_INFO up to InputBufferLength. What follows matters only for levels that take input."""
_CLOSE = struct.Struct("<HH")
"""StructureSize and Flags."""
Moved = tuple[bytes, int]
"""Body and status of the response to the second request."""
_READ, _QUERY_INFO = int(Command.READ), int(Command.QUERY_INFO)
_FILE_ID, _FILE_ID_AT = struct.Struct("<QQ"), 64
"""The FileId and its offset in the body of a response to CREATE."""
_COMMAND = 12
"""Offset of the command in a header. Its high byte is 0."""
_ARCHIVE_OR_FOLDER = attr.ARCHIVE | attr.DIRECTORY


class _Asked(NamedTuple):
    """What the fixed parts of the three requests ask for."""

    fields: Fields
    level: FileLevel | None
    """The information level that is asked for. None: the command in between is READ or WRITE."""
    longest: int
    """Bytes of the information that the client takes."""
    after_close: int
    """Whether the response to the CLOSE has attributes."""
    name_at: int
    """Where the name is in the CREATE: in its buffer, if it ends before the message does."""
    name_end: int
    contexts_at: int
    """Where the create contexts are, in the same way. Both are 0 if there are none."""
    contexts_end: int


class Fields(NamedTuple):
    """What the fixed part of the CREATE asks for."""

    wanted: decide.Wanted
    directory: bool | None
    reads: bool
    """Whether the file's data is opened for reading."""
    writes: bool
    follow: bool
    """Whether a symbolic link is followed."""
    access: int
    share_access: int
    options: int


@functools.lru_cache(maxsize=1024)
def fields_of(
    impersonation: int, access: int, attributes: int, share_access: int, disposition: int, options: int
) -> Fields | None:
    """Return what these fields ask for. None: it is not ordinary. The answer depends on nothing else."""
    if disposition != _OPEN or access & ~_ACCESS or options & ~_OPTIONS:
        return None
    try:
        wanted, directory = checks.check_fields(impersonation, access, attributes, share_access, disposition, options)
    except StatusError:
        return None
    reads, writes = (bool(wanted.access & rights and directory is not True) for rights in (_READS, _WRITES))
    return Fields(wanted, directory, reads, writes, not options & _AS_IT_IS, access, share_access, options)


@functools.lru_cache(maxsize=256)
def contexts_of(area: bytes, dialect: int) -> Mapping[bytes, Any] | None:
    """Return what create contexts ask about the file. None if they ask for anything else, or are malformed."""
    try:
        asked = registry.decode(contexts.parse_contexts(memoryview(area)), dialect)
    except (DecodeError, StatusError):
        return None
    others = asked.others
    return others if others.keys() <= ABOUT_THE_FILE and asked == NOTHING._replace(others=others) else None


@functools.lru_cache(maxsize=1024)
def _level(kind: int, number: int, longest: int, access: int, dialect: int) -> FileLevel | None:
    """Return the information level that is asked for. None: the request is not ordinary, or fails."""
    level = FILE_LEVELS.get(number)
    if (
        kind != _FILE_INFO
        or level is None
        or number in _LEVELS_WITH_STEPS
        or not level.minimum_size <= longest <= CREDIT_SIZE
        or dialect < level.minimum_dialect
        or level.access & ~access
    ):
        return None
    return level


@functools.lru_cache(maxsize=1024)
def _asked(create: bytes, query: bytes, close_size: int, close_flags: int, dialect: int) -> _Asked | None:
    """Return what the fixed parts of the requests ask for. None if it is not an ordinary look. The answer depends on
    nothing else, and a client asks alike for all files whose names have one length.

    ``query``: that of the QUERY_INFO; b"" if the command in between is READ or WRITE."""
    size, _, oplock, impersonation, _, _, access, attributes, sharing, disposition, options, at, length, more, area = (
        CREATE_REQUEST.fields_from(create)
    )
    fields = fields_of(impersonation, access, attributes, sharing, disposition, options)
    level, longest = None, 0
    if query:
        record = QUERY_INFO_REQUEST.fields_from(query.ljust(QUERY_INFO_REQUEST.size, b"\0"))
        query_size, kind, number, longest, _, _, has_input, *_ = record
        level = _level(kind, number, longest, access, dialect)
        if level is None or has_input or query_size != 41:
            return None
    if (
        fields is None
        or oplock != _NO_OPLOCK
        or size != 57
        or close_size != 24
        or length & 1
        or (length and at < _CREATE_END)
        or (area and (area > _LONGEST_CONTEXTS or more & 7 or more < _CREATE_END))
    ):
        return None
    name = (at, at + length) if length else (0, 0)
    about = (more, more + area) if area else (0, 0)
    return _Asked(fields, level, longest, close_flags & POSTQUERY_ATTRIB, *name, *about)


def _read(requests: Requests, dialect: int) -> tuple[_Asked, str, Mapping[bytes, Any]] | None:
    """Return what the requests ask for, the name, and what the create contexts ask about the file. None if it is not an
    ordinary look."""
    create, between, closing = requests
    if len(create) < _CREATE_END or len(closing) < _CLOSE_END:
        return None
    query = b""
    if between[_COMMAND] == _QUERY_INFO:
        if len(between) < _QUERY_END:
            return None
        (query,) = _QUERY.unpack_from(between, HEADER_SIZE)
    (fixed,) = _CREATE.unpack_from(create, HEADER_SIZE)
    asked = _asked(fixed, query, *_CLOSE.unpack_from(closing, HEADER_SIZE), dialect)
    if asked is None or asked.name_end > len(create) or asked.contexts_end > len(create):
        return None
    area = bytes(create[asked.contexts_at : asked.contexts_end]) if asked.contexts_end else b""
    wishes = contexts_of(area, dialect) if area else _NONE
    if wishes is None:
        return None
    name = codecs.utf_16_le_decode(create[asked.name_at : asked.name_end], "surrogatepass", True)[0]
    return asked, name, wishes


class _Asking(NamedTuple):
    """Who asks for what."""

    host: Host
    connection: Connection
    session: Session
    tree: TreeConnect
    sequence: int
    requests: Requests
    backend: Backend
    caller: Caller
    asked: _Asked
    path: Path
    wishes: Mapping[bytes, Any]
    """What the create contexts ask about the file."""


def look(
    host: Host, connection: Connection, session: Session, tree: TreeConnect, sequence: int, requests: Requests
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
    understood = _read(requests, connection.dialect)
    if understood is None:
        return None
    asked, name, wishes = understood
    if name.startswith(("@", "$")):
        return None
    path = split_plain(name) if name else ()
    usage = session.usage
    if path is None or (usage is not None and not server.ceilings.admits(usage, len(opens.by_id), opens.limit)):
        return None
    caller = caller_of(session, tree, server.accounts)
    asking: _Asking = new_record(
        _Asking,
        (host, connection, session, tree, sequence, requests, backend, caller, asked, path, wishes),
    )
    fields = asked.fields
    backend.defer_reading = True
    try:
        decide.check_share(fields.wanted, caller.share)
        return _moving(asking) if fields.reads or fields.writes else _describing(asking)
    except (OSError, StatusError, FolderNotRead):
        # The general way finds out what the client is told.
        return None
    finally:
        backend.defer_reading = False


class _Known(NamedTuple):
    """What was answered about a file without its data. All of it follows from the other fields."""

    found: Described
    """What the store had found. It finds the same object as long as the file has not changed (``KeptAttributes``)."""
    asked: _Asked
    circumstances: tuple[Any, ...]
    """See ``_describing``."""
    create: tuple[bytes, bytes]
    """The body of the response to the CREATE before and behind the FileId."""
    information: bytes
    closing: bytes


_MOST_KNOWN = 4096
_known: OrderedDict[tuple[int, int, int], _Known] = OrderedDict()
"""By the ids of what was found, of what was asked, and of what the contexts asked. The entry keeps these alive."""


def _describing(asking: _Asking) -> Seen | None:
    """Answer a look that asks about the file alone. Raises as ``Backend.look``, and ``StatusError``."""
    host, _, _, tree, _, _, backend, caller, asked, path, wishes = asking
    fields, share = asked.fields, tree.share
    found, on_disk = backend.look(path, fields.follow, fields.directory, caller.user)
    if concerns_others(host, fields, found):
        return None
    key = id(found), id(asked), id(wishes)
    circumstances = share.hides, backend.posix, backend.volume_serial, caller, path, on_disk, wishes
    known = _known.get(key)
    if known is not None and known.circumstances == circumstances:
        before, behind = known.create
        file_id = _FILE_ID.pack(*host.server.opens.new_file_id())
        return path, b"".join((before, file_id, behind)), known.information, known.closing, 0
    opened = _open(asking, found)
    shown = presentation.shown(opened, found.info, on_disk)
    if asked.level is None:
        # It fails: the open has no right to data.
        return None
    information = _information(asking, opened, shown, on_disk)
    if information is None:
        return None
    created, closing = _created(asking, opened, shown), _closed(asked, shown)
    if backend.keeps(found) and not (path and caller.needs_more(found)):
        parts = created[:_FILE_ID_AT], created[_FILE_ID_AT + _FILE_ID.size :]
        _known[key] = _Known(found, asked, circumstances, parts, information, closing)
        if len(_known) > _MOST_KNOWN:
            _known.popitem(last=False)
    return path, created, information, closing, 0


def _moving(asking: _Asking) -> Seen | None:
    """Answer a look with the right to the file's data, which it may read or write. Raises as ``_describing``."""
    host, _, session, _, _, _, backend, caller, asked, path, _ = asking
    fields = asked.fields
    request = OpenRequest(
        path,
        read=fields.reads,
        write=fields.writes,
        directory=fields.directory,
        open_reparse_point=not fields.follow,
        user=caller.user,
    )
    handle, found, _, on_disk = backend.open_described(request)
    try:
        if handle.kind is _DIRECTORY or concerns_others(host, fields, found):
            return None
        opened = _open(asking, found)
        opened.usage, opened.file = session.usage, host.server.file_table.alone
        opened.use_handle(handle)
        shown = presentation.shown(opened, found.info, on_disk)
        after: FileInfo = shown
        if asked.level is not None:
            information = _information(asking, opened, shown, on_disk)
            moved = (information, 0) if information is not None else None
        else:
            moved = _move_data(asking, opened)
            if moved is not None and asked.after_close:
                after = presentation.shown(opened, handle.info())
    finally:
        handle.close()
    if moved is None:
        return None
    return path, _created(asking, opened, shown), moved[0], _closed(asked, after), moved[1]


def concerns_others(host: Host, fields: Fields, found: Described) -> bool:
    """Return whether somebody has the file open, or a symbolic link leads away from it."""
    info = found.info
    return (fields.follow and info.reparse_tag == attr.TAG_SYMLINK) or host.server.file_table.find(info.key) is not None


def _open(asking: _Asking, found: Described) -> Open:
    """Return the open that nobody sees. Raises ``StatusError`` if the user may not open the file so."""
    host, _, session, tree, _, _, backend, caller, asked, path, _ = asking
    fields, info = asked.fields, found.info
    is_directory = info.kind is _DIRECTORY
    maximal = caller.rights_on(backend, path, found)
    granted = decide.grant_existing(fields.wanted, maximal, 0 if is_directory or backend.posix else info.attributes)
    return Open(
        host.server.opens.new_file_id(),
        session,
        tree,
        path,
        store=backend,
        granted_access=granted,
        maximal_access=maximal,
        share_access=fields.share_access,
        desired_access=fields.access,
        create_options=fields.options,
        is_directory=is_directory,
        max_offset=backend.max_file_size,
        lacks_archive=not info.attributes & _ARCHIVE_OR_FOLDER,
    )


def _information(asking: _Asking, opened: Open, shown: FileInfo, on_disk: Path | None) -> bytes | None:
    """Return the body of the response to the QUERY_INFO. None: the client does not take all of it."""
    level = asking.asked.level
    assert level is not None
    output = level.encode(opened, new_record(Fresh, (opened, shown, on_disk)))
    return build_output_response(len(output)) + output if len(output) <= asking.asked.longest else None


def _created(asking: _Asking, opened: Open, shown: FileInfo) -> bytes:
    """Return the body of the response to the CREATE."""
    wishes = asking.wishes
    answers = describing.answers_to(wishes, opened, shown, asking.backend) if wishes else ()
    fixed = describing.fixed_part(opened, shown, _NO_OPLOCK, _OPENED, asking.connection.dialect)
    return pack_response(fixed, answers)


def _closed(asked: _Asked, shown: FileInfo) -> bytes:
    """Return the body of the response to the CLOSE."""
    return close.response(shown) if asked.after_close else close.NO_ATTRIBUTES


def _move_data(asking: _Asking, opened: Open) -> Moved | None:
    """Do a READ or WRITE as its short form does, and count its data. None: the general way has to do it."""
    _, connection, session, tree, sequence, (_, message, _), *_ = asking
    if message[_COMMAND] == _READ:
        found = read.look(connection, session, tree, sequence, message, opened)
    elif tree.share.rules.delayed_write_times:
        return None
    else:
        found = write.look(connection, session, tree, sequence, message, None, opened)
    if found is None or found[2] is not None or isinstance(answer := found[1], Fetch | Long):
        return None
    try:
        body = answer()
    except (OSError, StatusError) as error:
        # A WRITE may have changed the file before it failed: then it is too late for the general way.
        failed = as_status_error(error) if isinstance(error, OSError) else error
        return error_body(failed, connection.dialect), failed.status
    if not isinstance(body, tuple):
        return None
    count_data(opened)
    fixed, data = body
    return fixed if data is None else b"".join((fixed, data)), 0


Registered.look = Look(
    {
        Command.CREATE: handler.create,
        Command.QUERY_INFO: query_info.query_info,
        Command.READ: read.read,
        Command.WRITE: write.write,
        Command.CLOSE: close.close,
    },
    look,
)
