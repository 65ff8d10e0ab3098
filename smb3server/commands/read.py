"""READ. [MS-SMB2 3.3.5.12, MS-FSA 2.1.5.2]"""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import dataclass
from functools import partial

from smb3server.commands.fsctl import pipe
from smb3server.compression.benefit import Benefit
from smb3server.compression.transform import COMPRESSED_FROM, ON_THREAD_FROM, Agreement, Packed
from smb3server.crypto.encryption import TAG_SIZE, TRANSFORM_SIZE
from smb3server.dispatch import flow_limits, rdma_transforms
from smb3server.dispatch.chain import Frame
from smb3server.dispatch.data_channel import RemoteMemory, cancel, described, fail
from smb3server.dispatch.lookup import find_open
from smb3server.dispatch.rdma_transforms import Transform
from smb3server.dispatch.read_size import fits_message
from smb3server.dispatch.request import Interim, Pending, Response, TreeRequest, handles
from smb3server.dispatch.short_forms import (
    LARGEST_DATA,
    SHORT_FORMS,
    Body,
    Found,
    Long,
    ShortForm,
    is_paid,
    ordinary_open,
    ordinary_remote,
)
from smb3server.state.ceilings import Usage
from smb3server.state.objects import Connection, Open, Session, TreeConnect
from smb3server.wire.attributes import MAX_OFFSET
from smb3server.wire.create import Access
from smb3server.wire.header import HEADER_SIZE, Command
from smb3server.wire.read_write import (
    READ_DATA_OFFSET,
    READ_REQUEST,
    READ_RESPONSE,
    TAIL,
    ReadFlags,
    ReadRequest,
    ReadResponse,
    ReadResponseFlags,
    parse_read_request,
)
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer
from smbdirect.message_transport import MessageTransport, PooledBuffer

_READS = int(Access.READ_DATA | Access.EXECUTE)
LENT_FROM = LARGEST_DATA + 1
"""Bytes from which a buffer is counted for its user. Below, data by RDMA needs no completion either."""
FILE_FROM = 65537
"""Bytes from which data is sent out of the page cache instead of being read into a buffer."""
_BEFORE_DATA = TRANSFORM_SIZE + READ_DATA_OFFSET
"""Bytes of an encrypted message in front of the data of a READ response."""
_AROUND_DATA = _BEFORE_DATA + TAG_SIZE
"""Bytes of a buffer in which such a message is encrypted, beyond the data."""
_COMPRESSED = int(ReadFlags.REQUEST_COMPRESSED)
_NO_DATA = b"\0"
"""A response without data still has one byte of buffer, which StructureSize 17 counts."""
_FIXED = READ_RESPONSE.pack_fields
_NEVER_WAIT: set[int] = set()
"""The file systems (st_dev) that have no RWF_NOWAIT."""


@handles(Command.READ, TreeRequest)
def read(request: TreeRequest) -> Response | Pending:
    """Read from a file or a pipe. The order of the checks is that of the section. [MS-SMB2 3.3.5.12]"""
    body = parse_read_request(request.message)
    connection = request.connection
    if body.length > connection.max_read_size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    opened = find_open(request, (body.persistent, body.volatile))
    remote: RemoteMemory | None = None
    if body.channel and opened.pipe is None:
        where = body.channel_info_offset, body.channel_info_length
        remote = described(connection, request.message, body.channel, *where, body.length)
    if (
        remote is None
        and body.length > connection.max_transact_size  # shorter data always fits
        and not fits_message(connection.transport, body.length, request.encrypted)
    ):
        # A short read is not possible. Linux: leaves the rest of its pages zero.
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if opened.pipe is not None:
        return pipe.read(request, opened, lambda: _read_pipe(opened, body))
    reading = FileRead(request, body, opened, remote)
    if remote is None:
        connection.largest_inline = max(connection.largest_inline, body.length)
        if body.flags & _COMPRESSED and body.length >= COMPRESSED_FROM:
            reading.compression = _worth_trying(request, opened, body.length)
        return reading.start()
    try:
        reading.transform = rdma_transforms.for_read(request)
        return reading.start()
    except Exception as error:
        return remote.failure(request, error)


def _read_pipe(opened: Open, body: ReadRequest) -> Response:
    if opened.pipe is None or not opened.granted_access & _READS:
        raise StatusError(NtStatus.ACCESS_DENIED)
    data, more = opened.pipe.read(body.length)
    fixed = READ_RESPONSE.pack(ReadResponse(data_offset=READ_DATA_OFFSET, data_length=len(data)))
    return Response([fixed, data or _NO_DATA], status=NtStatus.BUFFER_OVERFLOW if more else NtStatus.SUCCESS)


