"""Attributes of files and central access policies in SACLs. [MS-DTYP 2.4.4.15, 2.4.4.16, 2.4.10.1]"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smb3server.access.claims import Claim, ClaimType
from smb3server.access.descriptor import EVERYONE, Ace, AceFlag, AceType, Acl, SecurityDescriptor, Sid
from smb3server.access.resource_attributes import MAX_VALUES, attribute_ace, attributes_of, pack_claim, unpack_claim

USERS = Sid(5, (32, 545))
CLAIMS = [
    Claim("I", ClaimType.INT64, (-1, 1 << 62)),
    Claim("U", ClaimType.UINT64, (0, (1 << 64) - 1), 2),
    Claim("Project", ClaimType.STRING, ("a", "", "größe")),
    Claim("D", ClaimType.SID, (EVERYONE, USERS)),
    Claim("B", ClaimType.BOOLEAN, (0, 1)),
    Claim("X", ClaimType.OCTET_STRING, (b"", b"\1\2\3")),
    Claim("m", ClaimType.INT64, tuple(range(MAX_VALUES))),
]


@pytest.mark.parametrize("claim", CLAIMS)
def test_encoding_and_decoding(claim: Claim) -> None:
    assert unpack_claim(pack_claim(claim)) == claim


def test_the_layout() -> None:
    data = bytes.fromhex("14000000 0300 0000 02000000 01000000 18000000 70000000 41004200 00000000")
    assert pack_claim(Claim("p", ClaimType.STRING, ("AB",), 2)) == data
    assert unpack_claim(data) == Claim("p", ClaimType.STRING, ("AB",), 2)


def test_a_sid_as_text_and_as_bytes() -> None:
    """The specification says text."""
    head = bytes.fromhex("14000000 0500 0000 00000000 01000000 18000000 70000000")
    for octets in (b"S-1-5-32-545", b"S-1-5-32-545\0", USERS.pack()):
        assert unpack_claim(head + len(octets).to_bytes(4, "little") + octets).values == (USERS,)


HEAD = "{name} {kind} 0000 00000000 {count} {offset} 70000000 6100 0000"


def _claim(name: str = "14000000", kind: str = "0300", count: str = "01000000", offset: str = "18000000") -> bytes:
    return bytes.fromhex(HEAD.format(name=name, kind=kind, count=count, offset=offset))


def test_the_claim_that_the_malformed_ones_are_made_of() -> None:
    assert unpack_claim(_claim()) == Claim("p", ClaimType.STRING, ("a",))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        _claim()[:19],
        _claim(name="ff000000"),
        _claim(name="ffffffff"),
        _claim(name="16000000"),
        _claim(kind="0400"),
        _claim(kind="0100"),
        _claim(kind="1000"),
        _claim(kind="1000", offset="ffffffff"),
        _claim(count="00000000"),
        _claim(count="ffffffff"),
        _claim(offset="1a000000")[:-1],
        _claim(offset="00000080"),
        pack_claim(Claim("b", ClaimType.BOOLEAN, (1,)))[:-8] + b"\2" + bytes(7),
        pack_claim(Claim("d", ClaimType.SID, (USERS,)))[:-1] + b"x",
        # Long values that begin one after the other in the same bytes
        bytes.fromhex("4c000000 0300 0000 00000000 0e000000")
        + b"".join((0x50 + 2 * number).to_bytes(4, "little") for number in range(14))
        + b"p\0\0\0"
        + b"a\0" * 100
        + b"\0\0",
    ],
)
def test_malformed_claims(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpack_claim(data)
    malformed = Ace(AceType.RESOURCE_ATTRIBUTE, 0, 0, EVERYONE, data)
    good = CLAIMS[0]
    assert attributes_of(SecurityDescriptor(sacl=Acl((malformed, attribute_ace(good))))) == (good,)


def test_what_is_for_children_alone_is_no_attribute() -> None:
    sacl = Acl((attribute_ace(CLAIMS[0], AceFlag.INHERIT_ONLY | AceFlag.OBJECT_INHERIT), attribute_ace(CLAIMS[1])))
    assert attributes_of(SecurityDescriptor(sacl=sacl)) == (CLAIMS[1],)
    assert attributes_of(SecurityDescriptor()) == ()


@given(st.binary(max_size=60), st.sampled_from([*ClaimType, 0, 4]), st.integers(0, 5), st.integers(16, 60))
@settings(deadline=None)
def test_no_bytes_raise_anything_else(body: bytes, kind: int, count: int, name: int) -> None:
    head = name.to_bytes(4, "little") + kind.to_bytes(4, "little") + bytes(4) + count.to_bytes(4, "little")
    try:
        claim = unpack_claim(head + body)
    except ValueError:
        return
    assert unpack_claim(pack_claim(claim)) == claim
