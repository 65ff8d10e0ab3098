"""Copy whole files between a share and this machine: in pieces, resumable, and complete or not there at all.

The data goes to a file beside the target (``names.part_of``), which is renamed when it is complete and the source has
not changed meanwhile. The part's name has the version of the source in it, so a part is continued only by a copy of the
same version.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
import socket
import stat
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from smb3server.client import errors, names
from smb3server.client.entries import filetime_of
from smb3server.client.handle import Handle, LostWritesError
from smb3server.client.link import MAX_IN_FLIGHT, PIECE, Link
from smb3server.client.local_modes import PRIVATE, take_place_of
from smb3server.client.options import CopyOptions, Progress
from smb3server.client.small_files import PART_ACCESS, Content, goes_by_chain
from smb3server.process.change_times import seconds_hidden
from smb3server.wire import attributes as attr
from smb3server.wire.create import CreateDisposition
from smb3server.wire.file_info import NETWORK_OPEN, BasicInformation, FileInfoClass
from smb3server.wire.filetime import to_ns
from smb3server.wire.fsctl import FILE_RANGE, FileRange
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus
from smbdirect.codec import Buffer

Pieces = Callable[[int, int], AsyncGenerator[tuple[int, Buffer], None]]
"""Returns the data between two offsets, in order, as (offset, bytes)."""
Range = tuple[int, int]
"""Where data begins, and where it ends."""
FLUSH_EVERY = 1 << 28
"""Bytes after which an upload lets the server write to its disk: this much is sent again if the server ends. It bounds
what a flush takes, too."""
_MOMENT = 2.0
"""Seconds."""
_MAX_PAUSE = 0.05
"""Seconds that writing a piece may keep everything else waiting. A worker thread costs as much as the writing."""
_MAX_RANGES = 4096
"""Most ranges of data that are asked for at a time."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a copy did."""

    size: int
    """Bytes of the file."""
    resumed_at: int
    """Bytes that an interrupted copy had left."""
    seconds: float
    by_server: bool = False
    """Whether the server copied, and no data travelled."""

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return (self.size - self.resumed_at) / self.seconds if self.seconds else 0.0


class Target(Protocol):
    """A file of a share that is to be written."""

    path: str

    async def is_readonly(self) -> bool:
        """Return whether there is such a file, which has the attribute READONLY: it cannot be replaced."""

    @property
    def link(self) -> Link:
        """The link of its share."""

    async def open_part(self, name: str, access: int, disposition: int) -> Handle:
        """Open the file beside it that has the data until it is complete."""

    async def rename_part(self, part: Handle) -> None:
        """Give the complete file its name."""

    async def write_small(
        self, part: str, data: bytes, times: BasicInformation, is_unchanged: Callable[[], bool]
    ) -> bool:
        """Write the whole file in few messages; see ``small_files.write``."""

    async def open_complete(self) -> Handle:
        """Open the file for reading."""


def version_of(source: str, size: int, modified_ns: int) -> str:
    """Return a short name of a file's version."""
    # FILETIMEs count 100 ns. A part may be continued by a copy that knows the time in that unit only.
    text = f"{source}\0{size}\0{modified_ns // 100}"
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def changed(path: str) -> OSError:
    """Return the error for a source that changed while it was copied."""
    return errors.make(errno.ESTALE, path, reason="it was changed while it was copied; copy it again")


# From a share


