"""Conditions of ACEs: their encoding, their text, their value, and what no input may do. [MS-DTYP 2.4.4.17]"""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smb3server.access.check import Token, granted_access
from smb3server.access.claims import Claim, ClaimFlag, Claims, ClaimType
from smb3server.access.conditions.evaluation import Facts, evaluate
from smb3server.access.conditions.expression import MAX_TOKENS, SIGNATURE, Code, Term, pack, unpack
from smb3server.access.conditions.text import MAX_DEPTH, parse_condition, show_condition
from smb3server.access.descriptor import (
    AUTHENTICATED_USERS,
    BUILTIN_GUESTS,
    BUILTIN_USERS,
    EVERYONE,
    MAX_BYTES,
    Ace,
    AceType,
    Acl,
    SecurityDescriptor,
    Sid,
    allow,
)
from smb3server.access.resource_attributes import MAX_VALUES, attribute_ace

LONGEST = 1.0
"""Seconds of processor time for the costliest descriptor that a client can store. Other tests run beside this one."""

ADMINISTRATORS = Sid(5, (32, 544))
SMARTCARD = "f912000000 73006d006100720074006300610072006400"
MANAGED = "fb0e000000 6d0061006e006100670065006400"
ONE = "04 0100000000000000 03 02"

# The published examples


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ('(Title == "VP")', "61727478 f80a000000 5400690074006c006500 1004000000 56005000 80 000000"),
        (
            '((@User.smartcard == 1 || @Device.managed == 1) && @Resource.dept Any_of {"Sales", "HR"})',
            f"61727478 {SMARTCARD} {ONE} 80 {MANAGED} {ONE} 80 a1 fa08000000 6400650070007400 "
            "5018000000 100a000000 530061006c0065007300 1004000000 48005200 88 a0",
        ),
        (
            "(@User.clearanceLevel >= @Resource.requiredClearance || Member_of {SID(BA)})",
            "61727478 f91c000000 63006c0065006100720061006e00630065004c006500760065006c00 "
            "fa22000000 7200650071007500690072006500640043006c0065006100720061006e0063006500 85 "
            "5015000000 5110000000 01020000000000052000000020020000 89 a1",
        ),
    ],
)
def test_the_examples_of_the_specification(text: str, data: str) -> None:
    """[MS-DTYP 2.4.4.17.9]"""
    packed = bytes.fromhex(data)
    packed += bytes(-len(packed) % 4)
    assert pack(parse_condition(text)) == packed
    assert unpack(packed) == parse_condition(text)
    assert show_condition(unpack(packed)) == text


# Values

