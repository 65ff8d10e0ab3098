"""SACLs, backup and restoring through Samba's own tools, as users of the host who own none of the files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from impacket import smb3structs
from impacket.ldap import ldaptypes
from impacket.smb3 import SessionError as SMB3SessionError
from impacket.smbconnection import SessionError, SMBConnection

from smb3server.client.protocol import open_rdma
from smbdirect.providers.iwarp.provider import IwarpProvider
from tests.lab.impacket_adapter import connect
from tests.lab.port_445 import HOST, PORT, needing
from tools.support.server_process import running

RDMA_PORT = 5445
ALICE, AUDITOR, KEEPER = "alice", "auditor", "keeper"
USERS = {ALICE: "games", AUDITOR: "news", KEEPER: "backup"}
ALL = "0xf"
"""All parts of a descriptor. smbcacls crashes without a --domain-sid beside --sddl."""
INHERITED_BY_ALL, SUCCESSFUL, FAILED = 0x03, 0x40, 0x80
READ, FR = 0x00120089, "0x00120089"
DELETE_OR_READ_DATA = 0x00010001
SACL_PRESENT = 0x8010
"""With SELF_RELATIVE."""


pytestmark = needing("smbcacls", "rpcclient")


@dataclass
class Share:
    """The share under test."""

    path: Path
    audit: Path

    def _run(self, program: str, user: str, *arguments: str) -> str:
        command = [program, *arguments, "-U", f"{user}%pw"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return ended.stdout + ended.stderr

    def acl(self, user: str, name: str, *verb: str, share: str = "data") -> str:
        """Run smbcacls on a file. Return what it prints."""
        return self._run("smbcacls", user, f"//{HOST}/{share}", name, *verb).strip()

    def client(self, user: str, commands: str, share: str = "data") -> str:
        """Run smbclient's commands. Return what it prints."""
        return self._run("smbclient", user, f"//{HOST}/{share}", "-p", str(PORT), "-c", commands)

    def rpc(self, user: str, command: str) -> str:
        """Run one of rpcclient's commands. Return what it prints."""
        return self._run("rpcclient", user, HOST, "-p", str(PORT), "-c", command)

    def file(self, name: str, owner: str = "games") -> Path:
        """Make a file of the host that its owner alone may read and write."""
        path = self.path / name
        path.write_text("secret")
        path.chmod(0o600)
        shutil.chown(path, owner, owner)
        return path

    def records(self, name: str, *expected: tuple[str, str, str]) -> list[tuple[str, str, str, list[str]]]:
        """Return what SACLs asked to be recorded of one file: user, operation, result, rights. Wait for ``expected``,
        without the rights: a thread of its own writes the audit."""
        deadline = time.monotonic() + 20
        while True:
            whole = self.audit.read_text().rpartition("\n")[0]
            lines = [json.loads(line) for line in whole.splitlines()]
            found = [line for line in lines if line["event"] == "sacl" and line["path"] == name]
            records = [(line["user"], line["operation"], line["result"], line["access"]) for line in found]
            if {record[:3] for record in records}.issuperset(expected) or time.monotonic() > deadline:
                return records
            time.sleep(0.05)


def _serve(folder: Path, run_as: str) -> Iterator[Share]:
    for above in (folder, *folder.parents[:2]):
        above.chmod(0o755)
    path = folder / "data"
    path.mkdir()
    path.chmod(0o777)
    config = f'[server]\nlisten = ["{HOST}"]\nport = {PORT}\nrdma = "iwarp"\nrdma_port = {RDMA_PORT}\n'
    config += f'audit_file = "{folder}/audit.log"\n'
    config += f'security_operators = ["{AUDITOR}"]\nbackup_operators = ["{KEEPER}"]\n'
    if run_as:
        (folder / "state").mkdir()
        shutil.chown(folder / "state", run_as)
        (folder / "audit.log").touch(0o600)
        shutil.chown(folder / "audit.log", run_as)
        config += f'run_as = "{run_as}"\nstate = "{folder}/state"\n'
    config += f'[[share]]\nname = "data"\npath = "{path}"\naudit = true\naudit_events = ["sacl"]\n'
    config += f'[[share]]\nname = "frozen"\npath = "{path}"\nread_only = true\n'
    config += f'[[share]]\nname = "kept"\npath = "{path}"\nrecycle = true\n'
    for user, host_user in USERS.items():
        config += f'[[user]]\nname = "{user}"\npassword = "pw"\nunix_user = "{host_user}"\n'
    with running(folder, config):
        yield Share(path, folder / "audit.log")


