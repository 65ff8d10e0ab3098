"""Names that are missing, or in another case, in folders of very many files: ordinary clients look for such all day."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smb3server.backends import names
from smb3server.backends.base import FolderNotRead
from smb3server.backends.local import case_cache, folder_names
from smb3server.backends.local.case_cache import CaseCache
from smb3server.backends.local.folder_names import FolderNames
from smb3server.client.protocol import Client, ServerError, Tree, open_tcp
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.process.long_work import LongWork
from smb3server.wire.create import CreateDisposition
from smb3server.wire.status import NtStatus
from smb3server.wire.upcase import upcase
from smbdirect.errors import ConnectionLost
from tests.lab.services import configured, port_of, running

MANY = 30_000


def _fill(folder: Path, count: int = MANY) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    for number in range(count):
        os.close(os.open(f"File-{number:07d}.dat", os.O_CREAT | os.O_WRONLY, 0o666, dir_fd=descriptor))
    os.close(descriptor)


class _Counting:
    """``os.scandir`` that counts the entries given on this thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here = 0
        self.elsewhere = 0
        self._thread = threading.get_ident()
        scandir = os.scandir
        counting = self

        class Scan:
            def __init__(self, where: Any) -> None:
                self._scan = scandir(where)

            def __enter__(self) -> Scan:
                return self

            def __exit__(self, *_: object) -> None:
                self._scan.close()

            def __iter__(self) -> Iterator[Any]:
                return self

            def __next__(self) -> Any:
                entry = next(self._scan)
                if threading.get_ident() == counting._thread:
                    counting.here += 1
                else:
                    counting.elsewhere += 1
                return entry

        monkeypatch.setattr(os, "scandir", Scan)


async def _connected(service: Any) -> tuple[Client, Tree]:
    client = await Client.connect(await open_tcp("127.0.0.1", port_of(service, "tcp", "0.0.0.0")))
    return client, await (await client.log_on("u", "pw")).tree_connect("share")


async def _status(tree: Tree, name: str) -> int:
    try:
        await tree.close(await tree.create(name, READ_WRITE, CreateDisposition.OPEN))
    except ServerError as error:
        return error.status
    return 0


