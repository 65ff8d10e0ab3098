"""What a node says of its file systems, and how long it waits for them."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from smb3server.backends.local.backend import LocalBackend
from smb3server.cluster.storage import StorageWatch
from smb3server.persistence.storage import StorageHangs, key_of
from smb3server.state.share import Share


class Place:
    """A share "data" of service "one", as node "a" sees it."""

    def __init__(self, folder: Path, limit: float = 5.0) -> None:
        self.folder = folder / "share"
        self.folder.mkdir()
        self.share = Share("Data", backend=LocalBackend(self.folder), path=str(self.folder))
        assert self.share.backend is not None
        self.storage = self.share.backend.storage()
        self.watch = StorageWatch("one", "a", [self.share], limit)

    async def problem(self) -> str:
        await self.watch.look()
        return self.watch.problem or ""


def test_problems_name_a_remedy(tmp_path: Path) -> None:
    async def body() -> None:
        place = Place(tmp_path)
        assert place.storage is not None
        assert not place.watch.looked and place.watch.problem
        assert await place.problem() == "" and place.watch.looked
        mark = place.storage.make()
        assert place.storage.make() == mark == place.storage.read()
        place.watch.marks = {key_of(place.share): mark}
        assert not await place.watch.look() and not place.watch.problem
        Path(place.storage.path).write_text("0" * 32 + "\n")
        assert "has the storage mark of another file system" in await place.problem()
        Path(place.storage.path).unlink()
        assert await place.watch.look() and "has no storage mark" in (place.watch.problem or "")
        # What the text advises helps.
        (*_, advice) = (place.watch.problem or "").partition("after a restore: ")
        process = await asyncio.create_subprocess_shell(advice)
        assert await process.wait() == 0
        assert await place.problem() == ""
        place.folder.rename(tmp_path / "gone")
        assert "No such file or directory" in await place.problem()

    asyncio.run(body())


def test_a_call_that_hangs_takes_one_thread(tmp_path: Path) -> None:
    async def body() -> None:
        watch = Place(tmp_path, 0.1).watch
        answers = threading.Event()
        before = set(threading.enumerate())
        for _ in range(3):
            with pytest.raises(StorageHangs):
                await watch.call(answers.wait)
        assert len(set(threading.enumerate()) - before) == 1
        answers.set()
        assert await watch.call(lambda: 5) == 5

    asyncio.run(asyncio.wait_for(body(), 30))


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), TimeoutError(110, "Connection timed out")])
def test_errors_of_the_file_system_are_no_silence(tmp_path: Path, error: OSError) -> None:
    async def body() -> None:
        place = Place(tmp_path)

        def fail() -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            await place.watch.call(fail)
        assert caught.value is error

    asyncio.run(body())
