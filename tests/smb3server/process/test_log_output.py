"""Levels of the log, and where its lines go."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.process import log_levels
from smb3server.process.log_levels import Levels, parse
from smb3server.process.log_lines import Event
from smb3server.process.log_output import JsonFormatter, LogOutput, goes_to_journal

EVIL = 'x"\n{"event": "logon", "user": "root"}\r\x1b]0;owned\x07\u2028\ud800'


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave the process's log as it was."""
    root = logging.getLogger()
    handlers, level, raises = root.handlers[:], root.level, logging.raiseExceptions
    yield
    root.handlers[:] = handlers
    log_levels.apply(Levels("warning"))
    root.setLevel(level)
    logging.raiseExceptions = raises


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("info", "info"),
        ("info,auth:debug", "info,auth:debug"),
        ("auth=debug", "info,auth:debug"),
        (" WARNING , rdma:debug,auth:error", "warning,auth:error,rdma:debug"),
    ],
)
def test_levels_are_read(text: str, shown: str) -> None:
    assert str(parse(text)) == shown


def test_what_is_not_named_stays() -> None:
    base = parse("warning,auth:debug,net:info")
    assert str(parse("rdma=debug,auth=default", base)) == "warning,net:info,rdma:debug"
    assert str(base) == "warning,auth:debug,net:info"


@pytest.mark.parametrize(
    ("text", "told"),
    [("inof", "did you mean info"), ("auht:debug", "did you mean auth"), ("auth:loud", "not a level"), ("", "''")],
)
def test_wrong_levels_are_named(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse(text)


def test_a_component_has_a_level_of_its_own() -> None:
    log_levels.apply(parse("warning,auth:debug"))
    assert logging.getLogger("smb3server.auth.acceptor").isEnabledFor(logging.DEBUG)
    assert not logging.getLogger("smb3server.net.tcp").isEnabledFor(logging.INFO)
    log_levels.apply(parse("warning"))
    assert not logging.getLogger("smb3server.auth.acceptor").isEnabledFor(logging.INFO)
    assert str(log_levels.in_force()) == "warning"


def test_all_our_components_have_loggers() -> None:
    """A component without a logger of ours would be an option without effect."""
    for loggers in log_levels.COMPONENTS.values():
        for name in loggers:
            assert Path(*name.split(".")).is_dir() or Path(*name.split(".")).with_suffix(".py").is_file(), name


def test_a_file_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    output = LogOutput(path)
    output.start(parse("info"))
    logging.getLogger("smb3server.x").info("first")
    path.rename(tmp_path / "log.1")
    logging.getLogger("smb3server.x").info("second")
    output.reopen()
    logging.getLogger("smb3server.x").info("third")
    logging.getLogger("foreign").info("not ours")
    output.close()
    assert [line.split()[-1] for line in (tmp_path / "log.1").read_text().splitlines()] == ["first", "second"]
    assert [line.split()[-1] for line in path.read_text().splitlines()] == ["third"]
    assert path.stat().st_mode & 0o7137 == 0


def test_a_file_that_cannot_be_opened_again_stays_in_use(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    output = LogOutput(folder / "log")
    output.start(parse("info"))
    folder.rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError):
        output.reopen()
    logging.getLogger("smb3server.x").info("kept")
    output.close()
    assert "kept" in (tmp_path / "moved" / "log").read_text()


def test_a_line_of_json_cannot_be_forged() -> None:
    record = logging.makeLogRecord({"name": "smb3server.auth", "msg": "logon of %s", "args": (EVIL,), "levelno": 30})
    record.event = Event("logon_refused", "192.0.2.1", {"user": EVIL, "port": 5})
    text = JsonFormatter().format(record)
    assert text.isprintable()
    found = json.loads(text)
    assert (found["event"], found["user"], found["port"], found["component"]) == ("logon_refused", EVIL, 5, "auth")


def test_json_has_tracebacks() -> None:
    try:
        raise ValueError(EVIL)
    except ValueError:
        record = logging.LogRecord("smb3server.net.tcp", logging.ERROR, "", 0, "failed", None, sys.exc_info())
    found = json.loads(JsonFormatter().format(record))
    assert found["component"] == "net"
    assert found["traceback"][0].startswith("Traceback")
    assert found["time"].endswith("Z")


def test_the_journal_is_told_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, "w") as null:
        found = os.fstat(null.fileno())
        monkeypatch.setattr("sys.stderr", null)
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino + 1}")
        assert not goes_to_journal(null)
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        output = LogOutput()
        stream = io.StringIO()
        output._handler.setStream(stream)
        output.start(parse("debug"))
        logging.getLogger("smb3server.x").debug("whisper")
        try:
            raise ValueError("reason")
        except ValueError:
            logging.getLogger("smb3server.x").exception("cry")
    first, *rest = stream.getvalue().splitlines()
    assert first == "<7>DEBUG smb3server.x: whisper"
    assert len(rest) > 2
    assert all(line.startswith("<3>") for line in rest)
