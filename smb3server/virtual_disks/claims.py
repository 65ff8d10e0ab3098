"""Claims on an image that is written: another server, another disk of this server, and QEMU do not write it then.

These are open file description locks (fcntl(2)) on the bytes that QEMU uses (block/file-posix.c): a shared lock on byte
100 + N says that the holder does N with the image, one on byte 200 + N that nobody else may. They end with the
descriptor, however its process ends.
"""

from __future__ import annotations

import errno
import fcntl
import struct

from smb3server.backends.base import Handle

_FLOCK = struct.Struct("hh4xqqi4x")
"""struct flock: type, whence, start, length, process."""
_READS, _WRITES, _RESIZES = 0, 1, 3
"""What is done with an image, as QEMU numbers it."""
_DOES, _REFUSES = 100, 200
_MINE = [_DOES + what for what in (_READS, _WRITES, _RESIZES)] + [_REFUSES + what for what in (_WRITES, _RESIZES)]
_OF_OTHERS = [_REFUSES + what for what in (_READS, _WRITES, _RESIZES)] + [_DOES + what for what in (_WRITES, _RESIZES)]
_NO_LOCKS = frozenset((errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
"""Errors of a file system that has no locks, as NFS without lockd(8)."""


def claim(handle: Handle) -> None:
    """Claim an image before it is written. Raises ``OSError``: EBUSY if somebody else writes it."""
    descriptor = handle.fileno()
    if descriptor is None or not hasattr(fcntl, "F_OFD_SETLK"):
        return
    try:
        for byte in _MINE:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, 0, byte, 1, 0))
        taken = any(_is_taken(descriptor, byte) for byte in _OF_OTHERS)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        taken = True
    if taken:
        give_up(handle)
        raise OSError(errno.EBUSY, "another server or program writes to the image; remedy: let one of them end", None)


def _is_taken(descriptor: int, byte: int) -> bool:
    found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, byte, 1, 0))
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def give_up(handle: Handle) -> None:
    """End the claim on an image that is not written any more. Without one nothing happens."""
    descriptor = handle.fileno()
    if descriptor is None or not hasattr(fcntl, "F_OFD_SETLK"):
        return
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, _DOES, _REFUSES, 0))
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
