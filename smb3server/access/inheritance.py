"""Computes the security descriptor of a new object from those of its creator and its parent. [MS-DTYP 2.5.3.4]"""

from __future__ import annotations

from typing import NamedTuple

from smb3server.access.check import Token
from smb3server.access.descriptor import (
    CREATOR_GROUP,
    CREATOR_OWNER,
    Ace,
    AceFlag,
    Acl,
    Control,
    SecurityDescriptor,
    Sid,
)
from smb3server.access.masks import map_generic

_INHERITABLE = int(AceFlag.OBJECT_INHERIT | AceFlag.CONTAINER_INHERIT)
_KEPT_CONTROL = int(
    Control.DACL_PROTECTED | Control.SACL_PROTECTED | Control.RM_CONTROL_VALID | Control.SERVER_SECURITY
)
"""Control bits of the creator's descriptor that the new descriptor keeps."""
_INHERITANCE = _INHERITABLE | int(AceFlag.NO_PROPAGATE_INHERIT | AceFlag.INHERIT_ONLY)


class Child(NamedTuple):
    """Owner and group of a new object, and how it inherits."""

    is_container: bool
    """Whether it is a folder."""
    owner: Sid
    group: Sid
    auto_inherit: bool
    """Whether inherited ACEs are marked as INHERITED."""


class _Side(NamedTuple):
    """The input for computing the DACL or the SACL of a new object."""

    inherited_from: Acl | None
    """The parent's ACL."""
    own: Acl | None
    """The ACL from the creator."""
    given: bool
    """Whether the creator gives an ACL. A null ACL counts."""
    protected: bool
    """Whether inherited ACEs must not be added to the creator's ACL."""

    def compute(self, child: Child) -> tuple[Acl | None, bool]:
        """Return the ACL and whether auto-inheritance has made it (ComputeACL). [MS-DTYP 2.5.3.4.2]"""
        above, own = self.inherited_from, self.own
        inherited = inherit_aces(above, child) if above else ()
        if not self.given:
            return (Acl(inherited, _revision(above)), child.auto_inherit) if inherited else (None, False)
        if own is None:
            return None, False
        explicit = tuple(
            piece
            for ace in own.aces
            if not (child.auto_inherit and ace.flags & AceFlag.INHERITED)
            for piece in _resolve(ace, ace.flags & ~int(AceFlag.INHERITED), child)
        )
        if child.auto_inherit and inherited and not self.protected:
            return Acl(explicit + inherited, max(own.revision, _revision(above))), True
        return Acl(explicit, own.revision), False


def create_descriptor(
    parent: SecurityDescriptor | None,
    creator: SecurityDescriptor | None,
    *,
    is_container: bool,
    token: Token,
    default_dacl: Acl | None,
    auto_inherit: bool = True,
) -> SecurityDescriptor:
    """Return the descriptor of a new object from those of its creator and its parent. [MS-DTYP 2.5.3.4.1]

    ``default_dacl`` is the token's default: it applies if neither parent nor creator give a DACL. With ``auto_inherit``
    (DACL_AUTO_INHERIT and SACL_AUTO_INHERIT) inherited ACEs are marked, and are added to those of the creator unless
    its ACL is protected.
    """
    creator = creator or SecurityDescriptor()
    present = creator.control
    child = Child(is_container, creator.owner or token.user, creator.group or token.primary_group, auto_inherit)
    control = present & _KEPT_CONTROL
    control |= 0 if creator.owner else Control.OWNER_DEFAULTED
    control |= 0 if creator.group else Control.GROUP_DEFAULTED
    has_dacl = bool(present & Control.DACL_PRESENT)
    dacl, automatic = _Side(
        parent.dacl if parent else None,
        creator.dacl,
        has_dacl or creator.dacl is not None,
        bool(present & Control.DACL_PROTECTED),
    ).compute(child)
    control |= Control.DACL_AUTO_INHERITED if automatic else 0
    if dacl is None and not has_dacl and default_dacl is not None:
        dacl = default_dacl
        control |= Control.DACL_DEFAULTED
    control |= Control.DACL_PRESENT if dacl is not None or has_dacl else 0
    sacl, automatic = _Side(
        parent.sacl if parent else None,
        creator.sacl,
        bool(present & Control.SACL_PRESENT) or creator.sacl is not None,
        bool(present & Control.SACL_PROTECTED),
    ).compute(child)
    control |= Control.SACL_AUTO_INHERITED if automatic else 0
    control |= Control.SACL_PRESENT if sacl is not None else 0
    return SecurityDescriptor(child.owner, child.group, dacl, sacl, int(control), creator.rm_control)


def _revision(acl: Acl | None) -> int:
    return acl.revision if acl else 2


def passes_on(descriptor: SecurityDescriptor) -> bool:
    """Return whether a new object in this one inherits anything (ContainsInheritableACEs). [MS-DTYP 2.5.3.4.3]"""
    acls = (descriptor.dacl, descriptor.sacl)
    return any(ace.flags & _INHERITABLE for acl in acls if acl is not None for ace in acl.aces)


def inherit_aces(acl: Acl, child: Child) -> tuple[Ace, ...]:
    """Return the entries of a parent's ACL that a new object gets (ComputeInheritedACLFromParent).
    [MS-DTYP 2.5.3.4.4]"""
    found: list[Ace] = []
    inherited = int(AceFlag.INHERITED) if child.auto_inherit else 0
    for ace in acl.aces:
        kept = ace.flags & ~(_INHERITANCE | int(AceFlag.INHERITED)) | inherited
        if not child.is_container:
            if ace.flags & AceFlag.OBJECT_INHERIT:
                found.extend(_resolve(ace, kept, child))
            continue
        propagates = not ace.flags & AceFlag.NO_PROPAGATE_INHERIT
        if ace.flags & AceFlag.CONTAINER_INHERIT:
            flags = kept | (ace.flags & _INHERITABLE if propagates else 0)
            found.extend(_resolve(ace, flags, child))
        elif ace.flags & AceFlag.OBJECT_INHERIT and propagates:
            flags = kept | int(AceFlag.OBJECT_INHERIT | AceFlag.INHERIT_ONLY)
            found.append(ace._replace(flags=flags))
    return tuple(found)


def _resolve(ace: Ace, flags: int, child: Child) -> list[Ace]:
    """Replace creator SIDs and generic rights by what they stand for (PostProcessACL). [MS-DTYP 2.5.3.4.7]

    On a container that passes the ACE on, the original ACE stays as well, as INHERIT_ONLY.
    """
    if flags & AceFlag.INHERIT_ONLY:
        return [ace._replace(flags=flags)] if child.is_container else []
    sid = {CREATOR_OWNER: child.owner, CREATOR_GROUP: child.group}.get(ace.sid, ace.sid) if ace.sid else None
    effective = ace._replace(flags=flags, sid=sid, mask=map_generic(ace.mask))
    if (effective.sid, effective.mask) == (ace.sid, ace.mask) or not (child.is_container and flags & _INHERITABLE):
        return [effective._replace(flags=flags if child.is_container else flags & ~_INHERITANCE)]
    return [effective._replace(flags=flags & ~_INHERITANCE), ace._replace(flags=flags | int(AceFlag.INHERIT_ONLY))]
