"""Files known by what the file system itself calls them (name_to_handle_at(2)): whatever their names are, without a
descriptor, and never mistaken for a later file that has their inode number."""

from __future__ import annotations

import errno
import os

from smb3server.backends.local import syscalls
from smb3server.backends.local.syscalls import FileId, Statx


class FileIds:
    """Of one share. ``root`` is its root's O_PATH descriptor, and stays open."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._device = -1
        self._mount = -1
        """A descriptor on the file system; -1: not asked for yet, or of no use."""
        self._usable: bool | None = None

    def of(self, descriptor: int, stat: Statx) -> FileId | None:
        """None where a file cannot be opened again by it: another file system mounted below the share, one without
        such names, or a server without CAP_DAC_READ_SEARCH."""
        if self._usable is None:
            self._usable = self._try()
        if not self._usable or stat.dev != self._device:
            return None
        try:
            return syscalls.name_to_handle(descriptor)
        except OSError:
            return None

    def _try(self) -> bool:
        try:
            self._device = syscalls.statx(self._root).dev
            self._mount = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)
            os.close(self.open(syscalls.name_to_handle(self._root)))
        except OSError:
            self.close()
            return False
        return True

    def open(self, file_id: FileId) -> int:
        """An O_PATH descriptor, the caller's to close. ``FileNotFoundError``: the file is gone."""
        try:
            return syscalls.open_by_handle(self._mount, file_id, os.O_PATH | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno == errno.ESTALE:
                raise FileNotFoundError(errno.ENOENT, "the file is gone") from None
            raise

    def close(self) -> None:
        mount, self._mount = self._mount, -1
        self._usable = False
        if mount >= 0:
            os.close(mount)
