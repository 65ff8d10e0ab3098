"""Linux system calls for which the standard library has no wrapper, through ctypes.

Every function raises ``OSError`` with the call's errno. Calls added after Linux 5.0 have the same number on all
architectures. The numbers of older calls depend on the machine.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import threading
from collections.abc import Sequence
from typing import NamedTuple

_libc = ctypes.CDLL(None, use_errno=True)

_SYS_OPENAT2 = 437
_SYS_GETXATTRAT = 464
_SYS_SETGROUPS = {"x86_64": 116, "aarch64": 159}.get(platform.machine())

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW = 0x100
AT_EMPTY_PATH = 0x1000
RENAME_NOREPLACE = 1

FALLOC_KEEP_SIZE = 0x01
FALLOC_PUNCH_HOLE = 0x02
FALLOC_ZERO_RANGE = 0x10

BTRFS_SUPER_MAGIC = 0x9123683E
_STATX_BASIC_AND_BTIME = 0xFFF
_STATX_ATTR_COMPRESSED = 0x4
# mask, blksize, attributes, nlink, uid, gid, mode, pad, ino, size, blocks, attributes_mask,
# four times (atime, btime, ctime, mtime), rdev major/minor, dev major/minor
_WORD = struct.Struct("@L")
_STATX = struct.Struct("<IIQIIIHHQQQQ" + "qIi" * 4 + "IIII")
_XATTR_ROOM = 4096
_FILE_HANDLE = struct.Struct("<Ii")
_MAX_HANDLE = 128
"""MAX_HANDLE_SZ, in bytes."""


class Statx(NamedTuple):
    """The fields of struct statx that the server uses. Times are nanoseconds since 1970; ``btime`` is -1 if unknown."""

    mode: int
    ino: int
    dev: int
    nlink: int
    uid: int
    gid: int
    size: int
    blocks: int
    blksize: int
    atime: int
    btime: int
    ctime: int
    mtime: int
    compressed: bool
    """STATX_ATTR_COMPRESSED."""


class FileId(NamedTuple):
    """A struct file_handle: the file system's own identifier of a file, including the generation of its inode."""

    type: int
    data: bytes


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


class _XattrArgs(ctypes.Structure):
    _fields_ = [("value", ctypes.c_uint64), ("size", ctypes.c_uint32), ("flags", ctypes.c_uint32)]


class _ThreadBuffers(threading.local):
    """Buffers for results. Each thread has its own, because ctypes releases the interpreter lock during a call."""

    def __init__(self) -> None:
        self.statx = ctypes.create_string_buffer(256)
        self.statx_address = ctypes.addressof(self.statx)
        self.handle = ctypes.create_string_buffer(_FILE_HANDLE.size + _MAX_HANDLE)
        self.xattr = ctypes.create_string_buffer(_XATTR_ROOM)
        self.xattr_address = ctypes.addressof(self.xattr)
        self.xattr_args = _XattrArgs(self.xattr_address, _XATTR_ROOM, 0)
        self.xattr_args_address = ctypes.addressof(self.xattr_args)


_buffers = _ThreadBuffers()

_statx = _libc.statx
_statx.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)
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
_setfsuid = _libc.setfsuid
_setfsuid.argtypes = (ctypes.c_uint32,)
_setfsgid = _libc.setfsgid
_setfsgid.argtypes = (ctypes.c_uint32,)
_fgetxattr = _libc.fgetxattr
_fgetxattr.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_fgetxattr.restype = ctypes.c_ssize_t
_lgetxattr = _libc.lgetxattr
_lgetxattr.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_lgetxattr.restype = ctypes.c_ssize_t
_getxattr = _libc.getxattr
_getxattr.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_getxattr.restype = ctypes.c_ssize_t
inotify_add_watch = _libc.inotify_add_watch
inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
_inotify_init1 = _libc.inotify_init1
_inotify_init1.argtypes = (ctypes.c_int,)
_inotify_rm_watch = _libc.inotify_rm_watch
_inotify_rm_watch.argtypes = (ctypes.c_int, ctypes.c_int)


def _prototype(*argtypes: type) -> ctypes._NamedFuncPointer:
    """Return a private pointer to syscall(2) with fixed argument types: each caller needs its own."""
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    function.argtypes = (ctypes.c_long, *argtypes)
    return function


