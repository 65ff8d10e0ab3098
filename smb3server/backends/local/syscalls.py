"""Linux system calls for which the standard library has no wrapper.

The calls that most requests make are in ``file_calls``, and in C in ``_native``. The others are here, through ctypes.
Every function raises ``OSError`` with the call's errno. Calls added after Linux 5.0 have the same number on all
architectures. The numbers of older calls depend on the machine.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from typing import NamedTuple

from smb3server.backends.local.file_calls import Ids, Statx
from smbdirect import native

if native.available("smb3server.backends.local._native"):
    from smb3server.backends.local._native import (
        fgetxattr,
        find_file,
        getxattr,
        getxattr_at,
        openat2,
        openat2_stat,
        ordinary_entries,
        statx,
        statx_at,
        switch_ids,
        switch_uid,
    )
else:
    from smb3server.backends.local.file_calls import (
        fgetxattr,
        find_file,
        getxattr,
        getxattr_at,
        openat2,
        openat2_stat,
        ordinary_entries,
        statx,
        statx_at,
        switch_ids,
        switch_uid,
    )

__all__ = [
    "Ids",
    "Statx",
    "fgetxattr",
    "find_file",
    "getxattr",
    "getxattr_at",
    "openat2",
    "openat2_stat",
    "ordinary_entries",
    "statx",
    "statx_at",
    "switch_ids",
    "switch_uid",
]
"""What most requests call, in C where that is built."""

_libc = ctypes.CDLL(None, use_errno=True)

_SYS_SETGROUPS = {"x86_64": 116, "aarch64": 159}.get(platform.machine())

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
RENAME_NOREPLACE = 1
KEEP_ID = 0xFFFFFFFF
"""For ``switch_ids`` and ``switch_uid``: do not change this one."""

FALLOC_KEEP_SIZE = 0x01
FALLOC_PUNCH_HOLE = 0x02
FALLOC_ZERO_RANGE = 0x10

BTRFS_SUPER_MAGIC = 0x9123683E
LATE = frozenset(
    (
        0x6969,  # NFS
        0xFF534D42,  # CIFS
        0xFE534D42,  # SMB2
        0x65735546,  # FUSE
        0x01021997,  # 9P
        0x00C36400,  # Ceph
        0x5346414F,  # AFS
        0x6B414653,  # kAFS
        0x73757245,  # Coda
        0x0BD00BD0,  # Lustre
        0xAAD7AAEA,  # PanFS
        0x47504653,  # GPFS
        0x19830326,  # BeeGFS
        0x786F4256,  # VirtualBox
        0xBACBACBC,  # VMware
    )
)
"""File systems that ask another machine or another program."""
_WORD = struct.Struct("@L")
_STATFS_ROOM = 256
_FILE_HANDLE = struct.Struct("<Ii")
_MAX_HANDLE = 128
"""MAX_HANDLE_SZ, in bytes."""


class FileId(NamedTuple):
    """A struct file_handle: the file system's own identifier of a file, including the generation of its inode."""

    type: int
    data: bytes


_name_to_handle_at = _libc.name_to_handle_at
_name_to_handle_at.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
_open_by_handle_at = _libc.open_by_handle_at
_open_by_handle_at.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_renameat2 = _libc.renameat2
_renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
_fallocate = _libc.fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_fstatfs = _libc.fstatfs
_fstatfs.argtypes = (ctypes.c_int, ctypes.c_void_p)
inotify_add_watch = _libc.inotify_add_watch
inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
_inotify_init1 = _libc.inotify_init1
_inotify_init1.argtypes = (ctypes.c_int,)
_inotify_rm_watch = _libc.inotify_rm_watch
_inotify_rm_watch.argtypes = (ctypes.c_int, ctypes.c_int)
_setgroups = _libc.syscall
_setgroups.restype = ctypes.c_long
_setgroups.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p)


def _error(name: bytes | None = None) -> OSError:
    code = ctypes.get_errno()
    if name is None:
        return OSError(code, os.strerror(code))
    return OSError(code, os.strerror(code), os.fsdecode(name))