async def download(source: Handle, target: Path, how: CopyOptions) -> Transfer:
    """Copy a file of a share to ``target``. Raises ``OSError``."""
    began = time.monotonic()
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    progress, found = how.progress, source.file.response
    size, modified = found.end_of_file, to_ns(found.last_write_time)
    version = version_of(f"{source.link.place}/{source.path}", size, modified)
    part = target.with_name(names.part_of(target.name, version))
    with _local_part(part) as descriptor, _removed_if_full(part, how.resume):
        start = min(os.fstat(descriptor).st_size, size) if how.resume else 0
        os.ftruncate(descriptor, start)
        if progress is not None:
            progress(start, size)
        writer = _Writer(descriptor)
        for begin, end in await data_ranges(source, start, size) if how.sparse else [(start, size)]:
            async with contextlib.aclosing(source.pieces(begin, end)) as pieces:
                async for offset, data in pieces:
                    # In order: the part's size says how far an interrupted copy has come.
                    await writer.write(data, offset)
                    if progress is not None:
                        progress(offset + len(data), size)
        os.ftruncate(descriptor, size)
        if await remote_version(source) != (size, found.last_write_time):
            part.unlink()
            raise changed(source.path)
        if how.verify:
            await _compare(source, descriptor, size, part)
        os.utime(descriptor, ns=(time.time_ns(), modified))
        take_place_of(descriptor, target)
        part.replace(target)
    if progress is not None:
        progress(size, size)
    return Transfer(size, start, time.monotonic() - began)


def save(content: Content, link: Link, path: str, target: Path, how: CopyOptions, began: float) -> Transfer:
    """Write a small file of a share to ``target``, as ``download`` does. Raises ``OSError``.

    ``began`` is the time of ``time.monotonic`` when the copy began.
    """
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if content.now != (content.opened.end_of_file, content.opened.last_write_time):
        raise changed(path)
    if how.progress is not None:
        how.progress(0, len(content.data))
    size, modified = len(content.data), to_ns(content.opened.last_write_time)
    version = version_of(f"{link.place}/{path}", size, modified)
    part = target.with_name(names.part_of(target.name, version))
    with _local_part(part) as descriptor, _removed_if_full(part, False):
        os.ftruncate(descriptor, 0)
        _write_all(descriptor, content.data, 0)
        os.utime(descriptor, ns=(time.time_ns(), modified))
        take_place_of(descriptor, target)
        part.replace(target)
    if how.progress is not None:
        how.progress(size, size)
    return Transfer(size, 0, time.monotonic() - began)


@contextlib.contextmanager
def _local_part(part: Path) -> Iterator[int]:
    """Open a part for this process alone. It stays if the block fails and has left something worth continuing."""
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(errno.EBUSY, "another copy is writing this file", str(part)) from None
        try:
            yield descriptor
        except BaseException:
            if os.fstat(descriptor).st_size == 0:
                part.unlink(missing_ok=True)
            raise
    finally:
        os.close(descriptor)


NO_ROOM = "there is no room"
"""The message of a cancellation whose reason is a full disk."""


def is_full(error: OSError) -> bool:
    """Return whether there is no room for the data."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _stays(part: str) -> str:
    return f"{part} stays, and is continued when there is room"


@contextlib.contextmanager
def _removed_if_full(part: Path, resume: bool) -> Iterator[None]:
    """Remove a part for which there is no room: it would keep the disk full. With ``resume`` it stays."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        if resume:
            raise OSError(error.errno, f"{error.strerror}; {_stays(part.name)}", str(part)) from error
        part.unlink(missing_ok=True)
        raise
    except asyncio.CancelledError as error:
        if NO_ROOM in error.args and not resume:
            part.unlink(missing_ok=True)
        raise


@contextlib.asynccontextmanager
async def closing_part(target: Target, part: Handle, resume: bool) -> AsyncIterator[None]:
    """Close a part after a block. If the block fails it stays, to be continued; it is removed if it may not get its
    name, or, without ``resume``, if there is no room for it.
    """
    name, part.path = part.path, target.path
    try:
        yield
    except OSError as error:
        if resume and is_full(error) and part.keeps_its_name:
            raise errors.make(error.errno or errno.ENOSPC, target.path, reason=_stays(name)) from error
        if is_full(error) or isinstance(error, PermissionError):
            await _remove(part)
        raise
    except asyncio.CancelledError as error:
        if NO_ROOM in error.args and not resume:
            await _remove(part)
        raise
    finally:
        await part.abandon()


