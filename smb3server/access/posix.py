"""Converts between POSIX and security descriptors: user and group ids as SIDs, modes as DACLs and back.

Users and groups of the host are S-1-22-1-uid (Unix User) and S-1-22-2-gid (Unix Group). Other servers and clients use
the same SIDs.

Mode to DACL: one allowing ACE each for owner, group and Everyone with

=====  =====================================================================
r      FILE_GENERIC_READ
w      FILE_GENERIC_WRITE, DELETE, on directories FILE_DELETE_CHILD too
x      FILE_GENERIC_EXECUTE
=====  =====================================================================

and always READ_CONTROL, READ_ATTRIBUTES and SYNCHRONIZE. The owner may also change the mode: WRITE_DAC, WRITE_OWNER,
WRITE_ATTRIBUTES, WRITE_EA, DELETE. If the mode gives a class less than a wider class (0o077), an ACE denies the
difference.

DACL to POSIX ACL: each user and group of the host that the DACL names gets an entry of its own. Its bits are computed
like those of the three classes, from the rights that its token would be granted. The mask limits none of them. A DACL
that names more than ``MAX_NAMED`` becomes a mode alone.

DACL to mode: each class gets the bits that its members' tokens would be granted: r for FILE_READ_DATA, w for
FILE_WRITE_DATA and FILE_APPEND_DATA together, x for FILE_EXECUTE. Mode to DACL to mode gives the same mode.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from smb3server.access.check import DENYING, DENYING_IF, GRANTING, GRANTING_IF, Token, granted_access
from smb3server.access.descriptor import (
    EVERYONE,
    LOCAL_SYSTEM,
    Ace,
    AceFlag,
    AceType,
    Acl,
    Control,
    SecurityDescriptor,
    Sid,
    allow,
    deny,
)
from smb3server.access.masks import (
    FILE_ALL_ACCESS,
    FILE_GENERIC_EXECUTE,
    FILE_GENERIC_READ,
    FILE_GENERIC_WRITE,
    map_generic,
)
from smb3server.wire.create import Access

_UNIX_AUTHORITY = 22
_USER, _GROUP = 1, 2
_ALWAYS = int(Access.READ_CONTROL | Access.READ_ATTRIBUTES | Access.SYNCHRONIZE)
_OWNER = _ALWAYS | int(
    Access.WRITE_DAC | Access.WRITE_OWNER | Access.WRITE_ATTRIBUTES | Access.WRITE_EA | Access.DELETE
)


def user_sid(uid: int) -> Sid:
    """Return the SID of a user of the host."""
    return Sid(_UNIX_AUTHORITY, (_USER, uid & 0xFFFFFFFF))


def group_sid(gid: int) -> Sid:
    """Return the SID of a group of the host."""
    return Sid(_UNIX_AUTHORITY, (_GROUP, gid & 0xFFFFFFFF))


def uid_of(sid: Sid) -> int | None:
    """Return the uid of the host's user that a SID stands for, or None if it is not the SID of a user."""
    return _number_of(sid, _USER)


def gid_of(sid: Sid) -> int | None:
    """Return the gid of the host's group that a SID stands for, or None if it is not the SID of a group."""
    return _number_of(sid, _GROUP)


def _number_of(sid: Sid, kind: int) -> int | None:
    subs = sid.sub_authorities
    return subs[1] if sid.authority == _UNIX_AUTHORITY and len(subs) == 2 and subs[0] == kind else None


def _rights(bits: int, directory: bool) -> int:
    mask = 0
    if bits & 4:
        mask |= FILE_GENERIC_READ
    if bits & 2:
        mask |= FILE_GENERIC_WRITE | Access.DELETE
        if directory:
            mask |= Access.DELETE_CHILD
    if bits & 1:
        mask |= FILE_GENERIC_EXECUTE
    return int(mask)


_COUNTING = GRANTING | DENYING
_CONDITIONAL = GRANTING_IF | DENYING_IF
_READ_WRITE_EXECUTE = int(Access.READ_DATA | Access.WRITE_DATA | Access.APPEND_DATA | Access.EXECUTE)


def _deciding(bits: int) -> int:
    """Return the rights that stand for mode bits, without the rights that several bits share."""
    return _rights(bits, False) & _READ_WRITE_EXECUTE


