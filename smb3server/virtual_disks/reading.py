"""Files that may be images of disks: reading them, and what is wrong with them."""

from __future__ import annotations

import errno

from smb3server.backends.base import Handle


class BadImage(OSError):
    """The file is no VHDX file, or one that cannot be used. It reaches clients as STATUS_SVHDX_WRONG_FILE_TYPE."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EILSEQ, reason)


def read_at(handle: Handle, offset: int, length: int) -> bytes:
    """Return bytes of a file; fewer at its end. Raises ``OSError``."""
    data = bytearray(length)
    return bytes(data[: handle.read_into([memoryview(data)], offset)])


def is_plain_name(name: str) -> bool:
    """Return whether a name that a file's content gives is one of a file in the same folder. [MS-FSCC 2.1.5]"""
    return 0 < len(name) <= 255 and name not in (".", "..") and not any(c < " " or c in '\\/:*?"<>|' for c in name)
