"""A lock that allows one server per state directory. Two servers would share a ServerGuid, side cars and stored opens,
and corrupt them."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

LOCK_NAME = "lock"


class StateLock:
    """The lock on one state directory. It is held until ``release`` or until the process ends in any way (flock(2))."""

    def __init__(self, directory: Path) -> None:
        """Take the lock. Raise ``BlockingIOError``, whose text names the process, if another server has the directory,
        and ``OSError`` if it cannot be locked."""
        path = directory / LOCK_NAME
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip()
                who = f"process {owner}" if owner.isdecimal() else "a process that is just starting"
                raise BlockingIOError(errno.EWOULDBLOCK, f"another server uses it: {who}") from None
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        """Release the lock. The file remains: if it were removed, two servers could lock two files of the same name."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
