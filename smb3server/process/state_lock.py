"""A lock that allows one server per state directory. Two servers would share a ServerGuid, side cars and stored opens,
and corrupt them."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

LOCK_NAME = "lock"


def user_of(directory: Path) -> str:
    """Return which process uses a state directory, such as "process 12"; empty if none does.

    A server that starts at this very moment may find the directory in use."""
    try:
        descriptor = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner(descriptor)
    finally:
        os.close(descriptor)
    return ""


def _owner(descriptor: int) -> str:
    owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
    return f"process {owner}" if owner.isdecimal() else "a process that is just starting"


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
                who = _owner(self._descriptor)
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
