"""Leases and byte-range locks together: rows L1 to L6, F14 and F19 of docs/caching.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from smb3server.wire.create import CreateDisposition
from smb3server.wire.status import NtStatus
from tests.lab.rule_scene import REPLAY, RH, RW, RWH, Ground, R, act, durable, lease, reconnect

OVERWRITE = int(CreateDisposition.OVERWRITE_IF)


@pytest.mark.parametrize("state", [R, RH])
@pytest.mark.parametrize(("offset", "granted"), [(0, 0), (99, 0), (1 << 30, None)])
def test_l1_a_lock_below_the_allocation_keeps_read_caching_away(
    tmp_path: Path, state: int, offset: int, granted: int | None
) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        file = (await holder.make("f")).file
        assert await holder.write(file, bytes(100)) == 0
        assert await holder.lock(file, offset) == 0
        assert (await other.make("f", lease(1, state))).state == (state if granted is None else granted)

    act(tmp_path, scene)


def test_l1_a_lock_on_an_empty_file_does_not_count(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        file = (await holder.make("f", lease(1, RH))).file
        assert await holder.lock(file) == 0
        assert (await other.make("f", lease(2, RWH))).state == RH
        assert await holder.told() == []

    act(tmp_path, scene)


def test_l2_locks_of_the_same_key_do_not_keep_write_caching_away(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        first = await client.make("f", lease(1, RH))
        assert await client.write(first.file, bytes(100)) == 0
        assert await client.lock(first.file) == 0
        assert (await client.make("f", lease(1, RWH))).state == RWH
        assert (await client.make("g", lease(2, RW))).state == RW

    act(tmp_path, scene)


def test_l3_overwriting_a_locked_file_gets_read_and_handle_caching(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        file = (await holder.make("f")).file
        assert await holder.write(file, bytes(100)) == 0
        assert await holder.lock(file) == 0
        assert (await other.make("f", lease(1), create_disposition=OVERWRITE)).state == RH

    act(tmp_path, scene)


def test_l4_a_lock_breaks_the_leases_of_other_keys_to_none(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        first, other = await ground.peer(), await ground.peer()
        file = (await first.make("f", lease(1, RH))).file
        assert await first.write(file, bytes(100)) == 0
        await other.make("f", lease(2, RH))
        assert await first.lock(file) == 0
        assert await other.told() == [(2, RH, 0)]
        assert await first.told() == []
        assert await other.acknowledge(2, 0) == 0
        assert await first.unlock(file) == 0
        assert (await first.make("f", lease(1, R))).state == RH, "it has kept what it had"

    act(tmp_path, scene)


@pytest.mark.parametrize(
    ("size", "offset", "broken"), [(100, 99, [(2, RH, 0)]), (100, 1 << 30, []), (0, 100, [(2, RH, 0)])]
)
def test_f14_a_lock_beyond_the_allocation_breaks_nothing(
    tmp_path: Path, size: int, offset: int, broken: list[tuple[int, int, int]]
) -> None:
    async def scene(ground: Ground) -> None:
        first, other = await ground.peer(), await ground.peer()
        file = (await first.make("f")).file
        if size:
            assert await first.write(file, bytes(size)) == 0
        await other.make("f", lease(2, RH))
        assert await first.lock(file, offset) == 0
        assert await other.told() == broken

    act(tmp_path, scene)


def test_l5_an_open_that_reconnects_keeps_its_locks(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", lease(1), durable(9))
        assert await client.lock(made.file) == 0
        client = await ground.comes_back(client)
        again = await client.make("f", lease(1), reconnect(made.file, 9))
        assert again.state == RWH
        second = (await client.make("f", lease(1))).file
        assert await client.lock(second) == NtStatus.LOCK_NOT_GRANTED

    act(tmp_path, scene)


@pytest.mark.parametrize(
    ("state", "locks", "status"), [(RH, True, NtStatus.OBJECT_NAME_NOT_FOUND), (RH, False, 0), (RWH, True, 0)]
)
def test_l6_locks_without_write_caching_do_not_outlive_the_connection(
    tmp_path: Path, state: int, locks: bool, status: int
) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        made = await client.make("f", lease(1, state), durable(9))
        assert made.durable is not None
        if locks:
            assert await client.lock(made.file, 1 << 30) == 0
        client = await ground.comes_back(client)
        assert (await client.create("f", lease(1, state), reconnect(made.file, 9))).status == status

    act(tmp_path, scene)


def test_f19_after_a_lease_acknowledgment_a_create_is_not_replayed(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client, other = await ground.peer(), await ground.peer()
        made = await client.make("f", lease(1), durable(9))
        assert (await client.make("f", lease(1), durable(9), flags=REPLAY)).file == made.file
        await other.client.post(5, other.request("f"))
        assert (await other.client.receive()).status == NtStatus.PENDING
        assert await client.told() == [(1, RWH, RH)]
        assert await client.acknowledge(1, RH) == 0
        assert (await other.receive()).status == 0
        assert (await client.make("f", lease(1), durable(9), flags=REPLAY)).file != made.file

    act(tmp_path, scene)