_openat2 = _prototype(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_getxattrat = _prototype(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_uint, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t
)
_setgroups = _prototype(ctypes.c_int, ctypes.c_void_p)


def _error(name: bytes | None = None) -> OSError:
    code = ctypes.get_errno()
    if name is None:
        return OSError(code, os.strerror(code))
    return OSError(code, os.strerror(code), os.fsdecode(name))


def openat2(directory: int, path: bytes, flags: int, resolve: int, mode: int = 0) -> int:
    """Call openat2(2), always with close-on-exec. EAGAIN (a rename raced with a '..') is tried again, within bounds."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    for _ in range(64):
        descriptor = _openat2(_SYS_OPENAT2, directory, path, ctypes.byref(how), 24)
        if descriptor >= 0:
            return int(descriptor)
        if ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
            break
    raise _error(path)


def have_openat2() -> bool:
    """Return whether openat2(2) works: not on kernels before 5.6, nor if a seccomp filter refuses it."""
    try:
        os.close(openat2(AT_FDCWD, b"/", os.O_PATH | os.O_DIRECTORY, RESOLVE_NO_SYMLINKS))
    except OSError:
        return False
    return True


def _unpack_statx(buffer: ctypes.Array[ctypes.c_char]) -> Statx:
    (
        mask, blksize, attributes, nlink, uid, gid, mode, _pad, ino, size, blocks, _known,
        a_s, a_ns, _, b_s, b_ns, _, c_s, c_ns, _, m_s, m_ns, _, _rmajor, _rminor, major, minor,
    ) = _STATX.unpack_from(buffer)  # fmt: skip
    return tuple.__new__(
        Statx,
        (
            mode,
            ino,
            major << 20 | minor,
            nlink,
            uid,
            gid,
            size,
            blocks,
            blksize,
            a_s * 1000000000 + a_ns,
            b_s * 1000000000 + b_ns if mask & 0x800 else -1,
            c_s * 1000000000 + c_ns,
            m_s * 1000000000 + m_ns,
            bool(attributes & _STATX_ATTR_COMPRESSED),
        ),
    )


def statx(descriptor: int) -> Statx:
    """Return the stat of an open descriptor, which may be O_PATH."""
    buffers = _buffers
    if _statx(descriptor, b"", AT_EMPTY_PATH, _STATX_BASIC_AND_BTIME, buffers.statx_address) != 0:
        raise _error()
    return _unpack_statx(buffers.statx)


def openat2_first(directory: int, paths: Sequence[bytes], flags: int, resolve: int) -> tuple[int, int, Statx]:
    """Do ``openat2_stat`` for the first of ``paths`` that exists, and return its index as well. Raises
    ``FileNotFoundError`` if none exists, other errors at once."""
    last = len(paths) - 1
    for index, path in enumerate(paths):
        try:
            return index, *openat2_stat(directory, path, flags, resolve)
        except FileNotFoundError:
            if index == last:
                raise
    raise ValueError("no path")


def openat2_stat(directory: int, path: bytes, flags: int, resolve: int) -> tuple[int, Statx]:
    """Call ``openat2`` and ``statx``, and return the descriptor and the stat. If ``statx`` fails nothing stays open."""
    descriptor = openat2(directory, path, flags, resolve)
    try:
        return descriptor, statx(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def statx_at(directory: int, name: bytes) -> Statx:
    """Return the stat of a directory's entry; of a symlink itself, never of its target."""
    buffers = _buffers
    if _statx(directory, name, AT_SYMLINK_NOFOLLOW, _STATX_BASIC_AND_BTIME, buffers.statx_address) != 0:
        raise _error(name)
    return _unpack_statx(buffers.statx)


def name_to_handle(descriptor: int) -> FileId:
    """Call name_to_handle_at(2) for an open descriptor, which may be O_PATH."""
    buffer = _buffers.handle
    _FILE_HANDLE.pack_into(buffer, 0, _MAX_HANDLE, 0)
    mount = ctypes.c_int()
    if _name_to_handle_at(descriptor, b"", ctypes.byref(buffer), ctypes.byref(mount), AT_EMPTY_PATH) != 0:
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
    buffers = _buffers
    if _fstatfs(descriptor, buffers.statx_address) != 0:
        raise _error()
    return int(_WORD.unpack_from(buffers.statx)[0])


def renameat2(source_directory: int, source: bytes, directory: int, target: bytes, flags: int) -> None:
    """Call renameat2(2)."""
    if _renameat2(source_directory, source, directory, target, flags) != 0:
        raise _error(target)


def fallocate(descriptor: int, mode: int, offset: int, length: int) -> None:
    """Call fallocate(2). ``mode``: FALLOC_*."""
    if _fallocate(descriptor, mode, offset, length) != 0:
        raise _error()


# The getxattr functions return None if the attribute does not exist. This is the usual case, and an exception would
# cost more.


def _xattr_result(length: int, reread: tuple[str | int, bytes]) -> bytes | None:
    if length >= 0:
        return _buffers.xattr.raw[:length] if length > 512 else ctypes.string_at(_buffers.xattr_address, length)
    code = ctypes.get_errno()
    if code == errno.ENODATA:
        return None
    if code == errno.ERANGE:
        where, name = reread
        try:
            return os.getxattr(where, name)
        except OSError as error:
            if error.errno == errno.ENODATA:
                return None
            raise
    raise _error()


def fgetxattr(descriptor: int, name: bytes) -> bytes | None:
    """Return an attribute of a descriptor that is not O_PATH; None if it is not set."""
    length = _fgetxattr(descriptor, name, _buffers.xattr_address, _XATTR_ROOM)
    return _xattr_result(length, (descriptor, name))


def getxattr(path: str, name: bytes) -> bytes | None:
    """Return an attribute of a path, usually /proc/self/fd/N (for an O_PATH descriptor); None if it is not set."""
    length = _getxattr(path.encode(), name, _buffers.xattr_address, _XATTR_ROOM)
    return _xattr_result(length, (path, name))


def getxattr_at(directory: int, entry: bytes, name: bytes) -> bytes | None:
    """Return an attribute of a directory's entry, without following symlinks; None if it is not set. The value must be
    shorter than 4096 bytes."""
    if _have_getxattrat:
        length = _getxattrat(
            _SYS_GETXATTRAT, directory, entry, AT_SYMLINK_NOFOLLOW, name, _buffers.xattr_args_address, 16
        )
    else:
        path = b"/proc/self/fd/%d/%s" % (directory, entry)
        length = _lgetxattr(path, name, _buffers.xattr_address, _XATTR_ROOM)
    if length >= 0:
        return ctypes.string_at(_buffers.xattr_address, length)
    if ctypes.get_errno() == errno.ENODATA:
        return None
    raise _error(entry)


def _probe_getxattrat() -> bool:
    """Return whether the kernel has getxattrat(2) (Linux 6.13 and later). It costs half as much as /proc does."""
    _getxattrat(_SYS_GETXATTRAT, AT_FDCWD, b"/", AT_SYMLINK_NOFOLLOW, b"user.none", _buffers.xattr_args_address, 16)
    return ctypes.get_errno() in (errno.ENODATA, errno.EOPNOTSUPP)


_have_getxattrat = _probe_getxattrat()


# These functions change the credentials of this thread only. The C library's setgroups() would change every thread's.


def switch_fsuid(uid: int) -> int:
    """Set the file-system uid, and return the former one. Only the next call shows whether ``uid`` is in force."""
    return int(_setfsuid(uid))


def switch_fsgid(gid: int) -> int:
    """Set the file-system gid, and return the former one. Only the next call shows whether ``gid`` is in force."""
    return int(_setfsgid(gid))


def set_fsuid(uid: int) -> None:
    """Set the file-system uid of this thread. Raises PermissionError if the kernel refuses it."""
    _setfsuid(uid)
    if _setfsuid(0xFFFFFFFF) != uid:
        raise PermissionError(errno.EPERM, f"cannot act as uid {uid}")


def set_fsgid(gid: int) -> None:
    """Set the file-system gid of this thread. Raises PermissionError if the kernel refuses it."""
    _setfsgid(gid)
    if _setfsgid(0xFFFFFFFF) != gid:
        raise PermissionError(errno.EPERM, f"cannot act as gid {gid}")


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