@dataclass(slots=True)
class FileRead:
    """A READ of a file. It may have to wait for a buffer, or for a worker thread that reads from the disk."""

    request: TreeRequest
    body: ReadRequest
    opened: Open
    remote: RemoteMemory | None
    """The peer's buffers for the data. None means that the data is sent in the message."""
    transform: Transform | None = None
    """What protects data that is sent to the peer's buffers."""
    compression: Agreement | None = None
    """How the data in the message is compressed. None: it is not. [MS-SMB2 3.3.5.12, Request.CompressReply]"""

    def start(self) -> Response | Pending:
        """Call ``run``, if need be after the time that the open's flow has to wait. Raises as ``run``."""
        wait = flow_limits.wait_for(self.opened, self.body.length)
        return flow_limits.later(self.request, self.opened, wait, self._run_late) if wait else self.run()

    def _run_late(self) -> Response | Pending:
        try:
            return self.run()
        except Exception as error:
            if self.remote is None:
                raise
            return self.remote.failure(self.request, error)

    def run(self) -> Response | Pending:
        """Check the request and read, without waiting if possible. Raises ``StatusError`` and ``OSError``."""
        opened, body = self.opened, self.body
        if opened.is_directory:
            raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
        if not opened.granted_access & _READS:
            raise StatusError(NtStatus.ACCESS_DENIED)
        length, offset = body.length, body.offset
        file, transport = opened.file, self.request.connection.transport
        if file is None or opened.handle is None or offset + length > MAX_OFFSET:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        if file.locks.locks and file.locks.denies_read(opened, offset, length):
            raise StatusError(NtStatus.FILE_LOCK_CONFLICT)
        if length == 0:
            return self._nothing()
        late = opened.handle.queue is not None
        if (
            length >= FILE_FROM
            and self.remote is None
            and self.compression is None
            and not late
            and opened.descriptor is not None
            and self.request.host.may_send_file(self.request)
        ):
            response = _out_of_file(opened, offset, length, body.minimum_count)
            if response is not None:
                return response
        usage = opened.usage if length >= LENT_FROM else None
        buffer = _lend(transport, usage, length + _AROUND_DATA if self._in_frame else length)
        if buffer is None:
            assert usage is not None
            return self._wait_for_buffer(usage)
        try:
            count = -1 if late else _read_cached(opened, self._place(buffer), offset)
            if count >= 0:
                return self._reply(buffer, count)
        except BaseException:
            buffer.release()
            raise
        return self._read_in_thread(buffer)

    def _nothing(self) -> Response:
        """Return the response to a READ of no bytes."""
        if self.body.minimum_count:
            raise StatusError(NtStatus.END_OF_FILE)
        fixed = READ_RESPONSE.pack(ReadResponse(data_offset=READ_DATA_OFFSET))
        return Response([fixed, _NO_DATA])

    @property
    def _in_frame(self) -> bool:
        """Whether the buffer has room around the data, so that the message can be encrypted in it."""
        return self.request.encrypted and self.remote is None

    def _place(self, buffer: PooledBuffer) -> memoryview:
        """Return the part of the buffer that is for the data."""
        return buffer.view[_BEFORE_DATA:-TAG_SIZE] if self._in_frame else buffer.view

    def _reply(self, buffer: PooledBuffer, count: int) -> Response | Pending:
        """Return the response with ``count`` bytes of ``buffer``, or what waits for it. That owns ``buffer`` then. If
        this raises an exception, the caller still owns it."""
        body, remote = self.body, self.remote
        if count == 0 or count < body.minimum_count:
            raise StatusError(NtStatus.END_OF_FILE)
        self.opened.position = body.offset + count
        self.opened.bytes_read += count
        data = self._place(buffer)[:count]
        if remote is None:
            frame = Frame(buffer.view, _BEFORE_DATA) if self._in_frame else None
            fixed = _FIXED(17, READ_DATA_OFFSET, 0, count, 0, 0)
            response = Response([fixed, data], on_sent=buffer.release, frame=frame)
            return response if self.compression is None else self._compress(self.compression, response, data)
        if self.transform is not None:
            return self._send_protected(remote, self.transform, buffer, data)
        remote.rdma.write_to_peer(remote.buffers, [data], lambda error: buffer.release())
        return Response([_fixed_for_peer(count)], invalidate=remote.invalidate)

    def _compress(self, compression: Agreement, response: Response, data: memoryview) -> Response | Pending:
        """Compress the data of a response, on a worker thread if that takes long, or leave it to the message that has
        other responses as well."""
        chain = self.request.chain
        if chain.offset >= 0 or chain.replies:
            response.compress = partial(self._pack, compression)
            return response
        if len(data) < ON_THREAD_FROM:
            response.packed = self._pack(compression, data)
            return response
        pending = self._pend()

        def packed(future: asyncio.Future[Packed | None]) -> None:
            try:
                response.packed = self._judged(future.result(), len(data))
                self.request.check_fence()
            except Exception as error:
                if response.on_sent is not None:
                    response.on_sent()
                fail(pending, error, None)
                return
            # If it was cancelled meanwhile, this gives the buffer back.
            pending.complete(response)

        future = self.request.connection.loop.run_in_executor(None, compression.pack, data)
        future.add_done_callback(packed)
        return pending

    def _pack(self, compression: Agreement, data: Buffer) -> Packed | None:
        return self._judged(compression.pack(data), len(data))

    def _judged(self, packed: Packed | None, length: int) -> Packed | None:
        """Note whether compressing the open's data pays, and return what it gave."""
        if self.opened.benefit is not None:
            self.opened.benefit.judge(packed is not None, length)
        return packed

    def _send_protected(
        self, remote: RemoteMemory, transform: Transform, buffer: PooledBuffer, data: memoryview
    ) -> Pending:
        """Encrypt or sign data, send it, and answer with what the client needs to check it. [MS-SMB2 3.3.5.12]"""
        pending = self._pend()

        def protected(outcome: bytes | Exception) -> None:
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                if pending.done:
                    buffer.release()
                    return
                self.request.check_fence()
                remote.rdma.write_to_peer(remote.buffers, [data], lambda error: buffer.release())
            except Exception as error:
                buffer.release()
                fail(pending, error, remote)
                return
            count = len(data)
            transform.moves(self.request.connection, count)
            fixed = _FIXED(17, READ_DATA_OFFSET, 0, len(outcome), count, ReadResponseFlags.RDMA_TRANSFORM)
            pending.complete(Response([fixed, outcome], invalidate=remote.invalidate))

        transform.apply(self.request.connection, data, protected)
        return pending

    # Waiting for a buffer

    def _wait_for_buffer(self, usage: Usage) -> Pending:
        """Wait for the release of a buffer, after earlier requests, as the user has as many as allowed."""
        pending = self.request.pending or self.request.pend(Interim.DELAYED)
        pending.on_cancel = self._cancelled
        usage.waiting.append(self._again)
        return pending

    def _cancelled(self) -> None:
        usage, pending = self.opened.usage, self.request.pending
        assert usage is not None and pending is not None
        if self._again in usage.waiting:
            usage.waiting.remove(self._again)
        pending.fail(StatusError(NtStatus.CANCELLED))

    def _again(self) -> None:
        usage, pending = self.opened.usage, self.request.pending
        assert usage is not None and pending is not None
        try:
            pending.on_cancel = None
            if self.opened.handle is None:
                raise StatusError(NtStatus.FILE_CLOSED)
            self.request.check_fence()
            result = self.run()
        except Exception as error:
            fail(pending, error, self.remote)
            usage.call_next()
            return
        if isinstance(result, Response):
            pending.complete(result)

    # Waiting for a disk

    def _pend(self) -> Pending:
        """Wait for a worker thread. CANCEL is answered at once, and what the thread does is dropped."""
        pending = self.request.pending or self.request.pend(Interim.DELAYED)
        pending.on_cancel = partial(cancel, pending, self.remote)
        return pending

    def _read_in_thread(self, buffer: PooledBuffer) -> Pending:
        opened, handle = self.opened, self.opened.handle
        if handle is None:
            raise StatusError(NtStatus.FILE_CLOSED)
        pending = self._pend()
        opened.begin_io()
        work = partial(handle.read_into, [self._place(buffer)], self.body.offset)
        if handle.queue is not None:
            future = handle.queue.helped(work)
        else:
            future = asyncio.get_running_loop().run_in_executor(None, work)
        future.add_done_callback(lambda future: self._was_read(future, buffer, pending))
        return pending

    def _was_read(self, future: asyncio.Future[int], buffer: PooledBuffer, pending: Pending) -> None:
        """Answer after the worker has read. ``buffer`` must not be released earlier, even if the request is
        cancelled. The peer's memory must not be written to if it is."""
        self.opened.end_io()
        try:
            count = future.result()
            if pending.done:
                buffer.release()
                return
            self.request.check_fence()
            response = self._reply(buffer, count)
        except Exception as error:
            buffer.release()
            fail(pending, error, self.remote)
            return
        if isinstance(response, Response):
            pending.complete(response)


