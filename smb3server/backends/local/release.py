"""Frees the blocks of large removed files on a separate thread.

The file system frees a removed file when its last descriptor is closed. For a file in many pieces close(2) then takes
seconds, and the event loop, with all its clients, would wait.
"""

from __future__ import annotations

import logging
import os
import stat as stat_module
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger(__name__)

LARGE = 4 << 20
"""Bytes. Freeing, reserving or zeroing less than this is quick enough for the event loop."""
_BLOCK = 512
"""Unit of st_blocks in bytes (stat(2))."""


_executor = ThreadPoolExecutor(1, "release")
"""It starts its thread when it gets work."""


def is_large(stat: os.stat_result, kept: int = 0) -> bool:
    """Return whether freeing a file except for its first ``kept`` bytes may take long."""
    return stat_module.S_ISREG(stat.st_mode) and stat.st_blocks * _BLOCK - kept >= LARGE


def close(descriptor: int) -> None:
    """Close a descriptor: at once, or on the separate thread if it belongs to a large removed file."""
    stat = os.fstat(descriptor)
    if stat.st_nlink == 0 and is_large(stat):
        _executor.submit(os.close, descriptor)
    else:
        os.close(descriptor)


def hold(directory: int, name: str) -> int | None:
    """Return a descriptor that keeps a file while its name is removed or replaced, so that this call does not free it.

    The caller hands it to ``close`` afterwards. None means that the file is not large."""
    try:
        if not is_large(os.stat(name, dir_fd=directory, follow_symlinks=False)):
            return None
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        # The name is gone already, so there is no file to keep.
        return None


def later(work: Callable[[], None]) -> None:
    """Do on the separate thread what takes long. It must raise nothing but ``OSError``, which is logged."""
    _executor.submit(_logged, work)


def _logged(work: Callable[[], None]) -> None:
    try:
        work()
    except OSError as error:
        log.warning("removing what was deleted: %s", error)


def wait() -> None:
    """Wait until all descriptors given to ``close`` so far are closed."""
    _executor.submit(lambda: None).result()
