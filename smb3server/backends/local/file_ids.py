"""Files identified by the handle that the file system gives them (name_to_handle_at(2)): whatever their names are,
without a descriptor, and never mistaken for a later file with the same inode number."""

from __future__ import annotations

import errno
import os

from smb3server.backends.local import syscalls
from smb3server.backends.local.syscalls import FileId, Statx


class FileIds:
    """Identifies files of one share. ``root``: an O_PATH descriptor of its root, which stays open."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._device = -1
        self._mount = -1
        """A descriptor on the file system; -1: not asked for yet, or of no use."""
        self._usable: bool | None = None

    def of(self, descriptor: int, stat: Statx) -> FileId | None:
        """Return the identity of a file. None if it could not be opened again by it: it is on another file system
        mounted below the share, or on one without handles, or the server has no CAP_DAC_READ_SEARCH."""
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
        """Return an O_PATH descriptor of the file, which the caller closes. Raises ``FileNotFoundError`` if the file is
        gone."""
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