USER = (
    Claim("Title", ClaimType.STRING, ("PM",)),
    Claim("Exact", ClaimType.STRING, ("PM",), ClaimFlag.VALUE_CASE_SENSITIVE),
    Claim("Empty", ClaimType.STRING, ("",)),
    Claim("Umlaut", ClaimType.STRING, ("größe",)),
    Claim("Projects", ClaimType.STRING, ("sql", "Windows", "Azure")),
    Claim("Level", ClaimType.INT64, (5,)),
    Claim("Zero", ClaimType.INT64, (0,)),
    Claim("Levels", ClaimType.UINT64, (1, 2, 3)),
    Claim("Manager", ClaimType.BOOLEAN, (1,)),
    Claim("Key", ClaimType.OCTET_STRING, (b"\1\2",)),
    Claim("Group", ClaimType.SID, (ADMINISTRATORS,)),
    Claim("Off", ClaimType.INT64, (1,), ClaimFlag.DISABLED),
    Claim("Deny", ClaimType.INT64, (1,), ClaimFlag.USE_FOR_DENY_ONLY),
)
RESOURCE = (Claim("Project", ClaimType.STRING, ("windows", "unix")), Claim("Secret", ClaimType.INT64, (5,)))
FACTS = Facts(
    frozenset({EVERYONE, BUILTIN_USERS}),
    Claims(USER, (Claim("Managed", ClaimType.BOOLEAN, (0,)),), frozenset({BUILTIN_GUESTS})),
    RESOURCE,
)
VALUES: dict[str, bool | None] = {
    # Relations of single values
    '@User.Title == "pm"': True,
    '@USER.tITLE == "pm"': True,
    '@User.Title != "PM"': False,
    '@User.Exact == "PM"': True,
    '@User.Exact == "pm"': False,
    "@User.Title == @User.Exact": True,
    '@User.Umlaut == "GRÖßE"': True,
    '@User.Title < "PN"': True,
    '@User.Title >= "pm"': True,
    '@User.Title > "PM"': False,
    "@User.Level == 0x5": True,
    "@User.Level <= 4": False,
    "@User.Level > -1": True,
    "@User.Level >= @Resource.Secret": True,
    "@User.Manager == 1": True,
    "@User.Manager == @User.Level": False,
    "@User.Key == #0102": True,
    "@User.Key < #02": True,
    "@User.Group == SID(BA)": True,
    "@User.Group != SID(BU)": True,
    # Values of different types, and orders that there are not
    '@User.Level == "5"': None,
    "@User.Title != 1": None,
    "@User.Group < SID(BU)": None,
    "@User.Level == {5}": None,
    "@User.Projects == 1": None,
    "@User.Levels < 9": None,
    "@User.Levels < {9}": None,
    # Sets
    '@User.Projects == {"azure", "SQL", "windows"}': True,
    '@User.Projects != {"azure", "SQL"}': True,
    '@User.Projects Contains "windows"': True,
    '@User.Projects Contains {"windows", "sql"}': True,
    "@User.Projects Contains @Resource.Project": False,
    "@User.Projects Any_of @Resource.Project": True,
    '@User.Projects Any_of {"unix"}': False,
    '@User.Projects Not_Contains "unix"': True,
    '@User.Projects Not_Any_of {"unix", "sql"}': False,
    '@User.Title Any_of {"PM", "VP"}': True,
    "@User.Levels Contains {3, 1}": True,
    "@User.Levels Contains {}": None,
    "@User.Levels Any_of {}": False,
    '@User.Levels Any_of {1, "1"}': None,
    # Attributes that nobody has
    '@User.Nothing == "x"': None,
    "@User.Title == @Resource.Nothing": None,
    "@User.Nothing Not_Any_of {1}": None,
    "Title == 1": None,
    "@User.Off == 1": None,
    "@User.Deny == 1": None,
    # Membership
    "Member_of {SID(WD), SID(BU)}": True,
    "Member_of SID(BU)": True,
    "Member_of {SID(BU), SID(BA)}": False,
    "Member_of_Any {SID(BU), SID(BA)}": True,
    "Not_Member_of {SID(BU), SID(BA)}": True,
    "Not_Member_of_Any {SID(BU)}": False,
    "Device_Member_of {SID(BG)}": True,
    "Device_Member_of {SID(BU)}": False,
    "Device_Member_of_Any {SID(BU), SID(BG)}": True,
    "Not_Device_Member_of {SID(BG)}": False,
    "Not_Device_Member_of_Any {SID(BU)}": True,
    "Member_of {}": None,
    "Member_of {SID(BU), 1}": None,
    # Existence
    "Exists @User.Title": True,
    "Exists @User.Nothing": False,
    "Exists @Resource.Secret": True,
    "Exists @Device.Managed": True,
    "Exists Title": False,
    "Not_Exists @User.Nothing": True,
    # Attributes as terms
    "@User.Level": True,
    "@User.Zero": False,
    "@User.Empty": False,
    "@User.Title": True,
    "@Device.Managed": False,
    "@User.Nothing": None,
    "@User.Levels": None,
    "@User.Key": None,
    # Logic
    "!(@User.Zero)": True,
    "!(@User.Nothing)": None,
    "!@User.Level == 5": False,
    "@User.Level && @User.Title": True,
    "@User.Zero && @User.Nothing": False,
    "@User.Level && @User.Nothing": None,
    "@User.Nothing && @User.Zero": False,
    "@User.Zero || @User.Nothing": None,
    "@User.Level || @User.Nothing": True,
    "@User.Nothing || @User.Level": True,
    "@User.Zero || @User.Zero": False,
    "@User.Level || @User.Zero && @User.Zero": True,
    "(@User.Level || @User.Zero) && @User.Zero": False,
    # An error makes all of it UNKNOWN
    "@User.Level == 5 || @User.Level == {5}": None,
    "@User.Zero && Member_of {1}": None,
}


@pytest.mark.parametrize(("text", "value"), VALUES.items())
def test_the_value_of_a_condition(text: str, value: bool | None) -> None:
    assert evaluate(pack(parse_condition(text)), FACTS, denying=False) is value


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        (Term(Code.USER_ATTRIBUTE, "a b"), "(@User.a%0020b)"),
        (Term(Code.RESOURCE_ATTRIBUTE, "a\U0001f600"), "(@Resource.a%d83d%de00)"),
        (Term(Code.LOCAL_ATTRIBUTE, "WIN://TokenId"), "(WIN://TokenId)"),
        (Term(Code.LOCAL_ATTRIBUTE, "a b"), None),
        (Term(Code.LOCAL_ATTRIBUTE, "exists"), None),
        (Term(Code.DEVICE_ATTRIBUTE, ""), None),
    ],
)
def test_names_of_attributes(attribute: Term, text: str | None) -> None:
    if text is not None:
        assert show_condition((attribute,)) == text
        assert parse_condition(text) == (attribute,)
        return
    with pytest.raises(ValueError, match="without a text"):
        show_condition((attribute,))


