"""The security descriptor of a new object, from its creator's and its parent's (MS-DTYP 2.5.3.4)."""

from __future__ import annotations

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
_INHERITANCE = _INHERITABLE | int(AceFlag.NO_PROPAGATE_INHERIT | AceFlag.INHERIT_ONLY)


def create_descriptor(
    parent: SecurityDescriptor | None,
    creator: SecurityDescriptor | None,
    *,
    is_container: bool,
    token: Token,
    default_dacl: Acl | None,
    auto_inherit: bool = True,
) -> SecurityDescriptor:
    """MS-DTYP 2.5.3.4.1. ``default_dacl`` is the token's: it holds where neither parent nor creator say anything.

    With ``auto_inherit`` (DACL_AUTO_INHERIT and SACL_AUTO_INHERIT) inherited ACEs are marked, and added to those the
    creator gives unless its ACL is protected.
    """
    creator = creator or SecurityDescriptor()
    owner = creator.owner or token.user
    group = creator.group or token.primary_group
    control = creator.control & int(
        Control.DACL_PROTECTED | Control.SACL_PROTECTED | Control.RM_CONTROL_VALID | Control.SERVER_SECURITY
    )
    control |= 0 if creator.owner else Control.OWNER_DEFAULTED
    control |= 0 if creator.group else Control.GROUP_DEFAULTED

    def compute(parent_acl: Acl | None, given: bool, own: Acl | None, protected: bool) -> tuple[Acl | None, bool]:
        """(ACL, computed by auto-inheritance?)"""
        inherited = inherit_aces(parent_acl, is_container, owner, group, auto_inherit) if parent_acl else ()
        if not given:
            return (Acl(inherited, _revision(parent_acl)), auto_inherit) if inherited else (None, False)
        if own is None:
            return None, False
        explicit = tuple(
            piece
            for ace in own.aces
            if not (auto_inherit and ace.flags & AceFlag.INHERITED)
            for piece in _resolve(ace, ace.flags & ~int(AceFlag.INHERITED), is_container, owner, group)
        )
        if auto_inherit and inherited and not protected:
            return Acl(explicit + inherited, max(own.revision, _revision(parent_acl))), True
        return Acl(explicit, own.revision), False

    dacl, automatic = compute(
        parent.dacl if parent else None,
        bool(creator.control & Control.DACL_PRESENT) or creator.dacl is not None,
        creator.dacl,
        bool(creator.control & Control.DACL_PROTECTED),
    )
    control |= Control.DACL_AUTO_INHERITED if automatic else 0
    if dacl is None and not creator.control & Control.DACL_PRESENT and default_dacl is not None:
        dacl = default_dacl
        control |= Control.DACL_DEFAULTED
    if dacl is not None or creator.control & Control.DACL_PRESENT:
        control |= Control.DACL_PRESENT
    sacl, automatic = compute(
        parent.sacl if parent else None,
        bool(creator.control & Control.SACL_PRESENT) or creator.sacl is not None,
        creator.sacl,
        bool(creator.control & Control.SACL_PROTECTED),
    )
    control |= Control.SACL_AUTO_INHERITED if automatic else 0
    control |= Control.SACL_PRESENT if sacl is not None else 0
    return SecurityDescriptor(owner, group, dacl, sacl, int(control), creator.rm_control)


def _revision(acl: Acl | None) -> int:
    return acl.revision if acl else 2


def inherit_aces(acl: Acl, is_container: bool, owner: Sid, group: Sid, mark: bool) -> tuple[Ace, ...]:
    """ContainsInheritableACEs and ComputeInheritedACLFromParent (MS-DTYP 2.5.3.4.3, 2.5.3.4.4)."""
    found: list[Ace] = []
    inherited = int(AceFlag.INHERITED) if mark else 0
    for ace in acl.aces:
        kept = ace.flags & ~(_INHERITANCE | int(AceFlag.INHERITED)) | inherited
        if not is_container:
            if ace.flags & AceFlag.OBJECT_INHERIT:
                found.extend(_resolve(ace, kept, False, owner, group))
            continue
        propagates = not ace.flags & AceFlag.NO_PROPAGATE_INHERIT
        if ace.flags & AceFlag.CONTAINER_INHERIT:
            flags = kept | (ace.flags & _INHERITABLE if propagates else 0)
            found.extend(_resolve(ace, flags, True, owner, group))
        elif ace.flags & AceFlag.OBJECT_INHERIT and propagates:
            flags = kept | int(AceFlag.OBJECT_INHERIT | AceFlag.INHERIT_ONLY)
            found.append(ace._replace(flags=flags))
    return tuple(found)


def _resolve(ace: Ace, flags: int, is_container: bool, owner: Sid, group: Sid) -> list[Ace]:
    """PostProcessACL (MS-DTYP 2.5.3.4.7): creator SIDs and generic rights become what they stand for.

    On a container that passes the ACE on, the original stays beside the resolved one, to inherit only.
    """
    if flags & AceFlag.INHERIT_ONLY:
        return [ace._replace(flags=flags)] if is_container else []
    sid = {CREATOR_OWNER: owner, CREATOR_GROUP: group}.get(ace.sid, ace.sid) if ace.sid else None
    effective = ace._replace(flags=flags, sid=sid, mask=map_generic(ace.mask))
    if (effective.sid, effective.mask) == (ace.sid, ace.mask) or not (is_container and flags & _INHERITABLE):
        return [effective._replace(flags=flags if is_container else flags & ~_INHERITANCE)]
    return [
        effective._replace(flags=flags & ~_INHERITANCE),
        ace._replace(flags=flags | int(AceFlag.INHERIT_ONLY)),
    ]
