"""Giving back the blocks of large files that have no name any more, on a thread of its own.

A file that is removed ends with its last descriptor, and then close(2) takes as long as the file system needs to free
it: seconds, where it lies in many pieces. The event loop, with everybody on it, would wait.
"""

from __future__ import annotations

import functools
import os
import stat as stat_module
from concurrent.futures import ThreadPoolExecutor

LARGE = 4 << 20
"""Bytes allocated; what has less is freed at once."""
_BLOCK = 512
"""Unit of st_blocks (stat(2))."""


@functools.cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "release")


def is_large(stat: os.stat_result, kept: int = 0) -> bool:
    """Whether a file has that much to give back, of which its first ``kept`` bytes stay."""
    return stat_module.S_ISREG(stat.st_mode) and stat.st_blocks * _BLOCK - kept >= LARGE


def close(descriptor: int) -> None:
    """Close at once, or soon if that is what ends a large file."""
    stat = os.fstat(descriptor)
    if stat.st_nlink == 0 and is_large(stat):
        _executor().submit(os.close, descriptor)
    else:
        os.close(descriptor)


def hold(directory: int, name: str) -> int | None:
    """For a name that is about to be taken from a file: a descriptor to ``close`` when it is, so that the call that
    takes it does not free the file; None where that is no matter."""
    try:
        if not is_large(os.stat(name, dir_fd=directory, follow_symlinks=False)):
            return None
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        # Gone already: nobody takes it from anything.
        return None


def wait() -> None:
    """Until what was to be closed is."""
    _executor().submit(lambda: None).result()
