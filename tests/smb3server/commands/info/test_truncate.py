"""Files that the file system takes its time to cut, and who has to wait for that."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smb3server.backends.local import release
from smb3server.backends.local.handle import LocalHandle
from smb3server.client.protocol import Client, ServerError, open_tcp
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.wire.create import CreateDisposition
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.status import NtStatus
from tests.lab.services import configured, port_of, running

LARGE = 3 * release.LARGE


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """(work has begun, work may end), of what cuts files on workers."""
    begun, may_end = threading.Event(), threading.Event()
    shrinking = LocalHandle.shrinking

    def patched(handle: LocalHandle, size: int) -> Callable[[], None] | None:
        free = shrinking(handle, size)
        if free is None:
            return None

        def work() -> None:
            begun.set()
            assert may_end.wait(30)
            free()

        return work

    monkeypatch.setattr(LocalHandle, "shrinking", patched)
    yield begun, may_end
    may_end.set()


def _large(path: Path) -> None:
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, LARGE)


@pytest.mark.parametrize("level", [FileInfoClass.END_OF_FILE, FileInfoClass.ALLOCATION])
@pytest.mark.parametrize("closed", [False, True])
def test_others_go_on_while_a_large_file_is_cut(
    tmp_path: Path, slow: tuple[threading.Event, threading.Event], level: FileInfoClass, closed: bool
) -> None:
    """MS-FSA 2.1.5.15.1, 2.1.5.15.5. ``closed``: who asked goes meanwhile; the work ends."""

    async def test() -> None:
        async with running(configured(tmp_path)) as service:
            _large(tmp_path / "share" / "large")
            port = port_of(service, "tcp", "0.0.0.0")
            client, other = [await Client.connect(await open_tcp("127.0.0.1", port)) for _ in range(2)]
            tree = await (await client.log_on("u", "pw")).tree_connect("share")
            file = await tree.create("large", READ_WRITE, CreateDisposition.OPEN)
            cutting = asyncio.create_task(tree.set_info(file, level, struct.pack("<Q", 100)))
            assert await asyncio.to_thread(slow[0].wait, 30)
            await other.echo()
            assert not cutting.done()
            if closed:
                await tree.close(file)
                assert (tmp_path / "share" / "large").stat().st_size == LARGE
            slow[1].set()
            if closed:
                with pytest.raises(ServerError) as caught:
                    await cutting
                assert caught.value.status in (NtStatus.CANCELLED, NtStatus.FILE_CLOSED)
            else:
                await cutting
                assert await tree.read(file, 0, 1000) == bytes(100)
            assert (tmp_path / "share" / "large").stat().st_size == 100
            await client.close()
            await other.close()

    asyncio.run(test())


def test_what_is_small_is_cut_at_once(tmp_path: Path, slow: tuple[threading.Event, threading.Event]) -> None:
    async def test() -> None:
        async with running(configured(tmp_path)) as service:
            (tmp_path / "share" / "small").write_bytes(bytes(100000))
            client = await Client.connect(await open_tcp("127.0.0.1", port_of(service, "tcp", "0.0.0.0")))
            tree = await (await client.log_on("u", "pw")).tree_connect("share")
            file = await tree.create("small", READ_WRITE, CreateDisposition.OPEN)
            for size in (10, LARGE, 0):
                await tree.set_info(file, FileInfoClass.END_OF_FILE, struct.pack("<Q", size))
                assert (tmp_path / "share" / "small").stat().st_size == size
            await client.close()

    asyncio.run(test())
    assert not slow[0].is_set()
