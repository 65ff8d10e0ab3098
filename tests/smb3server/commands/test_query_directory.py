"""QUERY_DIRECTORY over TCP, of folders in memory and of the host. [MS-SMB2 3.3.5.18, MS-FSA 2.1.5.6.3]"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from smb3server.backends.base import Backend
from smb3server.backends.local.backend import LocalBackend
from smb3server.backends.memory.backend import MemoryBackend
from smb3server.commands import query_directory
from smb3server.state.share import Share, ShareFlags
from smb3server.wire import attributes as attr
from smb3server.wire.directory_info import LEVELS, ListedEntry, decode_directory
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command
from smb3server.wire.query_directory import (
    QueryDirectoryFlags,
    QueryDirectoryRequest,
    build_query_directory_request,
)
from smb3server.wire.status import NtStatus
from tests.lab.stores import descriptors, mkdir, opened, put, without_native_calls
from tests.lab.wire_client import Client, running

RESTART, SINGLE, INDEX, REOPEN = QueryDirectoryFlags
DOTS = [".", ".."]


class Folder:
    """An open folder of a client."""

    def __init__(self, client: Client, store: Backend, file_id: bytes) -> None:
        self.client = client
        self.store = store
        self.file_id = file_id

    def body(
        self, pattern: str = "*", flags: int = 0, level: int = FileInfoClass.ID_BOTH_DIRECTORY, size: int = 65536
    ) -> bytes:
        persistent, volatile = struct.unpack("<QQ", self.file_id)
        record = QueryDirectoryRequest(
            info_class=level, flags=flags, persistent=persistent, volatile=volatile, output_buffer_length=size
        )
        return build_query_directory_request(record, pattern)

    async def ask(
        self, pattern: str = "*", flags: int = 0, level: int = FileInfoClass.ID_BOTH_DIRECTORY, size: int = 65536
    ) -> tuple[int, list[ListedEntry]]:
        """Return the status and the entries of one response."""
        reply = await self.client.call(Command.QUERY_DIRECTORY, self.body(pattern, flags, level, size))
        while reply.status == NtStatus.PENDING:
            reply = await self.client.receive()
        if reply.status:
            return reply.status, []
        offset, length = struct.unpack_from("<HI", reply.body, 2)
        assert 0 < length <= size
        assert offset + length == len(reply.message)
        return 0, decode_directory(level, reply.message[offset : offset + length])

    async def names(self, pattern: str = "*", flags: int = 0, size: int = 65536) -> tuple[int, list[str]]:
        status, entries = await self.ask(pattern, flags, size=size)
        return status, [entry.name for entry in entries]

    async def rest(self, size: int = 65536, flags: int = 0) -> list[str]:
        """Return the names of all entries that are left."""
        found: list[str] = []
        while True:
            status, names = await self.names(flags=flags, size=size)
            if status:
                assert status == NtStatus.NO_MORE_FILES
                return found
            assert not flags & SINGLE or len(names) == 1
            found += names

    async def close(self) -> None:
        reply = await self.client.call(Command.CLOSE, struct.pack("<HHI16s", 24, 0, 0, self.file_id))
        assert reply.status == 0


@pytest.fixture(params=["memory", "local", "local-python"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """A store with a folder."""
    if request.param == "local-python":
        without_native_calls(monkeypatch)
    backend = MemoryBackend() if request.param == "memory" else LocalBackend(tmp_path)
    request.addfinalizer(backend.close)
    mkdir(backend, "folder")
    return backend


def drive(store: Backend, test: Callable[[Folder], Awaitable[None]], flags: int = 0) -> None:
    """Run a test with the store's folder open."""

    async def body() -> None:
        async with running() as harness:
            harness.server.add_share(
                Share("tested", backend=store, flags=ShareFlags(flags), hides=lambda name: name == "hide me")
            )
            client = await harness.connect()
            await client.login(share="tested")
            reply = await client.open("folder", 1, 0x120089, 1)
            assert reply.status == 0
            await test(Folder(client, store, reply.body[64:80]))

    asyncio.run(body())


def fill(store: Backend, *names: str) -> None:
    for name in names:
        put(store, "folder", name, data=name.encode())


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_shows_the_same(store: Backend, level: int) -> None:
    """[MS-FSCC 2.4.8 to 2.4.34]"""
    fill(store, "a", "a long name.text", "ünï", "hide me")
    mkdir(store, "folder", "sub")

    async def test(folder: Folder) -> None:
        status, entries = await folder.ask(level=level)
        assert status == 0
        assert sorted(entry.name for entry in entries) == sorted(
            [*DOTS, "a", "a long name.text", "ünï", "sub", "hide me"]
        )
        if level == FileInfoClass.NAMES:
            return
        for entry in entries[2:]:
            info = store.stat(("folder", entry.name))
            assert entry.creation_time == info.creation_time
            assert entry.last_write_time == info.last_write_time
            assert entry.change_time == info.change_time
            assert (entry.end_of_file, entry.allocation_size) == (info.end_of_file, info.allocation_size)
            hidden = attr.HIDDEN if entry.name == "hide me" else 0
            assert entry.attributes == info.attributes | hidden
            assert entry.file_id in (0, info.key.inode)

    drive(store, test)