@pytest.fixture(scope="module", params=["", "nobody"], ids=["as root", "with the capabilities of the unit"])
def share(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Share]:
    yield from _serve(tmp_path_factory.mktemp("privileges"), request.param)


def set_sacl(share: Share, name: str, flags: int, rights: int, user: str = AUDITOR, on: str = "data") -> str:
    """Give a file a SACL with one entry for everyone, by impacket: smbcacls sets none. Return the status by name."""
    ace = ldaptypes.ACE()
    ace["AceType"] = ldaptypes.SYSTEM_AUDIT_ACE.ACE_TYPE
    ace["AceFlags"] = flags
    ace["Ace"] = ldaptypes.SYSTEM_AUDIT_ACE()
    ace["Ace"]["Mask"] = ldaptypes.ACCESS_MASK()
    ace["Ace"]["Mask"]["Mask"] = rights
    ace["Ace"]["Sid"] = _sid("S-1-1-0")
    sacl = ldaptypes.ACL()
    sacl["AclRevision"], sacl["Sbz1"], sacl["Sbz2"] = 2, 0, 0
    sacl.aces = [ace]
    descriptor = _descriptor(SACL_PRESENT)
    descriptor["Sacl"] = sacl
    return _set(on, name, user, descriptor, smb3structs.SACL_SECURITY_INFORMATION, smb3structs.ACCESS_SYSTEM_SECURITY)


def set_owner(name: str, owner: str, user: str, options: int) -> str:
    """Give a file another owner. Return the status by name."""
    descriptor = _descriptor(0x8000)
    descriptor["OwnerSid"] = _sid(owner)
    parts = smb3structs.OWNER_SECURITY_INFORMATION
    return _set("data", name, user, descriptor, parts, smb3structs.WRITE_OWNER, options)


def _sid(text: str) -> Any:
    sid = ldaptypes.LDAP_SID()
    sid.fromCanonical(text)
    return sid


def _descriptor(control: int) -> Any:
    made = ldaptypes.SR_SECURITY_DESCRIPTOR()
    made["Revision"], made["Sbz1"], made["Control"] = b"\1", b"\0", control
    made["OwnerSid"] = made["GroupSid"] = made["Dacl"] = made["Sacl"] = b""
    return made


def _set(share: str, name: str, user: str, descriptor: Any, parts: int, access: int, options: int = 0) -> str:
    connection = SMBConnection(HOST, HOST, sess_port=PORT)
    try:
        connection.login(user, "pw")
        low = connection.getSMBServer()
        tree = connection.connectTree(share)
        file = low.create(tree, name, access, 7, options, smb3structs.FILE_OPEN, 0)
        low.setInfo(tree, file, descriptor.getData(), smb3structs.SMB2_0_INFO_SECURITY, 0, parts)
    except (SessionError, SMB3SessionError) as error:
        return str(error)
    finally:
        connection.close()
    return ""


def sacl_of(share: Share, name: str, user: str = AUDITOR, on: str = "data") -> str:
    """Return owner, group, DACL and SACL as SDDL."""
    return share.acl(user, name, "--sddl", "--domain-sid", "S-1-5-21-1-2-3", "--query-security-info", ALL, share=on)


def test_who_may_see_and_set_a_sacl(share: Share) -> None:
    file = share.file("watched")
    for user in (ALICE, KEEPER):
        assert "NT_STATUS_PRIVILEGE_NOT_HELD" in sacl_of(share, "watched", user)
        assert "STATUS_PRIVILEGE_NOT_HELD" in set_sacl(share, "watched", SUCCESSFUL, READ, user)
    assert set_sacl(share, "watched", SUCCESSFUL | FAILED, READ) == ""
    assert f"(AU;SAFA;{FR};;;WD)" in sacl_of(share, "watched")
    assert "(AU;" not in share.acl(ALICE, "watched", "--sddl", "--domain-sid", "S-1-5-21-1-2-3")
    # The mode of the host goes on to decide.
    assert "NT_STATUS_ACCESS_DENIED" in share.client(AUDITOR, "get watched /dev/null")
    file.chmod(0o644)
    assert "NT_STATUS" not in share.client(AUDITOR, "get watched /dev/null")


