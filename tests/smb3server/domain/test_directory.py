"""A member server: who is whose user, what is asked of controllers, and who is on a list."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smb3server.access.claims import Claim, Claims, ClaimType
from smb3server.access.descriptor import Sid
from smb3server.access.identity import Identity
from smb3server.access.posix import group_sid, user_sid
from smb3server.auth.accounts import Accounts
from smb3server.auth.directory import Directory, Known, Use
from smb3server.auth.groups import Groups
from smb3server.auth.guessing import LogonDelayed
from smb3server.auth.users import Account, LogonError, UserDatabase, nt_hash
from smb3server.backends.base import User
from smb3server.domain.directory import DomainDirectory
from smb3server.domain.ids import IdMap, Ids
from smb3server.domain.names import Names
from smb3server.domain.questions import Questions
from smb3server.domain.stored_ids import Numbers, StoredIds
from smb3server.domain.user import DomainUser, NoController
from smb3server.settings.domain import DomainConfig
from smb3server.wire.status import NtStatus
from tests.lab.domain_ticket import ticket

CORP, OTHER = Sid.parse("S-1-5-21-1-2-3"), Sid.parse("S-1-5-21-7-8-9")
RECORDED = Sid.parse("S-1-5-21-2978586452-3620782389-100791958")
KEY = b"k" * 16


def below(domain: Sid, rid: int) -> Sid:
    return domain._replace(sub_authorities=(*domain.sub_authorities, rid))


STAFF = below(CORP, 1200)


def carol(name: str = "carol", domain: Sid = CORP, guest: bool = False, groups: Iterable[Sid] = (STAFF,)) -> DomainUser:
    workgroup = "CORP" if domain == CORP else "OTHER"
    found = frozenset({below(domain, 513), *groups})
    return DomainUser(name, workgroup, f"{workgroup}.TEST", below(domain, 1104), below(domain, 513), found, guest, KEY)


class Controller:
    """Verifies passwords, and knows names."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.answer: DomainUser | Exception = carol()
        self.silent = False
        self.domains = frozenset({CORP})
        """Of the forest."""

    def validate(
        self, name: str, domain: str, workstation: str, challenge: bytes, lm_response: bytes, nt_response: bytes
    ) -> DomainUser:
        self.asked.append((domain, name))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def forest(self) -> frozenset[Sid]:
        return self.domains

    def of_sids(self, sids: Collection[Sid]) -> list[Known | None]:
        return [self._known(lambda known, one=sid: known.sid == one) for sid in sids]

    def of_names(self, names: Collection[str]) -> list[Known | None]:
        folded = [name.casefold() for name in names]
        return [
            Known(OTHER, Use.DOMAIN, "OTHER", "OTHER")
            if name == "other"
            else self._known(lambda known, one=name: f"{known.domain}\\{known.name}".casefold() == one)
            for name in folded
        ]

    def _known(self, is_it: Callable[[Known], bool]) -> Known | None:
        if self.silent:
            raise NoController("nobody answers")
        known = (Known(STAFF, Use.GROUP, "CORP", "Staff"), Known(below(CORP, 1104), Use.USER, "CORP", "carol"))
        return next(filter(is_it, known), None)


class Lists:
    """An empty configuration but for its administrators."""

    groups = Groups()
    admins = frozenset({"corp\\carol"})
    security_operators = None
    backup_operators: frozenset[str] = frozenset()