def have_openat2() -> bool:
    """Return whether openat2(2) works: not on kernels before 5.6, nor if a seccomp filter refuses it."""
    try:
        os.close(openat2(_AT_FDCWD, b"/", os.O_PATH | os.O_DIRECTORY, RESOLVE_NO_SYMLINKS))
    except OSError:
        return False
    return True


def name_to_handle(descriptor: int) -> FileId:
    """Call name_to_handle_at(2) for an open descriptor, which may be O_PATH."""
    buffer = ctypes.create_string_buffer(_FILE_HANDLE.size + _MAX_HANDLE)
    _FILE_HANDLE.pack_into(buffer, 0, _MAX_HANDLE, 0)
    mount = ctypes.c_int()
    if _name_to_handle_at(descriptor, b"", ctypes.byref(buffer), ctypes.byref(mount), _AT_EMPTY_PATH) != 0:
        raise _error()
    size, kind = _FILE_HANDLE.unpack_from(buffer)
    return FileId(kind, buffer.raw[_FILE_HANDLE.size : _FILE_HANDLE.size + size])


def open_by_handle(mount: int, file_id: FileId, flags: int) -> int:
    """Call open_by_handle_at(2), which needs CAP_DAC_READ_SEARCH. Raises ESTALE if the file no longer exists.
    ``mount``: a descriptor of its file system, not an O_PATH one."""
    handle = ctypes.create_string_buffer(_FILE_HANDLE.pack(len(file_id.data), file_id.type) + file_id.data)
    descriptor = _open_by_handle_at(mount, ctypes.byref(handle), flags | os.O_CLOEXEC)
    if descriptor < 0:
        raise _error()
    return int(descriptor)


def file_system_type(descriptor: int) -> int:
    """Return f_type of statfs(2), a number of linux/magic.h."""
    buffer = ctypes.create_string_buffer(_STATFS_ROOM)
    if _fstatfs(descriptor, ctypes.addressof(buffer)) != 0:
        raise _error()
    return int(_WORD.unpack_from(buffer)[0])


def renameat2(source_directory: int, source: bytes, directory: int, target: bytes, flags: int) -> None:
    """Call renameat2(2)."""
    if _renameat2(source_directory, source, directory, target, flags) != 0:
        raise _error(target)


def fallocate(descriptor: int, mode: int, offset: int, length: int) -> None:
    """Call fallocate(2). ``mode``: FALLOC_*."""
    if _fallocate(descriptor, mode, offset, length) != 0:
        raise _error()


# These functions change the credentials of this thread only. The C library's setgroups() would change every thread's.


def set_ids(uid: int, gid: int) -> None:
    """Set uid and gid that this thread has for files. Raises PermissionError if the kernel refuses them."""
    switch_ids(uid, gid)
    if switch_ids(KEEP_ID, KEEP_ID) != (uid, gid):
        raise PermissionError(errno.EPERM, f"cannot act as uid {uid}, gid {gid}")


def set_thread_groups(groups: tuple[int, ...]) -> None:
    """Set the supplementary groups of this thread only."""
    if _SYS_SETGROUPS is None:
        raise OSError(errno.ENOSYS, f"setgroups of one thread is not known on {platform.machine()}")
    array = (ctypes.c_uint32 * len(groups))(*groups)
    if _setgroups(_SYS_SETGROUPS, len(groups), array) != 0:
        raise _error()


def inotify_init() -> int:
    """Return a new non-blocking inotify descriptor."""
    descriptor = int(_inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if descriptor < 0:
        raise _error()
    return descriptor


def inotify_add(descriptor: int, path: bytes, mask: int) -> int:
    """Watch a path for the events in ``mask``. Return the watch descriptor."""
    watch = int(inotify_add_watch(descriptor, path, mask))
    if watch < 0:
        raise _error(path)
    return watch


def inotify_remove(descriptor: int, watch: int) -> None:
    """Remove a watch."""
    if _inotify_rm_watch(descriptor, watch) != 0:
        raise _error()
