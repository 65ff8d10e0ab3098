"""Whether a file of one place is the copy of a file of another: by size and time, or by content."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable

from smb3server.client.places import LocalPlace, Place, SharePlace
from smb3server.wire.filetime import to_ns

_SECOND = 1_000_000_000
_FIRST_TIMES = (to_ns(1), *(seconds * _SECOND for seconds in (-(2**31), 0, 315_532_800)))
_LAST_TIMES = tuple(seconds * _SECOND for seconds in (2**31 - 1, 2**32 - 1, 15_032_385_535, 16_299_260_424))
"""The first and the last times that file systems have: ext4 without and with 64 bits, xfs without and with "bigtime",
NFS, FAT, SMB. A time beyond is stored as one of these.
"""
_BLOCK = 8 << 20
_Read = Callable[[int], Awaitable[bytes]]


def same_time(source: int, target: int, granularity: int = 100, window: int = 0) -> bool:
    """Return whether the time of a target is that of its source. All numbers are nanoseconds.

    ``granularity``: what the target counts in. ``window``: a difference that does not matter.
    """
    if abs(source - target) <= window + granularity - 1:
        return True
    return any(source < first == target for first in _FIRST_TIMES) or any(
        source > last == target for last in _LAST_TIMES
    )


async def same_content(source: Place, path: str, target: Place, other: str, size: int) -> bool:
    """Return whether two files of one size have the same content."""
    first, second = _reader(source, path), _reader(target, other)
    async with contextlib.AsyncExitStack() as stack:
        read_first, read_second = await stack.enter_async_context(first), await stack.enter_async_context(second)
        for at in range(0, size, _BLOCK):
            one, two = await asyncio.gather(read_first(at), read_second(at))
            if one != two:
                return False
    return True


@contextlib.asynccontextmanager
async def _reader(place: Place, path: str) -> AsyncIterator[_Read]:
    """Open a file, and yield what reads a block of it."""
    if isinstance(place, SharePlace):
        async with await place.share.open(place.at(path)) as file:
            yield lambda at: file.read_at(at, _BLOCK)
        return
    assert isinstance(place, LocalPlace)
    descriptor = os.open(place.at(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield lambda at: asyncio.to_thread(os.pread, descriptor, _BLOCK, at)
    finally:
        os.close(descriptor)
