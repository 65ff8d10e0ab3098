"""Descriptors through Samba's own tools: smbcacls sets and shows them, smbclient and rpcclient say what they mean."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.port_445 import HOST, PORT, needing
from tools.support.server_process import running

"""Of this process alone: tests of this module may run in several processes, and smbcacls knows one port only."""
PASSWORDS = {"alice": "alice-pw", "carol": "carol-pw", "dave": "dave-pw"}
READ, CHANGE, FULL = "READ", "CHANGE", "FULL"


pytestmark = needing("smbcacls", "rpcclient")


@dataclass
class Share:
    """The share under test."""

    path: Path

    def acl(self, name: str, *verb: str, user: str = "carol", ok: bool = True) -> str:
        """Run smbcacls on a file."""
        return _run(["smbcacls", f"//{HOST}/data", name, "-U", f"{user}%{PASSWORDS[user]}", *verb], ok)

    def set(self, name: str, acl: str) -> None:
        """Replace a file's DACL by carol. smbcacls wants owner and group to be named, too: it sets them as they are."""
        shown = self.acl(name)
        owner, group = (re.findall(rf"^{part}:(.*)$", shown, re.MULTILINE)[0] for part in ("OWNER", "GROUP"))
        self.acl(name, "--set", f"REVISION:1,OWNER:{owner},GROUP:{group},{acl}")

    def client(self, commands: str, user: str = "carol", ok: bool = True) -> str:
        """Run smbclient's commands."""
        credentials = f"{user}%{PASSWORDS[user]}"
        return _run(["smbclient", f"//{HOST}/data", "-p", str(PORT), "-U", credentials, "-c", commands], ok)

    def rpc(self, command: str, user: str = "carol") -> str:
        """Run one of rpcclient's commands."""
        return _run(["rpcclient", HOST, "-p", str(PORT), "-U", f"{user}%{PASSWORDS[user]}", "-c", command], True)

    def can(self, user: str, name: str, action: str = "read") -> bool:
        """Say whether the user can read a file, write to it, or delete it."""
        commands = {
            "read": f"get {name} /dev/null",
            "write": f"put /etc/hostname {name}",
            "delete": f"del {name}",
        }
        return "NT_STATUS_" not in self.client(commands[action], user, ok=False)

    def make(self, name: str, user: str = "carol") -> None:
        """Make a file."""
        self.client(f"put /etc/hostname {name}", user)


def _run(command: list[str], ok: bool) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    text = ended.stdout + ended.stderr
    assert not ok or (ended.returncode == 0 and "NT_STATUS_" not in text), text
    return text


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Share]:
    folder = tmp_path_factory.mktemp("smbcacls")
    for above in (folder, *folder.parents[:2]):
        above.chmod(0o755)
    path = folder / "data"
    path.mkdir()
    path.chmod(0o777)
    shutil.chown(path, "nobody", "nogroup")
    config = f'[server]\nlisten = ["{HOST}"]\nport = {PORT}\nname = "FILES"\n'
    config += f'[[share]]\nname = "data"\npath = "{path}"\n'
    for user, password in PASSWORDS.items():
        config += f'[[user]]\nname = "{user}"\npassword = "{password}"\n'
        config += 'unix_user = "games"\n' if user == "alice" else ""
    with running(folder, config):
        yield Share(path)


def entries(shown: str) -> list[str]:
    return re.findall(r"^ACL:(.*)$", shown, re.MULTILINE)


def who(shown: str, name: str) -> list[str]:
    """The entries of an account, with or without a domain in front of it."""
    return [entry for entry in entries(shown) if re.match(rf"(?:[^:\\]*\\)?{name}:", entry)]


def test_accounts_have_sids_and_names_of_their_own(share: Share) -> None:
    """lookupnames and lookupsids are each other's inverse; no two accounts have the same SID."""
    sids = {}
    for user in PASSWORDS:
        found = re.search(r"(S-1-[\d-]+)", share.rpc(f"lookupnames {user}"))
        assert found is not None
        sids[user] = found[1]
        assert re.search(rf"\\{user} ", share.rpc(f"lookupsids {found[1]}"))
    assert len(set(sids.values())) == len(sids)


@pytest.mark.parametrize("owner", ["alice", "carol"])
def test_the_owner_is_shown_by_name(share: Share, owner: str) -> None:
    share.make(f"owned-{owner}", owner)
    shown = share.acl(f"owned-{owner}", user=owner)
    host_user = {"alice": "(?:alice|games)"}.get(owner, owner)
    assert re.search(rf"^OWNER:(?:[^\\]*\\)?{host_user}$", shown, re.MULTILINE), shown


@pytest.mark.parametrize("user", ["dave", "alice"])
def test_deny_for_one_account_holds_for_it_alone(share: Share, user: str) -> None:
    name = f"denied-{user}"
    share.make(name)
    share.set(name, f"ACL:{user}:DENIED/0x0/FULL,ACL:carol:ALLOWED/0x0/FULL,ACL:Everyone:ALLOWED/0x0/CHANGE")
    assert not share.can(user, name)
    assert share.can("carol", name)
    assert share.can("dave" if user == "alice" else "alice", name)


@pytest.mark.parametrize("user", ["dave", "alice"])
def test_allow_for_one_account_helps_it_alone(share: Share, user: str) -> None:
    name = f"allowed-{user}"
    share.make(name)
    share.set(name, f"ACL:carol:ALLOWED/0x0/FULL,ACL:{user}:ALLOWED/0x0/READ")
    assert share.can(user, name)
    assert not share.can(user, name, "write")
    assert not share.can("dave" if user == "alice" else "alice", name)


