"""Server-side copy: SRV_REQUEST_RESUME_KEY, SRV_COPYCHUNK(_WRITE) and DUPLICATE_EXTENTS_TO_FILE. [MS-SMB2 3.3.5.15.5,
3.3.5.15.6, MS-FSA 2.1.5.10.4]"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
from dataclasses import dataclass, replace
from typing import NamedTuple

from smb3server.access import required
from smb3server.backends.base import Disposition, Handle, OpenRequest
from smb3server.commands.fsctl.ioctl import Control, fsctl
from smb3server.dispatch import waiting
from smb3server.dispatch.lookup import handle_of
from smb3server.dispatch.request import Pending, Response, TreeRequest
from smb3server.dispatch.stable_storage import after_flush, flushed
from smb3server.files import write_times
from smb3server.state.change_reports import report_write
from smb3server.state.objects import Open
from smb3server.wire import attributes as attr
from smb3server.wire import fsctl as wire
from smb3server.wire.apple import ServerCaps
from smb3server.wire.create import Access
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.errors import DecodeError

MAX_CHUNKS = 256
"""ServerSideCopyMaxNumberofChunks. [MS-SMB2 3.3.3]"""
MAX_CHUNK_SIZE = 1 << 20
"""ServerSideCopyMaxChunkSize in bytes."""
MAX_DATA_SIZE = 16 << 20
"""ServerSideCopyMaxDataSize in bytes."""

_COPY_AT_ONCE = 1 << 20
"""Bytes copied before other requests get their turn (not in spec)."""
_STEP = 256 << 10
"""Bytes copied with one call of the store."""
_COPY_BY_HAND = frozenset({errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of the store after which data is copied through memory."""


@fsctl(Fsctl.SRV_REQUEST_RESUME_KEY)
def request_resume_key(control: Control) -> bytes:
    """Return the resume key of the open, which names it until it is closed. [MS-SMB2 3.3.5.15.5]"""
    opened = control.open()
    if control.max_output < wire.RESUME_KEY_RESPONSE.size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    key: bytes | None = opened.resume_key
    if key is None:
        key = opened.file_id[0].to_bytes(8, "little") + secrets.token_bytes(16)
        opened.resume_key = key
    return wire.RESUME_KEY_RESPONSE.pack(wire.ResumeKeyResponse(key))


def _find_source(request: TreeRequest, key: bytes) -> Open:
    source = request.server.opens.by_id.get(int.from_bytes(key[:8], "little"))
    if source is None or source.session is not request.session or source.resume_key != key:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    return source


@fsctl(Fsctl.SRV_COPYCHUNK)
@fsctl(Fsctl.SRV_COPYCHUNK_WRITE)
def copy_chunk(control: Control) -> Response | Pending:
    """Copy chunks from the source with the given resume key to the open. [MS-SMB2 3.3.5.15.6]"""
    opened = control.open()
    data = control.data
    if control.max_output < wire.COPY_CHUNK_RESPONSE.size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    header, chunks = wire.decode_copy_chunks(data, MAX_CHUNKS)
    source = _find_source(control.request, header.source_key)
    if not header.chunk_count and opened.tree.apple & ServerCaps.OSX_COPYFILE:
        _check_access(control, source, opened)
        return waiting.run(control.request, _FileCopy(control, source, opened, []).run())
    if (
        header.chunk_count > MAX_CHUNKS
        or any(not 0 < chunk.length <= MAX_CHUNK_SIZE for chunk in chunks)
        or sum(chunk.length for chunk in chunks) > MAX_DATA_SIZE
    ):
        return _result(control, NtStatus.INVALID_PARAMETER, MAX_CHUNKS, MAX_CHUNK_SIZE, MAX_DATA_SIZE)
    _check_access(control, source, opened)
    copy = _Copy(control, source, opened, chunks)
    if sum(chunk.length for chunk in chunks) <= _COPY_AT_ONCE:
        while copy.step():
            pass
        return after_flush(control.request, opened, copy.result()) if copy.total else copy.result()
    return waiting.run(control.request, copy.run())


def _check_access(control: Control, source: Open, target: Open) -> None:
    for opened in (source, target):
        if opened.is_directory or opened.handle is None or opened.file is None:
            raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    required.check(source.granted_access, required.READ)
    required.check(target.granted_access, required.WRITE)
    if control.code == Fsctl.SRV_COPYCHUNK:
        required.check(target.granted_access, int(Access.READ_DATA))


def _result(control: Control, status: int, chunks: int, chunk_bytes: int, total_bytes: int) -> Response:
    output = wire.COPY_CHUNK_RESPONSE.pack(wire.CopyChunkResponse(chunks, chunk_bytes, total_bytes))
    return control.respond(output, status)


