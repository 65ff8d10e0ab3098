"""WRITE. [MS-SMB2 3.3.5.13, MS-FSA 2.1.5.3]"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from smb3server.access import required
from smb3server.backends.base import Handle
from smb3server.commands.fsctl import pipe
from smb3server.dispatch import flow_limits, rdma_transforms
from smb3server.dispatch.data_channel import RemoteMemory, cancel, fail, memory_for_write
from smb3server.dispatch.fetch import Fetch, Fetching
from smb3server.dispatch.in_turn import continue_in_turn
from smb3server.dispatch.lookup import find_open
from smb3server.dispatch.rdma_transforms import Transform
from smb3server.dispatch.request import Interim, Pending, Request, Response, TreeRequest, handles
from smb3server.dispatch.short_forms import (
    LARGEST_DATA,
    SHORT_FORMS,
    Body,
    Found,
    ShortForm,
    is_paid,
    ordinary_open,
    ordinary_remote,
)
from smb3server.dispatch.stable_storage import start_flush
from smb3server.files import write_times
from smb3server.files.caching import Caching
from smb3server.files.file import File
from smb3server.state.change_reports import report_write, somebody_listens
from smb3server.state.objects import Connection, Open, Session, TreeConnect
from smb3server.wire.attributes import MAX_OFFSET
from smb3server.wire.create import Access, CreateOptions
from smb3server.wire.fields import tail
from smb3server.wire.header import HEADER, HEADER_SIZE, PROTOCOL_ID, Command, HeaderFlags
from smb3server.wire.read_write import (
    TAIL,
    WRITE_REQUEST,
    WRITE_RESPONSE,
    WriteFlags,
    WriteRequest,
    WriteResponse,
    parse_write_request,
)
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import new_record
from smbdirect.message_transport import Payload, PooledBuffer

_WRITES = required.WRITE
_WRITE_DATA = int(Access.WRITE_DATA)
_AT_END = 0xFFFFFFFFFFFFFFFF
"""The offset that stands for the end of file, for POSIX opens that may only append."""
_THROUGH = int(WriteFlags.WRITE_THROUGH)
_OPTION_THROUGH = int(CreateOptions.WRITE_THROUGH)


@handles(Command.WRITE, TreeRequest)
def write(request: TreeRequest) -> Response | Pending:
    """Write to a file or a pipe. The order of the checks is that of the section. [MS-SMB2 3.3.5.13]"""
    body = parse_write_request(request.message)
    connection = request.connection
    if body.length > connection.max_write_size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    remote = memory_for_write(request, body) if body.channel else None
    if remote is None:
        if body.data_offset > 0x100:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        data = tail(request.message, body.data_offset, body.length, TAIL)
        opened = find_open(request, (body.persistent, body.volatile))
        if opened.pipe is not None:
            return _write_pipe(request, opened, data)
        connection.largest_inline = max(connection.largest_inline, body.length)
        _check(opened, body.offset, len(data))
        wait = flow_limits.wait_for(opened, len(data))
        if wait:
            kept = memoryview(bytes(data))
            return flow_limits.later(request, opened, wait, lambda: _check_and_store(request, body, opened, kept))
        return _store(request, body, opened, data)
    try:
        return _write_from_peer(request, body, remote)
    except Exception as error:
        return remote.failure(request, error)


def _check_and_store(request: TreeRequest, body: WriteRequest, opened: Open, data: memoryview) -> Response | Pending:
    """Write after a wait, in which locks may have been taken."""
    _check(opened, body.offset, len(data))
    return _store(request, body, opened, data)


def _write_pipe(request: TreeRequest, opened: Open, data: memoryview) -> Response | Pending:
    if opened.pipe is None or not opened.granted_access & _WRITES:
        raise StatusError(NtStatus.ACCESS_DENIED)
    written = Response([WRITE_RESPONSE.pack(WriteResponse(byte_count=len(data)))])
    return pipe.write(request, opened, bytes(data), lambda: written)


def _check(opened: Open, offset: int, length: int) -> None:
    if opened.is_directory:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    if not opened.granted_access & _WRITES:
        past = opened.store is not None and opened.store.is_snapshot
        raise StatusError(NtStatus.MEDIA_WRITE_PROTECTED if past else NtStatus.ACCESS_DENIED)
    if not opened.granted_access & _WRITE_DATA and opened.posix:
        offset = _end_for(opened, offset)
    file = opened.file
    if file is None or offset + length > (opened.max_offset if length else MAX_OFFSET):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if file.locks.locks and file.locks.denies_write(opened, offset, length):
        raise StatusError(NtStatus.FILE_LOCK_CONFLICT)


def _end_for(opened: Open, offset: int) -> int:
    """Return where a POSIX open that may only append writes: at the end of file, as with O_APPEND.

    Raises INVALID_PARAMETER for any other offset, as Samba does."""
    if offset != _AT_END or opened.handle is None:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return opened.handle.info().end_of_file


def _store(
    request: Request,
    body: WriteRequest,
    opened: Open,
    data: memoryview,
    remote: RemoteMemory | None = None,
    is_written: bool = False,
) -> Response | Pending:
    """Write data to the page cache, unless that is done already, and to stable storage before the reply if that is
    requested."""
    file, handle = opened.file, opened.handle
    if file is None or handle is None:
        raise StatusError(NtStatus.FILE_CLOSED)
    count = len(data)
    response = Response(
        [WRITE_RESPONSE.pack_fields(17, 0, count, 0, 0, 0)],
        invalidate=remote.invalidate if remote is not None else None,
    )
    if count == 0:
        return response
    if file.caching.holders:
        file.data_changes(opened.caching)
    offset = body.offset
    if not opened.granted_access & _WRITE_DATA and opened.posix:
        offset = _end_for(opened, offset)
    write_times.changing(opened)
    if not is_written:
        disk = opened.virtual_disk
        if disk is not None and not disk.writes_at_once(offset, count):
            return _store_slowly(request, body, opened, memoryview(bytes(data)), remote)
        handle.write_from([data], offset)
    if not opened.wrote:
        report_write(opened)
    opened.position = offset + count
    opened.bytes_written += count
    if not (body.flags & _THROUGH or opened.create_options & _OPTION_THROUGH or opened.write_through):
        return response
    pending = request.pending or request.pend(Interim.DELAYED)
    start_flush(
        request, opened, lambda error: pending.complete(response) if error is None else fail(pending, error, remote)
    )
    return pending


def _store_slowly(
    request: Request, body: WriteRequest, opened: Open, data: memoryview, remote: RemoteMemory | None
) -> Pending:
    """Write to a virtual disk on a worker thread, as its metadata changes, and that waits for stable storage."""
    handle = opened.handle
    if handle is None:
        raise StatusError(NtStatus.FILE_CLOSED)
    pending = request.pending or request.pend(Interim.DELAYED)
    opened.begin_io()

    def written(error: Exception | None) -> None:
        opened.end_io()
        try:
            if error is not None:
                raise error
            request.check_fence()
            result = _store(request, body, opened, data, remote, is_written=True)
        except Exception as failure:
            fail(pending, failure, remote)
            return
        if isinstance(result, Response):
            pending.complete(result)

    def write() -> None:
        handle.write_from([data], body.offset)

    request.server.flushes.add(write, written)
    return pending


def _write_from_peer(request: TreeRequest, body: WriteRequest, remote: RemoteMemory) -> Response | Pending:
    """Fetch RemainingBytes by RDMA Read, then write. Raises ``StatusError``: INVALID_PARAMETER if the message has data,
    too, or if the first descriptor is empty."""
    length = body.remaining_bytes
    if body.length or body.data_offset or length > request.connection.max_write_size or not remote.buffers[0].length:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    transform = rdma_transforms.for_write(request, remote.crypto)
    opened = find_open(request, (body.persistent, body.volatile))
    if opened.pipe is not None:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    _check(opened, body.offset, length)
    return PeerWrite(request, body, opened, remote, transform).start()


class PeerWrite:
    """A WRITE whose data comes by RDMA Read.

    Invariant: from ``start`` to ``_end`` the open has an operation in progress (``begin_io``), the write is arriving
    for the file's ``Caching``, and the buffer is lent. ``fetched`` is called once, when the data has arrived or the
    connection has failed, and leads to ``_end``.
    """

    __slots__ = (
        "_body", "_buffer", "_caching", "_cancelled", "_opened", "_remote", "_request", "_transform", "_write",
        "pending",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        body: WriteRequest,
        opened: Open,
        remote: RemoteMemory,
        transform: Transform | None = None,
        fetch: PlainPeerWrite | None = None,
    ) -> None:
        """``transform``: what checks the data before any of it is written. ``fetch``: where the data is fetched
        already, and ``start`` is not called."""
        self._request = request
        self._body = body
        self._opened = opened
        self._remote = remote
        self._transform = transform
        self._cancelled = False
        self._caching: Caching[Open] | None
        self._buffer: PooledBuffer
        if fetch is not None:
            self._caching, self._buffer = fetch.caching, fetch.buffer
        else:
            self._caching = opened.file.caching if opened.file is not None else None
            self._buffer = request.connection.transport.acquire(body.remaining_bytes)
        self.pending: Pending = request.pend(Interim.DELAYED, self._cancel)
        self._write: object = self.pending if fetch is None else fetch
        """What arrives, as ``Caching`` knows it; None at the end."""

    def _cancel(self) -> None:
        """Cancel the request when the client's memory is no longer read: once it is answered, the client uses it for
        other things."""
        self._cancelled = True

    def start(self) -> Pending:
        """Fetch the data. Raises ``StatusError``, and releases everything, if the descriptors do not cover the data."""
        self._opened.begin_io()
        if self._caching is not None:
            self._caching.arrives(self._write)
        wait = 0.0
        if self._opened.flow is not None:
            wait = flow_limits.wait_for(self._opened, self._body.remaining_bytes)
        if wait:
            asyncio.get_running_loop().call_later(wait, self._fetch_late)
            return self.pending
        return self._fetch()

    def _fetch_late(self) -> None:
        """Fetch the data after a wait."""
        if self._cancelled or self.pending.done:
            self._end(b"")
            return
        try:
            self._fetch()
        except StatusError as error:
            fail(self.pending, error, self._remote)

    def _fetch(self) -> Pending:
        try:
            self._remote.rdma.read_from_peer(self._remote.buffers, [self._buffer.view], self.fetched)
        except ValueError:
            self._opened.end_io()
            self._give_back()
            self._request.pending = None
            raise StatusError(NtStatus.INVALID_PARAMETER) from None
        if self._transform is not None:
            self._transform.moves(self._request.connection, len(self._buffer.view))
        return self.pending

    def fetched(self, error: BaseException | None) -> None:
        """Go on when the data has arrived, or the connection has failed. The turn of the transport may have a row of
        writes, which this does not belong to."""
        self._request.host.end_row()
        if error is not None:
            self._end(StatusError(NtStatus.CONNECTION_DISCONNECTED))
        elif self._transform is None or self._cancelled:
            self._end(b"")
        else:
            self._transform.apply(self._request.connection, self._buffer.view, self._end)

    def failed(self, error: Exception) -> None:
        """See ``Fetching``."""
        self._end(error)

    def _end(self, outcome: bytes | Exception) -> None:
        """Store the data, unless fetching or checking it has failed, and answer."""
        self._opened.end_io()
        try:
            if isinstance(outcome, Exception):
                raise outcome
            if self._cancelled:
                cancel(self.pending, self._remote)
            elif not self.pending.done:
                continue_in_turn(self._request, self._store)
                return
        except Exception as failure:
            fail(self.pending, failure, self._remote)
        self._give_back()

    def _store(self) -> None:
        """Store the fetched data and answer."""
        try:
            self._store_checked()
        except Exception as failure:
            fail(self.pending, failure, self._remote)
        finally:
            self._give_back()

    def _store_checked(self) -> None:
        """Store the fetched data after the checks are repeated. Meanwhile locks may have been taken, the open may have
        been closed, or the share may have been lost."""
        opened, body = self._opened, self._body
        self._request.check_fence()
        _check(opened, body.offset, body.remaining_bytes)
        result = _store(self._request, body, opened, self._buffer.view, self._remote)
        if isinstance(result, Response):
            self.pending.complete(result)

    def _give_back(self) -> None:
        self._buffer.release()
        if self._caching is not None:
            self._caching.arrived(self._write)
        # The fetch refers to this object. Breaking the circle frees both without the garbage collector.
        self._write = None


class PlainPeerWrite(Fetch):
    """A WRITE by RDMA to a file, which ``write`` would not refuse."""

    __slots__ = ()

    def begin(self, request: Request) -> Pending:
        return PeerWrite(request, self.body, self.open, self.remote).start()

    def become(self, request: Request) -> tuple[Fetching, Pending]:
        write = PeerWrite(request, self.body, self.open, self.remote, None, self)
        return write, write.pending

    def store(self) -> Body | None:
        """See ``Fetch``. The checks are made once more, as the file's locks may be others by now."""
        opened, body, length = self.open, self.body, self.length
        file, handle = opened.file, opened.handle
        if file is None or handle is None or not _is_plain(opened, file, body.flags, body.offset, length):
            return None
        lane = self.lane
        if lane.row is None:
            lane.begin_row(opened)
        handle.write_from((self.buffer.view,), body.offset)
        opened.wrote = True
        opened.position = body.offset + length
        opened.bytes_written += length
        return WRITE_RESPONSE.pack_fields(17, 0, length, 0, 0, 0), None


