"""Asks real files what a user may do with them."""

from __future__ import annotations

from typing import NamedTuple

from smb3server.access import decide, tokens
from smb3server.access.check import Token
from smb3server.backends.base import Backend, Described, FileInfo, Kind, OpenRequest, Path, User
from smb3server.wire.create import Access


class Caller(NamedTuple):
    """Who asks, and through which tree connect."""

    token: Token
    user: User | None
    """POSIX credentials to look with; None: the server's own."""
    share: int
    """The tree connect's MaximalAccess."""

    def rights_on(self, backend: Backend, path: Path, found: Described) -> int:
        """Find the maximal access to a file that has the name ``path``. Raises ``OSError`` if its folder, where
        that counts, cannot be looked at."""
        own = tokens.maximal_access(found, self.token, self.user)
        if found.info.kind == Kind.SYMLINK:
            # A link of the host has no rights of its own, only a mode that gives all of them to everybody.
            own &= ~int(Access.DELETE)
        if path and decide.depends_on_parent(own):
            own = decide.with_parent(own, self._descriptor_of(backend, path[:-1]))
        return own & self.share

    def rights_in(self, found: Described) -> int:
        """Find the maximal access to a folder, without what the folder above adds: nothing that matters to the
        names in it."""
        return tokens.maximal_access(found, self.token, self.user) & self.share

    def rights_by_name(self, backend: Backend, path: Path) -> tuple[int, FileInfo]:
        """Find the maximal access to what has a name, be it a link, and what it is. Raises ``OSError``."""
        handle = backend.open(OpenRequest(path, open_reparse_point=True, user=self.user))
        try:
            found = handle.describe()
            return self.rights_on(backend, path, found), found.info
        finally:
            handle.close()

    def rights_in_folder(self, backend: Backend, path: Path) -> int:
        """Find the maximal access to the folder ``path``, as ``rights_in``. Raises ``OSError``."""
        return self._descriptor_of(backend, path) & self.share

    def _descriptor_of(self, backend: Backend, folder: Path) -> int:
        handle = backend.open(OpenRequest(folder, directory=True, user=self.user))
        try:
            return tokens.maximal_access(handle.describe(), self.token, self.user)
        finally:
            handle.close()
