"""Owner, group and mode in entries of a DACL, by which Macs see and change the mode of a file (``ls -l``, ``chmod``).

The entries grant and deny nothing. Their SIDs are those of Microsoft's NFS server: S-1-5-88-1-UID, S-1-5-88-2-GID,
S-1-5-88-3-MODE. They are not stored.
"""

from __future__ import annotations

from smb3server.access.descriptor import Acl, Sid, deny, unpack
from smb3server.backends.base import FileInfo
from smb3server.wire.query_info import SecurityInformation
from smb3server.wire.status import NtStatus, StatusError

_NT, _NFS = 5, 88
_USER, _GROUP, _MODE = 1, 2, 3
_MODE_BITS = 0o777


def _part(sid: Sid | None, kind: int | None = None) -> int | None:
    """Return the number in a SID of the NFS server. None: it is another SID, or of another kind."""
    if sid is None or sid.authority != _NT or len(sid.sub_authorities) != 3 or sid.sub_authorities[0] != _NFS:
        return None
    if sid.sub_authorities[1] not in (_USER, _GROUP, _MODE) or kind not in (None, sid.sub_authorities[1]):
        return None
    return sid.sub_authorities[2]


def _without(acl: Acl) -> Acl:
    return acl._replace(aces=tuple(ace for ace in acl.aces if _part(ace.sid) is None))


def added(descriptor: bytes, info: FileInfo) -> bytes:
    """Return a descriptor with the entries for a file added to its DACL.

    It stays as it is without a DACL, since it would no longer grant everything to everybody, and if it is too long."""
    found = unpack(memoryview(descriptor))
    if found.dacl is None:
        return descriptor
    numbers = ((_MODE, info.mode), (_USER, info.uid), (_GROUP, info.gid))
    aces = tuple(deny(Sid(_NT, (_NFS, kind, number & 0xFFFFFFFF)), 0) for kind, number in numbers)
    kept = _without(found.dacl)
    try:
        return found._replace(dacl=kept._replace(aces=kept.aces + aces)).pack()
    except ValueError:
        return descriptor


def taken_out(which: int, descriptor: bytes) -> tuple[int, bytes, int | None]:
    """Take the entries out of a descriptor that a Mac sets. Return the parts to set, the descriptor and the mode.

    The DACL is not set if nothing is left of it: Macs also send empty ones, by which nobody had any rights. The mode is
    None if there is none. Raises INVALID_SECURITY_DESCR."""
    try:
        sent = unpack(memoryview(descriptor))
    except ValueError:
        raise StatusError(NtStatus.INVALID_SECURITY_DESCR) from None
    if sent.dacl is None:
        return which, descriptor, None
    modes = [mode for ace in sent.dacl.aces if (mode := _part(ace.sid, _MODE)) is not None]
    kept = _without(sent.dacl)
    mode = modes[0] & _MODE_BITS if modes else None
    if not kept.aces:
        return which & ~SecurityInformation.DACL, descriptor, mode
    return which, sent._replace(dacl=kept).pack() if kept != sent.dacl else descriptor, mode
