"""The user of the host that guests, and users without one of their own, act as if the server runs as root."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

from smb3server.backends.base import User
from smb3server.backends.local.impersonate import ActAs

_NOBODY, _NOGROUP = "nobody", "nogroup"
_OVERFLOW_ID = 65534
"""User id of nobody and group id of nogroup on hosts whose databases lack them."""


def find(folder: Path) -> User:
    """Return the owner of ``folder`` with the primary group alone; ``nobody`` if the owner is root. Raises
    ``OSError``.
    """
    uid = folder.stat().st_uid
    if uid == 0:
        return _nobody()
    try:
        gid = pwd.getpwuid(uid).pw_gid
    except KeyError:
        gid = 0
    return User(uid, gid or _nogroup(), shared=True)


def _nobody() -> User:
    try:
        entry = pwd.getpwnam(_NOBODY)
    except KeyError:
        return User(_OVERFLOW_ID, _nogroup(), shared=True)
    return User(entry.pw_uid or _OVERFLOW_ID, entry.pw_gid or _nogroup(), shared=True)


def _nogroup() -> int:
    try:
        return grp.getgrnam(_NOGROUP).gr_gid or _OVERFLOW_ID
    except KeyError:
        return _OVERFLOW_ID


def name_of(user: User) -> str:
    """Return the user's name as the host's commands accept it."""
    try:
        return pwd.getpwuid(user.uid).pw_name
    except KeyError:
        return str(user.uid)


def lacks(folder: Path, user: User, read_only: bool) -> str:
    """Return the access to ``folder`` that ``user`` lacks: ``"read"``, ``"write"`` or "".

    Only the folder itself counts: the server opens the path to it with its own rights. Raises ``OSError``.
    """
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with ActAs(user):
            if not os.access(".", os.R_OK | os.X_OK, dir_fd=descriptor, effective_ids=True):
                return "read"
            if not read_only and not os.access(".", os.W_OK | os.X_OK, dir_fd=descriptor, effective_ids=True):
                return "write"
    finally:
        os.close(descriptor)
    return ""
