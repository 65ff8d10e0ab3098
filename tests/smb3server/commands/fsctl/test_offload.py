"""FSCTL_OFFLOAD_READ and FSCTL_OFFLOAD_WRITE (MS-FSA 2.1.5.10.20, 2.1.5.10.21): what is copied, and what is refused."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from smb3server.backends.base import Backend, DataVersion
from smb3server.backends.local.backend import LocalBackend
from smb3server.backends.local.handle import LocalHandle
from smb3server.backends.memory.backend import MemoryBackend
from smb3server.commands.fsctl import offload
from smb3server.wire import lock
from smb3server.wire.create import Access
from smb3server.wire.header import Command
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.offload import (
    ALL_ZERO_BEYOND_CURRENT_RANGE,
    READ_INPUT,
    READ_OUTPUT,
    WRITE_INPUT,
    WRITE_OUTPUT,
    ZERO_TOKEN,
    OffloadReadInput,
    OffloadReadOutput,
    OffloadWriteInput,
)
from smb3server.wire.status import NtStatus
from tests.lab.file_requests import FileId, close, lock_body, opened, read, write
from tests.lab.shares import share_of
from tests.lab.wire_client import Client, Harness, Reply, drive, ioctl_body

SECTOR = 512
CONTENT = os.urandom(6000)
LARGE = (3 << 20) + 700
Store = Callable[[], Backend]
Test = Callable[[Harness, Client], Awaitable[None]]


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryBackend if request.param == "memory" else lambda: LocalBackend(tmp_path)


def run(test: Test, store: Store = MemoryBackend) -> None:
    async def body(harness: Harness) -> None:
        backend = store()
        harness.server.add_share(share_of("data", backend))
        # Another share of the same store.
        harness.server.add_share(share_of("again", backend))
        client = await harness.connect()
        await client.login(share="data")
        await test(harness, client)

    drive(body)


async def final(client: Client, code: int, file: FileId, data: bytes, output: int = 4096) -> Reply:
    reply = await client.call(Command.IOCTL, ioctl_body(code, data, struct.pack("<2Q", *file), output))
    while reply.status == NtStatus.PENDING:
        reply = await client.receive()
    return reply


def output_of(reply: Reply) -> bytes:
    offset, count = struct.unpack_from("<II", reply.body, 32)
    return bytes(reply.message[offset : offset + count])


async def refused_read(client: Client, file: FileId, *, output: int = 528, **fields: int) -> int:
    data = READ_INPUT.pack(OffloadReadInput()._replace(copy_length=SECTOR)._replace(**fields))
    return (await final(client, Fsctl.OFFLOAD_READ, file, data, output)).status


async def token_for(client: Client, file: FileId, length: int, offset: int = 0, life: int = 0) -> OffloadReadOutput:
    asked = OffloadReadInput(token_time_to_live=life, file_offset=offset, copy_length=length)
    reply = await final(client, Fsctl.OFFLOAD_READ, file, READ_INPUT.pack(asked))
    assert reply.status == 0, hex(reply.status)
    answer = READ_OUTPUT.unpack(output_of(reply))
    assert answer.size == READ_OUTPUT.size
    return answer


async def use(client: Client, file: FileId, token: bytes, length: int, offset: int = 0, transfer: int = 0) -> Reply:
    asked = OffloadWriteInput(file_offset=offset, copy_length=length, transfer_offset=transfer, token=token)
    return await final(client, Fsctl.OFFLOAD_WRITE, file, WRITE_INPUT.pack(asked))


async def used(client: Client, file: FileId, token: bytes, length: int, offset: int = 0, transfer: int = 0) -> int:
    reply = await use(client, file, token, length, offset, transfer)
    assert reply.status == 0, hex(reply.status)
    assert len(output_of(reply)) == WRITE_OUTPUT.size
    return WRITE_OUTPUT.unpack(output_of(reply)).length_written


async def made(client: Client, name: str, content: bytes) -> FileId:
    _, file, _ = await opened(client, name)
    for start in range(0, len(content), 1 << 16):
        assert (await write(client, file, content[start : start + (1 << 16)], start)).status == 0
    return file


async def content_of(client: Client, file: FileId, length: int) -> bytes:
    found = b""
    while len(found) < length:
        status, part = await read(client, file, min(1 << 16, length - len(found)), len(found))
        if status == NtStatus.END_OF_FILE:
            break
        assert status == 0
        found += part
    return found


# What is copied


def test_a_file_is_copied(store: Store) -> None:
    async def test(_: Harness, client: Client) -> None:
        content = os.urandom(LARGE)
        source = await made(client, "source", content)
        target = await made(client, "target", bytes(len(content)))
        length = -(-len(content) // SECTOR) * SECTOR
        answer = await token_for(client, source, length + 10 * SECTOR)
        assert answer.transfer_length == length
        assert answer.flags == ALL_ZERO_BEYOND_CURRENT_RANGE
        assert await used(client, target, answer.token, length) == length
        assert await content_of(client, target, 2 * length) == content

    run(test, store)


def test_a_part_of_the_token_goes_to_any_sector(store: Store) -> None:
    async def test(_: Harness, client: Client) -> None:
        source = await made(client, "source", CONTENT)
        target = await made(client, "target", b"." * 5000)
        answer = await token_for(client, source, 4 * SECTOR, SECTOR)
        assert (answer.transfer_length, answer.flags) == (4 * SECTOR, 0)
        assert await used(client, target, answer.token, 2 * SECTOR, 3 * SECTOR, SECTOR) == 2 * SECTOR
        part = CONTENT[2 * SECTOR : 4 * SECTOR]
        assert await content_of(client, target, 9999) == b"." * 3 * SECTOR + part + b"." * (5000 - 5 * SECTOR)
        # The rest of the token is less than what is asked for.
        assert await used(client, target, answer.token, 8 * SECTOR, 0, 3 * SECTOR) == SECTOR

    run(test, store)


def test_the_last_sector_has_zeros_behind_the_source(store: Store) -> None:
    async def test(_: Harness, client: Client) -> None:
        source = await made(client, "source", CONTENT[:700])
        target = await made(client, "target", b"." * 4096)
        answer = await token_for(client, source, 2 * SECTOR)
        assert await used(client, target, answer.token, 2 * SECTOR) == 2 * SECTOR
        expected = CONTENT[:700] + bytes(2 * SECTOR - 700) + b"." * (4096 - 2 * SECTOR)
        assert await content_of(client, target, 9999) == expected

    run(test, store)


def test_the_target_is_not_extended(store: Store) -> None:
    async def test(_: Harness, client: Client) -> None:
        source = await made(client, "source", CONTENT)
        target = await made(client, "target", b"." * 700)
        answer = await token_for(client, source, 8 * SECTOR)
        assert await used(client, target, answer.token, 8 * SECTOR) == 2 * SECTOR
        assert await content_of(client, target, 9999) == CONTENT[:700]
        assert (await use(client, target, answer.token, SECTOR, 2 * SECTOR)).status == NtStatus.END_OF_FILE

    run(test, store)


@pytest.mark.parametrize(("origin", "place"), [(0, 3 << 20), (0, 5 * SECTOR), (5 * SECTOR, 0), (0, 0)])
def test_within_one_file_as_if_the_source_was_read_first(store: Store, origin: int, place: int) -> None:
    async def test(_: Harness, client: Client) -> None:
        length, content = 5 << 19, os.urandom(6 << 20)
        file = await made(client, "file", content)
        answer = await token_for(client, file, length, origin)
        assert await used(client, file, answer.token, length, place) == length
        expected = content[:place] + content[origin : origin + length] + content[place + length :]
        assert await content_of(client, file, len(expected)) == expected

    run(test, store)


def test_zeros_need_no_source(store: Store) -> None:
    async def test(_: Harness, client: Client) -> None:
        target = await made(client, "target", CONTENT)
        assert await used(client, target, ZERO_TOKEN[:8] + b"ignored".ljust(504), 2 * SECTOR, SECTOR) == 2 * SECTOR
        expected = CONTENT[:SECTOR] + bytes(2 * SECTOR) + CONTENT[3 * SECTOR :]
        assert await content_of(client, target, 9999) == expected
        assert await used(client, target, ZERO_TOKEN, 1 << 40) == -(-len(CONTENT) // SECTOR) * SECTOR
        assert await content_of(client, target, 9999) == bytes(len(CONTENT))

    run(test, store)


def test_a_hole_is_the_zero_token(store: Store) -> None:
    async def test(_: Harness, client: Client) -> None:
        _, file, _ = await opened(client, "file")
        assert (await write(client, file, b"end", 1 << 20)).status == 0
        answer = await token_for(client, file, 1 << 16)
        assert answer.token == ZERO_TOKEN
        assert answer.transfer_length == 1 << 16

    run(test, store)


def test_nothing_is_copied_at_once() -> None:
    async def test(_: Harness, client: Client) -> None:
        empty = await made(client, "empty", b"")
        assert (await token_for(client, empty, 0)).token == ZERO_TOKEN
        assert await used(client, empty, bytes(512), 0) == 0

    run(test)


def test_a_token_may_stand_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "MAX_TRANSFER", 2 * SECTOR)

    async def test(_: Harness, client: Client) -> None:
        source = await made(client, "source", CONTENT)
        target = await made(client, "target", bytes(len(CONTENT)))
        done = 0
        while done < len(CONTENT):
            answer = await token_for(client, source, 100 * SECTOR, done)
            assert 0 < answer.transfer_length <= 2 * SECTOR
            last = done + answer.transfer_length >= len(CONTENT)
            assert answer.flags == (ALL_ZERO_BEYOND_CURRENT_RANGE if last else 0)
            done += await used(client, target, answer.token, answer.transfer_length, done)
        assert await content_of(client, target, 9999) == CONTENT

    run(test)


# Tokens that are not valid


async def pair(client: Client) -> tuple[FileId, FileId, bytes]:
    source, target = await made(client, "source", CONTENT), await made(client, "target", b"." * 4096)
    return source, target, (await token_for(client, source, SECTOR)).token


def spoilt(spoil: Callable[[Harness, Client, FileId], Awaitable[None]], store: Store = MemoryBackend) -> None:
    """Check that a token is refused after ``spoil``, and that nothing is written then."""

    async def test(harness: Harness, client: Client) -> None:
        source, target, token = await pair(client)
        assert await used(client, target, token, SECTOR, SECTOR) == SECTOR
        await spoil(harness, client, source)
        assert (await use(client, target, token, SECTOR)).status == NtStatus.INVALID_TOKEN
        assert (await content_of(client, target, SECTOR)) == b"." * SECTOR

    run(test, store)


@pytest.mark.parametrize("place", [0, 5, 6, 8, 20, 70, 300, 480, 511])
def test_damaged_tokens_are_refused(place: int) -> None:
    async def test(_: Harness, client: Client) -> None:
        _, target, token = await pair(client)
        damaged = bytearray(token)
        damaged[place] ^= 0x10
        assert (await use(client, target, bytes(damaged), SECTOR)).status == NtStatus.INVALID_TOKEN
        assert (await content_of(client, target, SECTOR)) == b"." * SECTOR

    run(test)


def test_well_known_tokens_that_nobody_knows_are_refused() -> None:
    async def test(_: Harness, client: Client) -> None:
        target = await made(client, "target", CONTENT)
        unknown = struct.pack(">I", 0xFFFF0002) + ZERO_TOKEN[4:]
        assert (await use(client, target, unknown, SECTOR)).status == NtStatus.INVALID_TOKEN

    run(test)


def test_a_changed_source_ends_the_token(store: Store) -> None:
    async def spoil(_: Harness, client: Client, source: FileId) -> None:
        assert (await write(client, source, b"x", 5000)).status == 0

    spoilt(spoil, store)


def test_a_change_through_another_open_ends_the_token(store: Store) -> None:
    async def spoil(_: Harness, client: Client, source: FileId) -> None:
        _, other, _ = await opened(client, "source")
        assert (await write(client, other, b"x", 5000)).status == 0

    spoilt(spoil, store)


def test_a_change_by_the_host_ends_the_token(tmp_path: Path) -> None:
    async def spoil(_: Harness, client: Client, source: FileId) -> None:
        with open(tmp_path / "source", "r+b") as file:
            file.write(b"!")

    spoilt(spoil, lambda: LocalBackend(tmp_path))


def test_a_change_in_the_same_second_ends_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system stores whole seconds, as FAT does."""
    exact = LocalHandle.data_version

    def whole_seconds(handle: LocalHandle) -> DataVersion:
        version = exact(handle)
        return version._replace(changed=version.changed // 10**9 * 10**9)

    monkeypatch.setattr(LocalHandle, "data_version", whole_seconds)

    async def spoil(_: Harness, client: Client, source: FileId) -> None:
        with open(tmp_path / "source", "r+b") as file:
            file.write(b"!")

    spoilt(spoil, lambda: LocalBackend(tmp_path))


def test_a_cut_source_ends_the_token(tmp_path: Path) -> None:
    async def spoil(_: Harness, client: Client, source: FileId) -> None:
        os.truncate(tmp_path / "source", 100)

    spoilt(spoil, lambda: LocalBackend(tmp_path))


def test_a_closed_source_ends_the_token(store: Store) -> None:
    async def spoil(_: Harness, client: Client, source: FileId) -> None:
        assert (await close(client, source)).status == 0

    spoilt(spoil, store)


def test_tokens_expire() -> None:
    async def test(_: Harness, client: Client) -> None:
        source, target, _token = await pair(client)
        token = (await token_for(client, source, SECTOR, life=50)).token
        await asyncio.sleep(0.06)
        assert (await use(client, target, token, SECTOR)).status == NtStatus.INVALID_TOKEN

    run(test)


@pytest.mark.parametrize("user", ["u", "other"])
def test_a_token_belongs_to_its_session(user: str) -> None:
    async def test(harness: Harness, client: Client) -> None:
        _, _, token = await pair(client)
        stranger = await harness.connect()
        assert (await stranger.negotiate()).status == 0
        assert (await stranger.session_setup(user=user)).status == 0
        assert (await stranger.tree_connect("data")).status == 0
        target = await made(stranger, "theirs", b"." * 4096)
        assert (await use(stranger, target, token, SECTOR)).status == NtStatus.INVALID_TOKEN
        assert (await content_of(stranger, target, SECTOR)) == b"." * SECTOR

    run(test)


def test_data_of_another_share_is_out_of_reach() -> None:
    async def test(_: Harness, client: Client) -> None:
        _, _, token = await pair(client)
        assert (await client.tree_connect("again")).status == 0
        target = await made(client, "there", b"." * 4096)
        assert (await use(client, target, token, SECTOR)).status == NtStatus.DEVICE_UNREACHABLE

    run(test)


# What happens during a copy


def test_a_source_that_changes_during_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = offload.copy_range

    def changing(*where: Any, **options: Any) -> int:
        copied = real(*where, **options)
        with open(tmp_path / "source", "r+b") as file:
            file.write(b"!")
        return copied

    async def test(_: Harness, client: Client) -> None:
        _, target, token = await pair(client)
        monkeypatch.setattr(offload, "copy_range", changing)
        assert (await use(client, target, token, SECTOR)).status == NtStatus.INVALID_TOKEN

    run(test, lambda: LocalBackend(tmp_path))


@pytest.mark.parametrize("which", ["source", "target"])
def test_a_file_is_closed_during_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    """The worker thread keeps the descriptors until its step has ended."""
    began, go_on, real = threading.Event(), threading.Event(), offload.copy_range

    def slow(*where: Any, **options: Any) -> int:
        began.set()
        assert go_on.wait(20)
        return real(*where, **options)

    monkeypatch.setattr(offload, "copy_range", slow)

    async def test(_: Harness, client: Client) -> None:
        source, target, token = await pair(client)
        asked = WRITE_INPUT.pack(OffloadWriteInput(copy_length=SECTOR, token=token))
        body = ioctl_body(Fsctl.OFFLOAD_WRITE, asked, struct.pack("<2Q", *target))
        await client.post(Command.IOCTL, body)
        assert await asyncio.to_thread(began.wait, 20)
        assert (await client.receive()).status == NtStatus.PENDING
        assert (await close(client, source if which == "source" else target)).status == 0
        go_on.set()
        final = (await client.receive()).status
        assert final == (0 if which == "source" else NtStatus.FILE_CLOSED)

    run(test, lambda: LocalBackend(tmp_path))


# The order and the statuses of the checks


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"output": 527}, NtStatus.BUFFER_TOO_SMALL),
        ({"size": 31}, NtStatus.INVALID_PARAMETER),
        ({"file_offset": 1}, NtStatus.INVALID_PARAMETER),
        ({"copy_length": SECTOR + 1}, NtStatus.INVALID_PARAMETER),
        ({"file_offset": (1 << 64) - SECTOR, "copy_length": SECTOR}, NtStatus.INVALID_PARAMETER),
        ({"file_offset": 12 * SECTOR}, NtStatus.END_OF_FILE),
        ({"file_offset": 1 << 63}, NtStatus.END_OF_FILE),
    ],
)
def test_reads_that_no_file_allows(fields: dict[str, int], status: NtStatus) -> None:
    async def test(_: Harness, client: Client) -> None:
        source = await made(client, "source", CONTENT)
        assert await refused_read(client, source, **fields) == status

    run(test)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"size": 545}, NtStatus.INVALID_PARAMETER),
        ({"file_offset": 1}, NtStatus.INVALID_PARAMETER),
        ({"copy_length": 1}, NtStatus.INVALID_PARAMETER),
        ({"transfer_offset": 1}, NtStatus.INVALID_PARAMETER),
        ({"transfer_offset": SECTOR}, NtStatus.INVALID_PARAMETER),
        ({"file_offset": (1 << 64) - SECTOR}, NtStatus.INVALID_PARAMETER),
        ({"file_offset": (1 << 63) - SECTOR}, NtStatus.INVALID_PARAMETER),
        ({"file_offset": 1 << 40}, NtStatus.END_OF_FILE),
    ],
)
def test_writes_that_no_file_allows(fields: dict[str, int], status: NtStatus) -> None:
    async def test(_: Harness, client: Client) -> None:
        _, target, token = await pair(client)
        asked = OffloadWriteInput(copy_length=SECTOR, token=token)._replace(**fields)
        assert (await final(client, Fsctl.OFFLOAD_WRITE, target, WRITE_INPUT.pack(asked))).status == status
        assert (await content_of(client, target, 9999)) == b"." * 4096

    run(test)