@dataclass(slots=True, eq=False)
class _Copy:
    """The copy of a request's chunks in steps. Both opens may be closed between two steps."""

    control: Control
    source: Open
    target: Open
    chunks: list[wire.CopyChunk]
    index: int = 0
    offset: int = 0
    total: int = 0
    status: int = NtStatus.SUCCESS

    async def run(self) -> Response:
        done = 0
        while self.step():
            if self.total - done >= _COPY_AT_ONCE:
                done = self.total
                await asyncio.sleep(0)
        if self.total:
            await flushed(self.control.request, self.target)
        return self.result()

    def result(self) -> Response:
        if self.total:
            report_write(self.target)
        return _result(self.control, self.status, self.index, self.offset, self.total)

    def step(self) -> bool:
        """Copy some bytes. Return False when all chunks are copied, or on an error, which ``status`` has then."""
        if self.index == len(self.chunks):
            return False
        chunk = self.chunks[self.index]
        try:
            self._check_still_there()
            if self.offset == 0:
                self._check(chunk)
            self._copy(chunk)
        except (StatusError, OSError) as error:
            self.status = NtStatus(waiting.failure(self.control.request, error).status)
            return False
        return True

    def _check_still_there(self) -> None:
        """Check that the share is served here, and that nobody has closed the opens. Raises ``StatusError``."""
        if self.control.request.server.has_lost(self.target.tree.share):
            raise StatusError(NtStatus.NETWORK_NAME_DELETED)
        table = self.control.request.server.opens.by_id
        if any(table.get(opened.file_id[0]) is not opened for opened in (self.source, self.target)):
            raise StatusError(NtStatus.FILE_CLOSED)

    def _check(self, chunk: wire.CopyChunk) -> None:
        """Check ranges, end of file and locks of a chunk before it is copied. Raises ``StatusError``."""
        source, target = self.source, self.target
        length = chunk.length
        if max(chunk.source_offset, chunk.target_offset) + length > attr.MAX_OFFSET:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        if source.file is None or target.file is None:
            raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
        if source.file.locks.locks and source.file.locks.denies_read(source, chunk.source_offset, length):
            raise StatusError(NtStatus.FILE_LOCK_CONFLICT)
        if target.file.locks.locks and target.file.locks.denies_write(target, chunk.target_offset, length):
            raise StatusError(NtStatus.FILE_LOCK_CONFLICT)
        if chunk.source_offset + length > handle_of(source).info().end_of_file:
            raise StatusError(NtStatus.INVALID_VIEW_SIZE)
        target.file.data_changes(target.caching)
        write_times.changing(target)

    def _copy(self, chunk: wire.CopyChunk) -> None:
        source, target = self.source, self.target
        size = chunk.length - self.offset
        overlapping = source.file is target.file
        if not overlapping:
            size = min(size, _STEP)
        copied = copy_range(
            handle_of(target),
            handle_of(source),
            chunk.source_offset + self.offset,
            chunk.target_offset + self.offset,
            size,
            overlapping,
        )
        if not copied:
            raise StatusError(NtStatus.INVALID_VIEW_SIZE)
        self.total += copied
        self.offset += copied
        if self.offset == chunk.length:
            self.index += 1
            self.offset = 0


class _FileCopy(_Copy):
    """The copy of a whole file with its streams, for a Mac. (Apple's SMBClient, kernel/netsmb/smb_2.h)"""

    __slots__ = ()

    async def run(self) -> Response:
        size = handle_of(self.source).info().end_of_file
        if size:
            self.chunks.append(wire.CopyChunk(0, 0, size))
        elif self.source.file is not None and self.source.file is self.target.file:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        while self.step():
            await asyncio.sleep(0)
        if self.status == NtStatus.SUCCESS:
            self._cut(size)
            for stream in handle_of(self.source).streams():
                if stream.name:
                    await self._copy_stream(stream.name)
        await flushed(self.control.request, self.target)
        report_write(self.target)
        # No chunks were written, whatever was copied: the size has no more than 32 bits.
        return _result(self.control, self.status, 0, 0, min(self.total, 0xFFFFFFFF))

    def _cut(self, size: int) -> None:
        """Cut what the target has beyond the end of the source. Raises ``StatusError`` and ``OSError``."""
        target, file = handle_of(self.target), self.target.file
        end = target.info().end_of_file
        if end <= size or file is None:
            return
        if file.locks.locks and file.locks.denies_write(self.target, size, end - size):
            raise StatusError(NtStatus.FILE_LOCK_CONFLICT)
        file.data_changes(self.target.caching)
        write_times.changing(self.target)
        target.truncate(size)

    async def _copy_stream(self, name: str) -> None:
        """Copy one stream. Raises ``OSError``, and SHARING_VIOLATION if somebody has it open in the target."""
        self._check_still_there()
        target, backend = self.target, self.target.store
        if backend is None or target.file is None:
            raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
        present = target.file.table.find(handle_of(target).key, name)
        if present is not None and present.opens:
            raise StatusError(NtStatus.SHARING_VIOLATION)
        user = self.control.request.tree.user
        read = OpenRequest(handle_of(self.source).path, name, read=True, user=user, by_mac=True)
        write = replace(read, path=handle_of(target).path, disposition=Disposition.OPEN_IF, write=True)
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(contextlib.closing(backend.open(read)))
            copy = stack.enter_context(contextlib.closing(backend.open(write)))
            copy.truncate(0)
            size, done = source.info().end_of_file, 0
            while done < size and (count := copy_range(copy, source, done, done, min(size - done, _STEP), False)):
                done += count
                await asyncio.sleep(0)
                self._check_still_there()


