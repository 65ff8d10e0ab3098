"""Previous versions with clients that nobody here wrote, and beside Samba, whose module shadow_copy2 serves the same
snapshots of btrfs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from smb3server.backends.snapshot_names import filetime_of, parse_token
from tests.lab import btrfs
from tests.lab.served import open_up
from tools.access_differential import servers
from tools.support import server_process

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket import smb3
    from impacket.smb3 import SessionError

pytestmark = [
    pytest.mark.interop,
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed"),
    pytest.mark.skipif(bool(btrfs.missing()), reason=btrfs.missing()),
]
OLD, NEW = "@GMT-2024.01.01-10.00.00", "@GMT-2024.02.01-10.00.00"
USER = servers.LOGINS[0]


class Pair(NamedTuple):
    own: int
    samba: int | None
    """None: smbd is not installed."""
    share: Path


def fill(share: Path) -> None:
    """A share with two snapshots, between which everything has changed."""
    (share / ".snapshots").mkdir()
    (share / "dir" / "deep").mkdir(parents=True)
    (share / "changed.txt").write_text("old")
    (share / "gone.txt").write_text("only in the old one")
    (share / "dir" / "same.txt").write_text("same")
    (share / "dir" / "deep" / "moved.txt").write_text("moved")
    (share / "secret.txt").write_text("always secret")
    (share / "closed.txt").write_text("readable then")
    (share / "UPPER.txt").write_text("case")
    (share / "link").symlink_to("dir")
    (share / "large").write_bytes(os.urandom(3 << 20))
    for folder, names, files in os.walk(share):
        for name in (*names, *files):
            path = Path(folder) / name
            if not path.is_symlink():
                path.chmod(0o777 if path.is_dir() else 0o666)
    share.chmod(0o777)
    (share / "secret.txt").chmod(0o600)
    btrfs.make_snapshot(share, share / ".snapshots" / OLD)
    (share / "changed.txt").write_text("changed by now")
    (share / "gone.txt").unlink()
    (share / "dir" / "deep" / "moved.txt").rename(share / "dir" / "moved.txt")
    (share / "closed.txt").chmod(0o600)
    (share / "added.txt").write_text("new")
    btrfs.make_snapshot(share, share / ".snapshots" / NEW)


def own_config(share: Path, pattern: str) -> str:
    return (
        f'[server]\nlisten = ["127.0.0.1"]\nport = 0\n[[share]]\nname = "data"\npath = "{share}"\n'
        f'snapshots = "{pattern}"\n[[user]]\nname = "{USER.name}"\npassword = "{USER.password}"\n'
        f'unix_user = "{USER.name}"\n'
    )


@contextmanager
def own(folder: Path, share: Path, pattern: str) -> Iterator[int]:
    folder.mkdir()
    with server_process.running(folder, own_config(share, pattern)) as server:
        yield server.port
        assert "Traceback" not in server.log_text(), server.log_text()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("previous")
    open_up(folder)
    with btrfs.mounted(folder) as place:
        share = place / "share"
        btrfs.make_subvolume(share)
        fill(share)
        with own(folder / "own", share, ".snapshots/@GMT-%Y.%m.%d-%H.%M.%S") as port:
            if servers.missing():
                yield Pair(port, None, share)
                return
            options = (
                f"[old]\npath = {share}\nread only = no\nvfs objects = shadow_copy2 streams_xattr\n"
                "shadow:snapdir = .snapshots\nshadow:sort = desc\nstreams_xattr:store_stream_type = yes\n"
            )
            with servers.running_samba(folder / "samba", options) as (samba, _):
                yield Pair(port, samba, share)


def smbclient(port: int, share: str, commands: str, *options: str, folder: Path | None = None) -> str:
    """What smbclient says, whether it succeeds or not."""
    return subprocess.run(
        [
            *("smbclient", f"//127.0.0.1/{share}", "-p", str(port), "-U", f"{USER.name}%{USER.password}"),
            *(*options, "-c", commands),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
    ).stdout


def listed(said: str) -> dict[str, str]:
    """Name and size of the entries in a listing."""
    return dict(re.findall(r"^  (\S.*?) +[ADHNRS]* +(\d+)  ", said, re.MULTILINE))


# With smbclient


def test_allinfo_lists_the_versions(pair: Pair) -> None:
    said = smbclient(pair.own, "data", "allinfo changed.txt")
    assert re.findall(r"^@GMT-\S+|^size: \d+", said, re.MULTILINE) == [NEW, "size: 14", OLD, "size: 3"]


def test_versions_are_read_and_listed(pair: Pair, tmp_path: Path) -> None:
    commands = f"get {OLD}\\gone.txt gone; get {OLD}\\large large; ls {OLD}\\dir\\deep\\*; ls {NEW}\\dir\\*"
    for protection in ("sign", "encrypt"):
        said = smbclient(pair.own, "data", commands, f"--client-protection={protection}", folder=tmp_path)
        assert (tmp_path / "gone").read_text() == "only in the old one"
        assert (tmp_path / "large").read_bytes() == (pair.share / "large").read_bytes()
        assert {"moved.txt": "5", "same.txt": "4", "deep": "0"}.items() <= listed(said).items()


def test_a_version_is_copied_back_on_the_server(pair: Pair) -> None:
    """smbclient's scopy sends FSCTL_SRV_COPYCHUNK."""
    said = smbclient(pair.own, "data", f"scopy {OLD}\\large back; scopy {OLD}\\gone.txt gone.txt")
    try:
        assert "NT_STATUS" not in said, said
        assert (pair.share / "gone.txt").read_text() == "only in the old one"
        assert (pair.share / "back").read_bytes() == (pair.share / "large").read_bytes()
    finally:
        for name in ("back", "gone.txt"):
            (pair.share / name).unlink(missing_ok=True)


