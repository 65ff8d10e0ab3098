"""READ (MS-SMB2 3.3.5.12, MS-FSA 2.1.5.2)."""

from __future__ import annotations

import asyncio
import errno
import logging
import os

from smb3server.commands.fsctl import pipe_turns
from smb3server.dispatch.data_channel import RemoteMemory, fail, remote_buffers
from smb3server.dispatch.lookup import find_open
from smb3server.dispatch.read_size import fits_message
from smb3server.dispatch.request import Interim, Pending, Response, TreeRequest, handles
from smb3server.state.ceilings import Usage
from smb3server.state.objects import Open
from smb3server.wire.create import Access
from smb3server.wire.header import Command
from smb3server.wire.read_write import READ_DATA_OFFSET, READ_RESPONSE, ReadRequest, ReadResponse, parse_read_request
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.message_transport import PooledBuffer

log = logging.getLogger(__name__)

_READS = int(Access.READ_DATA | Access.EXECUTE)
_MAX_OFFSET = (1 << 63) - 1
LENT_FROM = 65536
"""Bytes from which a buffer counts for its user."""
_NO_DATA = b"\0"
"""A response without data still has one byte of buffer (StructureSize 17 counts it)."""


@handles(Command.READ, TreeRequest)
def read(request: TreeRequest) -> Response | Pending:
    """Checks in the order of the section: size, open, access, channel, then the file's own."""
    record = parse_read_request(request.message)
    connection = request.connection
    if record.length > connection.max_read_size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    found = find_open(request, (record.persistent, record.volatile))
    remote = remote_buffers(request, record, record.length) if found.pipe is None else None
    if (
        remote is None
        and record.length > connection.max_transact_size  # what is shorter fits in any case
        and not fits_message(connection.transport, record.length, request.encrypted)
    ):
        # Less data than asked for would be no answer: Linux leaves the rest of its pages zero.
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if found.pipe is not None:
        return pipe_turns.in_turn(request, found, lambda: _read_pipe(found, record))
    if remote is None:
        connection.largest_inline = max(connection.largest_inline, record.length)
        return _read_file(request, record, found, None)
    try:
        return _read_file(request, record, found, remote)
    except Exception as error:
        return remote.failure(request, error)


def _read_pipe(found: Open, record: ReadRequest) -> Response:
    if found.pipe is None or not found.granted_access & _READS:
        raise StatusError(NtStatus.ACCESS_DENIED)
    data, more = found.pipe.read(record.length)
    fixed = READ_RESPONSE.pack(ReadResponse(data_offset=READ_DATA_OFFSET, data_length=len(data)))
    return Response([fixed, data or _NO_DATA], status=NtStatus.BUFFER_OVERFLOW if more else NtStatus.SUCCESS)


def _read_file(
    request: TreeRequest, record: ReadRequest, found: Open, remote: RemoteMemory | None
) -> Response | Pending:
    if found.is_directory:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    if not found.granted_access & _READS:
        raise StatusError(NtStatus.ACCESS_DENIED)
    length, offset = record.length, record.offset
    file, handle = found.file, found.handle
    if file is None or handle is None or offset + length > _MAX_OFFSET:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if file.locks.locks and file.locks.denies_read(found, offset, length):
        raise StatusError(NtStatus.FILE_LOCK_CONFLICT)
    if length == 0:
        if record.minimum_count:
            raise StatusError(NtStatus.END_OF_FILE)
        return _nothing(remote)
    buffer: PooledBuffer
    if length < LENT_FROM or found.usage is None:
        buffer = request.connection.transport.acquire(length)
    else:
        server = request.server
        if not server.ceilings.may_lend(found.usage, length):
            return _read_later(request, record, found, remote, found.usage)
        # A large buffer counts for its user until it is released.
        buffer = request.connection.transport.acquire(length)
        found.usage.lent += length
        buffer.on_release = found.usage.give_back
    try:
        count = _read_cached(found, buffer.view, offset)
        if count >= 0:
            return _reply(record, found, buffer, count, remote)
    except BaseException:
        buffer.release()
        raise
    return _read_in_thread(request, record, found, buffer, remote)


