"""WRITEs that arrive together are a row: the server becomes their user once, and is itself for everything else."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from smb3server.backends.base import User
from smb3server.backends.local import file_io, syscalls
from smb3server.backends.local.backend import LocalBackend
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.dispatch import waiting
from smb3server.dispatch.dispatcher import Dispatcher
from smb3server.dispatch.fast_lane import FastLane
from smb3server.state.objects import Open
from smb3server.state.opens import OpenTable
from smb3server.state.share import Share
from smb3server.wire import create, read_write
from smb3server.wire.close import CLOSE_REQUEST, CloseRequest
from smb3server.wire.header import Command
from smbdirect.codec import Buffer
from tests.lab.harness import lab
from tests.lab.wire_client import ECHO, Client, Harness, create_body, running

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="acting as other users needs root")
LONGEST_TURN = 5.0
ALICE, BOB = User(54321, 54321), User(54322, 54322)


class Scene:
    """Two clients with a file each, on shares of two users. What they write has been written to before."""

    def __init__(self, harness: Harness, clients: list[Client], files: list[tuple[int, int]]) -> None:
        self.harness = harness
        self.clients = clients
        self.files = files
        self.switches: list[int] = []
        """The file-system uids that were set."""
        self.general: list[int] = []
        """The file-system uid at each message of the general path, and at each that the lane hands to a handler."""

    def write(self, who: int, offset: int = 0) -> bytes:
        persistent, volatile = self.files[who]
        record = read_write.WriteRequest(
            data_offset=112, length=7, offset=offset, persistent=persistent, volatile=volatile
        )
        return self.clients[who].build(Command.WRITE, read_write.WRITE_REQUEST.pack(record) + b"written")

    async def post(self, who: int, *messages: bytes) -> list[int]:
        """Send messages in one piece; return the statuses of the answers."""
        client = self.clients[who]
        await client.raw(b"".join(len(message).to_bytes(4, "big") + message for message in messages))
        return [(await client.receive()).status for _ in messages]


def present_uid() -> int:
    return syscalls.switch_ids(syscalls.KEEP_ID, syscalls.KEEP_ID)[0]


def note_handlers(monkeypatch: pytest.MonkeyPatch, found: list[int]) -> None:
    """Note the file-system uid whenever the lane hands a request to a handler."""
    settle = FastLane._settle

    def noted(lane: FastLane, *outcome: Any) -> None:
        found.append(present_uid())
        settle(lane, *outcome)

    monkeypatch.setattr(FastLane, "_settle", noted)


def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        for directory in (tmp_path, *tmp_path.parents):
            if directory != Path("/"):
                directory.chmod(directory.stat().st_mode | 0o755)
        async with running() as harness:
            clients, files = [], []
            for name, user in (("alice", ALICE), ("bob", BOB)):
                folder = tmp_path / name
                folder.mkdir()
                os.chown(folder, user.uid, user.gid)
                harness.server.add_share(Share(name, backend=LocalBackend(folder), user=user))
                client = await harness.connect()
                await client.login(0x0202, name)
                client.sign = False
                reply = await client.open("file")
                answer, _ = create.parse_response(memoryview(reply.message))
                clients.append(client)
                files.append((answer.persistent, answer.volatile))
            scene = Scene(harness, clients, files)
            for who in (0, 1):
                assert await scene.post(who, scene.write(who)) == [0]
            switch, begin = syscalls.switch_uid, Dispatcher._begin

            def noted(uid: int) -> int:
                if uid != syscalls.KEEP_ID:
                    scene.switches.append(uid)
                return switch(uid)

            def seen(dispatcher: Dispatcher, *message: Any) -> Any:
                scene.general.append(present_uid())
                return begin(dispatcher, *message)

            monkeypatch.setattr(syscalls, "switch_uid", noted)
            monkeypatch.setattr(Dispatcher, "_begin", seen)
            note_handlers(monkeypatch, scene.general)
            await test(scene)
            assert present_uid() == 0

    asyncio.run(main())


def test_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(scene: Scene) -> None:
        messages = [scene.write(0, 10 * number) for number in range(20)]
        messages.insert(7, scene.clients[0].build(Command.ECHO, ECHO))
        assert await scene.post(0, *messages) == [0] * 21
        assert scene.general == []
        assert scene.switches == [ALICE.uid, 0]
        assert (tmp_path / "alice" / "file").read_bytes() == b"written\0\0\0" * 19 + b"written"

    play(tmp_path, monkeypatch, test)


def test_a_single_write_is_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifying the user at the beginning of a row costs a system call more."""

    async def test(scene: Scene) -> None:
        begun: list[None] = []
        monkeypatch.setattr(LocalBackend, "begin_row", lambda store: begun.append(None))
        assert await scene.post(0, scene.write(0)) == [0]
        assert await scene.post(0, scene.write(0)) == [0]
        assert scene.general == begun == []
        assert scene.switches == [ALICE.uid, 0] * 2

    play(tmp_path, monkeypatch, test)


