"""Byte-range locks that programs of the host see and hold, too: open file description locks (fcntl(2), Linux).

Each open has a descriptor of its own, so its locks are its own; they go with the descriptor. SMB's ranges may lie
beyond what POSIX can say, and may be empty: those parts are not known to the host.
"""

from __future__ import annotations

import errno
import fcntl
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smb3server.files.locks import LockTable
    from smb3server.state.objects import Open

_FLOCK = struct.Struct("hh4xqqi4x")
"""struct flock: type, whence, start, length (0: to the end), process."""
_END = (1 << 63) - 1


def _set(descriptor: int, kind: int, offset: int, length: int) -> bool:
    """False if a program of the host holds a lock that conflicts."""
    if length == 0 or offset > _END:
        return True
    count = 0 if offset + length > _END else length
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


def take(opened: Open, offset: int, length: int, exclusive: bool) -> bool:
    """Take a lock that the server's own table has granted."""
    if opened.descriptor is None or not opened.tree.share.posix_locks:
        return True
    return _set(opened.descriptor, fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK, offset, length)


def release(opened: Open, table: LockTable, offset: int, length: int) -> None:
    """A lock of the table is gone: what the open's other locks say about the range holds."""
    descriptor = opened.descriptor
    if descriptor is None or not opened.tree.share.posix_locks:
        return
    _set(descriptor, fcntl.F_UNLCK, offset, length)
    for lock in sorted(table.locks, key=lambda lock: lock.exclusive):
        if lock.owner is opened:
            _set(descriptor, fcntl.F_WRLCK if lock.exclusive else fcntl.F_RDLCK, lock.offset, lock.length)
