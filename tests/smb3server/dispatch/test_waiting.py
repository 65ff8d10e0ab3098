"""Requests that wait for somebody else: whose failure is whose, and what is left when they end."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from smb3server.backends.local.backend import LocalBackend
from smb3server.commands.create import handler
from smb3server.commands.create.opening import Opening
from smb3server.commands.info import rename
from smb3server.dispatch.request import HANDLERS, Request
from smb3server.dispatch.waiting import when_read
from smb3server.files import flushes, host_locks, notify
from smb3server.files.caching import READ
from smb3server.files.locks import LockTable, Waiter
from smb3server.persistence import journal as persistence
from smb3server.settings.server import Settings
from smb3server.state.objects import Open
from smb3server.state.share import Share
from smb3server.wire import lock, oplock_break, read_write
from smb3server.wire.create_contexts import ALLOCATION_SIZE, RawContext
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command, HeaderFlags
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.status import NtStatus
from tests.lab.durable import durable_create, file_id
from tests.lab.file_requests import (
    ALL,
    FileId,
    lease_context,
    lock_body,
    opened,
    request,
    run,
    second,
    status_of,
    write,
)
from tests.lab.wire_client import Client, Harness, Reply, drive, ioctl_body

BATCH = int(OplockLevel.BATCH)
EXCLUSIVE, UNLOCK = 0x2, 0x4
AT_ONCE = 0x10
READ_DATA = 0x00120089


async def hold(client: Client, name: str = "f", **fields: Any) -> FileId:
    """Open it with a batch oplock."""
    answer, file, _ = await opened(client, name, requested_oplock_level=BATCH, **fields)
    assert answer.oplock_level == BATCH
    return file


async def wait_in_vain(client: Client, body: bytes, command: int = Command.CREATE) -> None:
    await client.post(command, body)
    assert (await client.receive()).status == NtStatus.PENDING


async def acknowledge(client: Client, file: FileId) -> int:
    """Answer the notification that has come; returns the status."""
    told = oplock_break.parse_notification(memoryview((await client.receive()).message))
    assert isinstance(told, oplock_break.OplockBreak)
    assert (told.persistent, told.volatile) == file
    return (await client.call(Command.OPLOCK_BREAK, oplock_break.OPLOCK_BREAK.pack(told))).status


def fail_for(monkeypatch: pytest.MonkeyPatch, *clients: Client) -> None:
    """From now on the opening of files for these clients fails in a way that nobody thought of."""
    attempt = Opening.attempt

    def broken(opening: Opening) -> Open:
        if opening.opener.client_guid in [client.guid for client in clients]:
            raise RuntimeError("a fault in the server")
        return attempt(opening)

    monkeypatch.setattr(Opening, "attempt", broken)


def test_a_create_that_fails_touches_neither_who_acknowledges_nor_who_waits_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(harness: Harness, client: Client) -> None:
        file = await hold(client)
        failing, next_one = await second(harness), await second(harness)
        for other in (failing, next_one):
            await wait_in_vain(other, request("f"))
        fail_for(monkeypatch, failing)
        assert await acknowledge(client, file) == 0
        assert (await failing.receive()).status == NtStatus.INTERNAL_ERROR
        assert (await next_one.receive()).status == 0

    run(test)


def test_a_create_that_fails_does_not_touch_who_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(harness: Harness, client: Client) -> None:
        file = await hold(client)
        failing = await second(harness)
        await wait_in_vain(failing, request("f"))
        await client.receive()
        fail_for(monkeypatch, failing)
        body = struct.pack("<HHI2Q", 24, 0, 0, *file)
        assert (await client.call(Command.CLOSE, body)).status == 0
        assert (await failing.receive()).status == NtStatus.INTERNAL_ERROR
        assert not harness.server.opens.by_id

    run(test)


@pytest.mark.parametrize("waited", [False, True])
def test_a_create_that_fails_late_leaves_no_open(monkeypatch: pytest.MonkeyPatch, waited: bool) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a fault in the server")

    async def test(harness: Harness, client: Client) -> None:
        other = await second(harness)
        if waited:
            file = await hold(client)
            await wait_in_vain(other, request("f"))
            monkeypatch.setattr(handler, "describe", broken)
            assert await acknowledge(client, file) == 0
        else:
            monkeypatch.setattr(handler, "describe", broken)
            await other.post(Command.CREATE, request("f"))
        assert (await other.receive()).status == NtStatus.INTERNAL_ERROR
        assert len(harness.server.opens.by_id) == waited
        monkeypatch.undo()
        # What this CREATE had made is gone as well.
        expected = 0 if waited else NtStatus.OBJECT_NAME_NOT_FOUND
        assert await status_of(client, "f", create_disposition=1) == expected

    run(test)


def test_a_create_that_may_not_wait_leaves_no_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has enough asynchronous requests of this client, and this one would take a while."""
    monkeypatch.setattr(handler, "_reservation", lambda *_: iter(()))

    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.login()
        space = RawContext(ALLOCATION_SIZE, struct.pack("<Q", 1 << 20))
        assert (await client.call(Command.CREATE, request("f", [space]))).status == NtStatus.INSUFFICIENT_RESOURCES
        assert not harness.server.opens.by_id

    drive(test, Settings(min_dialect=0x0202, rdma_min_dialect=0x0202, max_async_requests=0, max_credits=0))


