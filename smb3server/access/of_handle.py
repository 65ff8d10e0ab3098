"""Queries and sets parts of the security descriptors of open files. [MS-FSA 2.1.5.14, 2.1.5.17]"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from smb3server.access import decide, tokens
from smb3server.access.caller import Caller
from smb3server.access.descriptor import Ace, AceFlag, AceType, Acl, Control, SecurityDescriptor, Sid, unpack
from smb3server.access.masks import map_generic
from smb3server.access.posix import Members, gid_of, group_sid, to_mode, to_posix_acl, uid_of, user_sid
from smb3server.backends.base import Kind
from smb3server.wire.query_info import SecurityInformation
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.backends.base import FileInfo, Handle

_DACL_BITS = int(
    Control.DACL_PRESENT
    | Control.DACL_DEFAULTED
    | Control.DACL_AUTO_INHERIT_REQ
    | Control.DACL_AUTO_INHERITED
    | Control.DACL_PROTECTED
)
_SACL_BITS = int(
    Control.SACL_PRESENT
    | Control.SACL_DEFAULTED
    | Control.SACL_AUTO_INHERIT_REQ
    | Control.SACL_AUTO_INHERITED
    | Control.SACL_PROTECTED
)
_SACL_PARTS = (
    SecurityInformation.SACL | SecurityInformation.LABEL | SecurityInformation.ATTRIBUTE | SecurityInformation.SCOPE
)


def current_descriptor(handle: Handle) -> SecurityDescriptor:
    """Return the stored descriptor, or one made from owner and mode if none is stored or the stored one is
    malformed."""
    found = handle.describe()
    return tokens.effective_descriptor(found.descriptor, found.info)


def query_security(handle: Handle, which: int) -> bytes:
    """Return the self-relative descriptor with the parts in ``which`` (SecurityInformation)."""
    found = current_descriptor(handle)
    control = 0
    dacl = sacl = None
    if which & SecurityInformation.DACL:
        dacl = found.dacl
        control |= found.control & _DACL_BITS
    if which & _SACL_PARTS:
        sacl = _only(found.sacl, which)
        control |= found.control & _SACL_BITS
    return SecurityDescriptor(
        found.owner if which & SecurityInformation.OWNER else None,
        found.group if which & SecurityInformation.GROUP else None,
        dacl,
        sacl,
        control,
        found.rm_control,
    ).pack()


_PARTS_OF_SACL = {
    int(AceType.MANDATORY_LABEL): SecurityInformation.LABEL,
    int(AceType.RESOURCE_ATTRIBUTE): SecurityInformation.ATTRIBUTE,
    int(AceType.SCOPED_POLICY_ID): SecurityInformation.SCOPE,
}


def _only(sacl: Acl | None, which: int) -> Acl | None:
    """Return the SACL's entries that belong to the parts in ``which``. Different rights give access to each part.
    [MS-DTYP 2.4.7]"""
    if sacl is None:
        return None
    aces = tuple(ace for ace in sacl.aces if which & _PARTS_OF_SACL.get(ace.type, SecurityInformation.SACL))
    return sacl._replace(aces=aces)


def _replaced(present: Acl | None, new: Acl | None, which: int) -> Acl | None:
    """Return the SACL with the parts in ``which`` taken from ``new``, and the other parts unchanged."""
    kept = _only(present, ~which)
    if kept is None or not kept.aces:
        return _only(new, which)
    taken = _only(new, which)
    return kept if taken is None else kept._replace(aces=kept.aces + taken.aces)


def _inheritance_bits(control: int, request: int, done: int) -> int:
    """Keep AUTO_INHERITED only if AUTO_INHERIT_REQ came with it. The request bit is never stored.
    [MS-DTYP 2.5.3.4.2]"""
    if control & request and control & done:
        return control & ~request
    return control & ~(request | done)


def _as_sent(control: int, request: int, done: int) -> int:
    """Keep AUTO_INHERITED as the client sent it. The request bit is never stored."""
    return control & ~request


def _specific(acl: Acl | None) -> Acl | None:
    """Replace generic rights by file rights in the entries that apply to the file itself. [MS-DTYP 2.5.3.4.7]"""
    if acl is None:
        return None
    return acl._replace(aces=tuple(map(_specific_ace, acl.aces)))


def _specific_ace(ace: Ace) -> Ace:
    mask = ace.mask if ace.flags & AceFlag.INHERIT_ONLY else map_generic(ace.mask)
    return ace if mask == ace.mask else ace._replace(mask=mask)


class HostUsers(Protocol):
    """Maps SIDs of accounts to users and groups of the host."""

    def on_host(self, sid: Sid) -> Sequence[Sid]: ...


def set_security(
    handle: Handle, which: int, data: memoryview, caller: Caller, accounts: HostUsers, *, keep_inherited_flag: bool
) -> None:
    """Replace the parts in ``which`` (SecurityInformation) by those of the self-relative descriptor ``data``.

    ``keep_inherited_flag`` stores the AUTO_INHERITED flags as the client sent them. Raises ``StatusError``
    (INVALID_SECURITY_DESCR, INVALID_OWNER, INVALID_PRIMARY_GROUP) before anything is changed.
    """
    try:
        new = unpack(data)
    except ValueError:
        raise StatusError(NtStatus.INVALID_SECURITY_DESCR) from None
    merged = present = current_descriptor(handle)
    bits_of = _as_sent if keep_inherited_flag else _inheritance_bits
    if which & SecurityInformation.OWNER:
        decide.check_owner(caller.token, new.owner, present.owner)
        merged = merged._replace(owner=new.owner)
    if which & SecurityInformation.GROUP:
        if new.group is None:
            raise StatusError(NtStatus.INVALID_SECURITY_DESCR)
        decide.check_group(caller.token, new.group, present.group)
        merged = merged._replace(group=new.group)
    if which & SecurityInformation.DACL:
        bits = bits_of(new.control & _DACL_BITS, Control.DACL_AUTO_INHERIT_REQ, Control.DACL_AUTO_INHERITED)
        # A request to set the DACL without a DACL in the descriptor sets a null DACL.
        bits |= int(Control.DACL_PRESENT)
        merged = merged._replace(dacl=_specific(new.dacl), control=merged.control & ~_DACL_BITS | bits)
    if which & _SACL_PARTS:
        bits = bits_of(new.control & _SACL_BITS, Control.SACL_AUTO_INHERIT_REQ, Control.SACL_AUTO_INHERITED)
        merged = merged._replace(
            sacl=_replaced(merged.sacl, _specific(new.sacl), which), control=merged.control & ~_SACL_BITS | bits
        )
    try:
        packed = merged.pack()
    except ValueError:
        raise StatusError(NtStatus.INVALID_SECURITY_DESCR) from None
    if not which & ~_SACL_PARTS:
        packed = _beside_the_mode(handle, merged) or packed
    handle.set_security_descriptor(packed)
    to_host(handle, merged, which, caller, accounts)


def _beside_the_mode(handle: Handle, merged: SecurityDescriptor) -> bytes | None:
    """Return what to store of a file that has only another SACL now. None means the whole descriptor: it has a DACL.

    Where the mode of the host decides it goes on to decide: storing the DACL that it stands for would end that.
    """
    stored = handle.security_descriptor()
    if stored is not None and tokens.has_dacl(stored):
        return None
    found = tokens.parsed(stored) if stored is not None else None
    return SecurityDescriptor(
        found.owner if found is not None else None, None, None, merged.sacl, merged.control & _SACL_BITS
    ).pack()


def to_host(handle: Handle, descriptor: SecurityDescriptor, which: int, caller: Caller, accounts: HostUsers) -> None:
    """Apply a descriptor to the host's owner, group, mode and POSIX ACL.

    These follow the descriptor as far as they can express it (``access.posix``) and as far as the user's own
    credentials allow the change. Does nothing if the caller uses the server's own credentials.

    Windows lets a user with WRITE_DAC or WRITE_OWNER make changes that POSIX reserves for the owner. For such a user
    only the descriptor changes. The kernel still refuses what it refused before, and the server makes no change that
    the user's own credentials would not permit.
    """
    user = caller.user
    if user is None:
        return
    members = _host_members(accounts)
    if descriptor.owner is not None:
        users = members(descriptor.owner)
        # A group may own a file. The host knows no such owner.
        descriptor = descriptor._replace(owner=users[0] if len(users) == 1 else descriptor.owner)
    info = handle.info()
    uid = uid_of(descriptor.owner) if which & SecurityInformation.OWNER and descriptor.owner is not None else None
    gid = gid_of(descriptor.group) if which & SecurityInformation.GROUP and descriptor.group is not None else None
    if uid is not None and uid != info.uid:
        with contextlib.suppress(PermissionError):
            handle.set_permissions(uid, None)
    if gid is not None and gid != info.gid:
        with contextlib.suppress(PermissionError):
            handle.set_permissions(None, gid)
    if which & SecurityInformation.DACL:
        seen = _as_the_host_sees(descriptor, handle.info(), user.shared)
        least = _least_mode(handle.kind) if user.shared else 0
        with contextlib.suppress(PermissionError):
            handle.set_permissions(None, None, to_mode(seen, members) | least, to_posix_acl(seen, least, members))


def _host_members(accounts: HostUsers) -> Members:
    """Return a function from the SID of an account that has a user of the host to S-1-22-1-uid: the kernel knows only
    those. A group is its group of the host, or its present members that have such users. Each SID is looked up
    once."""

    @functools.cache
    def members(sid: Sid) -> Sequence[Sid]:
        return list(accounts.on_host(sid)) or [sid]

    return members


def _as_the_host_sees(descriptor: SecurityDescriptor, info: FileInfo, shared: bool) -> SecurityDescriptor:
    """Replace owner and group by those of the file on the host, because the mode's bits apply to these.

    ``shared`` keeps the owner: the account that the descriptor names then acts with the uid of the file's owner.
    """
    seen = descriptor._replace(group=group_sid(info.gid))
    return seen if shared else seen._replace(owner=user_sid(info.uid))


def _least_mode(kind: Kind) -> int:
    """Return the owner's mode bits to set at least if several accounts act with the owner's uid.

    The kernel cannot distinguish these accounts. It admits all of them, and the descriptor alone decides.
    """
    return 0o700 if kind == Kind.DIRECTORY else 0o600
