"""How long the client waits for a server that does not answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from smb3server.client.protocol import Client, Tree, open_tcp
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.header import Command
from smb3server.wire.lock import LockElement, LockFlags
from smbdirect.errors import ConnectionLost
from tests.lab import meddler
from tests.lab.services import configured, port_of, running

LIMIT = 0.4
Use = Callable[[Tree, "Held"], Awaitable[None]]


class Held:
    """Answers to commands that are kept back."""

    def __init__(self) -> None:
        self.commands: set[int] = set()
        self.every = False
        self.seen: list[int] = []

    def __call__(self, message: bytearray) -> bool:
        command = meddler.command_of(message)
        self.seen.append(command)
        return self.every or command in self.commands


def with_limit(tmp_path: Path, use: Use, limit: float = LIMIT) -> None:
    async def test() -> None:
        held = Held()
        async with (
            running(configured(tmp_path, "--listen", "127.0.0.1")) as service,
            meddler.between(port_of(service, "tcp", "127.0.0.1"), held) as port,
        ):
            client = await Client.connect(await open_tcp("127.0.0.1", port))
            tree = await (await client.log_on("u", "pw", sign=True)).tree_connect("share")
            client.limit_answers(limit)
            async with asyncio.timeout(20):
                await use(tree, held)
            await client.close()

    asyncio.run(test())


def test_an_answer_that_does_not_come_ends_the_connection(tmp_path: Path) -> None:
    async def use(tree: Tree, held: Held) -> None:
        file = await tree.create("a", READ_WRITE, CreateDisposition.CREATE)
        await asyncio.sleep(2 * LIMIT)
        assert tree.client.closed is None, "nobody waits for anything"
        held.commands.add(Command.READ)
        began = time.monotonic()
        with pytest.raises(ConnectionLost, match=r"no answer in 0\.4 seconds"):
            await tree.read(file, 0, 10)
        assert time.monotonic() - began >= LIMIT

    with_limit(tmp_path, use)


def test_the_limit_is_for_one_answer_and_not_for_all(tmp_path: Path) -> None:
    """Many answers, each in good time, may take longer together; as does what waits behind others."""

    async def use(tree: Tree, held: Held) -> None:
        client = tree.client
        original = client.transport.send
        file = await tree.create("a", READ_WRITE, CreateDisposition.CREATE)
        await tree.write(file, 0, b"x" * 100)

        def late(*words: object) -> None:
            asyncio.get_running_loop().call_later(0.12 * next(turns), original, *words)

        turns = iter(range(1, 10))
        client.transport.send = late  # type: ignore[method-assign,assignment]
        began = time.monotonic()
        assert await asyncio.gather(*(tree.read(file, 0, 1) for _ in range(8))) == [b"x"] * 8
        assert time.monotonic() - began > 2 * LIMIT
        client.transport.send = original  # type: ignore[method-assign]

    with_limit(tmp_path, use)


def test_an_old_request_is_not_forgotten_beside_new_ones(tmp_path: Path) -> None:
    async def use(tree: Tree, held: Held) -> None:
        file = await tree.create("a", READ_WRITE, CreateDisposition.CREATE)
        held.commands.add(Command.READ)

        async def others() -> None:
            while True:
                await tree.client.echo()
                await asyncio.sleep(0.02)

        busy = asyncio.create_task(others())
        with pytest.raises(ConnectionLost, match="no answer"):
            await tree.read(file, 0, 10)
        with pytest.raises(ConnectionLost):
            await busy

    with_limit(tmp_path, use)


def test_a_watch_and_a_lock_may_last(tmp_path: Path) -> None:
    async def use(tree: Tree, held: Held) -> None:
        folder = await tree.create("", options=CreateOptions.DIRECTORY_FILE)
        watching = await tree.watch(folder, 0x17F)
        first, second = [await tree.create("a", READ_WRITE, CreateDisposition.OPEN_IF) for _ in range(2)]
        whole = [LockElement(0, 10, int(LockFlags.EXCLUSIVE_LOCK))]
        await tree.lock(first, whole)
        lock = asyncio.create_task(tree.lock(second, whole))
        await asyncio.sleep(6 * LIMIT)
        assert not lock.done() and Command.ECHO in held.seen
        await tree.close(first)
        await lock
        assert await tree.client.finish(watching)

    with_limit(tmp_path, use)


def test_a_watch_ends_with_a_server_that_is_not_there(tmp_path: Path) -> None:
    async def use(tree: Tree, held: Held) -> None:
        folder = await tree.create("", options=CreateOptions.DIRECTORY_FILE)
        watching = await tree.watch(folder, 0x17F)
        await asyncio.sleep(0.1)
        held.every = True
        began = time.monotonic()
        with pytest.raises(ConnectionLost, match="no answer"):
            await tree.changes(watching)
        assert time.monotonic() - began < 10

    with_limit(tmp_path, use)


def test_without_a_limit_the_client_waits(tmp_path: Path) -> None:
    async def use(tree: Tree, held: Held) -> None:
        held.commands.add(Command.CREATE)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3 * LIMIT):
                await tree.create("a")
        assert tree.client.closed is None
        held.commands.clear()
        tree.client.transport.abort("the test ends")

    with_limit(tmp_path, use, 0)
