"""Symbolic links: errors for paths that stop at one, which the client follows then, and targets as POSIX has them.
[MS-SMB2 2.2.2.2.1, 3.3.5.9, MS-FSCC 2.1.2.4]"""

from __future__ import annotations

import struct

from smb3server.backends import names
from smb3server.backends.base import Backend, FolderNotRead, Handle, OpenRequest, Path, User
from smb3server.wire import attributes as attr
from smb3server.wire.status import NtStatus, StatusError

_ERROR_TAG = 0x4C4D5953
_LENGTH_AND_TAG = struct.Struct("<II")
_REPARSE_HEADER = struct.Struct("<IHH")
_NAMES = struct.Struct("<HHHHI")
"""Offset and length in bytes of SubstituteName and of PrintName, and Flags."""
_NAMES_AT = _REPARSE_HEADER.size + _NAMES.size
_RELATIVE = 1
_DOTS = ("", ".", "..")


def _target_of(buffer: bytes) -> tuple[str, bool]:
    """Return the target of a symbolic link, and whether it is relative. Raises IO_REPARSE_DATA_INVALID."""
    if len(buffer) < _NAMES_AT:
        raise StatusError(NtStatus.IO_REPARSE_DATA_INVALID)
    offset, length, _, _, flags = _NAMES.unpack_from(buffer, _REPARSE_HEADER.size)
    raw = buffer[_NAMES_AT + offset : _NAMES_AT + offset + length]
    if len(raw) != length or length % 2 or not length:
        raise StatusError(NtStatus.IO_REPARSE_DATA_INVALID)
    return raw.decode("utf-16-le", "surrogatepass"), bool(flags & _RELATIVE)


def _buffer_of(target: str, relative: bool) -> bytes:
    name = target.encode("utf-16-le", "surrogatepass")
    body = _NAMES.pack(0, len(name), len(name), len(name), _RELATIVE if relative else 0) + name + name
    return _REPARSE_HEADER.pack(attr.TAG_SYMLINK, len(body), 0) + body


def is_link(buffer: bytes) -> bool:
    """Return whether reparse data is that of a symbolic link."""
    return buffer[:4] == _TAG


_TAG = attr.TAG_SYMLINK.to_bytes(4, "little")


def to_posix(buffer: bytes) -> bytes:
    """Return the reparse data of a symbolic link as POSIX opens have it: a slash separates, and all other characters
    are as on disk. Raises IO_REPARSE_DATA_INVALID."""
    target, relative = _target_of(buffer)
    return _buffer_of("/".join(map(names.to_posix, target.split("\\"))), relative)


def from_posix(buffer: bytes) -> bytes:
    """Return reparse data as it is stored, from that of a POSIX open. Raises IO_REPARSE_DATA_INVALID.

    Linux leaves out the slash with which an absolute target begins."""
    target, relative = _target_of(buffer)
    if not relative and not target.startswith("/"):
        target = f"/{target}"
    parts = target.split("/")
    if "\0" in target or any("\ud800" <= char <= "\udfff" for char in target):
        raise StatusError(NtStatus.IO_REPARSE_DATA_INVALID)
    return _buffer_of("\\".join(part if part in _DOTS else names.to_wire(part) for part in parts), relative)


def stopped(handle: Handle, rest: Path, posix: bool = False) -> StatusError:
    """Return STOPPED_ON_SYMLINK for the link at ``handle``. ``rest`` are the components of the path after it.
    ``posix``: the open that stops there is a POSIX open."""
    buffer = handle.reparse_point()
    if buffer is None or len(buffer) < _REPARSE_HEADER.size:
        return StatusError(NtStatus.IO_REPARSE_DATA_INVALID)
    if posix:
        buffer, rest = to_posix(buffer), tuple(map(names.to_posix, rest))
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
        return stopped(handle, path[depth:], backend.posix)
    finally:
        handle.close()
