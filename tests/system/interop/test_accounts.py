"""Passwords, accounts and groups over SAMR: smbpasswd, net, rpcclient and impacket against the command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from smb3server.auth.users import nt_hash
from smb3server.auth.users_file import StoredUser, change_users, read_users
from tests.lab.served import ROOT, Served, done, served

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket.dcerpc.v5 import lsad, lsat, samr, transport
    from impacket.dcerpc.v5.dtypes import MAXIMUM_ALLOWED
    from impacket.dcerpc.v5.rpcrt import DCERPCException
    from impacket.smbconnection import SessionError, SMBConnection

needs_rpcclient = pytest.mark.skipif(shutil.which("rpcclient") is None, reason="rpcclient is not installed")
CONFIG = """[server]
admins = ["chief"]
[groups]
staff = ["alice", "bob"]
[[share]]
name = "data"
path = "{folder}"
[[user]]
name = "fixed"
password = "password-fixed"
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Served]:
    """Users alice, bob and chief in the users file, fixed in the configuration; passwords password-NAME."""
    (tmp_path / "data").mkdir()
    file = tmp_path / "smb3server.toml"
    file.touch(0o600)
    file.write_text(CONFIG.format(folder=tmp_path / "data"))
    for name in ("alice", "bob", "chief"):
        put(tmp_path, StoredUser(name, nt_hash(f"password-{name}")))
    with served(tmp_path, "--config", str(file)) as process:
        yield process


def put(tmp_path: Path, user: StoredUser) -> None:
    change_users(tmp_path / "state" / "users", lambda users: users.put(user))


def stored(process: Served, name: str) -> StoredUser:
    found = read_users(process.state / "users").find(name)
    assert found is not None
    return found


def can_log_on(process: Served, name: str, password: str) -> bool:
    try:
        SMBConnection("127.0.0.1", "127.0.0.1", sess_port=process.port).login(name, password)
    except SessionError:
        return False
    return True


@contextmanager
def bound(process: Served, user: str, password: str = "", level: int = 0) -> Iterator[Any]:
    path = transport.SMBTransport("127.0.0.1", process.port, "samr", user, password or f"password-{user}")
    endpoint = path.get_dce_rpc()
    endpoint.connect()
    if level:
        endpoint.set_auth_level(level)
    endpoint.bind(samr.MSRPC_UUID_SAMR)
    yield endpoint
    endpoint.disconnect()


def domain_of(endpoint: Any) -> Any:
    server = samr.hSamrConnect(endpoint)["ServerHandle"]
    name = samr.hSamrEnumerateDomainsInSamServer(endpoint, server)["Buffer"]["Buffer"][0]["Name"]
    sid = samr.hSamrLookupDomainInSamServer(endpoint, server, name)["DomainId"]
    return samr.hSamrOpenDomain(endpoint, server, domainId=sid)["DomainHandle"]


def user_of(endpoint: Any, name: str) -> Any:
    domain = domain_of(endpoint)
    rid = samr.hSamrLookupNamesInDomain(endpoint, domain, [name])["RelativeIds"]["Element"][0]["Data"]
    return samr.hSamrOpenUser(endpoint, domain, userId=rid)["UserHandle"]


def change(process: Served, caller: str, name: str, old: str, new: str) -> None:
    with bound(process, caller) as endpoint:
        samr.hSamrUnicodeChangePasswordUser2(endpoint, "\0", name, old, new)