def test_streams_and_descriptors_are_those_of_then(pair: Pair, tmp_path: Path) -> None:
    name = "@GMT-2024.03.05-10.00.00"
    for content in ("then", "now"):
        (tmp_path / content).write_text(content)
    file = pair.share / "streamed"
    smbclient(pair.own, "data", f"put {tmp_path}/then streamed; put {tmp_path}/then streamed:note; setmode streamed +h")
    btrfs.make_snapshot(pair.share, pair.share / ".snapshots" / name)
    try:
        smbclient(pair.own, "data", f"setmode streamed -h; put {tmp_path}/now streamed:note")
        said = smbclient(pair.own, "data", f"get {name}\\streamed:note note; allinfo {name}\\streamed", folder=tmp_path)
        assert (tmp_path / "note").read_text() == "then"
        assert "stream: [:note:$DATA], 4 bytes" in said
        assert re.search(r"^attributes: A?H", said, re.MULTILINE), said
        smbclient(pair.own, "data", "get streamed:note note", folder=tmp_path)
        assert (tmp_path / "note").read_text() == "now"
    finally:
        btrfs.remove(pair.share / ".snapshots" / name)
        file.unlink()


def test_case_and_links_in_a_version(pair: Pair, tmp_path: Path) -> None:
    smbclient(pair.own, "data", f"get {OLD}\\upper.TXT upper; get {OLD}\\LINK\\same.txt same", folder=tmp_path)
    assert (tmp_path / "upper").read_text() == "case"
    assert (tmp_path / "same").read_text() == "same"


def test_what_was_taken_away_is_not_read(pair: Pair, tmp_path: Path) -> None:
    """Once readable by all, by now by the owner alone."""
    said = smbclient(pair.own, "data", f"get {OLD}\\closed.txt closed; get {OLD}\\secret.txt secret", folder=tmp_path)
    assert said.count("NT_STATUS_ACCESS_DENIED") == 2
    assert not any(path.exists() and path.read_bytes() for path in (tmp_path / "closed", tmp_path / "secret"))


def test_a_snapshot_can_be_removed_after_its_use(pair: Pair, tmp_path: Path) -> None:
    """New ones are seen at once, removed ones are gone at once."""
    name = "@GMT-2024.03.01-10.00.00"
    (pair.share / "renewed").touch()
    for content in ("first", "second"):
        (pair.share / "renewed").write_text(content)
        (pair.share / "renewed").chmod(0o666)
        btrfs.make_snapshot(pair.share, pair.share / ".snapshots" / name)
        smbclient(pair.own, "data", f"get {name}\\renewed renewed", folder=tmp_path)
        assert (tmp_path / "renewed").read_text() == content
        assert name in smbclient(pair.own, "data", "allinfo renewed")
        btrfs.remove(pair.share / ".snapshots" / name)
        assert "OBJECT_NAME_NOT_FOUND" in smbclient(pair.own, "data", f"get {name}\\renewed renewed", folder=tmp_path)
        assert name not in smbclient(pair.own, "data", "allinfo renewed")


