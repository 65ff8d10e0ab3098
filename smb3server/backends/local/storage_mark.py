"""The mark of a share's file system: a random number in a file that clients never see.

A directory on the wrong file system, such as an empty mount point, looks like a share whose files were all deleted.
The mark tells them apart: who knows it finds out whether the file system is there, and whether it works.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets

from smb3server.backends.names import PRIVATE_NAME

_NAME = "storage-mark"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FORM = re.compile(r"[0-9a-f]{32}")


class StorageMark:
    """The mark below one directory. All methods open the directory's path anew, and may block for as long as the file
    system does: call them on a thread."""

    def __init__(self, root: str) -> None:
        """``root``: path of the share's directory."""
        self.root = root

    @property
    def path(self) -> str:
        """The path of the file with the mark."""
        return os.path.join(self.root, PRIVATE_NAME, _NAME)

    def read(self) -> str | None:
        """Return the mark; None if there is none. Raises ``OSError``, also if the directory does not exist."""
        root = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return read_mark(root)
        finally:
            os.close(root)

    def make(self) -> str:
        """Return the mark; write one if there is none. It is on stable storage then. Raises ``OSError``."""
        place = self._place()
        try:
            mark = _read_in(place)
            if mark is None:
                _write_in(place, _NAME, secrets.token_hex(16), replace=False)
                mark = _read_in(place)
            if mark is None:
                raise OSError(f"{self.path} has no mark")
            return mark
        finally:
            os.close(place)

    def try_writing(self, name: str) -> None:
        """Write a small file to stable storage, as a test. ``name`` tells apart those who do so. Raises ``OSError``."""
        place = self._place()
        try:
            _write_in(place, f"alive-{name}", "", replace=True)
        finally:
            os.close(place)

    def _place(self) -> int:
        root = os.open(self.root, _DIRECTORY & ~os.O_NOFOLLOW)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(PRIVATE_NAME, 0o700, dir_fd=root)
                os.fsync(root)
            return os.open(PRIVATE_NAME, _DIRECTORY, dir_fd=root)
        finally:
            os.close(root)


def read_mark(root: int) -> str | None:
    """Return the mark below an open directory; None if there is none. Raises ``OSError``."""
    try:
        place = os.open(PRIVATE_NAME, _DIRECTORY, dir_fd=root)
    except FileNotFoundError:
        return None
    try:
        return _read_in(place)
    finally:
        os.close(place)


def _read_in(place: int) -> str | None:
    try:
        descriptor = os.open(_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        found = _FORM.match(file.read(64).decode("ascii", "replace"))
    return found[0] if found else None


def _write_in(place: int, name: str, text: str, replace: bool) -> None:
    """Write a file and its name to stable storage. An existing one stays unless ``replace`` is set."""
    temporary = f"t-{secrets.token_hex(8)}" if not replace else name
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_TRUNC if replace else os.O_EXCL)
    descriptor = os.open(temporary, flags, 0o600, dir_fd=place)
    try:
        os.write(descriptor, f"{text}\n".encode())
        os.fsync(descriptor)
        if not replace:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, name, src_dir_fd=place, dst_dir_fd=place)
            os.fsync(place)
    finally:
        os.close(descriptor)
        if not replace:
            os.unlink(temporary, dir_fd=place)