def _worth_trying(request: TreeRequest, opened: Open, length: int) -> Agreement | None:
    """Return how to compress the data of a READ whose client asks for it. None: it is sent as it is, as compression was
    not negotiated or has not paid lately, or it is long and one of several in a message."""
    chain, compression = request.chain, request.connection.compression
    if compression is None or (length >= ON_THREAD_FROM and (chain.offset >= 0 or chain.replies)):
        return None
    if opened.benefit is None:
        opened.benefit = Benefit()
    return compression if opened.benefit.tries(length) else None


def _fixed_for_peer(count: int) -> bytes:
    """Return the response to a READ by RDMA. The peer gets it after the data, and need not wait for that."""
    # Linux 6.12: reads these 16 bytes of body and takes a 17th for the start of the next message.
    return _FIXED(17, READ_DATA_OFFSET, 0, 0, count, 0)


def _out_of_file(opened: Open, offset: int, length: int, minimum: int) -> Response | None:
    """Return a response whose data is sent out of the page cache. None if it has to be read into a buffer."""
    data = opened.handle.cached(offset, length) if opened.handle is not None else None
    if data is None:
        return None
    if data.length < minimum:
        raise StatusError(NtStatus.END_OF_FILE)
    opened.position = offset + data.length
    opened.bytes_read += data.length
    opened.begin_io()
    return Response([_FIXED(17, READ_DATA_OFFSET, 0, data.length, 0, 0)], on_sent=opened.end_io, data=data)


