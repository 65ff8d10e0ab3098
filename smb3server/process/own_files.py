"""Folders and files with names that others know: in a folder such as /tmp they may have made them before."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def is_shared(folder: Path) -> bool:
    """Return whether everybody may make names in a folder. Raises ``OSError``."""
    return bool(os.stat(folder).st_mode & (stat.S_ISVTX | stat.S_IWOTH))


def open_folder(folder: Path) -> int:
    """Return a descriptor (O_PATH) of a folder, which the caller closes.

    A link in the folder's place is followed only if root or this user has made it. Raises ``OSError``.
    """
    above = os.stat(folder.parent)
    planted = above.st_mode & (stat.S_ISVTX | stat.S_IWOTH) or above.st_uid not in (0, os.geteuid())
    flags = os.O_NOFOLLOW if planted else 0
    return os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | flags)


def check_folder(descriptor: int) -> None:
    """Raise ``PermissionError`` unless this user owns an open folder and nobody else may write to it."""
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EACCES, "directory belongs to another user")
    if found.st_mode & _OTHERS_WRITE:
        raise PermissionError(errno.EACCES, "others may write to its directory")


def check_planted_folder(folder: Path) -> None:
    """Raise ``PermissionError`` if somebody else may have made a folder where everybody may make one. Raises
    ``OSError``.
    """
    if is_shared(folder.parent):
        descriptor = open_folder(folder)
        try:
            check_folder(descriptor)
        finally:
            os.close(descriptor)


def check_planted_file(descriptor: int, path: Path) -> None:
    """Raise ``PermissionError`` if somebody else may have made an open file where everybody may make one. Raises
    ``OSError``.
    """
    found = os.fstat(descriptor)
    usual = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_uid in (0, os.geteuid())
    if not usual and is_shared(path.parent):
        raise PermissionError(
            errno.EACCES, "everybody may make names in its folder, and another user has made this one", str(path)
        )


def mark_of(path: Path | None) -> tuple[int, int, int]:
    """Return what differs once a file was changed or replaced, or has another mode or owner. Zeros: it is not there.

    The time of the last change (st_ctime) counts: no program can set it, and a renewed file may have any other time.
    """
    try:
        found = os.stat(path or "")
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_ctime_ns, found.st_size


def replace_file(path: Path, content: bytes, dress: Callable[[int], None] = lambda descriptor: None) -> None:
    """Replace a file: whoever reads it, after a crash at any time, finds the old or the new content.

    Its mode is 0600 unless ``dress``, which is handed the new file's descriptor, changes it. Only one writer at a time
    may do this. Raises ``OSError``.
    """
    new = path.with_name(f"{path.name}.new")
    # A writer that was killed may have left one.
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        dress(descriptor)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(new, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