def test_a_sacl_on_a_read_only_share_is_read_and_not_set(share: Share) -> None:
    share.file("kept")
    assert set_sacl(share, "kept", SUCCESSFUL, READ) == ""
    assert f"(AU;SA;{FR};;;WD)" in sacl_of(share, "kept", on="frozen")
    assert "STATUS_ACCESS_DENIED" in set_sacl(share, "kept", FAILED, READ, on="frozen")
    assert f"(AU;SA;{FR};;;WD)" in sacl_of(share, "kept")


def test_new_files_inherit_a_sacl(share: Share) -> None:
    (share.path / "folder").mkdir(mode=0o777)
    (share.path / "folder").chmod(0o777)
    assert set_sacl(share, "folder", INHERITED_BY_ALL | SUCCESSFUL, READ) == ""
    assert "NT_STATUS" not in share.client(ALICE, "put /etc/hostname folder\\new")
    assert f"(AU;SA;{FR};;;WD)" in sacl_of(share, "folder/new")
    user, operation, result, access = share.records("folder/new", (ALICE, "create", "success"))[0]
    assert (user, operation, result) == (ALICE, "create", "success")
    assert "read_attributes" in access


def test_the_audit_has_what_a_sacl_asks_for(share: Share) -> None:
    share.file("audited")
    assert set_sacl(share, "audited", SUCCESSFUL | FAILED, DELETE_OR_READ_DATA) == ""
    assert "NT_STATUS" not in share.client(ALICE, "get audited /dev/null")
    assert "NT_STATUS_ACCESS_DENIED" in share.client(KEEPER, "get audited /dev/null")
    assert "NT_STATUS" not in share.client(ALICE, "rm audited")
    refused, last = (KEEPER, "open", "ACCESS_DENIED"), (ALICE, "delete", "success")
    found = share.records("audited", refused, last)
    assert (ALICE, "open", "success", ["read_data"]) in found
    assert (KEEPER, "open", "ACCESS_DENIED", ["read_data"]) in found
    assert (ALICE, "open", "success", ["delete"]) in found
    assert (ALICE, "delete", "success", ["delete"]) in found
    assert not any(user == AUDITOR for user, *_ in found)


def test_backup_intent_reads_and_writes_every_file_for_the_named_alone(share: Share) -> None:
    file = share.file("private")
    assert "NT_STATUS_ACCESS_DENIED" in share.client(KEEPER, "get private /dev/null")
    assert "NT_STATUS_ACCESS_DENIED" in share.client(AUDITOR, "backup; get private /dev/null")
    assert "NT_STATUS" not in share.client(KEEPER, "backup; get private /dev/null")
    assert "NT_STATUS_ACCESS_DENIED" in share.client(KEEPER, "put /etc/hostname private")
    assert "NT_STATUS" not in share.client(KEEPER, "backup; put /etc/hostname private")
    assert file.read_bytes() == Path("/etc/hostname").read_bytes()
    assert file.owner() == "games"


def test_backup_intent_reaches_folders_of_others(share: Share) -> None:
    folder = share.path / "locked"
    folder.mkdir()
    share.file("locked/inside")
    folder.chmod(0o700)
    shutil.chown(folder, "games", "games")
    assert "NT_STATUS_ACCESS_DENIED" in share.client(KEEPER, "get locked\\inside /dev/null")
    assert "NT_STATUS" not in share.client(KEEPER, "backup; get locked\\inside /dev/null")
    assert "NT_STATUS" not in share.client(KEEPER, "backup; put /etc/hostname locked\\restored")
    assert (folder / "restored").owner() == "backup"
    assert "NT_STATUS_ACCESS_DENIED" in share.client(AUDITOR, "backup; put /etc/hostname locked\\not")


