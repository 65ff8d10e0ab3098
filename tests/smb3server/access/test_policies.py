"""What central access policies take away. [MS-DTYP 2.5.3.1.3, 2.5.3.1.4, 2.5.3.2]"""

from __future__ import annotations

import pytest

from smb3server.access import tokens
from smb3server.access.caller import Caller
from smb3server.access.check import Token
from smb3server.access.claims import Claim, Claims, ClaimType
from smb3server.access.conditions.expression import Code, Term, pack
from smb3server.access.descriptor import (
    AUTHENTICATED_USERS,
    EVERYONE,
    Ace,
    AceFlag,
    AceType,
    Acl,
    SecurityDescriptor,
    Sid,
    allow,
    deny,
)
from smb3server.access.masks import FILE_ALL_ACCESS, FILE_GENERIC_READ
from smb3server.access.policies import RECOVERY, Policies, Policy, Rule
from smb3server.backends.base import Described, FileInfo, FileKey, Kind, User
from smb3server.wire.create import Access

ALICE, ADMINISTRATORS = Sid.parse("S-1-5-21-1-2-3-1104"), Sid.parse("S-1-5-32-544")
FINANCE, OTHER = Sid.parse("S-1-17-1-2-3-4"), Sid.parse("S-1-17-1-2-3-5")
IMPLIED = int(Access.READ_CONTROL | Access.WRITE_DAC)
WRITE = int(Access.WRITE_DATA)


def is_equal(attribute: Code, name: str, value: str) -> tuple[Term, ...]:
    return Term(attribute, name), Term(Code.UNICODE_STRING, value), Term(Code.EQUAL)


def allow_if(sid: Sid, mask: int, condition: tuple[Term, ...]) -> Ace:
    return Ace(AceType.ALLOWED_CALLBACK, 0, mask, sid, pack(condition))


def scoped(sid: Sid, flags: int = 0) -> Ace:
    return Ace(AceType.SCOPED_POLICY_ID, flags, 0, sid)


def file(*sacl: Ace, owner: Sid = ADMINISTRATORS, dacl: Acl | None = None) -> SecurityDescriptor:
    """A file that its own descriptor gives to everybody."""
    return SecurityDescriptor(owner, None, dacl or Acl((allow(EVERYONE, FILE_ALL_ACCESS),)), Acl(sacl))


def token(*claims: Claim, sids: frozenset[Sid] = frozenset(), policies: Policies | None = None) -> Token:
    own = frozenset({ALICE, EVERYONE, AUTHENTICATED_USERS, *sids})
    return Token(ALICE, own, ALICE, 0, Claims(claims) if claims else None, policies)


def policies(**found: Policy) -> Policies:
    made = Policies()
    made.replace({{"finance": FINANCE, "other": OTHER}[name]: policy for name, policy in found.items()})
    return made


READERS = Policy("Readers", (Rule(Acl((allow(AUTHENTICATED_USERS, FILE_GENERIC_READ),))),))
IT = Claim("ad://ext/department", ClaimType.STRING, ("IT",))


def limit(made: Policies, descriptor: SecurityDescriptor, who: Token) -> int:
    return made.limit(FILE_ALL_ACCESS, descriptor, who)


def test_a_policy_only_takes_away() -> None:
    made = policies(finance=READERS)
    assert limit(made, file(scoped(FINANCE)), token()) == FILE_GENERIC_READ
    assert made.limit(WRITE, file(scoped(FINANCE)), token()) == 0
    assert limit(made, file(), token()) == FILE_ALL_ACCESS


def test_all_rules_that_apply_are_evaluated() -> None:
    """The second takes away what the first leaves."""
    no_data = Rule(Acl((deny(EVERYONE, int(Access.READ_DATA)), allow(EVERYONE, FILE_ALL_ACCESS))))
    made = policies(finance=Policy("Both", (*READERS.rules, no_data)))
    assert limit(made, file(scoped(FINANCE)), token()) == FILE_GENERIC_READ & ~int(Access.READ_DATA)


@pytest.mark.parametrize(("claims", "granted"), [((IT,), FILE_ALL_ACCESS), ((), 0)], ids=["IT", "no claims"])
def test_rules_have_conditions_on_claims(claims: tuple[Claim, ...], granted: int) -> None:
    condition = is_equal(Code.USER_ATTRIBUTE, "ad://ext/department", "IT")
    made = policies(finance=Policy("IT", (Rule(Acl((allow_if(AUTHENTICATED_USERS, FILE_ALL_ACCESS, condition),))),)))
    assert limit(made, file(scoped(FINANCE)), token(*claims)) == granted


