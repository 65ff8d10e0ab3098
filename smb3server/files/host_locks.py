"""Byte-range locks that programs of the host see and hold, too: open file description locks (fcntl(2), Linux).

Each open has a descriptor of its own, so its locks are its own; they go with the descriptor. SMB's ranges may lie
beyond what POSIX can say, and may be empty: those parts are not known to the host.
"""

from __future__ import annotations

import errno
import fcntl
import struct
from typing import TYPE_CHECKING

from smb3server.wire.attributes import MAX_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterable

    from smb3server.files.locks import Lock, Owner

_FLOCK = struct.Struct("hh4xqqi4x")
"""struct flock: type, whence, start, length (0: to the end), process."""


def _set(descriptor: int, kind: int, offset: int, length: int) -> bool:
    """False if a program of the host holds a lock that conflicts."""
    if length == 0 or offset > MAX_OFFSET:
        return True
    count = 0 if offset + length > MAX_OFFSET else length
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, 0, offset, count, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if error.errno == errno.EBADF:
            # An exclusive lock through a descriptor that cannot write: POSIX has none.
            return True
        raise
    return True


def take(descriptor: int | None, offset: int, length: int, exclusive: bool) -> bool:
    """Take a lock that the server's own table has granted. False if a program of the host holds one that conflicts.

    ``descriptor`` is the open's own; None: the host is not asked. Raises ``OSError``."""
    if descriptor is None:
        return True
    return _set(descriptor, fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK, offset, length)


def release(descriptor: int | None, kept: Iterable[Lock[Owner]], offset: int, length: int) -> None:
    """Give a range back whose lock is gone from the table. ``kept``: the open's other locks, which go on to hold."""
    if descriptor is None:
        return
    _set(descriptor, fcntl.F_UNLCK, offset, length)
    for lock in sorted(kept, key=lambda lock: lock.exclusive):
        _set(descriptor, fcntl.F_WRLCK if lock.exclusive else fcntl.F_RDLCK, lock.offset, lock.length)
