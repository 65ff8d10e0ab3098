"""Users of a forest that the member's forest trusts, as foreign clients and controllers see them. [MS-PAC 4.2]"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.domain import referral
from tests.system.domain.controller import Domain, why_not
from tests.system.domain.member import Member
from tests.system.domain.trusting import Forests

pytestmark = [pytest.mark.root, pytest.mark.interop, pytest.mark.long, pytest.mark.timeout(900)]

HOST, SERVICE = "files.example.test", "cifs/files.example.test@EXAMPLE.TEST"
CLAIMED = 1200
"""RID of a group of the member's domain that nobody is in."""
SHARES = {"crew": "@OTHER\\crew", "local": "@EXAMPLE\\visitors", "admins": "@EXAMPLE\\Domain Admins"}
"""Shares, and who may use them."""


def _sid(domain: Domain, kind: str, name: str) -> str:
    found = re.search(r"S-1-5-21-[\d-]+", domain.tool(kind, "show", name, "--attributes=objectSid"))
    assert found is not None
    return found.group()


class Scene:
    """A member of EXAMPLE, and users of OTHER: bob, who is in crew and in visitors, and alice, who is in no group.

    The group visitors is a domain-local one of EXAMPLE, which has an alice, too."""

    def __init__(self, folder: Path) -> None:
        self.forests = Forests(folder)
        self.folder = folder
        self.forests.up()
        self.own, self.other = self.forests.own, self.forests.other
        self.other.tool("user", "create", "bob", self.other.password)
        self.other.tool("group", "add", "crew")
        self.other.tool("group", "addmembers", "crew", "bob")
        self.bob, self.crew = _sid(self.other, "user", "bob"), _sid(self.other, "group", "crew")
        self.own.tool("group", "add", "visitors", "--group-scope=Domain")
        self.own.tool("group", "addmembers", "visitors", self.bob)
        self.own_domain = _sid(self.own, "group", "Domain Admins").rpartition("-")[0]
        self.member = self._member("autorid", 'idmap = "autorid"\n')
        joined = self.member.run("join", "--user", "Administrator")
        assert joined.returncode == 0, joined.stderr

    def _member(self, name: str, settings: str) -> Member:
        folder = self.folder / name
        folder.mkdir()
        shares = {**SHARES, "claimed": f"@{self.own_domain}-{CLAIMED}"}
        lines = [
            f"[[share]]\nname = '{key}'\npath = '{folder}/data'\nusers = ['{who}']\n" for key, who in shares.items()
        ]
        return Member(self.own, folder, settings + "".join(lines))

    def with_ranges(self, name: str, settings: str) -> Member:
        """Return the same machine with other settings of [domain]."""
        made = self._member(name, settings)
        (made.folder / "state").symlink_to(self.member.folder / "state")
        return made

    def by_password(self, user: str, share: str) -> str:
        words = ["-U", f"{user}%{self.own.password}", "-c", "ls"]
        done = self.own.command("client", "smbclient", f"//{HOST}/{share}", *words)
        return done.stdout + done.stderr

    def ask(self, cache: str, program: str, *arguments: str) -> str:
        """Return what a program prints that acts by a ticket of the other forest."""
        words = [program, *arguments, "--use-kerberos=required"]
        done = self.own.command("client", *words, **self.forests.environment(cache))
        return done.stdout + done.stderr

    def by_ticket(self, cache: str, share: str) -> str:
        return self.ask(cache, "smbclient", f"//{HOST}/{share}", "-c", "ls")

    def kinit(self, user: str) -> str:
        """Return the name of a cache with the user's first ticket."""
        words = ["kinit", f"{user}@{self.other.realm}"]
        done = self.own.command("client", *words, typed=f"{self.other.password}\n", **self.forests.environment(user))
        assert done.returncode == 0, done.stderr
        return user

    def service_ticket(self, cache: str) -> str:
        """Get a ticket for the member out of what a cache has. Return the cache with it, or what the KDC says."""
        made = f"{cache}-service"
        environment = self.forests.environment(cache)
        words = ["kvno", "--out-cache", str(self.folder / made), SERVICE]
        done = self.own.command("client", *words, **environment)
        return made if done.returncode == 0 else done.stderr


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    pytest.importorskip("gssapi", reason="needs the part kerberos")
    made = Scene(tmp_path_factory.mktemp("trust"))
    try:
        yield made
    finally:
        made.forests.down()


REFUSED = "NT_STATUS_ACCESS_DENIED"


