"""What one user may have, over all connections: the others always find something left."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from smb3server.access.identity import Identity
from smb3server.auth.users import Account, nt_hash
from smb3server.client.protocol import Client, ServerError, Tree, open_tcp
from smb3server.client.protocol.tree import READ_WRITE, RemoteFile
from smb3server.config.error import ConfigError
from smb3server.config.model import Config
from smb3server.config.reader import read_file
from smb3server.settings.server import Settings
from smb3server.state.ceilings import GUESTS, LEAST, Ceilings, Usage
from smb3server.wire.change_notify import NotifyFilter
from smb3server.wire.create import CreateDisposition
from smb3server.wire.create_contexts import (
    DURABLE_REQUEST_V2,
    DURABLE_REQUEST_V2_CODEC,
    DurableRequestV2,
    RawContext,
)
from smb3server.wire.lock import LockElement, LockFlags
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.status import NtStatus, StatusError
from tests.lab.services import configured, port_of, running

LONGEST_TURN = 0.1

LIMIT = 200


def two_users(tmp_path: Path) -> Config:
    config = configured(tmp_path)
    config.accounts.append(Account("other", nt_hash("pw")))
    return config


@asynccontextmanager
async def limited(tmp_path: Path, **limits: int) -> Any:
    config = two_users(tmp_path)
    for name, value in limits.items():
        setattr(config.settings, name, value)
    async with running(config) as service:
        service.server.opens.limit = LIMIT
        yield service


async def _connect(service: Any) -> Client:
    return await Client.connect(await open_tcp("127.0.0.1", port_of(service, "tcp", "0.0.0.0")))


async def _tree(service: Any, user: str = "u") -> Tree:
    client = await _connect(service)
    client.credits_wanted = 256
    return await (await client.log_on(user, "pw")).tree_connect("share")


async def _open_all(tree: Tree, name: str = "f") -> list[RemoteFile]:
    made: list[RemoteFile] = []
    with pytest.raises(ServerError) as caught:
        while len(made) <= LIMIT:
            made.append(await tree.create(name, READ_WRITE, CreateDisposition.OPEN_IF))
    assert caught.value.status == NtStatus.INSUFFICIENT_RESOURCES
    return made


def test_each_user_leaves_opens_to_the_next(tmp_path: Path) -> None:
    """Over all connections of a user; what is closed may be had again."""

    async def test() -> None:
        async with limited(tmp_path) as service:
            first, second = await _tree(service), await _tree(service)
            made = await _open_all(first)
            assert len(made) == LIMIT // 2
            assert await _open_all(second) == []
            await first.close(made.pop())
            await second.create("f", READ_WRITE, CreateDisposition.OPEN)
            other = await _tree(service, "other")
            assert len(await _open_all(other, "g")) == LIMIT // 4
            first.client.transport.abort("gone")
            async with asyncio.timeout(20):
                while len(service.server.opens.by_id) > LIMIT // 2:
                    await asyncio.sleep(0.01)
            assert len(await _open_all(second)) > LIMIT // 4
            for tree in (second, other):
                await tree.client.close()

    asyncio.run(test())


def test_opens_whose_client_is_away_are_given_up_first(tmp_path: Path) -> None:
    """The longest away first. They count for their user, and do not keep anybody from logging on."""

    def durable() -> list[RawContext]:
        data = DURABLE_REQUEST_V2_CODEC.pack(DurableRequestV2(300000, 0, 0, os.urandom(16)))
        return [RawContext(DURABLE_REQUEST_V2, data)]

    async def test() -> None:
        async with limited(tmp_path) as service:
            leaving = await _tree(service)
            for index in range(LIMIT // 2):
                await leaving.create(
                    f"d{index}", READ_WRITE, CreateDisposition.CREATE, oplock=OplockLevel.BATCH, contexts=durable()
                )
            leaving.client.transport.abort("gone")
            usage = service.server.ceilings.of_name("u")
            async with asyncio.timeout(20):
                while len(usage.away) < LIMIT // 2:
                    await asyncio.sleep(0.01)
            assert usage.opens == LIMIT // 2
            tree = await _tree(service)
            for index in range(10):
                await tree.create(f"n{index}", READ_WRITE, CreateDisposition.CREATE)
            assert usage.opens == LIMIT // 2
            left = {entry.path for entry in usage.away}
            assert left == {(f"d{index}",) for index in range(10, LIMIT // 2)}
            other = await _tree(service, "other")
            await other.create("mine", READ_WRITE, CreateDisposition.CREATE)
            assert len(usage.away) == LIMIT // 2 - 10
            for entry in (tree, other):
                await entry.client.close()

    asyncio.run(test())


def test_one_user_does_not_take_all_connections(tmp_path: Path) -> None:
    async def test() -> None:
        async with limited(tmp_path, max_connections=80) as service:
            made = []
            with pytest.raises(ServerError) as caught:
                while len(made) < 80:
                    client = await _connect(service)
                    made.append(client)
                    await client.log_on("u", "pw")
            assert caught.value.status == NtStatus.REQUEST_NOT_ACCEPTED
            usage = service.server.ceilings.of_name("u")
            assert usage.connections == usage.sessions == 40
            other = await _tree(service, "other")
            for _ in range(4):
                await made.pop(0).close()
            async with asyncio.timeout(20):
                while usage.connections > 36:
                    await asyncio.sleep(0.01)
            assert usage.sessions == 36
            await _tree(service)
            await other.client.close()
            for client in made:
                await client.close()

    asyncio.run(test())


def test_sessions_locks_and_watchers_have_numbers(tmp_path: Path) -> None:
    limits = {"max_sessions_per_user": 3, "max_locks_per_user": 10, "max_watchers_per_user": 4}

    async def test() -> None:
        async with limited(tmp_path, **limits) as service:
            client = await _connect(service)
            sessions = [await client.log_on("u", "pw") for _ in range(3)]
            with pytest.raises(ServerError) as caught:
                await client.log_on("u", "pw")
            assert caught.value.status == NtStatus.REQUEST_NOT_ACCEPTED
            trees = [await session.tree_connect("share") for session in sessions]
            usage: Usage = service.server.ceilings.of_name("u")

            files = [await tree.create(f"f{number}", READ_WRITE, 3) for number, tree in enumerate(trees)]
            exclusive = int(LockFlags.EXCLUSIVE_LOCK | LockFlags.FAIL_IMMEDIATELY)
            wanted = [LockElement(index * 10, 5, exclusive) for index in range(4)]
            for tree, file in list(zip(trees, files, strict=True))[:2]:
                await tree.lock(file, wanted)
            assert usage.locks == 8
            with pytest.raises(ServerError) as caught:
                await trees[2].lock(files[2], wanted)
            assert caught.value.status == NtStatus.INSUFFICIENT_RESOURCES
            await trees[0].lock(files[0], [LockElement(0, 5, int(LockFlags.UNLOCK))])
            await trees[1].close(files[1])
            assert usage.locks == 3
            await trees[2].lock(files[2], wanted)

            watching = []
            for index in range(4):
                tree = trees[index % 3]
                folder = await tree.create("", 0x120089, CreateDisposition.OPEN, 1)
                watching.append((tree, folder, await tree.watch(folder, int(NotifyFilter.FILE_NAME))))
            folder = await trees[0].create("", 0x120089, CreateDisposition.OPEN, 1)
            with pytest.raises(ServerError) as caught:
                await trees[0].changes(await trees[0].watch(folder, int(NotifyFilter.FILE_NAME)))
            assert caught.value.status == NtStatus.INSUFFICIENT_RESOURCES
            await watching[0][0].close(watching[0][1])
            assert usage.watchers == 3
            await client.close()
            async with asyncio.timeout(20):
                while not usage.idle:
                    await asyncio.sleep(0.01)
            assert (usage.locks, usage.watchers, usage.reserved) == (0, 0, 0)

    asyncio.run(test())


def test_who_counts_as_one_user() -> None:
    """Guests, who choose their names, are one; a domain, which an NTLM client chooses, makes no difference."""
    ceilings = Ceilings(Settings())
    guests = [Identity("a", guest=True), Identity("b", guest=True), Identity("", anonymous=True)]
    assert {ceilings.of(who).name for who in guests} == {GUESTS}
    assert ceilings.of(Identity("Alice", "HERE")) is ceilings.of(Identity("alice", "THERE"))
    assert ceilings.of(Identity("alice")) is not ceilings.of(Identity("alice", guest=True))


@pytest.mark.parametrize(("share", "first", "second"), [(0.5, 5000, 2500), (0.8, 8000, 1600), (1.0, 10000, 0)])
def test_shares_of_what_there_is(share: float, first: int, second: int) -> None:
    """A backup job with thousands of opens works, on a machine that has as many."""
    settings = Settings()
    settings.max_user_share = share
    ceilings = Ceilings(settings)
    one, other = ceilings.of_name("one"), ceilings.of_name("other")

    def fill(usage: Usage, others: int) -> int:
        with pytest.raises(StatusError):
            while True:
                ceilings.check_open(usage, usage.opens + others, 10_000)
                usage.opens += 1
        return usage.opens

    assert fill(one, 0) == first
    assert fill(other, first) == second or second < LEAST


def test_users_who_have_nothing_are_forgotten() -> None:
    ceilings = Ceilings(Settings())
    kept = ceilings.of_name("kept")
    kept.opens = 1
    for number in range(5000):
        ceilings.of_name(f"u{number}")
    assert len(ceilings._users) < 2049
    assert ceilings.of_name("kept") is kept


def test_a_share_is_no_more_than_all(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[limits]\nmax_user_share = 1.5\n")
    with pytest.raises(ConfigError, match=r"max_user_share: must be a number from 0 to 1, not 1.5"):
        read_file(file)
