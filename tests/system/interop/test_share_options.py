"""Options of shares that administrators know, with smbclient: veto files, masks, case, recycle, homes, connections."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import shutil
import stat
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab.served import Served, open_up, served

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket.smbconnection import SMBConnection

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed"),
]
ACTOR = pwd.getpwuid(os.geteuid()).pw_name if os.geteuid() else "daemon"


@contextmanager
def sharing(tmp_path: Path, *lines: str, more: str = "") -> Iterator[tuple[Served, Path]]:
    """A server with one share, whose options are ``lines``."""
    folder = tmp_path / "share"
    folder.mkdir(exist_ok=True)
    if not os.geteuid():
        os.chown(folder, pwd.getpwnam(ACTOR).pw_uid, pwd.getpwnam(ACTOR).pw_gid)
    file = tmp_path / "smb.toml"
    file.touch(0o600)
    users = "".join(f'[[user]]\nname = "{name}"\npassword = "pw"\n' for name in ("alice", "bob"))
    file.write_text("\n".join(('[[share]]\nname = "data"\npath = "share"', *lines, more, users)))
    with served(tmp_path, "--config", str(file)) as server:
        yield server, folder


def smbclient(server: Served, commands: str, share: str = "data", user: str = "alice", options: str = "") -> str:
    """What smbclient says, whether it succeeds or not."""
    return subprocess.run(
        ["smbclient", f"//127.0.0.1/{share}", "-p", str(server.port), f"-U{user}%pw", *options.split(), "-c", commands],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    ).stdout


def listed(text: str) -> set[str]:
    return set(re.findall(r"^  (\S.*?) +[ADHNRS]+ +\d+  ", text, re.MULTILINE)) - {".", ".."}


def test_veto_files(tmp_path: Path) -> None:
    """They are neither listed nor opened nor made, nor reached by other names, in any folder."""
    with sharing(tmp_path, 'veto_files = ["*.exe", "secret"]') as (server, folder):
        (folder / "sub" / "secret").mkdir(parents=True)
        (folder / "sub" / "secret" / "inside").write_text("x")
        (folder / "virus.EXE").write_text("x")
        (folder / "plain").write_text("x")
        (folder / "link").symlink_to("sub/secret/inside")
        os.chmod(folder / "sub", 0o777)
        assert listed(smbclient(server, "ls")) >= {"plain", "sub"}
        assert "virus" not in smbclient(server, "ls")
        assert listed(smbclient(server, "ls sub\\*")) == set()
        for command in (
            "get virus.EXE -",
            "get virus.exe -",
            "get sub\\Secret\\inside -",
            "get link -",
            "del virus.EXE",
        ):
            assert re.search("NT_STATUS_(OBJECT_NAME|OBJECT_PATH|NO_SUCH)|STOPPED_ON", smbclient(server, command)), (
                command
            )
        assert (folder / "virus.EXE").exists()
        for command in ("put /etc/hostname new.exe", "mkdir secret", "rename plain plain.exe", "hardlink plain b.exe"):
            assert "NT_STATUS_ACCESS_DENIED" in smbclient(server, command), command
        assert "NT_STATUS_DIRECTORY_NOT_EMPTY" in smbclient(server, "rmdir sub")
        assert sorted(os.listdir(folder)) == ["link", "plain", "sub", "virus.EXE"]


def test_modes_of_new_files(tmp_path: Path) -> None:
    with sharing(
        tmp_path,
        'create_mask = "0666"\ndirectory_mask = "0775"\nforce_create_mode = "0100"\nforce_directory_mode = "0002"',
    ) as (server, folder):
        smbclient(server, "put /etc/hostname file; mkdir folder; put /etc/hostname folder\\inner")
        modes = {name: stat.S_IMODE((folder / name).stat().st_mode) for name in ("file", "folder", "folder/inner")}
        assert modes == {"file": 0o766, "folder": 0o777, "folder/inner": 0o766}
        os.chmod(folder, 0o2777)
        smbclient(server, "mkdir group")
        assert stat.S_IMODE((folder / "group").stat().st_mode) == 0o2777
    with sharing(tmp_path, 'create_mask = "600"') as (server, folder):
        smbclient(server, "put /etc/hostname narrow")
        assert stat.S_IMODE((folder / "narrow").stat().st_mode) == 0o600
        assert stat.S_IMODE((folder / "file").stat().st_mode) == 0o766


def test_names_that_differ_in_case(tmp_path: Path) -> None:
    with sharing(tmp_path, "case_sensitive = true") as (server, folder):
        shown = smbclient(server, "put /etc/hostname a; put /etc/passwd A; mkdir B; mkdir b; rename a c; ls")
        assert listed(shown) == {"A", "B", "b", "c"}
        assert "NT_STATUS_OBJECT_NAME_NOT_FOUND" in smbclient(server, "get C -")
        assert "NT_STATUS_OBJECT_NAME_COLLISION" in smbclient(server, "mkdir B")
        assert (folder / "A").read_bytes() == Path("/etc/passwd").read_bytes()
    with sharing(tmp_path) as (server, folder):
        assert "NT_STATUS_OBJECT_NAME_NOT_FOUND" not in smbclient(server, "get C -")


def test_recycle(tmp_path: Path) -> None:
    """Deleted files keep their paths, below a folder for each user. What is deleted there, is gone."""
    options = 'recycle = true\nrecycle_exclude = ["*.tmp"]\nrecycle_max_size = 1000000'
    with sharing(tmp_path, options) as (server, folder):
        (tmp_path / "large").write_bytes(bytes(1_000_001))
        smbclient(server, "mkdir sub; put /etc/hostname sub\\file; del sub\\file")
        smbclient(server, "put /etc/passwd sub\\file; del sub\\file; rmdir sub")
        smbclient(server, f"put /etc/hostname x.tmp; del x.tmp; put {tmp_path}/large large; del large")
        smbclient(server, "put /etc/hostname bobs; del bobs", user="bob")
        found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert found == {
            ".recycle/alice/sub/file",
            ".recycle/alice/sub/Copy #1 of file",
            ".recycle/bob/bobs",
        }
        assert (folder / ".recycle/alice/sub/Copy #1 of file").read_bytes() == Path("/etc/passwd").read_bytes()
        assert stat.S_IMODE((folder / ".recycle/alice").stat().st_mode) & 0o077 == 0 or os.geteuid()
        smbclient(server, "rename .recycle\\alice\\sub\\file back; del .recycle\\alice\\sub\\Copy*")
        assert (folder / "back").exists()
        assert not (folder / ".recycle/alice/sub/Copy #1 of file").exists()


def test_what_cannot_be_kept_is_not_deleted(tmp_path: Path) -> None:
    """The server does not follow a symlink that a user made. smbclient is told, and the log says what to do."""
    with sharing(tmp_path, "recycle = true") as (server, folder):
        (folder / "locked").mkdir(mode=0o755)
        (folder / ".recycle").rmdir()
        (folder / ".recycle").symlink_to("locked")
        said = smbclient(server, "put /etc/hostname file; del file; put /etc/hostname x; rm x")
        assert said.count("NT_STATUS_CANNOT_DELETE") == 2
        assert os.listdir(folder / "locked") == []
        assert (folder / "file").exists()
        assert "a deletion is refused, as the file cannot be kept: recycle folder .recycle: " in server.log()


@pytest.mark.skipif(os.geteuid() != 0, reason="folders of several users of the host")
def test_recycle_without_the_rights_of_root(tmp_path: Path) -> None:
    """As the packaged unit runs: an unprivileged user who may act as others, and who may not write to their folders."""
    (tmp_path / "share").mkdir()
    (tmp_path / "state").mkdir()
    shutil.chown(tmp_path / "share", "games", "games")
    shutil.chown(tmp_path / "state", "nobody")
    (tmp_path / "share").chmod(0o2775)
    open_up(tmp_path)
    (tmp_path / "smb.toml").touch(0o600)
    (tmp_path / "smb.toml").write_text(
        '[server]\nrun_as = "nobody"\n[[share]]\nname = "data"\npath = "share"\nrecycle = true\n'
        '[[user]]\nname = "alice"\npassword = "pw"\nunix_user = "games"\n'
    )
    with served(tmp_path, "--config", str(tmp_path / "smb.toml")) as server:
        assert "NT_STATUS" not in smbclient(server, "put /etc/hostname a.txt; rm a.txt")
        kept = tmp_path / "share/.recycle/alice/a.txt"
        assert kept.read_bytes() == Path("/etc/hostname").read_bytes()
        assert kept.parent.owner() == "games"
        assert kept.parent.parent.owner() == "nobody"


@pytest.mark.skipif(os.geteuid() != 0, reason="the owner of the folder is not the server")
def test_a_start_without_a_recycle_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "share" / ".recycle").mkdir()
    shutil.chown(tmp_path / "share" / ".recycle", "games")
    with sharing(tmp_path, "recycle = true") as (server, _):
        said = "\n".join(server.lines) + server.log()
        assert "share data: recycle folder .recycle: made by somebody else (uid 5)" in said
        assert "set recycle = false" in said


def test_homes(tmp_path: Path) -> None:
    homes = tmp_path / "homes"
    for name in ("alice", "carol"):
        (homes / name).mkdir(parents=True)
        (homes / name).chmod(0o777)
        (homes / name / f"of-{name}").write_text("x")
    with sharing(tmp_path, more='[homes]\npath = "homes/{user}"\ncomment = "home"\nveto_files = ["hidden"]') as (
        server,
        _,
    ):
        (homes / "alice" / "hidden").write_text("x")
        assert "alice" not in smbclient(server, "", share="IPC$", options="-L 127.0.0.1")
        assert listed(smbclient(server, "ls", share="ALICE")) == {"of-alice"}
        assert "of-alice" in smbclient(server, "put /etc/hostname mine; ls", share="alice")
        assert (homes / "alice" / "mine").exists()
        assert "NT_STATUS_ACCESS_DENIED" in smbclient(server, "ls", share="alice", user="bob")
        for share in ("bob", "carol", "homes"):
            assert "NT_STATUS_BAD_NETWORK_NAME" in smbclient(server, "ls", share=share, user="bob"), share


def test_a_limit_of_connections(tmp_path: Path) -> None:
    with sharing(tmp_path, "max_connections = 1") as (server, _):

        async def hold() -> str:
            async with server.tree("alice"):
                return await asyncio.to_thread(smbclient, server, "ls", user="bob")

        assert "NT_STATUS_REQUEST_NOT_ACCEPTED" in asyncio.run(hold())
        deadline = time.monotonic() + 10
        while "NT_STATUS" in smbclient(server, "ls", user="bob"):
            assert time.monotonic() < deadline


def test_comment_and_its_other_name(tmp_path: Path) -> None:
    for key in ("comment", "remark"):
        with sharing(tmp_path, f'{key} = "what it is"') as (server, _):
            assert re.search(r"data +Disk +what it is", smbclient(server, "", share="IPC$", options="-L 127.0.0.1"))


@pytest.mark.parametrize("allowed", [True, False])
def test_a_folder_in_which_a_file_is_open_is_renamed_if_the_share_allows_it(tmp_path: Path, allowed: bool) -> None:
    """impacket has the file open, and goes on with it; smbclient renames the folder, and deletes below the new name.
    MS-FSA 2.1.4.2 refuses."""
    with sharing(tmp_path, f"rename_open_folders = {str(allowed).lower()}") as (server, folder):
        smbclient(server, "mkdir old")
        holder = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=server.port)
        holder.login("alice", "pw")
        tree = holder.connectTree("data")
        file = holder.createFile(tree, "old\\f")
        holder.writeFile(tree, file, b"before")
        said = smbclient(server, "rename old new")
        assert ("ACCESS_DENIED" in said) != allowed
        name = "new" if allowed else "old"
        holder.writeFile(tree, file, b" after", 6)
        assert holder.readFile(tree, file) == b"before after"
        holder.closeFile(tree, file)
        assert (folder / name / "f").read_bytes() == b"before after"
        assert smbclient(server, f"del {name}\\f; rmdir {name}").strip() == ""
        assert listed(smbclient(server, "ls")) == set()
        holder.close()
