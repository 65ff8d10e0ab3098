"""Checks reparse data before it is stored, and builds it for the host's symlinks. [MS-FSCC 2.1.2]"""

from __future__ import annotations

import errno
import struct

from smb3server.wire import attributes as attr

_HEADER = struct.Struct("<IHH")
_SYMLINK = struct.Struct("<HHHHI")
_RELATIVE = 1
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
    """Return a Symbolic Link Reparse Data Buffer for a POSIX target. [MS-FSCC 2.1.2.4]"""
    name = target.replace("/", "\\").encode("utf-16-le", "surrogatepass")
    flags = 0 if target.startswith("/") else _RELATIVE
    body = _SYMLINK.pack(0, len(name), len(name), len(name), flags) + name + name
    return _HEADER.pack(attr.TAG_SYMLINK, len(body), 0) + body
