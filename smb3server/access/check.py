"""The access check: what a security descriptor of a file lets a token do. [MS-DTYP 2.5.3.2]"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Protocol

from smb3server.access.claims import Claims
from smb3server.access.conditions.evaluation import Facts, evaluate
from smb3server.access.descriptor import OWNER_RIGHTS, Ace, AceFlag, AceType, SecurityDescriptor, Sid
from smb3server.access.masks import FILE_ALL_ACCESS, map_generic
from smb3server.access.resource_attributes import attributes_of
from smb3server.wire.create import Access

GRANTING = frozenset((int(AceType.ALLOWED), int(AceType.ALLOWED_OBJECT)))
"""Types of entries that allow."""
DENYING = frozenset((int(AceType.DENIED), int(AceType.DENIED_OBJECT)))
"""Types of entries that deny."""
GRANTING_IF = frozenset((int(AceType.ALLOWED_CALLBACK), int(AceType.ALLOWED_CALLBACK_OBJECT)))
"""Types of entries that allow if their condition is TRUE."""
DENYING_IF = frozenset((int(AceType.DENIED_CALLBACK), int(AceType.DENIED_CALLBACK_OBJECT)))
"""Types of entries that deny unless their condition is FALSE."""
_OWNER_IMPLIED = int(Access.READ_CONTROL | Access.WRITE_DAC)


class Limits(Hashable, Protocol):
    """Central access policies, which take away from the access that descriptors give."""

    def limit(self, granted: int, descriptor: SecurityDescriptor, token: Token) -> int:
        """Return what they leave of ``granted``, which the DACL of a descriptor gives to a token."""
        ...


class Token(NamedTuple):
    """The SIDs and privileges of the user who asks for access. [MS-DTYP 2.5.2]"""

    user: Sid
    sids: frozenset[Sid]
    """All SIDs: those of the user and of its groups, and Everyone where it applies."""
    primary_group: Sid
    privileges: int = 0
    """``access.privileges.Privilege``."""
    claims: Claims | None = None
    policies: Limits | None = None
    """The policies of the server that the token is for. None: it has none."""


def applies(ace: Ace, token: Token, is_owner: bool) -> bool:
    """Return whether an entry is about the user, who owns the file (``is_owner``) or not."""
    if ace.flags & AceFlag.INHERIT_ONLY or ace.sid is None:
        return False
    return ace.sid in token.sids or (is_owner and ace.sid == OWNER_RIGHTS)


def facts_of(token: Token, descriptor: SecurityDescriptor) -> Facts:
    """Return what conditions are evaluated with: the token, and the attributes of the file with this descriptor."""
    return Facts(token.sids, token.claims, attributes_of(descriptor))


def granted_access(descriptor: SecurityDescriptor, token: Token, facts: Facts | None = None) -> int:
    """Return all access that the DACL and ownership give, which is the answer to MAXIMUM_ALLOWED. [MS-DTYP 2.5.3.2]

    ACEs are evaluated in order: a later ACE does not change a right that an earlier one allows or denies. A condition
    that is UNKNOWN neither allows nor fails to deny (MS-DTYP 2.4.4.17.3). Object ACEs count as if they had no object
    type, because files have no property sets.

    ``facts``: what conditions are evaluated with, if the resource attributes are not those of ``descriptor``.
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
        elif kind in GRANTING_IF:
            facts = facts or facts_of(token, descriptor)
            if evaluate(ace.data, facts, denying=False) is True:
                granted |= map_generic(ace.mask) & ~denied
        elif kind in DENYING_IF:
            facts = facts or facts_of(token, descriptor)
            if evaluate(ace.data, facts, denying=True) is not False:
                denied |= map_generic(ace.mask) & ~granted
    return int(granted) & FILE_ALL_ACCESS
