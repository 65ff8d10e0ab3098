"""Outstanding asynchronous requests: rows A1 to A5 of docs/caching.md."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from smb3server.settings.server import Settings
from smb3server.wire import lock
from smb3server.wire.create import CreateOptions
from smb3server.wire.header import Command
from smb3server.wire.status import NtStatus
from tests.lab.file_requests import lock_body
from tests.lab.rule_scene import FileId, Ground, Peer, act
from tests.lab.wire_client import ECHO, Client, Reply

DIRECTORY = int(CreateOptions.DIRECTORY_FILE)
LIMIT = 12


def settings() -> Settings:
    return Settings(max_async_requests=LIMIT)


def notify_body(file: FileId) -> bytes:
    return struct.pack("<HHIQQII", 32, 0, 1024, *file, 1, 0)


def read_body(file: FileId, length: int) -> bytes:
    return struct.pack("<HBBIQQQIIIHHB", 49, 80, 0, length, 0, *file, 0, 0, 0, 0, 0, 0)


async def pipe(client: Client) -> FileId:
    assert (await client.tree_connect("IPC$")).status == 0
    reply = await client.call(Command.CREATE, Peer.request("srvsvc"))
    assert reply.status == 0
    persistent, volatile = struct.unpack_from("<QQ", reply.body, 64)
    return persistent, volatile


async def send(client: Client, command: int, body: bytes, count: int = LIMIT + 2) -> list[Reply]:
    """Send ``count`` requests, and return the first answer to each."""
    for _ in range(count):
        await client.post(command, body)
    return [await client.receive() for _ in range(count)]


def check(replies: list[Reply], accepted: int = LIMIT - 1) -> None:
    assert [reply.status for reply in replies] == [NtStatus.PENDING] * accepted + [NtStatus.INSUFFICIENT_RESOURCES] * (
        len(replies) - accepted
    )
    assert all(reply.header.credits for reply in replies), "the interim reply grants the credits"


async def waiting_requests(ground: Ground, client: Client, kind: str) -> tuple[int, bytes]:
    """A command and its body that waits for others."""
    if kind.startswith("pipe"):
        return Command.READ, read_body(await pipe(client), 0 if kind == "pipe, no bytes" else 1024)
    peer = Peer(client)
    if kind == "notify":
        return Command.CHANGE_NOTIFY, notify_body((await peer.make("", create_options=DIRECTORY)).file)
    holder = await ground.peer()
    held = (await holder.make("f")).file
    assert await holder.lock(held) == 0
    return Command.LOCK, lock_body((await peer.make("f")).file, lock.LockElement(0, 1, 2))


@pytest.mark.parametrize("kind", ["notify", "pipe", "pipe, no bytes", "lock"])
def test_a1_a2_a3_as_many_as_the_connection_may_have(tmp_path: Path, kind: str) -> None:
    async def scene(ground: Ground) -> None:
        client = (await ground.peer()).client
        command, body = await waiting_requests(ground, client, kind)
        replies = await send(client, command, body)
        check(replies)
        # CANCEL makes room.
        await client.post(Command.CANCEL, struct.pack("<HH", 4, 0), message_id=replies[0].header.message_id)
        cancelled = await client.receive()
        assert (cancelled.status, cancelled.header.credits) == (NtStatus.CANCELLED, 0)
        check(await send(client, command, body, 2), 1)

    act(tmp_path, scene, settings())


def test_a1_the_number_is_that_of_windows() -> None:
    assert Settings().max_async_requests == 512


def test_a3_all_kinds_count_alike(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = (await ground.peer()).client
        tree = client.tree_id
        on_pipe = await waiting_requests(ground, client, "pipe")
        ipc, client.tree_id = client.tree_id, tree
        # Locks first, as making their file would be a change.
        for kind in ("lock", "notify"):
            check(await send(client, *await waiting_requests(ground, client, kind), 4), 4)
        client.tree_id = ipc
        check(await send(client, *on_pipe, 4), 3)

    act(tmp_path, scene, settings())


def test_a3_slow_requests_do_not_keep_others_from_waiting(tmp_path: Path) -> None:
    """What is only slow gets its interim reply later, and is bounded by credits until then."""

    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        held = (await client.make("held")).file
        other = await ground.peer()
        file = (await other.make("held")).file
        assert await client.lock(held) == 0
        for _ in range(LIMIT + 2):
            await other.client.post(Command.FLUSH, struct.pack("<HHIQQ", 24, 0, 0, *file))
        await other.client.post(Command.LOCK, lock_body(file, lock.LockElement(0, 1, 2)))
        statuses = [(await other.client.receive()).status for _ in range(LIMIT + 3)]
        assert sorted(statuses)[-1] == 0x103
        assert NtStatus.INSUFFICIENT_RESOURCES not in statuses

    act(tmp_path, scene, settings())


@asynccontextmanager
async def second_channel(ground: Ground, first: Client) -> AsyncIterator[Client]:
    client = await ground.connect()
    client.guid = first.guid
    assert (await client.negotiate()).status == 0
    client.session_id, client.signer, client.session_key = first.session_id, first.signer, first.session_key
    assert (await client.session_setup(binding=True)).status == 0
    client.tree_id = first.tree_id
    yield client


@pytest.mark.parametrize("kind", ["notify", "pipe", "lock"])
def test_a4_each_channel_of_a_session_has_its_own_bound(tmp_path: Path, kind: str) -> None:
    async def scene(ground: Ground) -> None:
        first = (await ground.peer()).client
        command, body = await waiting_requests(ground, first, kind)
        async with second_channel(ground, first) as second:
            check(await send(first, command, body))
            check(await send(second, command, body))

    act(tmp_path, scene, settings())


@pytest.mark.parametrize("kind", ["notify", "pipe"])
def test_a4_each_connection_of_a_client_has_its_own_bound(tmp_path: Path, kind: str) -> None:
    async def scene(ground: Ground) -> None:
        first = await ground.peer()
        second = await ground.peer(first.client.guid)
        for client in (first.client, second.client):
            check(await send(client, *await waiting_requests(ground, client, kind)))

    act(tmp_path, scene, settings())


def test_a5_the_client_is_never_left_without_a_credit(tmp_path: Path) -> None:
    """It asks for none, and has used up what it was granted."""

    async def scene(ground: Ground) -> None:
        client = (await ground.peer()).client
        command, body = await waiting_requests(ground, client, "notify")
        for _ in range(600):
            await client.post(command, body, credits=0)
            await client.receive()
        assert (await client.call(Command.ECHO, ECHO)).status == 0

    act(tmp_path, scene, settings())


def test_a_read_of_a_pipe_gets_the_next_message(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = (await ground.peer()).client
        file = await pipe(client)
        [pending, *_] = await send(client, Command.READ, read_body(file, 1024), 2)
        bind = struct.pack("<BBBBIHHI", 5, 0, 11, 3, 0x10, 72, 0, 1) + struct.pack("<HHI", 4280, 4280, 0)
        srvsvc = bytes.fromhex("c84f324b7016d30112785a47bf6ee188") + struct.pack("<I", 3)
        ndr = bytes.fromhex("045d888aeb1cc9119fe808002b104860") + struct.pack("<I", 2)
        bind += struct.pack("<BxxxHBx", 1, 0, 1) + srvsvc + ndr
        write = struct.pack("<HHIQQQIIHHI", 49, 112, len(bind), 0, *file, 0, 0, 0, 0, 0) + bind
        message = client.message_id
        await client.post(Command.WRITE, write)
        replies = {reply.header.message_id: reply for reply in [await client.receive() for _ in range(2)]}
        assert replies[message].status == 0
        answered = replies[pending.header.message_id]
        assert (answered.status, answered.body[16 + 2]) == (0, 12), "bind_ack, to the oldest READ"
        # The other READ ends with the pipe.
        close = struct.pack("<HHIQQ", 24, 0, 0, *file)
        await client.post(Command.CLOSE, close)
        statuses = sorted([(await client.receive()).status for _ in range(2)])
        assert statuses == [0, NtStatus.PIPE_BROKEN]

    act(tmp_path, scene, settings())
