"""Whether the data of a file is in memory. cachestat(2), Linux 6.5 and later."""

from __future__ import annotations

import ctypes
import mmap
import struct

_CACHESTAT = 451
"""The same number on all architectures."""
_RANGE = struct.Struct("=QQ")
_PAGES = struct.Struct("=Q")
_SIZE_OF_RESULT = 40
_SHIFT = mmap.PAGESIZE.bit_length() - 1

# The interpreter lock is held during the call, which waits for nothing. So no two threads use the buffers at once.
_syscall = ctypes.PyDLL(None).syscall
_syscall.argtypes = (ctypes.c_long, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
_syscall.restype = ctypes.c_long
_range = ctypes.create_string_buffer(_RANGE.size)
_range_address = ctypes.addressof(_range)
_result = ctypes.create_string_buffer(_SIZE_OF_RESULT)
_result_address = ctypes.addressof(_result)


def holds(descriptor: int, offset: int, length: int) -> bool:
    """Return whether ``length`` bytes from ``offset`` on, at least one, are in the page cache.

    Holes are not. Nor is anything, as far as is known, if the kernel does not answer: it is older, a filter refuses the
    call, or the caller neither owns the file nor may write to it."""
    _RANGE.pack_into(_range, 0, offset, length)
    if _syscall(_CACHESTAT, descriptor, _range_address, _result_address, 0) != 0:
        return False
    return bool(_PAGES.unpack_from(_result)[0] > (offset + length - 1 >> _SHIFT) - (offset >> _SHIFT))
