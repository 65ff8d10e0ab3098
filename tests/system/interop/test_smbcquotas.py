"""Quotas as smbcquotas and smbclient see them: over a table in place of the kernel's, and over ext4's own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.backends.base import Quota, Quotas
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.service.service import Service
from tests.lab.port_445 import HOST, PORT, needing
from tests.lab.quotas import Table
from tests.lab.served import open_up

MIB = 1 << 20
GAMES, NEWS = 5, 9
NO_LIMIT = str((1 << 64) - 1)


pytestmark = needing("smbcquotas")


@contextlib.contextmanager
def serving(tmp_path: Path, folder: Path, quotas: Quotas | None = None) -> Iterator[Service]:
    """A server on a thread of its own. alice and bob are games and news on the host, boss administers the server."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    open_up(tmp_path)
    users = (("alice", 'unix_user = "games"\n'), ("bob", 'unix_user = "news"\n'), ("boss", ""))
    text = f'[server]\nadmins = ["boss"]\n[[share]]\nname = "data"\npath = "{folder}"\n'
    text += "".join(f'[[user]]\nname = "{name}"\npassword = "pw"\n{line}' for name, line in users)
    file = tmp_path / "smb.toml"
    file.touch(0o600)
    file.write_text(text)
    started, stop = threading.Event(), threading.Event()
    found: list[Service] = []
    failed: list[BaseException] = []

    async def main() -> None:
        service = Service(parse_arguments(["--config", str(file), "--listen", HOST, "--port", str(PORT)]))
        try:
            await service.start()
            share = service.shares.find("data")
            assert share is not None
            assert share.backend is not None
            if quotas is not None:
                share.backend.quotas = quotas
            found.append(service)
            started.set()
            while not stop.is_set():
                await asyncio.sleep(0.02)
        finally:
            await service.stop()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait(30)
    try:
        if failed:
            raise failed[0]
        yield found[0]
    finally:
        stop.set()
        thread.join(30)
    if failed:
        raise failed[0]


def _run(*command: str) -> str:
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return found.stdout + found.stderr


def smbcquotas(user: str, *options: str) -> str:
    return _run("smbcquotas", f"//{HOST}/data", f"-U{user}%pw", *options)


def smbclient(user: str, commands: str) -> str:
    return _run("smbclient", f"//{HOST}/data", f"-U{user}%pw", "-c", commands)


def rows(shown: str) -> dict[str, tuple[str, ...]]:
    """Used, soft and hard limit by user."""
    found = re.findall(r"^(\S+) *: *(\d+)/ *(\d+)/ *(\d+)$", shown, re.MULTILINE)
    return {name: tuple(values) for name, *values in found}


def test_smbcquotas(tmp_path: Path) -> None:
    table = Table(Quota(GAMES, 3 * MIB, 4 * MIB, 5 * MIB), Quota(NEWS, 7 * MIB, 0, 0))
    with serving(tmp_path, tmp_path / "share", table):
        shown = rows(smbcquotas("boss", "-L", "-n"))
        assert shown == {
            f"S-1-22-1-{GAMES}": (str(3 * MIB), str(4 * MIB), str(5 * MIB)),
            f"S-1-22-1-{NEWS}": (str(7 * MIB), NO_LIMIT, NO_LIMIT),
        }
        assert {name.rpartition("\\")[2] for name in rows(smbcquotas("boss", "-L"))} == {"alice", "bob"}
        assert str(5 * MIB) in smbcquotas("alice", "-u", "alice", "-n"), "the own one"
        assert "NT_STATUS_ACCESS_DENIED" in smbcquotas("alice", "-u", "bob")
        assert "NT_STATUS_ACCESS_DENIED" in smbcquotas("alice", "-L")
        assert "NT_STATUS_ACCESS_DENIED" in smbcquotas("alice", "-S", f"UQLIM:alice:{MIB}/{MIB}")
        assert table.get(GAMES).hard == 5 * MIB
        said = smbcquotas("boss", "-n", "-S", f"UQLIM:bob:{8 * MIB}/{9 * MIB}")
        assert [*rows(said).values()] == [(str(7 * MIB), str(8 * MIB), str(9 * MIB))]
        assert table.get(NEWS) == Quota(NEWS, 7 * MIB, 8 * MIB, 9 * MIB)
        assert "NT_STATUS_NONE_MAPPED" in smbcquotas("boss", "-S", f"UQLIM:boss:{MIB}/{MIB}"), "no user of the host"
        volume = smbcquotas("boss", "-F")
        assert re.search(r"Quotas Enabled: On\s+Deny Disk: +On", volume), volume
        assert "NT_STATUS_NOT_SUPPORTED" in smbcquotas("boss", "-S", f"FSQLIM:{MIB}/{MIB}")


