"""Persistent handles of a server that is killed: nothing acknowledged is lost, and nobody else gets in between."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

from smb3server.client.protocol.messages import ServerError
from smb3server.wire.create import Access, CreateDisposition, CreateOptions, ShareAccess
from smb3server.wire.oplock_break import LeaseState
from smb3server.wire.status import NtStatus
from tests.lab.persistent import OpenLost, PersistentFile, PersistentShare
from tests.lab.process import ServerProcess, run

RWH = int(LeaseState.READ | LeaseState.HANDLE | LeaseState.WRITE)
READ = int(ShareAccess.READ)
KILO = b"x" * 1024


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path)
    process.start()
    yield process
    process.kill()


async def status_of(action: Awaitable[object]) -> int:
    with pytest.raises(ServerError) as caught:
        await action
    return caught.value.status


async def killed_during(server: ServerProcess, action: Awaitable[object], answered: bool) -> None:
    """``answered``: the server dies with the answer on its way to a client that is gone; else with the request unread.
    The action goes on with the next server."""
    if not answered:
        server.send(signal.SIGSTOP)
    task = asyncio.ensure_future(action)
    await asyncio.sleep(0.1)
    if answered:
        await task
    server.kill()
    await asyncio.to_thread(server.start)
    await task


@pytest.mark.parametrize("answered", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("step", ["open", "write", "lock", "unlock", "close"])
def test_kill_at_each_step(server: ServerProcess, step: str, answered: bool) -> None:
    async def body(server: ServerProcess, client: PersistentShare) -> None:
        await client.connected()
        opened: list[PersistentFile] = []

        async def do(name: str) -> None:
            if name == "open":
                opened.append(await client.open("f", share=READ, lease_state=RWH))
            elif name == "write":
                await opened[0].write(0, KILO)
            elif name == "lock":
                await opened[0].lock(0, 100)
            elif name == "unlock":
                await opened[0].unlock(0, 100)
            else:
                await opened[0].close()

        steps = ["open", "write", "lock", "unlock", "close"]
        for name in steps:
            if name == step:
                await killed_during(server, do(name), answered)
            else:
                await do(name)
        assert (server.share / "f").read_bytes() == KILO
        # Nothing is left that would keep others out.
        other = server.client()
        file = await other.open("f", share=0)
        await file.lock(0, 100)
        await file.close()
        await other.close()

    run(server, body)


def test_writes_go_on_over_many_kills(server: ServerProcess) -> None:
    async def body(server: ServerProcess, client: PersistentShare) -> None:
        file = await client.open("data", lease_state=RWH)
        acknowledged = 0

        async def write() -> None:
            nonlocal acknowledged
            while acknowledged < 400:
                block = acknowledged.to_bytes(4, "little") * 1024
                await file.write(4096 * acknowledged, block)
                acknowledged += 1

        writer = asyncio.ensure_future(write())
        for _ in range(3):
            before = acknowledged
            while acknowledged < before + 10 and not writer.done():
                await asyncio.sleep(0.005)
            assert not writer.done()
            server.kill()
            await asyncio.to_thread(server.start)
        await writer
        await file.close()
        content = (server.share / "data").read_bytes()
        assert content == b"".join(number.to_bytes(4, "little") * 1024 for number in range(400))

    run(server, body)


def test_others_are_held_off_until_the_owner_is_back(server: ServerProcess) -> None:
    async def body(server: ServerProcess, client: PersistentShare) -> None:
        file = await client.open("f")
        await file.write(0, b"mine")
        await file.lock(0, 4)
        await client.close()
        server.restart()
        other = server.client(patience=0)
        # Without handle caching nobody can be asked to let go: 3.3.5.9.
        assert await status_of(other.open("f")) == NtStatus.FILE_NOT_AVAILABLE
        tree = await other.connected()
        assert await status_of(tree.create("f")) == NtStatus.FILE_NOT_AVAILABLE
        assert await file.read(0, 4) == b"mine"
        theirs = await tree.create("f")
        assert await status_of(tree.read(theirs, 0, 4)) == NtStatus.FILE_LOCK_CONFLICT
        await file.close()
        assert await tree.read(theirs, 0, 4) == b"mine"
        await other.close()

    run(server, body)


def test_break_waits_for_the_owner_over_restarts(server: ServerProcess) -> None:
    async def body(server: ServerProcess, client: PersistentShare) -> None:
        file = await client.open("f", lease_state=RWH)
        broken: list[int] = []
        file.on_broken = broken.append
        await client.close()
        server.restart()
        other = server.client()
        opening = asyncio.ensure_future(other.open("f"))
        await asyncio.sleep(0.3)
        assert not opening.done()
        # The break that began is remembered, too.
        server.restart()
        await asyncio.sleep(0.5)
        assert not opening.done() and not broken
        assert await file.write(0, b"dirty") == 5
        while not broken:
            await asyncio.sleep(0.01)
        assert not broken[0] & LeaseState.WRITE
        await file.close()
        theirs = await opening
        assert await theirs.read(0, 5) == b"dirty"
        await theirs.close()
        await other.close()

    run(server, body)


def test_time_out_without_the_owner(server: ServerProcess) -> None:
    async def body(server: ServerProcess, client: PersistentShare) -> None:
        options = int(CreateOptions.DELETE_ON_CLOSE)
        file = await client.open("gone", timeout=1.0, options=options)
        kept = await client.open("kept", timeout=30)
        await client.close()
        server.restart()
        assert (server.share / "gone").exists()
        other = server.client(patience=10)
        tree = await other.connected()
        while (server.share / "gone").exists():
            assert await status_of(tree.create("gone")) == NtStatus.FILE_NOT_AVAILABLE
            await asyncio.sleep(0.2)
        with pytest.raises(OpenLost):
            await file.read(0, 1)
        server.restart()
        await kept.close()
        await other.close()

    run(server, body)


def test_orderly_end_keeps_handles(server: ServerProcess) -> None:
    async def body(server: ServerProcess, client: PersistentShare) -> None:
        file = await client.open("f", options=int(CreateOptions.DELETE_ON_CLOSE))
        await file.write(0, b"1")
        server.kill(signal.SIGTERM)
        await asyncio.to_thread(server.start)
        await file.write(1, b"2")
        assert (server.share / "f").read_bytes() == b"12"
        await file.close()
        assert not (server.share / "f").exists()

    run(server, body)


def test_renamed_and_marked_for_deletion(server: ServerProcess) -> None:
    async def body(server: ServerProcess, client: PersistentShare) -> None:
        file = await client.open("before")
        tree = await client.connected()
        remote = await file._attached(tree)
        await tree.rename(remote, "after")
        await tree.set_info(remote, 13, b"\1")
        server.restart()
        assert (server.share / "after").exists()
        other = server.client()
        assert await status_of((await other.connected()).create("after")) == NtStatus.DELETE_PENDING
        await other.close()
        await file.close()
        assert not (server.share / "after").exists()

    run(server, body)


def test_deletion_by_another_open_outlives_the_server(server: ServerProcess) -> None:
    """Linux unlinks what a program has open by a CREATE with FILE_DELETE_ON_CLOSE of its own."""

    async def body(server: ServerProcess, client: PersistentShare) -> None:
        file = await client.open("f")
        tree = await client.connected()
        marking = await tree.create("f", options=int(CreateOptions.DELETE_ON_CLOSE), access=int(Access.DELETE))
        await tree.close(marking)
        server.restart()
        assert await file.write(0, KILO) == len(KILO)
        other = server.client()
        assert await status_of((await other.connected()).create("f")) == NtStatus.DELETE_PENDING
        await other.close()
        await file.close()
        assert not (server.share / "f").exists()

    run(server, body)


def test_only_where_and_to_whom_it_is_granted(server: ServerProcess) -> None:
    async def body(server: ServerProcess, client: PersistentShare) -> None:
        plain = server.client("plain")
        with pytest.raises(OpenLost):
            await plain.open("f")
        assert (await plain.connected()).capabilities & 0x10 == 0
        assert (await client.connected()).capabilities & 0x10
        file = await client.open("g", disposition=CreateDisposition.CREATE)
        thief = server.client()
        stolen = PersistentFile(thief, "g", *file._create, 0, 0)
        stolen.create_guid, stolen._file, stolen._generation = bytes(16), file._file, -1
        with pytest.raises(OpenLost):
            await stolen.read(0, 1)
        await file.close()
        await plain.close()
        await thief.close()

    run(server, body)
