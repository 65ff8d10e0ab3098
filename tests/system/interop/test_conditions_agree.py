"""Conditions of ACEs as Debian's newest Samba evaluates, reads and writes them, beside this server.

Samba is the judge of what MS-DTYP 2.4.4.17 leaves open: sets, values of different types, upper and lower case. Two
things are otherwise there, and left out here: Exists and an attribute as a term are always UNKNOWN, and an attribute
that nobody has makes the whole condition UNKNOWN, not one operator (MS-DTYP 2.4.4.17.6, 2.4.4.17.7).
"""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from smb3server.access import sddl
from smb3server.access.check import Token, granted_access
from smb3server.access.claims import Claim, ClaimFlag, Claims, ClaimType, ClaimValue
from smb3server.access.conditions.expression import BINARY, Base, Code, Sign, Term, pack
from smb3server.access.conditions.text import parse_condition, show_condition
from smb3server.access.descriptor import (
    BUILTIN_GUESTS,
    BUILTIN_USERS,
    EVERYONE,
    LOCAL_SYSTEM,
    Ace,
    AceType,
    Acl,
    SecurityDescriptor,
    Sid,
    allow,
    unpack,
)
from smb3server.access.resource_attributes import attribute_ace, attributes_of
from smb3server.wire.upcase import upcase
from tools.torture import samba_root

WHY_NOT = samba_root.why_not(samba_root.DEFAULT)
pytestmark = [
    pytest.mark.interop,
    pytest.mark.root,
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]

CASES = 1200

JUDGE = """
import json, sys
import samba.security
from samba import NTSTATUSError
from samba.dcerpc import security
from samba.ndr import ndr_pack, ndr_unpack

DOMAIN = security.dom_sid("S-1-5-21-1-2-3")

def descriptor(packed):
    return ndr_unpack(security.descriptor, bytes.fromhex(packed))

def claims(packed):
    sacl = descriptor(packed).sacl
    return [ace.coda for ace in sacl.aces] if sacl else []

def granted(case):
    token = security.token()
    for name, values in (
        ("sids", [security.dom_sid(sid) for sid in case["sids"]]),
        ("device_sids", [security.dom_sid(sid) for sid in case["device_sids"]]),
        ("user_claims", claims(case["user"])),
        ("device_claims", claims(case["device"])),
    ):
        setattr(token, name, values)
        setattr(token, "num_" + name, len(values))
    token.evaluate_claims = security.CLAIMS_EVALUATION_ALWAYS
    found = []
    for packed in case["descriptors"]:
        try:
            samba.security.access_check(descriptor(packed), token, 1)
            found.append(True)
        except NTSTATUSError:
            found.append(False)
    return found

def packed(text):
    return ndr_pack(security.descriptor.from_sddl(text, DOMAIN)).hex()

def shown(data):
    return descriptor(data).as_sddl()

for line in sys.stdin:
    verb, argument = json.loads(line)
    print(json.dumps({"granted": granted, "packed": packed, "shown": shown}[verb](argument)))
"""


def ask(verb: str, arguments: Sequence[object]) -> list[Any]:
    """Return what Samba says of each argument."""
    command = [*samba_root.prefix(samba_root.DEFAULT), "env", "LC_ALL=C.UTF-8", "python3", "-c", JUDGE]
    lines = "".join(json.dumps([verb, argument]) + "\n" for argument in arguments)
    ended = subprocess.run(command, input=lines, capture_output=True, text=True, check=False, timeout=300)
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(answers) == len(arguments), ended.stderr[-2000:]
    return answers


# Random conditions

