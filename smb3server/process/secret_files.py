"""Files with secrets: they are read only if no other user could have read or changed them."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

from smb3server.process.words import user_name

MAX_SECRET = 1 << 20
"""Most bytes of such a file."""
_OTHERS = 0o037
"""Mode bits that must not be set. A group of this process may read."""
_GROUP_READS = 0o040

PASSWORD_VARIABLE = "SMB3SERVER_PASSWORD"
"""Variable of the environment that may have a password."""


class SecretFileError(ValueError):
    """A file with a secret was refused; the text has the reason and the remedy."""


def read_secret(path: Path, owners: Collection[int] = ()) -> bytes:
    """Return the content of a file that only its owner, and groups of this process, may read.

    The owner must be root, the user that this process runs as, or one of ``owners`` (user ids). Raises
    ``SecretFileError`` if the file cannot be read, is not a regular file, is longer than ``MAX_SECRET`` bytes, has
    another owner, or can be read or changed by others.
    """
    try:
        # O_NONBLOCK: a FIFO without a writer must not block the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SecretFileError(f"{path}: {error.strerror}") from error
    try:
        # Check the open file: the name may lead to another one by now.
        _check(path, os.fstat(descriptor), owners)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_SECRET + 1)
    except OSError as error:
        raise SecretFileError(f"{path}: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(data) > MAX_SECRET:
        raise SecretFileError(f"{path} is longer than {MAX_SECRET} bytes")
    return data


def _check(path: Path, found: os.stat_result, owners: Collection[int]) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise SecretFileError(f"{path}: not a regular file")
    if found.st_uid not in (0, os.geteuid(), *owners):
        # Of a server that runs as a user of its own, root may have asked.
        owner = user_name(found.st_uid, "'#{}'")
        also = f", or run this as its owner (sudo -u {owner})" if os.geteuid() == 0 else ""
        raise SecretFileError(
            f"{path} belongs to another user, uid {found.st_uid}; remedy: chown {os.geteuid()} {path}{also}"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & _OTHERS or (mode & _GROUP_READS and found.st_gid not in {os.getegid(), *os.getgroups()}):
        raise SecretFileError(
            f"{path} has secrets, and others may read or change it (mode {mode:04o}); remedy: chmod 600 {path}"
        )
