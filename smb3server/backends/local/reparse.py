"""Checks reparse data before it is stored, and builds it for the host's symlinks and special files. [MS-FSCC 2.1.2]"""

from __future__ import annotations

import errno
import os
import stat as stat_module
import struct

from smb3server.backends import names
from smb3server.wire import attributes as attr

_HEADER = struct.Struct("<IHH")
_SYMLINK = struct.Struct("<HHHHI")
_RELATIVE = 1
_NFS_TYPE = struct.Struct("<Q")
_DEVICE = struct.Struct("<II")
_SPECIAL = {
    stat_module.S_IFIFO: attr.NFS_FIFO,
    stat_module.S_IFSOCK: attr.NFS_SOCKET,
    stat_module.S_IFCHR: attr.NFS_CHARACTER_DEVICE,
    stat_module.S_IFBLK: attr.NFS_BLOCK_DEVICE,
}
_GUID_SIZE = 16
_MICROSOFT = 0x80000000


def check(data: bytes) -> int:
    """Return the tag of a REPARSE_DATA_BUFFER. Raises ``OSError`` (EINVAL) if it is malformed. [MS-FSCC 2.1.2]

    EINVAL becomes STATUS_IO_REPARSE_DATA_INVALID."""
    if not _HEADER.size <= len(data) <= attr.MAX_REPARSE_BYTES:
        raise OSError(errno.EINVAL, "bad length of reparse data")
    tag, length, _ = _HEADER.unpack_from(data)
    guid = 0 if tag & _MICROSOFT else _GUID_SIZE
    # Tags 0 and 1 are reserved (MS-FSCC 2.1.2.1).
    if tag in (0, 1) or len(data) != _HEADER.size + guid + length:
        raise OSError(errno.EINVAL, "bad reparse data")
    return int(tag)


def symlink_buffer(target: str) -> bytes:
    """Return a Symbolic Link Reparse Data Buffer for a POSIX target on disk. [MS-FSCC 2.1.2.4]"""
    parts = (part if part in ("", ".", "..") else names.to_wire(part) for part in target.split("/"))
    name = "\\".join(parts).encode("utf-16-le", "surrogatepass")
    flags = 0 if target.startswith("/") else _RELATIVE
    body = _SYMLINK.pack(0, len(name), len(name), len(name), flags) + name + name
    return _HEADER.pack(attr.TAG_SYMLINK, len(body), 0) + body


def special_buffer(mode: int, device: int) -> bytes | None:
    """Return an NFS Reparse Data Buffer for a FIFO, socket or device of the host; None for any other file.
    [MS-FSCC 2.1.2.6]

    ``device``: what a device file stands for (st_rdev)."""
    kind = _SPECIAL.get(stat_module.S_IFMT(mode))
    if kind is None:
        return None
    body = _NFS_TYPE.pack(kind)
    if stat_module.S_ISCHR(mode) or stat_module.S_ISBLK(mode):
        body += _DEVICE.pack(os.major(device), os.minor(device))
    return _HEADER.pack(attr.TAG_NFS, len(body), 0) + body
