"""A Kerberos ticket says who somebody is, not that he is anybody here."""

from __future__ import annotations

import pytest

from smb3server.access.identity import Identity
from smb3server.auth.users import Account, Principals, UserDatabase, parse_principal
from smb3server.backends.base import User

LONGEST_TURN = 0.1

HOME, EVIL = "SMB3.TEST", "EVIL.TEST"
ALICE, STRANGERS = User(1001, 1001), User(65534, 65534, shared=True)


def principals(unknown: User | None = None, trusted: tuple[str, ...] = (HOME,)) -> Principals:
    users = UserDatabase()
    users.add(Account("alice", b"", ALICE))
    users.add(Account("carol", b"", None, f"carol@{EVIL}"))
    return Principals(users, trusted, unknown)


def test_names_in_trusted_realms_mean_accounts() -> None:
    found = principals().identity_of(f"Alice@{HOME}")
    assert found == Identity("alice", user=ALICE)
    assert found.same_user(Identity("ALICE"))


@pytest.mark.parametrize("unknown", [None, STRANGERS])
@pytest.mark.parametrize("realm", [EVIL, HOME.lower(), f"{HOME}.{EVIL}", f"X\\@{HOME}", f"{EVIL}\\@{HOME}"])
def test_the_same_name_elsewhere_is_nobody(realm: str, unknown: User | None) -> None:
    with pytest.raises(ValueError, match="alice"):
        principals(unknown).identity_of(f"alice@{realm}")


def test_an_account_may_belong_to_a_principal_of_any_realm() -> None:
    """Then to that one alone, spelt as it is."""
    assert principals().identity_of(f"carol@{EVIL}") == Identity("carol")
    for other in (f"carol@{HOME}", f"Carol@{EVIL}", f"bob@{EVIL}"):
        for unknown in (None, STRANGERS):
            with pytest.raises(ValueError, match=other):
                principals(unknown).identity_of(other)


def test_unknown_principals_get_in_only_where_somebody_is_named_for_them() -> None:
    with pytest.raises(ValueError, match="unknown_principals"):
        principals().identity_of(f"mallory@{HOME}")
    found = principals(STRANGERS).identity_of(f"mallory@{HOME}")
    assert (found.name, found.domain, found.user) == ("mallory", HOME, STRANGERS)
    assert found.listed_name == "mallory@smb3.test"


@pytest.mark.parametrize(
    "text",
    ["", "alice", f"@{HOME}", "alice@", f"cifs/alice@{HOME}", f"alice/admin@{HOME}", f"al\\0ice@{HOME}", "a@b@c"],
)
@pytest.mark.parametrize("unknown", [None, STRANGERS])
def test_what_is_no_users_principal(text: str, unknown: User | None) -> None:
    with pytest.raises(ValueError, match="principal"):
        parse_principal(text)
    with pytest.raises(ValueError, match="principal"):
        principals(unknown).identity_of(text)


IDENTITIES = [
    Identity("alice"),
    Identity("alice", HOME),
    Identity("alice", EVIL),
    Identity("ALICE", EVIL),
    Identity("alice@EVIL.TEST"),
    Identity("EVIL.TEST\\alice"),
    Identity("alice", guest=True),
    Identity("alice", EVIL, guest=True),
    Identity("", anonymous=True),
    Identity("", guest=True),
    Identity("bob"),
]


def test_nobody_is_taken_for_somebody_of_another_realm() -> None:
    """Previous sessions, further channels and durable opens go by these."""
    for one in IDENTITIES:
        for other in IDENTITIES:
            assert one.same_user(other) == (one is other), (one, other)
    assert len({identity.owner for identity in IDENTITIES}) == len(IDENTITIES)
    assert Identity("Alice").same_user(Identity("aLICE"))


def test_guests_write_nothing_into_logs_and_terminals_by_their_names() -> None:
    shown = str(Identity("x\n2099-01-01 CRITICAL root: forged \x1b[31m\u202e", "D\r\n\x9b", guest=True))
    assert shown.isprintable()
    assert shown == "D\\x0d\\x0a\\x9b\\x\\x0a2099-01-01 CRITICAL root: forged \\x1b[31m\\x202e"
    assert len(str(Identity("y" * 30000, guest=True))) < 300
    assert str(Identity("Jürgen", "EXAMPLE.COM")) == "EXAMPLE.COM\\Jürgen"
