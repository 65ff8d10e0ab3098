"""Users of a domain of Samba: SIDs, descriptors and lists by their groups, and names, as foreign clients see them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.domain.controller import PASSWORD, REALM, WORKGROUP, Domain

pytestmark = [pytest.mark.root, pytest.mark.interop, pytest.mark.timeout(300)]

CONFIG = """
[server]
name = "FILES"
listen = ["{address}"]
port = 445
state = "{folder}/state"
admins = ['{workgroup}\\Administrator']
[domain]
realm = "{realm}"
[[share]]
name = "data"
path = "{folder}/data"
[[share]]
name = "group"
path = "{folder}/data"
users = ['@{workgroup}\\outer']
"""


class Scene:
    """A member that serves, with alice in the group inner, which is in the group outer."""

    def __init__(self, domain: Domain, folder: Path) -> None:
        self._domain = domain
        self._folder = folder
        for group, member in (("inner", "alice"), ("outer", "inner")):
            domain.tool("group", "add", group)
            domain.tool("group", "addmembers", group, member)
        shared = folder / "data"
        shared.mkdir()
        shared.chmod(0o777)
        config = folder / "server.toml"
        address = domain.network.address("member")
        config.write_text(CONFIG.format(address=address, folder=folder, realm=REALM.lower(), workgroup=WORKGROUP))
        joined = domain.smb3server("domain", "join", "--reuse", "--config", str(config))
        assert joined.returncode == 0, joined.stderr
        self.log = folder / "server.log"
        words = domain.words("member", [sys.executable, "-m", "smb3server", "--config", str(config)])
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=domain.environment()
            )
        end = time.monotonic() + 40
        while "\nready" not in self.log.read_text():
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.1)

    def ask(self, user: str, program: str, *arguments: str, ticket: bool = False) -> str:
        """Return what a program prints that acts as a user of the domain, by a ticket or a password."""
        environment = {}
        words = [program, *arguments, "-U", f"{WORKGROUP}\\{user}%{PASSWORD}"]
        if ticket:
            environment["KRB5CCNAME"] = str(self._folder / user)
            assert self._domain.command("client", "kinit", user, typed=f"{PASSWORD}\n", **environment).returncode == 0
            words = [program, *arguments, "--use-kerberos=required"]
        done = self._domain.command("client", *words, **environment)
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def scene(domain: Domain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    pytest.importorskip("gssapi", reason="needs the part kerberos")
    made = Scene(domain, tmp_path_factory.mktemp("users"))
    try:
        yield made
    finally:
        made.process.send_signal(signal.SIGTERM)
        made.process.wait(40)


HOST = f"//files.{REALM.lower()}"


@pytest.mark.parametrize("ticket", [True, False], ids=["ticket", "password"])
def test_a_share_is_open_to_a_group_of_the_domain(scene: Scene, ticket: bool) -> None:
    """The group is nested, and named in the configuration."""
    assert "blocks available" in scene.ask("alice", "smbclient", f"{HOST}/group", "-c", "ls", ticket=ticket)
    refused = scene.ask("Administrator", "smbclient", f"{HOST}/group", "-c", "ls", ticket=ticket)
    assert "NT_STATUS_ACCESS_DENIED" in refused


def test_descriptors_have_users_and_groups_of_the_domain(scene: Scene) -> None:
    put = scene.ask("Administrator", "smbclient", f"{HOST}/data", "-c", "put /etc/hostname f")
    assert "putting file" in put
    entries = f"ACL:{WORKGROUP}\\outer:ALLOWED/0x0/READ,ACL:BUILTIN\\Administrators:ALLOWED/0x0/FULL"
    scene.ask("Administrator", "smbcacls", f"{HOST}/data", "f", "-S", entries)
    shown = scene.ask("Administrator", "smbcacls", f"{HOST}/data", "f")
    assert f"OWNER:{WORKGROUP}\\Administrator" in shown
    assert f"ACL:{WORKGROUP}\\outer:ALLOWED/0x0/READ" in shown
    for ticket in (True, False):
        read = scene.ask(
            "alice", "smbclient", f"{HOST}/data", "-c", "get f /dev/null; put /etc/hostname f", ticket=ticket
        )
        assert "getting file" in read and "NT_STATUS_ACCESS_DENIED opening remote file" in read


def test_names_are_looked_up(scene: Scene) -> None:
    found = scene.ask("alice", "rpcclient", HOST[2:], "-c", f"lookupnames {WORKGROUP}\\\\outer {WORKGROUP}\\\\nobody")
    assert f"{WORKGROUP}\\outer S-1-5-21-" in found and "(Domain Group: 2)" in found
    sid = found.split(f"{WORKGROUP}\\outer ")[1].split()[0]
    assert f"{sid} {WORKGROUP}\\outer (2)" in scene.ask("alice", "rpcclient", HOST[2:], "-c", f"lookupsids {sid}")


def test_users_act_as_a_uid_of_their_own(scene: Scene) -> None:
    scene.ask("alice", "smbclient", f"{HOST}/data", "-c", "put /etc/hostname mine")
    (config,) = (scene.log.parent).glob("server.toml")
    found = os.stat(config.parent / "data" / "mine")
    assert 100_000 < found.st_uid < 1_000_000 and found.st_gid == 100_513


def test_nothing_of_this_made_the_server_fail(scene: Scene) -> None:
    assert "Traceback" not in scene.log.read_text()


def test_the_server_shows_who_is_there(scene: Scene) -> None:
    """NetrFileEnum [MS-SRVS 3.1.4.2]: users of the domain are shown with their domain, and found by that name."""
    shown = scene.ask("alice", "net", "rpc", "file", "-S", HOST[2:])
    assert "\\PIPE\\srvsvc" in shown and f" {WORKGROUP}\\alice " in shown
    own = scene.ask("alice", "net", "rpc", "file", "user", f"{WORKGROUP}\\alice", "-S", HOST[2:])
    assert "\\PIPE\\srvsvc" in own
    assert "\\PIPE\\srvsvc" not in scene.ask("alice", "net", "rpc", "file", "user", "alice", "-S", HOST[2:])
    assert "Received 1 entries" in scene.ask("alice", "rpcclient", HOST[2:], "-c", "netsessenum")