@pytest.mark.parametrize("text", VALUES)
def test_a_condition_as_text_is_the_same_condition(text: str) -> None:
    condition = parse_condition(text)
    assert parse_condition(show_condition(condition)) == condition
    assert unpack(pack(condition)) == condition


def test_claims_for_denying_alone() -> None:
    data = pack(parse_condition("@User.Deny == 1"))
    assert evaluate(data, FACTS, denying=True) is True
    assert evaluate(data, FACTS, denying=False) is None


ATTRIBUTE, NUMBER = Term(Code.USER_ATTRIBUTE, "Level"), Term(Code.INT64, 5)


@pytest.mark.parametrize(
    "terms",
    [
        (NUMBER,),
        (NUMBER, Term(Code.NOT)),
        (NUMBER, NUMBER, Term(Code.EQUAL)),
        (ATTRIBUTE, NUMBER, Term(Code.AND)),
        (ATTRIBUTE, Term(Code.MEMBER_OF)),
        (NUMBER, Term(Code.EXISTS)),
        (ATTRIBUTE, Term(Code.EXISTS), Term(Code.EXISTS)),
        (ATTRIBUTE, ATTRIBUTE, NUMBER, Term(Code.EQUAL), Term(Code.EQUAL)),
    ],
)
def test_operands_of_the_wrong_kind(terms: tuple[Term, ...]) -> None:
    """They have no text either: nobody can write them."""
    assert evaluate(pack(terms), FACTS, denying=False) is None
    with pytest.raises(ValueError, match="without a text"):
        show_condition(terms)


# What is malformed

_ATTRIBUTE = bytes.fromhex("f902000000 6100")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(4),
        b"\x80",
        b"\xff",
        _ATTRIBUTE + b"\x80",
        _ATTRIBUTE + _ATTRIBUTE,
        _ATTRIBUTE + b"\0\0\1",
        _ATTRIBUTE[:-1],
        _ATTRIBUTE[:4],
        bytes.fromhex("f903000000 610062 a2"),
        bytes.fromhex("f902000000 00d8 a2"),
        bytes.fromhex("f9ffffffff 6100"),
        _ATTRIBUTE + bytes.fromhex("01 8000000000000000 03 02 80"),
        _ATTRIBUTE + bytes.fromhex("04 0100000000000000 00 02 80"),
        _ATTRIBUTE + bytes.fromhex("04 0100000000000000 03 04 80"),
        _ATTRIBUTE + bytes.fromhex("04 01000000"),
        _ATTRIBUTE + bytes.fromhex("50 0b000000 50 06000000 f9 02000000 6100 80"),
        _ATTRIBUTE + bytes.fromhex("50 05000000 04 01000000 80"),
        bytes.fromhex("51 0c000000 020100000000000100000000 89"),
        bytes.fromhex("51 10000000 01010000000000010000000000000000 89"),
        _ATTRIBUTE + b"\xa2" * MAX_TOKENS,
        _ATTRIBUTE + bytes.fromhex("50 a0860100") + b"\x10\0\0\0\0" * 20000 + b"\x86",
    ],
)
def test_a_malformed_condition_is_unknown(body: bytes) -> None:
    with pytest.raises(ValueError):
        unpack(SIGNATURE + body)
    assert evaluate(SIGNATURE + body, FACTS, denying=False) is None


@pytest.mark.parametrize("data", [b"", b"artx", b"arty\xf9\2\0\0\0a\0"])
def test_other_application_data_is_unknown(data: bytes) -> None:
    assert evaluate(data, FACTS, denying=True) is None


TOKENS = st.one_of(
    st.sampled_from([bytes((code,)) for code in Code]),
    st.sampled_from([_ATTRIBUTE, bytes.fromhex(ONE), bytes.fromhex("10 02000000 6100"), bytes.fromhex("50 00000000")]),
    st.binary(max_size=6),
)


@given(st.one_of(st.binary(max_size=80), st.lists(TOKENS, max_size=12).map(b"".join)))
@settings(deadline=None)
def test_no_bytes_raise_anything(body: bytes) -> None:
    value = evaluate(SIGNATURE + body, FACTS, denying=True)
    assert value is None or isinstance(value, bool)
    try:
        condition = unpack(SIGNATURE + body)
    except ValueError:
        return
    assert unpack(pack(condition)) == condition


WORDS = st.sampled_from(
    [
        *"(){},1b",
        "@User.a",
        "@Resource.",
        "-0x",
        '"',
        '"x"',
        "#0",
        "SID(BA)",
        "SID(",
        "&&",
        "||",
        "!",
        "==",
        "<",
        "Contains",
        "%0041",
    ]
)


