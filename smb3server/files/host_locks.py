"""Byte-range locks shared with programs of the host: open file description locks (fcntl(2), Linux).

The locks belong to the descriptor of an open and are released when it is closed. SMB ranges may be empty, or lie beyond
the offsets of POSIX: the host does not see those parts.
"""

from __future__ import annotations

import errno
import fcntl
import struct
from bisect import bisect_right
from collections.abc import Iterable

from smb3server.files.locks import Lock, Owner
from smb3server.wire.attributes import MAX_OFFSET

_FLOCK = struct.Struct("hh4xqqi4x")
"""struct flock: type, whence, start, length (0 means to the end), process."""


def _set(descriptor: int, kind: int, offset: int, length: int) -> bool:
    """Set or clear a lock of the host. Return False if a program of the host holds a conflicting lock."""
    if length == 0 or offset > MAX_OFFSET:
        return True
    count = 0 if offset + length > MAX_OFFSET else length
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, 0, offset, count, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if error.errno == errno.EBADF:
            # POSIX has no exclusive locks through a descriptor that cannot write.
            return True
        raise
    return True


def take(descriptor: int | None, offset: int, length: int, exclusive: bool) -> bool:
    """Take a lock on the host that the server's own table has granted.

    Return False if a program of the host holds a conflicting lock. ``descriptor`` is that of the open; None
    means that nothing is done. Raises ``OSError``."""
    if descriptor is None:
        return True
    return _set(descriptor, fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK, offset, length)


def release(descriptor: int | None, kept: Iterable[Lock[Owner]], ranges: Iterable[tuple[int, int]]) -> None:
    """Unlock ranges (offset and length) on the host after their locks were removed from the server's table.

    ``kept`` are the other locks of the open. Those that overlap the ranges are taken again, because POSIX unlocks them,
    too. Raises ``OSError``."""
    if descriptor is None:
        return
    begins: list[int] = []
    ends: list[int] = []
    for offset, length in sorted(ranges):
        _set(descriptor, fcntl.F_UNLCK, offset, length)
        if ends and offset <= ends[-1]:
            ends[-1] = max(ends[-1], offset + length)
        else:
            begins.append(offset)
            ends.append(offset + length)
    for lock in sorted(kept, key=lambda lock: lock.exclusive):
        # The first of the unlocked parts that ends behind the lock's offset.
        part = bisect_right(ends, lock.offset)
        if part < len(begins) and begins[part] < lock.offset + lock.length:
            _set(descriptor, fcntl.F_WRLCK if lock.exclusive else fcntl.F_RDLCK, lock.offset, lock.length)
