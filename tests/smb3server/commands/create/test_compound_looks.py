"""QUERY_INFO and CLOSE behind a CREATE in the same message: they answer from what the CREATE has found out, and say
the same as if they had looked themselves."""

from __future__ import annotations

import asyncio
import os
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from smb3server.access.descriptor import EVERYONE, Ace, AceType, Acl, Control, SecurityDescriptor
from smb3server.backends.base import Backend, User
from smb3server.backends.local.backend import LocalBackend
from smb3server.backends.local.handle import LocalHandle
from smb3server.backends.memory.backend import MemoryBackend
from smb3server.state.share import Share
from smb3server.wire import attributes as attr
from smb3server.wire import create, create_contexts, file_info
from smb3server.wire.close import CLOSE_RESPONSE, parse_response
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command
from smb3server.wire.status import NtStatus
from tests.lab.file_requests import request
from tests.lab.wire_client import NO_FILE, Client, Reply, compound, related, running

CLOSE = struct.pack("<HHI", 24, 1, 0)
LEVELS = [
    level for level in FileInfoClass if level in (4, 5, 6, 7, 8, 9, 14, 16, 17, 18, 21, 22, 28, 34, 35, 48, 54, 59)
]


def query(level: int, file: bytes = NO_FILE) -> bytes:
    return struct.pack("<HBBIHHIII", 41, 1, level, 4096, 0, 0, 0, 0, 0) + file + b"\0"


def set_info(level: int, data: bytes, file: bytes = NO_FILE) -> bytes:
    return struct.pack("<HBBIHHI", 33, 1, level, len(data), 96, 0, 0) + file + data


def output(reply: Reply) -> bytes:
    assert reply.status == 0, hex(reply.status)
    offset, length = struct.unpack_from("<HI", reply.body, 2)
    return reply.message[offset : offset + length]


def name_in(reply: Reply) -> str:
    return file_info.decode_all(output(reply))[1]


async def chain(client: Client, first: bytes, *others: tuple[int, bytes]) -> list[Reply]:
    """Send a CREATE, and commands that are related to it, in one message. Return the final replies."""
    parts = [client.build(Command.CREATE, first), *(related(client, command, body) for command, body in others)]
    await client.frame(compound(client, *parts))
    replies: list[Reply] = []
    while len(replies) < len(parts):
        replies += [reply for reply in await client.receive_compound() if reply.status != NtStatus.PENDING]
    return replies


def drive(backend: Backend, test: Callable[[Client], Awaitable[None]], user: User | None = None) -> None:
    async def body() -> None:
        async with running() as harness:
            harness.server.add_share(Share("local", backend=backend, user=user))
            client = await harness.connect()
            await client.login(share="local")
            await test(client)

    try:
        asyncio.run(body())
    finally:
        backend.close()