async def _remove(part: Handle) -> None:
    # What failed is told, whatever comes of the removal.
    with contextlib.suppress(OSError):
        if part.keeps_its_name:
            await part.remove()


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count


class _Writer:
    """Writes a local file: at once as long as its file system takes the data into memory, else on a worker thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waits = True
        """Whether the last piece took so long that everything else had to wait for it."""

    async def write(self, data: bytes, offset: int) -> None:
        """Write a piece."""
        began = time.monotonic()
        if self._waits:
            await asyncio.to_thread(_write_all, self._descriptor, data, offset)
        else:
            _write_all(self._descriptor, data, offset)
        self._waits = time.monotonic() - began > _MAX_PAUSE


async def remote_version(source: Handle) -> tuple[int, int]:
    """Return size and last write time of the source as they are now, the time as a FILETIME."""
    found = NETWORK_OPEN.unpack(await source.query(FileInfoClass.NETWORK_OPEN))
    return found.end_of_file, found.last_write_time


async def data_ranges(source: Handle, start: int, size: int) -> list[Range]:
    """Return where a file has data, from ``start`` on; all of it if the server cannot tell. [MS-FSCC 2.3.52]"""
    found = source.file.response
    if size - start <= PIECE or (not found.file_attributes & attr.SPARSE and found.allocation_size >= size):
        return [(start, size)] if size > start else []
    ranges: list[Range] = []
    at = start
    while at < size:
        asked = FILE_RANGE.pack(FileRange(at, size - at))
        try:
            output = await source.fsctl(
                Fsctl.QUERY_ALLOCATED_RANGES,
                asked,
                _MAX_RANGES * FILE_RANGE.size,
                (NtStatus.SUCCESS, NtStatus.BUFFER_OVERFLOW),
            )
        except errors.RemoteError as error:
            if not error.status:
                raise
            return [*ranges, (at, size)]
        listed = [FILE_RANGE.unpack(output, offset) for offset in range(0, len(output), FILE_RANGE.size)]
        for entry in listed:
            begin, end = max(entry.file_offset, at), min(entry.file_offset + entry.length, size)
            if begin >= end:
                # A server whose ranges are not in order cannot be believed.
                return [(start, size)]
            ranges.append((begin, end))
            at = end
        if len(listed) < _MAX_RANGES:
            break
    return ranges


# To a share


async def upload(target: Target, source: str, how: CopyOptions, attributes: int) -> Transfer:
    """Copy a local file to ``target``. Raises ``OSError``."""
    began = time.monotonic()
    # O_NONBLOCK: a FIFO must not block.
    descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), source)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", source)
        if wait := seconds_hidden(status.st_mtime_ns):
            # A write during the copy could leave its time as it is: nobody would notice, now or at the next ``sync``.
            await asyncio.sleep(wait)
            status = os.fstat(descriptor)
        size = status.st_size
        has_holes = how.sparse and status.st_blocks * 512 < size
        version = version_of(f"{socket.gethostname()}:{os.path.abspath(source)}", size, status.st_mtime_ns)
        times = BasicInformation(last_write_time=filetime_of(status.st_mtime_ns), attributes=attributes)

        def is_unchanged() -> bool:
            now = os.fstat(descriptor)
            return (now.st_size, now.st_mtime_ns) == (size, status.st_mtime_ns)

        # READONLY comes after the name, which a chain cannot wait for.
        if goes_by_chain(target.link, size) and not has_holes and not attributes & attr.READONLY:
            start = 0
            data = os.pread(descriptor, size, 0)
            part_name = names.part_of(names.split(target.path)[1], version)
            if how.progress is not None:
                how.progress(0, size)
            if len(data) < size or not await _completed(target.write_small(part_name, data, times, is_unchanged)):
                raise changed(source)
            if how.progress is not None:
                how.progress(size, size)
        else:
            part, start = await open_part(target, version, how.resume, size)
            async with closing_part(target, part, how.resume):
                if has_holes:
                    await make_sparse(part)

                reader = _Reader(descriptor, source)

                def pieces(begin: int, end: int) -> AsyncGenerator[tuple[int, Buffer], None]:
                    return reader.pieces(_local_ranges(descriptor, begin, end) if has_holes else [(begin, end)])

                await write_part(part, pieces, start, size, how.progress, reader.give_back)
                if not is_unchanged():
                    raise changed(source)
                await complete(target, part, times)
                if has_holes:
                    # Samba 4.17 forgets the attribute when a file is renamed.
                    await make_sparse(part)
        if how.verify:
            written = await target.open_complete()
            try:
                await _compare(written, descriptor, size, source)
            finally:
                await written.close()
    finally:
        os.close(descriptor)
    return Transfer(size, start, time.monotonic() - began)


async def _completed(writing: Coroutine[object, object, bool]) -> bool:
    """Return what writing a small file comes to. If that is cancelled in the middle, the file has a moment to get its
    name: a part would stay otherwise.
    """
    task = asyncio.ensure_future(writing)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=_MOMENT)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise


async def open_part(target: Target, version: str, resume: bool, size: int) -> tuple[Handle, int]:
    """Open the part of ``target``, and return it with the offset from which it has to be written.

    For a few bytes nobody asks whether the target is READONLY: giving the part its name tells.
    """
    if size > PIECE and await target.is_readonly():
        raise errors.make(errno.EACCES, target.path, reason="the file is READONLY; clear that attribute first")
    disposition = CreateDisposition.OPEN_IF if resume else CreateDisposition.OVERWRITE_IF
    opening = asyncio.ensure_future(
        target.open_part(names.part_of(names.split(target.path)[1], version), PART_ACCESS, disposition)
    )
    try:
        part = await asyncio.shield(opening)
    except asyncio.CancelledError as error:
        # The server may have made the part, whose answer nobody would hear.
        if NO_ROOM in error.args and not resume:
            await asyncio.wait([opening])
            if opening.exception() is None:
                await _remove(opening.result())
                await opening.result().abandon()
        else:
            opening.cancel()
        raise
    # Pieces are written out of order: below the end there may be gaps as long as what was in flight.
    return part, max(0, min(part.file.size, size) - MAX_IN_FLIGHT)


async def write_part(
    part: Handle,
    pieces: Pieces,
    start: int,
    size: int,
    progress: Progress | None,
    give_back: Callable[[Buffer], None] | None = None,
) -> None:
    """Write a file's data to a part, give it its size, and let the server write it to its disk.

    ``pieces`` returns the data between two offsets; where it has gaps there are holes. ``give_back`` is called with
    each piece that the server has. If the server ends meanwhile, the copy goes on where it was flushed last.
    """
    safe = start
    now = part.file.size
    """The part's size as far as it is known, below ``size`` only if the rest is a hole."""
    while True:
        try:
            while True:
                end = min(safe + FLUSH_EVERY, size)
                now = max(now, await _write_range(part, pieces, safe, end, size, progress, give_back))
                if end == size:
                    break
                await part.flush()
                safe = end
            if now != size:
                await part.set_size(size)
            await part.flush()
            break
        except LostWritesError:
            part.go_back()
            now = await part.size()
            safe = max(0, min(safe, now) - MAX_IN_FLIGHT)
    if progress is not None:
        progress(size, size)