def test_short_buffers() -> None:
    async def test(_: Harness, client: Client) -> None:
        source, target, token = await pair(client)
        whole = WRITE_INPUT.pack(OffloadWriteInput(copy_length=SECTOR, token=token))
        for code, file, data, output in (
            (Fsctl.OFFLOAD_READ, source, bytes(31), 4096),
            (Fsctl.OFFLOAD_READ, source, b"", 4096),
            (Fsctl.OFFLOAD_WRITE, target, whole[:-1], 4096),
            (Fsctl.OFFLOAD_WRITE, target, whole, 15),
        ):
            assert (await final(client, code, file, data, output)).status == NtStatus.BUFFER_TOO_SMALL

    run(test)


def test_files_that_cannot_take_part() -> None:
    async def test(_: Harness, client: Client) -> None:
        _, target, token = await pair(client)
        _, folder, _ = await opened(client, "folder", create_options=1)
        sparse = await made(client, "sparse", CONTENT)
        assert (await final(client, Fsctl.SET_SPARSE, sparse, b"\1")).status == 0
        for file in (folder, sparse):
            assert await refused_read(client, file) == NtStatus.OFFLOAD_READ_FILE_NOT_SUPPORTED
            assert (await use(client, file, token, SECTOR)).status == NtStatus.OFFLOAD_WRITE_FILE_NOT_SUPPORTED
        small = await made(client, "small", b"x")
        assert await refused_read(client, small) == NtStatus.INVALID_PARAMETER
        assert (await use(client, small, token, SECTOR)).status == NtStatus.INVALID_PARAMETER
        assert (await close(client, target)).status == 0
        assert (await use(client, target, token, SECTOR)).status == NtStatus.FILE_CLOSED

    run(test)


