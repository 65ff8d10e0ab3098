"""Security descriptors as text. [MS-DTYP 2.5.1]"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smb3server.access import sddl
from smb3server.access.claims import Claim, ClaimFlag, ClaimType
from smb3server.access.conditions.expression import pack
from smb3server.access.conditions.text import parse_condition
from smb3server.access.descriptor import (
    AUTHENTICATED_USERS,
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
    unpack,
)
from smb3server.access.masks import FILE_ALL_ACCESS, FILE_GENERIC_EXECUTE
from smb3server.access.resource_attributes import attribute_ace, attributes_of, policy_of

DOMAIN = Sid(5, (21, 1, 2, 3))
ADMINISTRATORS = Sid(5, (32, 544))


def _only(ace: Ace) -> SecurityDescriptor:
    return SecurityDescriptor(dacl=Acl((ace,)), control=Control.DACL_PRESENT)


DESCRIPTORS = {
    "D:": SecurityDescriptor(dacl=Acl(), control=Control.DACL_PRESENT),
    "D:NO_ACCESS_CONTROL": SecurityDescriptor(control=Control.DACL_PRESENT),
    "O:SYG:BAD:PAI(A;OICI;FA;;;BA)": SecurityDescriptor(
        LOCAL_SYSTEM,
        ADMINISTRATORS,
        Acl((allow(ADMINISTRATORS, FILE_ALL_ACCESS, 3),)),
        None,
        Control.DACL_PRESENT | Control.DACL_PROTECTED | Control.DACL_AUTO_INHERITED,
    ),
    "G:S-1-5-21-1-2-3-4D:(D;;0x1;;;AU)": SecurityDescriptor(
        None, Sid(5, (21, 1, 2, 3, 4)), Acl((deny(AUTHENTICATED_USERS, 1),)), None, Control.DACL_PRESENT
    ),
    "S:ARAI(AU;SAFA;FA;;;WD)": SecurityDescriptor(
        sacl=Acl((Ace(AceType.AUDIT, AceFlag.SUCCESSFUL_ACCESS | AceFlag.FAILED_ACCESS, FILE_ALL_ACCESS, EVERYONE),)),
        control=Control.SACL_PRESENT | Control.SACL_AUTO_INHERITED | Control.SACL_AUTO_INHERIT_REQ,
    ),
    '(XA;;FX;;;WD;(@User.Title == "PM" && Member_of {SID(BA)}))': _only(
        Ace(
            AceType.ALLOWED_CALLBACK,
            0,
            FILE_GENERIC_EXECUTE,
            EVERYONE,
            pack(parse_condition('@User.Title == "PM" && Member_of {SID(BA)}')),
        )
    ),
    "(OA;;0x100;ab721a53-1e2f-11d0-9819-00aa0040529b;;WD)": SecurityDescriptor(
        dacl=Acl(
            (
                Ace(
                    AceType.ALLOWED_OBJECT,
                    0,
                    0x100,
                    EVERYONE,
                    b"",
                    bytes.fromhex("01000000 531a72ab 2f1e d011 9819 00aa0040529b"),
                ),
            ),
            4,
        ),
        control=Control.DACL_PRESENT,
    ),
}
ATTRIBUTES = {
    '("Project",TS,0x0,"Windows","SQL")': Claim("Project", ClaimType.STRING, ("Windows", "SQL")),
    '("a%0020b",TS,0x2,"")': Claim("a b", ClaimType.STRING, ("",), ClaimFlag.VALUE_CASE_SENSITIVE),
    '("Größe",TI,0x0,-5,7)': Claim("Größe", ClaimType.INT64, (-5, 7)),
    '("U",TU,0x0,18446744073709551615)': Claim("U", ClaimType.UINT64, ((1 << 64) - 1,)),
    '("B",TB,0x0,1)': Claim("B", ClaimType.BOOLEAN, (1,)),
    '("X",TX,0x0,0102,)': Claim("X", ClaimType.OCTET_STRING, (b"\1\2", b"")),
    '("D",TD,0x0,BA,S-1-5-21-1-2-3-9)': Claim("D", ClaimType.SID, (ADMINISTRATORS, Sid(5, (21, 1, 2, 3, 9)))),
}


@pytest.mark.parametrize(("text", "descriptor"), DESCRIPTORS.items())
def test_text_and_descriptor(text: str, descriptor: SecurityDescriptor) -> None:
    whole = f"D:{text}" if text.startswith("(") else text
    assert sddl.parse(whole) == descriptor
    assert sddl.show(descriptor) == whole
    packed = unpack(descriptor.pack())
    assert sddl.show(packed) == whole


@pytest.mark.parametrize(("text", "claim"), ATTRIBUTES.items())
def test_resource_attributes(text: str, claim: Claim) -> None:
    whole = f"S:(RA;OI;;;;WD;{text})"
    found = unpack(sddl.parse(whole).pack())
    assert attributes_of(found) == (claim,)
    assert found.sacl == Acl((attribute_ace(claim, AceFlag.OBJECT_INHERIT),))
    assert sddl.show(found) == whole


def test_the_policy_of_a_file() -> None:
    found = sddl.parse("S:(SP;IO;;;;S-1-17-1)(SP;;;;;S-1-17-2)(SP;;;;;S-1-17-3)")
    assert policy_of(found) == Sid(17, (2,))
    assert sddl.show(found) == "S:(SP;IO;;;;S-1-17-1)(SP;;;;;S-1-17-2)(SP;;;;;S-1-17-3)"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("D:(A;;CCDCLCSWRPWPDTLOCRSDRCWDWO;;;SY)", "D:(A;;0xf01ff;;;SY)"),
        ("D:(A;;GAGRGWGX;;;OW)", "D:(A;;0xf0000000;;;OW)"),
        ("D:(A;;12;;;LW)(A;;010;;;LW)", "D:(A;;0xc;;;LW)(A;;0x8;;;LW)"),
        ("S:(ML;;NWNR;;;HI)", "S:(ML;;0x3;;;HI)"),
        ("D:(A;;FA;;;DA)", "D:(A;;FA;;;S-1-5-21-1-2-3-512)"),
        ("D: (XA; ;FX;;;S-1-1-0; (@User.a)) (A;;FA;;;ba)", "D:(XA;;FX;;;WD;(@User.a))(A;;FA;;;BA)"),
        ('S:(RA;;;;;WD;( "P" , TX , 0 , #1#2 ))', 'S:(RA;;;;;WD;("P",TX,0x0,0102))'),
    ],
)
def test_other_ways_to_write_it(text: str, same: str) -> None:
    assert sddl.show(sddl.parse(text, DOMAIN)) == same


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nonsense", "'nonsense' is not a list of permissions"),
        ("D:(A;;FA;;;WD)D:", "not a list of permissions"),
        ("D:(A;;FA;;;WD", "'\\)' expected at the end"),
        ("D:(A;;FA;;;)", "a SID expected"),
        ("D:(A;;FA;;;DA)", "DA is an account of a domain"),
        ("D:(A;;FA;;;S-1-5-4294967296)", "number too large"),
        ("D:(B;;FA;;;WD)", "'B' is no type of an ACE"),
        ("D:(A;XX;FA;;;WD)", "'XX' is no flag"),
        ("D:(A;;ZZ;;;WD)", "'ZZ' is no right"),
        ("D:(A;;F;;;WD)", "'F' is no right"),
        ("D:(A;;0x100000000;;;WD)", "access mask too large"),
        ("D:(A;;9" + "9" * 5000 + ";;;WD)", "number too large"),
        ("D:(A;;FA;ab721a53-1e2f-11d0-9819-00aa0040529b;;WD)", "GUID in an ACE"),
        ("D:(OA;;FA;x;;WD)", "badly formed"),
        ("D:(XA;;FA;;;WD)", "';' expected"),
        ("D:(A;;FA;;;WD;(@User.a))", "'\\)' expected"),
        ('S:(RA;;;;;WD;("a",TS,0))', "without a value"),
        ('S:(RA;;;;;WD;("",TS,0,"a"))', "without a name"),
        ('S:(RA;;;;;WD;("a",TQ,0,1))', "the type of an attribute"),
        ('S:(RA;;;;;WD;("a",TB,0,2))', "out of range"),
        ('S:(RA;;;;;WD;("a",TU,0,-1))', "out of range"),
        ('S:(RA;;;;;WD;("a",TI,0x100000000,1))', "out of range"),
        ('S:(RA;;;;;WD;("a",TI,0' + ",1" * 257 + "))", "too many values"),
    ],
)
def test_texts_that_are_no_descriptor(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        sddl.parse(text)


@pytest.mark.parametrize(
    "ace",
    [
        Ace(0x14, 0, 0, None),
        Ace(AceType.ALLOWED_CALLBACK, 0, 1, EVERYONE, b"other"),
        Ace(AceType.RESOURCE_ATTRIBUTE, 0, 0, EVERYONE, b"short"),
        attribute_ace(Claim("a", ClaimType.STRING, ('"',))),
    ],
)
def test_aces_without_a_text(ace: Ace) -> None:
    with pytest.raises(ValueError):
        sddl.show(_only(ace))


PIECES = st.sampled_from(
    [
        "D:",
        "S:",
        "O:",
        "(",
        ")",
        ";",
        "A",
        "XA",
        "RA",
        "FA",
        "WD",
        "S-1-1-0",
        "0x1",
        '"a"',
        ",",
        "TS",
        "TX",
        "#",
        "@User.a",
    ]
)


@given(st.one_of(st.text(max_size=30), st.lists(PIECES, max_size=16).map("".join)))
@settings(deadline=None)
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        found = sddl.parse(text, DOMAIN)
    except ValueError:
        return
    assert sddl.parse(sddl.show(found)) == found
