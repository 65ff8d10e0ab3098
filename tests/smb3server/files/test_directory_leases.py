"""Directory leases, and caching rights against changes made on the host, over TCP.

MS-SMB2 3.3.5.9.11, MS-FSA 2.1.4.12.
"""

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
from smb3server.wire.close import CLOSE_REQUEST, CloseRequest
from smb3server.wire.create import CreateOptions
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command
from smb3server.wire.oplock_break import OplockLevel
from tests.lab.file_requests import ALL, FileId, close, opened, request, run, second, write
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


async def acknowledge(client: Client, key: bytes = KEY) -> None:
    body = oplock_break.LEASE_BREAK.pack(oplock_break.LeaseBreak(lease_key=key, lease_state=0))
    assert (await client.call(Command.OPLOCK_BREAK, body)).status == 0


async def set_info(client: Client, file: FileId, level: int, data: bytes) -> None:
    body = struct.pack("<HBBIHHI2Q", 33, 1, level, len(data), 96, 0, 0, *file) + data
    assert (await client.call(Command.SET_INFO, body)).status == 0


def rename_to(name: str) -> bytes:
    path = name.encode("utf-16-le")
    return struct.pack("<B7xQI", 1, 0, len(path)) + path


async def create_file(client: Client) -> None:
    await opened(client, "d\\new")


async def overwrite(client: Client) -> None:
    await opened(client, "d\\f", create_disposition=5)


async def delete(client: Client) -> None:
    _, file, _ = await opened(client, "d\\f", desired_access=ALL)
    await set_info(client, file, FileInfoClass.DISPOSITION, b"\1")
    await close(client, file)


async def rename_out(client: Client) -> None:
    _, file, _ = await opened(client, "d\\f", desired_access=ALL)
    await set_info(client, file, FileInfoClass.RENAME, rename_to("out"))


async def rename_in(client: Client) -> None:
    _, file, _ = await opened(client, "g", desired_access=ALL)
    await set_info(client, file, FileInfoClass.RENAME, rename_to("d\\in"))


async def hard_link(client: Client) -> None:
    _, file, _ = await opened(client, "g", desired_access=ALL)
    await set_info(client, file, FileInfoClass.LINK, rename_to("d\\link"))


async def set_attributes(client: Client) -> None:
    _, file, _ = await opened(client, "d\\f", desired_access=ALL)
    await set_info(client, file, FileInfoClass.BASIC, struct.pack("<4QII", 0, 0, 0, 0, 2, 0))


async def set_size(client: Client) -> None:
    _, file, _ = await opened(client, "d\\f")
    await set_info(client, file, FileInfoClass.END_OF_FILE, struct.pack("<Q", 100))


async def write_data(client: Client) -> None:
    _, file, _ = await opened(client, "d\\f")
    assert (await write(client, file, b"data")).status == 0
    await close(client, file)


CHANGES = [create_file, overwrite, delete, rename_out, rename_in, hard_link, set_attributes, set_size, write_data]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changes_by_others_break_it(change: Callable[[Client], Awaitable[None]]) -> None:
    async def test(harness: Harness, client: Client) -> None:
        other = await second(harness)
        await opened(other, "d", create_options=DIRECTORY)
        for name in ("d\\f", "g"):
            _, file, _ = await opened(other, name)
            await close(other, file)
        await lease_directory(client)
        await change(other)
        assert await broken(client)
        await acknowledge(client)
        _, _, _ = await opened(other, "d\\later")
        assert not await broken(client)

    run(test)


def test_reading_and_opening_do_not_break_it() -> None:
    async def test(harness: Harness, client: Client) -> None:
        other = await second(harness)
        await lease_directory(client)
        await opened(other, "elsewhere")
        assert not await broken(client)
        await acknowledged_create(client, other)
        await opened(other, "d\\f", create_disposition=1)
        assert not await broken(client)

    async def acknowledged_create(client: Client, other: Client) -> None:
        await opened(other, "d\\f")
        assert await broken(client)
        await acknowledge(client)

    run(test)


def test_parent_lease_key_spares_its_holder_only() -> None:
    async def test(harness: Harness, client: Client) -> None:
        other = await second(harness)
        await lease_directory(client)
        await lease_directory(other, key=b"o" * 16)
        file = await leased(client, "d\\f", b"f" * 16, parent=KEY)
        assert await broken(other, b"o" * 16)
        assert not await broken(client)
        assert (await write(client, file, b"data")).status == 0
        await close(client, file)
        assert not await broken(client)
        await client.post(Command.CREATE, request("d\\g"))
        told = await _notified(client)
        assert told.lease_key == KEY, "an open that does not name it"
        assert (await client.receive()).status == 0

    run(test)


@pytest.mark.parametrize("parent", [KEY, b"x" * 16])
def test_deletion_spares_who_asked_for_it_and_closed_last(parent: bytes) -> None:
    async def test(harness: Harness, client: Client) -> None:
        await lease_directory(client)
        first = await leased(client, "d\\f", b"f" * 16, KEY, desired_access=ALL)
        last = await leased(client, "d\\f", b"f" * 16, parent, desired_access=ALL)
        assert not await broken(client)
        await set_info(client, first, FileInfoClass.DISPOSITION, b"\1")
        await close(client, first)
        await client.post(Command.CLOSE, CLOSE_REQUEST.pack(CloseRequest(24, 0, 0, *last)))
        assert await broken(client) == (parent != KEY)

    run(test)


def test_writes_are_told_when_the_file_is_closed() -> None:
    async def test(harness: Harness, client: Client) -> None:
        other = await second(harness)
        await opened(other, "d", create_options=DIRECTORY)
        _, file, _ = await opened(other, "d\\f")
        await lease_directory(client)
        assert (await write(other, file, b"data")).status == 0
        assert not await broken(client)
        await close(other, file)
        assert await broken(client)

    run(test)


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