def rpcclient(process: Served, command: str, user: str = "bob") -> str:
    login = ["-p", str(process.port), "-U", f"{user}%password-{user}", "127.0.0.1"]
    found = subprocess.run(
        ["rpcclient", *login, "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    return found.stdout + found.stderr


def test_a_user_changes_the_password(running: Served) -> None:
    with bound(running, "alice") as kept:
        change(running, "alice", "ALICE", "password-alice", "another password")
        # Who is logged on stays.
        samr.hSamrConnect(kept)
    assert stored(running, "alice").nt_hash == nt_hash("another password") and stored(running, "alice").changed
    assert can_log_on(running, "alice", "another password") and not can_log_on(running, "alice", "password-alice")
    # Anybody who can reach the service and knows the old password may do so.
    change(running, "bob", "alice", "another password", "a third password")
    assert can_log_on(running, "alice", "a third password")


def answer_of(process: Served, name: str, old: str) -> str:
    try:
        change(process, "bob" if name != "bob" else "chief", name, old, "another password")
    except DCERPCException as error:
        return str(error).partition("STATUS_")[2].partition(" ")[0]
    return "done"


def test_passwords_that_stay(running: Served) -> None:
    before = (running.state / "users").read_bytes()
    for name, old, new, status in (
        ("alice", "wrong", "another password", "STATUS_WRONG_PASSWORD"),
        ("nobody", "wrong", "another password", "STATUS_WRONG_PASSWORD"),
        ("alice", "password-alice", "short", "STATUS_PASSWORD_RESTRICTION"),
        ("alice", "password-alice", "password-alice", "STATUS_PASSWORD_RESTRICTION"),
        ("alice", "password-alice", "", "STATUS_PASSWORD_RESTRICTION"),
        ("fixed", "password-fixed", "another password", "STATUS_ACCESS_DENIED"),
    ):
        with pytest.raises(DCERPCException, match=status):
            change(running, "alice", name, old, new)
        assert (running.state / "users").read_bytes() == before, (name, old, new)
        assert can_log_on(running, "alice", "password-alice"), (name, old, new)


def test_wrong_old_passwords_are_guesses(running: Served) -> None:
    """They count with failed logons; who has logged on from here as the user is not slowed for some of them."""
    for name in ("alice", "no-such-user"):
        answers = [answer_of(running, name, "wrong") for _ in range(13)]
        assert answers[:10] == ["WRONG_PASSWORD"] * 10 and "ACCOUNT_LOCKED_OUT" in answers[10:]
    assert can_log_on(running, "bob", "password-bob")
    assert answer_of(running, "bob", "password-bob") == "done"


def test_disabled_and_expired_users_cannot_change_theirs(running: Served, tmp_path: Path) -> None:
    put(tmp_path, StoredUser("alice", nt_hash("password-alice"), disabled=True))
    put(tmp_path, StoredUser("zoe", nt_hash("password-zoe"), expires=1, must_change=True))
    reload(running)
    for name, status in (("alice", "STATUS_ACCOUNT_DISABLED"), ("zoe", "STATUS_ACCOUNT_EXPIRED")):
        with pytest.raises(DCERPCException, match=status):
            change(running, "bob", name, f"password-{name}", "another password")
        with pytest.raises(DCERPCException, match="STATUS_WRONG_PASSWORD"):
            change(running, "bob", name, "wrong", "another password")


def reload(running: Served) -> None:
    done(running, "user", "set", "bob", "--comment", "x")


def test_a_password_that_must_be_changed(running: Served, tmp_path: Path) -> None:
    put(tmp_path, StoredUser("alice", nt_hash("password-alice"), must_change=True))
    reload(running)
    assert not can_log_on(running, "alice", "password-alice")
    change(running, "bob", "alice", "password-alice", "another password")
    assert can_log_on(running, "alice", "another password") and not stored(running, "alice").must_change


@pytest.mark.parametrize("level", [0, 6], ids=["smb", "sealed"])
def test_administrators_set_passwords(running: Served, level: int) -> None:
    with bound(running, "chief", level=level) as endpoint:
        user = user_of(endpoint, "alice")
        samr.hSamrSetPasswordInternal4New(endpoint, user, "set by chief")
        assert stored(running, "alice").nt_hash == nt_hash("set by chief")
        with pytest.raises(DCERPCException, match="STATUS_PASSWORD_RESTRICTION"):
            samr.hSamrSetPasswordInternal4New(endpoint, user, "short")
        if not level:
            samr.hSamrSetNTInternal1(endpoint, user, "set as a hash")
            assert can_log_on(running, "alice", "set as a hash")
        with pytest.raises(DCERPCException, match="STATUS_ACCESS_DENIED"):
            samr.hSamrSetPasswordInternal4New(endpoint, user_of(endpoint, "fixed"), "set by chief")


def test_others_change_nothing(running: Served) -> None:
    before = (running.state / "users").read_bytes()
    with bound(running, "bob") as endpoint:
        domain, user = domain_of(endpoint), user_of(endpoint, "alice")
        for attempt in (
            lambda: samr.hSamrSetPasswordInternal4New(endpoint, user, "set by bob"),
            lambda: samr.hSamrSetNTInternal1(endpoint, user_of(endpoint, "bob"), "set by bob"),
            lambda: samr.hSamrCreateUserInDomain(endpoint, domain, "eve"),
            lambda: samr.hSamrDeleteUser(endpoint, user),
        ):
            with pytest.raises(DCERPCException, match="STATUS_ACCESS_DENIED"):
                attempt()
    assert (running.state / "users").read_bytes() == before


def test_administrators_add_and_remove_users(running: Served) -> None:
    with bound(running, "chief") as endpoint:
        domain = domain_of(endpoint)
        made = samr.hSamrCreateUser2InDomain(endpoint, domain, "eve")["UserHandle"]
        assert stored(running, "eve").disabled
        samr.hSamrSetPasswordInternal4New(endpoint, made, "password of eve")
        for name, status in (("eve", "USER_EXISTS"), ("staff", "ALIAS_EXISTS"), ("a:b", "INVALID_ACCOUNT_NAME")):
            with pytest.raises(DCERPCException, match=status):
                samr.hSamrCreateUserInDomain(endpoint, domain, name)
        samr.hSamrDeleteUser(endpoint, made)
        with pytest.raises(DCERPCException, match="STATUS_ACCESS_DENIED"):
            samr.hSamrDeleteUser(endpoint, user_of(endpoint, "fixed"))
    assert read_users(running.state / "users").find("eve") is None


def test_groups_and_their_members(running: Served) -> None:
    with bound(running, "bob") as endpoint:
        domain = domain_of(endpoint)
        found = samr.hSamrLookupNamesInDomain(endpoint, domain, ["staff", "None"])
        rids = [entry["Data"] for entry in found["RelativeIds"]["Element"]]
        assert [entry["Data"] for entry in found["Use"]["Element"]] == [4, 2]
        staff = samr.hSamrOpenAlias(endpoint, domain, aliasId=rids[0])["AliasHandle"]
        sids = [entry["SidPointer"] for entry in samr.hSamrGetMembersInAlias(endpoint, staff)["Members"]["Sids"]]
        level = samr.ALIAS_INFORMATION_CLASS.AliasGeneralInformation
        info = samr.hSamrQueryInformationAlias(endpoint, staff, level)["Buffer"]["General"]
        assert (info["Name"], info["MemberCount"]) == ("staff", 2)
        members = [entry["Data"] for entry in samr.hSamrLookupNamesInDomain(endpoint, domain, ["alice", "bob"])[
            "RelativeIds"]["Element"]]  # fmt: skip
        assert [int(sid.formatCanonical().rpartition("-")[2]) for sid in sids] == members
        everybody = samr.hSamrOpenGroup(endpoint, domain, groupId=rids[1])["GroupHandle"]
        answer = samr.hSamrGetMembersInGroup(endpoint, everybody)
        assert len(answer["Members"]["Members"]) == 4
    assert lsa_rids(running, ["alice", "staff", "None"]) == [members[0], *rids]


def lsa_rids(running: Served, names: list[str]) -> list[int]:
    """The RIDs that LSA gives to names. [MS-LSAT 3.1.4.7]"""
    endpoint = transport.SMBTransport("127.0.0.1", running.port, "lsarpc", "bob", "password-bob").get_dce_rpc()
    endpoint.connect()
    endpoint.bind(lsat.MSRPC_UUID_LSAT)
    policy = lsad.hLsarOpenPolicy2(endpoint, MAXIMUM_ALLOWED)["PolicyHandle"]
    answer = lsat.hLsarLookupNames2(endpoint, policy, names)
    endpoint.disconnect()
    return [entry["RelativeId"] for entry in answer["TranslatedSids"]["Sids"]]


@needs_rpcclient
def test_rpcclient_sets_passwords(running: Served) -> None:
    for level in (23, 24, 25, 26, 31):
        assert "NT_STATUS" not in rpcclient(running, f"setuserinfo2 alice {level} level-{level}-pw", "chief"), level
        assert can_log_on(running, "alice", f"level-{level}-pw"), level
        assert "NT_STATUS_ACCESS_DENIED" in rpcclient(running, f"setuserinfo2 alice {level} another-one"), level


@needs_rpcclient
def test_rpcclient_changes_passwords(running: Served) -> None:
    assert "NT_STATUS" not in rpcclient(running, "chgpasswd2 alice password-alice by-rc4-xx")
    assert "NT_STATUS" not in rpcclient(running, "chgpasswd4 alice by-rc4-xx by-aes-xx")
    assert can_log_on(running, "alice", "by-aes-xx")
    assert "NT_STATUS_WRONG_PASSWORD" in rpcclient(running, "chgpasswd4 alice wrong by-aes-yy")


@needs_rpcclient
def test_what_rpcclient_shows(running: Served) -> None:
    shown = rpcclient(running, "querydispinfo; enumalsgroups domain; querydominfo; getdompwinfo; enumdomgroups")
    for text in ("Account: alice", "group:[staff]", "Total Users:\t4", "min_password_length: 8", "group:[None]"):
        assert text in shown
    assert "User Name   :\talice" in rpcclient(running, "queryuser alice")


NET = """
ip link set lo up
{python} -m smb3server --config {config} --state {state} --listen 127.0.0.1 --port 445 > {out} 2>&1 &
server=$!
for i in $(seq 100); do grep -q ^ready {out} && break; sleep 0.1; done
printf 'password-alice\\nby-smbpasswd\\nby-smbpasswd\\n' | smbpasswd -c {smb_conf} -s -r 127.0.0.1 -U alice
printf 'by-smbpasswd\\nshort\\nshort\\n' | smbpasswd -c {smb_conf} -s -r 127.0.0.1 -U alice 2>&1
as="-s {smb_conf} -S 127.0.0.1"
net rpc password bob set-by-net $as -U chief%password-chief
net rpc user add dora password-dora $as -U chief%password-chief
net rpc user $as -U alice%by-smbpasswd
net rpc group members staff $as -U alice%by-smbpasswd
net rpc group members Administrators $as -U alice%by-smbpasswd
net rpc user info alice $as -U alice%by-smbpasswd
net rpc user rename dora other $as -U chief%password-chief 2>&1
smbclient -s {smb_conf} //127.0.0.1/data -U dora%password-dora -c 'ls' | grep -c blocks
net rpc user delete dora $as -U chief%password-chief
net rpc user delete alice $as -U bob%set-by-net 2>&1
kill $server
wait $server
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="smbpasswd knows port 445 only: it needs a network of its own")
@pytest.mark.skipif(shutil.which("smbpasswd") is None, reason="smbpasswd is not installed")
def test_smbpasswd_and_net(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "smb.conf").write_text("[global]\n")
    config = tmp_path / "smb3server.toml"
    config.touch(0o600)
    config.write_text(CONFIG.format(folder=tmp_path / "data"))
    for name in ("alice", "bob", "chief"):
        put(tmp_path, StoredUser(name, nt_hash(f"password-{name}")))
    script = NET.format(
        python=sys.executable,
        config=config,
        state=tmp_path / "state",
        out=tmp_path / "out",
        smb_conf=tmp_path / "smb.conf",
    )
    found = subprocess.run(
        ["unshare", "--net", "bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ).stdout
    for text in (
        "Password changed for user alice",
        "some password update rule has been violated",
        "Added user 'dora'",
        "alice\nbob\nchief\ndora\nfixed\n",
        "\\alice\n",
        "\\bob\n",
        "\\chief\n",
        "The request is not supported",
        "Deleted user 'dora'",
        "Failed to delete user 'alice' with: Access is denied",
    ):
        assert text in found, (text, found, (tmp_path / "out").read_text())
    users = read_users(tmp_path / "state" / "users")
    hashes = {user.name: user.nt_hash for user in users}
    assert hashes["alice"] == nt_hash("by-smbpasswd") and hashes["bob"] == nt_hash("set-by-net")
    assert "dora" not in hashes
