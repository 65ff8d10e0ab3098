"""Copies are whole, or an error: a server that dies, that answers short, and two copies of one file at once."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from smb3server.client import RemoteError, Share, connect
from smb3server.client.handle import LostWritesError
from smb3server.client.protocol import tree as files
from smb3server.client.protocol.tree import RemoteFile, Tree
from tests.lab.process import PASSWORD, USER, ServerProcess
from tests.lab.remote import Home, run

MIB = 1 << 20


def use(served: Home, work: Callable[[Share], Awaitable[None]]) -> None:
    async def main() -> None:
        async with connect(f"{served.url}/test", password="pw", rdma="off") as share:
            await work(share)

    run(main)


# A server that dies


async def _dies(server: ServerProcess, lost: Path, keeps: int, again: asyncio.Event) -> None:
    """Kill the server as a power cut does: of the file ``lost`` only the first bytes had reached the disk."""
    await asyncio.to_thread(server.kill)
    os.truncate(lost, min(keeps, lost.stat().st_size))
    await asyncio.to_thread(server.start)
    again.set()


@pytest.mark.parametrize("share_name", ["plain", "ca"])
def test_a_server_that_loses_what_it_acknowledged(tmp_path: Path, share_name: str) -> None:
    """The upload goes back, and the copy is whole. What a continuously available share acknowledged is on its disk."""
    server = ServerProcess(tmp_path)
    server.start()
    keeps = 5 * MIB if share_name == "plain" else 48 * MIB
    body = os.urandom(48 * MIB)
    source = tmp_path / "source.bin"
    source.write_bytes(body)

    async def main() -> None:
        again = asyncio.Event()
        died: list[asyncio.Task[None]] = []

        def progress(done: int, size: int) -> None:
            if done >= 24 * MIB and not died:
                (part,) = server.share.glob("*.part")
                died.append(asyncio.get_running_loop().create_task(_dies(server, part, keeps, again)))

        url = f"smb://{USER}@127.0.0.1:{server.port}/{share_name}"
        async with connect(url, password=PASSWORD, rdma="off") as share:
            await share.upload(source, "copy.bin", progress=progress)
        assert again.is_set()

    try:
        run(main)
    finally:
        server.kill()
    assert (server.share / "copy.bin").read_bytes() == body
    assert list(server.share.glob("*.part")) == []


def test_a_file_that_was_written_says_what_may_be_lost(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    server.start()

    async def main() -> None:
        url = f"smb://{USER}@127.0.0.1:{server.port}/plain"
        async with connect(url, password=PASSWORD, rdma="off") as share:
            flushed = await share.open("flushed", "wb")
            await flushed.write(b"kept")
            await flushed.flush()
            written = await share.open("written", "wb")
            await written.write(b"lost?")
            closed = await share.open("closed", "wb")
            await closed.write(b"lost?")
            await asyncio.to_thread(server.restart)
            await flushed.write(b" and more")
            await flushed.close()
            for _ in range(2):
                with pytest.raises(LostWritesError, match="may have lost data"):
                    await written.write(b"more")
            with pytest.raises(LostWritesError):
                await written.close()
            with pytest.raises(LostWritesError):
                await closed.close()

    try:
        run(main)
    finally:
        server.kill()
    assert (server.share / "flushed").read_bytes() == b"kept and more"


def test_an_open_is_reclaimed_after_its_connection_is_lost(served: Home, folder: Path) -> None:
    """It is the same open, so nothing that was acknowledged can be lost."""

    async def work(share: Share) -> None:
        async with await share.open("kept", "wb") as file:
            await file.write(b"before")
            served.cut()
            await file.write(b", after")
            # Another client still meets the open.
            assert len(served.do(lambda: list(served.service.server.opens.by_id))) == 1

    use(served, work)
    assert (folder / "kept").read_bytes() == b"before, after"


def test_a_lasting_open_gives_way_when_it_is_asked_to(served: Home, folder: Path) -> None:
    """Its lease is broken and acknowledged, so that nobody waits for a break's time-out."""

    async def work(share: Share) -> None:
        async with await share.open("shared", "wb") as file:
            await file.write(b"1")
            async with (
                connect(f"{served.url}/test", password="pw", rdma="off") as other,
                asyncio.timeout(10),
                await other.open("shared", "r+b") as second,
            ):
                await second.write(b"2")
            await file.write(b"3")

    use(served, work)
    assert (folder / "shared").read_bytes() == b"23"


# Two copies at once


def test_a_second_copy_of_one_file_does_no_harm(served: Home, folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "big"
    # It takes longer than the two that come second.
    source.write_bytes(os.urandom(16 * MIB) * 4)

    async def work(share: Share) -> None:
        begun = asyncio.Event()
        first = asyncio.ensure_future(
            share.upload(source, "big", progress=lambda done, size: begun.set() if done else None)
        )
        await begun.wait()
        for resume in (False, True):
            with pytest.raises(RemoteError) as caught:
                await share.upload(source, "big", resume=resume)
            assert caught.value.errno == errno.EBUSY
            assert "another copy" in str(caught.value)
        await first

    use(served, work)
    assert (folder / "big").read_bytes() == source.read_bytes()
    assert [path.name for path in folder.iterdir()] == ["big"]


# Short answers


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A server that answers each READ of more than a page with half of what was asked. Returns what was asked."""
    asked: list[int] = []
    read = files.Tree._read_piece

    async def half(self: Tree, file: RemoteFile, offset: int, length: int) -> bytes:
        asked.append(length)
        data = await read(self, file, offset, length)
        return data[: len(data) // 2] if len(data) > 4096 else data

    monkeypatch.setattr(files.Tree, "_read_piece", half)
    return asked


def test_short_answers_are_read_on(served: Home, folder: Path, tmp_path: Path, short: list[int]) -> None:
    body = os.urandom(5 * MIB + 17)
    (folder / "a").write_bytes(body)

    async def work(share: Share) -> None:
        await share.download("a", tmp_path / "a")
        assert await share.read_bytes("a") == body
        async with await share.open("a", "rb") as file:
            assert await file.read() == body
            assert await file.read_at(5, 3 * MIB) == body[5 : 5 + 3 * MIB]
            assert await file.read_at(5 * MIB, 3 * MIB) == body[5 * MIB :]

    use(served, work)
    assert (tmp_path / "a").read_bytes() == body
    assert len(short) > 20


@pytest.mark.parametrize("way", ["download", "copy"])
def test_an_early_end_is_an_error(served: Home, folder: Path, tmp_path: Path, way: str) -> None:
    """A file that ends before its size is no copy with zeros at the end."""
    (folder / "a").write_bytes(os.urandom(3 * MIB))

    async def work(share: Share) -> None:
        read = files.Tree._read_piece

        async def cut(self: Tree, file: RemoteFile, offset: int, length: int) -> bytes:
            return b"" if offset >= 2 * MIB else await read(self, file, offset, length)

        async with connect(f"{served.url}/test", password="pw", rdma="off") as other:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(files.Tree, "_read_piece", cut)
                with pytest.raises(RemoteError) as caught:
                    if way == "download":
                        await share.download("a", tmp_path / "b")
                    else:
                        await other.copy("a", "b", to=share)
                assert caught.value.errno == errno.ESTALE

    use(served, work)
    assert not (tmp_path / "b").exists()
    assert not (folder / "b").exists()
