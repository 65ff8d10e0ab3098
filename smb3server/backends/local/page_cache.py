"""Whether the data of a file is in memory. cachestat(2), Linux 6.5 and later."""

from __future__ import annotations

import ctypes
import mmap
import struct
import threading

_CACHESTAT = 451
"""The same number on all architectures."""
_RANGE = struct.Struct("=QQ")
_PAGES = struct.Struct("=Q")
_SIZE_OF_RESULT = 40
_SHIFT = mmap.PAGESIZE.bit_length() - 1

# The call waits for nothing, so it is not worth giving up the interpreter's lock.
_syscall = ctypes.PyDLL(None).syscall
_syscall.argtypes = (ctypes.c_long, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
_syscall.restype = ctypes.c_long


class _Buffers(threading.local):
    """Each thread has its own: another one may run between what is written, the call and what is read."""

    def __init__(self) -> None:
        given, result = ctypes.create_string_buffer(_RANGE.size), ctypes.create_string_buffer(_SIZE_OF_RESULT)
        self.all = given, ctypes.addressof(given), result, ctypes.addressof(result)


_buffers = _Buffers()


def holds(descriptor: int, offset: int, length: int) -> bool:
    """Return whether ``length`` bytes from ``offset`` on, at least one, are in the page cache.

    Holes are not. Nor is anything, as far as is known, if the kernel does not answer: it is older, a filter refuses the
    call, or the caller neither owns the file nor may write to it."""
    given, given_address, result, result_address = _buffers.all
    _RANGE.pack_into(given, 0, offset, length)
    if _syscall(_CACHESTAT, descriptor, given_address, result_address, 0) != 0:
        return False
    return bool(_PAGES.unpack_from(result)[0] > (offset + length - 1 >> _SHIFT) - (offset >> _SHIFT))
