"""A server joins a domain of Samba, and foreign clients log on to it."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from impacket import ntlm

from smb3server.auth.users import LogonError
from smb3server.domain.controllers import DomainControllers
from smb3server.domain.machine import Machine
from smb3server.domain.netlogon import Netlogon
from smb3server.domain.user import Controller, DomainUser, NoController
from smb3server.wire.status import NtStatus
from tests.lab.served import open_up
from tests.system.domain.controller import PASSWORD, REALM, WORKGROUP, Domain
from tests.system.domain.member import Member, at_addresses

pytestmark = [pytest.mark.root, pytest.mark.interop, pytest.mark.timeout(300)]

NOBODY = (65534, 65534)
UNITS = "+setuid,+setgid,+chown,+dac_override,+dac_read_search,+fowner,+fsetid,+net_bind_service"
"""Capabilities of dist/smb3server.service that serving files takes."""


@pytest.fixture(scope="module")
def member(domain: Domain, tmp_path_factory: pytest.TempPathFactory) -> Member:
    found = Member(domain, tmp_path_factory.mktemp("member"))
    joined = found.run("join")
    assert joined.returncode == 0, joined.stderr
    assert "FILES$ has joined EXAMPLE.TEST by dc1.example.test" in joined.stdout
    return found


def test_smbclient_logs_on_with_a_ticket_and_with_a_password(member: Member) -> None:
    pytest.importorskip("gssapi", reason="needs the part kerberos")
    cache = str(member.folder / "tickets")
    domain = member.domain

    def smbclient(*arguments: str) -> subprocess.CompletedProcess[str]:
        words = ("smbclient", f"//files.{REALM.lower()}/data", *arguments, "-c", "put /etc/hostname a; ls")
        return domain.command("client", *words, KRB5CCNAME=cache)

    assert domain.command("client", "kinit", "alice", typed=f"{PASSWORD}\n", KRB5CCNAME=cache).returncode == 0
    with member.serving():
        by_ticket = smbclient("--use-kerberos=required")
        assert by_ticket.returncode == 0, by_ticket.stdout + by_ticket.stderr
        # A ticket from before a change of the password is still good.
        changed = member.run("rotate")
        assert changed.returncode == 0, changed.stderr
        assert smbclient("--use-kerberos=required").returncode == 0
        fresh = domain.command("client", "kinit", "alice", typed=f"{PASSWORD}\n", KRB5CCNAME=cache)
        assert fresh.returncode == 0
        assert smbclient("--use-kerberos=required").returncode == 0
        by_password = smbclient("-U", f"{WORKGROUP}\\alice%{PASSWORD}", "--client-protection=sign")
        assert by_password.returncode == 0, by_password.stdout + by_password.stderr
        # Who guesses must not learn which names exist.
        for user in ("alice%wrong", "nobody%wrong"):
            assert "NT_STATUS_LOGON_FAILURE" in smbclient("-U", f"{WORKGROUP}\\{user}").stdout


def test_status_and_doctor_find_nothing_wrong(member: Member) -> None:
    found = member.run("status", "--json")
    assert found.returncode == 0, found.stdout
    report = json.loads(found.stdout)
    assert {one["verdict"] for one in report["findings"]} == {"ok"}
    assert "secure channel" in {one["subject"] for one in report["findings"]}
    doctor = member.domain.smb3server("doctor", "--config", str(member.config))
    assert "secure channel: dc1.example.test accepts the machine account" in doctor.stdout


def test_doctor_finds_names_that_the_domain_has_lost(member: Member) -> None:
    domain = member.domain
    domain.tool("spn", "delete", f"cifs/files.{REALM.lower()}", "FILES$")
    try:
        found = member.run("status")
        assert found.returncode == 1
        assert f"the domain does not know cifs/files.{REALM.lower()}: clients get no ticket" in found.stdout
    finally:
        domain.tool("spn", "add", f"cifs/files.{REALM.lower()}", "FILES$")
    assert member.run("status").returncode == 0


def _age(member: Member, days: int) -> int:
    """Have the password of the machine account seem older. Return the version of its key."""
    secret = member.folder / "state" / "domain.secret"
    data = json.loads(secret.read_text())
    data["versions"][0]["set_at"] -= days * 86400
    secret.write_text(json.dumps(data))
    return int(data["versions"][0]["number"])


def test_of_two_nodes_one_changes_an_old_password(member: Member, tmp_path: Path) -> None:
    """Both are one machine: they share the secret and the keytab."""
    other = Member(member.domain, tmp_path)
    shared = "".join(f'{name} = "{member.folder}/state/domain.{name}"\n' for name in ("secret", "keytab"))
    text = other.config.read_text().replace("port = 445", "port = 4450")
    other.config.write_text(text.replace("[[share]]", f"{shared}[[share]]", 1))
    before = _age(member, 31)
    with member.serving(), other.serving():
        end = time.monotonic() + 60
        while member.machine.account().versions[0].number == before or member.machine.account().pending:
            assert time.monotonic() < end, member.log + other.log
            time.sleep(0.1)
        done = member.smbclient("alice", "ls")
        assert done.returncode == 0, done.stdout
    assert member.machine.account().versions[0].number == before + 1
    changes = [one.log.count("the password of the machine account FILES$ is changed") for one in (member, other)]
    assert sorted(changes) == [0, 1]
    assert member.run("status").returncode == 0


def test_a_short_rotation_is_kept(member: Member) -> None:
    text = member.config.read_text()
    member.config.write_text(text.replace("[[share]]", 'rotation = "2s"\n[[share]]', 1))
    before = member.machine.account().versions[0].number
    try:
        with member.serving():
            end = time.monotonic() + 90
            while member.machine.account().versions[0].number < before + 3:
                assert time.monotonic() < end, member.log
                time.sleep(0.1)
            done = member.smbclient("alice", "ls")
            assert done.returncode == 0, done.stdout + member.log
    finally:
        member.config.write_text(text)
    assert member.run("status").returncode == 0


def test_who_is_disabled_gets_neither_a_ticket_nor_in(member: Member) -> None:
    pytest.importorskip("gssapi", reason="needs the part kerberos")
    domain = member.domain
    domain.tool("user", "create", "leaver", PASSWORD)
    cache, late = str(member.folder / "leaver"), str(member.folder / "leaver-late")
    with member.serving():
        for name in (cache, late):
            assert member.kinit("leaver", name).returncode == 0
        assert member.smbclient("leaver", "ls", cache=cache).returncode == 0
        domain.tool("user", "disable", "leaver")
        # Controllers give a service's ticket to nobody who is disabled. The one that is there is good until it ends.
        assert member.smbclient("leaver", "ls", cache=late).returncode != 0
        assert member.smbclient("leaver", "ls", cache=cache).returncode == 0
        assert "NT_STATUS_ACCOUNT_DISABLED" in member.smbclient("leaver", "ls").stdout
        assert member.kinit("leaver", late).returncode != 0


def test_an_account_of_the_name_is_not_taken_over_unasked(member: Member) -> None:
    again = member.run("join")
    assert again.returncode == 1
    assert "--reuse takes it over" in again.stderr
    assert member.run("join", "--reuse").returncode == 0
    assert member.run("status").returncode == 0


@pytest.mark.parametrize(
    ("user", "password", "words"),
    [
        ("Administrator", "wrong", "Preauthentication failed"),
        ("nobody", PASSWORD, "not found"),
        ("alice", PASSWORD, "insufficientAccessRights"),
    ],
)
def test_a_join_without_the_right_is_refused(member: Member, user: str, password: str, words: str) -> None:
    refused = member.run("join", "--reuse", "--user", user, SMB3SERVER_PASSWORD=password)
    assert refused.returncode == 1
    assert words in refused.stderr
    assert "Traceback" not in refused.stderr
    assert member.run("status").returncode == 0


def _ask(member: Member, netlogon: Netlogon, user: str, password: str) -> tuple[DomainUser, bytes]:
    """Have a controller verify a response that impacket makes. Returns the user, and the key that impacket has."""
    names = ntlm.AV_PAIRS()
    for kind, text in (
        (ntlm.NTLMSSP_AV_HOSTNAME, "FILES"),
        (ntlm.NTLMSSP_AV_DOMAINNAME, WORKGROUP),
        (ntlm.NTLMSSP_AV_DNS_HOSTNAME, "files.example.test"),
    ):
        names[kind] = text.encode("utf-16-le")
    names[ntlm.NTLMSSP_AV_TIME] = struct.pack("<q", int((time.time() + 11644473600) * 10**7))
    challenge = os.urandom(8)
    made = ntlm.computeResponseNTLMv2(0, challenge, os.urandom(8), names.getData(), WORKGROUP, user, password)
    found: list[DomainUser] = []

    def validate() -> None:
        found.append(netlogon.validate(user, WORKGROUP, "CLIENT", challenge, made[1], made[0]))

    member.domain.network.run("member", validate)
    return found[0], made[2]


DEAD = Controller("dead.example.test", "10.77.0.99")


def test_a_controller_says_who_it_is_and_gives_the_key(member: Member) -> None:
    controller = Controller("dc1.example.test", member.domain.address)
    # The first of the two controllers does not answer.
    netlogon = member.netlogon(DEAD, controller)
    for _ in range(2):
        user, key = _ask(member, netlogon, "alice", PASSWORD)
        assert (user.name, user.domain, user.realm, user.session_key) == ("alice", WORKGROUP, REALM, key)
        assert user.sid.sub_authorities[:-1] == user.primary_group.sub_authorities[:-1]
    for name, password, status in (
        ("alice", "wrong", NtStatus.WRONG_PASSWORD),
        ("nobody", PASSWORD, NtStatus.NO_SUCH_USER),
        ("disabled", PASSWORD, NtStatus.ACCOUNT_DISABLED),
    ):
        with pytest.raises(LogonError) as refused:
            _ask(member, netlogon, name, password)
        assert refused.value.status == status
    netlogon.close()


def test_without_a_controller_nobody_is_let_in(member: Member) -> None:
    with pytest.raises(NoController, match=r"dead\.example\.test"):
        _ask(member, member.netlogon(DEAD), "alice", PASSWORD)


def test_a_machine_that_the_domain_does_not_know_is_refused(member: Member, tmp_path: Path) -> None:
    forged = Machine(tmp_path / "secret", tmp_path / "keytab")
    account = member.machine.account()
    wrong = account.versions[0]._replace(password="another")
    forged.write(dataclasses.replace(account, versions=(wrong,)))
    controller = Controller("dc1.example.test", member.domain.address)
    fixed = DomainControllers(REALM, [controller.name], resolve=at_addresses((controller,)))
    with pytest.raises(NoController, match=r"refuses the machine account FILES\$: ACCESS_DENIED"):
        _ask(member, Netlogon(fixed, forged), "alice", PASSWORD)


def test_leaving_removes_the_account_and_both_files(domain: Domain, tmp_path: Path) -> None:
    member = Member(domain, tmp_path)
    member.config.write_text(member.config.read_text().replace("FILES", "LEAVER"))
    assert member.run("join").returncode == 0
    assert "LEAVER$" in domain.tool("computer", "list")
    left = member.run("leave")
    assert left.returncode == 0, left.stderr
    assert "LEAVER$" not in domain.tool("computer", "list")
    assert sorted(path.name for path in (tmp_path / "state").glob("domain.*")) == ["domain.secret.lock"]
    assert "not joined" in member.run("status").stdout


def test_the_user_of_the_unit_serves_and_rotates(domain: Domain, tmp_path: Path) -> None:
    """As the packaged unit does it: its configuration names no state, its user is not root, root joins."""
    pytest.importorskip("gssapi", reason="needs the part kerberos")
    member, state = Member(domain, tmp_path), tmp_path / "state"
    open_up(tmp_path)
    state.mkdir(0o700)
    os.chown(state, *NOBODY)
    text = member.config.read_text().replace("FILES", "UNIT").replace(f'state = "{state}"\n', "")
    member.config.write_text(text)
    unit = (
        "setpriv", f"--reuid={NOBODY[0]}", f"--regid={NOBODY[1]}", "--clear-groups",
        f"--inh-caps={UNITS}", f"--ambient-caps={UNITS}", f"--bounding-set={UNITS}", "--no-new-privs",
    )  # fmt: skip
    assert "or set `state` in [server]" in member.run("join").stderr
    joined = member.run("join", "--state", str(state))
    assert joined.returncode == 0, joined.stderr
    for name in ("domain.secret", "domain.keytab"):
        found = (state / name).stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (*NOBODY, 0o600)
    rotated = domain.command(
        "member", *unit, sys.executable, "-m", "smb3server", "domain", "rotate", "--state", str(state),
        "--config", str(member.config),
    )  # fmt: skip
    assert rotated.returncode == 0, rotated.stderr
    with member.serving(*unit, options=("--state", str(state))):
        address = domain.network.address("member")
        put = ("smbclient", f"//{address}/data", "-U", f"{WORKGROUP}\\alice%{PASSWORD}", "-c", "put /etc/hostname a")
        done = domain.command("client", *put)
        assert done.returncode == 0, done.stdout + done.stderr
        policies, end = state / "domain.policies", time.monotonic() + 40
        while not policies.exists():
            assert time.monotonic() < end, member.log
            time.sleep(0.1)
    found = policies.stat()
    assert (found.st_uid, found.st_mode & 0o777) == (NOBODY[0], 0o600)
    assert (tmp_path / "data" / "a").exists()
