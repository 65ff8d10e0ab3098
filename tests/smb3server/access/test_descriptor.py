"""Security descriptors: encoding, access check, inheritance, POSIX modes (MS-DTYP 2.4, 2.5)."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from impacket.ldap import ldaptypes

from smb3server.access import descriptor as sd
from smb3server.access import inheritance, masks, posix
from smb3server.access.check import Token, granted_access
from smb3server.access.descriptor import Ace, AceFlag, AceType, Acl, Control, SecurityDescriptor, Sid, allow, deny
from smb3server.access.masks import FILE_ALL_ACCESS, FILE_GENERIC_READ
from smb3server.wire.create import Access
from smb3server.wire.status import StatusError

OI, CI, NP, IO = (
    AceFlag.OBJECT_INHERIT,
    AceFlag.CONTAINER_INHERIT,
    AceFlag.NO_PROPAGATE_INHERIT,
    AceFlag.INHERIT_ONLY,
)
ID = AceFlag.INHERITED
ALICE, BOB = Sid.parse("S-1-5-21-1-2-3-1001"), Sid.parse("S-1-5-21-1-2-3-1002")
STAFF = Sid.parse("S-1-5-21-1-2-3-513")
TOKEN = Token(ALICE, frozenset({ALICE, STAFF, sd.EVERYONE}), STAFF)

sids = st.builds(Sid, st.integers(0, (1 << 48) - 1), st.lists(st.integers(0, (1 << 32) - 1), max_size=15).map(tuple))
words = st.binary(max_size=12).map(lambda data: data + bytes(-len(data) % 4))
plain_aces = st.builds(
    Ace,
    st.sampled_from([0, 1, 2, 9, 0x11, 0x12]),
    st.integers(0, 255),
    st.integers(0, (1 << 32) - 1),
    sids,
    words,
    st.just(b""),
)
object_aces = st.builds(
    Ace,
    st.sampled_from([5, 6, 7]),
    st.integers(0, 255),
    st.integers(0, (1 << 32) - 1),
    sids,
    st.just(b""),
    st.integers(0, 3).flatmap(
        lambda flags: st.binary(min_size=16 * flags.bit_count(), max_size=16 * flags.bit_count()).map(
            lambda guids: flags.to_bytes(4, "little") + guids
        )
    ),
)
other_aces = st.builds(Ace, st.sampled_from([4, 0x40]), st.integers(0, 255), st.just(0), st.none(), words, st.just(b""))
acls = st.builds(Acl, st.lists(plain_aces | object_aces | other_aces, max_size=6).map(tuple), st.sampled_from([2, 4]))
descriptors = st.builds(
    SecurityDescriptor,
    st.none() | sids,
    st.none() | sids,
    st.none() | acls,
    st.none() | acls,
    st.integers(0, 0xFFFF),
    st.integers(0, 255),
)


@settings(deadline=None)
@given(descriptors)
def test_round_trip(descriptor: SecurityDescriptor) -> None:
    packed = descriptor.pack()
    again = sd.unpack(packed)
    assert again[:4] == descriptor[:4]
    assert again.rm_control == descriptor.rm_control
    assert again.pack() == packed


@settings(deadline=None)
@given(sids)
def test_sid_text(sid: Sid) -> None:
    assert Sid.parse(str(sid)) == sid
    assert Sid.unpack(sid.pack()) == sid
    assert len(sid.pack()) == sid.size


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_garbage(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        sd.unpack(data)
    with contextlib.suppress(ValueError):
        sd.unpack(b"\x01\x00\x14\x80" + data)
    with contextlib.suppress(ValueError):
        Sid.unpack(data)


@settings(deadline=None)
@given(descriptors, st.data())
def test_damaged(descriptor: SecurityDescriptor, data: st.DataObject) -> None:
    packed = bytearray(descriptor.pack())
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        sd.unpack(packed).pack()
    with contextlib.suppress(ValueError):
        sd.unpack(packed[: data.draw(st.integers(0, len(packed)))])


@settings(deadline=None)
@given(st.text(max_size=30) | st.from_regex(r"S-1-[0-9a-fx]{1,5}(-[0-9]{1,11}){0,17}", fullmatch=True))
def test_sid_text_garbage(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert Sid.unpack(Sid.parse(text).pack()) == Sid.parse(text)


def test_limits() -> None:
    Sid.parse("S-1-5" + "-1" * 15)
    for bad in ("S-1-5" + "-1" * 16, "S-2-5-1", "S-1", "", "S-1-5-4294967296", "S-1-0x1000000000000", "S-1-5--1"):
        with pytest.raises(ValueError):
            Sid.parse(bad)
    assert str(Sid(1 << 40, (1,))) == "S-1-0x010000000000-1"
    with pytest.raises(ValueError):
        sd.unpack(bytes(19))
    with pytest.raises(ValueError):
        sd.unpack(SecurityDescriptor(ALICE).pack() + bytes(65536))
    with pytest.raises(ValueError):
        SecurityDescriptor(dacl=Acl(tuple([allow(ALICE, 1)] * 3000))).pack()
    absolute = bytearray(SecurityDescriptor(ALICE).pack())
    absolute[3] &= 0x7F
    with pytest.raises(ValueError):
        sd.unpack(absolute)


def test_against_another_implementation() -> None:
    mine = SecurityDescriptor(ALICE, STAFF, Acl((allow(ALICE, 0x1F01FF, OI | CI), deny(BOB, 2))), None, 0)
    theirs = ldaptypes.SR_SECURITY_DESCRIPTOR(data=mine.pack())
    assert theirs["OwnerSid"].formatCanonical() == str(ALICE)
    assert theirs["GroupSid"].formatCanonical() == str(STAFF)
    aces = theirs["Dacl"].aces
    assert [(ace["AceType"], ace["AceFlags"], ace["Ace"]["Mask"]["Mask"]) for ace in aces] == [
        (0, 3, 0x1F01FF),
        (1, 0, 2),
    ]
    assert sd.unpack(theirs.getData())[:3] == mine[:3]


# -- MS-DTYP 2.5.3.2


def described(*aces: Ace, owner: Sid = BOB) -> SecurityDescriptor:
    return SecurityDescriptor(owner, STAFF, Acl(aces))


def test_order_decides() -> None:
    first_deny = described(deny(ALICE, Access.WRITE_DATA), allow(sd.EVERYONE, FILE_ALL_ACCESS))
    assert granted_access(first_deny, TOKEN) == FILE_ALL_ACCESS & ~Access.WRITE_DATA
    first_allow = described(allow(sd.EVERYONE, FILE_ALL_ACCESS), deny(ALICE, Access.WRITE_DATA))
    assert granted_access(first_allow, TOKEN) == FILE_ALL_ACCESS


def test_no_and_empty_dacl() -> None:
    assert granted_access(SecurityDescriptor(BOB), TOKEN) == FILE_ALL_ACCESS
    assert granted_access(described(), TOKEN) == 0
    assert granted_access(described(owner=ALICE), TOKEN) == Access.READ_CONTROL | Access.WRITE_DAC


def test_owner_rights_replace_what_owners_have() -> None:
    limited = described(allow(sd.OWNER_RIGHTS, Access.READ_DATA), owner=ALICE)
    assert granted_access(limited, TOKEN) == Access.READ_DATA
    assert granted_access(described(allow(sd.OWNER_RIGHTS, 1)), TOKEN) == 0, "not the owner"
    inherited = described(allow(sd.OWNER_RIGHTS, 1, IO | OI), owner=ALICE)
    assert granted_access(inherited, TOKEN) == Access.READ_CONTROL | Access.WRITE_DAC


def test_generic_rights_and_inherit_only() -> None:
    descriptor = described(allow(ALICE, Access.GENERIC_READ), allow(ALICE, Access.GENERIC_ALL, IO | CI))
    assert granted_access(descriptor, TOKEN) == FILE_GENERIC_READ


def test_no_entry_gives_access_to_the_sacl() -> None:
    descriptor = described(allow(ALICE, Access.ACCESS_SYSTEM_SECURITY | Access.READ_DATA), owner=ALICE)
    owners = Access.READ_CONTROL | Access.WRITE_DAC
    assert granted_access(descriptor, TOKEN) == Access.READ_DATA | owners


def test_conditions_never_allow() -> None:
    conditional = Ace(AceType.ALLOWED_CALLBACK, 0, FILE_ALL_ACCESS, ALICE, b"artx")
    assert granted_access(described(conditional), TOKEN) == 0
    denied = conditional._replace(type=AceType.DENIED_CALLBACK)
    assert granted_access(described(denied, allow(ALICE, 3)), TOKEN) == 0


@settings(deadline=None)
@given(descriptors, st.integers(0, (1 << 32) - 1))
def test_granted_is_what_was_asked(descriptor: SecurityDescriptor, desired: int) -> None:
    maximal = granted_access(descriptor, TOKEN)
    assert maximal & ~FILE_ALL_ACCESS == 0
    wanted = masks.map_generic(desired)
    specific = wanted & ~int(Access.MAXIMUM_ALLOWED)
    try:
        granted = masks.grant(wanted, maximal)
    except StatusError:
        assert specific & ~maximal
        return
    assert granted == (maximal if desired & Access.MAXIMUM_ALLOWED else specific)


# -- MS-DTYP 2.5.3.4


def child(parent: Acl, *, container: bool, creator: SecurityDescriptor | None = None) -> SecurityDescriptor:
    return inheritance.create_descriptor(
        SecurityDescriptor(BOB, STAFF, parent),
        creator,
        is_container=container,
        token=TOKEN,
        default_dacl=Acl((allow(ALICE, 0x1F01FF),)),
    )


@pytest.mark.parametrize(
    ("flags", "on_file", "on_directory"),
    [
        (0, None, None),
        (OI, ID, OI | IO | ID),
        (CI, None, CI | ID),
        (OI | CI, ID, OI | CI | ID),
        (OI | NP, ID, None),
        (CI | NP, None, ID),
        (OI | CI | NP, ID, ID),
        (OI | IO, ID, OI | IO | ID),
        (CI | IO, None, CI | ID),
        (OI | CI | IO, ID, OI | CI | ID),
        (OI | CI | NP | IO, ID, ID),
    ],
)
def test_inheritance_flags(flags: int, on_file: int | None, on_directory: int | None) -> None:
    for container, expected in ((False, on_file), (True, on_directory)):
        acl, child = Acl((allow(BOB, 0x3, flags),)), inheritance.Child(container, ALICE, STAFF, True)
        found = inheritance.inherit_aces(acl, child)
        assert [ace.flags for ace in found] == ([] if expected is None else [expected])


def test_creator_owner_and_generic_rights() -> None:
    parent = Acl((allow(sd.CREATOR_OWNER, Access.GENERIC_ALL, OI | CI | IO),))
    assert child(parent, container=False).dacl == Acl((allow(ALICE, FILE_ALL_ACCESS, ID),))
    assert child(parent, container=True).dacl == Acl(
        (
            allow(ALICE, FILE_ALL_ACCESS, ID),
            allow(sd.CREATOR_OWNER, Access.GENERIC_ALL, OI | CI | IO | ID),
        )
    )


def test_default_creator_and_protected() -> None:
    default = child(Acl((allow(BOB, 1),)), container=False)
    assert default.owner == ALICE
    assert default.group == STAFF
    assert default.dacl == Acl((allow(ALICE, 0x1F01FF),))
    assert default.control & Control.DACL_DEFAULTED
    parent = Acl((allow(BOB, 3, OI),))
    inherited = child(parent, container=False)
    assert inherited.control & Control.DACL_AUTO_INHERITED
    given_acl = SecurityDescriptor(BOB, None, Acl((allow(sd.EVERYONE, 7), allow(sd.EVERYONE, 8, ID))))
    merged = child(parent, container=False, creator=given_acl)
    assert merged.owner == BOB
    assert merged.dacl == Acl((allow(sd.EVERYONE, 7), allow(BOB, 3, ID)))
    protected = child(parent, container=False, creator=given_acl._replace(control=Control.DACL_PROTECTED))
    assert protected.dacl == Acl((allow(sd.EVERYONE, 7),))
    assert protected.control & Control.DACL_PROTECTED
    null = child(parent, container=False, creator=SecurityDescriptor(control=Control.DACL_PRESENT))
    assert null.dacl is None
    assert null.control & Control.DACL_PRESENT


@settings(deadline=None)
@given(descriptors, st.none() | descriptors, st.booleans(), st.booleans())
def test_inheritance_of_anything(
    parent: SecurityDescriptor, creator: SecurityDescriptor | None, container: bool, automatic: bool
) -> None:
    made = inheritance.create_descriptor(
        parent, creator, is_container=container, token=TOKEN, default_dacl=None, auto_inherit=automatic
    )
    assert sd.unpack(made.pack())[:4] == made[:4]


# -- POSIX


@pytest.mark.parametrize("account", [None, ALICE, posix.user_sid(0)])
@pytest.mark.parametrize("directory", [False, True])
def test_modes_there_and_back(directory: bool, account: Sid | None) -> None:
    for mode in range(0o1000):
        descriptor = posix.default_descriptor(mode, 0, 7, directory, account)
        seen = sd.unpack(descriptor.pack())
        shared = account == ALICE
        assert seen.owner == (account or posix.user_sid(0))
        assert posix.to_mode(seen._replace(owner=posix.user_sid(0))) == mode | (mode >> 2 & 0o100 if shared else 0)


def test_ids() -> None:
    assert str(posix.user_sid(5)) == "S-1-22-1-5"
    assert str(posix.group_sid(5)) == "S-1-22-2-5"
    assert (posix.uid_of(posix.user_sid(1000)), posix.gid_of(posix.group_sid(100))) == (1000, 100)
    assert posix.uid_of(Sid.parse("S-1-22-1-77")) == 77
    assert posix.gid_of(Sid.parse("S-1-22-1-77")) is None
    assert posix.uid_of(BOB) is None


@pytest.mark.parametrize(("sent", "kept"), [(2, 2), (3, 2), (4, 4)])
def test_acl_revisions_that_clients_send(sent: int, kept: int) -> None:
    """MS-DTYP 2.4.5 names 2 and 4; smbcacls sends 3."""
    packed = SecurityDescriptor(dacl=Acl((allow(sd.EVERYONE, 1),), sent)).pack()
    assert sd.unpack(packed).dacl == Acl((allow(sd.EVERYONE, 1),), kept)


@pytest.mark.parametrize("revision", [0, 1, 5, 255])
def test_other_acl_revisions_are_malformed(revision: int) -> None:
    with pytest.raises(ValueError, match="revision"):
        sd.unpack(SecurityDescriptor(dacl=Acl((), revision)).pack())
