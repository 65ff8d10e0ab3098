"""The system calls by which files are found, described and listed, through ctypes.

``_native`` does the same in C. ``syscalls`` chooses between the two, and everything else imports from there. Every
function raises ``OSError`` with the call's errno.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat as stat_module
import struct
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from smb3server.backends.base import FileInfo

_libc = ctypes.CDLL(None, use_errno=True)

_SYS_OPENAT2 = 437
_SYS_GETXATTRAT = 464

_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_AT_EMPTY_PATH = 0x1000

_STATX_BASIC_AND_BTIME = 0xFFF
_STATX_ATTR_COMPRESSED = 0x4
# mask, blksize, attributes, nlink, uid, gid, mode, pad, ino, size, blocks, attributes_mask,
# four times (atime, btime, ctime, mtime), rdev major/minor, dev major/minor
_STATX = struct.Struct("<IIQIIIHHQQQQ" + "qIi" * 4 + "IIII")
_XATTR_ROOM = 4096


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


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


class _XattrArgs(ctypes.Structure):
    _fields_ = [("value", ctypes.c_uint64), ("size", ctypes.c_uint32), ("flags", ctypes.c_uint32)]


class _ThreadBuffers(threading.local):
    """Buffers for results. Each thread has its own, because ctypes releases the interpreter lock during a call."""

    def __init__(self) -> None:
        self.statx = ctypes.create_string_buffer(256)
        self.statx_address = ctypes.addressof(self.statx)
        self.xattr = ctypes.create_string_buffer(_XATTR_ROOM)
        self.xattr_address = ctypes.addressof(self.xattr)
        self.xattr_args = _XattrArgs(self.xattr_address, _XATTR_ROOM, 0)
        self.xattr_args_address = ctypes.addressof(self.xattr_args)


_buffers = _ThreadBuffers()

_statx = _libc.statx
_statx.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)
_setfsuid = _libc.setfsuid
_setfsuid.argtypes = (ctypes.c_uint32,)
_setfsuid.restype = ctypes.c_uint32
_setfsgid = _libc.setfsgid
_setfsgid.argtypes = (ctypes.c_uint32,)
_setfsgid.restype = ctypes.c_uint32
_fgetxattr = _libc.fgetxattr
_fgetxattr.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_fgetxattr.restype = ctypes.c_ssize_t
_lgetxattr = _libc.lgetxattr
_lgetxattr.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_lgetxattr.restype = ctypes.c_ssize_t
_getxattr = _libc.getxattr
_getxattr.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_getxattr.restype = ctypes.c_ssize_t


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


def _error(name: bytes | None = None) -> OSError:
    code = ctypes.get_errno()
    if name is None:
        return OSError(code, os.strerror(code))
    return OSError(code, os.strerror(code), os.fsdecode(name))


def switch_ids(uid: int, gid: int) -> tuple[int, int]:
    """Set uid and gid that this thread has for files, and return those it had. Only the next call shows whether the
    kernel has accepted them."""
    return _setfsuid(uid), _setfsgid(gid)


def switch_uid(uid: int) -> int:
    """Do ``switch_ids`` for the uid alone."""
    return int(_setfsuid(uid))


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
    if _statx(descriptor, b"", _AT_EMPTY_PATH, _STATX_BASIC_AND_BTIME, buffers.statx_address) != 0:
        raise _error()
    return _unpack_statx(buffers.statx)


Ids = tuple[int, int, int, int]
"""Uid and gid to act with during a call, and those of the server."""


def find_file(
    directory: int, paths: Sequence[bytes], flags: int, resolve: int, data_flags: int, folder: bool, ids: Ids | None
) -> tuple[int, int, bool, Statx]:
    """Do ``openat2_stat`` for the first of one or two paths that exists. Return its index, the descriptor, whether that
    one is for data, and the stat. Raises ``FileNotFoundError`` if none exists, other errors at once.

    ``data_flags``: those of open(2) for the data of the first path, if that leads to a regular file. -1: its data is
    not opened. ``folder``: whether a directory is opened for reading. ``ids``: None means that the thread acts as it
    did. Raises PermissionError if the kernel refuses them."""
    if not 1 <= len(paths) <= 2:
        raise ValueError("one path or two")
    if ids is None:
        return _first_file(directory, paths, flags, resolve, data_flags, folder)
    descriptor = -1
    switch_ids(ids[0], ids[1])
    try:
        found = _first_file(directory, paths, flags, resolve, data_flags, folder)
        descriptor = found[1]
    finally:
        if switch_ids(ids[2], ids[3]) != ids[:2]:
            if descriptor >= 0:
                os.close(descriptor)
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), os.fsdecode(paths[0]))
    return found


def _first_file(
    directory: int, paths: Sequence[bytes], flags: int, resolve: int, data_flags: int, folder: bool
) -> tuple[int, int, bool, Statx]:
    """Do ``find_file`` as the present user."""
    index = 0
    try:
        descriptor, stat = openat2_stat(directory, paths[0], flags, resolve)
    except FileNotFoundError:
        if len(paths) == 1:
            raise
        index = 1
        descriptor, stat = openat2_stat(directory, paths[1], flags, resolve)
    is_directory = stat_module.S_ISDIR(stat.mode)
    wanted = folder if is_directory else data_flags >= 0 and stat_module.S_ISREG(stat.mode)
    if index or not wanted:
        return index, descriptor, False, stat
    try:
        if is_directory:
            data = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
        else:
            data = os.open(f"/proc/self/fd/{descriptor}", data_flags | os.O_CLOEXEC)
    except OSError as error:
        error.filename = os.fsdecode(paths[0])
        raise
    finally:
        os.close(descriptor)
    return index, data, True, stat


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
    if _statx(directory, name, _AT_SYMLINK_NOFOLLOW, _STATX_BASIC_AND_BTIME, buffers.statx_address) != 0:
        raise _error(name)
    return _unpack_statx(buffers.statx)


# The getxattr functions return None if the attribute does not exist. This is the usual case, and an exception would
# cost more.


def _xattr_result(length: int, larger: Callable[[], bytes]) -> bytes | None:
    """Return the value of ``length`` bytes in the buffer, or the result of ``larger`` if it did not fit."""
    if length >= 0:
        return _buffers.xattr.raw[:length] if length > 512 else ctypes.string_at(_buffers.xattr_address, length)
    code = ctypes.get_errno()
    if code == errno.ENODATA:
        return None
    if code == errno.ERANGE:
        try:
            return larger()
        except OSError as error:
            if error.errno == errno.ENODATA:
                return None
            raise
    raise _error()


def fgetxattr(descriptor: int, name: bytes) -> bytes | None:
    """Return an attribute of a descriptor that is not O_PATH; None if it is not set."""
    length = _fgetxattr(descriptor, name, _buffers.xattr_address, _XATTR_ROOM)
    return _xattr_result(length, lambda: os.getxattr(descriptor, name))


def getxattr(path: str, name: bytes) -> bytes | None:
    """Return an attribute of a path, usually /proc/self/fd/N (for an O_PATH descriptor); None if it is not set."""
    length = _getxattr(path.encode(), name, _buffers.xattr_address, _XATTR_ROOM)
    return _xattr_result(length, lambda: os.getxattr(path, name))


def getxattr_at(directory: int, entry: bytes, name: bytes) -> bytes | None:
    """Return an attribute of a directory's entry, without following symlinks; None if it is not set."""
    path = b"/proc/self/fd/%d/%s" % (directory, entry)
    if _have_getxattrat:
        length = _getxattrat(
            _SYS_GETXATTRAT, directory, entry, _AT_SYMLINK_NOFOLLOW, name, _buffers.xattr_args_address, 16
        )
    else:
        length = _lgetxattr(path, name, _buffers.xattr_address, _XATTR_ROOM)
    return _xattr_result(length, lambda: os.getxattr(path, name, follow_symlinks=False))


def ordinary_entries(directory: int, names: Sequence[str], attribute: bytes, block: int) -> list[FileInfo | None]:
    """Return the metadata of a directory's entries, by their on-disk names. None means that the caller has to look.

    That is the case for everything but ordinary files and directories whose ``attribute`` (the small attribute of
    ``metadata``) is not set, or holds nothing unusual. ``block``: ``MetadataStore.attribute_block``. In Python it is
    always the case, as there is nothing to gain."""
    return [None] * len(names)


def _probe_getxattrat() -> bool:
    """Return whether the kernel has getxattrat(2) (Linux 6.13 and later). It costs half as much as /proc does."""
    _getxattrat(_SYS_GETXATTRAT, _AT_FDCWD, b"/", _AT_SYMLINK_NOFOLLOW, b"user.none", _buffers.xattr_args_address, 16)
    return ctypes.get_errno() in (errno.ENODATA, errno.EOPNOTSUPP)


_have_getxattrat = _probe_getxattrat()
