"""Who gets directory leases, and caching rights against changes made on the host, over TCP. [MS-SMB2 3.3.5.9.11]"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from smb3server.backends.local.backend import LocalBackend
from smb3server.settings.server import Settings
from smb3server.state.share import Share
from smb3server.wire import create_contexts, oplock_break
from smb3server.wire.create import CreateOptions
from smb3server.wire.header import Command
from smb3server.wire.oplock_break import OplockLevel
from tests.lab.file_requests import FileId, close, opened, write
from tests.lab.wire_client import Client, Harness, drive, running

RH, RWH = 3, 7
DIRECTORY = int(CreateOptions.DIRECTORY_FILE)
KEY = b"d" * 16


def lease(key: bytes, state: int = RWH, parent: bytes | None = None) -> create_contexts.RawContext:
    flags = int(create_contexts.LeaseFlags.PARENT_LEASE_KEY_SET) if parent is not None else 0
    record = create_contexts.LeaseV2(key, state, flags, 0, parent or bytes(16), 7)
    return create_contexts.RawContext(create_contexts.REQUEST_LEASE, create_contexts.LEASE_V2_CODEC.pack(record))


async def leased(client: Client, name: str, key: bytes, parent: bytes | None = None, **fields: int) -> FileId:
    """Open with a lease; the directory ones get RH."""
    level = int(OplockLevel.LEASE)
    _, file, found = await opened(client, name, [lease(key, RWH, parent)], requested_oplock_level=level, **fields)
    granted = create_contexts.RESPONSES[b"RqLs"](found[b"RqLs"])
    assert granted.lease_state == (RH if fields.get("create_options") == DIRECTORY else RWH)
    return file


async def lease_directory(client: Client, name: str = "d", key: bytes = KEY) -> FileId:
    return await leased(client, name, key, create_options=DIRECTORY)


async def broken(client: Client, key: bytes = KEY) -> bool:
    """Has the client been told, before the reply to this ECHO, that its directory lease is gone?"""
    await client.post(Command.ECHO, struct.pack("<HH", 4, 0))
    seen = False
    while (reply := await client.receive()).header.command != Command.ECHO:
        if reply.header.command == Command.CLOSE:
            continue
        told = oplock_break.parse_notification(memoryview(reply.message))
        assert (told.lease_key, told.current_lease_state, told.new_lease_state) == (key, RH, 0)
        assert told.flags == 1
        assert told.new_epoch == 9
        seen = True
    return seen


def test_none_without_version_2_or_dialect_3() -> None:
    async def body(harness: Harness) -> None:
        client = await harness.connect()
        await client.login(dialect=0x0210)
        data = create_contexts.LEASE_CODEC.pack(create_contexts.Lease(KEY, RWH))
        context = create_contexts.RawContext(create_contexts.REQUEST_LEASE, data)
        level = int(OplockLevel.LEASE)
        answer, _, found = await opened(client, "d", [context], requested_oplock_level=level, create_options=DIRECTORY)
        assert (answer.oplock_level, found) == (OplockLevel.NONE, {})

    drive(body)


async def _on_disk(folder: Path, test: Callable[[Harness, Client], Awaitable[None]]) -> None:
    async with running(Settings()) as harness:
        backend = LocalBackend(folder)
        harness.server.add_share(Share("disk", backend=backend))
        client = await harness.connect()
        await client.login(share="disk")
        await test(harness, client)
        for entry in list(harness.server.opens.by_id.values()):
            harness.server.opens.close(entry)
        backend.close()


async def _notified(client: Client) -> oplock_break.LeaseBreakNotification:
    told = oplock_break.parse_notification(memoryview((await client.receive()).message))
    assert isinstance(told, oplock_break.LeaseBreakNotification)
    return told


def test_host_changes_break_directory_leases(tmp_path: Path) -> None:
    async def test(harness: Harness, client: Client) -> None:
        await lease_directory(client)
        (tmp_path / "d" / "new").touch()
        told = await _notified(client)
        assert (told.lease_key, told.new_lease_state) == (KEY, 0)

    asyncio.run(_on_disk(tmp_path, test))


@pytest.mark.parametrize("how", ["write", "replace"])
def test_host_changes_break_file_leases(tmp_path: Path, how: str) -> None:
    async def test(harness: Harness, client: Client) -> None:
        (tmp_path / "f").write_text("old")
        await leased(client, "f", KEY, desired_access=0x00120089)
        if how == "write":
            (tmp_path / "f").write_text("new")
        else:
            (tmp_path / "g").write_text("new")
            (tmp_path / "g").rename(tmp_path / "f")
        told = await _notified(client)
        assert (told.lease_key, told.new_lease_state) == (KEY, 0)

    asyncio.run(_on_disk(tmp_path, test))


def test_own_changes_are_no_host_changes(tmp_path: Path) -> None:
    async def test(harness: Harness, client: Client) -> None:
        file = await leased(client, "f", KEY)
        assert (await write(client, file, b"data")).status == 0
        assert len(harness.server.host_changes) == 1
        (tmp_path / "marker").touch()
        await asyncio.sleep(0)
        assert not await broken(client)
        await close(client, file)

    asyncio.run(_on_disk(tmp_path, test))
