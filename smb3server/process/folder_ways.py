"""The way from / to a folder of the host: who, besides root, could lead it elsewhere.

Whoever may write in a folder may put something else in the place of what is in it. A sticky folder allows that only to
the owner of the folder, and to the owner of what is in it.
"""

from __future__ import annotations

import errno
import grp
import os
import stat as stat_module
from collections.abc import Collection
from dataclasses import dataclass, field

from smb3server.process.words import user_name

_MAX_LINKS = 40
"""As the kernel has it (path_resolution(7))."""
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class Way:
    """A folder that was opened, and the folders above it that its path went through."""

    descriptor: int
    """O_PATH, of the folder itself. ``close`` closes it."""
    above: list[tuple[str, os.stat_result, os.stat_result]] = field(default_factory=list)
    """Path and status of each folder above, and the status of what was entered from there."""

    def close(self) -> None:
        """Close the descriptor. Calling it again does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def path(self) -> str:
        """Return the path of the folder, without symbolic links."""
        return os.readlink(f"/proc/self/fd/{self.descriptor}")

    def stranger(self, owner: int) -> str:
        """Return who, besides root and ``owner``, may put another folder in the place of this one, as
        ``FOLDER may be written by WHOM``; "" if nobody may."""
        for path, folder, entered in self.above:
            who = _stranger(folder, entered, (0, owner))
            if who:
                return f"{path} may be written by {who}"
        return ""


def follow(path: str) -> Way:
    """Open a folder. Symbolic links are followed only in folders that nobody but root and this server may write.

    Raises ``OSError``: ELOOP for a symbolic link that somebody else may have made."""
    left = [part for part in reversed(os.path.abspath(path).split("/")) if part]
    links = 0
    way = Way(os.open("/", _LOOK | os.O_DIRECTORY))
    try:
        while left:
            name = left.pop()
            child = os.open(name, _LOOK, dir_fd=way.descriptor)
            try:
                here, found = os.fstat(way.descriptor), os.fstat(child)
                if stat_module.S_ISLNK(found.st_mode):
                    links += 1
                    who = _stranger(here, found, (0, os.geteuid()))
                    if who or links > _MAX_LINKS:
                        raise OSError(
                            errno.ELOOP,
                            f"a symbolic link in a folder that may be written by {who}; remedy: name the folder that "
                            "it leads to"
                            if who
                            else os.strerror(errno.ELOOP),
                            os.path.join(way.path(), name),
                        )
                    target = os.readlink("", dir_fd=child)
                    left += [part for part in reversed(target.split("/")) if part and part != "."]
                    if target.startswith("/"):
                        way.close()
                        way.descriptor = os.open("/", _LOOK | os.O_DIRECTORY)
                    continue
                way.above.append((way.path(), here, found))
                way.close()
                way.descriptor, child = child, -1
            finally:
                if child >= 0:
                    os.close(child)
        if not stat_module.S_ISDIR(os.fstat(way.descriptor).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    except BaseException:
        way.close()
        raise
    return way


def _stranger(folder: os.stat_result, entered: os.stat_result, trusted: Collection[int]) -> str:
    """Return who, besides the trusted users, may put something else in the place of what is in a folder."""
    if folder.st_uid not in trusted:
        return user_name(folder.st_uid, "uid {}")
    if folder.st_mode & stat_module.S_ISVTX and entered.st_uid in trusted:
        return ""
    if folder.st_mode & 0o002:
        return "everybody"
    return f"group {_group(folder.st_gid)}" if folder.st_mode & 0o020 else ""


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