# The fast lane


def _ends_with_payload(head: memoryview, length: int) -> bool:
    """Return whether a message is one WRITE, neither signed nor encrypted, whose data is all that follows ``head``."""
    header = HEADER.fields_from(head)
    fields = WRITE_REQUEST.fields_from(head, HEADER_SIZE)
    return (
        header[0] == PROTOCOL_ID
        and header[4] == Command.WRITE
        and not header[6] & HeaderFlags.SIGNED
        and not header[7]
        and fields[1] == TAIL
        and fields[2] == length - TAIL
    )


def look(
    connection: Connection,
    session: Session,
    tree: TreeConnect | None,
    sequence: int,
    message: memoryview,
    payload: Payload | None = None,
    opened: Open | None = None,
) -> Found | None:
    """Return what answers a WRITE to a file that ``write`` would not refuse, or what begins one by RDMA.

    The former has its data in the message, or still with the transport. It concerns
    the client alone: nobody is notified of the open's first WRITE, and it breaks nobody's caching rights. The last
    write time has been noted before, and its data need not be on stable storage. The latter is examined again when its
    data has come (``PeerWrite``).

    ``opened``: the open that the message is related to. None: the message names it."""
    if len(message) < TAIL:
        return None
    fields = WRITE_REQUEST.fields_from(message, HEADER_SIZE)
    size, data_offset, length, offset, persistent, volatile, channel, _, _, _, flags = fields
    if channel:
        if payload is not None or opened is not None:
            return None
        return _look_at_peer_write(connection, session, tree, sequence, message, fields)
    if size != 49 or not 0 < length <= connection.max_write_size:
        return None
    data: memoryview | Payload
    if payload is not None:
        data = payload
    elif (
        TAIL <= data_offset <= 0x100
        and data_offset + length <= len(message)
        and (length <= LARGEST_DATA or (opened is None and is_paid(connection, message, length)))
    ):
        data = message[data_offset : data_offset + length]
    else:
        return None
    if opened is None:
        opened = ordinary_open(session, tree, sequence, persistent, volatile)
    if opened is None:
        return None
    file, handle = opened.file, opened.handle
    if file is None or handle is None or not _is_plain(opened, file, flags, offset, length):
        return None
    if payload is not None and length != payload.length:
        return None
    return opened, partial(_write_now, connection, opened, handle, data, offset, length), None