def test_smbclient_shows_what_the_quota_leaves(tmp_path: Path) -> None:
    table = Table(Quota(GAMES, 3 * MIB, 4 * MIB, 5 * MIB))
    with serving(tmp_path, tmp_path / "share", table):
        found = re.search(r"(\d+) blocks of size (\d+)\. (\d+) blocks available", smbclient("alice", "du"))
        assert found is not None
        total, size, available = map(int, found.groups())
        assert (total * size, available * size) == (5 * MIB, 2 * MIB)


def test_a_host_without_quotas_says_so(tmp_path: Path) -> None:
    with serving(tmp_path, tmp_path / "share") as service:
        share = service.shares.find("data")
        assert share is not None
        assert share.backend is not None
        if share.backend.quotas is not None:
            pytest.skip("the file system of this machine's temporary folder keeps quotas")
        assert "Quotas are not supported by the server." in smbcquotas("boss", "-L")


KINDS = {
    "ext4": (64 * MIB, ["mkfs.ext4", "-q", "-O", "quota", "-E", "quotatype=usrquota"], "usrquota"),
    "xfs": (320 * MIB, ["mkfs.xfs", "-q"], "uquota"),
}
"""Size, program and option of mount(8)."""


@contextlib.contextmanager
def mounted(tmp_path: Path, kind: str) -> Iterator[Path]:
    """A file system with quotas of users, in a file. Skips where the kernel has none."""
    size, command, option = KINDS[kind]
    image, place = tmp_path / "image", tmp_path / "mounted"
    place.mkdir()
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run([*command, image], check=True)
    found = subprocess.run(["mount", "-o", f"loop,{option}", image, place], capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"this kernel mounts no {kind} with quotas: see python -m tools.kernel_lab.quotas")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_enforces_what_smbcquotas_sets(tmp_path: Path, kind: str) -> None:
    """Data, streams, and what is shown as free. Root's own writes do not count for the user."""
    with mounted(tmp_path, kind) as place:
        (tmp_path / "large").write_bytes(os.urandom(3 * MIB))
        with serving(tmp_path, place / "share") as service:
            share = service.shares.find("data")
            assert share is not None
            assert share.backend is not None
            assert share.backend.quotas is not None
            assert "NT_STATUS" not in smbcquotas("boss", "-S", f"UQLIM:alice:{4 * MIB}/{5 * MIB}")
            assert "NT_STATUS" not in smbclient("alice", f"put {tmp_path}/large one")
            used, *limits = rows(smbcquotas("alice", "-n", "-u", "alice")).popitem()[1]
            assert int(used) >= 3 * MIB
            assert limits == [str(4 * MIB), str(5 * MIB)]
            for name in ("two", "one:stream"):
                assert re.search("NT_STATUS_(DISK_FULL|QUOTA)", smbclient("alice", f"put {tmp_path}/large {name}")), (
                    name
                )
            assert "NT_STATUS" not in smbclient("bob", f"put {tmp_path}/large of-bob")
            assert "NT_STATUS" not in smbclient("alice", "del one; del two")
            assert "NT_STATUS" not in smbclient("alice", f"put {tmp_path}/large again")
            assert f"S-1-22-1-{NEWS}" in rows(smbcquotas("boss", "-L", "-n"))
