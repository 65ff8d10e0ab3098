"""Log lines that peers have a part in."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.cli.status.live import line as live_line
from smb3server.cli.status.tables import render
from smb3server.process.log_lines import (
    FORMAT,
    LINE,
    MAX_KEYS,
    PER_PLACE,
    PER_SOURCE,
    PLACE_RATE,
    QUIET,
    TRACE_INTERVAL,
    LimitedHandler,
    LineFormatter,
    printable,
)
from smb3server.status.report import collect
from tests.lab.scene import Scene, log_on, play

LONGEST_TURN = 0.1

EVIL = "x\n2026-01-01 00:00:00 INFO smb3server: root logged on\r\x1b]0;owned\x07\x9b31m\u202e\u2028\ud800"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Log:
    def __init__(self) -> None:
        self.clock = Clock()
        self.stream = io.StringIO()
        self.handler = LimitedHandler(self.stream, self.clock)
        self.handler.setFormatter(LineFormatter(FORMAT))
        self.log = logging.Logger("test", logging.DEBUG)
        self.log.addHandler(self.handler)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.handler.close()


def test_what_cannot_be_printed_is_escaped(log: Log) -> None:
    log.log.warning("%s: logon of %s failed", "192.0.2.1", EVIL)
    (line,) = log.stream.getvalue().split("\n")[:-1]
    assert line.isprintable()
    assert "\\n2026" in line
    assert "\\x1b]0;owned" in line
    assert printable("Jürgen Groß 東京") == "Jürgen Groß 東京"


def test_long_lines_are_cut(log: Log) -> None:
    log.log.warning("%s: %s", "192.0.2.1", "x" * 100_000)
    assert len(log.stream.getvalue()) < 3000


def test_a_traceback_forges_no_line(log: Log) -> None:
    try:
        raise ValueError(EVIL)
    except ValueError:
        log.log.exception("%s: failed", "192.0.2.1")
    head, *rest = log.stream.getvalue().split("\n")[:-1]
    assert head.endswith("192.0.2.1: failed")
    assert rest
    assert all(line.startswith("| ") and line.isprintable() for line in rest)


def test_one_source_has_a_budget(log: Log) -> None:
    def fail(source: str) -> None:
        log.log.warning("%s: logon of %s failed", source, "alice")

    for _ in range(5000):
        fail("192.0.2.1")
    assert len(log.lines) == PER_SOURCE
    fail("192.0.2.2")
    assert "192.0.2.2" in log.lines[-1]
    log.clock.now += QUIET + 1
    log.log.warning("%s: something else", "192.0.2.3")
    assert f"{5000 - PER_SOURCE} more suppressed like: 192.0.2.1: logon of alice failed" in log.lines[-2]
    fail("192.0.2.1")
    assert "more" not in log.lines[-1]


def test_many_sources_have_one_too(log: Log) -> None:
    for number in range(20_000):
        log.log.warning("%s: logon of %s failed", f"10.0.{number >> 8}.{number & 255}", "alice")
    assert len(log.lines) <= PER_PLACE + 10
    assert len(log.handler._budgets) <= MAX_KEYS
    log.handler.close()
    told = sum(int(line.split(": ", 1)[1].split()[0]) for line in log.lines if "more suppressed" in line)
    assert told + sum("more suppressed" not in line for line in log.lines) == 20_000


def test_counts_of_many_sources_are_lines_too(log: Log) -> None:
    for _ in range(60):
        for number in range(500):
            for _ in range(3 * PER_SOURCE if log.clock.now == 100.0 else 1):
                log.log.warning("%s: logon of %s failed", f"10.0.{number >> 8}.{number & 255}", "alice")
        log.clock.now += QUIET / 5
    assert len(log.lines) <= PER_PLACE + PLACE_RATE * 60 * QUIET / 5 + 10


def test_long_lines_count_as_several(log: Log) -> None:
    for number in range(1000):
        log.log.warning("%s: logon of %s failed", f"192.0.2.{number & 7}", "x" * 100_000)
    assert len(log.stream.getvalue()) < 2 * PER_PLACE * LINE
    assert "x" * 1000 in log.lines[0]


def test_a_steady_trickle_is_not_lost(log: Log) -> None:
    for _ in range(300):
        log.log.warning("%s: logon of %s failed", "192.0.2.1", "alice")
        log.clock.now += 2.0
    assert len(log.lines) == 300


def test_a_burst_of_clients_is_told(log: Log) -> None:
    for number in range(PER_PLACE):
        log.log.info("%s: %s logged on", f"10.0.{number >> 8}.{number & 255}", f"user{number}")
    assert len(log.lines) == PER_PLACE


def test_tracebacks_come_once_in_a_while_for_each_place(log: Log) -> None:
    def one() -> None:
        raise ValueError("one")

    def two() -> None:
        raise KeyError("two")

    def fail() -> None:
        for number in range(100):
            for raising in (one, two):
                try:
                    raising()
                except Exception:
                    log.log.exception("%s: command %d failed", f"192.0.2.{number}", number)

    fail()
    assert log.stream.getvalue().count("Traceback") == 2
    log.clock.now += TRACE_INTERVAL + 1
    fail()
    assert log.stream.getvalue().count("Traceback") == 4
    assert "99 more suppressed like" in log.stream.getvalue()


def test_debug_lines_are_not_limited(log: Log) -> None:
    for _ in range(5000):
        log.log.debug("%s: detail", "192.0.2.1")
    assert len(log.lines) == 5000


def test_a_report_reaches_the_terminal_escaped(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        await log_on(await acted.tcp())
        report = collect(acted.service.server)
        report.server.name = report.sessions[0].user = report.sessions[0].client = EVIL
        report.sessions[0].shares = [EVIL]
        report.down = {EVIL: EVIL}
        lines = [text.plain for text in render(report, 160)]
        assert any("\\x1b" in line for line in lines)
        assert all(line.isprintable() for line in lines)
        assert live_line(report).isprintable()

    play(tmp_path, scene)
