"""When the last write time shows what was written, on shares with ``delayed_write_times`` (MS-FSA 2.1.4.17 note 43)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from smb3server.files import write_times
from smb3server.files.file import File
from smb3server.files.write_times import FREEZE, THAW, DelayedWriteTime, Times
from smb3server.state.objects import Open
from tests.lab.rule_scene import Ground, act, write_time


class Store:
    """A file's handle whose store moves its time with every write."""

    queue = None

    def __init__(self) -> None:
        self.last_write_time = 1000

    def info(self) -> Any:
        return SimpleNamespace(last_write_time=self.last_write_time)

    def set_times(self, last_write: int) -> None:
        self.last_write_time = last_write


def setup() -> tuple[DelayedWriteTime, Store, Open]:
    store = Store()
    opened = cast(Open, SimpleNamespace(handle=store, file=None))
    file = cast(File, SimpleNamespace(opens=[opened], write_time=None))
    return DelayedWriteTime(file), store, opened


def write(times: DelayedWriteTime, store: Store, value: int) -> None:
    if not times.dirty:
        times.changing(cast(Open, SimpleNamespace(handle=store, file=None)))
    store.last_write_time = value


def test_shown_after_the_delay_and_then_only_on_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_times, "WRITE_TIME_DELAY", 0.01)
    monkeypatch.setattr(write_times, "_RECENT", 0.0)

    async def test() -> None:
        times, store, opened = setup()
        write(times, store, 2000)
        assert times.shown.last_write == 1000
        async with asyncio.timeout(5):
            while times.dirty:
                await asyncio.sleep(0.001)
        assert times.shown.last_write == 2000
        write(times, store, 3000)
        await asyncio.sleep(0.02)
        assert times.shown.last_write == 2000
        times.closing(opened)
        assert times.shown.last_write is None
        assert store.last_write_time > 10**17

    asyncio.run(test())


def test_flush_shows_it() -> None:
    async def test() -> None:
        times, store, opened = setup()
        write(times, store, 2000)
        times.make_visible(cast(Any, store))
        assert times.shown.last_write == 2000
        times.closing(opened)
        assert store.last_write_time == 2000

    asyncio.run(test())


def test_a_time_that_was_set_outlasts_later_writes() -> None:
    async def test() -> None:
        times, store, opened = setup()
        store.last_write_time = 5000
        times.set(opened, Times(last_write=5000))
        write(times, store, 6000)
        assert times.shown.last_write == 5000
        times.closing(opened)
        assert store.last_write_time == 5000

    asyncio.run(test())


def test_freeze_and_thaw() -> None:
    async def test() -> None:
        times, store, opened = setup()
        times.set(opened, Times(last_write=FREEZE))
        write(times, store, 2000)
        assert times.shown.last_write == 1000
        times.set(opened, Times(last_write=THAW))
        assert times.shown.last_write is None

    asyncio.run(test())


def test_w1_on_a_share_that_wants_it(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        client = await ground.peer()
        file = (await client.make("f")).file
        before = await write_time(client, file)
        await asyncio.sleep(0.03)
        assert await client.write(file) == 0
        assert await write_time(client, file) == before
        assert await client.flush(file) == 0
        assert await write_time(client, file) > before

    act(tmp_path, scene, delayed_write_times=True)