OWNERS_ALONE = int(Access.WRITE_DAC | Access.WRITE_OWNER)
"""Rights that only the account owning a file has, not the other accounts that share its user of the host."""


def default_descriptor(
    mode: int, uid: int, gid: int, directory: bool, account: Sid | None = None
) -> SecurityDescriptor:
    """Return the descriptor of a file without a stored DACL, made from its mode, owner and group on the host.

    ``account`` is the owner, if several accounts share the user ``uid``. All of these accounts have the access that the
    mode gives to the owner, except for the rights of the owner alone. Those that may read may also execute, because the
    x bits of files that clients make have no meaning.
    """
    user, group = user_sid(uid), group_sid(gid)
    user_bits, group_bits, other_bits = mode >> 6 & 7, mode >> 3 & 7, mode & 7
    if account == user:
        account = None
    if account is not None:
        user_bits |= user_bits >> 2 & 1
    owners = FILE_ALL_ACCESS if user_bits == 7 else _OWNER | _rights(user_bits, directory)
    aces: list[Ace] = []
    if (group_bits | other_bits) & ~user_bits:
        aces.append(deny(user, _deciding((group_bits | other_bits) & ~user_bits)))
    aces.append(allow(account or user, owners))
    if account is not None:
        aces.append(allow(user, _ALWAYS | _rights(user_bits, directory)))
    if other_bits & ~group_bits:
        aces.append(deny(group, _deciding(other_bits & ~group_bits)))
    aces.append(allow(group, _ALWAYS | _rights(group_bits, directory)))
    aces.append(allow(EVERYONE, _ALWAYS | _rights(other_bits, directory)))
    aces.append(allow(LOCAL_SYSTEM, FILE_ALL_ACCESS))
    # On Windows all files have descriptors made by auto-inheritance, and its dialogs expect this flag.
    control = Control.DACL_PRESENT | Control.DACL_AUTO_INHERITED | Control.SELF_RELATIVE
    return SecurityDescriptor(account or user, group, Acl(tuple(aces)), None, int(control))


Members = Callable[[Sid], Sequence[Sid]]
"""Returns the users and groups of the host that a SID stands for, or the SID itself."""


def _itself(sid: Sid) -> Sequence[Sid]:
    return (sid,)


def to_mode(descriptor: SecurityDescriptor, members: Members = _itself) -> int:
    """Return the nine permission bits that come closest to the DACL. ``members`` resolves SIDs that the kernel does not
    know."""
    mode = 0
    owner, group = descriptor.owner or _NOBODY, descriptor.group or _NOBODY
    descriptor = _for_owner(_unconditional(descriptor), owner, members)
    for sids in ({owner, group, EVERYONE}, {group, EVERYONE}, {EVERYONE}):
        mode = mode << 3 | _bits(descriptor, owner, sids)
    return mode


def _unconditional(descriptor: SecurityDescriptor) -> SecurityDescriptor:
    """Return the descriptor without conditions, which the host does not know: entries that allow under one are left
    out, those that deny under one always deny."""
    dacl = descriptor.dacl
    if dacl is None or not any(ace.type in _CONDITIONAL for ace in dacl.aces):
        return descriptor
    aces = tuple(
        ace._replace(type=int(AceType.DENIED), data=b"", object=b"") if ace.type in DENYING_IF else ace
        for ace in dacl.aces
        if ace.type not in GRANTING_IF
    )
    return descriptor._replace(dacl=dacl._replace(aces=aces))


def _for_owner(descriptor: SecurityDescriptor, owner: Sid, members: Members) -> SecurityDescriptor:
    """Return the descriptor with the entries for groups that the owner is in as entries for the owner."""
    dacl = descriptor.dacl
    if dacl is None:
        return descriptor
    others = {ace.sid for ace in dacl.aces if ace.sid is not None and ace.sid != owner}
    owners = {sid for sid in others if owner in members(sid)}
    if not owners:
        return descriptor
    aces = tuple(ace._replace(sid=owner) if ace.sid in owners else ace for ace in dacl.aces)
    return descriptor._replace(dacl=dacl._replace(aces=aces))


_NOBODY = Sid(_UNIX_AUTHORITY, (0,))


