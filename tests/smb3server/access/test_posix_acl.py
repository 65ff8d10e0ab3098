"""Descriptors as POSIX ACLs."""

import struct

from smb3server.access.descriptor import EVERYONE, Acl, Control, SecurityDescriptor, allow, deny
from smb3server.access.masks import FILE_ALL_ACCESS, FILE_GENERIC_READ
from smb3server.access.posix import default_descriptor, group_sid, to_posix_acl, user_sid

OWNER, GROUP, BOB, STAFF = user_sid(1), group_sid(1), user_sid(2), group_sid(3)


def entries(data: bytes) -> list[tuple[int, int, int]]:
    assert data[:4] == b"\2\0\0\0"
    return list(struct.iter_unpack("<HHI", data[4:]))


def test_owner_group_and_everyone_need_none() -> None:
    assert to_posix_acl(default_descriptor(0o754, 1, 1, False)) is None


def test_named_users_and_groups_get_entries() -> None:
    aces = (
        allow(OWNER, FILE_ALL_ACCESS),
        allow(BOB, FILE_ALL_ACCESS),
        allow(STAFF, FILE_GENERIC_READ),
        deny(EVERYONE, 0),
    )
    descriptor = SecurityDescriptor(OWNER, GROUP, Acl(aces), None, int(Control.DACL_PRESENT))
    data = to_posix_acl(descriptor)
    assert data is not None
    nobody = 0xFFFFFFFF
    assert entries(data) == [(1, 7, nobody), (2, 7, 2), (4, 0, nobody), (8, 4, 3), (16, 7, nobody), (32, 0, nobody)]
