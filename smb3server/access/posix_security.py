"""Mode and owner of a file as a POSIX open sets them: by a security descriptor with SIDs that stand for numbers.

Windows' NFS server has these SIDs, and Linux sends them: S-1-5-88-1-uid, S-1-5-88-2-gid, and S-1-5-88-3-mode in an
entry of the DACL.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple

from smb3server.access import decide
from smb3server.access.caller import Caller
from smb3server.access.descriptor import Control, SecurityDescriptor, Sid, unpack
from smb3server.access.posix import gid_of, group_sid, uid_of, user_sid
from smb3server.wire.query_info import SecurityInformation
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.backends.base import Handle

_NT_AUTHORITY, _NFS = 5, 88
_USER, _GROUP, _MODE = 1, 2, 3
_OWNER, _PRIMARY_GROUP, _DACL = (
    int(SecurityInformation.OWNER),
    int(SecurityInformation.GROUP),
    int(SecurityInformation.DACL),
)
_ALL_PARTS = _OWNER | _PRIMARY_GROUP | _DACL


class _Changes(NamedTuple):
    """What a descriptor asks for; None in a field: nothing."""

    uid: int | None
    gid: int | None
    mode: int | None


def _number(sid: Sid | None, kind: int) -> int | None:
    if sid is None or sid.authority != _NT_AUTHORITY or len(sid.sub_authorities) != 3:
        return None
    nfs, what, number = sid.sub_authorities
    return number if (nfs, what) == (_NFS, kind) else None


def _owner(sid: Sid | None) -> int | None:
    if sid is None:
        return None
    number = _number(sid, _USER)
    return uid_of(sid) if number is None else number


def _group(sid: Sid | None) -> int | None:
    if sid is None:
        return None
    number = _number(sid, _GROUP)
    return gid_of(sid) if number is None else number


def _mode(descriptor: SecurityDescriptor) -> int | None:
    aces = descriptor.dacl.aces if descriptor.dacl is not None else ()
    return next((mode for ace in aces if (mode := _number(ace.sid, _MODE)) is not None), None)


def change(handle: Handle, which: int, data: memoryview, caller: Caller) -> bool:
    """Set what the parts in ``which`` (SecurityInformation) of a descriptor ask for, if they stand for numbers.

    Return False if they are parts of an ordinary descriptor, and nothing was done. The rights are those of chmod(2) and
    chown(2) on the host: the owner sets the mode, and root the owner. A new mode decides who may do what, and a DACL
    that was stored is forgotten. Raises ``StatusError``: INVALID_OWNER and INVALID_PRIMARY_GROUP for what the user may
    not give the file, ACCESS_DENIED for the mode of somebody else's file, INVALID_SECURITY_DESCR."""
    if which & ~_ALL_PARTS:
        return False
    try:
        asked = unpack(data)
    except ValueError:
        raise StatusError(NtStatus.INVALID_SECURITY_DESCR) from None
    wanted = _Changes(
        _owner(asked.owner) if which & _OWNER else None,
        _group(asked.group) if which & _PRIMARY_GROUP else None,
        _mode(asked) if which & _DACL else None,
    )
    complete = all(
        number is not None or not which & part
        for number, part in zip(wanted, (_OWNER, _PRIMARY_GROUP, _DACL), strict=True)
    )
    if not complete:
        return False
    _change(handle, wanted, caller)
    return True


def _change(handle: Handle, wanted: _Changes, caller: Caller) -> None:
    stored = handle.security_descriptor()
    present = None
    if stored is not None:
        try:
            present = unpack(stored)
        except ValueError:
            # The mode decides already (``tokens.effective_descriptor``).
            present = None
    info = handle.info()
    root = caller.user is not None and caller.user.uid == 0 and not caller.user.shared
    if wanted.uid is not None and not root:
        decide.check_owner(caller.token, user_sid(wanted.uid), user_sid(info.uid))
    if wanted.gid is not None and not root:
        decide.check_group(caller.token, group_sid(wanted.gid), group_sid(info.gid))
    try:
        if wanted.uid not in (None, info.uid):
            handle.set_permissions(wanted.uid, None)
        if wanted.gid not in (None, info.gid):
            handle.set_permissions(None, wanted.gid)
        if wanted.mode is not None:
            handle.set_mode(wanted.mode)
    except PermissionError:
        raise StatusError(NtStatus.ACCESS_DENIED) from None
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise StatusError(NtStatus.NOT_SUPPORTED) from None
        raise
    if present is None:
        return
    changed = present
    if wanted.uid not in (None, info.uid) and present.owner is not None:
        changed = changed._replace(owner=user_sid(wanted.uid or 0))
    if wanted.gid not in (None, info.gid) and present.group is not None:
        changed = changed._replace(group=group_sid(wanted.gid or 0))
    if wanted.mode is not None and present.dacl is not None:
        changed = changed._replace(dacl=None, control=changed.control & ~int(_DACL_CONTROL))
    if changed != present:
        handle.set_security_descriptor(changed.pack())


_DACL_CONTROL = Control.DACL_PRESENT | Control.DACL_DEFAULTED | Control.DACL_AUTO_INHERITED | Control.DACL_PROTECTED