def _is_plain(opened: Open, file: File[Open], flags: int, offset: int, length: int) -> bool:
    """Return whether a WRITE may go to the page cache at once, and does nothing else."""
    return not (
        (not opened.wrote and (opened.tree.share.audit is not None or somebody_listens(opened)))
        or flags & _THROUGH
        or opened.write_through
        or opened.create_options & _OPTION_THROUGH
        or opened.lacks_archive
        or opened.is_directory
        or not opened.granted_access & _WRITE_DATA
        or offset + length > opened.max_offset
        or opened.descriptor is None
        or file.stream
        or (file.write_time is not None and file.write_time.must_note(opened))
        or (file.locks.locks and file.locks.denies_write(opened, offset, length))
        or (file.caching.holders and file.caching.is_broken_by_write(opened.caching))
    )


def _look_at_peer_write(
    connection: Connection,
    session: Session,
    tree: TreeConnect | None,
    sequence: int,
    message: memoryview,
    fields: tuple[Any, ...],
) -> Found | None:
    """Return what begins a WRITE by RDMA that ``write`` would not refuse. ``fields``: those of its ``WriteRequest``."""
    size, data_offset, inline, offset, persistent, volatile, channel, length, info_offset, info_length, _ = fields
    if size != 49 or inline or data_offset or not 0 < length <= connection.max_write_size:
        return None
    opened = ordinary_open(session, tree, sequence, persistent, volatile)
    if opened is None or opened.pipe is not None:
        return None
    file = opened.file
    if (
        file is None
        or file.locks.locks
        or offset + length > opened.max_offset
        or not opened.granted_access & _WRITE_DATA
        or opened.is_directory
    ):
        try:
            _check(opened, offset, length)
        except (StatusError, OSError):
            return None
    remote = ordinary_remote(connection, message, channel, info_offset, info_length, length)
    if remote is None or not remote.buffers[0].length:
        return None
    return opened, PlainPeerWrite(opened, remote, new_record(WriteRequest, fields)), remote


def _write_now(
    connection: Connection, opened: Open, handle: Handle, data: memoryview | Payload, offset: int, length: int
) -> Body:
    """Write to the page cache and return the response. Raises ``OSError``."""
    connection.largest_inline = max(connection.largest_inline, length)
    if isinstance(data, memoryview):
        handle.write_from([data], offset)
    else:
        handle.take_in(data, offset)
    opened.wrote = True
    opened.position = offset + length
    opened.bytes_written += length
    return WRITE_RESPONSE.pack_fields(17, 0, length, 0, 0, 0), None


SHORT_FORMS[Command.WRITE] = ShortForm(write, look, _ends_with_payload, look, writes=True)
