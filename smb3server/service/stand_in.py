"""The user of the host that guests, and users without one of their own, act as if the server may act as users."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from typing import NamedTuple

from smb3server.backends.base import User
from smb3server.backends.local.impersonate import ActAs
from smb3server.process import folder_ways
from smb3server.process.words import user_name

_NOBODY, _NOGROUP = "nobody", "nogroup"
_OVERFLOW_ID = 65534
"""User id of nobody and group id of nogroup on hosts whose databases lack them."""


class Found(NamedTuple):
    """A folder, and who acts in it."""

    key: tuple[int, int]
    """Device and inode number of the folder."""
    user: User
    lacks: str
    """The access to the folder that the user lacks: ``"read"``, ``"write"`` or ""."""
    stranger: str
    """Why it is not the owner of the folder: who could put another folder in its place. "" if nobody could."""


def look(folder: Path, read_only: bool) -> Found:
    """Find the owner of ``folder`` with the primary group alone; ``nobody`` if the owner is root, or if somebody else
    could have chosen whose folder this is. Raises ``OSError``.

    Only the folder itself counts for what the user lacks: the server opens the path to it with its own rights.
    """
    way = folder_ways.follow(os.fspath(folder))
    try:
        stat = os.fstat(way.descriptor)
        stranger = way.stranger(stat.st_uid) if stat.st_uid != 0 else ""
        user = _nobody() if stat.st_uid == 0 or stranger else _owner(stat.st_uid)
        lacking = lacks(way.descriptor, user, read_only)
        return Found((stat.st_dev, stat.st_ino), user, lacking, stranger)
    finally:
        way.close()


def _owner(uid: int) -> User:
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
    return user_name(user.uid)


def lacks(folder: int, user: User | None, read_only: bool) -> str:
    """Return the access to an open folder that ``user`` lacks, as ``Found.lacks``. None means the server's own user."""
    with ActAs(user):
        if not os.access(".", os.R_OK | os.X_OK, dir_fd=folder, effective_ids=True):
            return "read"
        if not read_only and not os.access(".", os.W_OK | os.X_OK, dir_fd=folder, effective_ids=True):
            return "write"
    return ""
