"""Errors for paths that stop at a symbolic link, which the client follows then. [MS-SMB2 2.2.2.2.1, 3.3.5.9]"""

from __future__ import annotations

import struct

from smb3server.backends.base import Backend, FolderNotRead, Handle, OpenRequest, Path, User
from smb3server.wire import attributes as attr
from smb3server.wire.status import NtStatus, StatusError

_ERROR_TAG = 0x4C4D5953
_LENGTH_AND_TAG = struct.Struct("<II")
_REPARSE_HEADER = struct.Struct("<IHH")


def stopped(handle: Handle, rest: Path) -> StatusError:
    """Return STOPPED_ON_SYMLINK for the link at ``handle``. ``rest`` are the components of the path after it."""
    buffer = handle.reparse_point()
    if buffer is None or len(buffer) < _REPARSE_HEADER.size:
        return StatusError(NtStatus.IO_REPARSE_DATA_INVALID)
    tag, length, _ = _REPARSE_HEADER.unpack_from(buffer)
    # The error response is the reparse buffer with its Reserved field set to the length of the unparsed name in bytes.
    unparsed = sum(len(f"\\{part}".encode("utf-16-le", "surrogatepass")) for part in rest)
    data = _REPARSE_HEADER.pack(tag, length, unparsed) + buffer[_REPARSE_HEADER.size :]
    return StatusError(NtStatus.STOPPED_ON_SYMLINK, _LENGTH_AND_TAG.pack(4 + len(data), _ERROR_TAG) + data)


def on_the_way(backend: Backend, path: Path, user: User | None) -> StatusError | None:
    """Return STOPPED_ON_SYMLINK if an ancestor of ``path``, which was not found, is a symbolic link, or else None."""
    depth = backend.find_reparse_point(path, attr.TAG_SYMLINK, user)
    if depth is None:
        return None
    try:
        handle = backend.open(OpenRequest(path[:depth], open_reparse_point=True, user=user))
    except FolderNotRead:
        raise
    except OSError:
        return None
    try:
        return stopped(handle, path[depth:])
    finally:
        handle.close()
