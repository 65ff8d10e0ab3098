"""Mode and owner of local files that are written beside their name and renamed when they are complete."""

from __future__ import annotations

import functools
import os
import stat
import time
from pathlib import Path

PRIVATE = 0o600
"""The mode of a file that is being written: whoever may read what it becomes is not known yet."""


def take_place_of(descriptor: int, target: Path) -> None:
    """Give an open file the mode and owner of the file that it replaces, or the mode of a new file.

    If the group cannot be kept, the rights of the group are not given to another one.
    """
    try:
        old = target.lstat()
    except FileNotFoundError:
        old = None
    if old is None or not stat.S_ISREG(old.st_mode):
        os.fchmod(descriptor, 0o666 & ~_umask())
        return
    mode = old.st_mode & 0o777
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(descriptor, old.st_uid if os.geteuid() == 0 else -1, old.st_gid)
        except PermissionError:
            mode &= ~stat.S_IRWXG
    os.fchmod(descriptor, mode)


def _umask() -> int:
    """Return the umask, as it was within the last second."""
    return _umask_at(int(time.monotonic()))


@functools.lru_cache(maxsize=1)
def _umask_at(second: int) -> int:
    """Return the umask. Asking for it by os.umask would change it for other threads for a while."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))
