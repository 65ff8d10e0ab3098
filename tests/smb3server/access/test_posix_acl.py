"""Descriptors as POSIX ACLs."""

import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smb3server.access.check import Token, granted_access
from smb3server.access.conditions.expression import pack
from smb3server.access.conditions.text import parse_condition
from smb3server.access.descriptor import (
    EVERYONE,
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
from smb3server.access.masks import FILE_ALL_ACCESS, FILE_GENERIC_READ
from smb3server.access.posix import MAX_NAMED, default_descriptor, group_sid, to_mode, to_posix_acl, user_sid
from smb3server.backends.base import Disposition, OpenRequest
from smb3server.backends.local.backend import LocalBackend
from smb3server.wire.create import Access

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


def test_the_host_knows_no_conditions() -> None:
    """Who is allowed under a condition gets nothing there, and who is denied under one gets nothing either."""
    true = pack(parse_condition("Member_of {SID(WD)}"))
    aces = (
        Ace(AceType.DENIED_CALLBACK, 0, FILE_ALL_ACCESS, BOB, pack(parse_condition("!(Member_of {SID(WD)})"))),
        Ace(AceType.ALLOWED_CALLBACK, 0, FILE_ALL_ACCESS, STAFF, true),
        Ace(AceType.ALLOWED_CALLBACK, 0, FILE_ALL_ACCESS, EVERYONE, true),
        allow(BOB, FILE_ALL_ACCESS),
        allow(OWNER, FILE_ALL_ACCESS),
    )
    descriptor = SecurityDescriptor(OWNER, GROUP, Acl(aces), None, int(Control.DACL_PRESENT))
    assert to_mode(descriptor) == 0o700
    data = to_posix_acl(descriptor)
    assert data is not None
    assert [(tag, bits) for tag, bits, number in entries(data) if number == 2] == [(2, 0)]
    assert granted_access(descriptor, Token(BOB, frozenset({BOB, EVERYONE}), GROUP)) == FILE_ALL_ACCESS


DOMAIN = Sid(5, (21, 1, 2, 3, 1000))
STAFF_MEMBERS = (user_sid(2), user_sid(5), OWNER)


def members(sid: Sid) -> Sequence[Sid]:
    return STAFF_MEMBERS if sid == DOMAIN else (sid,)


sids = st.sampled_from([OWNER, GROUP, BOB, STAFF, user_sid(5), EVERYONE, DOMAIN, Sid(3, (4,)), Sid(5, (18,))])
masks = st.sampled_from([0x1, 0x2, 0x4, 0x6, 0x20, 0x27, 0x10000000, 0x80000000, 0x40000000, 0x1F01FF, 0])
entry = st.tuples(st.sampled_from([allow, deny]), sids, masks, st.sampled_from([0, 3, 8]))


@given(st.lists(entry, max_size=14))
def test_one_pass_finds_what_the_access_check_says(made: list[tuple[object, Sid, int, int]]) -> None:
    """For each user and group by itself, with the entries of a group written out for its members."""
    aces = [make(sid, mask, flags) for make, sid, mask, flags in made]  # type: ignore[operator]
    written: list[Ace] = [ace._replace(sid=sid) for ace in aces for sid in members(ace.sid)]
    control = int(Control.DACL_PRESENT)
    given_, oracle = (SecurityDescriptor(OWNER, GROUP, Acl(tuple(each)), None, control) for each in (aces, written))
    assert to_mode(given_, members) == to_mode(oracle)
    data = to_posix_acl(given_, 0, members)
    expected = {}
    for sid in {ace.sid for ace in written if not ace.flags & AceFlag.INHERIT_ONLY} & {BOB, STAFF, user_sid(5)}:
        assert sid is not None
        granted = granted_access(oracle, Token(sid, frozenset({sid, EVERYONE}), GROUP))
        bits = 4 if granted & Access.READ_DATA else 0
        bits |= 2 if granted & Access.WRITE_DATA and granted & Access.APPEND_DATA else 0
        expected[sid.sub_authorities] = bits | (1 if granted & Access.EXECUTE else 0)
    found = {(tag // 8 + 1, number): bits for tag, bits, number in entries(data) if tag in (2, 8)} if data else {}
    assert found == {(1 if kind == 1 else 2, number): bits for (kind, number), bits in expected.items()}


def test_a_dacl_that_names_too_many_becomes_a_mode() -> None:
    for count in (MAX_NAMED, MAX_NAMED + 1):
        aces = tuple(allow(user_sid(100 + number), FILE_ALL_ACCESS) for number in range(count))
        descriptor = SecurityDescriptor(OWNER, GROUP, Acl(aces), None, int(Control.DACL_PRESENT))
        assert (to_posix_acl(descriptor) is None) == (count > MAX_NAMED)


def test_the_largest_dacl_costs_one_pass() -> None:
    """However often it names a group, and however many members that has."""
    many = [user_sid(1000 + number) for number in range(100)]
    asked: list[Sid] = []

    def of_group(sid: Sid) -> Sequence[Sid]:
        asked.append(sid)
        return many if sid == DOMAIN else (sid,)

    aces = tuple(allow(DOMAIN, 1 << number % 9) for number in range(1800))
    descriptor = SecurityDescriptor(OWNER, GROUP, Acl(aces), None, int(Control.DACL_PRESENT))
    begun = time.process_time()
    assert to_posix_acl(descriptor, 0, of_group) is not None
    assert time.process_time() - begun < 1
    assert len(asked) < 10


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user")
def test_a_file_system_without_room_for_the_acl_has_the_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor says all of it. An ACL from before goes."""
    backend = LocalBackend(tmp_path)
    handle = backend.open(OpenRequest(("f",), disposition=Disposition.CREATE))
    aces = (allow(OWNER, FILE_ALL_ACCESS), allow(BOB, FILE_ALL_ACCESS))
    acl = to_posix_acl(SecurityDescriptor(OWNER, GROUP, Acl(aces), None, int(Control.DACL_PRESENT)))
    handle.set_permissions(None, None, 0o640, acl)
    assert "system.posix_acl_access" in os.listxattr(tmp_path / "f")
    many = entries(acl or b"")[:2] + [(2, 7, 100 + number) for number in range(20000)] + entries(acl or b"")[2:]
    huge = b"\2\0\0\0" + b"".join(struct.pack("<HHI", *each) for each in sorted(many, key=lambda each: each[0::2]))
    handle.set_permissions(None, None, 0o640, huge)
    assert "system.posix_acl_access" not in os.listxattr(tmp_path / "f")
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640
    handle.close()
    backend.close()
