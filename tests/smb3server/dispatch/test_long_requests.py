"""Requests of one user that have much to do: everybody else is served meanwhile.

Work is counted, or done on threads that the test holds up; the watchdog of this folder's tests (``conftest``) measures
the processor time of every command.
"""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smb3server.backends import names
from smb3server.backends.local import file_io, release, resolve, syscalls
from smb3server.backends.local.handle import LocalHandle
from smb3server.backends.local.metadata import MetadataStore
from smb3server.client.protocol import Client, ServerError, Tree, open_tcp
from smb3server.client.protocol.tree import READ_WRITE, RemoteFile
from smb3server.wire.create import CreateAction, CreateDisposition
from smb3server.wire.create_contexts import ALLOCATION_SIZE, EA_BUFFER, RawContext
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus
from tests.lab.services import configured, port_of, running

LONGEST_TURN = 0.1

FULL_EA = FileInfoClass.FULL_EA
LARGE = 3 * release.LARGE


async def _connected(service: Any) -> tuple[Client, Tree]:
    client = await Client.connect(await open_tcp("127.0.0.1", port_of(service, "tcp", "0.0.0.0")))
    return client, await (await client.log_on("u", "pw")).tree_connect("share")


def _drive(tmp_path: Path, test: Callable[[Any, Tree, Client], Any], text: str = "") -> None:
    """``test`` gets the service, a tree connect, and another client."""

    async def run() -> None:
        async with running(configured(tmp_path)) as service:
            client, tree = await _connected(service)
            other, _ = await _connected(service)
            await test(service, tree, other)
            await client.close()
            await other.close()

    asyncio.run(run())


def _space(file: Path) -> int:
    """Bytes, with what extended attributes take beyond the inode."""
    return file.stat().st_blocks * 512


def _eas(count: int, name: Callable[[int], bytes] = lambda index: b"%05d" % index) -> bytes:
    parts = []
    for index in range(count):
        ea = name(index)
        size = 8 + len(ea) + 2
        padding = -size % 4
        last = index == count - 1
        parts.append(struct.pack("<IBBH", 0 if last else size + padding, 0, len(ea), 1) + ea + b"\0v")
        parts.append(b"" if last else bytes(padding))
    return b"".join(parts)


def _get_eas(count: int) -> bytes:
    return (struct.pack("<IB", 8, 1) + b"A\0\0") * (count - 1) + struct.pack("<IB", 0, 1) + b"A\0"


async def _refused(work: Any) -> int:
    with pytest.raises(ServerError) as caught:
        await work
    return caught.value.status


# -- extended attributes


