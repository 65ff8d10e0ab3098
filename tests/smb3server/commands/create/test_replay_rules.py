"""Replays of CREATE and of a durable reconnect: rows R1 to R10 of docs/caching.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from smb3server.wire.create import CreateAction, CreateOptions
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.status import NtStatus
from tests.lab.rule_scene import ALL, READ_WRITE, REPLAY, RH, RWH, Ground, Peer, R, act, durable, lease, reconnect

DIRECTORY = int(CreateOptions.DIRECTORY_FILE)
CREATED, OPENED = int(CreateAction.CREATED), int(CreateAction.OPENED)


async def replay(peer: Peer, persistent: bool = False, state: int = RWH, **fields: Any) -> Any:
    return await peer.create("f", lease(1, state), durable(9, persistent), flags=REPLAY, **fields)


def test_r1_r5_a_replay_is_found_by_its_guids(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client, other = await ground.peer(), await ground.peer()
        made = await client.make("f", lease(1), durable(9))
        assert (await client.create("f", lease(1), durable(9))).status == NtStatus.DUPLICATE_OBJECTID
        again = await replay(client)
        assert (again.file, again.answer.create_action) == (made.file, CREATED)
        assert (await client.make("g", lease(2), durable(8), flags=REPLAY)).answer.create_action == CREATED
        strange = await other.make("h", lease(1), durable(9), flags=REPLAY)
        assert strange.answer.create_action == CREATED, "another ClientGuid"

    act(tmp_path, scene)


@pytest.mark.parametrize(
    ("fields", "eligible"),
    [
        ({"desired_access": 0x1}, True),
        ({"desired_access": 0x20}, True),
        ({"desired_access": 0x2}, True),
        ({"desired_access": 0x4}, True),
        ({"desired_access": 0x00010000}, True),
        ({"desired_access": 0x80}, False),
        ({"desired_access": 0x00120188}, False),
        ({"create_options": DIRECTORY}, False),
    ],
)
def test_r2_who_is_eligible(tmp_path: Path, fields: dict[str, int], eligible: bool) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", durable(9), **fields)
        again = await client.make("f", durable(9), flags=REPLAY, **fields)
        assert (again.file == made.file) is eligible
        assert again.answer.create_action == (CREATED if eligible else OPENED)

    act(tmp_path, scene)


def test_r2_a_persistent_open_is_always_eligible(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", durable(9, persistent=True), desired_access=0x80)
        assert (await client.make("f", durable(9, persistent=True), desired_access=0x80, flags=REPLAY)).file == (
            made.file
        )

    act(tmp_path, scene, continuous_availability=True)


def test_r3_another_user_or_another_lease_key_is_denied(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        await client.make("f", lease(1), durable(9))
        denied = await client.create("f", lease(2), durable(9), flags=REPLAY)
        assert denied.status == NtStatus.ACCESS_DENIED
        stranger = await ground.peer(client.client.guid, user="other")
        assert (await replay(stranger)).status == NtStatus.ACCESS_DENIED
        await ground.lose(client)
        assert (await replay(stranger)).status == NtStatus.ACCESS_DENIED, "also when the open's client is away"

    act(tmp_path, scene)


def test_r4_an_open_of_another_session_is_a_duplicate(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", lease(1), durable(9))
        second = await ground.peer(client.client.guid)
        assert (await replay(second)).status == NtStatus.DUPLICATE_OBJECTID
        assert await client.write(made.file) == 0

    act(tmp_path, scene)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("how", ["lost", "previous session"])
def test_r6_r7_r8_replays_on_a_new_connection(tmp_path: Path, persistent: bool, how: str) -> None:
    """Once, twice, and after new I/O."""

    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", lease(1), durable(9, persistent))
        if how == "lost":
            back = await ground.comes_back(client)
        else:
            back = await ground.peer(client.client.guid, previous=client.client.session_id)
        once = await replay(back, persistent)
        assert (once.status, once.answer.create_action, once.state) == (0, CREATED, RWH)
        assert once.durable is not None
        assert once.file[0] == made.file[0]
        twice = await replay(back, persistent)
        assert (twice.status, twice.answer.create_action, twice.file) == (0, CREATED, once.file)
        assert await back.write(once.file, b"data") == 0
        third = await replay(back, persistent)
        if persistent:
            assert third.status == NtStatus.FILE_NOT_AVAILABLE
        else:
            assert (third.status, third.answer.create_action) == (0, OPENED)
            assert third.file != once.file

    act(tmp_path, scene, continuous_availability=persistent)


def test_r6_a_used_handle_is_not_replayed_on_a_new_connection(tmp_path: Path) -> None:
    """It is a new open, for which the absent client's durable one gives way."""

    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", lease(1), durable(9))
        assert await client.write(made.file) == 0
        back = await ground.comes_back(client)
        again = await replay(back)
        assert (again.status, again.answer.create_action) == (0, OPENED)
        assert again.file[0] != made.file[0]

    act(tmp_path, scene)


