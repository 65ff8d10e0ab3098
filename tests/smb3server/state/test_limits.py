"""What one client may have at once, and the status of one more."""

from __future__ import annotations

import struct

from smb3server.settings.server import Settings
from smb3server.wire.create import CreateOptions
from smb3server.wire.header import Command
from smb3server.wire.lock import LockElement
from smb3server.wire.status import NtStatus
from tests.lab.file_requests import FileId, close, lock_body, opened
from tests.lab.wire_client import Client, Harness, drive

REFUSED = NtStatus.INSUFFICIENT_RESOURCES
EXCLUSIVE_NOW = 0x12
DIRECTORY = int(CreateOptions.DIRECTORY_FILE)


async def connected(harness: Harness) -> Client:
    client = await harness.connect()
    await client.login()
    return client


def test_sessions() -> None:
    async def test(harness: Harness) -> None:
        client = await connected(harness)
        first = client.session_id
        client.sign, client.session_id = False, 0
        assert (await client.session_setup()).status == REFUSED
        assert first in harness.server.sessions.by_id
        assert len(harness.server.sessions.by_id) == 1

    drive(test, Settings(max_sessions=1))


def test_trees() -> None:
    async def test(harness: Harness) -> None:
        client = await connected(harness)
        assert (await client.tree_connect()).status == 0
        assert (await client.tree_connect()).status == REFUSED
        assert (await client.call(Command.TREE_DISCONNECT, struct.pack("<HH", 4, 0))).status == 0
        assert (await client.tree_connect()).status == 0

    drive(test, Settings(max_trees=2))


def test_locks() -> None:
    async def test(harness: Harness) -> None:
        client = await connected(harness)
        _, file, _ = await opened(client, "f")

        async def lock(file: FileId, *offsets: int) -> int:
            elements = [LockElement(offset, 1, EXCLUSIVE_NOW) for offset in offsets]
            return (await client.call(Command.LOCK, lock_body(file, *elements))).status

        assert await lock(file, 0, 1) == 0
        assert await lock(file, 2, 3) == REFUSED
        assert await lock(file, 2) == 0
        assert await lock(file, 3) == REFUSED
        _, other, _ = await opened(client, "f")
        assert await lock(other, 3) == 0, "another open is not to suffer"
        unlock = LockElement(0, 1, 4)
        assert (await client.call(Command.LOCK, lock_body(file, unlock))).status == 0
        assert await lock(file, 0) == 0

    drive(test, Settings(max_locks=3))


def test_watchers() -> None:
    async def test(harness: Harness) -> None:
        client = await connected(harness)

        async def watch(file: FileId) -> int:
            await client.post(Command.CHANGE_NOTIFY, struct.pack("<HHIQQII", 32, 0, 4096, *file, 1, 0))
            return (await client.receive()).status

        files = [(await opened(client, f"d{i}", create_options=DIRECTORY))[1] for i in range(2)]
        assert await watch(files[0]) == NtStatus.PENDING
        assert await watch(files[1]) == REFUSED
        assert await watch(files[0]) == NtStatus.PENDING, "more requests, the same watcher"
        await close(client, files[0])
        for _ in range(2):
            assert (await client.receive()).header.command in (Command.CHANGE_NOTIFY, Command.CLOSE)
        assert await watch(files[1]) == NtStatus.PENDING

    drive(test, Settings(max_watchers=1))


def test_the_watchers_of_a_session_are_enough_for_two_channels() -> None:
    """On each 511 requests wait, and the one that reaches the limit is refused with its watcher made.
    [MS-SMB2 3.3.4.2 note 242; smb2.credits.multichannel_max_async_credits]"""

    async def test(harness: Harness) -> None:
        client = await connected(harness)
        count = 2 * (Settings().max_async_requests + 2)
        file = (await opened(client, "d", create_options=DIRECTORY))[1]
        for _ in range(count):
            await client.post(Command.CHANGE_NOTIFY, struct.pack("<HHIQQII", 32, 0, 4096, *file, 1, 0))
            assert (await client.receive()).status == NtStatus.PENDING
            file = (await opened(client, "d", create_options=DIRECTORY))[1]

    drive(test, Settings(max_async_requests=4096))