class Scene:
    """A member server with an account alice, and a controller."""

    def __init__(self, listed: Iterable[str] = (), acts: bool = True, ids: IdMap | None = None, **config: Any) -> None:
        users = UserDatabase()
        users.add(Account("alice", nt_hash("pw")))
        self.controller = Controller()
        self.local = Accounts(users, "SERVER", bytes(12), guests_may_ask=False, lists=Lists())
        self.questions = Questions()
        self.names = Names(self.controller)
        made = DomainConfig("CORP.TEST", "CORP", Path("/none"), **config)
        self.directory: DomainDirectory = DomainDirectory(
            self.local,
            made,
            self.names,
            self.questions,
            ids if ids is not None else Ids(made.id_mapping, *made.id_range),
            listed=lambda: listed,
            acts=lambda: acts,
            pass_through=self.controller,
        )

    def log_on(self, name: str, domain: str) -> Identity:
        """Log on as often as it takes."""
        for _ in range(500):
            try:
                account, key = self.directory.prove(name, domain, bytes(8), b"r" * 60)
            except LogonDelayed as delay:
                time.sleep(delay.seconds)
                continue
            assert account.refusal() is None and key == KEY
            return account.identity
        raise TimeoutError


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene(["@corp\\staff", "alice", "@s-1-5-21-1-2-3-7"])
    yield made
    made.questions.close()


def test_a_user_of_the_domain_has_the_controllers_sids(scene: Scene) -> None:
    directory: Directory = scene.directory
    identity = scene.log_on("carol", "CORP")
    assert directory.identity_sid(identity) == below(CORP, 1104)
    assert {STAFF, below(CORP, 513)} <= directory.memberships(identity)
    assert identity.user == User(101104, 100513, (100513, 101200))
    assert str(identity) == "CORP\\carol" and identity.owner == "\0sid\0S-1-5-21-1-2-3-1104"
    assert directory.by_sid(below(CORP, 1104)) == Known(below(CORP, 1104), Use.USER, "CORP", "carol")


@pytest.mark.parametrize(
    ("entry", "listed"),
    [
        ("corp\\carol", True),
        ("carol@corp.test", True),
        ("s-1-5-21-1-2-3-1104", True),
        ("@corp\\staff", True),
        ("@s-1-5-21-1-2-3-1200", True),
        ("carol", False),
        ("other\\carol", False),
        ("@s-1-5-21-1-2-3-7", False),
        ("@@101200", False),
    ],
)
def test_lists_name_users_and_groups_of_the_domain(scene: Scene, entry: str, listed: bool) -> None:
    """A name without a domain is that of an account of the server."""
    assert scene.log_on("carol", "CORP").is_on(frozenset({entry})) is listed


def test_lists_are_written_as_users_write_them() -> None:
    made = Groups({"own": ["CORP\\Carol", "@CORP\\Staff"]})
    assert made.expand(["@own", "@S-1-5-21-1-2-3-7"]) == {"corp\\carol", "@corp\\staff", "@s-1-5-21-1-2-3-7"}


@pytest.mark.parametrize(
    ("name", "domain", "asked"),
    [
        ("carol", "CORP", True),
        ("carol", "corp.test", True),
        ("carol", "", False),
        ("carol", "OTHER", True),
        ("carol@corp.test", "WORKGROUP", True),
        ("alice", "CORP", True),
        ("alice", "WORKGROUP", False),
        ("alice", "SERVER", False),
        ("alice", "", False),
        ("nobody", "SERVER", False),
        ("nobody", ".", False),
    ],
)
def test_accounts_of_the_server_and_of_the_domain(scene: Scene, name: str, domain: str, asked: bool) -> None:
    """Clients name a domain of their own where their user named none: an account of the server then wins."""
    if asked or (name, domain) == ("carol", ""):
        scene.log_on(name, domain)
        assert scene.controller.asked == [(domain, name)]
    else:
        with pytest.raises(LogonError, match=r"wrong password|no such user"):
            scene.log_on(name, domain)
        assert not scene.controller.asked


def test_what_the_controller_refuses_is_refused(scene: Scene) -> None:
    for answer, status in (
        (LogonError("locked", NtStatus.ACCOUNT_LOCKED_OUT), NtStatus.ACCOUNT_LOCKED_OUT),
        (NoController("none"), NtStatus.NO_LOGON_SERVERS),
        (carol(guest=True), NtStatus.LOGON_FAILURE),
    ):
        scene.controller.answer = answer
        with pytest.raises(LogonError) as caught:
            scene.log_on("carol", "CORP")
        assert caught.value.status == status
    scene.controller.answer = carol()
    assert scene.log_on("carol", "CORP").name == "carol"