def test_a_large_folder_is_read_on_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all who ask, and for CREATE, searches and renames alike."""

    async def test() -> None:
        async with running(configured(tmp_path)) as service:
            _fill(tmp_path / "share" / "big")
            counting = _Counting(monkeypatch)
            client, tree = await _connected(service)
            wanted = ["big\\nosuch", "big\\fILE-0000007.DAT", "big\\FILE-0029999.dat", "big\\Q00001~1", "BIG\\none"]
            found = await asyncio.gather(*(_status(tree, name) for name in wanted))
            missing = NtStatus.OBJECT_NAME_NOT_FOUND
            assert found == [missing, 0, 0, missing, missing]
            assert counting.here < 8000, "names read on the event loop"
            assert counting.elsewhere <= 2 * MANY
            folder = await tree.create("big", 0x120089, CreateDisposition.OPEN, 1)
            listed = [entry async for entry in tree.entries(folder, "fILE-0000009.dat")]
            assert [entry.name for entry in listed] == ["File-0000009.dat"]
            file = await tree.create("big\\File-0000001.dat", 0x12019F | 0x10000, CreateDisposition.OPEN)
            with pytest.raises(ServerError) as caught:
                await tree.rename(file, "big\\file-0000002.DAT")
            assert caught.value.status == NtStatus.OBJECT_NAME_COLLISION
            assert counting.here < 12000
            await client.close()

    asyncio.run(test())


def test_who_waits_for_a_folder_can_go_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def held_up() -> None:
        begun.set()
        assert may_end.wait(30)

    async def test() -> None:
        async with running(configured(tmp_path)) as service:
            _fill(tmp_path / "share" / "big", 10_000)
            monkeypatch.setattr(case_cache, "give_way", held_up)
            client, tree = await _connected(service)
            other, other_tree = await _connected(service)
            asking = asyncio.create_task(_status(tree, "big\\nosuch"))
            also = asyncio.create_task(_status(other_tree, "big\\fILE-0000001.dat"))
            assert await asyncio.to_thread(begun.wait, 30)
            await other.echo()
            assert not asking.done() and not also.done()
            client.transport.abort("gone")
            may_end.set()
            assert await also == 0
            assert not service.server.opens.by_id
            with pytest.raises(ConnectionLost):
                await asking
            await other.close()

    asyncio.run(test())


def _cache(folder: Path) -> tuple[CaseCache, int]:
    cache = CaseCache()
    cache.defer_reading = True
    return cache, os.open(folder, os.O_PATH)


def test_changes_of_ours_while_a_folder_is_read_are_known(tmp_path: Path) -> None:
    _fill(tmp_path / "big", 10_000)
    cache, folder = _cache(tmp_path / "big")
    with pytest.raises(FolderNotRead) as caught:
        cache.find(folder, "none")
    steps = caught.value.reading.steps
    next(steps)
    before = cache.before(folder)
    (tmp_path / "big" / "New").touch()
    cache.after(before, folder, added="New")
    before = cache.before(folder)
    (tmp_path / "big" / "File-0000001.dat").unlink()
    cache.after(before, folder, removed=("File-0000001.dat",))
    with pytest.raises(FolderNotRead):
        cache.find(folder, "nEW")
    for _ in steps:
        pass
    assert cache.find(folder, "nEW") == "New"
    assert cache.find(folder, "fILE-0000001.dat") is None
    assert cache.find(folder, "fILE-0009999.dat") == "File-0009999.dat"
    assert cache.scans == 1
    os.close(folder)


def test_a_folder_that_cannot_be_read_to_the_end_is_forgotten(tmp_path: Path) -> None:
    _fill(tmp_path / "big", 10_000)
    cache, folder = _cache(tmp_path / "big")
    with pytest.raises(FolderNotRead) as caught:
        cache.find(folder, "none")
    getattr(caught.value.reading.steps, "close")()  # noqa: B009
    with pytest.raises(FolderNotRead):
        cache.find(folder, "none")
    assert cache.scans == 2
    os.close(folder)


def test_names_take_little_memory_and_are_found_without_looking_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    known = FolderNames()
    count = 200_000
    for start in range(0, count, 4096):
        known.read([f"Some file {number:08d}.data" for number in range(start, min(start + 4096, count))])
    known.finish()
    assert known.size < count * (len("Some file 00000000.data") + 12)
    folded: list[str] = []

    def counted(name: str) -> str:
        folded.append(name)
        return upcase(name)

    monkeypatch.setattr(names, "upcase", counted)
    monkeypatch.setattr(folder_names, "upcase", counted)
    for number in (0, 1, 123_456, count - 1):
        name = f"Some file {number:08d}.data"
        assert known.find(names.fold(name)) == name
        assert known.find(names.fold(names.short_name(name))) == name
        assert known.find(names.fold(f"NONE {number}")) is None
    assert known.find(names.fold("Q00001~1")) is None
    assert len(folded) < 100


def test_changes_to_a_known_folder_are_bounded() -> None:
    known = FolderNames()
    known.read(["a", "A", "b"])
    known.finish()
    assert known.find(names.fold("A")) == "A"
    known.remove("A")
    assert known.find(names.fold("A")) == "a"
    known.add("A", names.fold("A").hash)
    assert known.find(names.fold("A")) == "A"
    size = known.size
    for number in range(20_000):
        known.add(f"n{number}", names.fold(f"n{number}").hash)
    for number in range(20_000):
        assert known.find(names.fold(f"N{number}")) == f"n{number}"
    assert known.size < size + 20_000 * 60
    assert not known.outdated
    for number in range(20_000):
        known.remove(f"n{number}")
    assert known.outdated
    assert known.find(names.fold("N5")) is None


def test_two_large_folders_in_turn_are_read_once_each(tmp_path: Path) -> None:
    cache = CaseCache()
    folders = []
    for name in "pq":
        _fill(tmp_path / name, 20_000)
        folders.append(os.open(tmp_path / name, os.O_PATH))
    for number in range(20):
        for folder in folders:
            assert cache.find(folder, f"nosuch{number}") is None
    assert cache.scans == 2
    assert cache._bytes < 2 * 20_000 * 40
    for folder in folders:
        os.close(folder)


def test_a_folder_with_too_many_names_for_the_memory_is_known_by_exact_names_only(tmp_path: Path) -> None:
    _fill(tmp_path / "big", 2000)
    cache = CaseCache(max_bytes=10_000)
    folder = os.open(tmp_path / "big", os.O_PATH)
    assert cache.find(folder, "fILE-0000001.dat") is None
    assert cache.find(folder, "fILE-0000002.dat") is None
    assert cache.scans == 1
    assert cache._bytes <= 10_000
    os.close(folder)


def test_users_take_turns_at_long_work() -> None:
    """One who has much to do does not keep the others waiting."""
    release = threading.Event()
    order: list[str] = []

    def work(name: str) -> Iterator[None]:
        order.append(name)
        assert release.wait(30)
        yield

    async def test() -> None:
        long_work = LongWork()
        over = asyncio.Event()
        count = 12

        def done(error: Exception | None) -> None:
            nonlocal count
            assert error is None
            count -= 1
            if not count:
                over.set()

        for _ in range(10):
            long_work.add("greedy", work("greedy"), done)
        for _ in range(2):
            long_work.add("modest", work("modest"), done)
        async with asyncio.timeout(20):
            while len(order) < 4:
                await asyncio.sleep(0.01)
            assert sorted(order) == ["greedy", "greedy", "modest", "modest"]
            release.set()
            await over.wait()

    asyncio.run(test())
