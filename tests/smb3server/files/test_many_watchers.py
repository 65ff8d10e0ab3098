"""Very many watch one folder: what happens in it is told in turns, and in its order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from smb3server.files import notify
from smb3server.files.notify import NotifyHub, Watcher
from smb3server.wire.change_notify import Action, Notification, NotifyFilter

LONGEST_TURN = 0.1

NAME = int(NotifyFilter.FILE_NAME)


def test_watchers_are_told_in_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[Watcher] = []
    add = Watcher.add

    def counted(self: Watcher, notifications: list[Notification]) -> None:
        told.append(self)
        add(self, notifications)

    monkeypatch.setattr(Watcher, "add", counted)

    async def test() -> None:
        hub = NotifyHub()
        watchers = [hub.watch((), NAME, True, 65536) for _ in range(10 * notify.AT_ONCE)]
        hub.report(("a",), Action.ADDED, NAME)
        assert len(told) == notify.AT_ONCE
        hub.report_rename(("a",), ("b",), False)
        hub.report(("b",), Action.REMOVED, NAME)
        assert len(told) == notify.AT_ONCE
        before = 0
        while len(told) > before:
            before = len(told)
            await asyncio.sleep(0)
            assert len(told) - before <= notify.AT_ONCE
        assert len(told) == 3 * len(watchers)
        expected = [
            Notification(Action.ADDED, "a"),
            Notification(Action.RENAMED_OLD_NAME, "a"),
            Notification(Action.RENAMED_NEW_NAME, "b"),
            Notification(Action.REMOVED, "b"),
        ]
        assert all(watcher._queue == expected for watcher in watchers)

    asyncio.run(test())


def test_what_cannot_be_told_is_lost_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "MAX_LATER", 200)

    async def test() -> None:
        hub = NotifyHub()
        watchers = [hub.watch((), NAME, True, 65536) for _ in range(notify.AT_ONCE + 50)]
        for number in range(10):
            hub.report((f"f{number}",), Action.ADDED, NAME)
        assert len(hub._later) <= 200 + len(watchers)
        for _ in range(50):
            await asyncio.sleep(0)
        assert not hub._later
        assert all(watcher._overflow for watcher in watchers[notify.AT_ONCE :])

    asyncio.run(test())