def test_nobody_logs_on_while_groups_on_lists_are_not_known(scene: Scene) -> None:
    """A list may be one of those who may only read."""
    scene.controller.silent = True
    with pytest.raises(LogonError, match="groups") as caught:
        scene.log_on("carol", "CORP")
    assert caught.value.status == NtStatus.NO_LOGON_SERVERS
    scene.controller.silent = False
    identity = scene.log_on("carol", "CORP")
    scene.controller.silent = True
    assert scene.log_on("carol", "CORP") == identity


def test_sids_of_the_server_are_the_servers_to_give(scene: Scene) -> None:
    own = below(scene.local.domain_sid, 1000)
    scene.controller.answer = carol(groups=[own, STAFF])
    assert own not in scene.directory.memberships(scene.log_on("carol", "CORP"))
    scene.controller.answer = carol(domain=scene.local.domain_sid)
    with pytest.raises(LogonError, match="own"):
        scene.log_on("carol", "OTHER")


def test_a_user_without_a_number_is_refused_where_users_act_as_themselves() -> None:
    for acts in (True, False):
        made = Scene(acts=acts)
        made.controller.answer = carol(domain=OTHER)
        if acts:
            with pytest.raises(LogonError, match="no uid"):
                made.log_on("carol", "OTHER")
        else:
            assert made.log_on("carol", "OTHER").user is None
        made.questions.close()


def test_a_ticket_says_who_the_user_is(scene: Scene) -> None:
    directory = DomainDirectory(
        scene.local,
        DomainConfig("CONTOSO.COM", "CONTOSO", Path("/none")),
        scene.names,
        scene.questions,
        Ids("rid", 100_000, 999_999),
        listed=lambda: (),
        acts=lambda: True,
    )
    identity = directory.identity_of("AzUser01@CONTOSO.COM", ticket())
    assert directory.identity_sid(identity) == below(RECORDED, 1104)
    assert below(RECORDED, 1117) in directory.memberships(identity)
    for given in (None, ticket(None), ticket(key=bytes(32))):
        with pytest.raises(ValueError, match="PAC"):
            directory.identity_of("AzUser01@CONTOSO.COM", given)


@pytest.mark.parametrize("claim", ["name", "realm", "sid", "another's name"])
def test_a_trusted_domain_cannot_give_out_users_of_others(scene: Scene, claim: str) -> None:
    """[MS-PAC 4.2.2, 4.2.3]"""
    scene.log_on("carol", "CORP")
    user = carol(domain=OTHER)
    lies = {
        "name": user._replace(domain="corp"),
        "realm": user._replace(realm="corp.test"),
        "sid": user._replace(sid=below(CORP, 500)),
        "another's name": user._replace(sid=below(Sid.parse("S-1-5-21-4-4-4"), 1104)),
    }
    scene.controller.answer = lies[claim]
    with pytest.raises(LogonError, match=r"gives out|given out"):
        scene.log_on("carol", "OTHER")


@pytest.mark.parametrize("known", [True, False], ids=["joined", "keytab alone"])
def test_a_trusted_domain_puts_nobody_in_groups_of_ours(known: bool) -> None:
    """[MS-PAC 4.2.2]"""
    made = Scene(acts=False)
    if known:
        made.log_on("carol", "CORP")
    local, theirs = below(CORP, 1300), below(OTHER, 1400)
    claimed = {STAFF, below(CORP, 512), below(CORP, 517), local, theirs}
    marked = frozenset({local, below(CORP, 517)})
    made.controller.answer = carol(domain=OTHER, groups=claimed)._replace(local_groups=marked)
    found = made.directory.memberships(made.log_on("carol", "OTHER"))
    assert found & claimed == ({local, theirs} if known else {theirs})
    made.questions.close()


