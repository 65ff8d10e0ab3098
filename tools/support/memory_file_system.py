"""A file system in memory that disappears with the process that mounted it, however the process ends."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x00020000, 0x4000, 1 << 18
"""From sched.h and sys/mount.h."""


@contextlib.contextmanager
def mounted(path: Path, size: int, files: int) -> Iterator[None]:
    """Mount a tmpfs of ``size`` bytes and ``files`` files. Requires root; raises ``OSError``.

    From then on this thread, and its new processes, have their own mount namespace (mount_namespaces(7)). Mounts in it
    do not reach the host's namespace, and do not outlive it.
    """
    _leave_host()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes={files}", "none", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@functools.cache
def _leave_host() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) or libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None):
        raise OSError(ctypes.get_errno(), f"no mount namespace: {os.strerror(ctypes.get_errno())}")
