"""Who gets directory leases, and caching rights against changes made on the host. [MS-SMB2 3.3.5.9.11]"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from smb3server.wire import create_contexts
from smb3server.wire.create import CreateOptions
from smb3server.wire.oplock_break import OplockLevel
from tests.lab.file_requests import opened
from tests.lab.rule_scene import RH, RW, RWH, Ground, Peer, R, act, key, lease

FOLDER = int(CreateOptions.DIRECTORY_FILE)
KEY = 1


async def until_told(peer: Peer) -> None:
    """Wait for a break to none."""
    async with asyncio.timeout(10):
        while not (told := await peer.told()):
            await asyncio.sleep(0.01)
    assert [(number, new) for number, _, new in told] == [(KEY, 0)]


def test_none_without_version_2_or_dialect_3(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.connect()
        await client.login(dialect=0x0210)
        data = create_contexts.LEASE_CODEC.pack(create_contexts.Lease(key(KEY), RWH))
        context = create_contexts.RawContext(create_contexts.REQUEST_LEASE, data)
        level = int(OplockLevel.LEASE)
        answer, _, found = await opened(client, "d", [context], requested_oplock_level=level, create_options=FOLDER)
        assert (answer.oplock_level, found) == (OplockLevel.NONE, {})

    act(tmp_path, scene)


def test_host_changes_break_directory_leases(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        assert (await client.make("d", lease(KEY, RWH), create_options=FOLDER)).state == RH
        (ground.folder / "d" / "new").touch()
        await until_told(client)

    act(tmp_path, scene)


@pytest.mark.parametrize("how", ["write", "replace"])
def test_host_changes_break_file_leases(tmp_path: Path, how: str) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        (ground.folder / "f").write_text("old")
        assert (await client.make("f", lease(KEY, RWH), desired_access=0x00120089)).state == RWH
        if how == "write":
            (ground.folder / "f").write_text("new")
        else:
            (ground.folder / "g").write_text("new")
            (ground.folder / "g").rename(ground.folder / "f")
        await until_told(client)

    act(tmp_path, scene)


def test_own_changes_are_no_host_changes(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", lease(KEY, RWH))
        assert await client.write(made.file) == 0
        assert len(ground.service.server.host_changes) == 1
        (ground.folder / "marker").touch()
        await asyncio.sleep(0)
        assert await client.told() == []

    act(tmp_path, scene)


@pytest.mark.parametrize(("asked", "granted"), [(RWH, RH), (RW, R), (RH, RH), (R, R)])
def test_directories_are_leased_without_write_caching(tmp_path: Path, asked: int, granted: int) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        assert (await client.make("d", lease(KEY, asked), create_options=FOLDER)).state == granted

    act(tmp_path, scene)


@pytest.mark.parametrize("level", [OplockLevel.II, OplockLevel.EXCLUSIVE, OplockLevel.BATCH])
def test_directories_have_no_oplocks(tmp_path: Path, level: int) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("d", requested_oplock_level=int(level), create_options=FOLDER)
        assert made.answer.oplock_level == OplockLevel.NONE

    act(tmp_path, scene)
