"""The names that POSIX opens use, and what they are told of files and volumes. [POSIX-SMB2, POSIX-FSCC 2.3]

Owner and group are S-1-22-1-uid and S-1-22-2-gid. A symbolic link has all permissions, as POSIX has it. A special file
that a client made is a file of the host with reparse data: its type is in its tag, or in the data of an NFS tag.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Callable, Iterable
from typing import Any

from smb3server.access.descriptor import Sid
from smb3server.access.posix import group_sid, user_sid
from smb3server.backends.base import FileInfo, Kind, Path, VolumeInfo
from smb3server.backends.names import InvalidName, split_posix, to_posix
from smb3server.wire import attributes as attr
from smb3server.wire import posix as wire
from smb3server.wire.posix import PosixType
from smb3server.wire.status import NtStatus, StatusError

_NOBODY = Sid(0, (0,)).pack()
_TYPES = {
    stat.S_IFREG: PosixType.FILE,
    stat.S_IFDIR: PosixType.DIRECTORY,
    stat.S_IFLNK: PosixType.SYMLINK,
    stat.S_IFCHR: PosixType.CHARACTER_DEVICE,
    stat.S_IFBLK: PosixType.BLOCK_DEVICE,
    stat.S_IFIFO: PosixType.FIFO,
    stat.S_IFSOCK: PosixType.SOCKET,
}
_BY_TAG = {
    attr.TAG_SYMLINK: PosixType.SYMLINK,
    attr.TAG_LX_SYMLINK: PosixType.SYMLINK,
    attr.TAG_AF_UNIX: PosixType.SOCKET,
    attr.TAG_LX_FIFO: PosixType.FIFO,
    attr.TAG_LX_CHR: PosixType.CHARACTER_DEVICE,
    attr.TAG_LX_BLK: PosixType.BLOCK_DEVICE,
}
_BY_NFS_TYPE = {
    attr.NFS_FIFO: PosixType.FIFO,
    attr.NFS_SOCKET: PosixType.SOCKET,
    attr.NFS_CHARACTER_DEVICE: PosixType.CHARACTER_DEVICE,
    attr.NFS_BLOCK_DEVICE: PosixType.BLOCK_DEVICE,
    attr.NFS_SYMLINK: PosixType.SYMLINK,
}
_UNKNOWN = (1 << 64) - 1
_ENTRY = struct.Struct("<II")
"""NextEntryOffset and FileIndex of an entry in a listing."""
_NEXT = struct.Struct("<I")


def path_of(name: str) -> Path:
    """Return the path that a POSIX open names. Raises ``StatusError``. [POSIX-SMB2]"""
    try:
        return split_posix(name)
    except InvalidName as error:
        status = NtStatus.OBJECT_PATH_SYNTAX_BAD if error.above else NtStatus.OBJECT_NAME_INVALID
        raise StatusError(NtStatus.INVALID_PARAMETER if name.startswith("/") else status) from None


def shown(info: FileInfo) -> FileInfo:
    """Return ``info`` as POSIX opens see it: a special file of the host is one with an NFS tag."""
    if info.kind is not Kind.OTHER:
        return info
    return info._replace(attributes=info.attributes | attr.REPARSE_POINT, reparse_tag=attr.TAG_NFS)


def lacks_type(info: FileInfo) -> bool:
    """Return whether only the reparse data tells the type of a file."""
    return info.reparse_tag == attr.TAG_NFS and info.kind is not Kind.OTHER


def type_in(data: bytes | None) -> PosixType:
    """Return the type in the reparse data of an NFS tag. That of a plain file if there is none. [MS-FSCC 2.1.2.6]"""
    return _BY_NFS_TYPE.get(int.from_bytes(data[8:16], "little"), PosixType.FILE) if data else PosixType.FILE


def _mode(info: FileInfo, kind: PosixType | None) -> int:
    """Return the mode on the wire. ``kind``: the type, if the reparse data told it."""
    if kind is None:
        kind = _BY_TAG.get(info.reparse_tag) or _TYPES.get(stat.S_IFMT(info.mode), PosixType.FILE)
    return wire.mode_of(kind, 0o777 if kind is PosixType.SYMLINK else info.mode)


def _sids(info: FileInfo) -> bytes:
    return user_sid(info.uid).pack() + group_sid(info.gid).pack()


def create_response(info: FileInfo) -> bytes:
    """Return the create context of a response. [POSIX-SMB2 2.2.14.2.16]"""
    tag = info.reparse_tag if info.attributes & attr.REPARSE_POINT else 0
    fixed = wire.PosixCreateResponse(info.link_count, tag, _mode(info, None))
    return wire.POSIX_CREATE_RESPONSE.pack(fixed) + _sids(info)


def information(info: FileInfo, kind: PosixType | None) -> bytes:
    """Return FilePosixInformation. ``kind``: the type, if the reparse data told it. [POSIX-FSCC 2.3.1.1]"""
    return wire.POSIX_INFORMATION.pack(_fixed(info, kind)) + _sids(info)


def _fixed(info: FileInfo, kind: PosixType | None) -> wire.PosixInformation:
    return wire.PosixInformation(
        info.creation_time,
        info.last_access_time,
        info.last_write_time,
        info.change_time,
        info.end_of_file,
        info.allocation_size,
        info.attributes,
        info.key.inode & _UNKNOWN,
        info.key.volume & 0xFFFFFFFF,
        0,
        info.link_count,
        info.reparse_tag if info.attributes & attr.REPARSE_POINT else 0,
        _mode(info, kind),
    )


def above_the_share(info: FileInfo) -> bytes:
    """Return FilePosixInformation of what lies above a share: nothing of it is told but that it is a folder."""
    fixed = _fixed(info, PosixType.DIRECTORY)._replace(inode=0, device=0)
    return wire.POSIX_INFORMATION.pack(fixed) + _NOBODY + _NOBODY


def volume(found: VolumeInfo, serial: int) -> bytes:
    """Return FileFsPosixInformation. [POSIX-FSCC 2.3.2.1]"""
    block = max(found.block_size, 1)
    return wire.POSIX_VOLUME_INFORMATION.pack(
        wire.PosixVolumeInformation(
            block,
            block,
            found.total_bytes // block,
            found.free_bytes // block,
            found.available_bytes // block,
            _UNKNOWN if found.file_nodes is None else found.file_nodes,
            _UNKNOWN if found.free_file_nodes is None else found.free_file_nodes,
            serial & _UNKNOWN,
        )
    )


class PosixPacker:
    """One QUERY_DIRECTORY response at the level of POSIX, of at most ``limit`` bytes. [POSIX-FSCC 2.3.1.1]

    It fills like ``directory_info.Packer``. The SIDs of owner and group, which differ in size, come before the name."""

    def __init__(self, limit: int, root: bool, type_of: Callable[[str], PosixType]) -> None:
        """``root``: the directory is the share's root. ``type_of``: returns the type of the entry with a name on the
        wire, from its reparse data."""
        self.buffer = bytearray()
        self.limit = limit
        self.count = 0
        self._root = root
        self._type_of = type_of
        self._last = 0

    def add(self, entries: Iterable[tuple[str, Any]]) -> int:
        """Append entries (name and metadata), up to the first that does not fit. Return how many were appended."""
        added = 0
        for name, found in entries:
            start = len(self.buffer) + 7 & ~7
            entry = self._entry(name, shown(found))
            if start + _ENTRY.size + len(entry) > self.limit:
                break
            if self.count:
                _NEXT.pack_into(self.buffer, self._last, start - self._last)
            self.buffer += bytes(start - len(self.buffer)) + _ENTRY.pack(0, 0) + entry
            self._last = start
            self.count += 1
            added += 1
        return added

    def _entry(self, name: str, info: FileInfo) -> bytes:
        if self._root and name == "..":
            data = above_the_share(info)
        else:
            data = information(info, self._type_of(name) if lacks_type(info) else None)
        encoded = to_posix(name).encode("utf-16-le", "surrogatepass")
        return data + _NEXT.pack(len(encoded)) + encoded
