"""Freeing the blocks of large files that have no name left, on a separate thread.

A removed file ends with its last descriptor, and then close(2) takes as long as the file system needs to free it:
seconds, if it is fragmented. The event loop, with all clients on it, would wait."""

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
    """Return whether a file has ``LARGE`` bytes or more to free, of which its first ``kept`` bytes stay."""
    return stat_module.S_ISREG(stat.st_mode) and stat.st_blocks * _BLOCK - kept >= LARGE


def close(descriptor: int) -> None:
    """Close a descriptor at once, or on another thread if that frees a large file."""
    stat = os.fstat(descriptor)
    if stat.st_nlink == 0 and is_large(stat):
        _executor().submit(os.close, descriptor)
    else:
        os.close(descriptor)


def hold(directory: int, name: str) -> int | None:
    """Return a descriptor of a large file that is about to lose a name, so that the call which removes the name does
    not free the file; pass it to ``close`` afterwards. None for other files."""
    try:
        if not is_large(os.stat(name, dir_fd=directory, follow_symlinks=False)):
            return None
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        # Gone already: nobody takes it from anything.
        return None


def wait() -> None:
    """Wait until all pending descriptors are closed."""
    _executor().submit(lambda: None).result()