def test_domains_of_one_forest_believe_each_other() -> None:
    made = Scene(acts=False)
    made.log_on("carol", "CORP")
    made.controller.domains = frozenset({CORP, OTHER})
    made.controller.answer = carol(domain=OTHER)
    assert STAFF in made.directory.memberships(made.log_on("carol", "OTHER"))
    made.questions.close()


def test_claims_count_within_the_forest() -> None:
    """Another forest's claims have other meanings, and no controller has translated them."""
    made = Scene(acts=False)
    claims = Claims((Claim("ad://ext/department", ClaimType.STRING, ("IT",)),))
    made.controller.answer = carol()._replace(claims=claims)
    own = made.log_on("carol", "CORP").member
    made.controller.answer = carol(domain=OTHER)._replace(claims=claims)
    other = made.log_on("carol", "OTHER").member
    assert own is not None and own.claims == claims
    assert other is not None and other.claims is None
    made.questions.close()


def test_users_of_today(scene: Scene) -> None:
    directory = scene.directory
    identity = scene.log_on("carol", "CORP")
    scene.controller.silent = True
    assert directory.today(identity) == identity
    assert directory.today(Identity("alice")) == Identity("alice")
    with pytest.raises(ValueError, match="no such user"):
        directory.today(Identity("bob"))


def test_the_host_knows_users_and_groups_by_their_numbers(scene: Scene) -> None:
    directory = scene.directory
    scene.log_on("carol", "CORP")
    assert directory.on_host(below(CORP, 1104)) == [user_sid(101104)]
    assert directory.on_host(STAFF) == [group_sid(101200)]
    assert directory.on_host(below(CORP, 4444)) == [user_sid(104444), group_sid(104444)]
    assert directory.on_host(below(OTHER, 4444)) == []
    assert directory.on_host(Sid(5, (32, 544))) == [user_sid(101104)]
    assert directory.host_users(below(CORP, 1104)) == [User(101104, 101104)]


def test_names_are_asked_for(scene: Scene) -> None:
    directory = scene.directory
    assert directory.by_name("CORP\\Staff") is None
    directory.learn(names=["Staff", "alice", "CORP\\nobody"], sids=[STAFF, below(scene.local.domain_sid, 7)])
    for text in ("Staff", "corp\\staff", "staff@corp.test"):
        assert directory.by_name(text) == Known(STAFF, Use.GROUP, "CORP", "Staff")
    alice = directory.by_name("alice")
    assert alice is not None and alice.domain == "SERVER"


def test_without_a_controller_look_ups_wait_once(scene: Scene) -> None:
    scene.controller.silent = True
    scene.directory.learn(names=["Staff"])
    scene.controller.silent = False
    scene.directory.learn(names=["Staff"])
    assert scene.directory.by_name("Staff") is None


class Directory2307:
    """The directory of a domain, with the numbers that it stores."""

    def __init__(self) -> None:
        self.stored = {
            below(CORP, 1104): Numbers(True, 5000, 5001),
            below(CORP, 513): Numbers(False, None, 5513),
            STAFF: Numbers(False, None, 5000),
        }
        self.silent = False
        self.asked: list[set[Sid]] = []

    def numbers(self, sids: Collection[Sid]) -> dict[Sid, Numbers]:
        if self.silent:
            raise NoController("nobody answers")
        self.asked.append(set(sids))
        return {sid: self.stored[sid] for sid in sids if sid in self.stored}


class Stored(Scene):
    """A member whose numbers the directory stores. ``now`` is its clock."""

    def __init__(self) -> None:
        self.source = Directory2307()
        self.now = 1000.0
        super().__init__(ids=StoredIds(self.source, 4000, 6000, clock=lambda: self.now), id_mapping="rfc2307")


@pytest.fixture
def stored() -> Iterator[Stored]:
    made = Stored()
    yield made
    made.questions.close()


