"""A server asks its directory for users, SIDs and logons, whoever implements it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

import smb3server
from smb3server.access.descriptor import Sid
from smb3server.access.identity import Identity
from smb3server.access.privileges import NO_PRIVILEGE, Privilege
from smb3server.auth.directory import Directory, Known, Use
from smb3server.auth.groups import Groups
from smb3server.auth.tickets import Ticket
from smb3server.auth.users import Account, LogonError, UserDatabase, nt_hash
from smb3server.backends.base import User
from smb3server.client.protocol import Client
from smb3server.state.caller import token_of
from tests.lab.harness import lab

DOMAIN = Sid(5, (21, 7, 8, 9))
CAROL, STAFF = DOMAIN._replace(sub_authorities=(*DOMAIN.sub_authorities, 1104)), Sid(5, (21, 7, 8, 9, 1200))


class Foreign:
    """A directory that has neither files nor hashes: its controller proves a logon."""

    domain = "CORP"
    domain_sid = DOMAIN
    groups = Groups()
    policies = None

    def __init__(self) -> None:
        self._controller = UserDatabase()
        self._controller.add(Account("carol", nt_hash("her password")))
        self.asked: list[str] = []

    def find(self, name: str) -> Account | None:
        return Account("carol", b"") if name == "carol" else None

    def judges(self, name: str, domain: str) -> bool:
        return True

    def prove(self, name: str, domain: str, challenge: bytes, response: bytes) -> tuple[Account, bytes]:
        self.asked.append(name)
        _, key = self._controller.prove(name, domain, challenge, response)
        return Account("carol", b""), key

    def check_password(self, name: str, password: str) -> Account | None:
        return self.find(name) if self._controller.check_password(name, password) is not None else None

    def identity_of(self, principal: str, ticket: Ticket | None) -> Identity:
        raise ValueError(principal)

    def today(self, identity: Identity) -> Identity:
        return identity

    def learn(self, sids: Collection[Sid] = (), names: Collection[str] = ()) -> None:
        pass

    def may_be_asked_by(self, identity: Identity | None) -> bool:
        return identity is not None

    def users(self) -> Iterator[tuple[int, Account]]:
        yield 1104, Account("carol", b"")

    def by_sid(self, sid: Sid) -> Known | None:
        return Known(sid, Use.USER, self.domain, "carol") if sid == CAROL else None

    def by_name(self, text: str) -> Known | None:
        return self.by_sid(CAROL) if text == "CORP\\carol" else None

    def account_sid(self, name: str) -> Sid:
        return CAROL

    def identity_sid(self, identity: Identity) -> Sid:
        return CAROL

    def memberships(self, identity: Identity) -> frozenset[Sid]:
        return frozenset({STAFF})

    def privileges(self, identity: Identity | None) -> Privilege:
        return NO_PRIVILEGE

    def members(self, alias: Sid) -> list[Sid] | None:
        return [CAROL] if alias == STAFF else None

    def host_users(self, sid: Sid) -> list[User]:
        return []

    def on_host(self, sid: Sid) -> list[Sid]:
        return []


def test_users_of_another_directory_log_on_with_their_sids(tmp_path: Path) -> None:
    async def test() -> None:
        async with lab(tmp_path) as running:
            foreign = Foreign()
            running.server.accounts = foreign
            for name, password in (("u", "pw"), ("carol", "wrong")):
                client = await Client.connect(await running.transport())
                with pytest.raises(Exception, match="LOGON_FAILURE"):
                    await client.log_on(name, password)
                await client.close()
            client = await Client.connect(await running.transport())
            session = await client.log_on("carol", "her password", encrypt=True)
            await session.tree_connect("share")
            (held,) = (each for each in running.server.sessions.by_id.values() if each.identity is not None)
            assert held.identity == Identity("carol")
            token = token_of(held, None, foreign)
            assert token.user == CAROL
            assert STAFF in token.sids
            assert foreign.asked == ["u", "carol", "carol"]
            await client.close()

    asyncio.run(test())


def test_the_proof_is_the_directorys() -> None:
    users = UserDatabase()
    users.add(Account("carol", nt_hash("pw")))
    for name in ("carol", "nobody"):
        with pytest.raises(LogonError):
            users.prove(name, "", bytes(8), bytes(64))
    made: Directory = Foreign()
    assert made.check_password("carol", "pw") is None


LOCAL = {
    "auth",
    "domain/directory.py",
    "service/service.py",
    "service/users.py",
    "server/server.py",
    "state/server_state.py",
    "lab",
}
"""Those who make the local accounts or take over a changed users file."""


def test_nobody_else_asks_the_local_accounts() -> None:
    """A look-up beside the directory would not find the users of a domain."""
    root = Path(smb3server.__file__).parent
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        if name in LOCAL or name.split("/")[0] in LOCAL:
            continue
        found = re.findall(r"\bUserDatabase\b|server\.users\b|auth\.accounts import Accounts", path.read_text())
        assert not found, f"{name} asks the local accounts, not server.accounts: {found}"
