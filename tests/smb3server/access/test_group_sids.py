"""Groups of the configuration in descriptors, look-ups and tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from smb3server.access.descriptor import EVERYONE, Acl, Control, SecurityDescriptor, Sid, allow, deny
from smb3server.access.identity import Identity
from smb3server.access.masks import FILE_ALL_ACCESS, FILE_GENERIC_READ
from smb3server.auth.accounts import Accounts
from smb3server.auth.directory import Use
from smb3server.auth.groups import Groups
from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.backends.base import User
from smb3server.settings.server import Settings
from smb3server.wire.create import CreateDisposition
from smb3server.wire.query_info import InfoType, SecurityInformation
from smb3server.wire.status import NtStatus
from tests.lab.serving import READ, WRITE_DAC, make, serving, status_of_open, tree_of
from tools.support import own_user

ADMINISTRATORS = Sid(5, (32, 544))


def accounts(groups: dict[str, list[str]], admins: list[str], **users: User | None) -> Accounts:
    database = UserDatabase()
    for name, user in users.items():
        database.add(Account(name, nt_hash("pw"), user))
    made = Groups(groups)
    settings = Settings(groups=made, admins=made.expand(admins))
    return Accounts(database, "FILES", bytes(range(12)), guests_may_ask=False, lists=settings)


def test_names_sids_and_members_agree() -> None:
    found = accounts({"Staff": ["alice", "bob"], "alice2": []}, ["@staff"], alice=None, bob=User(7, 7), carol=None)
    staff = found.group_sid("staff")
    known = found.by_name("STAFF")
    assert known is not None and known.sid == staff and known.use is Use.ALIAS and known.name == "Staff"
    assert found.by_sid(staff) == known == found.by_name("FILES\\staff")
    assert found.members(staff) == [found.account_sid("alice"), found.account_sid("bob")]
    assert found.members(found.group_sid("alice2")) == [] and found.members(found.account_sid("alice")) is None
    assert found.members(ADMINISTRATORS) == found.members(staff)
    assert found.memberships(Identity("alice")) == {staff, ADMINISTRATORS}
    assert found.memberships(Identity("carol")) == found.memberships(Identity("alice", guest=True)) == frozenset()
    # A group and an account of the same name never have the same SID.
    assert found.group_sid("alice") != found.account_sid("alice")
    assert found.host_users(staff) == [User(7, 7)] == found.host_users(found.account_sid("bob"))
    everybody = found.by_name("None")
    assert everybody is not None and everybody.use is Use.GROUP and everybody.sid.sub_authorities[-1] == 513


def test_look_ups_see_accounts_that_come_and_go() -> None:
    """They go by an index, as a client may ask for thousands of SIDs at once."""
    database = UserDatabase()
    found = Accounts(database, "FILES", bytes(range(12)), guests_may_ask=False)
    alice, own = found.account_sid("alice"), Sid(22, (1, 7))
    assert found.by_sid(alice) is None and found.host_users(alice) == []
    database.add(Account("alice", nt_hash("pw"), User(7, 7)))
    for sid in (alice, own):
        known = found.by_sid(sid)
        assert known is not None and known.name == "alice"
    assert found.host_users(alice) == [User(7, 7)]
    database.replace([Account("alice", nt_hash("pw"), User(8, 8)), Account("bob", nt_hash("pw"))])
    assert found.host_users(alice) == [User(8, 8)]
    assert [account.name for _, account in found.users()] == ["alice", "bob"]


def test_members_by_a_group_of_the_host() -> None:
    found = accounts(
        {"Staff": ["@@root", "bob"]}, [], alice=User(7, 7, (0,)), bob=None, carol=User(9, 0), dave=User(5, 5)
    )
    assert found.members(found.group_sid("staff")) == [found.account_sid(name) for name in ("alice", "bob", "carol")]


@pytest.mark.parametrize("kind", ["group", "admins"])
def test_permissions_may_name_groups(tmp_path: Path, kind: str) -> None:
    (tmp_path / "data").mkdir()
    text = '[server]\nadmins = ["dave"]\n[groups]\nstaff = ["dave"]\n[[share]]\nname = "data"\n'
    text += f'path = "{tmp_path / "data"}"\n{own_user.LINE}'
    text += "".join(f'[[user]]\nname = "{name}"\npassword = "pw"\n' for name in ("carol", "dave", "eve"))

    async def body() -> None:
        async with serving(tmp_path, text) as service:
            sid = service.server.accounts.group_sid("staff") if kind == "group" else ADMINISTRATORS
            own = service.server.accounts.account_sid("carol")
            acl = Acl((deny(sid, FILE_GENERIC_READ), allow(EVERYONE, FILE_ALL_ACCESS)))
            for name, dacl in (("denied", acl), ("allowed", Acl((allow(own, FILE_ALL_ACCESS), allow(sid, READ))))):
                descriptor = SecurityDescriptor(
                    None, None, dacl, None, int(Control.DACL_PRESENT | Control.SELF_RELATIVE)
                )
                async with tree_of(service, "carol", "data") as tree:
                    await make(tree, name)
                    file = await tree.create(name, WRITE_DAC, CreateDisposition.OPEN)
                    await tree.set_info(
                        file, 0, descriptor.pack(), InfoType.SECURITY, additional=int(SecurityInformation.DACL)
                    )
                    await tree.close(file)
            for user, denied, allowed in (("dave", False, True), ("eve", True, False)):
                async with tree_of(service, user, "data") as tree:
                    for name, expected in (("denied", denied), ("allowed", allowed)):
                        status = 0 if expected else NtStatus.ACCESS_DENIED
                        assert await status_of_open(tree, name, READ) == status, (user, name)

    asyncio.run(body())
