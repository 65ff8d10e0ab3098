"""Reads, writes, allocates and copies the bytes of open descriptors."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator, Sequence

from smb3server.backends.local import syscalls
from smb3server.wire.attributes import MAX_OFFSET
from smbdirect.codec import Buffer

_IOV_MAX = 1024
_FICLONERANGE = 0x4020940D
_CLONE_RANGE = struct.Struct("<qQQQ")
# From linux/fs.h. The numbers encode a long, but the kernel reads and writes an int.
_FS_IOC_GETFLAGS = 0x80086601
_FS_IOC_SETFLAGS = 0x40086602
_FS_COMPR_FL = 0x4
_FS_NOCOMP_FL = 0x400
_INODE_FLAGS = struct.Struct("<I")
_COPY_CHUNK = 1 << 20
STEP = 64 << 20
"""Bytes reserved or zeroed by one call. This takes some tens of milliseconds on a file system in memory."""
MAX_RANGES = 65536
"""Bound on the list that ``allocated_ranges`` returns. Everything from the last range on counts as data."""


def check_range(offset: int, length: int = 0) -> None:
    """Raise ``OSError`` (EINVAL) for a range that no file can have."""
    if offset < 0 or length < 0 or offset + length > MAX_OFFSET:
        raise OSError(errno.EINVAL, "offset out of range")


def read_into(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
    """Fill the buffers from ``offset`` on. Return the bytes read, which are fewer only at end of file."""
    wanted = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
    if offset > MAX_OFFSET - wanted:
        return 0
    if len(buffers) == 1:
        done = os.preadv(descriptor, buffers, offset)
        if done in (wanted, 0):
            return done
    else:
        done = os.preadv(descriptor, buffers[:_IOV_MAX], offset)
    while done < wanted:
        count = os.preadv(descriptor, _rest(buffers, done), offset + done)
        if count == 0:
            break
        done += count
    return done


def write_from(descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all buffers at ``offset``. Return the bytes written, or raise ``OSError``."""
    if len(buffers) == 1:
        wanted = len(buffers[0])
        if not 0 <= offset <= MAX_OFFSET - wanted:
            check_range(offset, wanted)
        done = os.pwrite(descriptor, buffers[0], offset) if wanted else 0
    else:
        wanted = sum(map(len, buffers))
        check_range(offset, wanted)
        done = os.pwritev(descriptor, buffers[:_IOV_MAX], offset) if wanted else 0
    while done < wanted:
        count = os.pwritev(descriptor, _rest(buffers, done), offset + done)
        if count == 0:
            raise OSError(errno.EIO, "the file system wrote no data")
        done += count
    return done


def _rest(buffers: Sequence[Buffer], done: int) -> list[memoryview]:
    """Return the buffers without their first ``done`` bytes, at most as many as one call takes."""
    rest = []
    for buffer in buffers:
        if done >= len(buffer):
            done -= len(buffer)
            continue
        rest.append(memoryview(buffer)[done:])
        done = 0
        if len(rest) == _IOV_MAX:
            break
    return rest


def zero_range(descriptor: int, offset: int, length: int, sparse: bool) -> Iterator[None]:
    """Make a range read as zeros, in steps. Bytes behind end of file are left alone.

    ``sparse``: deallocate the range. Otherwise data keeps its allocation if the file system can do that, and holes stay
    holes because they read as zeros already."""
    end = min(offset + length, os.fstat(descriptor).st_size)
    if offset >= end:
        return
    check_range(offset, end - offset)
    while offset < end:
        stop = end
        if not sparse:
            found = _next_data(descriptor, offset)
            if found is None or found[0] >= end:
                return
            offset, stop = found[0], min(found[1], end)
        while offset < stop:
            step = min(stop - offset, STEP)
            _zero(descriptor, offset, step, sparse)
            offset += step
            yield


