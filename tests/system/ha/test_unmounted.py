"""A single server whose share's file system is not mounted when it starts: its persistent handles are kept for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.persistent import PersistentShare
from tests.lab.process import ServerProcess, run


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path)
    process.start()
    yield process
    process.kill()


def test_handles_wait_for_the_file_system(server: ServerProcess) -> None:
    async def body(server: ServerProcess, client: PersistentShare) -> None:
        log = server.folder / "server.log"
        file = await client.open("f", share=0)
        await file.write(0, b"acknowledged")
        await file.lock(0, 5)
        server.kill()
        # An empty mount point.
        away = server.share.with_name("away")
        server.share.rename(away)
        server.share.mkdir()
        await asyncio.to_thread(server.start)
        other = server.client()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await other.open("new", share=7)
        assert not list(server.share.iterdir())
        assert "has no storage mark; remedy: mount" in log.read_text()
        server.share.rmdir()
        away.rename(server.share)
        deadline = time.monotonic() + 20
        while "its file system is there, and clients can connect" not in log.read_text():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        assert await file.read(0, 12) == b"acknowledged"
        await file.unlock(0, 5)
        await file.close()
        await other.close()

    run(server, body)


def test_handles_of_deleted_files_are_forgotten(server: ServerProcess) -> None:
    async def body(server: ServerProcess, client: PersistentShare) -> None:
        await client.open("f", share=0)
        server.kill()
        (server.share / "f").unlink()
        await asyncio.to_thread(server.start)
        other = server.client()
        file = await other.open("f", share=0)
        await file.close()
        await other.close()

    run(server, body)
