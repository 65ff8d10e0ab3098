"""Durable opens whose client is away, persistent opens of directories, and deletions at the end of an open's time: rows
D1 to D7 and T1 to T5 of docs/caching.md."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from smb3server.wire.create import CreateOptions
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.oplock_break import LeaseBreakNotification, parse_notification
from smb3server.wire.status import NtStatus
from tests.lab.rule_scene import ALL, RH, RW, RWH, Ground, Made, Peer, R, act, durable, lease, reconnect

DIRECTORY, ON_CLOSE = int(CreateOptions.DIRECTORY_FILE), int(CreateOptions.DELETE_ON_CLOSE)
BATCH, EXCLUSIVE = 9, 8
STAT = 0x80
FILE_LIST = 0x00120089


async def away(ground: Ground, state: int, persistent: bool = False) -> tuple[bytes, Made]:
    """The ClientGuid, and the durable open, of a client that has lost its connection."""
    client = await ground.peer()
    made = await client.make("f", lease(1, state), durable(9, persistent), desired_access=ALL)
    assert made.durable is not None
    await ground.lose(client)
    return client.client.guid, made


async def comes_back(ground: Ground, guid: bytes, made: Made, state: int, persistent: bool = False) -> int:
    client = await ground.peer(guid)
    return (await client.create("f", lease(1, state), reconnect(made.file, 9, persistent))).status


@pytest.mark.parametrize(
    ("level", "kept"), [(BATCH, True), (EXCLUSIVE, False), (0, False)], ids=["batch", "exclusive", "none"]
)
def test_d1_an_open_is_kept_with_a_batch_oplock(tmp_path: Path, level: int, kept: bool) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", durable(9), requested_oplock_level=level)
        assert (made.durable is not None) is kept
        client = await ground.comes_back(client)
        again = await client.create("f", reconnect(made.file, 9), requested_oplock_level=level)
        assert again.status == (0 if kept else NtStatus.OBJECT_NAME_NOT_FOUND)

    act(tmp_path, scene)


def test_d1_not_if_its_handle_caching_is_breaking(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client, other = await ground.peer(), await ground.peer()
        made = await client.make("f", lease(1), durable(9), share_access=0)
        await other.client.post(5, other.request("f"))
        assert (await other.client.receive()).status == NtStatus.PENDING
        await ground.lose(client)
        assert (await other.receive()).status == 0, "the open that was in the way is closed"
        assert await comes_back(ground, client.client.guid, made, RWH) == NtStatus.OBJECT_NAME_NOT_FOUND

    act(tmp_path, scene)


async def look(other: Peer) -> None:
    await other.make("f", desired_access=STAT)


async def with_rh(other: Peer) -> None:
    await other.make("f", lease(2, RH))


async def write(other: Peer) -> None:
    assert await other.write((await other.make("f")).file) == 0


async def rename(other: Peer) -> None:
    name = "g".encode("utf-16-le")
    data = bytes(8) + bytes(8) + len(name).to_bytes(4, "little") + name
    file = (await other.make("f", desired_access=ALL)).file
    assert await other.set_info(file, FileInfoClass.RENAME, data) == 0


async def share_nothing(other: Peer) -> None:
    await other.make("f", share_access=0)


@pytest.mark.parametrize(
    ("state", "act_of_other", "kept"),
    [
        (RWH, look, True),
        (RH, look, True),
        (RH, with_rh, True),
        (RWH, with_rh, False),
        (RH, write, False),
        (RH, rename, False),
        (RH, share_nothing, False),
    ],
)
def test_d2_d3_what_ends_the_open_of_an_absent_client(
    tmp_path: Path, state: int, act_of_other: object, kept: bool
) -> None:
    async def scene(ground: Ground) -> None:
        guid, made = await away(ground, state)
        await act_of_other(await ground.peer())  # type: ignore[operator]
        assert await comes_back(ground, guid, made, state) == (0 if kept else NtStatus.OBJECT_NAME_NOT_FOUND)

    act(tmp_path, scene)


def test_d4_a_break_waits_until_the_client_of_a_persistent_open_is_back(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        guid, made = await away(ground, RWH, persistent=True)
        other = await ground.peer()
        await other.client.post(5, other.request("f"))
        assert (await other.client.receive()).status == NtStatus.PENDING
        back = await ground.peer(guid)
        assert (await back.create("f", lease(1), reconnect(made.file, 9, True))).status == 0
        assert await back.told() == [(1, RWH, RH)]
        assert await back.acknowledge(1, RH) == 0
        assert (await other.receive()).status == 0

    act(tmp_path, scene, continuous_availability=True)


@pytest.mark.parametrize("state", [0, R])
def test_d5_a_persistent_open_without_handle_caching_is_not_available(tmp_path: Path, state: int) -> None:
    async def scene(ground: Ground) -> None:
        guid, made = await away(ground, state, persistent=True)
        other = await ground.peer()
        assert (await other.create("f")).status == NtStatus.FILE_NOT_AVAILABLE
        assert await comes_back(ground, guid, made, state, persistent=True) == 0

    act(tmp_path, scene, continuous_availability=True)


@pytest.mark.parametrize(("state", "epoch"), [(R, 129), (RW, 128), (RH, 1), (RWH, 1)])
def test_d6_without_handle_caching_the_epoch_is_that_of_the_reconnect(tmp_path: Path, state: int, epoch: int) -> None:
    async def scene(ground: Ground) -> None:
        guid, made = await away(ground, state, persistent=True)
        client = await ground.peer(guid)
        again = await client.make("f", lease(1, state, epoch=128), reconnect(made.file, 9, True))
        assert again.lease is not None
        assert (again.lease.lease_state, again.lease.epoch) == (state, epoch)

    act(tmp_path, scene, continuous_availability=True)


def test_d6_a_break_in_the_clients_absence_counts_when_it_is_sent(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        guid, made = await away(ground, RWH, persistent=True)
        other = await ground.peer()
        await other.client.post(5, other.request("f"))
        assert (await other.client.receive()).status == NtStatus.PENDING
        client = await ground.peer(guid)
        again = await client.make("f", lease(1, epoch=128), reconnect(made.file, 9, True))
        assert again.lease is not None
        assert (again.lease.lease_state, again.lease.epoch) == (RWH, 1)
        assert await client.told() == [(1, RWH, RH)]
        sent = parse_notification(memoryview(client.notifications[-1].message))
        assert isinstance(sent, LeaseBreakNotification)
        assert sent.new_epoch == 2
        assert await client.acknowledge(1, RH) == 0
        assert (await other.receive()).status == 0

    act(tmp_path, scene, continuous_availability=True)


@pytest.mark.parametrize(("state", "left", "epoch"), [(R, 0, 128), (RH, 0, 128), (RW, RW, 128), (RWH, RWH, 1)])
def test_d7_locks_end_the_lease_of_an_absent_client_that_may_not_write(
    tmp_path: Path, state: int, left: int, epoch: int
) -> None:
    async def scene(ground: Ground) -> None:
        client, other = await ground.peer(), await ground.peer()
        made = await client.make("f", desired_access=ALL)
        assert await client.write(made.file, bytes(100)) == 0
        assert await client.close(made.file) == 0
        made = await client.make("f", lease(1, state), durable(9, True), desired_access=ALL)
        assert made.state == state
        assert await client.lock(made.file) == 0
        await ground.lose(client)
        await other.client.post(5, other.request("f"))
        waits = state == RWH
        assert (await other.client.receive()).status == (NtStatus.PENDING if waits else NtStatus.FILE_NOT_AVAILABLE)
        client = await ground.peer(client.client.guid)
        again = await client.make("f", lease(1, state, epoch=128), reconnect(made.file, 9, True))
        assert again.lease is not None
        assert (again.lease.lease_state, again.lease.epoch) == (left, epoch)

    act(tmp_path, scene, continuous_availability=True)


@pytest.mark.parametrize("restart", [False, True])
def test_t1_a_persistent_open_of_a_directory(tmp_path: Path, restart: bool) -> None:
    """It is in the way while its client is away. The client comes back to it, also in the next run of the server."""
    kept: list[tuple[bytes, Made]] = []
    fields = {"create_options": DIRECTORY, "desired_access": FILE_LIST | 2}

    async def before(ground: Ground) -> None:
        client, other = await ground.peer(), await ground.peer()
        made = await client.make("d", durable(9, True), share_access=0, **fields)
        assert made.durable is not None
        assert made.durable.flags == 2
        assert (await other.create("d", **fields)).status == NtStatus.SHARING_VIOLATION
        await ground.lose(client)
        kept.append((client.client.guid, made))
        if not restart:
            await after(ground)

    async def after(ground: Ground) -> None:
        other = await ground.peer()
        assert (await other.create("d", **fields)).status == NtStatus.FILE_NOT_AVAILABLE
        guid, made = kept[0]
        back = await ground.peer(guid)
        again = await back.make("d", reconnect(made.file, 9, True), **fields)
        assert again.file[0] == made.file[0]
        assert await back.close(again.file) == 0
        assert (await other.create("d", **fields)).status == 0

    act(tmp_path, before, continuous_availability=True)
    if restart:
        act(tmp_path, after, continuous_availability=True)


@pytest.mark.parametrize("available", [False, True])
@pytest.mark.parametrize(("asked", "granted"), [(0, 0), (1, 1), (5, 1), (3, 3), (7, 3)])
def test_t1_t2_a_leased_directory_is_not_persistent_and_never_has_write_caching(
    tmp_path: Path, asked: int, granted: int, available: bool
) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("d", lease(1, asked), durable(9, True), create_options=DIRECTORY)
        assert made.state == granted
        assert (made.durable is not None) is (available and not granted)

    act(tmp_path, scene, continuous_availability=available)


async def ask_for_deletion(peer: Peer, made: Made) -> None:
    assert await peer.set_info(made.file, FileInfoClass.DISPOSITION, b"\1") == 0


async def gone(ground: Ground, name: str = "f") -> None:
    """Wait until a file is gone."""
    async with asyncio.timeout(10):
        while (ground.folder / name).exists():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("on_close", [False, True], ids=["disposition", "option"])
def test_t3_a_deletion_survives_the_connection(tmp_path: Path, persistent: bool, on_close: bool) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        options = ON_CLOSE if on_close else 0
        made = await client.make("f", lease(1), durable(9, persistent), desired_access=ALL, create_options=options)
        if not on_close:
            await ask_for_deletion(client, made)
        back = await ground.comes_back(client)
        assert (ground.folder / "f").exists()
        again = await back.make("f", lease(1), reconnect(made.file, 9, persistent))
        assert await back.close(again.file) == 0
        assert not (ground.folder / "f").exists()

    act(tmp_path, scene, continuous_availability=persistent)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("on_close", [False, True], ids=["disposition", "option"])
def test_t4_the_file_is_deleted_when_the_time_ends(tmp_path: Path, persistent: bool, on_close: bool) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        options = ON_CLOSE if on_close else 0
        made = await client.make("f", lease(1), durable(9, persistent, 50), desired_access=ALL, create_options=options)
        if not on_close:
            await ask_for_deletion(client, made)
        back = await ground.comes_back(client)
        await gone(ground)
        again = await back.create("f", lease(1), reconnect(made.file, 9, persistent))
        assert again.status == NtStatus.OBJECT_NAME_NOT_FOUND

    act(tmp_path, scene, continuous_availability=persistent)


@pytest.mark.parametrize("expires", [0, 1], ids=["the first", "the second"])
def test_t5_two_opens_want_the_deletion_and_one_expires(tmp_path: Path, expires: int) -> None:
    """Whichever it is, the close of the other deletes."""

    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = []
        for number in range(2):
            timeout = 50 if number == expires else 60_000
            made.append(await client.make("f", durable(number + 1, True, timeout), desired_access=ALL))
        for one in made:
            await ask_for_deletion(client, one)
        back = await ground.comes_back(client)
        opens = ground.service.server.opens
        async with asyncio.timeout(10):
            while len(opens.by_id) > 1:
                await asyncio.sleep(0.005)
        assert (ground.folder / "f").exists()
        stays = made[1 - expires]
        again = await back.make("f", reconnect(stays.file, 2 - expires, True))
        assert await back.close(again.file) == 0
        assert not (ground.folder / "f").exists()
        assert (await back.create("f", create_disposition=1)).status == NtStatus.OBJECT_NAME_NOT_FOUND

    act(tmp_path, scene, continuous_availability=True)