def refuse(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    """The host fails to lock what begins there."""
    take = host_locks.take

    def failing(found: Open, start: int, length: int, exclusive: bool) -> bool:
        if start == offset:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        return take(found, start, length, exclusive)

    monkeypatch.setattr(host_locks, "take", failing)


async def ask_lock(client: Client, file: FileId, offset: int, length: int, flags: int) -> int:
    return (await client.call(Command.LOCK, lock_body(file, lock.LockElement(offset, length, flags)))).status


def test_a_lock_that_fails_touches_neither_who_unlocks_nor_who_waits_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(harness: Harness, client: Client) -> None:
        _, file, _ = await opened(client, "f")
        assert await ask_lock(client, file, 0, 20, EXCLUSIVE | AT_ONCE) == 0
        waiting = []
        for offset in (5, 10):
            other = await second(harness)
            _, theirs, _ = await opened(other, "f")
            await wait_in_vain(other, lock_body(theirs, lock.LockElement(offset, 1, EXCLUSIVE)), Command.LOCK)
            waiting.append(other)
        refuse(monkeypatch, 5)
        assert await ask_lock(client, file, 0, 20, UNLOCK) == 0
        assert (await waiting[0].receive()).status == NtStatus.UNSUCCESSFUL
        assert (await waiting[1].receive()).status == 0
        monkeypatch.undo()
        assert await ask_lock(client, file, 5, 1, EXCLUSIVE | AT_ONCE) == 0
        assert await ask_lock(client, file, 10, 1, EXCLUSIVE | AT_ONCE) == NtStatus.LOCK_NOT_GRANTED

    run(test)


def test_a_lock_that_the_host_fails_to_take_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(harness: Harness, client: Client) -> None:
        _, file, _ = await opened(client, "f")
        refuse(monkeypatch, 5)
        assert await ask_lock(client, file, 5, 1, EXCLUSIVE | AT_ONCE) == NtStatus.UNSUCCESSFUL
        monkeypatch.undo()
        assert await ask_lock(client, file, 5, 1, EXCLUSIVE | AT_ONCE) == 0

    run(test)


def test_who_waits_and_loses_the_connection_leaves_nothing() -> None:
    async def test(harness: Harness, client: Client) -> None:
        file = await hold(client)
        gone, stays = await second(harness), await second(harness)
        await wait_in_vain(gone, durable_create("f"))
        await wait_in_vain(stays, request("f"))
        gone.writer.close()
        async with asyncio.timeout(10):
            while len(harness.server.connection_list) > 2:
                await asyncio.sleep(0.005)
        assert await acknowledge(client, file) == 0
        assert (await stays.receive()).status == 0
        assert len(harness.server.opens.by_id) == 2
        assert not harness.server.opens.replays._waiting

    run(test)


def test_a_rename_whose_break_ends_in_the_same_turn_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The acknowledgment may be the next message that the event loop delivers."""
    start = rename.Rename.start

    def at_once(change: rename.Rename, done: Any) -> Any:
        result = start(change, done)
        assert change.opened.file is not None
        for holder in list(change.opened.file.caching.holders):
            if holder.breaking:
                holder.end_break(READ)
        return result

    monkeypatch.setattr(rename.Rename, "start", at_once)

    async def test(harness: Harness, client: Client) -> None:
        lease = lease_context(b"k" * 16, 3)
        await opened(client, "f", [lease], requested_oplock_level=int(OplockLevel.LEASE))
        other = await second(harness)
        _, file, _ = await opened(other, "f", desired_access=ALL)
        target = "g".encode("utf-16-le")
        data = struct.pack("<B7xQI", 0, 0, len(target)) + target
        body = struct.pack("<HBBIHHI2Q", 33, 1, FileInfoClass.RENAME, len(data), 96, 0, 0, *file) + data
        assert (await other.call(Command.SET_INFO, body)).status == 0

    run(test)


@pytest.fixture
def quiet_leases() -> Iterator[None]:
    """The kernel tells whoever holds a lease by a signal that would end the process."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGIO, before)


async def on_disk(harness: Harness, path: Path) -> tuple[Client, Client]:
    harness.server.add_share(Share("disk", backend=LocalBackend(path)))
    clients = await harness.connect(), await harness.connect()
    for client in clients:
        await client.login(share="disk")
    return clients


async def quiet(client: Client) -> None:
    """Nothing comes for some of the time between two attempts."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await client.receive_frame()


@pytest.mark.usefixtures("quiet_leases")
def test_a_lease_of_a_host_program_met_after_a_break_is_waited_for(tmp_path: Path) -> None:
    async def test(harness: Harness) -> None:
        holder, other = await on_disk(harness, tmp_path)
        (tmp_path / "f").write_bytes(b"")
        file = await hold(holder, desired_access=READ_DATA, create_disposition=1)
        await wait_in_vain(other, request("f", create_disposition=1))
        descriptor = os.open(tmp_path / "f", os.O_RDONLY)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            assert await acknowledge(holder, file) == 0
            await quiet(other)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            assert (await other.receive()).status == 0
        finally:
            os.close(descriptor)

    drive(test)


@pytest.mark.usefixtures("quiet_leases")
def test_a_replay_while_a_host_program_has_a_lease(tmp_path: Path) -> None:
    """MS-SMB2 3.3.5.9.10: the first CREATE is not over, whatever it waits for."""

    async def test(harness: Harness) -> None:
        client, _ = await on_disk(harness, tmp_path)
        (tmp_path / "f").write_bytes(b"")
        descriptor = os.open(tmp_path / "f", os.O_RDWR)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            waiting = client.message_id
            await wait_in_vain(client, durable_create("f"))
            again: Reply = await client.call(
                Command.CREATE, durable_create("f"), flags=int(HeaderFlags.REPLAY_OPERATION) | int(HeaderFlags.SIGNED)
            )
            assert again.status == NtStatus.FILE_NOT_AVAILABLE
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            reply = await client.receive()
            assert (reply.header.message_id, reply.status) == (waiting, 0)
            assert len(harness.server.opens.by_id) == 1
            body = struct.pack("<HHI16s", 24, 0, 0, file_id(reply))
            assert (await client.call(Command.CLOSE, body)).status == 0
        finally:
            os.close(descriptor)

    drive(test)


class _Folder:
    """A ``Reading`` of nothing."""

    def __init__(self) -> None:
        self.steps: Iterator[None] = iter(())
        self.started = False
        self.waiting: list[Any] = []
        self.reading = self


def test_who_fails_when_a_folder_is_read_does_not_stop_the_next() -> None:
    async def test(harness: Harness) -> None:
        told: asyncio.Queue[object] = asyncio.Queue()
        await (await harness.connect()).negotiate()
        connection = next(iter(harness.server.connection_list))

        def fail(error: object) -> None:
            raise RuntimeError("a fault in the server")

        asking: Any = Request(connection.host, connection, None, memoryview(b""), None)  # type: ignore[arg-type]
        folder: Any = _Folder()
        when_read(asking, folder, fail)
        when_read(asking, folder, told.put_nowait)
        async with asyncio.timeout(10):
            assert await told.get() is None

    drive(test)


def test_who_fails_when_a_flush_is_over_does_not_stop_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushes, "WORKERS", 1)

    async def test() -> None:
        told: asyncio.Queue[object] = asyncio.Queue()

        def fail(error: object) -> None:
            raise RuntimeError("a fault in the server")

        work = flushes.Flushes()
        work.add(lambda: None, fail)
        work.add(lambda: None, told.put_nowait)
        async with asyncio.timeout(10):
            assert await told.get() is None

    asyncio.run(test())


def test_padded_reads_are_one_connections_matter() -> None:
    """FSCTL_SMBTORTURE_READ_RESPONSE_BODY_PADDING8."""
    served = HANDLERS[Command.READ]

    async def test(harness: Harness) -> None:
        padded, plain = await harness.connect(), await harness.connect()
        offsets = []
        for client in (padded, plain):
            await client.login()
            _, file, _ = await opened(client, "f")
            await write(client, file, b"data")
            if client is padded:
                assert (await client.call(Command.IOCTL, ioctl_body(0x83848023))).status == 0
            record = read_write.ReadRequest(length=4, persistent=file[0], volatile=file[1])
            reply = await client.call(Command.READ, read_write.READ_REQUEST.pack(record) + b"\0")
            offsets.append(reply.body[2])
        assert offsets == [88, 80]
        assert HANDLERS[Command.READ] is served

    drive(test, Settings(min_dialect=0x0202, rdma_min_dialect=0x0202, test_fsctls=True))


def test_who_fails_when_something_is_stored_does_not_stop_the_next() -> None:
    async def test() -> None:
        told: asyncio.Queue[object] = asyncio.Queue()
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        class Unchanging:
            def submit(self, *_: object) -> asyncio.Future[int]:
                return stored

        def fail(error: object) -> None:
            raise RuntimeError("a fault in the server")

        kept = persistence.Persistence()
        share = Share("data")
        kept.serve(persistence.Domain(cast("Any", Unchanging()), "p/"), [share])
        kept.closed(cast("Any", SimpleNamespace(file_id=(1, 1), tree=SimpleNamespace(share=share))))
        kept.when_stored(0, fail)
        kept.when_stored(0, told.put_nowait)
        stored.set_result(1)
        async with asyncio.timeout(10):
            assert await told.get() is None

    asyncio.run(test())


@pytest.mark.parametrize(("at_once", "failing"), [(1, 0), (1, 1), (32, 0)])
def test_who_cannot_be_told_of_a_change_touches_neither_who_made_it_nor_the_next(
    monkeypatch: pytest.MonkeyPatch, at_once: int, failing: int
) -> None:
    """``at_once``: how many are told before others get their turn."""
    monkeypatch.setattr(notify, "AT_ONCE", at_once)
    add, ends = notify.Watcher.add, notify.Watcher.end
    told: list[notify.Watcher] = []

    def broken(watcher: notify.Watcher, *arguments: Any) -> None:
        told.append(watcher)
        if watcher is watchers[failing]:
            raise RuntimeError("a fault in the server")
        (ends if arguments == (NtStatus.DELETE_PENDING,) else add)(watcher, *arguments)

    monkeypatch.setattr(notify.Watcher, "add", broken)
    monkeypatch.setattr(notify.Watcher, "end", broken)
    hub = notify.NotifyHub()
    watchers = [hub.watch(("d",), 0xFFF, False, 4096) for _ in range(3)]

    async def test() -> None:
        hub.report(("d", "f"), 1, 1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert told == watchers
        told.clear()
        hub.directory_deleted(("d",))
        assert told == watchers

    asyncio.run(test())


def test_what_cannot_be_cancelled_does_not_keep_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session and the other requests end all the same."""
    cancel = LockTable.cancel
    ended: list[int] = []

    def broken(table: LockTable, waiter: Waiter) -> bool:
        ended.append(waiter.lock.offset)
        if len(ended) == 1:
            raise RuntimeError("a fault in the server")
        return cancel(table, waiter)

    async def test(harness: Harness, client: Client) -> None:
        _, file, _ = await opened(client, "f")
        assert await ask_lock(client, file, 0, 20, EXCLUSIVE | AT_ONCE) == 0
        other = await second(harness)
        _, theirs, _ = await opened(other, "f")
        for offset in (1, 2):
            await wait_in_vain(other, lock_body(theirs, lock.LockElement(offset, 1, EXCLUSIVE)), Command.LOCK)
        monkeypatch.setattr(LockTable, "cancel", broken)
        other.writer.close()
        async with asyncio.timeout(10):
            while len(harness.server.connection_list) > 1:
                await asyncio.sleep(0.005)
        assert ended == [1, 2]
        assert len(harness.server.sessions.by_id) == 1

    run(test)