async def _write_range(
    part: Handle,
    pieces: Pieces,
    begin: int,
    end: int,
    size: int,
    progress: Progress | None,
    give_back: Callable[[Buffer], None] | None,
) -> int:
    """Write the data between two offsets, and return where the last of it ended."""
    done = last = begin
    if progress is not None:
        progress(done, size)

    def written(piece: Buffer) -> None:
        nonlocal done
        done += len(piece)
        if give_back is not None:
            give_back(piece)
        if progress is not None:
            progress(done, size)

    async def followed(data: AsyncGenerator[tuple[int, Buffer], None]) -> AsyncGenerator[tuple[int, Buffer], None]:
        nonlocal last
        async for offset, piece in data:
            last = offset + len(piece)
            yield offset, piece

    async with contextlib.aclosing(pieces(begin, end)) as data, contextlib.aclosing(followed(data)) as seen:
        await part.write_pieces(seen, written)
    return last


async def complete(target: Target, part: Handle, times: BasicInformation) -> None:
    """Set times and attributes of a complete part, and give it its name.

    READONLY comes last: a part that has it and was broken off would keep every later copy of the file out.
    """
    read_only = times.attributes & attr.READONLY
    first = times._replace(attributes=times.attributes & ~attr.READONLY or attr.NORMAL) if read_only else times
    # A last WRITE may change the time after it was set, until it is set by this very open. [MS-FSA 2.1.5.15.2]
    await part.set_basic(first)
    await target.rename_part(part)
    if read_only:
        await part.set_basic(BasicInformation(attributes=times.attributes))