def test_times_that_btrfs_knows(pair: Pair, tmp_path: Path) -> None:
    """snapper has numbers for names: .snapshots/1/snapshot."""
    place = pair.share.parent / "snapper"
    (place / "1").mkdir(parents=True)
    began = int(time.time())
    btrfs.make_snapshot(pair.share, place / "1" / "snapshot")
    with own(tmp_path / "own", pair.share, f"{place}/*/snapshot") as port:
        said = smbclient(port, "data", "allinfo changed.txt")
        tokens = re.findall(r"^@GMT-\S+", said, re.MULTILINE)
        assert len(tokens) == 1
        assert began <= (parse_token(tokens[0]) or 0) <= time.time()
        smbclient(port, "data", f"get {tokens[0]}\\changed.txt got", folder=tmp_path)
        assert (tmp_path / "got").read_bytes() == (pair.share / "changed.txt").read_bytes()


def test_a_reload_changes_where_the_snapshots_are(pair: Pair, tmp_path: Path) -> None:
    other = pair.share.parent / "others"
    other.mkdir()
    btrfs.make_snapshot(pair.share, other / "2024-03-01")
    with own(tmp_path / "own", pair.share, ".snapshots/@GMT-%Y.%m.%d-%H.%M.%S") as port:
        assert OLD in smbclient(port, "data", "allinfo changed.txt")
        config = tmp_path / "own" / "server.toml"
        for pattern, expected in ((f"{other}/%Y-%m-%d", ["@GMT-2024.03.01-00.00.00"]), ("", [])):
            config.write_text(own_config(pair.share, pattern))
            subprocess.run(
                [sys.executable, "-m", "smb3server", "reload", "--state", str(tmp_path / "own" / "state")],
                check=True,
                capture_output=True,
            )
            found = re.findall(r"^@GMT-\S+", smbclient(port, "data", "allinfo changed.txt"), re.MULTILINE)
            assert found == expected
        # Without the key the folder is one like others.
        assert OLD in smbclient(port, "data", "ls .snapshots\\*")


# Beside Samba

SAME = [
    "ls {old}\\*",
    "ls {new}\\*",
    "ls {old}\\dir\\*",
    "ls {old}\\dir\\deep\\*",
    "ls {new}\\dir\\deep\\*",
    "ls {old}\\missing\\*",
    "ls @GMT-2024.01.01-10.00.01\\*",
    "ls @GMT-2024.13.01-10.00.00\\*",
    "cd {old}; ls",
    "get {old}\\changed.txt -",
    "get {new}\\changed.txt -",
    "get {old}\\gone.txt -",
    "get {new}\\gone.txt -",
    "get {old}\\link\\same.txt -",
    "get {old}\\secret.txt -",
    "get {old}\\added.txt -",
    "put /etc/hostname {old}\\changed.txt",
    "rm {old}\\changed.txt",
    "mkdir {old}\\made",
    "setmode {old}\\changed.txt +r",
    "hardlink {old}\\changed.txt linked",
    "hardlink changed.txt {old}\\linked",
    "rename changed.txt {old}\\renamed",
]
DIFFERENT = {
    "scopy {old}\\changed.txt {old}\\copied": "as for put",
    "put /etc/hostname {old}\\made": "a name that is not there: this server says that nothing can be written there, "
    "Samba that the file does not exist",
    "rmdir {old}\\dir": "Samba looks into the folder first",
    "rename {old}\\changed.txt renamed": "Samba grants DELETE, and refuses to leave the snapshot",
    "rename {old}\\changed.txt {old}\\renamed": "Samba grants DELETE, and does not find the new folder",
    "get {old}\\closed.txt -": "Samba asks for the rights of then alone",
    "ls .snapshots\\*": "Samba hides the folder of the snapshots, but opens it",
}