def _lend(transport: MessageTransport, usage: Usage | None, size: int) -> PooledBuffer | None:
    """Return a buffer that is counted for the user until it is released. None if the user has as many as allowed.

    ``usage``: the user's; None if the buffer is too small to be counted."""
    if usage is None:
        return transport.acquire(size)
    if not usage.may_lend(size):
        return None
    buffer = transport.acquire(size)
    usage.lent += size
    buffer.on_release = usage.give_back
    return buffer


def _read_cached(opened: Open, view: memoryview, offset: int) -> int:
    """Read without waiting for a disk. Return the number of bytes, or -1 if a worker thread has to read."""
    handle = opened.handle
    if handle is None:
        raise StatusError(NtStatus.FILE_CLOSED)
    if opened.descriptor is None:
        if opened.virtual_disk is not None or opened.flow is not None:
            return -1
        return handle.read_into([view], offset)
    if opened.may_block and handle.key[0] in _NEVER_WAIT:
        opened.may_block = False
    try:
        count = os.preadv(opened.descriptor, [view], offset, os.RWF_NOWAIT if opened.may_block else 0)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return -1
        if error.errno != errno.EOPNOTSUPP or not opened.may_block:
            raise
        # A file system without RWF_NOWAIT (tmpfs of older kernels) is in memory, or almost as fast.
        opened.may_block = False
        _NEVER_WAIT.add(handle.key[0])
        count = os.preadv(opened.descriptor, [view], offset)
    if count < len(view) and opened.may_block and offset + count < os.fstat(opened.descriptor).st_size:
        return -1
    return count


# The fast lane


def look(
    connection: Connection,
    session: Session,
    tree: TreeConnect | None,
    sequence: int,
    message: memoryview,
    opened: Open | None = None,
) -> Found | None:
    """Return what answers a READ that ``read`` would not refuse: a few kilobytes inline, or any length by RDMA.

    ``opened``: the open that the message is related to. None: the message names it."""
    if len(message) < TAIL:
        return None
    size, _, flags, length, offset, persistent, volatile, minimum, channel, _, info_offset, info_length = (
        READ_REQUEST.fields_from(message, HEADER_SIZE)
    )
    if size != 49 or not 0 < length <= connection.max_read_size or offset + length > MAX_OFFSET:
        return None
    if not channel and (
        (length > LARGEST_DATA and (opened is not None or not is_paid(connection, message, length)))
        or (length > connection.max_transact_size and not fits_message(connection.transport, length, True))
        or (flags & _COMPRESSED and connection.compression is not None)
    ):
        return None
    if opened is None:
        opened = ordinary_open(session, tree, sequence, persistent, volatile)
    if opened is None or opened.descriptor is None or opened.is_directory or not opened.granted_access & _READS:
        return None
    file = opened.file
    if file is None or (file.locks.locks and file.locks.denies_read(opened, offset, length)):
        return None
    if not channel:
        if length > LARGEST_DATA:
            return opened, Long(partial(_read_long, connection, opened, offset, length, minimum)), None
        return opened, partial(_read_now, connection, opened, offset, length, minimum), None
    remote = ordinary_remote(connection, message, channel, info_offset, info_length, length)
    if remote is None:
        return None
    usage = opened.usage if length >= LENT_FROM else None
    if usage is not None and not usage.may_lend(length):
        return None
    return opened, partial(_read_to_peer, connection, opened, remote, usage, offset, length, minimum), remote


