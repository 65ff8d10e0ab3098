"""Data that judges move: a byte that stayed behind differs from what was in its place before."""

from __future__ import annotations

import os

FILLING = b"\xa5"
"""What exposed memory is full of before the server writes to it."""
_FIRST = bytes(1 + value % 0x7F for value in range(256))
_SECOND = bytes(0xC0 + value % 0x40 for value in range(256))


def content_of(size: int) -> bytes:
    """Return ``size`` random bytes, none of them zero or ``FILLING``."""
    return os.urandom(size).translate(_FIRST)


def other_content(size: int) -> bytes:
    """Return ``size`` random bytes that ``content_of`` never returns, none of them zero or ``FILLING``."""
    return os.urandom(size).translate(_SECOND)
