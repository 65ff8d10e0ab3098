"""Ids that the directory of a domain of Samba stores (RFC 2307), as the host and foreign clients see them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.system.domain.controller import PASSWORD, REALM, WORKGROUP, Domain
from tests.system.domain.member import Member

pytestmark = [pytest.mark.root, pytest.mark.interop, pytest.mark.timeout(300)]

USERS = {"carol": 25001, "root": 0, "outside": 70000, "none": None}


@pytest.fixture(scope="module")
def member(domain: Domain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    pytest.importorskip("gssapi", reason="needs the part kerberos")
    nis = ("--nis-domain=example", "--login-shell=/bin/sh", "--unix-home=/home/x")
    for name, number in USERS.items():
        given = () if number is None else (f"--uid-number={number}", "--gid-number=25900", f"--uid={name}", *nis)
        domain.tool("user", "create", name, PASSWORD, *given)
    domain.tool("group", "add", "unix", "--gid-number=25001", "--nis-domain=example")
    domain.tool("group", "addmembers", "unix", "carol")
    made = Member(domain, tmp_path_factory.mktemp("ids"), 'idmap = "rfc2307"\nid_range = [20000, 29999]')
    joined = made.run("join", "--reuse")
    assert joined.returncode == 0, joined.stderr
    with made.serving():
        yield made


def test_files_belong_to_the_stored_numbers(member: Member) -> None:
    """Domain Users has no gidNumber here, so the user's own counts."""
    cache = str(member.folder / "carol")
    assert member.kinit("carol", cache).returncode == 0
    for name, ticket in (("by-password", ""), ("by-ticket", cache)):
        done = member.smbclient("carol", f"put /etc/hostname {name}", cache=ticket)
        assert done.returncode == 0, done.stdout + done.stderr + member.log
        found = (member.folder / "data" / name).stat()
        assert (found.st_uid, found.st_gid) == (25001, 25900)
    # The group's number, which is the user's as well, is one of hers: the host's kernel lets her in.
    folder = member.folder / "data" / "group"
    folder.mkdir()
    folder.chmod(0o770)
    os.chown(folder, 0, 25001)
    done = member.smbclient("carol", "put /etc/hostname group\\f")
    assert done.returncode == 0, done.stdout


def test_descriptors_show_names(member: Member) -> None:
    member.smbclient("carol", "put /etc/hostname named")
    share = f"//files.{REALM.lower()}/data"
    who = f"{WORKGROUP}\\carol%{PASSWORD}"
    shown = member.domain.command("client", "smbcacls", share, "named", "-U", who)
    assert f"OWNER:{WORKGROUP}\\carol" in shown.stdout, shown.stdout + shown.stderr


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ("none", "the directory has no uidNumber for it"),
        ("root", "its uidNumber 0 is outside of id_range, which is 20000 to 29999"),
        ("outside", "its uidNumber 70000 is outside of id_range"),
    ],
)
@pytest.mark.parametrize("ticket", [True, False], ids=["ticket", "password"])
def test_who_has_no_number_in_the_range_is_refused(member: Member, user: str, reason: str, ticket: bool) -> None:
    cache = str(member.folder / user) if ticket else ""
    if ticket:
        assert member.kinit(user, cache).returncode == 0
    done = member.smbclient(user, "put /etc/hostname no", cache=cache)
    assert done.returncode != 0 and "NT_STATUS_LOGON_FAILURE" in done.stdout
    assert reason in member.log
    assert not (member.folder / "data" / "no").exists()


def test_nothing_of_this_made_the_server_fail(member: Member) -> None:
    assert "Traceback" not in member.log