def test_the_general_path_ends_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(scene: Scene) -> None:
        client = scene.clients[0]
        messages = [
            scene.write(0),
            scene.write(0),
            client.build(Command.CREATE, create_body("new")),
            scene.write(0),
        ]
        assert await scene.post(0, *messages) == [0] * 4
        assert scene.general == [0]
        assert scene.switches[:2] == [ALICE.uid, 0]
        assert scene.switches[-2:] == [ALICE.uid, 0]
        assert (tmp_path / "alice" / "new").stat().st_uid == ALICE.uid

    play(tmp_path, monkeypatch, test)


def test_a_close_ends_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane takes it, and it runs as the server: it may set times."""

    async def test(scene: Scene) -> None:
        uids: list[int] = []
        closes = OpenTable.close

        def close(opens: OpenTable, opened: Open) -> None:
            uids.append(present_uid())
            closes(opens, opened)

        reply = await scene.clients[0].open("another")
        answer, _ = create.parse_response(memoryview(reply.message))
        scene.general.clear()
        monkeypatch.setattr(OpenTable, "close", close)
        request = CLOSE_REQUEST.pack(CloseRequest(24, 0, 0, answer.persistent, answer.volatile))
        messages = [scene.write(0), scene.write(0), scene.clients[0].build(Command.CLOSE, request)]
        assert await scene.post(0, *messages) == [0] * 3
        assert scene.general == []
        assert uids == [0]

    play(tmp_path, monkeypatch, test)


def test_every_connection_has_rows_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(scene: Scene) -> None:
        for who in (0, 1):
            messages = [scene.write(who) for _ in range(3)]
            await scene.clients[who].raw(b"".join(len(message).to_bytes(4, "big") + message for message in messages))
        for who in (0, 1):
            assert [(await scene.clients[who].receive()).status for _ in range(3)] == [0] * 3
        assert scene.switches in ([ALICE.uid, 0, BOB.uid, 0], [BOB.uid, 0, ALICE.uid, 0])

    play(tmp_path, monkeypatch, test)


def test_a_failure_ends_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What turns it into a status runs as the server."""

    async def test(scene: Scene) -> None:
        write = file_io.write_from

        def full(descriptor: int, buffers: list[Buffer], offset: int) -> int:
            if offset == 50:
                assert present_uid() == ALICE.uid
                raise OSError(errno.ENOSPC, "full")
            return write(descriptor, buffers, offset)

        uids: list[int] = []
        failure = waiting.failure
        monkeypatch.setattr(file_io, "write_from", full)
        monkeypatch.setattr(
            "smb3server.dispatch.fast_lane.failure",
            lambda *found: uids.append(present_uid()) or failure(*found),
        )
        assert await scene.post(0, scene.write(0), scene.write(0, 50), scene.write(0)) == [0, 0xC000007F, 0]
        assert uids == [0]
        assert scene.switches == [ALICE.uid, 0] * 2

    play(tmp_path, monkeypatch, test)


