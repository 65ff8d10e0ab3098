"""FSCTLs on files: sparse files, ranges, reparse points, object ids, compression. [MS-FSA 2.1.5.10]"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field

from smb3server.access import required
from smb3server.backends.base import Handle
from smb3server.commands.fsctl.ioctl import Control, fsctl
from smb3server.commands.info.fs_levels import volume_object_id
from smb3server.commands.info.set_info import report
from smb3server.dispatch.long_work import run_steps
from smb3server.dispatch.lookup import handle_of
from smb3server.dispatch.request import Pending, Response
from smb3server.dispatch.stable_storage import after_flush
from smb3server.files import symlinks, write_times
from smb3server.process.long_work import Steps
from smb3server.state import deletions
from smb3server.state.change_reports import report_write
from smb3server.state.objects import Open
from smb3server.wire import attributes as attr
from smb3server.wire import fsctl as wire
from smb3server.wire.change_notify import NotifyFilter
from smb3server.wire.fsctl import CompressionFormat
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus, StatusError

_MAX_TRIM_RANGES = 4096
_TRIM_AT_ONCE = 16
"""Number of ranges trimmed in one turn of the event loop. More are trimmed on a worker."""
_RANGES_AT_ONCE = 512
"""Number of allocated ranges looked up in one turn of the event loop. More are looked up on a worker."""
_MAX_RANGES = 65536
_MAX_REPARSE_DATA = 16384
"""MAXIMUM_REPARSE_DATA_BUFFER_SIZE in bytes. [MS-FSCC 2.1.2.2]"""
_MICROSOFT_TAG = 0x80000000
_GUID = slice(8, 24)
"""Where a buffer with a non-Microsoft tag has its GUID. [MS-FSCC 2.1.2.3]"""
_REGION_VALID = 1


def _file_of(control: Control) -> tuple[Open, Handle, memoryview]:
    """Return the open of a file, its handle and the input. Raises ``StatusError``: INVALID_PARAMETER for a directory,
    ACCESS_DENIED if the code needs more rights than the open has."""
    opened = control.open()
    if opened.is_directory:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    handle = handle_of(opened)
    required.check(opened.granted_access, required.FSCTL[control.code])
    return opened, handle, control.data


def overflowing(control: Control, output: bytes) -> Response:
    """Return as much of ``output`` as the client accepts, with BUFFER_OVERFLOW if this is not all of it."""
    status = NtStatus.SUCCESS
    if len(output) > control.max_output:
        output, status = output[: control.max_output], NtStatus.BUFFER_OVERFLOW
    return control.respond(output, status)


@fsctl(Fsctl.SET_SPARSE)
def set_sparse(control: Control) -> Response | Pending:
    """Make the file sparse or not. Without input the value is TRUE. A file that is not sparse any more has no holes.
    [MS-FSA 2.1.5.10.36]"""
    opened, handle, data = _file_of(control)
    sparse = bool(data[0]) if data else True
    steps = None if sparse else handle.filling()
    if steps is not None:
        return run_steps(control.request, opened, steps, lambda: _mark_sparse(control, opened, handle, False))
    return _mark_sparse(control, opened, handle, sparse)


def _mark_sparse(control: Control, opened: Open, handle: Handle, sparse: bool) -> Response:
    attributes = handle.info().attributes
    changed = attributes | attr.SPARSE if sparse else attributes & ~attr.SPARSE
    if changed != attributes:
        handle.set_attributes(changed)
        report(opened, NotifyFilter.ATTRIBUTES)
    return control.respond()


@fsctl(Fsctl.SET_ZERO_DATA)
def set_zero_data(control: Control) -> bytes | Response | Pending:
    """Set a range of the file to zero. [MS-FSA 2.1.5.10.38]"""
    opened, handle, data = _file_of(control)
    offset, beyond = wire.ZERO_DATA.unpack(data)
    if offset < 0 or beyond < 0 or offset > beyond:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    file = opened.file
    if file is None or offset == beyond:
        return b""
    if file.locks.locks and file.locks.denies_write(opened, offset, beyond - offset):
        raise StatusError(NtStatus.FILE_LOCK_CONFLICT)
    end = min(beyond, handle.info().end_of_file)
    if offset >= end:
        return b""
    return zero(control, opened, offset, end - offset)


def zero(control: Control, opened: Open, offset: int, length: int, output: bytes = b"") -> Response | Pending:
    """Set a range that is not beyond the end of file to zero, after all checks, and answer with ``output``."""
    if opened.file is not None:
        opened.file.data_changes(opened.caching)
    write_times.changing(opened)
    handle = handle_of(opened)

    def zeroed() -> Response:
        report_write(opened)
        return control.respond(output)

    steps = handle.zeroing(offset, length)
    if steps is not None:
        return run_steps(control.request, opened, steps, zeroed)
    handle.zero_range(offset, length)
    return after_flush(control.request, opened, zeroed())


@fsctl(Fsctl.QUERY_ALLOCATED_RANGES)
def query_allocated_ranges(control: Control) -> Response | Pending:
    """Return the allocated ranges of the file. A file that is not sparse is reported without holes, even if the store
    has holes in it. [MS-FSA 2.1.5.10.22]"""
    opened, handle, data = _file_of(control)
    offset, length = wire.FILE_RANGE.unpack(data)
    if offset < 0 or length < 0 or offset + length > attr.MAX_OFFSET:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    info = handle.info()
    end = min(offset + length, info.end_of_file)
    ranges: list[tuple[int, int]] = []
    if offset < end:
        if info.attributes & attr.SPARSE:
            # One more than fits, to find out whether there are more.
            limit = min(control.max_output // wire.FILE_RANGE.size, _MAX_RANGES) + 1
            ranges = handle.allocated_ranges(offset, end - offset, min(limit, _RANGES_AT_ONCE))
            if len(ranges) == _RANGES_AT_ONCE < limit:
                search = _RangeSearch(control, handle, offset, end, limit)
                return run_steps(control.request, opened, search.steps(), search.response)
        else:
            ranges = [(offset, end - offset)]
    return _ranges_response(control, len(ranges), _pack_ranges(control, ranges))


def _pack_ranges(control: Control, ranges: list[tuple[int, int]]) -> bytes:
    """Encode as many ranges as the client accepts."""
    room = control.max_output // wire.FILE_RANGE.size
    return b"".join(wire.FILE_RANGE.pack(wire.FileRange(*entry)) for entry in ranges[:room])


def _ranges_response(control: Control, count: int, output: bytes) -> Response:
    if count and not output:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    whole = count * wire.FILE_RANGE.size <= len(output)
    return control.respond(output, NtStatus.SUCCESS if whole else NtStatus.BUFFER_OVERFLOW)


@dataclass(slots=True, eq=False)
class _RangeSearch:
    """The look-up, on a worker, of the ranges of a file that has many."""

    control: Control
    handle: Handle
    offset: int
    end: int
    limit: int
    count: int = 0
    output: list[bytes] = field(default_factory=list)

    def steps(self) -> Steps:
        while self.count < self.limit:
            length = self.end - self.offset
            # Only the beginning of the last one is known.
            ranges = self.handle.allocated_ranges(self.offset, length, _RANGES_AT_ONCE)
            if len(ranges) == _RANGES_AT_ONCE:
                self.offset = ranges.pop()[0]
            else:
                self.offset = self.end
            self.count += len(ranges)
            self.output.append(_pack_ranges(self.control, ranges))
            if self.offset == self.end:
                return
            yield

    def response(self) -> Response:
        room = self.control.max_output // wire.FILE_RANGE.size * wire.FILE_RANGE.size
        return _ranges_response(self.control, self.count, b"".join(self.output)[:room])


@fsctl(Fsctl.FILE_LEVEL_TRIM)
def file_level_trim(control: Control) -> bytes | Pending:
    """Trim ranges: free the whole blocks in them, of any file, as trimmed data is undefined. [MS-FSA 2.1.5.10.6]"""
    opened, handle, data = _file_of(control)
    header = wire.TRIM_HEADER.unpack(data)
    compressed = handle.info().attributes & attr.COMPRESSED
    if header.key or not 0 < header.num_ranges <= _MAX_TRIM_RANGES or compressed or 0 < control.max_output < 4:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    size = wire.TRIM_HEADER.size
    ranges = [wire.FILE_RANGE.unpack(data, size + index * wire.FILE_RANGE.size) for index in range(header.num_ranges)]
    backend = opened.store
    block = max(backend.volume().block_size, 1) if backend is not None else 4096
    for offset, length in ranges:
        if offset < 0 or length < 0 or offset + length > attr.MAX_OFFSET:
            raise StatusError(NtStatus.INVALID_PARAMETER)
    file = opened.file
    size = handle.info().end_of_file
    blocks: list[tuple[int, int]] = []
    for offset, length in ranges:
        if file is not None and file.locks.locks and file.locks.denies_write(opened, offset, length):
            raise StatusError(NtStatus.FILE_LOCK_CONFLICT)
        start = -(-offset // block) * block
        end = min(offset + length, size) // block * block
        if start < end:
            blocks.append((start, end - start))
    if blocks and file is not None:
        file.data_changes(opened.caching)
        write_times.changing(opened)
    output = struct.pack("<I", header.num_ranges) if control.max_output >= 4 else b""
    slow = [handle.zeroing(*entry, deallocate=True) for entry in blocks] if len(blocks) <= _TRIM_AT_ONCE else [None]
    if len(blocks) > _TRIM_AT_ONCE or any(steps is not None for steps in slow):
        return run_steps(control.request, opened, _trim(handle, blocks), lambda: control.respond(output))
    for entry in blocks:
        handle.zero_range(*entry, deallocate=True)
    return output


def _trim(handle: Handle, ranges: list[tuple[int, int]]) -> Steps:
    for entry in ranges:
        steps = handle.zeroing(*entry, deallocate=True)
        if steps is None:
            handle.zero_range(*entry, deallocate=True)
        else:
            yield from steps
        yield


@fsctl(Fsctl.QUERY_FILE_REGIONS)
def query_file_regions(control: Control) -> bytes:
    """Return the valid regions of the file. All data up to the end of file is valid. [MS-FSA 2.1.5.10.23]"""
    _, handle, data = _file_of(control)
    size = handle.info().end_of_file
    offset, length = 0, attr.MAX_OFFSET
    if data:
        query = wire.REGION_QUERY.unpack(data)
        offset, length = query.file_offset, query.length
        if offset < 0 or length < 0 or offset + length > attr.MAX_OFFSET or query.desired_usage & ~3:
            raise StatusError(NtStatus.INVALID_PARAMETER)
    end = min(size, offset + length)
    regions = [wire.Region(offset, end - offset, _REGION_VALID)] if offset < end else []
    output = wire.REGION_HEADER.pack(wire.RegionHeader(0, len(regions), len(regions)))
    output += b"".join(map(wire.REGION.pack, regions))
    if len(output) > control.max_output:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    return output


@fsctl(Fsctl.GET_REPARSE_POINT)
def get_reparse_point(control: Control) -> Response:
    """Return the reparse point of the file. [MS-FSA 2.1.5.10.16]"""
    opened = control.open()
    buffer = handle_of(opened).reparse_point()
    if buffer is None:
        raise StatusError(NtStatus.NOT_A_REPARSE_POINT)
    if control.max_output < wire.REPARSE_HEADER.size:
        raise StatusError(NtStatus.BUFFER_TOO_SMALL)
    if opened.posix and symlinks.is_link(buffer):
        buffer = symlinks.to_posix(buffer)
    return overflowing(control, buffer)


def _reparse_header(data: memoryview) -> wire.ReparseHeader:
    if len(data) < wire.REPARSE_HEADER.size:
        raise StatusError(NtStatus.IO_REPARSE_DATA_INVALID)
    header = wire.REPARSE_HEADER.unpack(data)
    if header.tag in (0, 1):
        raise StatusError(NtStatus.IO_REPARSE_TAG_INVALID)
    head = wire.REPARSE_HEADER.size + (0 if header.tag & _MICROSOFT_TAG else 16)
    if len(data) != head + header.data_length or len(data) > _MAX_REPARSE_DATA:
        raise StatusError(NtStatus.IO_REPARSE_DATA_INVALID)
    return header


def _check_same_kind(present: bytes, tag: int, data: memoryview) -> None:
    """Check that a request is about the kind of reparse point that the file has. Raises ``StatusError``."""
    if wire.REPARSE_HEADER.unpack(present).tag != tag:
        raise StatusError(NtStatus.IO_REPARSE_TAG_MISMATCH)
    if not tag & _MICROSOFT_TAG and present[_GUID] != data[_GUID]:
        raise StatusError(NtStatus.REPARSE_ATTRIBUTE_CONFLICT)


@fsctl(Fsctl.SET_REPARSE_POINT)
def set_reparse_point(control: Control) -> bytes:
    """Set the reparse point of the file. [MS-FSA 2.1.5.10.37]"""
    opened = control.open()
    data = control.data
    required.check(opened.granted_access, required.FSCTL[control.code])
    header = _reparse_header(data)
    handle = handle_of(opened)
    if header.tag == attr.TAG_MOUNT_POINT and not opened.is_directory:
        raise StatusError(NtStatus.NOT_A_DIRECTORY)
    if opened.is_directory and not deletions.is_empty(handle):
        # Its entries could not be reached any longer.
        raise StatusError(NtStatus.DIRECTORY_NOT_EMPTY)
    present = handle.reparse_point()
    if present is not None:
        _check_same_kind(present, header.tag, data)
    link = opened.posix and header.tag == attr.TAG_SYMLINK
    handle.set_reparse_point(symlinks.from_posix(bytes(data)) if link else bytes(data))
    report(opened, NotifyFilter.ATTRIBUTES)
    return b""


@fsctl(Fsctl.DELETE_REPARSE_POINT)
def delete_reparse_point(control: Control) -> bytes:
    """Delete the reparse point of the file. [MS-FSA 2.1.5.10.3]"""
    opened = control.open()
    data = control.data
    required.check(opened.granted_access, required.FSCTL[control.code])
    header = _reparse_header(data)
    if header.data_length:
        raise StatusError(NtStatus.IO_REPARSE_DATA_INVALID)
    handle = handle_of(opened)
    present = handle.reparse_point()
    if present is None:
        raise StatusError(NtStatus.NOT_A_REPARSE_POINT)
    _check_same_kind(present, header.tag, data)
    handle.set_reparse_point(None)
    report(opened, NotifyFilter.ATTRIBUTES)
    return b""


@fsctl(Fsctl.CREATE_OR_GET_OBJECT_ID)
@fsctl(Fsctl.GET_OBJECT_ID)
def object_id(control: Control) -> bytes:
    """Return the object id of the file. Every file has one, derived from its identity, so none is ever created. [MS-FSA
    2.1.5.10.1, 2.1.5.10.13]"""
    opened = control.open()
    if control.max_output < wire.OBJECT_ID_BUFFER.size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    handle = handle_of(opened)
    backend = opened.store
    volume = volume_object_id(backend) if backend is not None else bytes(16)
    identity = struct.pack("<QQ", handle.key.volume & attr.MAX_OFFSET, handle.key.inode & 0xFFFFFFFFFFFFFFFF)
    identifier = hashlib.blake2b(identity, digest_size=16, person=b"object").digest()
    return wire.OBJECT_ID_BUFFER.pack(wire.ObjectIdBuffer(identifier, volume, identifier))


@fsctl(Fsctl.IS_PATHNAME_VALID)
def is_pathname_valid(control: Control) -> bytes:
    """Accept every name. Names are checked when they are used. [MS-FSA 2.1.5.10.17]"""
    control.open()
    return b""


_COMPRESSION = struct.Struct("<H")


@fsctl(Fsctl.GET_COMPRESSION)
def get_compression(control: Control) -> bytes:
    """Return whether the file is compressed. The format is reported as LZNT1, which clients know; the file system
    chooses the real one. [MS-FSA 2.1.5.10.9]"""
    opened = control.open()
    compressed = handle_of(opened).info().attributes & attr.COMPRESSED
    if control.max_output < _COMPRESSION.size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return _COMPRESSION.pack(CompressionFormat.LZNT1 if compressed else CompressionFormat.NONE)


@fsctl(Fsctl.SET_COMPRESSION)
def set_compression(control: Control) -> bytes:
    """Compress the file or not. INVALID_DEVICE_REQUEST where the volume cannot compress. [MS-FSA 2.1.5.10.29]"""
    opened = control.open()
    data = control.data
    handle = handle_of(opened)
    if len(data) < _COMPRESSION.size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    required.check(opened.granted_access, required.FSCTL[control.code])
    (requested,) = _COMPRESSION.unpack_from(data)
    if requested not in tuple(CompressionFormat):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    backend = opened.store
    if backend is None or not backend.supports_compression:
        if requested != CompressionFormat.NONE:
            raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
        return b""
    handle.set_compressed(requested != CompressionFormat.NONE)
    report(opened, NotifyFilter.ATTRIBUTES)
    return b""
