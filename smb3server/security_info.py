"""Security descriptors of opens: the parts a client asks for or sets (MS-FSA 2.1.5.14, 2.1.5.17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smb3server import tokens
from smb3server.backends.base import Kind
from smb3server.security.access import map_generic
from smb3server.security.descriptor import AceFlag, Acl, Control, SecurityDescriptor, unpack
from smb3server.security.posix import IdMap, to_mode, to_posix_acl
from smb3server.status import NtStatus, StatusError
from smb3server.wire.query_info import SecurityInformation

if TYPE_CHECKING:
    from smb3server.backends.base import Handle, User
    from smb3server.open import Open

_IDS = IdMap()
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


def _handle(opened: Open) -> Handle:
    if opened.handle is None:
        raise StatusError(NtStatus.NOT_SUPPORTED)
    return opened.handle


def current_descriptor(handle: Handle) -> SecurityDescriptor:
    """The stored descriptor; one made from owner and mode where there is none, or none that can be read."""
    return tokens.effective_descriptor(handle.security_descriptor(), handle.info())


def query_security(opened: Open, which: int) -> bytes:
    """Self-relative descriptor with the parts in ``which`` (SecurityInformation)."""
    found = current_descriptor(_handle(opened))
    control = 0
    dacl = sacl = None
    if which & SecurityInformation.DACL:
        dacl = found.dacl
        control |= found.control & _DACL_BITS
    if which & _SACL_PARTS:
        sacl = found.sacl
        control |= found.control & _SACL_BITS
    return SecurityDescriptor(
        found.owner if which & SecurityInformation.OWNER else None,
        found.group if which & SecurityInformation.GROUP else None,
        dacl,
        sacl,
        control,
        found.rm_control,
    ).pack()


def _inheritance_bits(control: int, request: int, done: int) -> int:
    """AUTO_INHERITED is kept only when AUTO_INHERIT_REQ came with it, and the request itself is never stored
    (MS-DTYP 2.5.3.4.2)."""
    if control & request and control & done:
        return control & ~request
    return control & ~(request | done)


def _as_sent(control: int, request: int, done: int) -> int:
    return control & ~request


def _specific(acl: Acl | None) -> Acl | None:
    """Generic rights of entries that count here become the file rights they stand for (MS-DTYP 2.5.3.4.7)."""
    if acl is None:
        return None
    return acl._replace(
        aces=tuple(
            ace if ace.flags & AceFlag.INHERIT_ONLY else ace._replace(mask=map_generic(ace.mask)) for ace in acl.aces
        )
    )


def set_security(opened: Open, which: int, data: memoryview) -> None:
    """Replace the parts in ``which``. INVALID_SECURITY_DESCR, INVALID_OWNER; nothing is changed then."""
    handle = _handle(opened)
    try:
        new = unpack(data)
    except ValueError:
        raise StatusError(NtStatus.INVALID_SECURITY_DESCR) from None
    merged = current_descriptor(handle)
    settle = _as_sent if opened.tree.share.keep_inherited_flag else _inheritance_bits
    if which & SecurityInformation.OWNER:
        if new.owner is None:
            raise StatusError(NtStatus.INVALID_OWNER)
        merged = merged._replace(owner=new.owner)
    if which & SecurityInformation.GROUP:
        if new.group is None:
            raise StatusError(NtStatus.INVALID_SECURITY_DESCR)
        merged = merged._replace(group=new.group)
    if which & SecurityInformation.DACL:
        bits = settle(new.control & _DACL_BITS, Control.DACL_AUTO_INHERIT_REQ, Control.DACL_AUTO_INHERITED)
        # Setting the DACL to nothing sets a null DACL.
        bits |= int(Control.DACL_PRESENT)
        merged = merged._replace(dacl=_specific(new.dacl), control=merged.control & ~_DACL_BITS | bits)
    if which & _SACL_PARTS:
        bits = settle(new.control & _SACL_BITS, Control.SACL_AUTO_INHERIT_REQ, Control.SACL_AUTO_INHERITED)
        merged = merged._replace(sacl=_specific(new.sacl), control=merged.control & ~_SACL_BITS | bits)
    try:
        packed = merged.pack()
    except ValueError:
        raise StatusError(NtStatus.INVALID_SECURITY_DESCR) from None
    handle.set_security_descriptor(packed)
    user = acting_user(opened)
    if user is not None:
        to_host(handle, merged, which, user)


def acting_user(opened: Open) -> User | None:
    return opened.tree.user


def to_host(handle: Handle, descriptor: SecurityDescriptor, which: int, user: User) -> None:
    """Where users act with ids of the host the kernel checks, too: owner, group, mode and POSIX ACL follow the
    descriptor, as far as they can say what it does (``security.posix``). Of users who share their ids the kernel takes
    one for the other: it lets them pass, and the descriptor alone decides."""
    at_least = 0
    if user.shared:
        at_least = 0o700 if handle.kind == Kind.DIRECTORY else 0o600
    uid = _IDS.uid(descriptor.owner) if which & SecurityInformation.OWNER and descriptor.owner is not None else None
    gid = _IDS.gid(descriptor.group) if which & SecurityInformation.GROUP and descriptor.group is not None else None
    if which & SecurityInformation.DACL:
        mode = to_mode(descriptor) | at_least
        handle.set_permissions(uid, gid, mode, to_posix_acl(descriptor, _IDS, at_least))
    elif uid is not None or gid is not None:
        handle.set_permissions(uid, gid)