@pytest.mark.parametrize(
    ("department", "granted"), [("IT", FILE_GENERIC_READ), ("HR", FILE_ALL_ACCESS), (None, FILE_ALL_ACCESS)]
)
def test_a_rule_applies_if_its_condition_is_true(department: str | None, granted: int) -> None:
    """Of a file without the attribute it is UNKNOWN, and the rule does not apply."""
    applies = Rule(READERS.rules[0].dacl, is_equal(Code.USER_ATTRIBUTE, "department", "IT"))
    made = policies(finance=Policy("IT", (applies,)))
    claims = () if department is None else (Claim("department", ClaimType.STRING, (department,)),)
    assert limit(made, file(scoped(FINANCE)), token(*claims)) == granted


def test_the_owner_of_the_file_has_its_rights() -> None:
    """The rule's own owner means nothing."""
    made = policies(finance=Policy("Nobody", (Rule(Acl(())),)))
    assert limit(made, file(scoped(FINANCE), owner=ALICE), token()) == IMPLIED
    assert limit(made, file(scoped(FINANCE)), token()) == 0


def test_the_first_entry_for_the_file_itself_counts() -> None:
    made = policies(finance=READERS, other=Policy("Nobody", (Rule(Acl(())),)))
    inherited = scoped(OTHER, AceFlag.INHERIT_ONLY | AceFlag.CONTAINER_INHERIT)
    assert limit(made, file(inherited, scoped(FINANCE), scoped(OTHER)), token()) == FILE_GENERIC_READ
    assert limit(made, file(inherited), token()) == FILE_ALL_ACCESS


def test_files_of_an_unknown_policy_are_for_administrators_and_the_owner() -> None:
    made, unknown = policies(other=READERS), file(scoped(FINANCE))
    assert limit(made, unknown, token()) == 0
    assert limit(made, unknown, token(sids=frozenset({ADMINISTRATORS}))) == FILE_ALL_ACCESS
    assert limit(made, file(scoped(FINANCE), owner=ALICE), token()) == FILE_ALL_ACCESS
    assert len(RECOVERY.rules) == 1


def test_a_domain_without_policies_takes_nothing_away() -> None:
    """[MS-DTYP 2.5.3.1.4] As long as nobody has said that there are none, there could be any."""
    made = Policies()
    assert limit(made, file(scoped(FINANCE)), token()) == 0
    made.replace({})
    assert limit(made, file(scoped(FINANCE)), token()) == FILE_ALL_ACCESS


def info(mode: int = 0o100666) -> FileInfo:
    return FileInfo(FileKey(1, 1), Kind.FILE, 0x80, 0, 0, 0, 0, 0, 0, 1, 0, 0, mode, 1000, 1000)


@pytest.mark.parametrize("stored", ["with a DACL", "mode decides"])
def test_files_have_the_access_that_their_policy_leaves(stored: str) -> None:
    """Also where the mode on the host takes the place of a DACL, and for a server that runs as root."""
    made = policies(finance=READERS)
    descriptor = file(scoped(FINANCE))
    if stored == "mode decides":
        descriptor = SecurityDescriptor(sacl=descriptor.sacl)
    found = Described(info(), descriptor.pack())
    for user in (User(0, 0), User(1000, 1000)):
        assert tokens.maximal_access(found, token(policies=made), user) & ~FILE_GENERIC_READ == 0
        assert tokens.maximal_access(found, token(), user) & WRITE
    made.replace({})
    assert tokens.maximal_access(found, token(policies=made), User(0, 0)) & WRITE


def test_what_a_policy_says_is_asked_each_time() -> None:
    """A server that keeps answers about a file must not keep these: policies change while the file does not."""
    made = policies(finance=READERS)
    plain, under_policy = (Described(info(), file(*sacl).pack()) for sacl in ((), (scoped(FINANCE),)))
    caller = Caller(token(policies=made), User(1000, 1000), FILE_ALL_ACCESS)
    assert caller.needs_more(under_policy)
    assert not caller.needs_more(plain)
    made.replace({FINANCE: Policy("All", (Rule(Acl((allow(EVERYONE, FILE_ALL_ACCESS),))),))})
    assert not caller._replace(token=token()).needs_more(under_policy)
    assert caller.needs_more(under_policy)
