"""Rights on the objects of an interface that has no files: who gets which, and the descriptor that says so.
[MS-DTYP 2.4.3, 2.5.3]"""

from __future__ import annotations

from typing import NamedTuple

from smb3server.access.descriptor import AUTHENTICATED_USERS, LOCAL_SYSTEM, Acl, SecurityDescriptor, Sid, allow
from smb3server.access.masks import INVALID_BITS
from smb3server.state.objects import Session
from smb3server.state.server_state import ServerState
from smb3server.wire.create import Access

ADMINISTRATORS = Sid(5, (32, 544))
OWNER_SECURITY, GROUP_SECURITY, DACL_SECURITY, SACL_SECURITY = 1, 2, 4, 8
"""SECURITY_INFORMATION. [MS-DTYP 2.4.7]"""


class ObjectRights(NamedTuple):
    """What generic rights stand for, and what users get."""

    read: int
    write: int
    execute: int
    administrators: int
    """All that there is."""
    users: int
    """What every user gets who is neither a guest nor anonymous."""

    def maximal(self, server: ServerState, session: Session) -> int:
        """Return everything that the user of a session may do."""
        if server.accounts.administers(session.identity):
            return self.administrators
        return 0 if session.identity is None or session.is_guest or session.is_anonymous else self.users

    def granted(self, desired: int, server: ServerState, session: Session) -> int | None:
        """Return what an open of the object is granted, or None if the user may not have all of it."""
        maximal = self.maximal(server, session)
        generic = {
            Access.GENERIC_READ: self.read,
            Access.GENERIC_WRITE: self.write,
            Access.GENERIC_EXECUTE: self.execute,
            Access.GENERIC_ALL: self.administrators,
        }
        wanted = desired & ~(sum(generic) | Access.MAXIMUM_ALLOWED)
        for bit, rights in generic.items():
            wanted |= rights if desired & bit else 0
        if wanted & (~maximal | INVALID_BITS) or not maximal:
            return None
        return maximal if desired & Access.MAXIMUM_ALLOWED else int(wanted)

    def descriptor(self, parts: int) -> bytes:
        """Return the descriptor with the parts that SECURITY_INFORMATION names. There are no audit entries."""
        aces = [allow(ADMINISTRATORS, self.administrators)]
        if self.users:
            aces.append(allow(AUTHENTICATED_USERS, self.users))
        return SecurityDescriptor(
            owner=LOCAL_SYSTEM if parts & OWNER_SECURITY else None,
            group=LOCAL_SYSTEM if parts & GROUP_SECURITY else None,
            dacl=Acl(tuple(aces)) if parts & DACL_SECURITY else None,
        ).pack()
