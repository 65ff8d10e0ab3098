"""The access check: what a security descriptor of a file lets a token do. [MS-DTYP 2.5.3.2]"""

from __future__ import annotations

from typing import NamedTuple

from smb3server.access.claims import Claims
from smb3server.access.descriptor import OWNER_RIGHTS, Ace, AceFlag, AceType, SecurityDescriptor, Sid
from smb3server.access.masks import FILE_ALL_ACCESS, map_generic
from smb3server.wire.create import Access

GRANTING = frozenset((int(AceType.ALLOWED), int(AceType.ALLOWED_OBJECT)))
"""Types of entries that allow."""
DENYING = frozenset(
    map(int, (AceType.DENIED, AceType.DENIED_OBJECT, AceType.DENIED_CALLBACK, AceType.DENIED_CALLBACK_OBJECT))
)
"""Types of entries that deny."""
_OWNER_IMPLIED = int(Access.READ_CONTROL | Access.WRITE_DAC)


class Token(NamedTuple):
    """The SIDs and privileges of the user who asks for access. [MS-DTYP 2.5.2]"""

    user: Sid
    sids: frozenset[Sid]
    """All SIDs: those of the user and of its groups, and Everyone where it applies."""
    primary_group: Sid
    privileges: int = 0
    """``access.privileges.Privilege``."""
    claims: Claims | None = None


def applies(ace: Ace, token: Token, is_owner: bool) -> bool:
    """Return whether an entry is about the user, who owns the file (``is_owner``) or not."""
    if ace.flags & AceFlag.INHERIT_ONLY or ace.sid is None:
        return False
    return ace.sid in token.sids or (is_owner and ace.sid == OWNER_RIGHTS)


def granted_access(descriptor: SecurityDescriptor, token: Token) -> int:
    """Return all access that the DACL and ownership give, which is the answer to MAXIMUM_ALLOWED. [MS-DTYP 2.5.3.2]

    ACEs are evaluated in order: a later ACE does not change a right that an earlier one allows or denies. Conditional
    ACEs count only when they deny: conditions are not evaluated, so their result is unknown, and unknown means denied
    (MS-DTYP 2.4.4.17). Object ACEs count as if they had no object type, because files have no property sets.
    """
    dacl = descriptor.dacl
    is_owner = descriptor.owner is not None and descriptor.owner in token.sids
    if dacl is None:
        return FILE_ALL_ACCESS
    granted = 0
    denied = 0
    if is_owner and not any(ace.sid == OWNER_RIGHTS and not ace.flags & AceFlag.INHERIT_ONLY for ace in dacl.aces):
        granted = _OWNER_IMPLIED
    for ace in dacl.aces:
        kind = ace.type
        if not applies(ace, token, is_owner):
            continue
        if kind in GRANTING:
            granted |= map_generic(ace.mask) & ~denied
        elif kind in DENYING:
            denied |= map_generic(ace.mask) & ~granted
    return int(granted) & FILE_ALL_ACCESS