def test_r6_a_replay_of_a_reconnect_finds_nothing_to_reconnect_to(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", lease(1), durable(9))
        back = await ground.comes_back(client)
        assert (await back.make("f", lease(1), reconnect(made.file, 9))).state == RWH
        twice = await back.create("f", lease(1), reconnect(made.file, 9), flags=REPLAY)
        assert twice.status == NtStatus.OBJECT_NAME_NOT_FOUND

    act(tmp_path, scene)


def test_r9_a_reconnect_that_comes_twice(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", lease(1), durable(9))
        back = await ground.comes_back(client)
        assert (await back.make("f", lease(1), reconnect(made.file, 9))).state == RWH
        third = await ground.peer(client.client.guid)
        again = await third.create("f", lease(1), reconnect(made.file, 9))
        assert again.status == NtStatus.OBJECT_NAME_NOT_FOUND
        await ground.lose(back)
        assert (await third.make("f", lease(1), reconnect(made.file, 9))).state == RWH

    act(tmp_path, scene)


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 0),
        ({"create_options": 0x40}, NtStatus.CONTEXT_MISMATCH),
        ({"desired_access": ALL}, NtStatus.CONTEXT_MISMATCH),
        ({"share_access": 3}, NtStatus.CONTEXT_MISMATCH),
    ],
)
def test_r10_a_persistent_open_is_replayed_only_by_the_same_request(
    tmp_path: Path, fields: dict[str, int], status: int, used: bool
) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", lease(1, R), durable(9, True))
        if used:
            assert await client.write(made.file) == 0
        back = await ground.comes_back(client)
        assert (await replay(back, True, R, **fields)).status == status
        assert (await replay(back, True, R)).status == 0

    act(tmp_path, scene, continuous_availability=True)


def test_r10_options_that_the_client_has_changed_are_no_mismatch(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", lease(1, R), durable(9, True))
        assert await client.set_info(made.file, FileInfoClass.MODE, b"\2\0\0\0") == 0
        back = await ground.comes_back(client)
        assert (await replay(back, True, R)).status == 0

    act(tmp_path, scene, continuous_availability=True)


def test_r10_after_a_restart_the_request_is_compared_too(tmp_path: Path) -> None:
    guid = b"\7" * 16

    async def before(ground: Ground) -> None:
        client = await ground.peer(guid)
        await client.make("f", lease(1, RH), durable(9, True))
        await ground.lose(client)

    async def after(ground: Ground) -> None:
        client = await ground.peer(guid)
        other = await replay(client, True, RH, desired_access=READ_WRITE & ~2)
        assert other.status == NtStatus.CONTEXT_MISMATCH
        again = await replay(client, True, RH)
        assert (again.status, again.answer.create_action) == (0, CREATED)
        assert (await replay(client, True, RH)).file == again.file
        assert await client.write(again.file) == 0

    act(tmp_path, before, continuous_availability=True)
    act(tmp_path, after, continuous_availability=True)


def test_r10_a_persistent_open_in_use_is_not_available(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", lease(1, R), durable(9, True))
        assert await client.write(made.file) == 0
        assert (await replay(client, True, R)).status == NtStatus.FILE_NOT_AVAILABLE

    act(tmp_path, scene, continuous_availability=True)
