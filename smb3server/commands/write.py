"""WRITE (MS-SMB2 3.3.5.13, MS-FSA 2.1.5.3)."""

from __future__ import annotations

import logging

from smb3server.access import required
from smb3server.commands.fsctl import pipe_turns
from smb3server.dispatch.data_channel import RemoteMemory, fail, remote_buffers
from smb3server.dispatch.lookup import find_open
from smb3server.dispatch.request import Interim, Pending, Response, TreeRequest, handles
from smb3server.dispatch.stable_storage import start_flush
from smb3server.files import write_times
from smb3server.state.change_reports import report_write
from smb3server.state.objects import Open
from smb3server.wire.create import Access, CreateOptions
from smb3server.wire.fields import tail
from smb3server.wire.header import Command
from smb3server.wire.read_write import (
    TAIL,
    WRITE_RESPONSE,
    WriteFlags,
    WriteRequest,
    WriteResponse,
    parse_write_request,
)
from smb3server.wire.status import NtStatus, StatusError

log = logging.getLogger(__name__)

_WRITES = required.WRITE
_WRITE_DATA = int(Access.WRITE_DATA)
_MAX_OFFSET = (1 << 63) - 1
_THROUGH = int(WriteFlags.WRITE_THROUGH)
_OPTION_THROUGH = int(CreateOptions.WRITE_THROUGH)


@handles(Command.WRITE, TreeRequest)
def write(request: TreeRequest) -> Response | Pending:
    """Checks in the order of the section: sizes, open, channel, access, then the file's own."""
    record = parse_write_request(request.message)
    connection = request.connection
    if record.length > connection.max_write_size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    remote = remote_buffers(request, record, record.remaining_bytes)
    if remote is None:
        if record.data_offset > 0x100:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        data = tail(request.message, record.data_offset, record.length, TAIL)
        found = find_open(request, (record.persistent, record.volatile))
        if found.pipe is not None:
            return _write_pipe(request, found, data)
        connection.largest_inline = max(connection.largest_inline, record.length)
        _check(found, record.offset, len(data))
        return _store(request, record, found, data)
    try:
        return _write_from_peer(request, record, remote)
    except Exception as error:
        return remote.failure(request, error)


def _write_pipe(request: TreeRequest, found: Open, data: memoryview) -> Response | Pending:
    if found.pipe is None or not found.granted_access & _WRITES:
        raise StatusError(NtStatus.ACCESS_DENIED)
    written = Response([WRITE_RESPONSE.pack(WriteResponse(byte_count=len(data)))])
    return pipe_turns.write(request, found, bytes(data), lambda: written)


def _check(found: Open, offset: int, length: int) -> None:
    if found.is_directory:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    if not found.granted_access & _WRITES:
        raise StatusError(NtStatus.ACCESS_DENIED)
    if length and not found.granted_access & _WRITE_DATA and found.handle is not None:
        required.check_append(found.granted_access, offset, found.handle.info().end_of_file)
    file = found.file
    if file is None or offset + length > (found.max_offset if length else _MAX_OFFSET):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if file.locks.locks and file.locks.denies_write(found, offset, length):
        raise StatusError(NtStatus.FILE_LOCK_CONFLICT)


def _store(
    request: TreeRequest, record: WriteRequest, found: Open, data: memoryview, remote: RemoteMemory | None = None
) -> Response | Pending:
    """Into the page cache at once; to stable storage before the reply if that was asked for."""
    file, handle = found.file, found.handle
    if file is None or handle is None:
        raise StatusError(NtStatus.FILE_CLOSED)
    count = len(data)
    response = Response(
        [WRITE_RESPONSE.pack(WriteResponse(byte_count=count))],
        invalidate=remote.invalidate if remote is not None else None,
    )
    if count == 0:
        return response
    if file.caching.holders:
        file.data_changes(found.caching)
    times = file.write_time
    if (times is None or not times.dirty) and not file.stream:
        write_times.of(file).writing(handle)
    handle.write_from([data], record.offset)
    if not found.wrote:
        report_write(found)
    found.position = record.offset + count
    if not (record.flags & _THROUGH or found.create_options & _OPTION_THROUGH or found.write_through):
        return response
    pending = request.pending or request.pend(Interim.DELAYED)
    start_flush(
        request,
        found,
        lambda error: pending.complete(response) if error is None else fail(pending, error, remote),
    )
    return pending


def _write_from_peer(request: TreeRequest, record: WriteRequest, remote: RemoteMemory) -> Response | Pending:
    """Fetch RemainingBytes by RDMA Read, then write. Data in the message, too, is INVALID_PARAMETER."""
    length = record.remaining_bytes
    if record.length or record.data_offset or length > request.connection.max_write_size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    found = find_open(request, (record.persistent, record.volatile))
    if found.pipe is not None:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    _check(found, record.offset, length)
    if length == 0:
        return _store(request, record, found, request.message[:0], remote)
    buffer = request.connection.transport.acquire(length)
    pending = request.pend(Interim.DELAYED)
    found.begin_io()
    caching = found.file.caching if found.file is not None else None
    if caching is not None:
        caching.arrives(pending)

    def done(error: BaseException | None) -> None:
        found.end_io()
        try:
            if error is not None:
                raise StatusError(NtStatus.CONNECTION_DISCONNECTED)
            if pending.done:
                return
            # Locks may have come, the open and the share may have gone while the data was on its way.
            if request.server.has_lost(found.tree.share):
                raise StatusError(NtStatus.NETWORK_NAME_DELETED)
            _check(found, record.offset, length)
            result = _store(request, record, found, buffer.view, remote)
            if isinstance(result, Response):
                pending.complete(result)
        except Exception as failure:
            fail(pending, failure, remote)
        finally:
            buffer.release()
            if caching is not None:
                caching.arrived(pending)

    try:
        remote.rdma.read_from_peer(remote.buffers, [buffer.view], done)
    except ValueError:
        found.end_io()
        buffer.release()
        if caching is not None:
            caching.arrived(pending)
        request.pending = None
        raise StatusError(NtStatus.INVALID_PARAMETER) from None
    return pending