def test_verbs(share: Share) -> None:
    """add, modify, delete, set."""
    share.make("verbs")
    share.set("verbs", "ACL:carol:ALLOWED/0x0/FULL")
    share.acl("verbs", "--add", "ACL:dave:ALLOWED/0x0/READ")
    shown = share.acl("verbs")
    assert len(entries(shown)) == 2
    assert who(shown, "dave") and "READ" in who(shown, "dave")[0]
    share.acl("verbs", "--modify", "ACL:dave:ALLOWED/0x0/CHANGE")
    assert "CHANGE" in who(share.acl("verbs"), "dave")[0]
    share.acl("verbs", "--delete", "ACL:dave:ALLOWED/0x0/CHANGE")
    assert not who(share.acl("verbs"), "dave")
    assert not share.can("dave", "verbs")


def test_only_who_may_changes_a_dacl(share: Share) -> None:
    share.make("guarded")
    share.set("guarded", "ACL:carol:ALLOWED/0x0/FULL,ACL:dave:ALLOWED/0x0/CHANGE")
    before = share.acl("guarded")
    for user in ("dave", "alice"):
        text = share.acl("guarded", "--add", f"ACL:{user}:ALLOWED/0x0/FULL", user=user, ok=False)
        assert "NT_STATUS_ACCESS_DENIED" in text
    assert share.acl("guarded") == before


@pytest.mark.parametrize("new", ["dave", "alice", "S-1-5-18", "S-1-22-1-0", "S-1-5-21-1-2-3-4567"])
def test_nobody_gives_files_away(share: Share, new: str) -> None:
    """STATUS_INVALID_OWNER: the new owner is not in the caller's token (MS-FSA 2.1.5.17)."""
    share.make("gift")
    on_disk = (share.path / "gift").stat().st_uid
    text = share.acl("gift", "--chown", new, ok=False)
    assert "NT_STATUS_INVALID_OWNER" in text or "NT_STATUS_ACCESS_DENIED" in text, text
    assert re.search(r"^OWNER:(?:[^\\]*\\)?carol$", share.acl("gift"), re.MULTILINE)
    assert (share.path / "gift").stat().st_uid == on_disk


def test_whoever_may_takes_ownership_for_himself(share: Share) -> None:
    """WRITE_OWNER is the right to take, not to give."""
    share.make("taken")
    share.set("taken", "ACL:carol:ALLOWED/0x0/FULL,ACL:dave:ALLOWED/0x0/0x001a0089")
    share.acl("taken", "--chown", "dave", user="dave")
    assert re.search(r"^OWNER:(?:[^\\]*\\)?dave$", share.acl("taken", user="dave"), re.MULTILINE)


def test_inheritance_reaches_new_files(share: Share) -> None:
    share.client("mkdir tree")
    share.set("tree", "ACL:carol:ALLOWED/OI|CI/FULL,ACL:dave:ALLOWED/OI|CI/READ")
    share.client("mkdir tree\\sub; put /etc/hostname tree\\sub\\file")
    shown = share.acl("tree\\sub\\file")
    assert len(who(shown, "dave")) == 1, shown
    assert share.can("dave", "tree\\sub\\file")
    assert not share.can("dave", "tree\\sub\\file", "write")
    assert not share.can("alice", "tree\\sub\\file")


def test_inheritance_is_blocked_and_let_through_again(share: Share) -> None:
    """smbcacls --inherit: a file keeps its entries and is protected from its folder's, and is not any more."""
    share.client("mkdir old")
    share.set("old", "ACL:carol:ALLOWED/OI|CI/FULL,ACL:dave:ALLOWED/OI|CI/READ")
    share.make("old\\file")
    share.acl("old\\file", "--inherit", "copy")
    shown = share.acl("old\\file")
    assert re.search(r"^CONTROL:.*\bPD\b", shown, re.MULTILINE), shown
    assert len(who(shown, "dave")) == 1
    assert share.can("dave", "old\\file")
    share.acl("old\\file", "--inherit", "allow")
    assert not re.search(r"^CONTROL:.*\bPD\b", share.acl("old\\file"), re.MULTILINE)
    assert share.can("carol", "old\\file")


def test_entries_propagate_to_what_is_below(share: Share) -> None:
    share.client("mkdir top; mkdir top\\mid; put /etc/hostname top\\mid\\file")
    share.set("top", "ACL:carol:ALLOWED/OI|CI/FULL")
    share.acl("top", "--propagate-inheritance", "--add", "ACL:dave:ALLOWED/OI|CI/READ")
    assert who(share.acl("top\\mid\\file"), "dave")
    assert share.can("dave", "top\\mid\\file")


def test_deleting_takes_the_right(share: Share) -> None:
    """DELETE on the file, or DELETE_CHILD on its folder (MS-FSA 2.1.5.1.2)."""
    share.client("mkdir box; put /etc/hostname box\\one; put /etc/hostname box\\two")
    for name in ("box\\one", "box\\two"):
        share.set(name, "ACL:carol:ALLOWED/0x0/FULL,ACL:dave:ALLOWED/0x0/0x0012019f")
    share.set("box", "ACL:carol:ALLOWED/0x0/FULL,ACL:dave:ALLOWED/0x0/0x001200a9")
    assert not share.can("dave", "box\\one", "delete")
    share.set("box", "ACL:carol:ALLOWED/0x0/FULL,ACL:dave:ALLOWED/0x0/0x001200e9")
    assert share.can("dave", "box\\one", "delete")
    share.set("box", "ACL:carol:ALLOWED/0x0/FULL,ACL:dave:ALLOWED/0x0/0x001200a9")
    share.set("box\\two", "ACL:carol:ALLOWED/0x0/FULL,ACL:dave:ALLOWED/0x0/0x0013019f")
    assert share.can("dave", "box\\two", "delete")
    assert not list((share.path / "box").iterdir())