SIDS = (EVERYONE, BUILTIN_USERS, BUILTIN_GUESTS, Sid(5, (32, 544)), Sid(5, (21, 1, 2, 3, 1000)))
EXAMPLES: dict[ClaimType, tuple[ClaimValue, ...]] = {
    ClaimType.INT64: (-1, 0, 1, 2, 5, -1 << 63, (1 << 63) - 1),
    ClaimType.UINT64: (0, 1, 2, 5),
    ClaimType.BOOLEAN: (0, 1),
    ClaimType.STRING: ("a", "A", "b", "B", "ab", "", "z"),
    ClaimType.SID: SIDS,
    ClaimType.OCTET_STRING: (b"", b"\0", b"\1", b"\1\2", b"\2"),
}
MEMBERSHIP = sorted(code for code in Code if "MEMBER" in code.name)
RELATIONS = sorted(BINARY - {Code.AND, Code.OR})
ATTRIBUTES = (Code.USER_ATTRIBUTE, Code.DEVICE_ATTRIBUTE, Code.RESOURCE_ATTRIBUTE)


class Case(NamedTuple):
    """A condition, and what it is evaluated with."""

    claims: dict[Code, tuple[Claim, ...]]
    sids: tuple[Sid, ...]
    device_sids: tuple[Sid, ...]
    condition: tuple[Term, ...]


class Maker:
    """Makes cases out of random numbers. ``missing``: conditions also ask for attributes that nobody has."""

    def __init__(self, seed: int, missing: bool = False) -> None:
        self._random = random.Random(seed)
        self._missing = missing
        self._claims: dict[Code, tuple[Claim, ...]] = {}

    def case(self) -> Case:
        draw = self._random
        self._claims = {kind: tuple(self._claim(name) for name in "pqrs") for kind in ATTRIBUTES}
        sids, devices = draw.sample(SIDS[1:], 2), draw.sample(SIDS, 2)
        return Case(self._claims, (EVERYONE, *sids), tuple(devices), self._condition(0))

    def _claim(self, name: str) -> Claim:
        draw = self._random
        kind, flags = draw.choice(list(ClaimType)), draw.choice((0, 0, int(ClaimFlag.VALUE_CASE_SENSITIVE)))
        values: dict[object, ClaimValue] = {}
        for value in draw.choices(EXAMPLES[kind], k=draw.choice((1, 1, 1, 2, 3))):
            values.setdefault(upcase(value) if isinstance(value, str) and not flags else value, value)
        return Claim(name, kind, tuple(values.values()), flags)

    def _condition(self, depth: int) -> tuple[Term, ...]:
        choice = self._random.random()
        if depth > 3 or choice < 0.5:
            return self._membership() if choice < 0.08 else self._relation()
        if choice < 0.65:
            return (*self._condition(depth + 1), Term(Code.NOT))
        logical = Term(self._random.choice((Code.AND, Code.OR)))
        return (*self._condition(depth + 1), *self._condition(depth + 1), logical)

    def _membership(self) -> tuple[Term, ...]:
        sids = tuple(Term(Code.SID, sid) for sid in self._random.choices(SIDS, k=self._random.choice((1, 1, 2, 3))))
        single = len(sids) == 1 and self._random.random() < 0.5
        return (sids[0] if single else Term(Code.COMPOSITE, sids), Term(self._random.choice(MEMBERSHIP)))

    def _attribute(self) -> tuple[Term, Claim]:
        kind = self._random.choice(ATTRIBUTES)
        claim = self._random.choice(self._claims[kind])
        if self._missing and self._random.random() < 0.2:
            return Term(kind, "nobody"), claim
        return Term(kind, self._random.choice((claim.name, claim.name.upper()))), claim

    def _relation(self) -> tuple[Term, ...]:
        left, claim = self._attribute()
        choice = self._random.random()
        if choice < 0.3:
            right, _ = self._attribute()
        elif choice < 0.6:
            right = self._literal(claim)
        elif choice < 0.9:
            right = Term(Code.COMPOSITE, tuple(self._literal(claim) for _ in range(self._random.choice((0, 1, 2, 3)))))
        else:
            right = self._literal(self._attribute()[1])
        return left, right, Term(self._random.choice(RELATIONS))

    def _literal(self, claim: Claim) -> Term:
        """Return a value of the type of a claim, more often than not one that it has."""
        draw = self._random
        value = draw.choice(claim.values if draw.random() < 0.7 else EXAMPLES[ClaimType(claim.type)])
        if isinstance(value, int):
            sign = Sign.MINUS if value < 0 else draw.choice((Sign.NONE, Sign.PLUS))
            return Term(Code.INT64, value, sign, draw.choice((Base.DECIMAL, Base.HEXADECIMAL)))
        kinds = {str: Code.UNICODE_STRING, bytes: Code.OCTET_STRING, Sid: Code.SID}
        return Term(kinds[type(value)], value)