def _read_now(connection: Connection, opened: Open, offset: int, length: int, minimum: int) -> Body | None:
    """Return the response, or None if a disk has to be waited for. Raises ``StatusError`` and ``OSError``."""
    connection.largest_inline = max(connection.largest_inline, length)
    data: Buffer | None
    if opened.may_block or opened.descriptor is None:
        data = _read_if_cached(opened, length, offset)
        if data is None:
            return None
    else:
        data = os.pread(opened.descriptor, length, offset)
    count = len(data)
    if count == 0 or count < minimum:
        raise StatusError(NtStatus.END_OF_FILE)
    opened.position = offset + count
    opened.bytes_read += count
    return _FIXED(17, READ_DATA_OFFSET, 0, count, 0, 0), data


def _read_if_cached(opened: Open, length: int, offset: int) -> Buffer | None:
    """Return the bytes read, or None if a disk has to be waited for."""
    view = memoryview(bytearray(length))
    count = _read_cached(opened, view, offset)
    if count < 0:
        return None
    # What is short is copied: an unsent answer takes no more memory than it counts for.
    return view if count == length else bytes(view[:count])


def _read_long(
    connection: Connection, opened: Open, offset: int, length: int, minimum: int, sealed: bool, signed: bool
) -> Response | None:
    """Return the response, or None if a disk or a buffer has to be waited for. Raises ``StatusError`` and
    ``OSError``."""
    connection.largest_inline = max(connection.largest_inline, length)
    transport = connection.transport
    if not sealed and not signed and transport.takes_file:
        response = _out_of_file(opened, offset, length, minimum)
        if response is not None:
            return response
    # The rest of the message goes in front of the data: one call protects it, and it is one piece to send.
    before = _BEFORE_DATA if sealed else READ_DATA_OFFSET
    buffer = _lend(transport, opened.usage, before + length + TAG_SIZE if sealed else before + length)
    if buffer is None:
        return None
    view, sent = buffer.view, False
    place = view[before : before + length]
    try:
        count = _read_cached(opened, place, offset)
        if count < 0:
            return None
        if count == 0 or count < minimum:
            raise StatusError(NtStatus.END_OF_FILE)
        sent = True
    finally:
        if not sent:
            buffer.release()
    opened.position = offset + count
    opened.bytes_read += count
    fixed = _FIXED(17, READ_DATA_OFFSET, 0, count, 0, 0)
    return Response((fixed, place[:count]), on_sent=buffer.release, frame=Frame(view, before))


def _read_to_peer(
    connection: Connection,
    opened: Open,
    remote: RemoteMemory,
    usage: Usage | None,
    offset: int,
    length: int,
    minimum: int,
) -> Body | None:
    """Send the data by RDMA and return the response, or None if a disk has to be waited for. Raises ``StatusError`` and
    ``OSError``."""
    if usage is None and remote.rdma.takes_any_memory:
        # Nobody has to know when it is sent, which saves a completion.
        data: Buffer | None
        if opened.may_block or opened.descriptor is None:
            data = _read_if_cached(opened, length, offset)
            if data is None:
                return None
        else:
            data = os.pread(opened.descriptor, length, offset)
        count = len(data)
        if count == 0 or count < minimum:
            raise StatusError(NtStatus.END_OF_FILE)
        remote.rdma.write_to_peer(remote.buffers, (data,), None)
        opened.position = offset + count
        opened.bytes_read += count
        return _fixed_for_peer(count), None
    buffer = _lend(connection.transport, usage, length)
    if buffer is None:
        return None
    sent = False
    try:
        count = _read_cached(opened, buffer.view, offset)
        if count < 0:
            return None
        if count == 0 or count < minimum:
            raise StatusError(NtStatus.END_OF_FILE)
        remote.rdma.write_to_peer(remote.buffers, [buffer.view[:count]], lambda error: buffer.release())
        sent = True
    finally:
        if not sent:
            buffer.release()
    opened.position = offset + count
    opened.bytes_read += count
    return _fixed_for_peer(count), None


SHORT_FORMS[Command.READ] = ShortForm(read, look)