def test_many_eas_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MS-FSA 2.1.5.15.6, and the same for CREATE that overwrites."""
    written = 0
    set_blob = MetadataStore.set_blob

    def counted(*arguments: Any, **options: Any) -> None:
        nonlocal written
        written += 1
        set_blob(*arguments, **options)

    monkeypatch.setattr(MetadataStore, "set_blob", counted)

    async def test(service: Any, tree: Tree, other: Client) -> None:
        nonlocal written
        file = await tree.create("f", READ_WRITE, CreateDisposition.CREATE)
        # To whom it belongs may have been written.
        written = 0
        await tree.set_info(file, FULL_EA, _eas(1000))
        assert written == 1
        await tree.set_info(file, FULL_EA, _eas(1000, lambda index: b"A"))
        assert written == 2
        found = await tree.query_info(file, FULL_EA, size=65536)
        assert found.count(b"\0v") == 1001
        await tree.close(file)
        written = 0
        given = [RawContext(EA_BUFFER, _eas(3))]
        file = await tree.create("f", READ_WRITE, CreateDisposition.OVERWRITE, contexts=given)
        assert written == 1
        assert (await tree.query_info(file, FULL_EA, size=65536)).count(b"\0v") == 3
        await tree.close(file)
        written = 0
        await tree.close(await tree.create("f", READ_WRITE, CreateDisposition.OVERWRITE))
        await tree.close(await tree.create("f", READ_WRITE, CreateDisposition.OVERWRITE))
        assert written == 1, "there was something to remove only once"

    _drive(tmp_path, test)


def test_lists_of_eas_are_bounded(tmp_path: Path) -> None:
    async def test(service: Any, tree: Tree, other: Client) -> None:
        file = await tree.create("f", READ_WRITE, CreateDisposition.CREATE)
        assert await _refused(tree.set_info(file, FULL_EA, _eas(4200))) == NtStatus.EA_TOO_LARGE
        many = _eas(100_000, lambda index: b"A")
        assert await _refused(tree.set_info(file, FULL_EA, many)) == NtStatus.EA_TOO_LARGE
        wanted = _get_eas(200_000)
        asked = tree.query_info(file, FULL_EA, size=len(wanted), data=wanted)
        assert await _refused(asked) == NtStatus.INVALID_PARAMETER
        context = [RawContext(EA_BUFFER, _eas(5000))]
        created = tree.create("g", READ_WRITE, CreateDisposition.CREATE, contexts=context)
        assert await _refused(created) == NtStatus.EA_TOO_LARGE
        assert not (tmp_path / "share" / "g").exists()
        many_contexts = [RawContext(b"%04d" % index, b"") for index in range(5000)]
        created = tree.create("g", READ_WRITE, CreateDisposition.CREATE, contexts=many_contexts)
        assert await _refused(created) == NtStatus.INVALID_PARAMETER

    _drive(tmp_path, test)


# -- deep folders


def test_a_missing_name_deep_down_costs_one_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    depth = 200
    folder = tmp_path / "share" / "/".join(["a"] * depth)
    steps = 0
    step, openat2 = resolve.Resolver._step, syscalls.openat2

    def one(self: resolve.Resolver, directory: int, component: str) -> int:
        nonlocal steps
        steps += 1
        return step(self, directory, component)

    def many(directory: int, path: bytes, *arguments: int) -> int:
        """The kernel looks at each component of the path."""
        nonlocal steps
        steps += path.count(b"/") + 1
        return openat2(directory, path, *arguments)

    monkeypatch.setattr(resolve.Resolver, "_step", one)
    monkeypatch.setattr(syscalls, "openat2", many)

    async def test(service: Any, tree: Tree, other: Client) -> None:
        nonlocal steps
        folder.mkdir(parents=True)
        missing = "\\".join(["a"] * depth + ["missing"])
        assert await _refused(tree.create(missing, READ_WRITE, CreateDisposition.OPEN)) == (
            NtStatus.OBJECT_NAME_NOT_FOUND
        )
        assert steps <= 8 * depth
        steps = 0
        missing = "\\".join(["a"] * (depth // 2) + ["none"] + ["a"] * 10)
        assert await _refused(tree.create(missing, READ_WRITE, CreateDisposition.OPEN)) == (
            NtStatus.OBJECT_PATH_NOT_FOUND
        )
        assert steps <= 8 * depth

    _drive(tmp_path, test)


def test_paths_are_no_deeper_than_they_may_be(tmp_path: Path) -> None:
    async def test(service: Any, tree: Tree, other: Client) -> None:
        for count, status in (
            (names.MAX_DEPTH, NtStatus.OBJECT_PATH_NOT_FOUND),
            (names.MAX_DEPTH + 1, NtStatus.OBJECT_NAME_INVALID),
        ):
            path = "\\".join(["a"] * count)
            assert await _refused(tree.create(path, READ_WRITE, CreateDisposition.OPEN)) == status

    _drive(tmp_path, test)


# -- cutting and reserving


class _Held:
    """System calls on worker threads wait until the test lets them go on."""

    def __init__(self) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.calls = 0
        self.on_the_loop = 0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def held(*arguments: Any) -> Any:
            self.calls += 1
            if threading.current_thread() is threading.main_thread():
                self.on_the_loop += 1
            else:
                self.begun.set()
                assert self.may_go_on.wait(30)
            return call(*arguments)

        return held


@pytest.fixture
def held() -> Iterator[_Held]:
    made = _Held()
    yield made
    made.may_go_on.set()


def _large(path: Path, size: int = LARGE) -> None:
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


@pytest.mark.parametrize("disposition", [CreateDisposition.OVERWRITE, CreateDisposition.SUPERSEDE])
def test_others_go_on_while_a_large_file_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: _Held, disposition: CreateDisposition
) -> None:
    """Sharing holds while it lasts: whoever comes meanwhile finds the file open."""
    monkeypatch.setattr(file_io, "truncate", held.wrap(file_io.truncate))

    async def test(service: Any, tree: Tree, other: Client) -> None:
        _large(tmp_path / "share" / "f")
        create = asyncio.create_task(tree.create("f", READ_WRITE, disposition, share=0))
        assert await asyncio.to_thread(held.begun.wait, 30)
        await other.echo()
        assert not create.done()
        refused = tree.create("f", READ_WRITE, CreateDisposition.OPEN)
        assert await _refused(refused) == NtStatus.SHARING_VIOLATION
        held.may_go_on.set()
        file = await create
        superseded = disposition == CreateDisposition.SUPERSEDE
        expected = CreateAction.SUPERSEDED if superseded else CreateAction.OVERWRITTEN
        assert file.response.create_action == expected
        assert file.response.end_of_file == 0
        assert (tmp_path / "share" / "f").stat().st_size == 0
        assert await tree.write(file, 0, b"new") == 3
        await tree.close(file)

    _drive(tmp_path, test)


def test_who_overwrites_can_go_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: _Held) -> None:
    monkeypatch.setattr(file_io, "truncate", held.wrap(file_io.truncate))

    async def test(service: Any, tree: Tree, other: Client) -> None:
        _large(tmp_path / "share" / "f")
        client, leaving = await _connected(service)
        create = asyncio.create_task(leaving.create("f", READ_WRITE, CreateDisposition.OVERWRITE, share=0))
        assert await asyncio.to_thread(held.begun.wait, 30)
        client.transport.abort("gone")
        await asyncio.wait([create])
        assert create.exception() is not None
        async with asyncio.timeout(20):
            while service.server.opens.by_id:
                await asyncio.sleep(0.01)
        held.may_go_on.set()
        file = await tree.create("f", READ_WRITE, CreateDisposition.OPEN, share=0)
        await tree.close(file)
        assert not service.server.opens.by_id

    _drive(tmp_path, test)


def _fallocate_held(monkeypatch: pytest.MonkeyPatch, held: _Held) -> None:
    monkeypatch.setattr(syscalls, "fallocate", held.wrap(syscalls.fallocate))


@pytest.mark.parametrize("by", ["SET_INFO", "CREATE"])
def test_others_go_on_while_space_is_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: _Held, by: str
) -> None:
    """MS-FSA 2.1.5.15.1, 2.1.5.1."""
    _fallocate_held(monkeypatch, held)

    async def test(service: Any, tree: Tree, other: Client) -> None:
        wanted = struct.pack("<Q", LARGE)
        if by == "CREATE":
            contexts = [RawContext(ALLOCATION_SIZE, wanted)]
            work: Any = asyncio.create_task(tree.create("f", READ_WRITE, CreateDisposition.CREATE, contexts=contexts))
        else:
            file = await tree.create("f", READ_WRITE, CreateDisposition.CREATE)
            work = asyncio.create_task(tree.set_info(file, FileInfoClass.ALLOCATION, wanted))
        assert await asyncio.to_thread(held.begun.wait, 30)
        await other.echo()
        assert not work.done()
        held.may_go_on.set()
        result = await work
        if by == "CREATE":
            file = result
            assert file.response.allocation_size >= LARGE
        assert (tmp_path / "share" / "f").stat().st_blocks * 512 >= LARGE
        assert held.on_the_loop == 0
        usage = next(iter(service.server.ceilings.users()))
        assert usage.reserved == LARGE
        await tree.close(file)
        assert usage.reserved == 0

    _drive(tmp_path, test)


def test_what_is_not_reserved_to_the_end_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: _Held
) -> None:
    """A cancelled request, or one whose open is closed, leaves nothing reserved."""
    monkeypatch.setattr(file_io, "STEP", 1 << 20)
    _fallocate_held(monkeypatch, held)

    async def test(service: Any, tree: Tree, other: Client) -> None:
        file = await tree.create("f", READ_WRITE, CreateDisposition.CREATE)
        made = _space(tmp_path / "share" / "f")
        work = asyncio.create_task(tree.set_info(file, FileInfoClass.ALLOCATION, struct.pack("<Q", LARGE)))
        assert await asyncio.to_thread(held.begun.wait, 30)
        await tree.close(file)
        held.may_go_on.set()
        assert await _refused(work) in (NtStatus.FILE_CLOSED, NtStatus.CANCELLED)
        assert held.calls <= 2
        async with asyncio.timeout(20):
            while _space(tmp_path / "share" / "f") > made:
                await asyncio.sleep(0.01)

    _drive(tmp_path, test)


def test_nobody_takes_the_disk_by_asking_for_it(tmp_path: Path) -> None:
    """Beyond what a user may have reserved nothing is, but it is said when there is not so much."""

    async def test(service: Any, tree: Tree, other: Client) -> None:
        service.server.settings.max_reserved_per_user = 1 << 20
        share = service.server.share_list["share"]
        free = share.backend.volume().available_bytes
        files = [await tree.create(f"f{index}", READ_WRITE, CreateDisposition.CREATE) for index in range(3)]
        made = _space(tmp_path / "share" / "f0")
        for file in files[:2]:
            await tree.set_info(file, FileInfoClass.ALLOCATION, struct.pack("<Q", 768 << 10))
        sizes = [_space(tmp_path / "share" / f"f{index}") - made for index in range(2)]
        assert sizes == [768 << 10, 0]
        too_much = tree.set_info(files[2], FileInfoClass.ALLOCATION, struct.pack("<Q", 2 * free))
        assert await _refused(too_much) == NtStatus.DISK_FULL
        await tree.close(files[0])
        await tree.set_info(files[1], FileInfoClass.ALLOCATION, struct.pack("<Q", 768 << 10))
        assert _space(tmp_path / "share" / "f1") - made == 768 << 10
        share.rules.strict_allocate = True
        await tree.set_info(files[2], FileInfoClass.ALLOCATION, struct.pack("<Q", 2 << 20))
        assert _space(tmp_path / "share" / "f2") - made == 2 << 20

    _drive(tmp_path, test)


# -- ranges


async def _sparse(tree: Tree, name: str) -> RemoteFile:
    file = await tree.create(name, READ_WRITE, CreateDisposition.OPEN_IF)
    await tree.ioctl(Fsctl.SET_SPARSE, b"", file)
    return file


def test_zeroing_a_huge_file_touches_data_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MS-FSA 2.1.5.10.38: a hole reads as zeros already, and gets no space by being zeroed."""
    calls: list[tuple[int, int]] = []
    fallocate = syscalls.fallocate

    def counted(descriptor: int, mode: int, offset: int, length: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        calls.append((offset, length))
        fallocate(descriptor, mode, offset, length)

    monkeypatch.setattr(syscalls, "fallocate", counted)

    async def test(service: Any, tree: Tree, other: Client) -> None:
        path = tmp_path / "share" / "huge"
        size = 4 << 40
        with path.open("wb") as made:
            made.truncate(size)
            for offset in (0, 1 << 30, size - 65536):
                os.pwrite(made.fileno(), b"x" * 65536, offset)
        file = await tree.create("huge", READ_WRITE, CreateDisposition.OPEN)
        await tree.ioctl(Fsctl.SET_ZERO_DATA, struct.pack("<qq", 0, size), file)
        assert len(calls) == 3
        for offset in (0, 1 << 30, size - 65536):
            assert await tree.read(file, offset, 65536) == bytes(65536)
        assert path.stat().st_size == size
        assert path.stat().st_blocks * 512 < 1 << 20

    _drive(tmp_path, test)


def test_the_ranges_of_a_file_in_many_pieces_are_looked_for_on_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MS-FSA 2.1.5.10.22."""
    here = 0
    lseek = os.lseek

    def counted(*arguments: int) -> int:
        nonlocal here
        here += threading.current_thread() is threading.main_thread()
        return lseek(*arguments)

    count = 3000
    path = tmp_path / "share" / "pieces"

    async def test(service: Any, tree: Tree, other: Client) -> None:
        nonlocal here
        file = await _sparse(tree, "pieces")
        descriptor = os.open(path, os.O_WRONLY)
        for index in range(count):
            os.pwrite(descriptor, b"x", index * 16384)
        os.close(descriptor)
        monkeypatch.setattr(os, "lseek", counted)
        whole = struct.pack("<qq", 0, count * 16384)
        found = await tree.ioctl(Fsctl.QUERY_ALLOCATED_RANGES, whole, file, max_output=1 << 20)
        starts = [start for start, _ in struct.iter_unpack("<qq", found)]
        assert starts == [index * 16384 for index in range(count)]
        assert here <= 2 * 512
        here = 0
        few = await tree.ioctl(
            Fsctl.QUERY_ALLOCATED_RANGES, whole, file, max_output=1600, accept=(0, NtStatus.BUFFER_OVERFLOW)
        )
        assert few == found[:1600]
        assert here <= 2 * 102

    _drive(tmp_path, test)


def test_many_ranges_are_trimmed_on_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MS-FSA 2.1.5.10.6."""
    here = 0
    zero_range = LocalHandle.zero_range

    def counted(self: LocalHandle, offset: int, length: int, deallocate: bool = False) -> None:
        nonlocal here
        here += threading.current_thread() is threading.main_thread()
        zero_range(self, offset, length, deallocate)

    monkeypatch.setattr(LocalHandle, "zero_range", counted)

    async def test(service: Any, tree: Tree, other: Client) -> None:
        (tmp_path / "share" / "f").write_bytes(b"x" * (1 << 20))
        file = await tree.create("f", READ_WRITE, CreateDisposition.OPEN)
        ranges = b"".join(struct.pack("<qq", index * 8192, 4096) for index in range(128))
        await tree.ioctl(Fsctl.FILE_LEVEL_TRIM, struct.pack("<II", 0, 128) + ranges, file)
        assert here == 0
        read = await tree.read(file, 0, 1 << 20)
        assert read == (bytes(4096) + b"x" * 4096) * 128

    _drive(tmp_path, test)