def _next_data(descriptor: int, offset: int) -> tuple[int, int] | None:
    """Return (start, end) of the first data from ``offset`` on. None means that there is none.

    A file system that does not report holes counts as having data everywhere."""
    try:
        start = os.lseek(descriptor, offset, os.SEEK_DATA)
        return start, os.lseek(descriptor, start, os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        if error.errno == errno.EINVAL:
            return offset, MAX_OFFSET
        raise


def _zero(descriptor: int, offset: int, length: int, sparse: bool) -> None:
    modes = [syscalls.FALLOC_PUNCH_HOLE | syscalls.FALLOC_KEEP_SIZE]
    if not sparse:
        modes.insert(0, syscalls.FALLOC_ZERO_RANGE | syscalls.FALLOC_KEEP_SIZE)
    for mode in modes:
        try:
            syscalls.fallocate(descriptor, mode, offset, length)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise
        else:
            return
    zeros = bytes(min(length, _COPY_CHUNK))
    while length:
        count = write_from(descriptor, [zeros[: min(length, len(zeros))]], offset)
        offset += count
        length -= count


def truncate(descriptor: int, size: int) -> None:
    """Set end of file to ``size`` bytes."""
    check_range(size)
    os.ftruncate(descriptor, size)


def allocate(descriptor: int, size: int) -> Iterator[None]:
    """Reserve space for ``size`` bytes in steps, and give back space reserved beyond. A smaller size cuts the file.

    The last write time stays unless the file is cut, or the reservation takes more than one step. [MS-FSA 2.1.5.15.1]
    If the reservation is not completed, its space is given back. Raises ``OSError`` (ENOSPC) before the first step if
    the file system has too little space."""
    check_range(size)
    stat = os.fstat(descriptor)
    current = stat.st_size
    cluster = max(stat.st_blksize, 1)
    if size < current:
        os.ftruncate(descriptor, size)
        return
    # One more cluster than the data needs may hold extended attributes.
    if stat.st_blocks * 512 > (-(-size // cluster) + 1) * cluster:
        # Cutting a file to its present size frees the space reserved behind it.
        os.ftruncate(descriptor, current)
    if size == current:
        _keep_write_time(descriptor, stat)
        return
    done = False
    try:
        yield from _reserve(descriptor, size, stat)
        done = True
    finally:
        if not done:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size)
    if size <= STEP:
        _keep_write_time(descriptor, stat)


def fill_holes(descriptor: int) -> Iterator[None]:
    """Allocate every hole of a file in steps. Raises ``OSError`` as ``allocate`` does; what was allocated by then
    stays. [MS-FSA 2.1.5.10.36]"""
    stat = os.fstat(descriptor)
    yield from _reserve(descriptor, stat.st_size, stat)
    _keep_write_time(descriptor, stat)


def _reserve(descriptor: int, size: int, stat: os.stat_result) -> Iterator[None]:
    """Reserve space for ``size`` bytes of the file that ``stat`` describes, in steps."""
    volume = os.fstatvfs(descriptor)
    # Refuse at once: reserving until the space runs out would leave all other users without space for a moment. Some
    # file systems report no number of blocks.
    if volume.f_blocks and size - stat.st_blocks * 512 > volume.f_bavail * volume.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    try:
        for start in range(0, size, STEP):
            syscalls.fallocate(descriptor, syscalls.FALLOC_KEEP_SIZE, start, min(STEP, size - start))
            if start + STEP < size:
                yield
    except OSError as error:
        # Space is reserved on a best-effort basis: without support of the file system the request still succeeds.
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise


def _keep_write_time(descriptor: int, before: os.stat_result) -> None:
    """Undo what reserving space does to the last write time. The change time is set, also if nothing was to be done, as
    on Windows (smb2.timestamps.modern_write_time_update-2). The host allows only the file's owner to do so."""
    with contextlib.suppress(PermissionError):
        os.utime(descriptor, ns=(before.st_atime_ns, before.st_mtime_ns))


def allocated_ranges(descriptor: int, offset: int, length: int, limit: int = MAX_RANGES) -> list[tuple[int, int]]:
    """Return (offset, length) of the data in a range: at most ``limit`` pairs.

    If there are more, the last pair extends to the end of the range. A file system that does not report holes counts as
    having data everywhere."""
    end = min(offset + length, os.fstat(descriptor).st_size)
    ranges: list[tuple[int, int]] = []
    while offset < end:
        try:
            start = os.lseek(descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            if error.errno == errno.EINVAL:
                return [(offset, end - offset)]
            raise
        if start >= end:
            break
        if len(ranges) == limit - 1:
            ranges.append((start, end - start))
            break
        stop = min(os.lseek(descriptor, start, os.SEEK_HOLE), end)
        ranges.append((start, stop - start))
        offset = stop
    return ranges


def copy_range(source: int, source_offset: int, target: int, offset: int, length: int) -> int:
    """Copy bytes. Return how many were copied, which are fewer at the source's end.

    Overlapping ranges of one file behave like memmove."""
    length = min(length, os.fstat(source).st_size - source_offset)
    if length <= 0:
        return 0
    check_range(offset, length)
    done = 0
    while done < length:
        try:
            count = os.copy_file_range(source, target, length - done, source_offset + done, offset + done)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO):
                raise
            return done + _copy_by_hand(source, source_offset + done, target, offset + done, length - done)
        if count == 0:
            break
        done += count
    return done


def _copy_by_hand(source: int, source_offset: int, target: int, offset: int, length: int) -> int:
    chunk = memoryview(bytearray(min(length, _COPY_CHUNK)))
    positions = list(range(0, length, len(chunk)))
    if offset > source_offset:
        positions.reverse()
    done = 0
    for position in positions:
        wanted = min(len(chunk), length - position)
        count = read_into(source, [chunk[:wanted]], source_offset + position)
        write_from(target, [chunk[:count]], offset + position)
        done += count
    return done


def clone_range(source: int, source_offset: int, target: int, offset: int, length: int) -> None:
    """Share the extents of a range with another file. Raises ``OSError`` (EOPNOTSUPP where the file system cannot)."""
    if length == 0:
        return
    check_range(source_offset, length)
    check_range(offset, length)
    try:
        fcntl.ioctl(target, _FICLONERANGE, _CLONE_RANGE.pack(source, source_offset, length, offset))
    except OSError as error:
        if error.errno == errno.ENOTTY:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP)) from None
        raise


def set_compressed(descriptor: int, compressed: bool) -> None:
    """Set or clear FS_COMPR_FL (ioctl_iflags(2)). Raises ``OSError`` (EOPNOTSUPP without compression)."""
    try:
        (flags,) = _INODE_FLAGS.unpack(fcntl.ioctl(descriptor, _FS_IOC_GETFLAGS, bytes(_INODE_FLAGS.size)))
        # FS_COMPR_FL cannot be set beside FS_NOCOMP_FL.
        flags = flags & ~(_FS_COMPR_FL | _FS_NOCOMP_FL) | (_FS_COMPR_FL if compressed else 0)
        fcntl.ioctl(descriptor, _FS_IOC_SETFLAGS, _INODE_FLAGS.pack(flags))
    except OSError as error:
        if error.errno == errno.ENOTTY:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP)) from None
        raise
