"""QUERY_INFO. [MS-SMB2 3.3.5.20]"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial

from smb3server.access import required
from smb3server.access.of_handle import query_security
from smb3server.backends.base import StreamInfo
from smb3server.commands.apple import nfs_aces
from smb3server.commands.info import quotas
from smb3server.commands.info.file_levels import FILE_LEVELS, PIPE_LEVELS, encode_stream_list
from smb3server.commands.info.fs_levels import FS_LEVELS
from smb3server.dispatch.long_work import run_steps
from smb3server.dispatch.lookup import find_open, fresh_of
from smb3server.dispatch.request import Pending, Response, TreeRequest, handles
from smb3server.dispatch.short_forms import SHORT_FORMS, whole
from smb3server.state.objects import Open
from smb3server.wire.create import Access
from smb3server.wire.file_info import EaEntry, FileInfoClass, decode_get_eas, encode_eas
from smb3server.wire.fs_info import FsInfoClass
from smb3server.wire.header import Command
from smb3server.wire.query_info import (
    InfoType,
    QueryInfoFlags,
    QueryInfoRequest,
    SecurityInformation,
    build_output_response,
    parse_query_info_request,
)
from smb3server.wire.status import NtStatus, StatusError

_DOCUMENTED = frozenset(FileInfoClass)
_FS_DOCUMENTED = frozenset(FsInfoClass)
_FULL_EA, _STREAM = int(FileInfoClass.FULL_EA), int(FileInfoClass.STREAM)
_SIZE = struct.Struct("<I")

Query = Callable[[TreeRequest, Open, QueryInfoRequest, memoryview], Response | Pending]


@handles(Command.QUERY_INFO, TreeRequest)
def query_info(request: TreeRequest) -> Response | Pending:
    """Return information about a file, its volume or its security. [MS-SMB2 3.3.5.20]"""
    body, data = parse_query_info_request(request.message)
    opened = find_open(request, body.file_id)
    if body.output_buffer_length > request.connection.max_transact_size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    by_type = _BY_TYPE.get(body.info_type)
    if by_type is None:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return by_type(request, opened, body, data)


def _reply(output: bytes, limit: int) -> Response:
    """Return the response with ``output``, truncated to ``limit`` bytes with BUFFER_OVERFLOW if it is longer."""
    if len(output) > limit:
        output = output[:limit]
        return Response([build_output_response(limit), output], NtStatus.BUFFER_OVERFLOW)
    return Response([build_output_response(len(output)), output])


def _query_file(request: TreeRequest, opened: Open, body: QueryInfoRequest, data: memoryview) -> Response | Pending:
    """Return information about a file or a pipe. [MS-SMB2 3.3.5.20.1]"""
    info_class = body.info_class
    if opened.pipe is not None:
        level = PIPE_LEVELS.get(info_class)
    elif info_class == _FULL_EA:
        return _query_ea(opened, body, data)
    else:
        level = FILE_LEVELS.get(info_class)
    if level is None:
        known = info_class in _DOCUMENTED
        raise StatusError(NtStatus.NOT_SUPPORTED if known else NtStatus.INVALID_INFO_CLASS)
    if request.connection.dialect < level.minimum_dialect:
        raise StatusError(NtStatus.NOT_SUPPORTED)
    if level.access & ~opened.granted_access:
        raise StatusError(NtStatus.ACCESS_DENIED)
    if body.output_buffer_length < level.minimum_size:
        raise StatusError(NtStatus.INFO_LENGTH_MISMATCH)
    if info_class == _STREAM and opened.handle is not None:
        found: list[StreamInfo] = []
        steps = opened.handle.listing_streams(found)
        if steps is not None:
            return _list_streams(request, opened, body, steps, found)
    fresh = fresh_of(request, opened)
    response = _reply(level.encode(opened, fresh), body.output_buffer_length)
    response.fresh = fresh
    return response


def _list_streams(
    request: TreeRequest, opened: Open, body: QueryInfoRequest, steps: Iterator[None], found: list[StreamInfo]
) -> Pending:
    """Return the many streams of a file, which are listed and encoded on a worker thread. [MS-FSA 2.1.5.12.29]"""
    output: list[bytes] = []

    def work() -> Iterator[None]:
        yield from steps
        output.append(encode_stream_list(found))
        yield

    return run_steps(request, opened, work(), lambda: _reply(output[0], body.output_buffer_length))


def _query_ea(opened: Open, body: QueryInfoRequest, data: memoryview) -> Response:
    """Return extended attributes: all, the listed ones, or the next ones of a scan. [MS-FSA 2.1.5.12.14]"""
    required.check(opened.granted_access, int(Access.READ_EA))
    if opened.handle is None:
        raise StatusError(NtStatus.NOT_SUPPORTED)
    present = opened.handle.eas()
    start = 0
    if data:
        values = {ea.name.upper(): ea for ea in present}
        entries = [values.get(name.upper(), EaEntry(name, b"")) for name in decode_get_eas(data)]
    else:
        entries = present
        if body.flags & QueryInfoFlags.INDEX_SPECIFIED:
            start = body.additional_information
            if not 1 <= start <= len(entries):
                raise StatusError(NtStatus.NONEXISTENT_EA_ENTRY)
            start -= 1
        elif not body.flags & QueryInfoFlags.RESTART_SCAN:
            start = opened.next_ea
    if not present and not data:
        raise StatusError(NtStatus.NO_EAS_ON_FILE)
    if start >= len(entries):
        opened.next_ea = 0
        raise StatusError(NtStatus.NO_MORE_ENTRIES)
    chosen = entries[start : start + 1] if body.flags & QueryInfoFlags.RETURN_SINGLE_ENTRY else entries[start:]
    encoded = encode_eas(chosen)
    fitting = _fitting(encoded, body.output_buffer_length)
    if fitting == 0:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    if not data:
        opened.next_ea = start + fitting if start + fitting < len(entries) else 0
    if fitting < len(chosen):
        output = b"".join(encode_eas(chosen[:fitting]))
        return Response([build_output_response(len(output)), output], NtStatus.BUFFER_OVERFLOW)
    return _reply(b"".join(encoded), body.output_buffer_length)


def _fitting(parts: list[bytes], limit: int) -> int:
    """Return how many entries fit into ``limit`` bytes. The padding of the last one does not count."""
    size = 0
    for count, part in enumerate(parts):
        head = struct.unpack_from("<BH", part, 5)
        if size + 8 + head[0] + 1 + head[1] > limit:
            return count
        size += len(part)
    return len(parts)


def _query_fs(request: TreeRequest, opened: Open, body: QueryInfoRequest, data: memoryview) -> Response | Pending:
    """Return information about the volume. [MS-SMB2 3.3.5.20.2]"""
    level = FS_LEVELS.get(body.info_class)
    if level is None:
        known = body.info_class in _FS_DOCUMENTED
        raise StatusError(NtStatus.NOT_SUPPORTED if known else NtStatus.INVALID_INFO_CLASS)
    backend = opened.store
    if backend is None:
        raise StatusError(NtStatus.NOT_SUPPORTED)
    if body.output_buffer_length < level.minimum_size:
        raise StatusError(NtStatus.INFO_LENGTH_MISMATCH)
    encode = partial(level.encode, opened.tree.share, backend, opened.tree.user)
    if opened.tree.share.rules.time_machine_max_size and (steps := backend.counting_backups()) is not None:
        return run_steps(request, opened, steps, lambda: _reply(encode(), body.output_buffer_length))
    return _reply(encode(), body.output_buffer_length)


def _query_security(request: TreeRequest, opened: Open, body: QueryInfoRequest, data: memoryview) -> Response:
    """Return the security descriptor. [MS-SMB2 3.3.5.20.3]"""
    which = required.parts_of(body.additional_information)
    required.check_query_security(opened.granted_access, which)
    if opened.handle is None:
        raise StatusError(NtStatus.NOT_SUPPORTED)
    descriptor = query_security(opened.handle, which)
    if opened.tree.apple and which & SecurityInformation.DACL:
        descriptor = nfs_aces.added(descriptor, opened.handle.info())
    if len(descriptor) > body.output_buffer_length:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL, _SIZE.pack(len(descriptor)))
    return _reply(descriptor, body.output_buffer_length)


_BY_TYPE: dict[int, Query] = {
    InfoType.FILE: _query_file,
    InfoType.FILESYSTEM: _query_fs,
    InfoType.SECURITY: _query_security,
    InfoType.QUOTA: quotas.query,
}


SHORT_FORMS[Command.QUERY_INFO] = whole(Command.QUERY_INFO, query_info)
