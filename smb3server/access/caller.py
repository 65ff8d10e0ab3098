"""Computes what a user may do with real files."""

from __future__ import annotations

from typing import NamedTuple

from smb3server.access import decide, tokens
from smb3server.access.check import Token
from smb3server.access.privileges import Privilege, access_for_backup
from smb3server.access.resource_attributes import policy_of
from smb3server.backends.base import Backend, Beyond, Described, FileInfo, Kind, OpenRequest, Path, User
from smb3server.wire.create import Access

_SYMLINK = Kind.SYMLINK
_SYSTEM_SECURITY = int(Access.ACCESS_SYSTEM_SECURITY)


class Caller(NamedTuple):
    """The user who asks for access, and the tree connect in use."""

    token: Token
    user: User | None
    """POSIX credentials for opening files. None means the server's own."""
    share: int
    """The tree connect's MaximalAccess."""
    for_backup: int = 0
    """Access that the user has to every file, whatever descriptors say."""

    def opening_for_backup(self) -> Caller:
        """Return the user as one who opens a file with FILE_OPEN_FOR_BACKUP_INTENT. [MS-FSA 2.1.5.1]

        Without SeBackupPrivilege and SeRestorePrivilege nothing changes. The host lets the user do the same, as far as
        the server itself may.
        """
        given, privileges, user = access_for_backup(self.token.privileges), self.token.privileges, self.user
        if not given:
            return self
        if user is not None:
            beyond = Beyond.READ if privileges & Privilege.BACKUP else Beyond.NOTHING
            beyond |= Beyond.WRITE if privileges & Privilege.RESTORE else Beyond.NOTHING
            user = user._replace(beyond=beyond)
        return self._replace(user=user, for_backup=given)

    def rights_on(self, backend: Backend, path: Path, found: Described) -> int:
        """Return the maximal access to the file ``path``, whose metadata is ``found``.

        Raises ``OSError`` if the folder's descriptor matters and the folder cannot be opened.
        """
        own = tokens.maximal_access(found, self.token, self.user) | self.for_backup
        if found.info.kind is _SYMLINK:
            # A symbolic link of the host has no permissions: its mode always gives all rights to every user.
            own &= ~int(Access.DELETE)
        if path and decide.depends_on_parent(own):
            own = decide.with_parent(own, self._descriptor_of(backend, path[:-1]))
        return own & (self.share | self.for_backup & _SYSTEM_SECURITY)

    def needs_more(self, found: Described) -> bool:
        """Return whether ``rights_on`` looks at more than ``found``: at the descriptor of the file's folder, or at what
        a central access policy says by now."""
        stored = tokens.parsed(found.descriptor) if self.token.policies and found.descriptor else None
        if stored is not None and policy_of(stored) is not None:
            return True
        return decide.depends_on_parent(self.rights_in(found))

    def rights_in(self, found: Described) -> int:
        """Return the maximal access to a folder, without the rights that its parent folder adds.

        Those rights do not matter for the names in the folder.
        """
        return (tokens.maximal_access(found, self.token, self.user) | self.for_backup) & self.share

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
            return tokens.maximal_access(handle.describe(), self.token, self.user) | self.for_backup
        finally:
            handle.close()