def _read_later(
    request: TreeRequest, record: ReadRequest, found: Open, remote: RemoteMemory | None, usage: Usage
) -> Pending:
    """The user has as many buffers as may be: go on when one comes back, after those who waited before."""

    def cancelled() -> None:
        if again in usage.waiting:
            usage.waiting.remove(again)
        pending.fail(StatusError(NtStatus.CANCELLED))

    def again() -> None:
        try:
            pending.on_cancel = None
            if found.handle is None:
                raise StatusError(NtStatus.FILE_CLOSED)
            result = _read_file(request, record, found, remote)
        except Exception as error:
            fail(pending, error, remote)
            usage.call_next()
            return
        if isinstance(result, Response):
            pending.complete(result)

    pending = request.pending or request.pend(Interim.DELAYED)
    pending.on_cancel = cancelled
    usage.waiting.append(again)
    return pending


def _nothing(remote: RemoteMemory | None) -> Response:
    fixed = READ_RESPONSE.pack(ReadResponse(data_offset=READ_DATA_OFFSET))
    if remote is not None:
        return Response([fixed], invalidate=remote.invalidate)
    return Response([fixed, _NO_DATA])


def _read_cached(found: Open, view: memoryview, offset: int) -> int:
    """Read what is there without waiting for a disk: bytes, or -1 if a worker thread has to."""
    handle = found.handle
    if handle is None:
        raise StatusError(NtStatus.FILE_CLOSED)
    if found.descriptor is None:
        return handle.read_into([view], offset)
    try:
        count = os.preadv(found.descriptor, [view], offset, os.RWF_NOWAIT if found.may_block else 0)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return -1
        if error.errno != errno.EOPNOTSUPP or not found.may_block:
            raise
        # A file system without RWF_NOWAIT (tmpfs of older kernels): memory, or as good as.
        found.may_block = False
        count = os.preadv(found.descriptor, [view], offset)
    if count < len(view) and found.may_block and offset + count < os.fstat(found.descriptor).st_size:
        return -1
    return count


def _read_in_thread(
    request: TreeRequest, record: ReadRequest, found: Open, buffer: PooledBuffer, remote: RemoteMemory | None
) -> Pending:
    handle = found.handle
    if handle is None:
        raise StatusError(NtStatus.FILE_CLOSED)
    pending = request.pending or request.pend(Interim.DELAYED)
    found.begin_io()
    future = asyncio.get_running_loop().run_in_executor(None, handle.read_into, [buffer.view], record.offset)

    def done(future: asyncio.Future[int]) -> None:
        # Not before now may the buffer be used again, whatever became of the request.
        found.end_io()
        try:
            response = _reply(record, found, buffer, future.result(), remote)
        except Exception as error:
            buffer.release()
            fail(pending, error, remote)
            return
        pending.complete(response)

    future.add_done_callback(done)
    return pending


def _reply(record: ReadRequest, found: Open, buffer: PooledBuffer, count: int, remote: RemoteMemory | None) -> Response:
    """Answer with what was read. The response owns the buffer from here on; if this raises, the caller still does."""
    if count == 0 or count < record.minimum_count:
        raise StatusError(NtStatus.END_OF_FILE)
    found.position = record.offset + count
    data = buffer.view[:count]
    if remote is None:
        fixed = READ_RESPONSE.pack(ReadResponse(data_offset=READ_DATA_OFFSET, data_length=count))
        return Response([fixed, data], on_sent=buffer.release)
    # The response is received after the data is placed, so it need not wait.
    remote.rdma.write_to_peer(remote.buffers, [data], lambda error: buffer.release())
    fixed = READ_RESPONSE.pack(ReadResponse(data_offset=READ_DATA_OFFSET, data_remaining=count))
    # Linux 6.12: reads these 16 bytes of body and takes a 17th for the start of the next message.
    return Response([fixed], invalidate=remote.invalidate)