def test_stored_numbers_are_asked_for_once_an_hour(stored: Stored) -> None:
    for _ in range(3):
        assert stored.log_on("carol", "CORP").user == User(5000, 5513, (5000, 5513))
    assert len(stored.source.asked) == 1
    stored.source.stored[below(CORP, 1104)] = Numbers(True, 5002, None)
    stored.now += 3601
    assert stored.log_on("carol", "CORP").user == User(5002, 5513, (5000, 5513))


def test_a_user_and_a_group_may_have_the_same_number(stored: Stored) -> None:
    stored.log_on("carol", "CORP")
    directory = stored.directory
    assert directory.on_host(below(CORP, 1104)) == [user_sid(5000)]
    assert directory.on_host(STAFF) == [group_sid(5000)]
    assert directory.on_host(below(CORP, 4444)) == []
    assert directory.host_users(STAFF) == [] and len(directory.host_users(below(CORP, 1104))) == 1
    stored.source.stored[below(CORP, 4444)] = Numbers(False, None, 4444)
    directory.learn(sids=[below(CORP, 4444)])
    assert directory.on_host(below(CORP, 4444)) == [group_sid(4444)]


@pytest.mark.parametrize(
    ("sid", "numbers", "reason"),
    [
        (1104, Numbers(True, None, 5001), "no uidNumber"),
        (1104, Numbers(True, 0, 5001), "uidNumber 0 is outside of id_range"),
        (1104, Numbers(True, 3999, None), "outside of id_range, which is 4000 to 6000"),
        (1104, Numbers(True, 6001, None), "outside of id_range"),
        (1104, None, "no gidNumber"),
        (513, Numbers(False, None, 0), "primary group S-1-5-21-1-2-3-513 .* gidNumber 0 is outside"),
    ],
)
def test_who_has_no_number_in_the_range_is_refused(
    stored: Stored, sid: int, numbers: Numbers | None, reason: str
) -> None:
    stored.source.stored[below(CORP, 1104)] = Numbers(True, 5000, None)
    if numbers is None:
        del stored.source.stored[below(CORP, sid)]
    else:
        stored.source.stored[below(CORP, sid)] = numbers
    with pytest.raises(LogonError, match=reason):
        stored.log_on("carol", "CORP")


def test_a_primary_group_without_a_number_has_that_of_the_users_entry(stored: Stored) -> None:
    stored.source.stored[below(CORP, 513)] = Numbers(False, None, None)
    assert stored.log_on("carol", "CORP").user == User(5000, 5001, (5000,))


def test_users_of_other_domains_have_no_stored_numbers(stored: Stored) -> None:
    stored.log_on("carol", "CORP")
    stored.controller.answer = carol(domain=OTHER)
    with pytest.raises(LogonError, match="of another domain"):
        stored.log_on("carol", "OTHER")


def test_who_is_logged_on_keeps_numbers_that_are_forgotten(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = stored.log_on("carol", "CORP")
    monkeypatch.setattr("smb3server.domain.stored_ids._MAX_ENTRIES", 2)
    stored.directory.learn(sids=[below(CORP, 4444)])
    assert stored.directory.today(identity) == identity
    assert stored.log_on("carol", "CORP").user is not None


def test_without_a_controller_remembered_numbers_count(stored: Stored) -> None:
    stored.source.silent = True
    with pytest.raises(LogonError, match="are not known: nobody answers") as refused:
        stored.log_on("carol", "CORP")
    assert refused.value.status == NtStatus.NO_LOGON_SERVERS
    stored.source.silent = False
    known = stored.log_on("carol", "CORP")
    stored.source.silent = True
    stored.now += 86400
    assert stored.log_on("carol", "CORP") == known
    stored.controller.answer = carol(groups=[below(CORP, 7777)])
    with pytest.raises(LogonError, match="are not known"):
        stored.log_on("carol", "CORP")
