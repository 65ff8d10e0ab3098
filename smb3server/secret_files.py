"""Files with secrets: who else may read them is asked before they are used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MAX_SECRET = 1 << 20
"""Bytes."""


def read_secret(path: Path) -> bytes:
    """Read a file that only its owner, and groups of this process, may read. Raises ``OSError``, or ``ValueError`` with
    the remedy for a file that others may read or change."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid not in (0, os.geteuid()):
            raise ValueError(f"{path} belongs to another user; remedy: chown {os.geteuid()} {path}")
        groups = {os.getegid(), *os.getgroups()}
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o027 or (mode & 0o040 and status.st_gid not in groups):
            raise ValueError(f"{path} has secrets, and others may read or change it; remedy: chmod 600 {path}")
        content = file.read(MAX_SECRET + 1)
    if len(content) > MAX_SECRET:
        raise ValueError(f"{path} is longer than {MAX_SECRET} bytes")
    return content