def _descriptors(case: Case, data: bytes) -> list[SecurityDescriptor]:
    """Return one that allows if the condition is TRUE, and one that denies unless it is FALSE."""
    sacl = Acl(tuple(map(attribute_ace, case.claims[Code.RESOURCE_ATTRIBUTE])))
    allowing = (Ace(AceType.ALLOWED_CALLBACK, 0, 1, EVERYONE, data),)
    denying = (Ace(AceType.DENIED_CALLBACK, 0, 1, EVERYONE, data), allow(EVERYONE, 1))
    return [SecurityDescriptor(LOCAL_SYSTEM, LOCAL_SYSTEM, Acl(aces), sacl) for aces in (allowing, denying)]


def _ours(case: Case, data: bytes) -> list[bool]:
    claims = Claims(case.claims[Code.USER_ATTRIBUTE], case.claims[Code.DEVICE_ATTRIBUTE], frozenset(case.device_sids))
    token = Token(EVERYONE, frozenset(case.sids), EVERYONE, 0, claims)
    return [bool(granted_access(one, token) & 1) for one in _descriptors(case, data)]


def _carried(claims: tuple[Claim, ...]) -> str:
    return SecurityDescriptor(sacl=Acl(tuple(map(attribute_ace, claims)))).pack().hex()


def _theirs(cases: Sequence[tuple[Case, bytes]]) -> list[list[bool]]:
    return ask(
        "granted",
        [
            {
                "sids": [str(sid) for sid in case.sids],
                "device_sids": [str(sid) for sid in case.device_sids],
                "user": _carried(case.claims[Code.USER_ATTRIBUTE]),
                "device": _carried(case.claims[Code.DEVICE_ATTRIBUTE]),
                "descriptors": [one.pack().hex() for one in _descriptors(case, data)],
            }
            for case, data in cases
        ],
    )


TRUE, FALSE, UNKNOWN = [True, False], [False, True], [False, False]


def test_the_value_of_conditions() -> None:
    maker = Maker(1)
    cases = [(case, pack(case.condition)) for case in (maker.case() for _ in range(CASES))]
    values: Counter[tuple[bool, ...]] = Counter()
    for (case, data), theirs in zip(cases, _theirs(cases), strict=True):
        assert _ours(case, data) == theirs, (show_condition(case.condition), case)
        values[tuple(theirs)] += 1
    assert min(values[tuple(value)] for value in (TRUE, FALSE, UNKNOWN)) > CASES // 10, values


