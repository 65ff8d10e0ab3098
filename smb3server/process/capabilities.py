"""Capabilities of the calling thread, by capget(2) and capset(2). Each thread has its own sets (capabilities(7))."""

from __future__ import annotations

import ctypes
import enum
import os
from typing import NamedTuple

_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


class Capability(enum.IntFlag):
    """The capabilities that this server uses or names (linux/capability.h)."""

    CHOWN = 1 << 0
    DAC_OVERRIDE = 1 << 1
    DAC_READ_SEARCH = 1 << 2
    FOWNER = 1 << 3
    FSETID = 1 << 4
    SETGID = 1 << 6
    SETUID = 1 << 7
    SETPCAP = 1 << 8
    LINUX_IMMUTABLE = 1 << 9
    NET_BIND_SERVICE = 1 << 10
    NET_ADMIN = 1 << 12
    NET_RAW = 1 << 13
    IPC_LOCK = 1 << 14
    SYS_PTRACE = 1 << 19
    SYS_ADMIN = 1 << 21
    SYS_RESOURCE = 1 << 24
    MKNOD = 1 << 27
    MAC_OVERRIDE = 1 << 32


NO_CAPABILITY = Capability(0)

UNIT = (
    Capability.SETUID
    | Capability.SETGID
    | Capability.CHOWN
    | Capability.DAC_OVERRIDE
    | Capability.DAC_READ_SEARCH
    | Capability.FOWNER
    | Capability.FSETID
    | Capability.SYS_ADMIN
    | Capability.NET_BIND_SERVICE
    | Capability.NET_RAW
    | Capability.NET_ADMIN
    | Capability.IPC_LOCK
)
"""What the unit gives a server that is not root (AmbientCapabilities=)."""


class Sets(NamedTuple):
    """The capability sets of a thread, as bit masks."""

    effective: int
    permitted: int
    inheritable: int = 0


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Data(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


def get() -> Sets:
    """Return the sets of the calling thread. Raise ``OSError`` if that fails."""
    data = (_Data * 2)()
    if _libc.capget(ctypes.byref(_Header(_VERSION_3, 0)), ctypes.byref(data)) != 0:
        raise _error()
    low, high = data
    return Sets(
        low.effective | high.effective << 32,
        low.permitted | high.permitted << 32,
        low.inheritable | high.inheritable << 32,
    )


class Change:
    """A change of the calling thread's sets, which is prepared once and can be made repeatedly."""

    __slots__ = ("_data", "_header", "_header_address", "_address")

    def __init__(self, sets: Sets) -> None:
        self._header = _Header(_VERSION_3, 0)
        self._header_address = ctypes.addressof(self._header)
        parts = ([value >> shift & 0xFFFFFFFF for value in sets] for shift in (0, 32))
        self._data = (_Data * 2)(*(_Data(*part) for part in parts))
        self._address = ctypes.addressof(self._data)

    def make(self) -> None:
        """Set the sets of the calling thread. Raise ``PermissionError`` for a capability that is not in the permitted
        set."""
        if _capset(self._header_address, self._address) != 0:
            raise _error()


_capset = _libc.capset
_capset.argtypes = (ctypes.c_void_p, ctypes.c_void_p)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def names(mask: int) -> list[str]:
    """Return the names of the capabilities in a mask, as capabilities(7) writes them."""
    known = {flag.value: f"CAP_{flag.name}" for flag in Capability}
    return [known.get(1 << bit, f"CAP_{bit}") for bit in range(mask.bit_length()) if mask & 1 << bit]
