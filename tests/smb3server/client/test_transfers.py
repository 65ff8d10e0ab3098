"""Copies of whole files: complete or not there, resumed, sparse, verified; and copies by the server."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from smb3server.client import Share, Transfer, connect, names, transfers
from smb3server.client.handle import Handle
from smb3server.client.link import DEPTH, MAX_IN_FLIGHT
from smb3server.client.protocol.tree import Tree
from tests.lab.remote import PASSWORD, Home, run

MIB = 1 << 20
GIB = 1 << 30


def use(served: Home, work: Callable[[Share], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        given = {"password": PASSWORD, "rdma": "off", "rdma_port": served.rdma_port} | options
        async with connect(f"{served.url}/test", **given) as share:
            await work(share)

    run(main)


def parts(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.endswith(".part")]


@pytest.mark.parametrize("rdma", ["off", "iwarp"])
@pytest.mark.parametrize("size", [0, 1, MIB, 3 * MIB + 5])
def test_there_and_back(served: Home, folder: Path, tmp_path: Path, rdma: str, size: int) -> None:
    source, back = tmp_path / "a.bin", tmp_path / "back"
    source.write_bytes(os.urandom(size))
    os.utime(source, ns=(1, 1_600_000_000_123_456_700))
    back.mkdir()
    told: list[tuple[int, int]] = []

    async def work(share: Share) -> None:
        sent = await share.upload(source, progress=lambda *step: told.append(step), verify=True)
        assert (sent.size, sent.resumed_at) == (size, 0)
        assert told[0] == (0, size) and told[-1] == (size, size) and told == sorted(told)
        assert (folder / "a.bin").stat().st_mtime_ns == 1_600_000_000_123_456_700
        await share.download("a.bin", back, verify=True)
        copied = await share.copy("a.bin", "b.bin", verify=True)
        assert copied.by_server
        assert (await share.stat("b.bin")).modified_ns == 1_600_000_000_123_456_700

    use(served, work, rdma=rdma)
    for found in (back / "a.bin", folder / "a.bin", folder / "b.bin"):
        assert found.read_bytes() == source.read_bytes()
        assert found.stat().st_mtime_ns == 1_600_000_000_123_456_700
    assert not parts(folder) and not parts(back)


def test_offsets_above_four_gib_and_holes(served: Home, folder: Path, tmp_path: Path) -> None:
    source, back = tmp_path / "sparse", tmp_path / "back"
    with source.open("wb") as file:
        file.write(b"begin")
        file.seek(4 * GIB + 123)
        file.write(b"middle" * 1000)
        file.truncate(5 * GIB)

    async def work(share: Share) -> None:
        await share.upload(source, "sparse")
        entry = await share.stat("sparse")
        assert entry.size == 5 * GIB and entry.allocated < 64 * MIB
        await share.download("sparse", back)
        async with await share.open("sparse") as file:
            assert await file.read_at(4 * GIB + 123, 6) == b"middle"

    use(served, work)
    for path in (folder / "sparse", back):
        status = path.stat()
        assert status.st_size == 5 * GIB and status.st_blocks * 512 < 64 * MIB
        with path.open("rb") as file:
            assert file.read(5) == b"begin"
            file.seek(4 * GIB + 123)
            assert file.read(6000) == b"middle" * 1000


@pytest.mark.parametrize("at_once", [-1, 0, 1000, MIB])
def test_data_that_is_not_in_memory_is_waited_for(
    served: Home, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Without waiting there are so many bytes of each piece; -1: the file system does not know that."""
    data = os.urandom(20 * MIB + 5)
    (tmp_path / "a").write_bytes(data)
    real, asked = os.preadv, set()

    def preadv(descriptor: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        asked.add(flags)
        if not flags:
            return real(descriptor, buffers, offset)
        if at_once < 1:
            raise OSError(errno.EAGAIN if at_once == 0 else errno.EOPNOTSUPP, "not without waiting")
        return real(descriptor, [buffers[0][:at_once]], offset)

    monkeypatch.setattr(os, "preadv", preadv)
    use(served, lambda share: share.upload(tmp_path / "a", "a"))
    assert (folder / "a").read_bytes() == data
    assert asked == ({os.RWF_NOWAIT} if at_once == MIB else {0, os.RWF_NOWAIT})


@pytest.mark.parametrize("pause", [0.0, 0.12])
def test_a_download_writes_at_once_where_nobody_waits_for_that(
    served: Home, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    data = os.urandom(6 * MIB)
    (folder / "a").write_bytes(data)
    monkeypatch.setattr(transfers, "_MAX_PAUSE", 60.0 if pause == 0 else 0.1)
    at_once: list[bool] = []
    write = transfers._write_all

    def slow_write(descriptor: int, data: bytes, offset: int) -> None:
        at_once.append(threading.current_thread() is threading.main_thread())
        time.sleep(pause)
        write(descriptor, data, offset)

    monkeypatch.setattr(transfers, "_write_all", slow_write)

    async def work(share: Share) -> None:
        await share.download("a", tmp_path / "a")

    use(served, work)
    assert (tmp_path / "a").read_bytes() == data
    # Of the first piece nobody knows how long it will take.
    assert at_once == [False, *[pause == 0] * 5]


def test_an_upload_reads_into_memory_that_begins_at_a_page(
    served: Home, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(os.urandom(20 * MIB))
    places: set[int] = set()
    preadv = os.preadv

    def seen(descriptor: int, buffers: list[memoryview], *where: int) -> int:
        if len(buffers[0]) == MIB:
            places.add(ctypes.addressof(ctypes.c_char.from_buffer(buffers[0])))
        return preadv(descriptor, buffers, *where)

    monkeypatch.setattr(os, "preadv", seen)

    async def work(share: Share) -> None:
        await share.upload(tmp_path / "a", "a")

    use(served, work)
    assert (folder / "a").read_bytes() == (tmp_path / "a").read_bytes()
    assert all(place % mmap.PAGESIZE == 0 for place in places)
    # Memory is used again.
    assert 0 < len(places) <= DEPTH + 1


def interrupt(after: int) -> Callable[[int, int], None]:
    def progress(done: int, size: int) -> None:
        if done >= after:
            raise KeyError("interrupted by the test")

    return progress


def test_an_interrupted_download_goes_on(served: Home, folder: Path, tmp_path: Path) -> None:
    data = os.urandom(8 * MIB)
    (folder / "a").write_bytes(data)
    target = tmp_path / "a"

    async def work(share: Share) -> None:
        with pytest.raises(KeyError):
            await share.download("a", target, progress=interrupt(3 * MIB))
        assert not target.exists()
        (part,) = parts(tmp_path)
        assert part.read_bytes() == data[: 3 * MIB]
        found = await share.download("a", target, resume=True)
        assert found.resumed_at == 3 * MIB
        assert target.read_bytes() == data and not parts(tmp_path)
        # What is left of another version is not continued.
        with pytest.raises(KeyError):
            await share.download("a", target, progress=interrupt(3 * MIB))
        (folder / "a").write_bytes(data[::-1])
        found = await share.download("a", target, resume=True)
        assert found.resumed_at == 0
        assert target.read_bytes() == data[::-1]

    use(served, work)


def test_an_interrupted_upload_goes_on(served: Home, folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "a"
    size = MAX_IN_FLIGHT + 16 * MIB
    source.write_bytes(os.urandom(MIB) * (size // MIB))

    async def work(share: Share) -> None:
        with pytest.raises(KeyError):
            await share.upload(source, "b", progress=interrupt(size - 2 * MIB))
        assert not (folder / "b").exists()
        (part,) = parts(folder)
        left = part.stat().st_size
        found = await share.upload(source, "b", resume=True, verify=True)
        assert found.resumed_at == left - MAX_IN_FLIGHT > 0
        assert not parts(folder)

    use(served, work)
    assert (folder / "b").read_bytes() == source.read_bytes()


def test_a_cancelled_copy_leaves_the_target_alone(served: Home, folder: Path, tmp_path: Path) -> None:
    (folder / "a").write_bytes(b"new" * MIB)
    (tmp_path / "a").write_bytes(b"old")

    async def work(share: Share) -> None:
        began = asyncio.Event()
        copying = asyncio.ensure_future(
            share.download("a", tmp_path / "a", progress=lambda done, size: began.set() if done else None)
        )
        await began.wait()
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
        assert (tmp_path / "a").read_bytes() == b"old"

    use(served, work)


def test_connections_cut_during_copies(served: Home, folder: Path, tmp_path: Path) -> None:
    source, back = tmp_path / "a", tmp_path / "b"
    source.write_bytes(os.urandom(MIB) * 48)
    cuts: list[int] = []
    due: list[int] = []

    def cut(done: int, size: int) -> None:
        if due and done >= due[0]:
            cuts.append(served.cut())
            del due[0]

    async def work(share: Share) -> None:
        for copy in (
            partial(share.upload, source, "a", verify=True),
            partial(share.download, "a", back),
            partial(share.copy, "a", "c"),
        ):
            due[:] = [12 * MIB, 24 * MIB, 36 * MIB]
            await copy(progress=cut)
            assert not due

    use(served, work, rdma="prefer", channels=2)
    assert sum(map(bool, cuts)) >= 6
    assert source.read_bytes() == back.read_bytes() == (folder / "a").read_bytes() == (folder / "c").read_bytes()
    assert not parts(folder) and not parts(tmp_path)


def test_a_source_that_changes_is_not_taken_for_a_copy(served: Home, folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.write_bytes(bytes(3 * MIB))
    (folder / "a").write_bytes(bytes(3 * MIB))

    def change(path: Path) -> Callable[[int, int], None]:
        def progress(done: int, size: int) -> None:
            with path.open("ab") as file:
                file.write(b"more")

        return progress

    async def work(share: Share) -> None:
        with pytest.raises(OSError, match="changed while it was copied") as caught:
            await share.upload(source, "b", progress=change(source))
        assert caught.value.errno == errno.ESTALE
        with pytest.raises(OSError, match="changed while it was copied"):
            await share.download("a", tmp_path / "c", progress=change(folder / "a"))

    use(served, work)
    assert not (folder / "b").exists() and not (tmp_path / "c").exists()


@pytest.mark.parametrize("size", [4096, MIB])
def test_a_source_that_changes_in_the_same_second(served: Home, folder: Path, tmp_path: Path, size: int) -> None:
    """Where the file system stores whole seconds, the time of a file that was just written tells nothing."""
    source = tmp_path / "a"

    def write(byte: bytes) -> None:
        source.write_bytes(byte * size)
        second = time.time_ns() // 10**9 * 10**9
        os.utime(source, ns=(second, second))

    async def work(share: Share) -> None:
        write(b"a")
        with pytest.raises(OSError, match="changed while it was copied"):
            await share.upload(source, "b", progress=lambda done, size: write(b"b"))

    use(served, work)
    assert not (folder / "b").exists()


def test_verifying_finds_a_bad_copy(
    served: Home, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_bytes(os.urandom(2 * MIB))
    original, spoiled = Handle.read_piece, [True]

    async def read_piece(self: Handle, offset: int, length: int) -> bytes:
        data = await original(self, offset, length)
        return bytes(len(data)) if spoiled and spoiled.pop() else data

    async def work(share: Share) -> None:
        monkeypatch.setattr(Handle, "read_piece", read_piece)
        with pytest.raises(OSError, match="differs"):
            await share.download("a", tmp_path / "a", verify=True)
        assert not (tmp_path / "a").exists()

    use(served, work)


def test_a_part_is_no_way_to_other_files(served: Home, folder: Path, tmp_path: Path) -> None:
    """Somebody else may have put a symbolic link where the part goes, and a copy may be running."""
    (folder / "a").write_bytes(b"content")
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")

    async def work(share: Share) -> None:
        with pytest.raises(KeyError):
            await share.download("a", tmp_path / "a", progress=interrupt(7))
        (part,) = parts(tmp_path)
        part.unlink()
        part.symlink_to(victim)
        with pytest.raises(OSError, match=r"symbolic links"):
            await share.download("a", tmp_path / "a")
        part.unlink()
        found: list[Transfer | BaseException] = await asyncio.gather(
            *(share.download("a", tmp_path / "a") for _ in range(2)), return_exceptions=True
        )
        assert sum(isinstance(one, Transfer) for one in found) >= 1

    use(served, work)
    assert victim.read_bytes() == b"untouched"


def test_what_is_not_a_file(served: Home, folder: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (folder / "d").mkdir()

    async def work(share: Share) -> None:
        with pytest.raises(OSError, match="not a regular file"):
            await share.upload(tmp_path / "pipe")
        with pytest.raises(IsADirectoryError):
            await share.upload(tmp_path)
        with pytest.raises(IsADirectoryError):
            await share.download("d", tmp_path)
        await share.write_bytes("d/x", b"1")
        with pytest.raises(OSError, match="same file"):
            await share.copy("d/x", "d/x")
        with pytest.raises(FileNotFoundError):
            await share.upload(tmp_path / "none")

    use(served, work)


def test_copies_between_two_shares(served: Home, folder: Path) -> None:
    (folder / "a").write_bytes(os.urandom(3 * MIB))

    async def work(share: Share) -> None:
        async with connect(f"{served.url}/test", password=PASSWORD, rdma="off") as other:
            found = await share.copy("a", "b", to=other, verify=True)
            assert not found.by_server

    use(served, work, rdma="iwarp")
    assert (folder / "b").read_bytes() == (folder / "a").read_bytes()


def test_more_data_than_was_asked_for_is_refused(
    served: Home, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_bytes(b"content")

    async def read(self: Tree, *words: object) -> bytes:
        return b"content and more"

    async def work(share: Share) -> None:
        monkeypatch.setattr(Tree, "read", read)
        with pytest.raises(OSError, match="in place of 7"):
            await share.download("a", tmp_path / "a")
        assert not (tmp_path / "a").exists()

    use(served, work)


def test_names_of_parts_fit(served: Home, folder: Path, tmp_path: Path) -> None:
    long = "ä" * 127 + "x"
    (tmp_path / long).write_bytes(b"1")

    async def work(share: Share) -> None:
        await share.upload(tmp_path / long)
        await share.download(long, tmp_path / "back")

    use(served, work)
    assert len(os.fsencode(names.part_of(long, "01234567"))) <= 255
