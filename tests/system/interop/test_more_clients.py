"""rclone, GNOME's file manager, pysmb, scapy, nmap, and names as smbprotocol's own tests write them."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import random
import re
import shutil
import subprocess
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.command import Served
from tests.lab.port_445 import HOST, PORT, needing
from tools.support.server_process import running

# smbprotocol leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from smb.SMBConnection import SMBConnection
    from smbprotocol.connection import Connection
    from smbprotocol.exceptions import ObjectPathNotFound
    from smbprotocol.open import (
        CreateDisposition,
        CreateOptions,
        FilePipePrinterAccessMask,
        ImpersonationLevel,
        Open,
        ShareAccess,
    )
    from smbprotocol.session import Session
    from smbprotocol.tree import TreeConnect


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@pytest.fixture(autouse=True)
def collect_sockets() -> Iterator[None]:
    """Collect leaked sockets here, where they are expected, and not in somebody else's test."""
    yield
    gc.collect()


def run(*command: str, **more: str) -> str:
    """Return what ``command`` prints, on both streams. ``more`` is added to its environment."""
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env=dict(os.environ) | more,
        stdin=subprocess.DEVNULL,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files and folders with names and sizes of all kinds."""
    made = tmp_path / "folder"
    (made / "deep" / "er").mkdir(parents=True)
    (made / "ein Ärger & mehr").mkdir()
    contents = random.Random(7)
    (made / "empty").write_bytes(b"")
    (made / "large").write_bytes(contents.randbytes(9_000_001))
    (made / "deep" / "er" / "with spaces.txt").write_bytes(b"a")
    for number in range(40):
        (made / "ein Ärger & mehr" / f"{number} x{'y' * number}").write_bytes(contents.randbytes(number * 100))
    return made


@needs("rclone")
def test_rclone_copies_checks_moves_and_purges(served: Served, folder: Path, tmp_path: Path) -> None:
    """It is go-smb2 that it speaks."""
    config = tmp_path / "rclone.conf"
    password = run("rclone", "obscure", "pw").strip()
    config.write_text(f"[s]\ntype = smb\nhost = 127.0.0.1\nport = {served.port}\nuser = u\npass = {password}\n")

    def rclone(*words: str) -> str:
        return run("rclone", *words, RCLONE_CONFIG=str(config))

    assert "share" in rclone("lsd", "s:")
    rclone("copy", str(folder), "s:share/rclone/to")
    assert tree(served.share / "rclone" / "to") == tree(folder)
    assert "0 differences found" in rclone("check", str(folder), "s:share/rclone/to", "--download")
    (folder / "large").write_bytes(b"less")
    (folder / "empty").unlink()
    rclone("sync", str(folder), "s:share/rclone/to")
    assert tree(served.share / "rclone" / "to") == tree(folder)
    rclone("moveto", "s:share/rclone/to", "s:share/rclone/moved")
    assert tree(served.share / "rclone" / "moved") == tree(folder)
    rclone("copy", "s:share/rclone/moved", str(tmp_path / "back"))
    assert tree(tmp_path / "back") == tree(folder)
    rclone("purge", "s:share/rclone/moved")
    assert not (served.share / "rclone" / "moved").exists()


@needs("gio", "dbus-run-session")
@pytest.mark.skipif(not Path("/usr/libexec/gvfsd-smb").exists(), reason="there is no gvfsd-smb (Debian: gvfs-backends)")
def test_gnome_mounts_copies_renames_and_removes(served: Served, tmp_path: Path) -> None:
    """Nautilus does all this by gvfs, as ``gio`` does."""
    place = f"smb://127.0.0.1:{served.port}/share"
    contents = random.Random(8).randbytes(3_000_001)
    (tmp_path / "file").write_bytes(contents)
    (tmp_path / "runtime").mkdir(mode=0o700)
    script = f"""set -e
