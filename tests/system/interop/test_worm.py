"""Shares whose files are retained (``worm``): smbclient and impacket, beside Samba's vfs_worm where the rules agree."""

from __future__ import annotations

import io
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from impacket.smb3 import SessionError as RawSessionError
from impacket.smb3structs import FILE_OPEN, FILE_OPEN_IF
from impacket.smbconnection import SessionError, SMBConnection

from tests.lab.served import Served, open_up, served
from tools.access_differential import servers

pytestmark = pytest.mark.interop
GRACE = 2
MAXIMUM_ALLOWED = 0x02000000
SHARED = 7
DENIED = "NT_STATUS_ACCESS_DENIED"
LOGIN = servers.LOGINS[0]
OWNER = f'unix_user = "{LOGIN.name}"\n' if os.geteuid() == 0 else ""


@contextmanager
def worm_share(tmp_path: Path, *lines: str) -> Iterator[tuple[Served, Path]]:
    folder = tmp_path / "share"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    open_up(tmp_path)
    file = tmp_path / "smb.toml"
    file.touch(0o600)
    text = ('[[share]]\nname = "data"\npath = "share"\nworm = true', f'worm_grace_period = "{GRACE}s"', *lines, "")
    file.write_text("\n".join(text) + f'[[user]]\nname = "{LOGIN.name}"\npassword = "{LOGIN.password}"\n{OWNER}')
    with served(tmp_path, "--config", str(file)) as server:
        yield server, folder


def smbclient(port: int, commands: str, local: Path) -> str:
    return subprocess.run(
        ["smbclient", "//127.0.0.1/data", "-p", str(port), f"-U{LOGIN.name}%{LOGIN.password}", "-c", commands],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=local,
    ).stdout


def later(*paths: Path) -> None:
    """Wait until the files are retained: what counts is when they were changed, by the clock of the host."""
    while time.time() - max(os.stat(path).st_ctime for path in paths) < GRACE + 0.05:
        time.sleep(0.05)


def status(text: str) -> str:
    found = re.search(r"NT_STATUS_\w+", text)
    return found[0] if found else "done"


OPERATIONS = {
    "read": "get file -",
    "list": "ls file",
    "overwrite": "put local file",
    "delete": "del file",
    "rename": "rename file away",
    "replace": "put local other; rename other file -f",
    "attributes": "setmode file +h",
    "times": "utimes file 2001:01:01-00:00:00 -1 -1 -1",
    "attribute": "setea file name value",
    "stream": "put local file:stream",
    "new file": "put local new",
    "new folder": "mkdir newfolder",
    "hard link": "hardlink file link",
}


def outcomes(port: int, folder: Path, local: Path) -> dict[str, str]:
    """What each operation gets on a retained file."""
    said = [smbclient(port, "put local file", local)]
    while not (folder / "file").exists() and len(said) < 20:  # smbd accepts connections before it can log on users
        time.sleep(0.5)
        said.append(smbclient(port, "put local file", local))
    assert (folder / "file").exists(), said[-1]
    later(folder / "file")
    return {name: status(smbclient(port, command, local)) for name, command in OPERATIONS.items()}


@pytest.mark.skipif(bool(servers.missing()), reason=servers.missing())
def test_the_same_is_refused_as_by_samba(tmp_path: Path) -> None:
    (tmp_path / "local").write_text("content")
    theirs_options = f"vfs objects = worm acl_xattr streams_xattr\nworm:grace_period = {GRACE}\n"
    with (
        worm_share(tmp_path) as (server, folder),
        servers.running_samba(tmp_path / "samba", theirs_options) as (port, their_folder),
    ):
        ours = outcomes(server.port, folder, tmp_path)
        theirs = outcomes(port, their_folder, tmp_path)
        assert (folder / "file").read_text() == "content"
    assert ours == theirs
    assert {name for name, found in ours.items() if found == "done"} == {"read", "list", "new file", "new folder"}
    assert set(ours.values()) == {"done", DENIED}


def test_smbclient_before_and_after(tmp_path: Path) -> None:
    """A file is free until its time comes, then nobody changes it, over a restart as well, and at last it can go."""
    (tmp_path / "local").write_text("content")
    retention = 'worm_retention = "6s"'
    with worm_share(tmp_path, retention) as (server, folder):
        said = smbclient(server.port, "put local file; put local file; rename file a; rename a file; mkdir d", tmp_path)
        assert "NT_STATUS" not in said
        assert "NT_STATUS" not in smbclient(server.port, "put local gone; del gone; put local d\\inner", tmp_path)
        later(folder / "file", folder / "d/inner")
        refused = "put local file; del file; rename file a; rename d e; del d\\inner; deltree d"
        assert smbclient(server.port, refused, tmp_path).count(DENIED) == 6
    os.chmod(folder / "file", 0o666)
    with worm_share(tmp_path, retention) as (server, folder):
        assert DENIED in smbclient(server.port, "put local file", tmp_path)
        changed = os.stat(folder / "d/inner").st_mtime
        while time.time() - changed < 6.1:
            time.sleep(0.1)
        refused = "put local file; rename file a; put local file:stream; setmode file +h"
        assert smbclient(server.port, refused, tmp_path).count(DENIED) == 5
        assert "NT_STATUS" not in smbclient(server.port, "del file; deltree d", tmp_path)
        assert os.listdir(folder) == [".smb3server"] or not os.listdir(folder)


def refused(work: Callable[..., object], *arguments: object, **options: object) -> bool:
    try:
        work(*arguments, **options)
    except SessionError as error:
        assert error.getErrorCode() == 0xC0000022
        return True
    except RawSessionError as error:
        assert error.get_error_code() == 0xC0000022
        return True
    return False


def test_impacket_with_a_file_that_it_had_open(tmp_path: Path) -> None:
    with worm_share(tmp_path) as (server, folder):
        connection = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=server.port)
        connection.login(LOGIN.name, LOGIN.password)
        connection.putFile("data", "file", io.BytesIO(b"content").read)
        tree = connection.connectTree("data")
        file = connection.openFile(tree, "file", MAXIMUM_ALLOWED, SHARED, creationDisposition=FILE_OPEN)
        connection.writeFile(tree, file, b"CON")
        stream = connection.openFile(tree, "file:stream", MAXIMUM_ALLOWED, SHARED, creationDisposition=FILE_OPEN_IF)
        connection.writeFile(tree, stream, b"in a stream")
        later(folder / "file")
        assert refused(connection.writeFile, tree, file, b"no")
        assert refused(connection.writeFile, tree, stream, b"no")
        smb = connection.getSMBServer()
        for level, value in ((20, bytes(8)), (19, bytes(8)), (13, b"\1"), (4, b"\1" + bytes(39))):
            assert refused(smb.setInfo, tree, file, value, infoType=1, fileInfoClass=level), level
        assert connection.readFile(tree, file) == b"CONtent"
        assert connection.readFile(tree, stream) == b"in a stream"
        connection.closeFile(tree, stream)
        connection.closeFile(tree, file)
        for access in (0x2, 0x4, 0x10, 0x100, 0x10000, 0x40000, 0x80000):
            assert refused(connection.openFile, tree, "file", access, creationDisposition=FILE_OPEN), hex(access)
        again = connection.openFile(tree, "file", MAXIMUM_ALLOWED, creationDisposition=FILE_OPEN)
        assert refused(connection.writeFile, tree, again, b"no")
        connection.close()
        assert (folder / "file").read_bytes() == b"CONtent"