def copy_range(target: Handle, source: Handle, source_offset: int, offset: int, length: int, overlapping: bool) -> int:
    """Copy up to ``length`` bytes and return the number of bytes copied. Raises ``OSError``.

    The copy is made through memory if the stores differ or if ``overlapping``: ranges of one file that may overlap are
    copied as if the source was read completely first."""
    if not overlapping:
        try:
            return target.copy_range(source, source_offset, offset, length)
        except OSError as error:
            if error.errno not in _COPY_BY_HAND:
                raise
    buffer = memoryview(bytearray(length))
    count = source.read_into([buffer], source_offset)
    target.write_from([buffer[:count]], offset)
    return count


class _Clone(NamedTuple):
    """A parsed request to clone, before the files are checked. Offsets and ``length`` are in bytes and not negative."""

    target: Open
    source: Open
    target_offset: int
    source_offset: int
    length: int


@fsctl(Fsctl.DUPLICATE_EXTENTS_TO_FILE)
@fsctl(Fsctl.DUPLICATE_EXTENTS_TO_FILE_EX)
def duplicate_extents(control: Control) -> bytes | Response | Pending:
    """Clone clusters of one file into another. [MS-FSA 2.1.5.10.4]

    Block cloning does not change the size of the target. Clusters beyond its end are ignored, with success, as on
    Windows."""
    opened = control.open()
    backend = opened.store
    if backend is None or not backend.supports_reflink:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    clone = _parse_clone(control, opened)
    if not clone.length:
        return b""
    cluster = max(backend.volume().block_size, 1)
    count, same_end = _check_clone(clone, cluster)
    if count <= 0:
        return b""
    if opened.file is not None:
        opened.file.data_changes(opened.caching)
        write_times.changing(opened)
    _clone(clone, count, 0 if same_end else count % cluster)
    report_write(opened)
    return after_flush(control.request, opened, control.respond())


def _parse_clone(control: Control, opened: Open) -> _Clone:
    """Parse the request and find the source. Raises ``StatusError`` for errors that need no look at the files."""
    data = control.data
    body: wire.DuplicateExtents | wire.DuplicateExtentsEx
    try:
        if control.code == Fsctl.DUPLICATE_EXTENTS_TO_FILE_EX:
            body = wire.DUPLICATE_EXTENTS_EX.unpack(data)
        else:
            body = wire.DUPLICATE_EXTENTS.unpack(data)
    except DecodeError:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL) from None
    source = control.request.session.open_table.get(body.source_volatile)
    if source is None or source.file_id[0] != body.source_persistent or source.tree is not opened.tree:
        raise StatusError(NtStatus.INVALID_HANDLE)
    if opened.is_directory or source.is_directory or opened.file is None or source.file is None:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    required.check(opened.granted_access, required.FSCTL[control.code])
    required.check(source.granted_access, int(Access.READ_DATA))
    source_offset, target_offset, count = body.source_offset, body.target_offset, body.byte_count
    if min(source_offset, target_offset, count) < 0 or max(source_offset, target_offset) + count > attr.MAX_OFFSET:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return _Clone(opened, source, target_offset, source_offset, count)


def _check_clone(clone: _Clone, cluster: int) -> tuple[int, bool]:
    """Return the number of bytes to clone, and whether both files end with them. Raises ``StatusError``.

    The number is 0 or negative if the range begins at or beyond the end of a file."""
    target, source, target_offset, source_offset, count = clone
    source_info, target_info = handle_of(source).info(), handle_of(target).info()
    if source_offset + count > -(-source_info.end_of_file // cluster) * cluster:
        raise StatusError(NtStatus.NOT_SUPPORTED)
    if source_info.attributes & attr.SPARSE and not target_info.attributes & attr.SPARSE:
        raise StatusError(NtStatus.NOT_SUPPORTED)
    if source.file is target.file and abs(source_offset - target_offset) < count:
        raise StatusError(NtStatus.NOT_SUPPORTED)
    if source.file is not None and source.file.locks.denies_read(source, source_offset, count):
        raise StatusError(NtStatus.FILE_LOCK_CONFLICT)
    if target.file is not None and target.file.locks.denies_write(target, target_offset, count):
        raise StatusError(NtStatus.FILE_LOCK_CONFLICT)
    # The request has whole clusters. The last one may reach beyond the end of a file, whose size does not change.
    count = min(count, source_info.end_of_file - source_offset, target_info.end_of_file - target_offset)
    ends = source_info.end_of_file, target_info.end_of_file
    return count, (source_offset + count, target_offset + count) == ends


def _clone(clone: _Clone, count: int, tail: int) -> None:
    """Share ``count`` bytes, except for the last ``tail``, which are copied. A part of a cluster can only be shared if
    both files end in it."""
    target, source = handle_of(clone.target), handle_of(clone.source)
    if count > tail:
        target.clone_range(source, clone.source_offset, clone.target_offset, count - tail)
    if tail:
        done = count - tail
        copy_range(target, source, clone.source_offset + done, clone.target_offset + done, tail, overlapping=True)
