"""READs whose data goes from the page cache to the socket: which ones do, and what they show."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from smb3server.backends.local import page_cache
from smb3server.client.protocol import Client
from smb3server.client.protocol.tree import READ_WRITE, RemoteFile, Tree
from smb3server.net.tcp import TcpTransport
from smbdirect.codec import Buffer
from smbdirect.message_transport import FileRange
from tests.lab.harness import Lab, lab

SIZE = 1 << 20
CONTENT = random.Random(3).randbytes(SIZE)
READS = 12
"""More bytes than the sockets' buffers take, and fewer credits than the client has."""


class Sent:
    """Notes what every TCP transport sends out of files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranges: list[tuple[int, int]] = []
        send = TcpTransport.send

        def noting(
            transport: TcpTransport,
            segments: Sequence[Buffer],
            invalidate: int | None = None,
            on_sent: Callable[[], None] | None = None,
            data: FileRange | None = None,
        ) -> None:
            if data is not None:
                self.ranges.append((data.offset, data.length))
            send(transport, segments, invalidate, on_sent, data)

        monkeypatch.setattr(TcpTransport, "send", noting)

    def taken(self) -> list[tuple[int, int]]:
        ranges, self.ranges = self.ranges, []
        return ranges


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sent:
    with open(tmp_path / "probe", "wb+") as file:
        file.write(b"x")
        file.flush()
        if not page_cache.holds(file.fileno(), 0, 1):
            pytest.skip("this kernel does not say what is in the page cache")
    return Sent(monkeypatch)


def play(tmp_path: Path, test: Callable[[Lab, Tree, RemoteFile], Awaitable[None]], **session: bool) -> None:
    async def main() -> None:
        async with lab(tmp_path) as server, server.session(**session) as user:
            (tmp_path / "share" / "f").write_bytes(CONTENT)
            tree = await user.tree_connect("share")
            file = await tree.create("f", READ_WRITE)
            await test(server, tree, file)
            for opened in server.server.opens.by_id.values():
                assert opened.in_flight == 0

    asyncio.run(main())


def test_large_reads_come_out_of_the_page_cache(tmp_path: Path, sent: Sent) -> None:
    async def test(server: Lab, tree: Tree, file: RemoteFile) -> None:
        for offset, length in ((0, SIZE), (1, SIZE - 1), (4095, 65537), (SIZE - 100_000, 100_000)):
            assert await tree.read(file, offset, length) == CONTENT[offset : offset + length]
            assert sent.taken() == [(offset, length)]
        assert await tree.read(file, SIZE - 70_000, 100_000) == CONTENT[-70_000:]
        assert sent.taken() == [(SIZE - 70_000, 70_000)]
        (opened,) = server.server.opens.by_id.values()
        assert opened.position == SIZE
        assert server.server.buffers.lent == 0

    play(tmp_path, test)


def test_the_end_of_file_is_as_ever(tmp_path: Path, sent: Sent) -> None:
    async def test(server: Lab, tree: Tree, file: RemoteFile) -> None:
        for offset, length in ((SIZE, 100_000), (SIZE + 5, 100_000), ((1 << 63) - 200_000, 100_000)):
            assert await tree.read(file, offset, length) == b""
        assert sent.taken() == []

    play(tmp_path, test)


@pytest.mark.parametrize("protection", ["sign", "encrypt"])
def test_protected_replies_need_the_bytes(tmp_path: Path, sent: Sent, protection: str) -> None:
    async def test(server: Lab, tree: Tree, file: RemoteFile) -> None:
        assert await tree.read(file, 0, SIZE) == CONTENT
        assert sent.taken() == []

    play(tmp_path, test, **{protection: True})


def test_rdma_needs_the_bytes(tmp_path: Path, sent: Sent) -> None:
    async def test(server: Lab, tree: Tree, file: RemoteFile) -> None:
        assert await tree.read(file, 0, SIZE) == CONTENT
        assert sent.taken() == []

    play(tmp_path, test, rdma=True)


def test_what_is_not_in_memory_is_read_by_a_worker(tmp_path: Path, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def holds(descriptor: int, offset: int, length: int) -> bool:
        asked.append((offset, length))
        return False

    async def test(server: Lab, tree: Tree, file: RemoteFile) -> None:
        assert await tree.read(file, 0, SIZE) == CONTENT
        assert sent.taken() == []
        assert asked == [(0, SIZE)]

    monkeypatch.setattr(page_cache, "holds", holds)
    play(tmp_path, test)


def test_a_hole_is_not_in_memory(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(SIZE)
        file.seek(SIZE // 2)
        file.write(b"x")
        file.flush()
        assert not page_cache.holds(file.fileno(), 0, SIZE)


def test_the_page_cache_is_known(tmp_path: Path, sent: Sent) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    descriptor = os.open(path, os.O_RDONLY)
    for offset, length, there in ((0, 100_000, True), (99_999, 1, True), (4095, 2, True), (0, 110_000, False)):
        assert page_cache.holds(descriptor, offset, length) is there
    os.close(descriptor)
    assert not page_cache.holds(descriptor, 0, 1)


def _receive_slowly(client: Client) -> None:
    """Take nothing off the socket until ``resume_reading``."""
    client.transport.pause_reading()


def test_a_read_that_is_overtaken_by_a_write_may_show_it(tmp_path: Path, sent: Sent) -> None:
    """Both were under way at the same time, so either content is right. This pins the one that is documented."""

    async def test(server: Lab, tree: Tree, file: RemoteFile) -> None:
        async with server.tree() as other:
            second = await other.create("f", READ_WRITE)
            _receive_slowly(tree.client)
            reads = [asyncio.create_task(tree.read(file, 0, SIZE)) for _ in range(READS)]
            await asyncio.sleep(0)
            async with asyncio.timeout(10):
                while len(sent.ranges) < len(reads):
                    await asyncio.sleep(0.01)
            assert await other.write(second, 0, bytes(65536)) == 65536
            tree.client.transport.resume_reading()
            found = await asyncio.gather(*reads)
            assert {data[65536:] for data in found} == {CONTENT[65536:]}
            old, new = CONTENT[:65536], bytes(65536)
            assert found[-1][:65536] == new, "it was still in the server's queue"
            assert {data[:65536] for data in found} <= {old, new}
            assert await tree.read(file, 0, SIZE) == new + CONTENT[65536:]

    play(tmp_path, test)


def test_close_leaves_what_is_being_sent(tmp_path: Path, sent: Sent) -> None:
    async def test(server: Lab, tree: Tree, file: RemoteFile) -> None:
        _receive_slowly(tree.client)
        reads = [asyncio.create_task(tree.read(file, 0, SIZE)) for _ in range(READS)]
        closing = asyncio.create_task(tree.close(file))
        async with asyncio.timeout(10):
            while server.server.opens.by_id:
                await asyncio.sleep(0.01)
        assert len(sent.ranges) == len(reads)
        (tmp_path / "share" / "f").unlink()
        tree.client.transport.resume_reading()
        assert set(await asyncio.gather(*reads)) == {CONTENT}
        await closing

    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    play(tmp_path, test)
    gc.collect()  # The pipe that connections share goes with the last of them.
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_lost_connection_lets_go_of_the_file(tmp_path: Path, sent: Sent) -> None:
    async def main() -> None:
        async with lab(tmp_path) as server:
            (tmp_path / "share" / "f").write_bytes(CONTENT)
            before = len(os.listdir("/proc/self/fd"))
            async with server.session() as user:
                tree = await user.tree_connect("share")
                file = await tree.create("f", READ_WRITE)
                _receive_slowly(tree.client)
                reads = [asyncio.create_task(tree.read(file, 0, SIZE)) for _ in range(READS)]
                async with asyncio.timeout(10):
                    while len(sent.ranges) < len(reads):
                        await asyncio.sleep(0.01)
                tree.client.transport.abort("gone")
                await asyncio.gather(*reads, return_exceptions=True)
            async with asyncio.timeout(10):
                while len(os.listdir("/proc/self/fd")) > before:
                    await asyncio.sleep(0.01)

    asyncio.run(main())