@pytest.mark.parametrize("size", [150, 200, 1000, 65536])
@pytest.mark.parametrize("flags", [0, int(SINGLE)])
def test_each_entry_comes_once_whatever_the_buffer(store: Backend, size: int, flags: int) -> None:
    names = [f"file {number:03}" for number in range(300 if size > 1000 else 40)]
    fill(store, *names)

    async def test(folder: Folder) -> None:
        found = await folder.rest(size, flags)
        assert found[:2] == DOTS
        assert sorted(found[2:]) == names

    drive(store, test)


def test_a_search_continues_with_one_entry_or_many(store: Backend) -> None:
    """What did not fit is what comes next, whichever way the client asks on."""
    names = [f"file {number:03}" for number in range(60)]
    fill(store, *names)

    async def test(folder: Folder) -> None:
        found: list[str] = []
        for flags, size in [(0, 1000), (SINGLE, 1000), (SINGLE, 65536), (0, 500), (INDEX, 700), (SINGLE, 300)]:
            status, some = await folder.names(flags=flags, size=size)
            assert status == 0
            assert not flags & SINGLE or len(some) == 1
            found += some
        found += await folder.rest()
        assert sorted(found) == sorted([*DOTS, *names])

    drive(store, test)


@pytest.mark.parametrize("pattern", ["a\\b", "a/*", "a:b", "a|b", "\x1f*"])
def test_patterns_that_are_no_component_are_refused(store: Backend, pattern: str) -> None:
    """MS-FSA 2.1.5.6.3. A pattern that is not used is not looked at."""
    fill(store, "a", "b")

    async def test(folder: Folder) -> None:
        assert (await folder.names(pattern))[0] == NtStatus.OBJECT_NAME_INVALID
        assert (await folder.names("a"))[1] == ["a"]
        assert (await folder.names(pattern))[0] == NtStatus.NO_MORE_FILES
        assert (await folder.names(pattern, RESTART))[0] == NtStatus.OBJECT_NAME_INVALID
        assert (await folder.names("b", RESTART))[1] == ["b"]

    drive(store, test)


def test_searches_begin_again(store: Backend) -> None:
    """RESTART_SCANS and REOPEN begin again, with the new pattern. A pattern without them is not used."""
    fill(store, *(f"file {number:03}" for number in range(30)), "other")

    async def test(folder: Folder) -> None:
        _, first = await folder.names(size=1000)
        assert (await folder.names("other"))[1][0] not in [*first, "other"]
        assert (await folder.names("*", RESTART, 1000))[1] == first
        assert (await folder.names("other", RESTART))[1] == ["other"]
        assert (await folder.names("*"))[0] == NtStatus.NO_MORE_FILES
        assert (await folder.names("", RESTART))[1] == ["other"]
        assert (await folder.names("*", REOPEN, 1000))[1] == first
        assert (await folder.names("none", RESTART))[0] == NtStatus.NO_SUCH_FILE
        assert (await folder.names("none"))[0] == NtStatus.NO_MORE_FILES, "MS-FSA 2.1.5.6.3: it is no first query"
        fill(store, "none")
        assert (await folder.names("NONE", RESTART))[1] == ["none"]

    drive(store, test)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.TXT", ["a.txt", "b.TXT"]),
        ("?.txt", ["a.txt", "b.TXT"]),
        ("<.txt", ["a.txt", "b.TXT"]),
        ("b*", ["b.TXT", "bb"]),
        (".", ["."]),
        ("..", [".."]),
        ("B.tXt", ["b.TXT"]),
        ("*", [*DOTS, "a.txt", "b.TXT", "bb"]),
    ],
)
def test_patterns(store: Backend, pattern: str, expected: list[str]) -> None:
    fill(store, "a.txt", "b.TXT", "bb")

    async def test(folder: Folder) -> None:
        status, found = await folder.names(pattern)
        assert (status, sorted(found)) == (0, expected)
        assert (await folder.names(pattern))[0] == NtStatus.NO_MORE_FILES

    drive(store, test)