@given(st.one_of(st.text(max_size=40), st.lists(WORDS, max_size=14).map(" ".join)))
@settings(deadline=None)
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        condition = parse_condition(text)
    except ValueError:
        return
    assert evaluate(pack(condition), FACTS, denying=False) in (True, False, None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a condition expected at the end"),
        ("@User.a ==", "a number expected at the end"),
        ("@User.a = 1", "the end expected"),
        ("(@User.a == 1", "'\\)' expected"),
        ("@User.a == 1)", "the end expected"),
        ("@User. == 1", "the name of an attribute expected"),
        ("@User.a is 1", "is is no operator"),
        ("Contains 1", "Contains without an attribute"),
        ('@User.a == "x', "a text in quotation marks expected"),
        ("@User.a == 9223372036854775808", "number too large"),
        ("@User.a == {1 2}", "',' expected"),
        ("Member_of {SID(DA)}", "DA is an account of a domain"),
        ("Member_of {SID(S-2-1)}", "a SID expected"),
        ("(" * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1), "too many brackets"),
        ("!" * 100_000 + "a", "too many brackets"),
        ("@User.a == {" + "1," * MAX_TOKENS + "1}", "too many tokens"),
        ("a" * (1 << 18), "text too long"),
    ],
)
def test_texts_that_are_no_condition(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_condition(text)


def test_letters_of_a_domain() -> None:
    (sid, _) = parse_condition("Member_of SID(DA)", Sid(5, (21, 1, 2, 3)))
    assert sid.value == Sid(5, (21, 1, 2, 3, 512))


# The access check


def _granted(aces: Iterable[Ace], token: Token) -> int:
    dacl = Acl(tuple(aces))
    sacl = Acl(tuple(map(attribute_ace, RESOURCE)))
    return granted_access(SecurityDescriptor(AUTHENTICATED_USERS, None, dacl, sacl), token)


TOKEN = Token(EVERYONE, frozenset({EVERYONE, BUILTIN_USERS}), EVERYONE, 0, Claims(USER))


def _ace(kind: int, text: str, mask: int = 1) -> Ace:
    return Ace(kind, 0, mask, EVERYONE, pack(parse_condition(text)))


@pytest.mark.parametrize(
    ("text", "allows", "denies"),
    [
        ("@User.Level == 5", True, True),
        ("@User.Level == 6", False, False),
        ("@User.Nothing == 5", False, True),
        ("@Resource.Secret == @User.Level", True, True),
        ("@Device.Managed", False, True),
        ("@User.Deny == 1", False, True),
    ],
)
def test_entries_with_conditions(text: str, allows: bool, denies: bool) -> None:
    """UNKNOWN allows nothing, and denies. [MS-DTYP 2.4.4.17.3]"""
    for allowed, denied in (
        (AceType.ALLOWED_CALLBACK, AceType.DENIED_CALLBACK),
        (AceType.ALLOWED_CALLBACK_OBJECT, AceType.DENIED_CALLBACK_OBJECT),
    ):
        assert _granted([_ace(allowed, text)], TOKEN) == (1 if allows else 0)
        assert _granted([_ace(denied, text), allow(EVERYONE, 3)], TOKEN) == (2 if denies else 3)


def test_a_condition_of_somebody_else_is_not_asked() -> None:
    ace = _ace(AceType.ALLOWED_CALLBACK, "@User.Level == 5")
    assert _granted([ace._replace(sid=ADMINISTRATORS)], TOKEN) == 0


def test_without_claims_conditions_of_groups_count() -> None:
    ace = _ace(AceType.ALLOWED_CALLBACK, "Member_of {SID(BU)}")
    assert _granted([ace], TOKEN._replace(claims=None)) == 1
    assert _granted([_ace(AceType.ALLOWED_CALLBACK, "@User.Level == 5")], TOKEN._replace(claims=None)) == 0


def test_the_costliest_descriptor() -> None:
    """An attribute of as many values as there may be, compared with itself as often as there is room."""
    many = attribute_ace(Claim("a", ClaimType.INT64, tuple(range(MAX_VALUES))))
    again = pack(
        (Term(Code.RESOURCE_ATTRIBUTE, "a"),)
        + (Term(Code.RESOURCE_ATTRIBUTE, "a"), Term(Code.EQUAL))
        + (Term(Code.RESOURCE_ATTRIBUTE, "a"), Term(Code.RESOURCE_ATTRIBUTE, "a"), Term(Code.EQUAL), Term(Code.AND))
        * 500
    )
    ace = Ace(AceType.DENIED_CALLBACK, 0, 1, EVERYONE, again)
    room = MAX_BYTES - len(many.pack()) - 100
    descriptor = SecurityDescriptor(EVERYONE, None, Acl((ace,) * (room // len(ace.pack()))), Acl((many,)))
    assert MAX_BYTES - len(descriptor.pack()) < len(ace.pack()) + 200
    started = time.process_time()
    granted_access(descriptor, TOKEN)
    assert time.process_time() - started < LONGEST
