"""Subvolumes of btrfs: looking at them, making and removing snapshots. [btrfs-ioctl(2)]"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from smb3server.backends.local import syscalls

_MAGIC = 0x94
_ROOT_INODE = 256
"""The inode number of the root of every subvolume."""
_INFO = struct.Struct("<Q256s4Q16s16s16s4QQI4xQI4x")
"""btrfs_ioctl_get_subvol_info_args up to ``otime``."""
_INFO_SIZE = 504
_FLAGS, _SECONDS = 5, 15
"""Fields of ``_INFO``: flags, and the seconds of otime."""
_MAKE_READ_ONLY = 1 << 1
"""BTRFS_SUBVOL_RDONLY, of ``_VOLUME_2``."""
_IS_READ_ONLY = 1 << 0
"""BTRFS_ROOT_SUBVOL_RDONLY, of ``_INFO``."""
_VOLUME = struct.Struct("<q4088s")
"""btrfs_ioctl_vol_args."""
_VOLUME_2 = struct.Struct("<qQQ32s4040s")
"""btrfs_ioctl_vol_args_v2."""
_MAX_NAME = 255


def _code(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | _MAGIC << 8 | number


_SNAP_DESTROY = _code(1, 15, _VOLUME.size)
_SNAP_CREATE_V2 = _code(1, 23, _VOLUME_2.size)
_GET_SUBVOL_INFO = _code(2, 60, _INFO_SIZE)


def is_subvolume(descriptor: int) -> bool:
    """Return whether a folder is the root of a subvolume. Raises ``OSError``."""
    found = os.fstat(descriptor)
    return found.st_ino == _ROOT_INODE and syscalls.file_system_type(descriptor) == syscalls.BTRFS_SUPER_MAGIC


def made_at(descriptor: int) -> int:
    """Return when the subvolume that has an open file was made, in seconds since 1970. The descriptor must not be
    O_PATH. Raises ``OSError``: ENOTTY if the file system is not btrfs."""
    answer = bytearray(_INFO_SIZE)
    fcntl.ioctl(descriptor, _GET_SUBVOL_INFO, answer)
    return int(_INFO.unpack_from(answer)[_SECONDS])


def make_snapshot(source: int, folder: int, name: str) -> None:
    """Make a read-only snapshot of a subvolume, under a new name in a folder. Both are open for reading.

    Raises ``OSError``: FileExistsError, PermissionError for a process that neither owns the subvolume nor is root,
    EXDEV for a folder on another file system, EINVAL if ``source`` is no subvolume."""
    encoded = _checked(name)
    fcntl.ioctl(folder, _SNAP_CREATE_V2, bytearray(_VOLUME_2.pack(source, 0, _MAKE_READ_ONLY, b"", encoded)))


def remove_snapshot(folder: int, name: str) -> None:
    """Remove a read-only snapshot from a folder that is open for reading. Whatever else has the name stays.

    Raises ``OSError``: FileNotFoundError, PermissionError without CAP_SYS_ADMIN, EINVAL for what is no read-only
    snapshot."""
    encoded = _checked(name)
    found = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not is_subvolume(found) or not _is_read_only(found):
            raise OSError(errno.EINVAL, "it is no read-only snapshot of btrfs", name)
    finally:
        os.close(found)
    fcntl.ioctl(folder, _SNAP_DESTROY, bytearray(_VOLUME.pack(0, encoded)))


def _is_read_only(descriptor: int) -> bool:
    answer = bytearray(_INFO_SIZE)
    fcntl.ioctl(descriptor, _GET_SUBVOL_INFO, answer)
    return bool(_INFO.unpack_from(answer)[_FLAGS] & _IS_READ_ONLY)


def _checked(name: str) -> bytes:
    encoded = os.fsencode(name)
    if not encoded or len(encoded) > _MAX_NAME or b"/" in encoded or encoded in (b".", b".."):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name)
    return encoded