def test_conditions_that_ask_for_what_nobody_has() -> None:
    """Where Samba decides at all, it decides as we do."""
    maker = Maker(2, missing=True)
    cases = [(case, pack(case.condition)) for case in (maker.case() for _ in range(CASES // 3))]
    missing = 0
    for (case, data), theirs in zip(cases, _theirs(cases), strict=True):
        if any(term.value == "nobody" for term in case.condition):
            assert theirs == UNKNOWN
            missing += 1
        else:
            assert _ours(case, data) == theirs, (show_condition(case.condition), case)
    assert missing > CASES // 12


def test_damaged_conditions() -> None:
    """We decide nothing that Samba leaves UNKNOWN, unless it is one of the two things above."""
    maker, draw = Maker(3), random.Random(3)
    cases = []
    for _ in range(CASES // 3):
        case = maker.case()
        damaged = bytearray(pack(case.condition))
        damaged[draw.randrange(4, len(damaged))] = draw.choice((*Code, draw.randrange(256)))
        cases.append((case, bytes(damaged)))
    unlike = 0
    for (case, data), theirs in zip(cases, _theirs(cases), strict=True):
        ours = _ours(case, data)
        if ours not in (UNKNOWN, theirs):
            unlike += 1
            assert theirs == UNKNOWN, (data.hex(), case)
            # A damaged name is that of an attribute that nobody has; a damaged operator makes it a term.
            assert any(code in data for code in (*ATTRIBUTES, Code.EXISTS, Code.NOT_EXISTS))
    assert unlike < len(cases) // 20


# Texts


def test_the_text_of_conditions() -> None:
    """Samba reads what we write, and we read what Samba writes, as the same bytes."""
    maker = Maker(4)
    conditions = [maker.case().condition for _ in range(CASES // 3)]
    written = ask("packed", [f"D:(XA;;FX;;;WD;{show_condition(one)})" for one in conditions])
    shown = ask("shown", written)
    for condition, packed, text in zip(conditions, written, shown, strict=True):
        expected = pack(condition)
        dacl = unpack(bytes.fromhex(packed)).dacl
        assert dacl is not None
        assert dacl.aces[0].data == expected
        assert parse_condition(text.removeprefix("D:(XA;;FX;;;WD;").removesuffix(")")) == condition


TEXTS = (
    "D:(A;;FA;;;WD)",
    "O:SYG:BAD:AR(D;;FX;;;S-1-5-11)",
    "G:S-1-5-21-1-2-3-4D:P(A;ID;FW;;;NS)",
    "D:PAI(A;OICI;FA;;;BA)(XA;OICIIO;0x1200a9;;;AU;(@User.x == 1 || a && b))",
    "D:(A;;CCDCLCSWRPWPDTLOCRSDRCWDWO;;;DA)(A;;GAGRGWGX;;;OW)(A;;12;;;LW)",
    "D:(OA;;CR;ab721a53-1e2f-11d0-9819-00aa0040529b;;WD)(ZA;;WP;;ab721a53-1e2f-11d0-9819-00aa0040529b;WD;(@User.x))",
    "S:AI(AU;SAFA;GA;;;WD)(XU;SA;FR;;;WD;(Exists @User.x))",
    'S:(RA;OICI;;;;WD;("Project",TS,0,"Windows","SQL"))(RA;;;;;WD;("a%0020b",TS,2,"x y"))',
    'S:(RA;;;;;WD;("i",TI,0x0,-5,7,0x10,017))(RA;;;;;WD;("u",TU,0x2,5))',
    'S:(RA;;;;;WD;("o",TX,0x0,0102,ff))(RA;;;;;WD;("d",TD,0x0,BA,S-1-5-7))',
)


def test_the_text_of_descriptors() -> None:
    domain = Sid(5, (21, 1, 2, 3))
    ours = [sddl.parse(text, domain) for text in TEXTS]
    for text, mine, packed, shown in zip(
        TEXTS, ours, ask("packed", TEXTS), ask("shown", [one.pack().hex() for one in ours]), strict=True
    ):
        theirs = unpack(bytes.fromhex(packed))
        assert _meant(mine) == _meant(theirs), text
        assert _meant(sddl.parse(shown, domain)) == _meant(mine), shown


def _meant(descriptor: SecurityDescriptor) -> tuple[object, ...]:
    """Return what a descriptor says. Samba gives every ACL the revision of those with object ACEs, and packs claims
    without padding."""
    known = unpack(descriptor.pack())
    aces = [
        [ace if ace.type != AceType.RESOURCE_ATTRIBUTE else ace._replace(data=b"") for ace in acl.aces]
        for acl in (known.dacl, known.sacl)
        if acl is not None
    ]
    return known.owner, known.group, known.control, aces, attributes_of(known)
