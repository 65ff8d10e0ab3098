"""Converts between FILETIME (100 ns units since 1601-01-01 UTC) and POSIX nanoseconds since 1970. [MS-DTYP 2.3.3]"""

from __future__ import annotations

EPOCH = 116444736000000000
"""1970-01-01 as a FILETIME."""


def from_ns(nanoseconds: int) -> int:
    """Return the FILETIME of a POSIX time in nanoseconds."""
    return EPOCH + nanoseconds // 100


def to_ns(filetime: int) -> int:
    """Return the POSIX time of a FILETIME in nanoseconds."""
    return (filetime - EPOCH) * 100