printf 'u\\nWORKGROUP\\npw\\n' | gio mount {place}
gio mkdir {place}/gnome
gio copy {tmp_path}/file {place}/gnome/file
gio list {place}/gnome
gio info {place}/gnome/file
gio cat {place}/gnome/file | cmp - {tmp_path}/file && echo the same
gio rename {place}/gnome/file other
gio move {place}/gnome/other {place}/gnome/third
gio remove {place}/gnome/third
gio remove {place}/gnome
gio mount -u {place}
"""
    shown = run("dbus-run-session", "--", "sh", "-c", script, XDG_RUNTIME_DIR=str(tmp_path / "runtime"))
    assert f"standard::size: {len(contents)}" in shown
    assert "the same" in shown
    assert not (served.share / "gnome").exists()


@pytest.mark.parametrize("signing", ["never", "when supported", "when required"])
def test_pysmb_which_knows_2_0_2_only(served: Served, signing: str) -> None:
    """The lowest dialect of this server is 2.0.2."""
    options = {"never": 0, "when supported": 1, "when required": 2}[signing]
    contents = random.Random(9).randbytes(3_000_001)
    client = SMBConnection("u", "pw", "me", "127.0.0.1", is_direct_tcp=True, sign_options=options)
    assert client.connect("127.0.0.1", served.port)
    with contextlib.closing(client):
        assert [entry.name for entry in client.listShares()] == ["IPC$", "share"]
        client.createDirectory("share", "pysmb")
        assert client.storeFile("share", "pysmb/a", io.BytesIO(contents)) == len(contents)
        client.rename("share", "pysmb/a", "pysmb/b")
        assert [entry.filename for entry in client.listPath("share", "pysmb")] == [".", "..", "b"]
        assert client.getAttributes("share", "pysmb/b").file_size == len(contents)
        assert client.getSecurity("share", "pysmb/b").owner is not None
        back = io.BytesIO()
        client.retrieveFile("share", "pysmb/b", back)
        assert back.getvalue() == contents
        assert client.echo(b"hello") == b"hello"
        client.deleteFiles("share", "pysmb/*")
        client.deleteDirectory("share", "pysmb")
    assert not (served.share / "pysmb").exists()


SCAPY = """
import sys
from pathlib import Path
from scapy.layers.smbclient import smbclient
port, dialect, encrypted, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True", sys.argv[4]
options = {"MAX_DIALECT": dialect, "REQUIRE_ENCRYPTION": encrypted}
client = smbclient("127.0.0.1", "WORKGROUP\\\\u", password="pw", port=port, cli=False, **options)
print("shares", sorted(share[0] for share in client.shares()))
client.use("share")
client.put(name)
print("files", [entry[0] for entry in client.ls()])
print("the same", client.cat("scapy") == Path(name).read_bytes())
client.rm("scapy")
client.close()
"""


@pytest.mark.parametrize(
    ("dialect", "encrypted"),
    [(0x0202, False), (0x0302, False), (0x0311, True)],
)
def test_scapy_plain_and_encrypted(served: Served, tmp_path: Path, dialect: int, encrypted: bool) -> None:
    """Its client has NTLM, signing and encryption of its own."""
    file = tmp_path / "scapy"
    file.write_bytes(random.Random(10).randbytes(200_001))
    shown = run(sys.executable, "-c", SCAPY, str(served.port), str(dialect), str(encrypted), str(file))
    assert "shares ['IPC$', 'share']" in shown
    assert re.search(r"^files .*'scapy'", shown, re.MULTILINE)
    assert "the same True" in shown
    assert not (served.share / "scapy").exists()


ROOT, NMAP = needing("nmap")[1:]
SCRIPTS = "smb-protocols,smb2-capabilities,smb2-security-mode,smb2-time"


@ROOT
@NMAP
@pytest.mark.parametrize(
    ("keys", "dialects", "signing"),
    [
        ("", ["210", "300", "302", "311"], "Message signing enabled but not required"),
        (
            'min_dialect = "2.0.2"\nmax_dialect = "3.0"\n',
            ["202", "210", "300"],
            "Message signing enabled but not required",
        ),
        ('min_dialect = "3.1.1"\nrequire_signing = true\n', ["311"], "Message signing enabled and required"),
    ],
    ids=["as it comes", "old", "strict"],
)
def test_nmap_finds_what_is_configured(tmp_path: Path, keys: str, dialects: list[str], signing: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    config = f'[server]\nlisten = ["{HOST}"]\nport = {PORT}\n{keys}'
    config += f'[[share]]\nname = "data"\npath = "{data}"\n[[user]]\nname = "u"\npassword = "pw"\n'
    with running(tmp_path, config):
        shown = run("nmap", "-Pn", "-n", f"-p{PORT}", "--script", SCRIPTS, HOST)
    protocols = re.search(r"smb-protocols:\s*\n\|\s+dialects:\s*\n((?:\|[ _]\s+[\d.]+.*\n)+)", shown)
    assert protocols is not None, shown
    assert re.findall(r"\d+", protocols[1]) == dialects
    assert signing in shown
    assert re.search(r"smb2-time: *\n\|\s+date: 20\d\d-", shown)
    assert ("Multi-credit operations" in shown) == (dialects[-1] >= "210")
    # nmap does not ask for it, so it is not offered [MS-SMB2 3.3.5.4].
    assert "Multiple Channel support" not in shown


@pytest.fixture
def files(served: Served) -> Iterator[Callable[..., Open]]:
    """Open a name by smbprotocol, made if it is not there."""
    connection = Connection(uuid.uuid4(), "127.0.0.1", served.port)
    connection.connect()
    session = Session(connection, "u", "pw")
    session.connect()
    share = TreeConnect(session, r"\\127.0.0.1\share")
    share.connect()

    def opened(name: str, options: int = CreateOptions.FILE_NON_DIRECTORY_FILE) -> Open:
        handle = Open(share, name)
        handle.create(
            ImpersonationLevel.Impersonation,
            FilePipePrinterAccessMask.MAXIMUM_ALLOWED,
            0,
            ShareAccess.FILE_SHARE_READ,
            CreateDisposition.FILE_OPEN_IF,
            options,
        )
        return handle

    yield opened
    connection.disconnect()


def test_several_backslashes_are_one(served: Served, files: Callable[..., Open]) -> None:
    """smbprotocol's and go-smb2's own tests name files so, which pass against Windows and Samba."""
    files("doubled", CreateOptions.FILE_DIRECTORY_FILE).close()
    files("doubled\\\\\\file").close()
    assert (served.share / "doubled" / "file").exists()
    with pytest.raises(ObjectPathNotFound):
        files("not there\\\\file")
