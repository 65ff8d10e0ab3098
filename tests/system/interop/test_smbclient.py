"""smbclient's commands, one by one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lab.command import Served

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed"),
]


def smbclient(served: Served, commands: str, *options: str, folder: Path | None = None) -> str:
    ended = subprocess.run(
        ["smbclient", "//127.0.0.1/share", "-p", str(served.port), "-U", "u%pw", *options, "-c", commands],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    "options",
    [(), ("--client-protection=encrypt",), ("--client-protection=sign",)],
    ids=["plain", "encrypted", "signed"],
)
def test_trees_there_and_back(served: Served, tmp_path: Path, options: tuple[str, ...]) -> None:
    """mput and mget with recursion: names with spaces and umlauts, empty files, empty folders."""
    contents = {
        "a b/ä ö ü.txt": os.urandom(100),
        "a b/c/empty": b"",
        "a b/c/large": os.urandom(3_000_000),
        "日本語/\N{SNOWMAN}": b"snow",
    }
    source, target = tmp_path / "source", tmp_path / "target"
    for name, data in contents.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    (source / "no files").mkdir()
    target.mkdir()
    smbclient(served, "mkdir tree; cd tree; recurse; prompt; mput *", *options, folder=source)
    smbclient(served, "cd tree; recurse; prompt; mget *", *options, folder=target)
    found = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}
    assert found == contents
    assert (target / "no files").is_dir()
    smbclient(served, "deltree tree", *options)
    assert not (served.share / "tree").exists()


def test_ls_rename_and_del(served: Served, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1234))
    shown = smbclient(
        served, f"put {tmp_path}/file one; rename one two; mkdir sub; rename two sub\\three; ls; ls sub\\*"
    )
    assert re.search(r"^  sub +D", shown, re.MULTILINE)
    assert re.search(r"^  three +A? +1234", shown, re.MULTILINE)
    assert (served.share / "sub" / "three").stat().st_size == 1234
    shown = smbclient(served, "ls T*; cd sub; ls th*; ls ?HREE; du")
    assert len(re.findall(r"^  three ", shown, re.MULTILINE)) == 2
    smbclient(served, "del sub\\th*; rmdir sub")
    assert not (served.share / "sub").exists()


def test_allinfo_and_attributes(served: Served, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 5000)
    shown = smbclient(served, f"put {tmp_path}/file info; setmode info +rh; allinfo info")
    assert re.search(r"attributes: .*R.*H|attributes: RHA|attributes: HR", shown), shown
    assert "stream: [::$DATA], 5000 bytes" in shown
    for label in ("create_time", "access_time", "write_time", "change_time"):
        assert re.search(rf"{label}: +\w{{3}} \w{{3}} ", shown), label
    smbclient(served, "setmode info -rh; utimes info 2001:02:03-04:05:06 -1 -1 -1; allinfo info; del info")


def test_streams(served: Served, tmp_path: Path) -> None:
    (tmp_path / "main").write_bytes(b"main")
    (tmp_path / "side").write_bytes(b"a stream")
    shown = smbclient(
        served,
        f"put {tmp_path}/main with; put {tmp_path}/side with:note; allinfo with; get with:note {tmp_path}/back",
    )
    assert "stream: [:note:$DATA], 8 bytes" in shown
    assert (tmp_path / "back").read_bytes() == b"a stream"
    assert (served.share / "with").read_bytes() == b"main"
    smbclient(served, "del with")
    assert not (served.share / "with").exists()


def test_links_space_and_volume(served: Served, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"shared by two names")
    smbclient(served, f"put {tmp_path}/file first; hardlink first second")
    assert (served.share / "first").stat().st_ino == (served.share / "second").stat().st_ino
    shown = smbclient(served, "volume; du; del first; del second")
    assert "serial number" in shown


def test_resumed_downloads_and_large_offsets(served: Served, tmp_path: Path) -> None:
    data = os.urandom(500_000)
    (served.share / "big").write_bytes(data)
    (tmp_path / "part").write_bytes(data[:200_000])
    smbclient(served, f"reget big {tmp_path}/part; del big")
    assert (tmp_path / "part").read_bytes() == data
