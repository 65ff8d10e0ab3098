"""Changes on the host are reported (inotify)."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from smb3server.backends.base import Backend, Change, OpenRequest
from smb3server.backends.local import own_changes
from smb3server.backends.local import watch as watching
from smb3server.backends.local.backend import LocalBackend
from smb3server.backends.local.watch import (
    ACTION_ADDED,
    ACTION_LOST,
    ACTION_MODIFIED,
    ACTION_REMOVED,
    ACTION_RENAMED_NEW_NAME,
    ACTION_RENAMED_OLD_NAME,
    CREATE,
    NOTIFY_DATA,
    NOTIFY_DIR_NAME,
    NOTIFY_FILE_NAME,
    NOTIFY_METADATA,
    Watcher,
)
from tests.lab.stores import descriptors, mkdir, opened, put

Seen = list[tuple[int, str]]


class Log:
    """Changes seen, and waiting for them."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.news = asyncio.Event()

    def __call__(self, change: Change) -> None:
        self.changes.append(change)
        self.news.set()

    async def until(self, action: int, path: str) -> Change:
        while True:
            for change in self.changes:
                if (change.action, "/".join(change.path)) == (action, path):
                    return change
            self.news.clear()
            async with asyncio.timeout(10):
                await self.news.wait()

    def take(self) -> Seen:
        seen = [(change.action, "/".join(change.path)) for change in self.changes]
        self.changes.clear()
        return seen


def run(root: Path, body: Callable[[LocalBackend], Coroutine[Any, Any, None]]) -> None:
    before = len(descriptors())
    with closing(LocalBackend(root)) as store:
        asyncio.run(body(store))
    assert len(descriptors()) <= before, "descriptors leaked"


def test_one_directory(tmp_path: Path) -> None:
    (tmp_path / "D").mkdir()

    async def body(store: LocalBackend) -> None:
        log = Log()
        with closing(store.open(OpenRequest(("d",), directory=True))) as handle:
            stop = store.watch(handle, False, log)
            assert stop is not None
            (tmp_path / "D" / "f").touch()
            assert (await log.until(ACTION_ADDED, "D/f")).filter == NOTIFY_FILE_NAME
            (tmp_path / "D" / "f").write_text("x")
            assert (await log.until(ACTION_MODIFIED, "D/f")).filter in (NOTIFY_DATA, NOTIFY_METADATA)
            (tmp_path / "D" / "e").mkdir()
            assert (await log.until(ACTION_ADDED, "D/e")).filter == NOTIFY_DIR_NAME
            (tmp_path / "D" / "e" / "inner").touch()
            log.take()
            os.rename(tmp_path / "D" / "f", tmp_path / "D" / "g")
            await log.until(ACTION_RENAMED_NEW_NAME, "D/g")
            assert log.take() == [(ACTION_RENAMED_OLD_NAME, "D/f"), (ACTION_RENAMED_NEW_NAME, "D/g")]
            os.rename(tmp_path / "D" / "g", tmp_path / "g")
            await log.until(ACTION_REMOVED, "D/g")
            os.rename(tmp_path / "g", tmp_path / "D" / "a:b")
            await log.until(ACTION_ADDED, "D/a\uf022b")
            os.rename(tmp_path / "D", tmp_path / "Moved")
            os.unlink(tmp_path / "Moved" / "a:b")
            await log.until(ACTION_REMOVED, "Moved/a\uf022b")
            log.take()
            stop()
            (tmp_path / "Moved" / "late").touch()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert log.take() == []
            stop()

    run(tmp_path, body)


def test_recursive(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "outside").mkdir()

    async def body(store: LocalBackend) -> None:
        log = Log()
        with closing(store.open(OpenRequest((), directory=True))) as handle:
            stop = store.watch(handle, True, log)
            assert stop is not None
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            (tmp_path / "a" / "b" / "f").touch()
            await log.until(ACTION_ADDED, "a/b/f")
            (tmp_path / "new" / "deep").mkdir(parents=True)
            (tmp_path / "new" / "deep" / "f").touch()
            await log.until(ACTION_ADDED, "new/deep/f")
            os.rename(tmp_path / "new", tmp_path / "a" / "moved")
            await log.until(ACTION_ADDED, "a/moved")
            assert (ACTION_REMOVED, "new") in log.take()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            (tmp_path / "a" / "moved" / "deep" / "g").touch()
            await log.until(ACTION_ADDED, "a/moved/deep/g")
            shutil.rmtree(tmp_path / "a")
            await log.until(ACTION_REMOVED, "a")
            log.take()
            with closing(store.open(OpenRequest(("outside",), stream="s", disposition=2))):  # type: ignore[arg-type]
                pass
            (tmp_path / "last").touch()
            await log.until(ACTION_ADDED, "last")
            assert not any(".smb3server" in path for _, path in log.take())

    run(tmp_path, body)


def test_two_watch_the_same(tmp_path: Path) -> None:
    async def body(store: LocalBackend) -> None:
        first, second = Log(), Log()
        with closing(store.open(OpenRequest((), directory=True))) as handle:
            stop = store.watch(handle, False, first)
            assert stop is not None
            assert store.watch(handle, True, second) is not None
            (tmp_path / "f").touch()
            await first.until(ACTION_ADDED, "f")
            await second.until(ACTION_ADDED, "f")
            stop()
            first.take()
            (tmp_path / "g").touch()
            await second.until(ACTION_ADDED, "g")
            assert first.take() == []

    run(tmp_path, body)


