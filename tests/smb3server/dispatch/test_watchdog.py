"""The watchdog names what holds up the event loop."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from smb3server.dispatch.request import HANDLERS, Request, Response
from smb3server.dispatch.watchdog import KEPT, LOGS_PER_MINUTE, Turn, Watchdog
from smb3server.server.server import Server
from smb3server.settings.server import Settings
from smb3server.wire.header import Command
from tests.lab import reports as report
from tests.lab.wire_client import ECHO, running

LONGEST_TURN = 0.1


def test_a_slow_command_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, slow_turns: list[Turn]
) -> None:
    """Waiting and processor time are told apart; log lines are few, however many there are."""
    echo = HANDLERS[Command.ECHO]

    def slow(request: Request) -> Response:
        time.sleep(0.02)
        result = echo(request)
        assert isinstance(result, Response)
        return result

    async def test() -> None:
        settings = Settings()
        settings.watchdog = 0.015
        async with running(settings) as harness:
            client = await harness.connect()
            await client.login()
            watchdog = harness.server.measuring.watchdog
            assert watchdog is not None
            before = watchdog.count
            monkeypatch.setitem(HANDLERS, Command.ECHO, slow)
            for _ in range(KEPT + 8):
                await client.call(Command.ECHO, ECHO)
            assert watchdog.count - before >= KEPT + 8
            assert len(watchdog.turns) == KEPT
            turn = watchdog.turns[-1]
            assert (turn.command, turn.client, turn.path) == ("ECHO", "127.0.0.1", "")
            assert turn.seconds >= 0.02
            assert turn.processor < turn.seconds
            found = report.collect(harness.server)["server"]["watchdog"]
            assert found["count"] == watchdog.count
            assert found["worst"]["seconds"] == max(entry.seconds for entry in slow_turns)

    with caplog.at_level(logging.WARNING, "smb3server.dispatch.watchdog"):
        asyncio.run(test())
    lines = [entry.getMessage() for entry in caplog.records if entry.name == "smb3server.dispatch.watchdog"]
    assert 1 <= len(lines) <= LOGS_PER_MINUTE
    assert any(line.startswith("ECHO of 127.0.0.1 held up all other requests for ") for line in lines)


def test_it_is_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert Settings().watchdog == 0

    async def test() -> None:
        server = Server()
        assert server.measuring.watchdog is None
        assert report.collect(server)["server"]["watchdog"] is None

    asyncio.run(test())


def test_what_is_fast_is_not_remembered() -> None:
    watchdog = Watchdog(10.0)
    watchdog.finished(Command.ECHO, "192.0.2.1", tuple, (time.monotonic(), time.thread_time()))
    assert (watchdog.count, watchdog.worst) == (0, None)