def test_users_of_the_trusted_forest_are_served(scene: Scene) -> None:
    """By a referral, and by pass-through: users, groups of both domains, names, and numbers of their own."""
    bob, alice = scene.kinit("bob"), scene.kinit("alice")
    with scene.member.serving():
        for share in ("data", "crew", "local"):
            assert "blocks available" in scene.by_password("OTHER\\bob", share)
            assert "blocks available" in scene.by_ticket(bob, share)
        for share in ("crew", "local", "admins"):
            assert REFUSED in scene.by_password("OTHER\\alice", share)
            assert REFUSED in scene.by_ticket(alice, share)
        assert REFUSED in scene.by_password("EXAMPLE\\alice", "crew")
        assert "putting file" in scene.ask(bob, "smbclient", f"//{HOST}/data", "-c", "put /etc/hostname f")
        assert "OWNER:OTHER\\bob" in scene.ask(bob, "smbcacls", f"//{HOST}/data", "f")
        names = scene.ask(bob, "rpcclient", HOST, "-c", f"lookupnames OTHER\\\\crew; lookupsids {scene.bob}")
        assert f"OTHER\\crew {scene.crew} (Domain Group: 2)" in names
        assert f"{scene.bob} OTHER\\bob (1)" in names
        found = os.stat(scene.member.folder / "data" / "f")
        assert found.st_uid % 100_000 == int(scene.bob.rpartition("-")[2]) and found.st_uid >= 200_000
        assert "Traceback" not in scene.member.log


def test_with_rid_each_domain_needs_a_range(scene: Scene) -> None:
    refusing = scene.with_ranges("rid", 'idmap = "rid"\n')
    other = scene.crew.rpartition("-")[0]
    with refusing.serving():
        assert "NT_STATUS_LOGON_FAILURE" in scene.by_password("OTHER\\bob", "data")
        assert "blocks available" in scene.by_password("EXAMPLE\\alice", "data")
        assert f"`trusted_ranges` has no range for {other}" in refusing.log
    ranged = scene.with_ranges("ranged", f'idmap = "rid"\ntrusted_ranges = ["{other} 2000000-2099999"]\n')
    with ranged.serving():
        share = f"//{HOST}/data"
        words = ["-U", f"OTHER\\bob%{scene.own.password}", "-c", "put /etc/hostname g"]
        assert "putting file" in scene.own.command("client", "smbclient", share, *words).stderr
        assert os.stat(ranged.folder / "data" / "g").st_uid == 2_000_000 + int(scene.bob.rpartition("-")[2])


def test_a_forest_that_lies_gets_nothing_of_ours(scene: Scene) -> None:
    """Samba's KDC hands extra SIDs on, whatever domain they are of. The member filters them."""
    keytab = scene.folder / "trust.keytab"
    principal = f"krbtgt/{scene.own.realm}@{scene.other.realm}"
    scene.other.tool("domain", "exportkeytab", str(scene.other.folder / "all.keytab"))
    (scene.other.folder / "all.keytab").rename(keytab)
    key = referral.trust_key(keytab, principal)
    honest = scene.kinit("alice")
    assert scene.service_ticket(honest) == f"{honest}-service"
    scene.own.command("client", "kvno", SERVICE, **scene.forests.environment(honest))
    own = scene.own_domain
    lies = {
        "crew": referral.in_groups(scene.crew),
        "admins": referral.in_groups(f"{own}-512", f"{own}-519"),
        "local admins": referral.in_groups(f"{own}-512", attributes=referral.LOCAL),
        "group": referral.in_groups(f"{own}-{CLAIMED}"),
        "local group": referral.in_groups(f"{own}-{CLAIMED}", attributes=referral.LOCAL),
        "resource group": referral.in_local_group(own, CLAIMED),
    }
    with scene.member.serving():
        for name, change in lies.items():
            referral.change_referral(scene.folder / honest, scene.folder / name, key, change)
            cache = scene.service_ticket(name)
            assert cache == f"{name}-service", (name, cache)
            # What the forest says of its own groups counts: so the changed PAC is what the member gets.
            assert ("blocks available" in scene.by_ticket(cache, "crew")) is (name == "crew")
            for share in ("admins", "claimed"):
                assert REFUSED in scene.by_ticket(cache, share), (name, share)
        assert "Traceback" not in scene.member.log


def test_a_forest_cannot_give_out_users_of_ours(scene: Scene) -> None:
    """The member's controller refuses such a referral. [MS-PAC 4.2.2, DomainSpecific]"""
    key = referral.trust_key(scene.folder / "trust.keytab", f"krbtgt/{scene.own.realm}@{scene.other.realm}")

    def name(info: object) -> None:
        info["LogonDomainName"] = "EXAMPLE"  # type: ignore[index]

    def domain(info: object) -> None:
        info["LogonDomainId"].fromCanonical(scene.own_domain)  # type: ignore[index]
        info["UserId"] = 500  # type: ignore[index]

    for what, change in (("a name", name), ("a domain", domain)):
        referral.change_referral(scene.folder / "alice", scene.folder / what, key, change)
        assert "while getting credentials" in scene.service_ticket(what)
