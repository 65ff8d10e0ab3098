"""Claims on images: what one disk writes or reads from, another server, another disk of this server, and QEMU do not
write.

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
_CHANGES = (_WRITES, _RESIZES)
_NO_LOCKS = frozenset((errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
"""Errors of a file system that has no locks, as NFS without lockd(8)."""


def claim(handle: Handle, write: bool = True) -> None:
    """Claim an image before it is written, or before others are read through it. Raises ``OSError``: EBUSY if somebody
    else writes it, or if it was to be written and others need it as it is."""
    descriptor = handle.fileno()
    if descriptor is None or not hasattr(fcntl, "F_OFD_SETLK"):
        return
    done = (_READS, *_CHANGES) if write else (_READS,)
    try:
        for byte in [_DOES + what for what in done] + [_REFUSES + what for what in _CHANGES]:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, 0, byte, 1, 0))
        of_others = [_REFUSES + what for what in done] + [_DOES + what for what in _CHANGES]
        taken = any(_is_taken(descriptor, byte) for byte in of_others)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        taken = True
    if taken:
        give_up(handle)
        raise OSError(
            errno.EBUSY,
            "another server or program writes to the image, or reads other images through it; remedy: let one of them"
            " end",
            None,
        )


def _is_taken(descriptor: int, byte: int) -> bool:
    found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, byte, 1, 0))
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def only_read(handle: Handle) -> None:
    """Reduce the claim on an image that is not written any more. Others still may not write it."""
    _unlock(handle, _DOES + _WRITES, _REFUSES - _DOES - _WRITES)


def give_up(handle: Handle) -> None:
    """End the claim on an image. Without one nothing happens."""
    _unlock(handle, _DOES, _REFUSES)


def _unlock(handle: Handle, start: int, length: int) -> None:
    descriptor = handle.fileno()
    if descriptor is None or not hasattr(fcntl, "F_OFD_SETLK"):
        return
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, start, length, 0))
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
