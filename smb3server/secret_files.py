"""Files with secrets in them: read only if nobody else could have read or written them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MAX_SIZE = 1 << 16
"""Bytes."""
_OTHERS = 0o077


class SecretFileError(Exception):
    """Says why a file with a secret is refused, and what to do."""


def read_secret(path: Path) -> bytes:
    """Return the content of a file that only its owner may read or write.

    The owner must be root or the user that this process runs as. Raises ``SecretFileError``: the file cannot be read,
    is no regular file, is larger than ``MAX_SIZE`` bytes, has another owner, or group or others have any right to it.
    """
    try:
        # A FIFO without a writer must not hold up the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SecretFileError(f"{path}: {error.strerror}") from error
    try:
        # Of what is open: the name may lead elsewhere by now.
        found = os.fstat(descriptor)
        _check(path, found)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_SIZE + 1)
    except OSError as error:
        raise SecretFileError(f"{path}: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(data) > MAX_SIZE:
        raise SecretFileError(f"{path}: larger than {MAX_SIZE} bytes")
    return data


def _check(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise SecretFileError(f"{path}: not a regular file")
    if found.st_uid not in (0, os.geteuid()):
        raise SecretFileError(
            f"{path}: it belongs to uid {found.st_uid}, this process runs as uid {os.geteuid()}; remedy: chown it"
        )
    if stat.S_IMODE(found.st_mode) & _OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        raise SecretFileError(f"{path}: others than its owner have rights (mode {mode:04o}); remedy: chmod 600 {path}")
