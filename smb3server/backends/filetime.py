"""FILETIME (MS-DTYP 2.3.3): 100 ns units since 1601-01-01 UTC, against POSIX nanoseconds since 1970."""

from __future__ import annotations

import errno

EPOCH = 116444736000000000
"""1970-01-01 as a FILETIME."""


def from_ns(nanoseconds: int) -> int:
    return EPOCH + nanoseconds // 100


def to_ns(filetime: int) -> int:
    return (filetime - EPOCH) * 100


def check(*filetimes: int | None) -> None:
    """EINVAL for what is no FILETIME: those are below 2^63 (MS-FSCC 2.1.1)."""
    for filetime in filetimes:
        if filetime is not None and not 0 <= filetime < 1 << 63:
            raise OSError(errno.EINVAL, "time out of range")
