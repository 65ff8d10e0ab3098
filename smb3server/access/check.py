"""Whether a token may do what it asks for (MS-DTYP 2.5.3.2), for file objects."""

from __future__ import annotations

import enum
import errno
from typing import NamedTuple

from smb3server.access.descriptor import OWNER_RIGHTS, Ace, AceFlag, AceType, SecurityDescriptor, Sid


class Access(enum.IntEnum):
    """ACCESS_MASK (MS-DTYP 2.4.3) with the file rights of MS-SMB2 2.2.13.1.1."""

    READ_DATA = 0x1
    WRITE_DATA = 0x2
    APPEND_DATA = 0x4
    READ_EA = 0x8
    WRITE_EA = 0x10
    EXECUTE = 0x20
    DELETE_CHILD = 0x40
    READ_ATTRIBUTES = 0x80
    WRITE_ATTRIBUTES = 0x100
    DELETE = 0x10000
    READ_CONTROL = 0x20000
    WRITE_DAC = 0x40000
    WRITE_OWNER = 0x80000
    SYNCHRONIZE = 0x100000
    ACCESS_SYSTEM_SECURITY = 0x1000000
    MAXIMUM_ALLOWED = 0x2000000
    GENERIC_ALL = 0x10000000
    GENERIC_EXECUTE = 0x20000000
    GENERIC_WRITE = 0x40000000
    GENERIC_READ = 0x80000000


FILE_GENERIC_READ = 0x120089
FILE_GENERIC_WRITE = 0x120116
FILE_GENERIC_EXECUTE = 0x1200A0
FILE_ALL_ACCESS = 0x1F01FF

_GENERIC = (
    (int(Access.GENERIC_READ), FILE_GENERIC_READ),
    (int(Access.GENERIC_WRITE), FILE_GENERIC_WRITE),
    (int(Access.GENERIC_EXECUTE), FILE_GENERIC_EXECUTE),
    (int(Access.GENERIC_ALL), FILE_ALL_ACCESS),
)
_GENERIC_BITS = 0xF0000000
_OWNER_IMPLIED = int(Access.READ_CONTROL | Access.WRITE_DAC)
_BACKUP = FILE_GENERIC_READ | FILE_GENERIC_EXECUTE | int(Access.ACCESS_SYSTEM_SECURITY | Access.READ_CONTROL)
_RESTORE = FILE_GENERIC_WRITE | int(
    Access.DELETE | Access.WRITE_DAC | Access.WRITE_OWNER | Access.ACCESS_SYSTEM_SECURITY | Access.READ_CONTROL
)


class Privilege(enum.IntFlag):
    """Those that bear on access to files (MS-LSAD 3.1.1.2.1); numbers not in spec."""

    SECURITY = 1
    TAKE_OWNERSHIP = 2
    BACKUP = 4
    RESTORE = 8


class Token(NamedTuple):
    """Who asks (MS-DTYP 2.5.2)."""

    user: Sid
    sids: frozenset[Sid]
    """All of them, the user's own and the groups', Everyone included where it applies."""
    primary_group: Sid
    privileges: Privilege = Privilege(0)


class AccessDenied(PermissionError):
    """STATUS_ACCESS_DENIED."""

    def __init__(self, missing: int) -> None:
        super().__init__(errno.EACCES, f"access denied: {missing:#x}")
        self.missing = missing


class PrivilegeNotHeld(AccessDenied):
    """ACCESS_SYSTEM_SECURITY was asked for without SeSecurityPrivilege: STATUS_PRIVILEGE_NOT_HELD."""


def map_generic(mask: int) -> int:
    """Generic rights to the file rights they stand for."""
    if mask & _GENERIC_BITS:
        for bit, rights in _GENERIC:
            if mask & bit:
                mask |= rights
        mask &= ~_GENERIC_BITS
    return mask


def _applies(ace: Ace, token: Token, is_owner: bool) -> bool:
    if ace.flags & AceFlag.INHERIT_ONLY or ace.sid is None:
        return False
    return ace.sid in token.sids or (is_owner and ace.sid == OWNER_RIGHTS)


def granted_access(descriptor: SecurityDescriptor, token: Token) -> int:
    """All that the DACL, ownership and WRITE_OWNER by privilege give: the answer to MAXIMUM_ALLOWED.

    ACEs count in their order: what an earlier one allows or denies, later ones do not change. Conditional ACEs count
    only when they deny (a condition that is not evaluated is unknown, and unknown denies: MS-DTYP 2.4.4.17), object
    ACEs as if they had no object type (files have no property sets).
    """
    dacl = descriptor.dacl
    is_owner = descriptor.owner is not None and descriptor.owner in token.sids
    if dacl is None:
        return FILE_ALL_ACCESS
    granted = 0
    denied = 0
    if is_owner and not any(ace.sid == OWNER_RIGHTS and not ace.flags & AceFlag.INHERIT_ONLY for ace in dacl.aces):
        granted = _OWNER_IMPLIED
    if token.privileges & Privilege.TAKE_OWNERSHIP:
        granted |= Access.WRITE_OWNER
    for ace in dacl.aces:
        kind = ace.type
        if not _applies(ace, token, is_owner):
            continue
        if kind in (AceType.ALLOWED, AceType.ALLOWED_OBJECT):
            granted |= map_generic(ace.mask) & ~denied
        elif kind in (
            AceType.DENIED,
            AceType.DENIED_OBJECT,
            AceType.DENIED_CALLBACK,
            AceType.DENIED_CALLBACK_OBJECT,
        ):
            denied |= map_generic(ace.mask) & ~granted
    return int(granted) & FILE_ALL_ACCESS


def access_check(descriptor: SecurityDescriptor, token: Token, desired: int, *, backup_intent: bool = False) -> int:
    """The access granted for ``desired``: all of it, or AccessDenied is raised.

    MAXIMUM_ALLOWED gives whatever there is, together with what was asked for by name. ``backup_intent``: opened with
    FILE_OPEN_FOR_BACKUP_INTENT, which lets SeBackupPrivilege read and SeRestorePrivilege write anything.
    """
    wanted = map_generic(desired)
    maximum = bool(wanted & Access.MAXIMUM_ALLOWED)
    wanted &= ~int(Access.MAXIMUM_ALLOWED)
    granted = granted_access(descriptor, token)
    if backup_intent:
        granted |= _BACKUP if token.privileges & Privilege.BACKUP else 0
        granted |= _RESTORE if token.privileges & Privilege.RESTORE else 0
    if token.privileges & Privilege.SECURITY:
        granted |= wanted & Access.ACCESS_SYSTEM_SECURITY
    missing = wanted & ~granted
    if missing & Access.ACCESS_SYSTEM_SECURITY:
        raise PrivilegeNotHeld(missing)
    if missing or (maximum and not granted):
        raise AccessDenied(missing)
    return (granted & ~int(Access.ACCESS_SYSTEM_SECURITY)) | wanted if maximum else wanted