def test_what_is_deleted_for_backup_is_gone_or_kept(share: Share) -> None:
    folder = share.path / "deleting"
    folder.mkdir()
    files = [share.file(f"deleting/{name}") for name in ("plain", "gone", "kept")]
    folder.chmod(0o700)
    shutil.chown(folder, "games", "games")
    assert "NT_STATUS" in share.client(KEEPER, "rm deleting\\plain")
    assert "NT_STATUS" not in share.client(KEEPER, "backup; rm deleting\\gone")
    assert "NT_STATUS" not in share.client(KEEPER, "backup; rm deleting\\kept", "kept")
    assert [file.exists() for file in files] == [True, False, False]
    assert (share.path / ".recycle" / KEEPER / "deleting" / "kept").read_text() == "secret"


def test_backup_does_not_write_to_a_read_only_share(share: Share) -> None:
    file = share.file("frozen")
    assert "NT_STATUS" not in share.client(KEEPER, "backup; get frozen /dev/null", "frozen")
    assert "NT_STATUS" in share.client(KEEPER, "backup; put /etc/hostname frozen", "frozen")
    assert file.read_text() == "secret"


def test_backup_intent_over_smb_direct(share: Share) -> None:
    file = share.file("by_rdma")
    intent = smb3structs.FILE_OPEN_FOR_BACKUP_INTENT
    connection = connect(lambda: open_rdma(IwarpProvider(), HOST, RDMA_PORT), HOST, 0x0311)
    try:
        connection.login(KEEPER, "pw")
        low = connection.getSMBServer()
        tree = connection.connectTree("data")
        with pytest.raises((SessionError, SMB3SessionError), match="STATUS_ACCESS_DENIED"):
            low.create(tree, "by_rdma", smb3structs.FILE_READ_DATA, 7, 0, smb3structs.FILE_OPEN, 0)
        access = smb3structs.FILE_READ_DATA | smb3structs.FILE_WRITE_DATA
        opened = low.create(tree, "by_rdma", access, 7, intent, smb3structs.FILE_OPEN, 0)
        assert low.read(tree, opened, 0, 6) == b"secret"
        low.write(tree, opened, b"copied", 0, 6)
        low.close(tree, opened)
    finally:
        connection.close()
    assert file.read_text() == "copied"


def test_restoring_gives_a_file_its_owner_back(share: Share) -> None:
    file = share.file("owned", "news")
    games = "S-1-22-1-5"
    intent = smb3structs.FILE_OPEN_FOR_BACKUP_INTENT
    assert "STATUS_ACCESS_DENIED" in set_owner("owned", games, KEEPER, 0)
    assert "STATUS_INVALID_OWNER" in set_owner("owned", games, AUDITOR, intent)
    assert set_owner("owned", games, KEEPER, intent) == ""
    assert file.owner() == "games"


def test_rpcclient_is_told_who_has_which_privilege(share: Share) -> None:
    shown = share.rpc(ALICE, "enumprivs")
    for name, luid in (("SeSecurityPrivilege", 8), ("SeBackupPrivilege", 17), ("SeRestorePrivilege", 18)):
        assert re.search(rf"{name}\s+0:{luid} ", shown), shown
    sids = {}
    for user in USERS:
        found = re.search(r"(S-1-5-21-[\d-]+)", share.rpc(ALICE, f"lookupnames {user}"))
        assert found is not None
        sids[user] = found[1]
    listed = share.rpc(ALICE, "lsaenumsid")
    assert [user for user in USERS if sids[user] in listed] == [AUDITOR, KEEPER]
    assert "NT_STATUS_OBJECT_NAME_NOT_FOUND" in share.rpc(ALICE, f"lsaenumacctrights {sids[ALICE]}")
    assert re.findall(r"Se\w+", share.rpc(ALICE, f"lsaenumacctrights {sids[AUDITOR]}")) == ["SeSecurityPrivilege"]
    held = share.rpc(ALICE, f"lsaenumacctrights {sids[KEEPER]}")
    assert re.findall(r"Se\w+", held) == ["SeBackupPrivilege", "SeRestorePrivilege"]
    assert re.findall(r"\s17\t|\s18\t|low\D+(\d+)", share.rpc(ALICE, f"lsaenumprivsaccount {sids[KEEPER]}"))