def test_an_entry_larger_than_the_buffer_is_kept(store: Backend) -> None:
    """[MS-FSA 2.1.5.6.3]"""
    name = "x" * 200
    fill(store, name)

    async def test(folder: Folder) -> None:
        assert (await folder.names(size=240))[1] == DOTS
        for _ in range(2):
            assert (await folder.names(size=240))[0] == NtStatus.BUFFER_OVERFLOW
        assert (await folder.names())[1] == [name]
        assert (await folder.names())[0] == NtStatus.NO_MORE_FILES

    drive(store, test)


def test_requests_that_are_refused(store: Backend) -> None:
    async def test(folder: Folder) -> None:
        level = FileInfoClass.ID_BOTH_DIRECTORY
        smallest = LEVELS[level].layout.size + 2
        assert (await folder.ask(size=smallest - 1))[0] == NtStatus.INFO_LENGTH_MISMATCH
        assert (await folder.ask(size=smallest))[0] == 0
        assert (await folder.ask(level=FileInfoClass.BASIC))[0] == NtStatus.NOT_SUPPORTED
        assert (await folder.ask(level=200))[0] == NtStatus.INVALID_INFO_CLASS
        assert (await folder.ask(size=1 << 30))[0] == NtStatus.INVALID_PARAMETER
        assert (await folder.ask("<" * 1025, RESTART))[0] == NtStatus.OBJECT_NAME_INVALID
        await folder.close()
        assert (await folder.ask())[0] == NtStatus.FILE_CLOSED

    drive(store, test)


def test_files_that_come_and_go_meanwhile(store: Backend) -> None:
    """Those that stay come once."""
    stays = [f"stays {number:03}" for number in range(100)]
    fill(store, *stays, *(f"goes {number:03}" for number in range(100)))

    async def test(folder: Folder) -> None:
        _, found = await folder.names(size=3000)
        for number in range(100):
            with opened(store, "folder", f"goes {number:03}") as handle:
                handle.unlink()
            fill(store, f"comes {number:03}")
        later = await folder.rest(3000)
        assert not [name for name in later if name.startswith("goes")]
        found += later
        assert len(found) == len(set(found))
        assert set(stays) <= set(found)

    drive(store, test)


def opened_folders() -> list[str]:
    """Descriptors of this process that lead to a store's folder."""
    found = []
    for descriptor in descriptors():
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in found if path.endswith("/folder")]


@pytest.mark.parametrize("end", ["close", "cancel", "disconnect"])
def test_a_long_search_ends(store: Backend, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """By CLOSE, CANCEL or the end of the connection. What it held is released."""
    fill(store, *(f"file {number:03}" for number in range(300)))
    monkeypatch.setattr(query_directory, "TURN", 0.0)

    async def test(folder: Folder) -> None:
        client = folder.client
        await client.post(Command.QUERY_DIRECTORY, folder.body("nothing*"))
        if end == "disconnect":
            client.writer.close()
            await asyncio.sleep(0.1)
            return
        message_id = client.message_id - 1
        if end == "close":
            await client.post(Command.CLOSE, struct.pack("<HHI16s", 24, 0, 0, folder.file_id))
        else:
            await client.post(Command.CANCEL, struct.pack("<HH", 4, 0), message_id=message_id)
        statuses = set()
        while len(statuses) < (2 if end == "close" else 1):
            reply = await client.receive()
            if reply.status != NtStatus.PENDING:
                statuses.add((reply.header.command, reply.status))
        searches = {status for command, status in statuses if command == Command.QUERY_DIRECTORY}
        assert searches <= {NtStatus.FILE_CLOSED, NtStatus.CANCELLED, NtStatus.NO_SUCH_FILE}
        assert searches

    drive(store, test)
    assert opened_folders() == []


def test_access_based_enumeration(store: Backend) -> None:
    """Entries that the user may read are listed, in responses of any size."""
    names = [f"file {number:03}" for number in range(50)]
    fill(store, *names)

    async def test(folder: Folder) -> None:
        found = await folder.rest(1000)
        assert sorted(found) == sorted([*DOTS, *names])

    drive(store, test, ShareFlags.ACCESS_BASED_DIRECTORY_ENUM)


def test_one_turn_reads_a_bounded_number_of_entries(store: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others get their turn after at most that many, whatever the buffer."""
    fill(store, *(f"{number:04}" for number in range(1000)))
    asked: list[int] = []
    read = query_directory.Enumeration.read

    def counted(enumeration: query_directory.Enumeration, most: int) -> object:
        asked.append(most)
        return read(enumeration, most)

    monkeypatch.setattr(query_directory.Enumeration, "read", counted)

    async def test(folder: Folder) -> None:
        assert len(await folder.rest()) == 1002

    drive(store, test)
    assert max(asked) <= 64
    assert len(asked) <= 40