def _bits(descriptor: SecurityDescriptor, owner: Sid, sids: set[Sid]) -> int:
    return _bits_of(granted_access(descriptor, Token(owner, frozenset(sids), descriptor.group or _NOBODY)))


def _bits_of(granted: int) -> int:
    bits = 4 if granted & Access.READ_DATA else 0
    if granted & Access.WRITE_DATA and granted & Access.APPEND_DATA:
        bits |= 2
    return bits | (1 if granted & Access.EXECUTE else 0)


_ACL_VERSION = struct.Struct("<I")
_ACL_ENTRY = struct.Struct("<HHI")
_USER_OBJ, _NAMED_USER, _GROUP_OBJ, _NAMED_GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_UNDEFINED = 0xFFFFFFFF


MAX_NAMED = 128
"""Users and groups of the host that a POSIX ACL names. File systems have room for a few hundred, so a DACL that names
more leaves them what the mode gives them on the host."""


class _Decided:
    """Which rights the entries of a DACL, in their order, have decided for somebody. [MS-DTYP 2.5.3.2]"""

    __slots__ = ("decided", "granted")

    def __init__(self) -> None:
        self.decided = 0
        self.granted = 0

    def add(self, mask: int, allows: bool, earlier: int = 0) -> None:
        """Add an entry. It decides nothing that is decided, or was by another (``earlier``)."""
        new = mask & ~self.decided & ~earlier
        self.decided |= new
        if allows:
            self.granted |= new


def _named(descriptor: SecurityDescriptor, members: Members) -> dict[tuple[int, int], int] | None:
    """Return the permission bits of the users and groups of the host that a DACL names, in one pass over it. None: it
    names too many."""
    dacl = _unconditional(descriptor).dacl
    aces = dacl.aces if dacl is not None else ()
    known: dict[Sid, list[_Decided]] = {}
    of_host: dict[tuple[int, int], _Decided] = {}
    everyone = _Decided()

    def on_host(sid: Sid) -> list[_Decided]:
        keys = []
        for member in members(sid):
            uid, gid = uid_of(member), gid_of(member)
            if member not in (descriptor.owner, descriptor.group) and (uid is not None or gid is not None):
                keys.append((_NAMED_USER, uid) if uid is not None else (_NAMED_GROUP, gid or 0))
        return [of_host.setdefault(key, _Decided()) for key in keys]

    for ace in aces:
        if ace.sid is None or ace.flags & AceFlag.INHERIT_ONLY or ace.type not in _COUNTING:
            continue
        mask, allows = map_generic(ace.mask) & _READ_WRITE_EXECUTE, ace.type in GRANTING
        if ace.sid == EVERYONE:
            everyone.add(mask, allows)
            continue
        found = known.get(ace.sid)
        if found is None:
            found = known[ace.sid] = on_host(ace.sid)
            if len(of_host) > MAX_NAMED:
                return None
        for one in found:
            one.add(mask, allows, everyone.decided)
    return {key: _bits_of(one.granted | everyone.granted & ~one.decided) for key, one in of_host.items()}


def to_posix_acl(descriptor: SecurityDescriptor, at_least: int = 0, members: Members = _itself) -> bytes | None:
    """Return system.posix_acl_access in the kernel's format, or None if the mode is enough, or more than ``MAX_NAMED``
    users and groups are named. [acl(5)]

    ``at_least`` has mode bits that are set whatever the DACL says. ``members`` resolves SIDs that the kernel does not
    know.
    """
    named = _named(descriptor, members)
    if not named:
        return None
    mode = to_mode(descriptor, members) | at_least
    group = mode >> 3 & 7
    mask = group
    for bits in named.values():
        mask |= bits
    entries = [
        (_USER_OBJ, mode >> 6, _UNDEFINED),
        (_GROUP_OBJ, group, _UNDEFINED),
        (_MASK, mask, _UNDEFINED),
        (_OTHER, mode & 7, _UNDEFINED),
    ]
    entries += [(tag, bits, number) for (tag, number), bits in named.items()]
    entries.sort(key=lambda entry: (entry[0], entry[2]))
    return _ACL_VERSION.pack(2) + b"".join(_ACL_ENTRY.pack(*entry) for entry in entries)
