"""Computes what a user may do with real files."""

from __future__ import annotations

from typing import NamedTuple

from smb3server.access import decide, tokens
from smb3server.access.check import Token
from smb3server.backends.base import Backend, Described, FileInfo, Kind, OpenRequest, Path, User
from smb3server.wire.create import Access


class Caller(NamedTuple):
    """The user who asks for access, and the tree connect in use."""

    token: Token
    user: User | None
    """POSIX credentials for opening files. None means the server's own."""
    share: int
    """The tree connect's MaximalAccess."""

    def rights_on(self, backend: Backend, path: Path, found: Described) -> int:
        """Return the maximal access to the file ``path``, whose metadata is ``found``.

        Raises ``OSError`` if the folder's descriptor matters and the folder cannot be opened.
        """
        own = tokens.maximal_access(found, self.token, self.user)
        if found.info.kind == Kind.SYMLINK:
            # A symbolic link of the host has no permissions: its mode always gives all rights to every user.
            own &= ~int(Access.DELETE)
        if path and decide.depends_on_parent(own):
            own = decide.with_parent(own, self._descriptor_of(backend, path[:-1]))
        return own & self.share

    def rights_in(self, found: Described) -> int:
        """Return the maximal access to a folder, without the rights that its parent folder adds.

        Those rights do not matter for the names in the folder.
        """
        return tokens.maximal_access(found, self.token, self.user) & self.share

    def rights_by_name(self, backend: Backend, path: Path) -> tuple[int, FileInfo]:
        """Return the maximal access to the file ``path``, and its metadata. Does not follow a final link. Raises
        ``OSError``."""
        handle = backend.open(OpenRequest(path, open_reparse_point=True, user=self.user))
        try:
            found = handle.describe()
            return self.rights_on(backend, path, found), found.info
        finally:
            handle.close()

    def rights_in_folder(self, backend: Backend, path: Path) -> int:
        """Return the maximal access to the folder ``path``, like ``rights_in``. Raises ``OSError``."""
        return self._descriptor_of(backend, path) & self.share

    def _descriptor_of(self, backend: Backend, folder: Path) -> int:
        handle = backend.open(OpenRequest(folder, directory=True, user=self.user))
        try:
            return tokens.maximal_access(handle.describe(), self.token, self.user)
        finally:
            handle.close()
