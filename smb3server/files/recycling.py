"""A share's recycle folder: deleted files are moved there instead of being removed.

The recycle folder belongs to the server, and the folder of each user in it to that user alone. Both are made before a
deletion is promised: what cannot be kept is not deleted.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from smb3server.access.caller import Caller
from smb3server.access.descriptor import EVERYONE, LOCAL_SYSTEM, Acl, Control, SecurityDescriptor, Sid, allow, unpack
from smb3server.access.identity import Identity
from smb3server.access.masks import FILE_ALL_ACCESS, FILE_GENERIC_EXECUTE, FILE_GENERIC_READ
from smb3server.backends.base import Backend, Disposition, Handle, KeptFolder, Kind, OpenRequest, Path, User
from smb3server.backends.name_rules import NameRules
from smb3server.wire import attributes as attr

log = logging.getLogger(__name__)

USER = "{user}"
"""Stands for the name of the user who deletes, in the path of the folder."""
_TRIES = 1000
"""Names that are tried for a file that was deleted before."""
_SHARED_MODE, _PRIVATE_MODE = 0o755, 0o700
_NS_OF_A_DAY = 86400 * 10**9
_INHERITED = 3
"""OBJECT_INHERIT and CONTAINER_INHERIT."""


def _descriptor(owner: Sid, *aces: tuple[Sid, int, int]) -> bytes:
    dacl = Acl(tuple(allow(sid, mask, flags) for sid, mask, flags in (*aces, (LOCAL_SYSTEM, FILE_ALL_ACCESS, 0))))
    return SecurityDescriptor(owner, None, dacl, None, int(Control.DACL_PROTECTED)).pack()


_FOR_ALL = _descriptor(LOCAL_SYSTEM, (EVERYONE, int(FILE_GENERIC_READ | FILE_GENERIC_EXECUTE), 0))
"""Of the folder that has those of the users: they may find their own there, and add nothing."""


def _owned_by(owner: Sid) -> Callable[[bytes | None], bool]:
    """Return a test for descriptors that ``owner`` owns. Folders without one were made by the server, too: those that
    clients make have an owner, or belong to another user of the host."""

    def accepts(stored: bytes | None) -> bool:
        try:
            return stored is None or unpack(stored).owner in (None, owner)
        except ValueError:
            return False

    return accepts


def _private_folder(caller: Caller) -> KeptFolder:
    owner = caller.token.user
    descriptor = _descriptor(owner, (owner, FILE_ALL_ACCESS, _INHERITED))
    return KeptFolder(descriptor, _PRIVATE_MODE, _owned_by(owner), caller.user)


_SERVERS = KeptFolder(_FOR_ALL, _SHARED_MODE, _owned_by(LOCAL_SYSTEM))


@dataclass(slots=True)
class Emptied:
    """What a share's recycle folder had when it was looked at last, and what was removed from it since the start."""

    files: int = 0
    bytes: int = 0
    removed_files: int = 0
    removed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Recycling:
    """Which files are kept, and where."""

    folder: Path
    """The path in the share. ``{user}`` in it stands for the user's name."""
    excludes: Callable[[str], bool] | None = None
    """Returns whether files of this name are removed at once. None means that none are."""
    max_size: int = 0
    """Bytes. Larger files are removed at once. 0 means that size does not matter."""
    keep_days: int = 0
    """Days after which a file is removed from the folder. 0 means never."""
    max_total: int = 0
    """Bytes of all files in the folder. 0 means that they do not matter."""

    def make(self, backend: Backend) -> None:
        """Make the folder that has those of the users. Raises ``OSError``."""
        for length in range(1, len(self.folder)):
            if USER in self.folder[length - 1]:
                return
            backend.keep_folder(self.folder[:length], _SERVERS)

    def prepare(self, backend: Backend, handle: Handle, identity: Identity | None, caller: Caller) -> None:
        """Make the folder of a user who asks for a deletion, if the file is to be kept. Raises ``OSError``."""
        if self._concerns(backend, handle):
            top, _ = self._top(backend, identity, _private_folder(caller))
            if backend.stat(top).key.volume != handle.key.volume:
                raise OSError(errno.EXDEV, "the file is on another file system, mounted below the share", top[-1])

    def _top(self, backend: Backend, identity: Identity | None, last: KeptFolder) -> tuple[Path, bytes]:
        """Make or find a user's folder. Return its path and its descriptor. Raises ``OSError``."""
        path = tuple(entry.replace(USER, _name_of(identity)) for entry in self.folder)
        for length in range(1, len(path)):
            backend.keep_folder(path[:length], _SERVERS)
        return path, backend.keep_folder(path, last)

    def keep(
        self, backend: Backend, handle: Handle, identity: Identity | None, user: User | None, caller: Caller | None
    ) -> Path | None:
        """Move a file that is being deleted to the recycle folder, under the path that it had.

        ``identity``, ``user`` and ``caller`` say who asked for the deletion. Return the file's new path, or None if it
        is not to be kept. Raises ``OSError`` if it cannot be moved.
        """
        if not self._concerns(backend, handle):
            return None
        info = handle.info()
        if info.link_count > 1 or (self.max_size and info.end_of_file > self.max_size):
            return None
        if info.attributes & attr.TEMPORARY:
            return None
        path = handle.path
        # An open that was restored has no caller. Its folder was made when the deletion was asked for.
        there = KeptFolder(None, _PRIVATE_MODE, lambda stored: True, user)
        folder = _private_folder(caller) if caller is not None else there
        top, private = self._top(backend, identity, folder)
        for length in range(1, len(path)):
            request = OpenRequest((*top, *path[:length]), disposition=Disposition.OPEN_IF, directory=True, user=user)
            request.security_descriptor = private or None
            backend.open(request).close()
        try:
            handle.note_deletion()
        except OSError as error:
            # The disk may be full. Moving the file sets its change time, which counts then.
            log.info("the time of a deletion is not stored: %s", error)
        return _move(handle, (*top, *path), user)

    def _concerns(self, backend: Backend, handle: Handle) -> bool:
        """Return whether a file is of the kind that is kept, as far as its name says it."""
        if handle.stream or handle.kind is not Kind.FILE:
            return False
        path = handle.path
        return not self._is_inside(path, backend.name_rules) and not (
            self.excludes is not None and self.excludes(path[-1])
        )

    @property
    def is_emptied(self) -> bool:
        """Whether files are removed from the folder by age or for room."""
        return bool(self.keep_days or self.max_total)

    @property
    def fixed(self) -> Path:
        """The part of the folder's path that is the same for all users."""
        return tuple(takewhile(lambda entry: USER not in entry, self.folder))

    def is_old(self, since: int, now: int) -> bool:
        """Return whether a file that was deleted at ``since`` is to be removed at ``now``. Both in nanoseconds since
        1970."""
        return bool(self.keep_days) and now - since >= self.keep_days * _NS_OF_A_DAY

    def user_of(self, path: Path) -> Path | None:
        """Return the folder of the user whose recycle folder a path leads into; None if it leads into none."""
        depth = len(self.folder)
        if len(path) <= depth:
            return None
        for entry, pattern in zip(path, self.folder, strict=False):
            before, there, after = pattern.partition(USER)
            if there and (len(entry) <= len(before + after) or entry[: len(before)] != before):
                return None
            if entry != pattern if not there else not entry.endswith(after):
                return None
        return path[:depth]

    def holds(self, path: Path, rules: NameRules) -> bool:
        """Return whether a folder is one of those that the server makes for all: clients may not move it away, and put
        their own in its place. ``rules``: those of its store."""
        return bool(path) and rules.same(path, self.fixed[: len(path)])

    def _is_inside(self, path: Path, rules: NameRules) -> bool:
        """Return whether a path leads into the recycle folder: what is deleted there is gone."""
        fixed = self.fixed
        return len(path) > len(fixed) and rules.same(path[: len(fixed)], fixed)


def _name_of(identity: Identity | None) -> str:
    name = "nobody" if identity is None or identity.anonymous else "guest" if identity.guest else identity.listed_name
    return name.replace("/", "_").replace("\\", "_").strip(". ") or "nobody"


def problem(error: OSError) -> str:
    """Return what is wrong with a recycle folder, for the operator."""
    return f"recycle folder {error.filename or ''}: {error.strerror or error}"


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