async def make_sparse(part: Handle) -> None:
    """Let a part have holes, if the server can. [MS-FSCC 2.3.64]"""
    try:
        await part.fsctl(Fsctl.SET_SPARSE, b"\1", 0)
    except errors.RemoteError as error:
        # Without sparse files the server writes the zeros.
        if not error.status:
            raise


def _local_ranges(descriptor: int, start: int, size: int) -> list[Range]:
    """Return where a file has data between two offsets."""
    found: list[Range] = []
    at = start
    while at < size:
        try:
            begin = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        if begin >= size:
            break
        at = min(os.lseek(descriptor, begin, os.SEEK_HOLE), size)
        found.append((begin, at))
    return found


class _Reader:
    """Reads a local file, into memory that is used again.

    The memory begins at a page: some processors copy three times as long to what lies 16 bytes behind the beginning of
    one, as the memory of bytes and bytearrays does.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor, self._path = descriptor, path
        self._free: list[mmap.mmap] = []

    async def pieces(self, ranges: list[Range]) -> AsyncGenerator[tuple[int, Buffer], None]:
        """Yield the data of ``ranges``, as (offset, data)."""
        for begin, end in ranges:
            for at in range(begin, end, PIECE):
                memory = self._free.pop() if self._free else mmap.mmap(-1, PIECE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                piece = memoryview(memory)[: end - at]
                if await self._read(piece, at) < len(piece):
                    raise changed(self._path)
                yield at, piece

    def give_back(self, piece: Buffer) -> None:
        """Use the memory of a piece again. A piece that was not given back is never overwritten."""
        assert isinstance(piece, memoryview) and isinstance(piece.obj, mmap.mmap)
        self._free.append(piece.obj)

    async def _read(self, piece: memoryview, offset: int) -> int:
        """Fill a piece, and return how many bytes there were. What has to come from the disk keeps nobody waiting."""
        done = 0
        # The file is not in memory, or its file system cannot tell.
        with contextlib.suppress(OSError):
            done = os.preadv(self._descriptor, [piece], offset, os.RWF_NOWAIT)
        while done < len(piece):
            count = await asyncio.to_thread(os.preadv, self._descriptor, [piece[done:]], offset + done)
            if not count:
                break
            done += count
        return done


async def _compare(remote: Handle, descriptor: int, size: int, local: str | Path) -> None:
    """Read both files and compare them."""
    done = 0
    async with contextlib.aclosing(remote.pieces(0, size)) as pieces:
        async for offset, data in pieces:
            if await asyncio.to_thread(os.pread, descriptor, len(data), offset) != data:
                break
            done = offset + len(data)
    if done != size:
        reason = f"the copy {local} differs from byte {done} or somewhat later on"
        raise errors.make(errno.EIO, remote.path, reason=reason)
