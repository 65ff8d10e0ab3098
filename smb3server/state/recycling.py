"""A share's recycle folder: deleted files are moved there instead of being removed."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smb3server.backends.base import Disposition, Kind, OpenRequest

if TYPE_CHECKING:
    from smb3server.access.identity import Identity
    from smb3server.backends.base import Backend, Handle, Path, User

log = logging.getLogger(__name__)

USER = "{user}"
"""Stands for the name of the user who deletes, in the path of the folder."""
_TRIES = 1000
"""Names that are tried for a file that was deleted before."""
_PRIVATE_MODE = 0o700


@dataclass(frozen=True, slots=True)
class Recycling:
    """Which files are kept, and where."""

    folder: Path
    """The path in the share. ``{user}`` in it stands for the user's name."""
    excludes: Callable[[str], bool] | None = None
    """Returns whether files of this name are removed at once. None means that none are."""
    max_size: int = 0
    """Bytes. Larger files are removed at once. 0 means that size does not matter."""

    def keep(self, backend: Backend, handle: Handle, identity: Identity | None, user: User | None) -> Path | None:
        """Move a file that is being deleted to the recycle folder, under the path that it had.

        ``identity`` and ``user`` say who deletes it. Return its new path, or None if it is not to be kept. Raises
        ``OSError`` if it cannot be moved.
        """
        path = handle.path
        if handle.stream or handle.kind is not Kind.FILE or self._is_inside(path):
            return None
        if self.excludes is not None and self.excludes(path[-1]):
            return None
        info = handle.info()
        if info.link_count > 1 or (self.max_size and info.end_of_file > self.max_size):
            return None
        top = tuple(entry.replace(USER, _name_of(identity)) for entry in self.folder)
        _make_folders(backend, top, user)
        _make_folders(backend, (*top, *path[:-1]), user, done=len(top))
        return _move(handle, (*top, *path), user)

    def _is_inside(self, path: Path) -> bool:
        """Return whether a path leads into the recycle folder: what is deleted there is gone."""
        fixed = [entry for entry in self.folder if USER not in entry]
        return len(path) > len(fixed) and [entry.casefold() for entry in path[: len(fixed)]] == [
            entry.casefold() for entry in fixed
        ]


def _name_of(identity: Identity | None) -> str:
    name = "nobody" if identity is None or identity.anonymous else "guest" if identity.guest else identity.listed_name
    return name.replace("/", "_").replace("\\", "_").strip(". ") or "nobody"


def _make_folders(backend: Backend, path: Path, user: User | None, done: int = 0) -> None:
    """Make the missing folders of a path below the first ``done`` ones."""
    for length in range(done + 1, len(path) + 1):
        # The server makes the recycle folder itself, because users may not write to each other's. The last part of it
        # belongs to the user alone. What is in there the user makes.
        maker = user if done else None
        request = OpenRequest(path[:length], disposition=Disposition.OPEN_IF, directory=True, user=maker)
        # A user could lead the server elsewhere by a symlink.
        request.open_reparse_point = maker is None
        folder = backend.open(request)
        try:
            if folder.created and not done and user is not None and length == len(path):
                folder.set_permissions(user.uid, user.gid, _PRIVATE_MODE)
        finally:
            folder.close()


def _move(handle: Handle, target: Path, user: User | None) -> Path:
    """Move a file to a path, or to one beside it if that is taken."""
    for number in range(_TRIES):
        name = target[-1] if not number else f"Copy #{number} of {target[-1]}"
        try:
            handle.rename((*target[:-1], name), replace=False, user=user)
        except FileExistsError:
            continue
        return (*target[:-1], name)
    raise FileExistsError(errno.EEXIST, "too many deleted files of this name", target[-1])