def test_rights() -> None:
    async def test(_: Harness, client: Client) -> None:
        source, _, token = await pair(client)
        _, unreadable, _ = await opened(client, "source", desired_access=int(Access.WRITE_DATA))
        _, unwritable, _ = await opened(client, "target", desired_access=int(Access.READ_DATA))
        assert await refused_read(client, unreadable) == NtStatus.ACCESS_DENIED
        assert (await use(client, unwritable, token, SECTOR)).status == NtStatus.ACCESS_DENIED
        assert await used(client, source, token, SECTOR, SECTOR) == SECTOR

    run(test)


def test_locks_of_others() -> None:
    async def test(_: Harness, client: Client) -> None:
        source, target, token = await pair(client)
        flags = lock.LockFlags.EXCLUSIVE_LOCK | lock.LockFlags.FAIL_IMMEDIATELY
        for name in ("source", "target"):
            _, other, _ = await opened(client, name)
            body = lock_body(other, lock.LockElement(2 * SECTOR, 1, flags))
            assert (await client.call(Command.LOCK, body)).status == 0
        conflict = NtStatus.FILE_LOCK_CONFLICT
        assert await refused_read(client, source, copy_length=3 * SECTOR) == conflict
        assert (await use(client, target, token, SECTOR, 2 * SECTOR)).status == conflict
        assert await used(client, target, token, SECTOR, SECTOR) == SECTOR

    run(test)


def test_a_file_that_is_always_being_written_gets_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one tick of the clock a later change would look like the last one."""
    monkeypatch.setattr(offload, "_PATIENCE", 0.1)

    async def test(harness: Harness, client: Client) -> None:
        source = await made(client, "source", CONTENT)
        stop = asyncio.Event()
        other = await harness.connect()
        await other.login(share="data")
        _, again, _ = await opened(other, "source")

        async def busy() -> None:
            while not stop.is_set():
                assert (await write(other, again, b"x")).status == 0
                await asyncio.sleep(0.005)

        task = asyncio.create_task(busy())
        assert await refused_read(client, source) == NtStatus.INSUFFICIENT_RESOURCES
        stop.set()
        await task
        await token_for(client, source, SECTOR)

    run(test)
