"""Samba's configuration, carried over. Samba's own testparm is the judge of names and paths."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from smb3server.cli.main import main
from smb3server.config.error import Problems
from smb3server.config.reader import read_document
from smb3server.config.sources.samba import SambaError, convert

CONF = """# A comment
[global]
   workgroup = WORKGROUP
   Net BIOS Name = ignored
   netbios name = FILES
   server string = %h server (Samba, Ubuntu)
   interfaces = 127.0.0.1/8
   map to guest = Bad User
   server min protocol = SMB2
   hosts allow = 192.168.1. 10.1. 127.0.0.1
   log file = /var/log/samba/log.%m
   read only = no
[homes]
   comment = Home Directories
   browseable = no
   valid users = %S
[Data Share]
   path = /srv/data
   writable = yes
   valid users = alice, @staff, "bob b", \\
      DOMAIN\\carl
   write list = alice
   create mask = 0664
   directory mask = 2775
   veto files = /*.exe/lost+found/
   vfs objects = recycle acl_xattr
   recycle:repository = .bin/%U
   recycle:exclude = *.tmp, ~$*
   follow symlinks = no
   smb encrypt = required
   max connections = 7
   admin users = root
   hide dot files = no
[ro]
   directory = /srv/ro
   public = yes
   writeable = no
   write list = +staff alice
   read list = alice bob
   hosts deny = ALL
[bin]
   copy = ro
   path = /srv/bin
   vfs objects = recycle
[closed]
   path = /srv/closed
   valid users = %G
   hosts allow = 10.0.0.0/255.0.0.0 EXCEPT 10.1.1.1
[printers]
   path = /var/spool
   printable = yes
[macro]
   path = /srv/%u
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    file = tmp_path / "smb.conf"
    file.write_text(CONF)
    return file


def converted(conf: Path) -> tuple[str, dict[str, Any]]:
    text = convert(conf)
    return text, tomllib.loads(text)


def test_what_is_carried_over(conf: Path) -> None:
    _, values = converted(conf)
    assert values["server"] == {
        "name": "FILES",
        "comment": "server (Samba, Ubuntu)",
        "listen": ["127.0.0.1"],
        "guest": True,
        "min_dialect": "2.1",
        "hosts_allow": ["192.168.1.0/24", "10.1.0.0/16", "127.0.0.1/32"],
    }
    assert values["homes"] == {
        "path": "/home/{user}",
        "comment": "Home Directories",
        "hide_dot_files": True,
    }
    data, ro, binary, closed = values["share"]
    assert data == {
        "name": "Data Share",
        "path": "/srv/data",
        "users": ["alice", "@@staff", "bob b", "carl"],
        "create_mask": "0664",
        "veto_files": ["*.exe", "lost+found"],
        "recycle": True,
        "recycle_folder": ".bin/{user}",
        "recycle_exclude": ["*.tmp", "~$*"],
        "symlinks": "never",
        "encrypt": True,
        "max_connections": 7,
    }
    assert ro == {
        "name": "ro",
        "path": "/srv/ro",
        "guest": True,
        "read_only": True,
        "write_list": ["@@staff", "alice"],
        "read_list": ["bob"],
        "hosts_allow": ["192.168.1.0/24", "10.1.0.0/16", "127.0.0.1/32"],
        "hide_dot_files": True,
    }
    assert binary == {**ro, "name": "bin", "path": "/srv/bin", "recycle": True, "recycle_folder": ".recycle"}
    assert (closed["users"], closed["hosts_allow"]) == ([], [])
    # The file reads as one would write it.
    assert list(binary)[:2] == ["name", "path"]


def test_what_is_not_carried_over_is_told(conf: Path) -> None:
    text, _ = converted(conf)
    for said in (
        "# directory mask = 2775: not carried over: only permissions",
        "# vfs objects = acl_xattr: not carried over",
        "# admin users = root: not carried over: would act as root",
        "# valid users = %G: not carried over: macros",
        "#     Until it is mended, users = [] keeps everybody out.",
        "# hosts allow = 10.0.0.0/255.0.0.0 EXCEPT 10.1.1.1: not carried over",
        "# log file = /var/log/samba/log.%m: not carried over",
        "# [printers]: printers are not shared",
        "# [macro]: path = /srv/%u: not carried over: a share has one folder for all; [homes] has one for each user",
    ):
        assert said in text, said


HOME_SERVER = """[global]
   workgroup = HOME
   server string = %h file server
   interfaces = eth0 lo
   bind interfaces only = yes
   max log size = 1000
   smb encrypt = desired
   load printers = no
   vfs objects = catia fruit streams_xattr
   fruit:metadata = stream
   fruit:model = MacSamba
   usershare allow guests = yes
   wins support = yes
   socket options = TCP_NODELAY IPTOS_LOWDELAY
   server role = standalone server
   idmap config * : backend = tdb
[data]
   path = /srv/data
   vfs objects = recycle shadow_copy2 full_audit
   recycle:keeptree = yes
   recycle:versions = yes
   full_audit:success = mkdir rename unlinkat fsync
   full_audit:failure = all
   full_audit:prefix = %u
   inherit acls = yes
[scans]
   path = /srv/scans/%U
   writable = yes
   preexec = /bin/true
"""


def test_no_line_is_lost(tmp_path: Path) -> None:
    """Each is carried over, or named in a comment with a reason."""
    file = tmp_path / "smb.conf"
    file.write_text(HOME_SERVER)
    text, values = converted(file)
    assert values["discovery"] == {"workgroup": "HOME", "model": "MacSamba"}
    (data,) = values["share"]
    assert data["audit"] and data["audit_events"] == ["create", "rename", "delete", "denied"]
    assert data["recycle"] and next(iter(data)) == "name"
    for line in (line.strip() for line in HOME_SERVER.splitlines() if " = " in line):
        key = line.split(" = ")[0]
        if key in (
            "workgroup",
            "fruit:model",
            "path",
            "writable",
            "vfs objects",
            "full_audit:success",
            "full_audit:failure",
        ):
            continue
        assert f"# {line}: " in text or f"#     {line}" in text, line
    assert "# full_audit:success = fsync: not carried over: this operation is not recorded" in text
    assert data["snapshots"] == ".snapshots/@GMT-%Y.%m.%d-%H.%M.%S"
    for module in ("catia", "streams_xattr"):
        assert f"# vfs objects = {module}: not carried over: " in text
    assert "[scans]: path = /srv/scans/%U: not carried over: a share has one folder for all" in text
    assert "#     preexec = /bin/true" in text


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["shadow:snapdir = /mnt/snaps/", "shadow:format = %Y-%m-%d_%H%M%S"], "/mnt/snaps/%Y-%m-%d_%H%M%S"),
        (["shadow:snapdir = .zfs/snapshot", "shadow:sort = desc"], ".zfs/snapshot/@GMT-%Y.%m.%d-%H.%M.%S"),
        (["shadow:format = %q"], None),
        (["shadow:format = @GMT-%Y.%m.%d-%H.%M.%S", "shadow:basedir = /srv"], None),
    ],
)
def test_snapshots_of_shadow_copy2(tmp_path: Path, lines: list[str], expected: str | None) -> None:
    file = tmp_path / "smb.conf"
    more = "\n".join(["[data]", "path = /srv/data", "vfs objects = shadow_copy2", "shadow:localtime = yes", *lines])
    file.write_text(f"[global]\n{more}\n")
    text, values = converted(file)
    (data,) = values["share"]
    assert data.get("snapshots") == expected
    assert data.get("snapshot_times") == ("local" if expected else None)
    assert ("# vfs objects = shadow_copy2: not carried over: " in text) is (expected is None)


MACS = """[global]
   vfs objects = catia fruit streams_xattr
   fruit:metadata = netatalk
[papers]
   path = /srv/papers
[backups]
   path = /srv/backups
   fruit:time machine = yes
   fruit:time machine max size = 2 T
[plain]
   path = /srv/plain
   vfs objects = streams_xattr
   fruit:time machine = yes
"""


def test_shares_for_macs_stay_so(tmp_path: Path) -> None:
    file = tmp_path / "smb.conf"
    file.write_text(MACS)
    text, values = converted(file)
    papers, backups, plain = values["share"]
    assert papers["macos"] and "time_machine" not in papers
    assert backups["time_machine"] and backups["time_machine_max_size"] == 2 << 40 and "macos" not in backups
    assert not {"macos", "time_machine"} & plain.keys()
    assert "# fruit:metadata = netatalk: not carried over: metadata are streams here" in text


def test_the_result_is_a_configuration(conf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "import-smb-conf", str(conf)]) == 0
    file = tmp_path / "smb.toml"
    file.write_text(capsys.readouterr().out)
    problems = Problems()
    assert len(read_document(file, problems).share) == 4
    assert problems.found == []


@pytest.mark.skipif(shutil.which("testparm") is None, reason="Samba's testparm is not installed")
def test_testparm_sees_the_same_shares(conf: Path) -> None:
    shown = subprocess.run(["testparm", "-s", str(conf)], capture_output=True, text=True, check=True, timeout=60).stdout
    judge = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",), comment_prefixes=("#",))
    judge.read_string(shown)
    left_out = {"global", "homes", "printers", "macro"}
    expected = {name: judge[name] for name in judge.sections() if name not in left_out}
    _, values = converted(conf)
    assert {share["name"]: share["path"] for share in values["share"]} == {
        name: section["path"] for name, section in expected.items()
    }
    for share in values["share"]:
        section = expected[share["name"]]
        # Read only is Samba's default, which testparm leaves out.
        inherited = judge["global"].get("read only", "yes")
        assert share.get("read_only", False) == (section.get("read only", inherited).lower() == "yes"), share
        assert share.get("guest", False) == (section.get("guest ok", "no").lower() == "yes")


@pytest.mark.parametrize("text", ["no section = 1", "[global]\nnonsense"])
def test_other_files(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "other"
    file.write_text(text)
    with pytest.raises(SambaError, match="neither a section nor a parameter"):
        convert(file)
    assert main(["config", "import-smb-conf", str(file)]) == 2
    assert main(["config", "import-smb-conf", str(tmp_path / "missing")]) == 2
    assert "No such file" in capsys.readouterr().err
