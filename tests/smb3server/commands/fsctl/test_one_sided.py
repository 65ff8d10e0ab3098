"""Lending files: who gets a line and a handle, and what ends a loan before anybody else may rely on the file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from smb3server.cli.status.tables import render
from smb3server.client.protocol import Client, ClientSession, open_tcp
from smb3server.client.protocol.tree import READ_WRITE, RemoteFile, Tree
from smb3server.service import Service, Share, User
from smb3server.state import endings
from smb3server.status import report
from smb3server.wire import create_contexts as contexts
from smb3server.wire import one_sided as wire
from smb3server.wire.create import Access, CreateDisposition, CreateOptions
from smb3server.wire.file_info import END_OF_FILE, EndOfFileInformation, FileInfoClass
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.lock import LockElement, LockFlags
from smb3server.wire.one_sided import LendRights
from smb3server.wire.oplock_break import LeaseState, OplockLevel
from smb3server.wire.status import NtStatus, StatusError
from smbdirect import rdma
from tests.lab.reports import collect
from tools.support import own_user

R, RW, RWH = 1, 5, 7
READ, BOTH = LendRights.READ, LendRights.READ | LendRights.WRITE
DATA = bytes(range(256)) * 512


@dataclass
class Scene:
    """A server that lends, and a client with a line."""

    service: Service
    folder: Path
    client: Client
    session: ClientSession
    tree: Tree
    lease_key: bytes = b"lease of the one"

    async def log_on(self, share: str = "data", **options: Any) -> tuple[Client, ClientSession, Tree]:
        client = await Client.connect(await open_tcp(*self.service.address))
        session = await client.log_on("u", "pw", **options)
        return client, session, await session.tree_connect(share)

    async def line(self, tree: Tree | None = None, ticket: bytes | None = None) -> rdma.Connection:
        ticket = await ticket_for(tree or self.tree) if ticket is None else ticket
        (port,) = [listener.address[1] for name, listener in self.service.fabrics.listeners if name == "iwarp"]
        private = wire.pack_private_data(ticket)
        return await rdma.open_connection("iwarp", "127.0.0.1", port, private_data=private)

    @property
    def loans(self) -> int:
        return sum(len(line.loans) for line in self.service.server.one_sided.lines.values())


@asynccontextmanager
async def lending(
    tmp_path: Path, one_sided: bool = True, server: dict[str, Any] | None = None, **keys: Any
) -> AsyncIterator[Scene]:
    folder = tmp_path / "share"
    folder.mkdir()
    (folder / "file").write_bytes(DATA)
    shares = [
        Share("data", str(folder), force_user=own_user.NAME, one_sided=one_sided, **keys),
        Share("secret", str(folder), force_user=own_user.NAME, one_sided=True, encrypt=True),
    ]
    users = [User("u", password="pw")]
    server = {"listen": ["127.0.0.1"], "port": 0, "rdma": "iwarp", "rdma_port": 0} | (server or {})
    async with (
        asyncio.timeout(30),
        Service(shares=shares, users=users, **server) as service,
    ):
        scene = Scene(service, folder, None, None, None)  # type: ignore[arg-type]
        scene.client, scene.session, scene.tree = await scene.log_on()
        yield scene
        await scene.client.close()


async def ticket_for(tree: Tree) -> bytes:
    output = await tree.ioctl(Fsctl.ONE_SIDED_TICKET)
    answer = wire.TICKET_RESPONSE.unpack(output)
    assert answer.version == wire.VERSION
    return answer.ticket


async def opened(
    tree: Tree, state: int = RWH, name: str = "file", key: bytes | None = None, **options: Any
) -> RemoteFile:
    wanted = contexts.LEASE_V2_CODEC.pack(contexts.LeaseV2(key or os.urandom(16), state))
    asked = [contexts.RawContext(contexts.REQUEST_LEASE, wanted)] if state else []
    options.setdefault("access", READ_WRITE | Access.DELETE)
    oplock = OplockLevel.LEASE if state else 0
    return await tree.create(name, contexts=asked, oplock=oplock, **options)


async def lend(tree: Tree, file: RemoteFile, rights: LendRights = BOTH) -> rdma.Handle:
    request = wire.LEND_REQUEST.pack(wire.LendRequest(wire.VERSION, int(rights)))
    return rdma.Handle.unpack(await tree.ioctl(Fsctl.ONE_SIDED_LEND, request, file))


async def refused(tree: Tree, file: RemoteFile, rights: LendRights = BOTH) -> NtStatus:
    with pytest.raises(StatusError) as raised:
        await lend(tree, file, rights)
    return NtStatus(raised.value.status)


def run(tmp_path: Path, act: Callable[[Scene], Awaitable[None]], **keys: Any) -> None:
    async def main() -> None:
        async with lending(tmp_path, **keys) as scene:
            await act(scene)

    asyncio.run(main())


def test_a_lent_file_is_read_and_written(tmp_path: Path) -> None:
    """No READ or WRITE reaches the server, and its report says what moved."""

    async def act(scene: Scene) -> None:
        line = await scene.line()
        file = await opened(scene.tree)
        handle = await lend(scene.tree, file)
        assert handle.length == len(DATA) and handle.rights == rdma.Rights.READ | rdma.Rights.WRITE
        into = bytearray(len(DATA))
        await line.read(handle, into)
        assert into == DATA
        await line.write(handle, b"one-sided", 1000)
        await line.fence()
        assert (scene.folder / "file").read_bytes() == DATA[:1000] + b"one-sided" + DATA[1009:]
        assert await scene.tree.read(file, 1000, 9) == b"one-sided"
        await scene.tree.write(file, 1000, b"by WRITE!")
        await line.read(handle, memoryview(into)[:9], 1000)
        assert into[:9] == b"by WRITE!"
        (session,) = collect(scene.service.server)["sessions"]
        moved = {"fabric": "iwarp", "files": 1, "bytes_read": len(DATA) + 9, "bytes_written": 9}
        assert session["one_sided"] == moved
        (entry,) = session["opens"]
        assert (entry["bytes_read"], entry["bytes_written"]) == (9, 9)
        shown = "\n".join(line.plain for line in render(report.collect(scene.service.server), 400))
        assert "one-sided by iwarp: 1 files, 128.0 KiB read, 9 B written" in shown
        await line.close()

    run(tmp_path, act)


def test_holes_are_filled_before_a_file_is_lent_for_writing(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        path = scene.folder / "holes"
        with path.open("wb") as made:
            made.truncate(1 << 20)
        line = await scene.line()
        file = await opened(scene.tree, name="holes")
        await lend(scene.tree, file, READ)
        assert path.stat().st_blocks == 0
        await lend(scene.tree, file)
        assert path.stat().st_blocks * 512 >= 1 << 20
        await line.close()

    run(tmp_path, act)


# -- what ends a loan ------------------------------------------------------------------------------------------------


async def other_opens(scene: Scene, file: RemoteFile) -> None:
    client, _, tree = await scene.log_on()
    await opened(tree, 0)
    await client.close()


async def other_writes(scene: Scene, file: RemoteFile) -> None:
    client, _, tree = await scene.log_on()
    await tree.write(await opened(tree, 0), 0, b"x")
    await client.close()


async def other_overwrites(scene: Scene, file: RemoteFile) -> None:
    client, _, tree = await scene.log_on()
    await opened(tree, 0, disposition=CreateDisposition.OVERWRITE)
    await client.close()


async def other_locks(scene: Scene, file: RemoteFile) -> None:
    client, _, tree = await scene.log_on()
    other = await opened(tree, 0)
    await tree.lock(other, [LockElement(0, 10, int(LockFlags.EXCLUSIVE_LOCK | LockFlags.FAIL_IMMEDIATELY))])
    await client.close()


async def other_truncates(scene: Scene, file: RemoteFile) -> None:
    client, _, tree = await scene.log_on()
    other = await opened(tree, 0)
    await tree.set_info(other, FileInfoClass.END_OF_FILE, END_OF_FILE.pack(EndOfFileInformation(10)))
    await client.close()


async def own_lock(scene: Scene, file: RemoteFile) -> None:
    await scene.tree.lock(file, [LockElement(0, 10, int(LockFlags.SHARED_LOCK | LockFlags.FAIL_IMMEDIATELY))])


async def own_truncation(scene: Scene, file: RemoteFile) -> None:
    await scene.tree.set_info(file, FileInfoClass.END_OF_FILE, END_OF_FILE.pack(EndOfFileInformation(10)))


async def own_overwrite(scene: Scene, file: RemoteFile) -> None:
    await opened(scene.tree, RW, key=scene.lease_key, disposition=CreateDisposition.OVERWRITE)


async def own_deletion(scene: Scene, file: RemoteFile) -> None:
    await scene.tree.set_info(file, FileInfoClass.DISPOSITION, b"\1")


async def close(scene: Scene, file: RemoteFile) -> None:
    await scene.tree.close(file)


async def tree_disconnect(scene: Scene, file: RemoteFile) -> None:
    await scene.tree.disconnect()


async def logoff(scene: Scene, file: RemoteFile) -> None:
    await scene.session.log_off()


async def connection_lost(scene: Scene, file: RemoteFile) -> None:
    scene.client.transport.abort("the cable")
    while scene.service.server.sessions.by_id:
        await asyncio.sleep(0.01)


async def session_ended(scene: Scene, file: RemoteFile) -> None:
    (session,) = scene.service.server.sessions.by_id.values()
    endings.end_session(scene.service.server, session)


async def share_ended(scene: Scene, file: RemoteFile) -> None:
    (share,) = [share for share in scene.service.server.share_list.values() if share.name == "data"]
    endings.end_share(scene.service.server, share)


async def user_ended(scene: Scene, file: RemoteFile) -> None:
    endings.end_user(scene.service.server, lambda identity: True)


async def session_expired(scene: Scene, file: RemoteFile) -> None:
    """The timer that a line of a session with an end sets."""
    (line,) = scene.service.server.one_sided.lines.values()
    line.end("the session has expired")


async def new_line(scene: Scene, file: RemoteFile) -> None:
    await ticket_for(scene.tree)


async def host_program(scene: Scene, file: RemoteFile) -> None:
    """Another program replaces the file: what is lent is no longer what has the name."""
    (scene.folder / "new").write_bytes(b"new")
    os.replace(scene.folder / "new", scene.folder / "file")
    while scene.loans:
        await asyncio.sleep(0.01)


async def shutdown(scene: Scene, file: RemoteFile) -> None:
    await scene.service.server.shutdown()


EVENTS = [
    other_opens, other_writes, other_overwrites, other_locks, other_truncates, own_lock, own_truncation, own_overwrite,
    own_deletion, close, tree_disconnect, logoff, connection_lost, session_ended, share_ended, user_ended,
    session_expired, new_line, host_program, shutdown,
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
def test_events_end_a_loan(tmp_path: Path, event: Callable[[Scene, RemoteFile], Awaitable[None]]) -> None:
    """When the event is done, the handle that the client kept reads and writes nothing."""

    async def act(scene: Scene) -> None:
        line = await scene.line()
        file = await opened(scene.tree, RW, key=scene.lease_key)
        handle = await lend(scene.tree, file)
        await line.read(handle, bytearray(100))
        assert scene.loans == 1
        acknowledging: list[asyncio.Task[None]] = []
        left: list[int] = []

        def acknowledge(notification: Any) -> None:
            left.append(scene.loans)
            state = notification.new_lease_state
            work = scene.tree.acknowledge_lease_break(notification.lease_key, state)
            acknowledging.append(asyncio.ensure_future(work))

        scene.client.on_break = acknowledge
        await event(scene, file)
        assert not scene.loans
        assert not any(left), "it is over when the client hears of the break"
        path = scene.folder / "file"
        before = path.read_bytes() if path.exists() else None
        into = bytearray(100)
        with pytest.raises(rdma.ConnectionLost):
            await line.write(handle, b"\xee" * 100)
            await line.fence()
            await line.read(handle, into)
        assert into == bytes(100)
        assert (path.read_bytes() if path.exists() else None) == before
        await line.close()
        await asyncio.gather(*acknowledging, return_exceptions=True)

    run(tmp_path, act)


def test_readers_do_not_disturb_a_loan_for_reading(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        line = await scene.line()
        handle = await lend(scene.tree, await opened(scene.tree, R), READ)
        client, _, tree = await scene.log_on()
        assert await tree.read(await opened(tree, R), 0, 10) == DATA[:10]
        await line.read(handle, bytearray(100))
        assert scene.loans == 1
        # Nor may the reader write: the handle does not give it, and a forged one ends the line.
        forged = rdma.Handle(handle.address, handle.token, handle.length, rdma.Rights.READ | rdma.Rights.WRITE)
        with pytest.raises(rdma.ConnectionLost):
            await line.write(forged, b"x")
            await line.fence()
        assert (scene.folder / "file").read_bytes() == DATA
        await client.close()
        await line.close()

    run(tmp_path, act)


def test_a_program_of_the_host_changes_what_is_lent_for_reading(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        line = await scene.line()
        file = await opened(scene.tree, R, access=int(Access.READ_DATA))
        handle = await lend(scene.tree, file, READ)
        await line.read(handle, bytearray(100))
        (scene.folder / "file").write_bytes(b"shorter")
        while scene.loans:
            await asyncio.sleep(0.01)
        with pytest.raises(rdma.ConnectionLost):
            await line.read(handle, bytearray(5))
        await line.close()

    run(tmp_path, act)


def test_a_handle_is_worth_nothing_on_another_line(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        line = await scene.line()
        handle = await lend(scene.tree, await opened(scene.tree))
        client, _, tree = await scene.log_on()
        thief = await scene.line(tree)
        with pytest.raises(rdma.ConnectionLost):
            await thief.read(handle, bytearray(10))
        await line.read(handle, bytearray(10))
        await client.close()
        await thief.close()
        await line.close()

    run(tmp_path, act)


# -- refusals --------------------------------------------------------------------------------------------------------


def test_tickets_are_used_once(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        ticket = await ticket_for(scene.tree)
        line = await scene.line(ticket=ticket)
        for wrong in (ticket, os.urandom(16)):
            with pytest.raises(rdma.ConnectionLost):
                await scene.line(ticket=wrong)
        assert line.is_open
        newer = await ticket_for(scene.tree)
        assert (await line.wait_closed()) is not None, "a new ticket ends the line before it"
        await ticket_for(scene.tree)
        with pytest.raises(rdma.ConnectionLost):
            await scene.line(ticket=newer)
        await scene.session.log_off()
        assert not scene.service.server.one_sided.lines
        await line.close()

    run(tmp_path, act)


def test_who_is_not_lent_to(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        tree = scene.tree
        file = await opened(tree)
        assert await refused(tree, file) is NtStatus.INVALID_DEVICE_STATE, "no line"
        line = await scene.line()
        await tree.close(file)
        none = await opened(tree, 0)
        assert await refused(tree, none) is NtStatus.OPLOCK_NOT_GRANTED
        await tree.close(none)
        reading = await opened(tree, R)
        assert await refused(tree, reading) is NtStatus.OPLOCK_NOT_GRANTED, "writing needs write caching"
        await lend(tree, reading, READ)
        await tree.lock(reading, [LockElement(0, 1, int(LockFlags.SHARED_LOCK | LockFlags.FAIL_IMMEDIATELY))])
        assert await refused(tree, reading, READ) is NtStatus.FILE_LOCK_CONFLICT
        await tree.close(reading)
        limited = await opened(tree, access=int(Access.READ_DATA))
        assert await refused(tree, limited) is NtStatus.ACCESS_DENIED
        await lend(tree, limited, READ)
        await tree.close(limited)
        blind = await opened(tree, access=int(Access.WRITE_DATA))
        assert await refused(tree, blind, READ) is NtStatus.ACCESS_DENIED
        await tree.close(blind)
        through = await opened(tree, options=CreateOptions.WRITE_THROUGH)
        assert await refused(tree, through) is NtStatus.NOT_SUPPORTED
        await tree.close(through)
        folder = await tree.create("", access=int(Access.READ_DATA))
        assert await refused(tree, folder, READ) is NtStatus.INVALID_PARAMETER
        stream = await opened(tree, name="file:stream", disposition=CreateDisposition.OPEN_IF)
        assert await refused(tree, stream, READ) is NtStatus.INVALID_PARAMETER
        empty = await opened(tree, name="empty", disposition=CreateDisposition.CREATE)
        assert await refused(tree, empty, READ) is NtStatus.END_OF_FILE
        await tree.set_info(empty, FileInfoClass.DISPOSITION, b"\1")
        assert await refused(tree, empty, READ) is NtStatus.DELETE_PENDING
        good = await opened(tree)
        for data in (b"", bytes(4), b"\1\0\4\0", b"\1\0\0\0", b"\2\0\1\0", b"\1\0\1\0\0"):
            with pytest.raises(StatusError) as raised:
                await tree.ioctl(Fsctl.ONE_SIDED_LEND, data, good)
            assert raised.value.status == NtStatus.INVALID_PARAMETER
        with pytest.raises(StatusError) as raised:
            await tree.ioctl(Fsctl.ONE_SIDED_LEND, b"\1\0\1\0", good, max_output=23)
        assert raised.value.status == NtStatus.BUFFER_TOO_SMALL
        assert scene.loans == 0
        await line.close()

    run(tmp_path, act)


@pytest.mark.parametrize("keys", [{"one_sided": False}, {"posix_locks": True}])
def test_shares_that_do_not_lend(tmp_path: Path, keys: dict[str, Any]) -> None:
    async def act(scene: Scene) -> None:
        file = await opened(scene.tree)
        if "posix_locks" in keys:
            await (await scene.line()).close()
        else:
            with pytest.raises(StatusError) as raised:
                await ticket_for(scene.tree)
            assert raised.value.status == NtStatus.NOT_SUPPORTED
        assert await refused(scene.tree, file) is NtStatus.NOT_SUPPORTED

    run(tmp_path, act, **keys)


def test_sessions_that_encrypt_are_not_lent_to(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        for share, options in (("data", {"encrypt": True}), ("secret", {})):
            client, _, tree = await scene.log_on(share, **options)
            with pytest.raises(StatusError) as raised:
                await ticket_for(tree)
            assert raised.value.status == NtStatus.ACCESS_DENIED
            assert await refused(tree, await opened(tree)) is NtStatus.ACCESS_DENIED
            await client.close()

    run(tmp_path, act)


class Fence:
    """That of a node of a cluster which has lost nothing."""

    def expired(self) -> bool:
        return False

    passed = expired


@pytest.mark.parametrize("which", ["guest", "cluster"])
def test_guests_and_nodes_of_a_cluster(tmp_path: Path, which: str) -> None:
    async def act(scene: Scene) -> None:
        file = await opened(scene.tree)
        if which == "cluster":
            scene.service.server.fence = Fence()
        else:
            (session,) = scene.service.server.sessions.by_id.values()
            assert session.identity is not None
            session.identity = replace(session.identity, guest=True)
        expected = NtStatus.NOT_SUPPORTED if which == "cluster" else NtStatus.ACCESS_DENIED
        with pytest.raises(StatusError) as raised:
            await ticket_for(scene.tree)
        assert raised.value.status == expected
        assert await refused(scene.tree, file) is expected

    run(tmp_path, act)


def test_a_server_that_requires_signing_lends_nothing(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        with pytest.raises(StatusError) as raised:
            await ticket_for(scene.tree)
        assert raised.value.status == NtStatus.ACCESS_DENIED
        assert await refused(scene.tree, await opened(scene.tree)) is NtStatus.ACCESS_DENIED

    run(tmp_path, act, server={"require_signing": True})


def test_the_close_of_one_of_two_opens_with_a_lease(tmp_path: Path) -> None:
    """The lease stays with the other open: the loan ends all the same."""

    async def act(scene: Scene) -> None:
        line = await scene.line()
        key = os.urandom(16)
        file, other = [await opened(scene.tree, key=key) for _ in range(2)]
        handle = await lend(scene.tree, file)
        await line.read(handle, bytearray(10))
        await scene.tree.close(file)
        assert scene.loans == 0
        with pytest.raises(rdma.ConnectionLost):
            await line.read(handle, bytearray(10))
        line = await scene.line()
        await line.read(await lend(scene.tree, other), bytearray(10))
        await line.close()

    run(tmp_path, act)


def test_the_logoff_ends_the_line(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        line = await scene.line()
        await scene.session.log_off()
        assert await line.wait_closed() is not None
        assert not scene.service.server.one_sided.lines
        await line.close()

    run(tmp_path, act)


def test_a_session_with_an_end_has_a_line_with_an_end(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        (session,) = scene.service.server.sessions.by_id.values()
        session.expiration_time = asyncio.get_running_loop().time() + 0.3
        line = await scene.line()
        handle = await lend(scene.tree, await opened(scene.tree))
        await line.read(handle, bytearray(10))
        await line.wait_closed()
        assert not scene.loans
        await line.close()

    run(tmp_path, act)


def test_lease_states(tmp_path: Path) -> None:
    assert (R, RW, RWH) == (
        LeaseState.READ,
        LeaseState.READ | LeaseState.WRITE,
        LeaseState.READ | LeaseState.WRITE | LeaseState.HANDLE,
    )