@pytest.fixture(params=["local", "memory"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return LocalBackend(tmp_path) if request.param == "local" else MemoryBackend()


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_each_level_says_what_it_would_by_itself(backend: Backend, level: int) -> None:
    async def test(client: Client) -> None:
        for number, fields in enumerate(
            (
                {"create_disposition": 2},
                {"create_disposition": 1},
                {"create_disposition": 5},
                {"create_disposition": 3, "create_options": 1},
            )
        ):
            name = "folder" if number == 3 else "file"
            created, looked, closed = await chain(
                client, request(name, **fields), (Command.QUERY_INFO, query(level)), (Command.CLOSE, CLOSE + NO_FILE)
            )
            again = await client.call(Command.CREATE, request(name, create_disposition=1))
            file = again.body[64:80]
            alone = await client.call(Command.QUERY_INFO, query(level, file))
            # Replies in a compound are padded.
            assert (looked.status, looked.body[: len(alone.body)]) == (alone.status, alone.body)
            assert created.status == closed.status == 0
            end = await client.call(Command.CLOSE, CLOSE + file)
            assert closed.body[: len(end.body)] == end.body
            answer, _ = create.parse_response(memoryview(created.message))
            shown = parse_response(memoryview(closed.message))
            assert shown.flags == 1
            assert answer[4:11] == shown[3:]

    drive(backend, test)


def test_the_file_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    looks: list[str] = []
    for name in ("info", "disk_path"):
        call = getattr(LocalHandle, name)
        monkeypatch.setattr(LocalHandle, name, lambda self, name=name, call=call: looks.append(name) or call(self))

    async def test(client: Client) -> None:
        _, looked, closed = await chain(
            client,
            request("file", create_disposition=1),
            (Command.QUERY_INFO, query(FileInfoClass.ALL)),
            (Command.CLOSE, CLOSE + NO_FILE),
        )
        assert name_in(looked) == "\\file"
        assert parse_response(memoryview(closed.message)).end_of_file == 3
        assert looks == []

    drive(LocalBackend(tmp_path), test)


def test_what_a_command_between_them_changes_shows(backend: Backend) -> None:
    hidden = file_info.BASIC.pack(file_info.BasicInformation(attributes=attr.HIDDEN))
    size = struct.pack("<q", 1000)

    async def test(client: Client) -> None:
        replies = await chain(
            client,
            request("file"),
            (Command.QUERY_INFO, query(FileInfoClass.STANDARD)),
            (Command.SET_INFO, set_info(FileInfoClass.BASIC, hidden)),
            (Command.QUERY_INFO, query(FileInfoClass.BASIC)),
            (Command.SET_INFO, set_info(FileInfoClass.END_OF_FILE, size)),
            (Command.QUERY_INFO, query(FileInfoClass.STANDARD)),
            (Command.CLOSE, CLOSE + NO_FILE),
        )
        assert not any(reply.status for reply in replies)
        assert file_info.STANDARD.unpack(output(replies[1])).end_of_file == 0
        assert file_info.BASIC.unpack(output(replies[3])).attributes == attr.HIDDEN
        assert file_info.STANDARD.unpack(output(replies[5])).end_of_file == 1000
        closed = parse_response(memoryview(replies[6].message))
        assert (closed.end_of_file, closed.file_attributes) == (1000, attr.HIDDEN | attr.ARCHIVE)

    drive(backend, test)


def test_a_refused_change_between_them(backend: Backend) -> None:
    """Who knows how far it came."""

    async def test(client: Client) -> None:
        refused = (Command.SET_INFO, set_info(FileInfoClass.BASIC, bytes(3)))
        looked = (Command.QUERY_INFO, query(FileInfoClass.ALL))
        _, failed, found, closed = await chain(
            client, request("file"), refused, looked, (Command.CLOSE, CLOSE + NO_FILE)
        )
        assert failed.status == NtStatus.INFO_LENGTH_MISMATCH
        assert name_in(found) == "\\file"
        assert closed.status == 0

    drive(backend, test)


def test_a_related_query_gets_the_file_of_the_command_before_it(backend: Backend) -> None:
    """Whatever FileId it names. [MS-SMB2 3.3.5.2.7.2]"""

    async def test(client: Client) -> None:
        other = (await client.call(Command.CREATE, request("other"))).body[64:80]
        write = struct.pack("<HHIQ16sIIHHI", 49, 112, 5, 0, other, 0, 0, 0, 0, 0) + b"12345"
        assert (await client.call(Command.WRITE, write)).status == 0
        _, looked, closed = await chain(
            client,
            request("file"),
            (Command.QUERY_INFO, query(FileInfoClass.ALL, other)),
            (Command.CLOSE, CLOSE + other),
        )
        assert name_in(looked) == "\\file"
        assert parse_response(memoryview(closed.message)).end_of_file == 0
        assert (await client.call(Command.CLOSE, CLOSE + other)).status == 0

    drive(backend, test)


def test_the_name_is_that_on_disk(backend: Backend) -> None:
    async def test(client: Client) -> None:
        folder = request("Folder", create_options=1)
        await chain(client, folder, (Command.CLOSE, CLOSE + NO_FILE))
        await chain(client, request("Folder\\File"), (Command.CLOSE, CLOSE + NO_FILE))
        for name in ("Folder\\File", "folder\\FILE", "FOLDER\\File"):
            for fields in ({"create_disposition": 1}, {"create_disposition": 3}):
                _, looked, _ = await chain(
                    client,
                    request(name, **fields),
                    (Command.QUERY_INFO, query(FileInfoClass.ALL)),
                    (Command.CLOSE, CLOSE + NO_FILE),
                )
                assert name_in(looked) == "\\Folder\\File"

    drive(backend, test)


def test_the_name_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").touch()
    (tmp_path / "link").symlink_to("real")

    async def test(client: Client) -> None:
        _, looked, _ = await chain(
            client,
            request("link\\file", create_disposition=1),
            (Command.QUERY_INFO, query(FileInfoClass.ALL)),
            (Command.CLOSE, CLOSE + NO_FILE),
        )
        assert name_in(looked) == "\\real\\file"

    drive(LocalBackend(tmp_path), test)


def test_a_later_message_looks_itself(tmp_path: Path) -> None:
    """Another program has changed the file since."""

    async def test(client: Client) -> None:
        created, _ = await chain(client, request("file"), (Command.QUERY_INFO, query(FileInfoClass.ALL)))
        file = created.body[64:80]
        (tmp_path / "file").write_bytes(b"12345")
        (tmp_path / "file").rename(tmp_path / "moved")
        looked = await client.call(Command.QUERY_INFO, query(FileInfoClass.ALL, file))
        assert name_in(looked) == "\\moved"
        closed = await client.call(Command.CLOSE, CLOSE + file)
        assert CLOSE_RESPONSE.unpack(closed.body).end_of_file == 5

    drive(LocalBackend(tmp_path), test)


def test_a_write_before_leaves_a_time_of_its_own(backend: Backend) -> None:
    """The last write time that clients see is not that of the store while the open writes that has frozen it."""

    async def test(client: Client) -> None:
        first = (await client.call(Command.CREATE, request("file"))).body[64:80]
        before = output(await client.call(Command.QUERY_INFO, query(FileInfoClass.BASIC, first)))
        frozen = set_info(FileInfoClass.BASIC, struct.pack("<4qII", 0, 0, -1, 0, 0, 0), first)
        assert (await client.call(Command.SET_INFO, frozen)).status == 0
        await asyncio.sleep(0.05)
        write = struct.pack("<HHIQ16sIIHHI", 49, 112, 5, 0, first, 0, 0, 0, 0, 0) + b"12345"
        assert (await client.call(Command.WRITE, write)).status == 0
        _, looked, closed = await chain(
            client,
            request("file", create_disposition=1),
            (Command.QUERY_INFO, query(FileInfoClass.BASIC)),
            (Command.CLOSE, CLOSE + NO_FILE),
        )
        shown = file_info.BASIC.unpack(output(looked)).last_write_time
        assert shown == file_info.BASIC.unpack(before).last_write_time
        assert parse_response(memoryview(closed.message)).last_write_time == shown

    drive(backend, test)


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as other users needs root")
@pytest.mark.root
def test_rights_that_are_set_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor that comes with a new file changes the mode on the host, and so the change time."""
    aces = Acl((Ace(AceType.ALLOWED, 0, 0x001F01FF, EVERYONE),))
    descriptor = SecurityDescriptor(dacl=aces, control=int(Control.DACL_PRESENT)).pack()
    call = LocalHandle.set_permissions

    def slowly(self: LocalHandle, *arguments: Any) -> None:
        # Longer than a tick of the kernel's clock.
        time.sleep(0.03)
        call(self, *arguments)

    monkeypatch.setattr(LocalHandle, "set_permissions", slowly)

    async def test(client: Client) -> None:
        contexts = [create_contexts.RawContext(create_contexts.SD_BUFFER, descriptor)]
        created, looked = await chain(
            client, request("file", contexts), (Command.QUERY_INFO, query(FileInfoClass.BASIC))
        )
        alone = await client.call(Command.QUERY_INFO, query(FileInfoClass.BASIC, created.body[64:80]))
        assert output(looked) == output(alone)

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.chmod(folder, 0o777)
        drive(LocalBackend(folder), test, User(12345, 12345))


def test_a_failed_create_leaves_nothing_behind(backend: Backend) -> None:
    async def test(client: Client) -> None:
        parts = [
            client.build(Command.CREATE, request("file")),
            client.build(Command.CREATE, request("missing\\file", create_disposition=1)),
            related(client, Command.QUERY_INFO, query(FileInfoClass.ALL)),
        ]
        await client.frame(compound(client, *parts))
        made, failed, looked = await client.receive_compound()
        assert made.status == 0
        assert failed.status == looked.status == NtStatus.OBJECT_PATH_NOT_FOUND

    drive(backend, test)


def test_a_create_that_had_to_wait(backend: Backend) -> None:
    """It has looked after the wait: what the client that gave way has written shows."""

    async def test() -> None:
        async with running() as harness:
            harness.server.add_share(Share("local", backend=backend))
            holder, client = await harness.connect(), await harness.connect()
            await holder.login(share="local")
            await client.login(share="local")
            held = (await holder.call(Command.CREATE, request("file", requested_oplock_level=9))).body[64:80]
            waiting = asyncio.create_task(
                chain(
                    client,
                    request("file", create_disposition=1),
                    (Command.QUERY_INFO, query(FileInfoClass.STANDARD)),
                    (Command.CLOSE, CLOSE + NO_FILE),
                )
            )
            notified = await holder.receive()
            assert notified.header.command == Command.OPLOCK_BREAK
            write = struct.pack("<HHIQ16sIIHHI", 49, 112, 5, 0, held, 0, 0, 0, 0, 0) + b"12345"
            assert (await holder.call(Command.WRITE, write)).status == 0
            assert (await holder.call(Command.CLOSE, CLOSE + held)).status == 0
            created, looked, closed = await waiting
            assert create.parse_response(memoryview(created.message))[0].end_of_file == 5
            assert file_info.STANDARD.unpack(output(looked)).end_of_file == 5
            assert parse_response(memoryview(closed.message)).end_of_file == 5

    try:
        asyncio.run(test())
    finally:
        backend.close()
