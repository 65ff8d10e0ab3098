"""Identifies files by the handles of the file system itself (name_to_handle_at(2)).

Such a handle does not depend on the file's names and takes no descriptor. It never leads to a later file that has the
same inode number.

Some fit into 64 bits, and make numbers that no later file gets: those of ext4 and XFS have the inode number and its
generation; btrfs gives no inode number twice in a subvolume.
"""

from __future__ import annotations

import errno
import os
import struct

from smb3server.backends.local import syscalls
from smb3server.backends.local.syscalls import FileId, Statx

_INODE_32, _XFS, _BTRFS = 1, 0x81, 0x4D
"""Types of handles. (linux/exportfs.h)"""
_LAYOUTS = {(_INODE_32, 8): struct.Struct("<II"), (_XFS, 12): struct.Struct("<QI"), (_BTRFS, 20): struct.Struct("<QQI")}
"""By type and size: inode number and generation; of btrfs, inode number, subvolume and generation."""


class FileIds:
    """File handles for one share. ``root`` is the O_PATH descriptor of the share's root, which the caller closes."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._device = -1
        self._mount = -1
        """A descriptor on the file system. -1: not opened yet, or handles are not usable."""
        self._of_root = FileId(0, b"")
        self._usable: bool | None = None
        """Whether files can be opened by handle. None means that it was not tried yet."""

    def of(self, descriptor: int, stat: Statx) -> FileId | None:
        """Return the handle of an open file. ``stat`` is the file's own.

        None if the file could not be opened by it: the file is on another file system mounted below the share, the file
        system has no such handles, or the server lacks CAP_DAC_READ_SEARCH."""
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
            self._of_root = syscalls.name_to_handle(self._root)
            os.close(self.open(self._of_root))
        except OSError:
            self.close()
            return False
        return True

    def number(self, file_id: FileId) -> int:
        """Return a number that no other file of the file system ever has. 0: there is none."""
        layout = _LAYOUTS.get((file_id.type, len(file_id.data)))
        if layout is None:
            return 0
        inode, *rest = layout.unpack(file_id.data)
        if file_id.type == _BTRFS:
            return int(inode) if file_id.data[8:16] == self._of_root.data[8:16] else 0
        return int(rest[0] << 32 | inode) if inode < 1 << 32 else 0

    def of_number(self, number: int) -> FileId | None:
        """Return the handle of the file with a number. None: no file has one."""
        if self._usable is None:
            self._usable = self._try()
        kind, data = self._of_root
        layout = _LAYOUTS.get((kind, len(data)))
        if not self._usable or layout is None or not number:
            return None
        if kind == _BTRFS:
            # Any generation will do: it is 0 for the file system then.
            return FileId(kind, layout.pack(number, int.from_bytes(data[8:16], "little"), 0))
        return FileId(kind, layout.pack(number & 0xFFFFFFFF, number >> 32))

    def open(self, file_id: FileId) -> int:
        """Return an O_PATH descriptor, which the caller closes. Raises ``FileNotFoundError`` if the file is gone."""
        try:
            return syscalls.open_by_handle(self._mount, file_id, os.O_PATH | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno == errno.ESTALE:
                raise FileNotFoundError(errno.ENOENT, "the file is gone") from None
            raise

    def close(self) -> None:
        """Close the descriptor. After this no file can be opened by its handle."""
        mount, self._mount = self._mount, -1
        self._usable = False
        if mount >= 0:
            os.close(mount)
