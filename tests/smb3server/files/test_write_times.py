"""When the last write time shows what was written (MS-FSA 2.1.4.17, MS-FSCC 2.4.7)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from smb3server.files import write_times
from smb3server.files.file import File
from smb3server.files.write_times import FREEZE, THAW, WriteTime
from smb3server.state.objects import Open


class Store:
    """A file's handle whose store moves its time with every write."""

    def __init__(self) -> None:
        self.last_write_time = 1000

    def info(self) -> Any:
        return SimpleNamespace(last_write_time=self.last_write_time)

    def set_times(self, last_write: int) -> None:
        self.last_write_time = last_write


def setup() -> tuple[WriteTime, Store, Open]:
    store = Store()
    opened = cast(Open, SimpleNamespace(handle=store, file=None))
    file = cast(File, SimpleNamespace(opens=[opened], write_time=None))
    return WriteTime(file), store, opened


def write(times: WriteTime, store: Store, value: int) -> None:
    if not times.dirty:
        times.writing(cast(Any, store))
    store.last_write_time = value


def test_shown_after_the_delay_and_then_only_on_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_times, "WRITE_TIME_DELAY", 0.01)
    monkeypatch.setattr(write_times, "_RECENT", 0.0)

    async def test() -> None:
        times, store, opened = setup()
        write(times, store, 2000)
        assert times.shown == 1000
        async with asyncio.timeout(5):
            while times.dirty:
                await asyncio.sleep(0.001)
        assert times.shown == 2000
        write(times, store, 3000)
        await asyncio.sleep(0.02)
        assert times.shown == 2000
        times.closing(opened)
        assert times.shown is None
        assert store.last_write_time > 10**17

    asyncio.run(test())


def test_flush_shows_it() -> None:
    async def test() -> None:
        times, store, opened = setup()
        write(times, store, 2000)
        times.make_visible(cast(Any, store))
        assert times.shown == 2000
        times.closing(opened)
        assert store.last_write_time == 2000

    asyncio.run(test())


def test_a_time_that_was_set_outlasts_later_writes() -> None:
    async def test() -> None:
        times, store, opened = setup()
        store.last_write_time = 5000
        times.set(opened, 5000)
        write(times, store, 6000)
        assert times.shown == 5000
        times.closing(opened)
        assert store.last_write_time == 5000

    asyncio.run(test())


def test_freeze_and_thaw() -> None:
    async def test() -> None:
        times, store, opened = setup()
        times.set(opened, FREEZE)
        write(times, store, 2000)
        assert times.shown == 1000
        times.set(opened, THAW)
        assert times.shown is None

    asyncio.run(test())