@pytest.mark.parametrize("end", ["frame", "header"])
def test_an_end_of_the_connection_ends_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """What is called when a connection ends runs as the server."""

    async def test(scene: Scene) -> None:
        (connection,) = (
            entry
            for entry in scene.harness.server.connection_list
            if scene.clients[0].session_id in entry.session_table
        )
        uids: list[int] = []
        marks = connection.transport._sender.marks  # type: ignore[attr-defined]
        marks.append((1 << 60, lambda: uids.append(present_uid())))
        bad = b"\1\2\3\4" if end == "frame" else b"\0\0\0\x50" + bytes(80)
        message = scene.write(0)
        await scene.clients[0].raw(len(message).to_bytes(4, "big") + message + bad)
        async with asyncio.timeout(5):
            while not uids:
                await asyncio.sleep(0.01)
        assert uids == [0]
        assert scene.switches[:2] == [ALICE.uid, 0]

    play(tmp_path, monkeypatch, test)


def test_rows_over_smb_direct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of completions has rows, also of WRITEs whose RDMA Reads complete in it."""

    async def main() -> None:
        async with lab(tmp_path) as made, made.session(rdma=True) as session:
            folder = tmp_path / "alice"
            folder.mkdir()
            os.chown(folder, ALICE.uid, ALICE.gid)
            made.server.add_share(Share("alice", backend=LocalBackend(folder), user=ALICE))
            tree = await session.tree_connect("alice")
            file = await tree.create("file", READ_WRITE, create.CreateDisposition.OPEN_IF)
            assert await tree.write(file, 0, b"written") == 7
            switches: list[int] = []
            general: list[int] = []
            switch, begin, finish = syscalls.switch_uid, Dispatcher._begin, Dispatcher.finish

            def noted(uid: int) -> int:
                if uid != syscalls.KEEP_ID:
                    switches.append(uid)
                return switch(uid)

            def seen(dispatcher: Dispatcher, *message: Any) -> Any:
                general.append(present_uid())
                return begin(dispatcher, *message)

            def finished(dispatcher: Dispatcher, *answer: Any) -> None:
                general.append(present_uid())
                finish(dispatcher, *answer)

            monkeypatch.setattr(syscalls, "switch_uid", noted)
            monkeypatch.setattr(Dispatcher, "_begin", seen)
            monkeypatch.setattr(Dispatcher, "finish", finished)
            note_handlers(monkeypatch, general)
            await asyncio.gather(*(tree.write(file, 10 * number, b"written") for number in range(20)))
            assert general == []
            assert switches == [ALICE.uid, 0]
            large = bytes(20_000)
            await asyncio.gather(
                *(tree.write(file, 0, b"written") for _ in range(3)),
                tree.write(file, 1000, large),
                tree.create("new", READ_WRITE, create.CreateDisposition.OPEN_IF),
                *(tree.write(file, 10, b"written") for _ in range(3)),
                tree.write(file, 30_000, large),
            )
            assert general == [0]  # the CREATE
            assert (folder / "new").stat().st_uid == ALICE.uid
            switches.clear()
            await asyncio.gather(*(tree.write(file, 30_000 * number, large) for number in range(20)))
            assert general == [0]
            assert len(switches) < 20
            begin_fetch, turns = FastLane._fetch, itertools.cycle([True, False])
            monkeypatch.setattr(FastLane, "_fetch", lambda *begun: next(turns) and begin_fetch(*begun))
            await asyncio.gather(*(tree.write(file, 30_000 * number, large) for number in range(20)))
            # The beginnings and the ends of those that have a request from the start.
            assert general == [0] * 21
            assert present_uid() == 0

    for directory in (tmp_path, *tmp_path.parents):
        if directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o755)
    asyncio.run(main())
