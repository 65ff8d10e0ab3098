"""Copy a file from a share to a share: by the server if it is one share, or through this machine."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import AsyncGenerator

from smb3server.client import errors
from smb3server.client.entries import filetime_of
from smb3server.client.handle import Handle, LostWritesError
from smb3server.client.link import PIECE
from smb3server.client.options import CopyOptions, Progress
from smb3server.client.transfers import (
    Range,
    Target,
    Transfer,
    changed,
    closing_part,
    complete,
    data_ranges,
    make_sparse,
    open_part,
    remote_version,
    version_of,
    write_part,
)
from smb3server.wire import attributes as attr
from smb3server.wire.file_info import (
    DISPOSITION,
    BasicInformation,
    DispositionInformation,
    FileInfoClass,
)
from smb3server.wire.filetime import to_ns
from smb3server.wire.fsctl import (
    COPY_CHUNK,
    COPY_CHUNK_HEADER,
    COPY_CHUNK_RESPONSE,
    RESUME_KEY_RESPONSE,
    CopyChunk,
    CopyChunkHeader,
)
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus
from smbdirect.codec import Buffer

CHUNKS = 16
"""Chunks of one request: with ``PIECE``, what Windows and Samba take. [MS-SMB2 3.3.3]"""
_CANNOT = (
    NtStatus.NOT_SUPPORTED,
    NtStatus.INVALID_DEVICE_REQUEST,
    NtStatus.INVALID_PARAMETER,
    NtStatus.NOT_IMPLEMENTED,
)


async def copy(source: Handle, target: Target, how: CopyOptions) -> Transfer:
    """Copy an open file to ``target``. Raises ``OSError``."""
    began = time.monotonic()
    size, times = source.file.size, source.file.response
    version = version_of(f"{source.link.place}/{source.path}", size, to_ns(times.last_write_time))
    part, start = await open_part(target, version, how.resume, size)
    async with closing_part(target, part, how.resume):
        ranges = await data_ranges(source, 0, size) if how.sparse else [(0, size)]
        has_holes = size > 0 and ranges != [(0, size)]
        if has_holes:
            await make_sparse(part)
        by_server = await _copy_data(source, target, part, ranges, start, size, how.progress)
        if await remote_version(source) != (size, times.last_write_time):
            await _discard(part)
            raise changed(source.path)
        kept = BasicInformation(
            creation_time=times.creation_time,
            last_write_time=filetime_of(to_ns(times.last_write_time)),
            attributes=times.file_attributes & attr.SETTABLE & ~attr.SPARSE or attr.NORMAL,
        )
        await complete(target, part, kept)
        if has_holes:
            # Samba 4.17 forgets the attribute when a file is renamed.
            await make_sparse(part)
    if how.verify:
        await _compare(source, target, size)
    return Transfer(size, start, time.monotonic() - began, by_server)


async def _copy_data(
    source: Handle, target: Target, part: Handle, ranges: list[Range], start: int, size: int, progress: Progress | None
) -> bool:
    """Copy the ranges of data, from ``start`` on, and return whether the server did it."""
    if source.link is target.link and await _by_server(source, part, ranges, start, size, progress):
        return True

    async def pieces(begin: int, end: int) -> AsyncGenerator[tuple[int, Buffer], None]:
        for first, last in _between(ranges, begin, end):
            async with contextlib.aclosing(source.pieces(first, last)) as found:
                async for piece in found:
                    yield piece

    await write_part(part, pieces, start, size, progress)
    return False


def _between(ranges: list[Range], begin: int, end: int) -> list[Range]:
    """Return what of ranges lies between two offsets."""
    return [(max(first, begin), min(last, end)) for first, last in ranges if first < end and last > begin]


async def _discard(part: Handle) -> None:
    """Remove a part that nothing will continue."""
    record = DISPOSITION.pack(DispositionInformation(1))
    await part.do(lambda tree, file: tree.set_info(file, FileInfoClass.DISPOSITION, record))


async def _by_server(
    source: Handle, part: Handle, ranges: list[Range], start: int, size: int, progress: Progress | None
) -> bool:
    """Let the server copy, and write it to its disk; return False, with nothing lost, if it cannot.
    [MS-SMB2 3.2.4.20.2]
    """
    while True:
        try:
            return await _copy_all(source, part, _between(ranges, start, size), size, progress)
        except LostWritesError:
            part.go_back()
            start = 0


async def _copy_all(source: Handle, part: Handle, ranges: list[Range], size: int, progress: Progress | None) -> bool:
    key = b""
    for begin, end in ranges:
        at = begin
        while at < end:
            try:
                key = key or await _resume_key(source)
                count = await _copy_chunks(part, key, at, end)
            except LostWritesError:
                raise
            except errors.RemoteError as error:
                if error.status == NtStatus.OBJECT_NAME_NOT_FOUND and key:
                    # The key was that of a session that is lost.
                    key = b""
                    continue
                if error.status not in _CANNOT:
                    raise
                return False
            if not count:
                raise errors.make(errno.EIO, source.path, reason="the server copied nothing")
            at += count
            if progress is not None:
                progress(at, size)
    if part.file.size > size or not ranges or ranges[-1][1] < size:
        await part.set_size(size)
    await part.flush()
    return True


async def _resume_key(source: Handle) -> bytes:
    found = await source.fsctl(Fsctl.SRV_REQUEST_RESUME_KEY, max_output=RESUME_KEY_RESPONSE.size)
    return RESUME_KEY_RESPONSE.unpack(found).resume_key


async def _copy_chunks(part: Handle, key: bytes, at: int, end: int) -> int:
    starts = range(at, min(end, at + CHUNKS * PIECE), PIECE)
    chunks = [CopyChunk(offset, offset, min(PIECE, end - offset)) for offset in starts]
    asked = COPY_CHUNK_HEADER.pack(CopyChunkHeader(key, len(chunks))) + b"".join(map(COPY_CHUNK.pack, chunks))
    output = await part.fsctl(Fsctl.SRV_COPYCHUNK_WRITE, asked, COPY_CHUNK_RESPONSE.size)
    return COPY_CHUNK_RESPONSE.unpack(output).total_bytes_written


async def _compare(source: Handle, target: Target, size: int) -> None:
    """Read both files and compare them."""
    written = await target.open_complete()
    done = 0
    try:
        async with (
            contextlib.aclosing(source.pieces(0, size)) as ours,
            contextlib.aclosing(written.pieces(0, size)) as theirs,
        ):
            async for offset, data in ours:
                if await anext(theirs, None) != (offset, data):
                    break
                done = offset + len(data)
    finally:
        await written.close()
    if done != size:
        raise errors.make(errno.EIO, target.path, reason=f"the copy differs from byte {done} or somewhat later on")