def _answer(port: int, share: str, command: str) -> object:
    said = smbclient(port, share, command.format(old=OLD, new=NEW))
    statuses = re.findall(r"NT_STATUS_\w+", said)
    if statuses:
        return statuses
    # Samba 4.17 lists no ".." in the root of a snapshot.
    return {k: v for k, v in listed(said).items() if k not in ("..", ".snapshots")} or said.split("getting")[0]


@pytest.mark.parametrize("command", SAME)
def test_samba_answers_the_same(pair: Pair, command: str) -> None:
    if pair.samba is None:
        pytest.skip(servers.missing())
    assert _answer(pair.own, "data", command) == _answer(pair.samba, "old", command)


@pytest.mark.parametrize("command", DIFFERENT)
def test_samba_answers_something_else(pair: Pair, command: str) -> None:
    """The reasons stand in the table. If Samba changes its mind, the table is to change."""
    if pair.samba is None:
        pytest.skip(servers.missing())
    ours = _answer(pair.own, "data", command)
    assert ours != _answer(pair.samba, "old", command)
    assert isinstance(ours, list), "this server allows what needs a reason"


def test_samba_lists_the_same_versions(pair: Pair) -> None:
    if pair.samba is None:
        pytest.skip(servers.missing())
    found = [
        re.findall(r"^@GMT-\S+|^size: .*", smbclient(port, share, "allinfo changed.txt"), re.MULTILINE)
        for port, share in ((pair.own, "data"), (pair.samba, "old"))
    ]
    assert found[0] == found[1]


# With impacket, which sends what it is told


@contextmanager
def impacket(port: int, share: str) -> Iterator[tuple[Any, int]]:
    client = smb3.SMB3("127.0.0.1", "127.0.0.1", sess_port=port)
    client.login(USER.name, USER.password)
    try:
        yield client, client.connectTree(share)
    finally:
        client.close_session()


def enumerated(client: Any, tree: int, output: int) -> tuple[int, int, int, list[str], int]:
    """Number, returned, size, names and the bytes of the answer."""
    file = client.create(tree, "", 0x00100081, 7, 0x21, 1, 0)
    try:
        answer = client.ioctl(tree, file, 0x00144064, flags=1, maxOutputResponse=output)
    finally:
        client.close(tree, file)
    number, returned, size = (int.from_bytes(answer[at : at + 4], "little") for at in (0, 4, 8))
    names = answer[12 : 12 + size].decode("utf-16-le").split("\0") if returned else []
    return number, returned, size, [name for name in names if name], len(answer)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (16, (2, 0, 102, [], 16)),
        (113, (2, 0, 102, [], 16)),
        (114, (2, 2, 102, [NEW, OLD], 114)),
        (65536, (2, 2, 102, [NEW, OLD], 114)),
    ],
)
def test_sizes_of_the_enumeration(pair: Pair, output: int, expected: tuple[int, ...]) -> None:
    """The names come with the whole array or not at all. [MS-SMB2 2.2.32.2, 3.3.5.15.1]"""
    with impacket(pair.own, "data") as (client, tree):
        assert enumerated(client, tree, output) == expected


def test_a_buffer_for_less_than_the_counts_is_refused(pair: Pair) -> None:
    with impacket(pair.own, "data") as (client, tree), pytest.raises(SessionError, match="INVALID_PARAMETER"):
        enumerated(client, tree, 15)


def test_names_with_the_time_and_no_context(pair: Pair) -> None:
    """As old clients send it: smbclient makes a TWrp context of it."""
    with impacket(pair.own, "data") as (client, tree):
        file = client.create(tree, f"{OLD}\\changed.txt", 0x00120089, 7, 0x40, 1, 0)
        assert client.read(tree, file, 0, 10) == b"old"
        # In the middle of a name it is a name.
        with pytest.raises(SessionError, match="OBJECT_PATH_NOT_FOUND"):
            client.create(tree, f"dir\\{OLD}\\same.txt", 0x00120089, 7, 0x40, 1, 0)
        client.close(tree, file)


def test_times_are_those_of_filetimes() -> None:
    assert filetime_of(parse_token(OLD) or 0) == 133485768000000000
