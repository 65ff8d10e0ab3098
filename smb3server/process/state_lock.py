"""One server per state directory: two would share a ServerGuid, side cars and stored opens, and spoil both."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

LOCK_NAME = "lock"


class StateLock:
    """A lock on a state directory, held until ``release`` or the end of the process, however it ends (flock(2))."""

    def __init__(self, directory: Path) -> None:
        """Raise ``BlockingIOError``, whose text names the process, if another server has the directory; ``OSError`` if
        there can be no lock in it."""
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
        """Let the next server in. The file stays: to remove it would let two servers lock two files of one name."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
