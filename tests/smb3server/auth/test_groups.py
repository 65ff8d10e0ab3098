"""Groups in lists of users, and administrators."""

from __future__ import annotations

import grp
import os
from dataclasses import dataclass

import pytest

from smb3server.access.identity import Identity
from smb3server.auth.accounts import Accounts
from smb3server.auth.directory import Directory
from smb3server.auth.groups import Groups, is_user
from smb3server.auth.users import UserDatabase
from smb3server.backends.base import User

ALICE, BOB, CAROL = Identity("Alice"), Identity("bob"), Identity("carol", "EXAMPLE.COM")
GROUPS = Groups({"Staff": ["alice", "@interns"], "interns": ["Bob", "carol@EXAMPLE.COM"], "empty": []})


def test_members_of_groups_in_groups() -> None:
    assert GROUPS.members("staff") == {"alice", "bob", "carol@example.com"}
    assert GROUPS.members("INTERNS") == {"bob", "carol@example.com"}
    assert GROUPS.members("empty") == GROUPS.members("unknown") == frozenset()
    assert list(GROUPS) == ["empty", "interns", "Staff"] and GROUPS.find("STAFF") == "Staff"
    assert GROUPS.of(ALICE) == ["Staff"] and GROUPS.of(CAROL) == ["Staff", "interns"]
    assert Groups({"Staff": ["@Interns", "ALICE"], "interns": ["bob", "carol@example.com"], "empty": []}) == GROUPS
    assert Groups({"Staff": ["alice"]}) != GROUPS


def test_a_list_names_users_and_groups() -> None:
    names = GROUPS.expand(["dave", "@STAFF"])
    assert [user.is_on(names) for user in (ALICE, BOB, CAROL, Identity("dave"), Identity("carol"))] == [
        *[True] * 4,
        False,
    ]
    assert [is_user(entry) for entry in ("alice", "carol@example.com", "@staff", "@@0")] == [True, True, False, False]


def test_a_group_of_the_host_has_the_accounts_whose_own_user_is_in_it() -> None:
    name = grp.getgrgid(os.getegid()).gr_name
    names = Groups({"local": [f"@@{name}"]}).expand(["@local"])
    gid, other = os.getegid(), os.getegid() + 1
    assert Identity("alice", user=User(1000, gid)).is_on(names)
    assert Identity("alice", user=User(1000, other, (other, gid))).is_on(names)
    assert not Identity("alice", user=User(1000, other, (other,))).is_on(names)
    assert not Identity("alice").is_on(names)
    # All principals without an account act as one user: that says nothing about any one of them.
    assert not Identity("alice", "EXAMPLE.COM", user=User(1000, gid, shared=True)).is_on(names)
    # A user must not get in by a name that looks like an entry.
    assert not Identity("guest", guest=True, user=User(1000, gid)).is_on(names)


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"a": ["@b"]}, "there is no group b: define it"),
        ({"a": ["@b"], "b": ["@A"]}, "group a contains itself"),
        ({"a": ["@@no-such-group"]}, "this machine has no group no-such-group"),
        ({"a": [""]}, "an empty name"),
        ({"a": [], "A": []}, "group A: given twice"),
        ({"@a": []}, "is not a name for a group"),
        ({" a": []}, "is not a name for a group"),
        ({"": []}, "is not a name for a group"),
    ],
)
def test_mistakes(members: dict[str, list[str]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Groups(members)


def test_administrators() -> None:
    @dataclass
    class Configured:
        groups: Groups
        admins: frozenset[str]

    def of(*names: str) -> Directory:
        lists = Configured(GROUPS, GROUPS.expand(names))
        return Accounts(UserDatabase(), "FILES", bytes(12), guests_may_ask=False, lists=lists)

    some = of("@interns", "dave")
    assert some.administers(BOB) and some.administers(CAROL) and some.administers(Identity("DAVE"))
    assert not some.administers(ALICE) and not some.administers(None)
    assert not some.administers(Identity("bob", guest=True)) and not some.administers(Identity("bob", anonymous=True))
    # A principal of another realm is not the account of the same name.
    assert not some.administers(Identity("bob", "EVIL.TEST"))
    assert not of().administers(ALICE)