def test_own_changes_are_not_told(tmp_path: Path) -> None:
    async def body(store: LocalBackend) -> None:
        log = Log()
        with closing(store.open(OpenRequest((), directory=True))) as handle:
            assert store.watch(handle, True, log) is not None
            mkdir(store, "d")
            (tmp_path / "made").touch()
            await log.until(ACTION_ADDED, "made")
            put(store, "d", "f", data=b"x", stream="s")
            put(store, "other")
            with opened(store, "d", "f", write=True) as file:
                file.write_from([b"x" * 10], 0)
                file.set_attributes(2)
                file.set_times(last_write=1 << 56)
                file.truncate(3)
                file.rename(("d", "G"), False)
                file.rename(("OTHER",), True)
                file.link(("link",), False)
                file.link(("LINK",), True)
            put(store, "g")
            with opened(store, "link") as file:
                file.link(("G",), True)
                file.unlink()
            (tmp_path / "d" / "host").touch()
            (tmp_path / "mark").touch()
            await log.until(ACTION_ADDED, "mark")
            await log.until(ACTION_ADDED, "d/host")
            (tmp_path / "OTHER").unlink()
            await log.until(ACTION_REMOVED, "OTHER")
            names = {path for _, path in log.take()}
            assert names <= {"made", "mark", "d/host", "OTHER"}

    run(tmp_path, body)


def test_bounds_and_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (tmp_path / f"d{number}").mkdir()

    async def body(store: LocalBackend) -> None:
        log = Log()
        watcher = Watcher(store.resolver, store.own, max_watches=5)
        try:
            assert watcher.subscribe(list, True, log) is not None
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(watcher._nodes) == 5
            overflow = watching._EVENT.pack(-1, watching._OVERFLOW, 0, 0)
            with monkeypatch.context() as patch:
                patch.setattr(watching.os, "read", lambda *_: overflow)
                watcher._on_readable()
            assert log.take() == [(ACTION_LOST, "")]
        finally:
            watcher.close()

    run(tmp_path, body)


def test_nothing_to_watch_with(backend: Backend) -> None:
    with closing(backend.open(OpenRequest((), directory=True))) as handle:
        assert backend.watch(handle, True, lambda _: None) is None, "no event loop"


def test_a_name_that_comes_and_goes_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody watches nothing uses the expectations up: they must not pile up over the days."""
    clock = 1000.0
    monkeypatch.setattr("smb3server.backends.local.own_changes.time.monotonic", lambda: clock)
    changes = own_changes.OwnChanges(tmp_path)
    asked: list[float] = []
    changes.notice(lambda: asked.append(clock + own_changes.SECONDS))
    directory = os.open(tmp_path, os.O_PATH)
    try:
        for _ in range(10000):
            changes.expect(directory, "lock", CREATE)
            clock += own_changes.SECONDS / 4
            if clock >= asked[-1]:
                changes.settle(clock)
        ((key, deadlines),) = changes.here._expected.items()
        assert len(deadlines) <= 5
        assert changes.maker_of_name(*key) is own_changes.Maker.BACKEND
        clock += own_changes.SECONDS
        changes.settle(clock)
        assert not changes.here._expected and asked[-1] <= clock, "nothing is left, and nobody is asked to look again"
    finally:
        os.close(directory)


def test_own_changes_count_as_such_however_late_their_events_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (own_changes, watching):
        monkeypatch.setattr(module, "SECONDS", 0.05)

    async def body(store: LocalBackend) -> None:
        log = Log()
        with closing(store.open(OpenRequest((), directory=True))) as handle:
            assert store.watch(handle, True, log) is not None
            put(store, "f")
            with opened(store, "f") as file:
                file.set_attributes(2)
            time.sleep(0.08)  # A loop that is held up.
            (tmp_path / "mark").touch()
            await log.until(ACTION_ADDED, "mark")
            assert {path for _, path in log.take()} == {"mark"}
            await asyncio.sleep(0.15)
            (tmp_path / "f").write_bytes(b"x")
            await log.until(ACTION_MODIFIED, "f")

    run(tmp_path, body)


@pytest.mark.parametrize("below", ["", "folder"])
def test_a_change_through_another_share_of_the_folder_is_news_but_no_other_programs(tmp_path: Path, below: str) -> None:
    async def body() -> None:
        (tmp_path / "folder").mkdir()
        with closing(LocalBackend(tmp_path)) as whole, closing(LocalBackend(tmp_path / below)) as part:
            log, own = Log(), Log()
            where = ("folder",) if below else ()
            with (
                closing(whole.open(OpenRequest(where, directory=True))) as handle,
                closing(part.open(OpenRequest((), directory=True))) as same,
            ):
                assert whole.watch(handle, True, log) is not None
                assert part.watch(same, True, own) is not None
                put(part, "f", data=b"x")
                mkdir(part, "d")
                with opened(part, "f") as file:
                    file.rename(("g",), False)
                (tmp_path / below / "host").touch()
                await log.until(ACTION_ADDED, "/".join((*where, "host")))
                await own.until(ACTION_ADDED, "host")
            made = {change.path[-1]: change.by_server for change in log.changes}
            assert made == {"f": True, "d": True, "g": True, "host": False}
            assert {change.path[-1] for change in own.changes} == {"host"}
        with closing(LocalBackend(tmp_path)) as alone:
            assert not alone.own._others, "closed stores hear of nothing"

    asyncio.run(body())
