"""Mode and owner of a file as a POSIX open sets them: by a security descriptor with SIDs that stand for numbers.

Windows' NFS server has these SIDs, and Linux sends them: S-1-5-88-1-uid, S-1-5-88-2-gid, and S-1-5-88-3-mode in an
entry of the DACL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from smb3server.access import decide
from smb3server.access.caller import Caller
from smb3server.access.descriptor import Control, SecurityDescriptor, Sid, unpack
from smb3server.access.posix import gid_of, group_sid, uid_of, user_sid
from smb3server.wire.query_info import SecurityInformation
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.backends.base import FileInfo, Handle

_NT_AUTHORITY, _NFS = 5, 88
_USER, _GROUP, _MODE = 1, 2, 3
_OWNER, _PRIMARY_GROUP, _DACL = (
    int(SecurityInformation.OWNER),
    int(SecurityInformation.GROUP),
    int(SecurityInformation.DACL),
)
_ALL_PARTS = _OWNER | _PRIMARY_GROUP | _DACL
_DACL_CONTROL = int(
    Control.DACL_PRESENT | Control.DACL_DEFAULTED | Control.DACL_AUTO_INHERITED | Control.DACL_PROTECTED
)


def _number(sid: Sid | None, kind: int) -> int | None:
    if sid is None or sid.authority != _NT_AUTHORITY or len(sid.sub_authorities) != 3:
        return None
    nfs, what, number = sid.sub_authorities
    return number if (nfs, what) == (_NFS, kind) else None


def _id(sid: Sid | None, kind: int, known: Callable[[Sid], int | None]) -> int | None:
    if sid is None:
        return None
    number = _number(sid, kind)
    return known(sid) if number is None else number


def _mode(descriptor: SecurityDescriptor) -> int | None:
    aces = descriptor.dacl.aces if descriptor.dacl is not None else ()
    return next((mode for ace in aces if (mode := _number(ace.sid, _MODE)) is not None), None)


def change(handle: Handle, which: int, data: memoryview, caller: Caller) -> bool:
    """Set what the parts in ``which`` (SecurityInformation) of a descriptor ask for, if they stand for numbers.

    Return False if they are parts of an ordinary descriptor, and nothing was done. The rights are those of chmod(2) and
    chown(2) on the host: the owner sets the mode, and root the owner. A new mode decides who may do what, and a DACL
    that was stored is forgotten. With a new owner Linux sends a DACL as well, as it was but for the owner: the stored
    one follows the new owner in any case. Raises ``StatusError``: INVALID_OWNER and INVALID_PRIMARY_GROUP for what the
    user may not give the file, ACCESS_DENIED for the mode of somebody else's file, INVALID_SECURITY_DESCR."""
    if which & ~_ALL_PARTS:
        return False
    try:
        asked = unpack(data)
    except ValueError:
        raise StatusError(NtStatus.INVALID_SECURITY_DESCR) from None
    uid = _id(asked.owner, _USER, uid_of) if which & _OWNER else None
    gid = _id(asked.group, _GROUP, gid_of) if which & _PRIMARY_GROUP else None
    mode = _mode(asked) if which & _DACL else None
    if (which & _OWNER and uid is None) or (which & _PRIMARY_GROUP and gid is None):
        return False
    if which & _DACL and mode is None and not (_is_nfs(asked.owner) or _is_nfs(asked.group)):
        return False
    _check(handle.info(), uid, gid, caller)
    _set(handle, uid, gid, mode)
    return True


def numbers_in(data: bytes) -> int:
    """Return the parts (SecurityInformation) of a descriptor for a new file, if it stands for numbers; else 0.

    Raises ``ValueError`` for a malformed one."""
    asked = unpack(data)
    if _mode(asked) is None and not (_is_nfs(asked.owner) or _is_nfs(asked.group)):
        return 0
    parts = ((asked.owner, _OWNER), (asked.group, _PRIMARY_GROUP), (asked.dacl, _DACL))
    return sum(part for present, part in parts if present is not None)


def _is_nfs(sid: Sid | None) -> bool:
    return sid is not None and sid.authority == _NT_AUTHORITY and sid.sub_authorities[:1] == (_NFS,)


def _check(info: FileInfo, uid: int | None, gid: int | None, caller: Caller) -> None:
    """Refuse an owner or a group that the caller may not give to a file.

    The server's own credentials are nobody's: who acts with them gives files to nobody, even if they are root's."""
    if caller.user is None:
        if uid not in (None, info.uid):
            raise StatusError(NtStatus.INVALID_OWNER)
        if gid not in (None, info.gid):
            raise StatusError(NtStatus.INVALID_PRIMARY_GROUP)
        return
    if caller.user.uid == 0:
        return
    if uid is not None:
        decide.check_owner(caller.token, user_sid(uid), user_sid(info.uid))
    if gid is not None:
        decide.check_group(caller.token, group_sid(gid), group_sid(info.gid))


def _set(handle: Handle, uid: int | None, gid: int | None, mode: int | None) -> None:
    info, stored = handle.info(), handle.security_descriptor()
    try:
        if uid not in (None, info.uid):
            handle.set_permissions(uid, None)
        if gid not in (None, info.gid):
            handle.set_permissions(None, gid)
        if mode is not None:
            handle.set_mode(mode)
    except PermissionError:
        raise StatusError(NtStatus.ACCESS_DENIED) from None
    if stored is None:
        return
    try:
        present = unpack(stored)
    except ValueError:
        # The mode decides already (``tokens.effective_descriptor``).
        return
    changed = present if uid is None else _given_to(present, present.owner, user_sid(uid))
    if gid is not None and present.group is not None:
        changed = changed._replace(group=group_sid(gid))
    if mode is not None:
        changed = changed._replace(dacl=None, control=changed.control & ~_DACL_CONTROL)
    if changed != present:
        handle.set_security_descriptor(changed.pack())


def _given_to(present: SecurityDescriptor, old: Sid | None, new: Sid) -> SecurityDescriptor:
    """Return the descriptor of a file that another owner gets: the entries for the old one are the new one's.

    Without a DACL the owner is the host's: one beside it would be an account of several that act with his user."""
    if old is None or present.dacl is None:
        return present._replace(owner=None)
    aces = (ace._replace(sid=new) if ace.sid == old else ace for ace in present.dacl.aces)
    return present._replace(owner=new, dacl=present.dacl._replace(aces=tuple(aces)))
