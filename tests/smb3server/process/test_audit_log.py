"""The audit's file."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from smb3server.process import audit_log
from smb3server.process.audit_log import AuditLog

PATIENCE = 10.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(path, clock=lambda: 1_700_000_000.5)
    audit.put({"event": "open", "path": 'a"\n{"event": "x"}'})
    audit.put({"event": "delete", "path": "b"})
    audit.close()
    assert [entry["event"] for entry in records(path)] == ["open", "delete"]
    assert records(path)[0] == {"time": "2023-11-14T22:13:20.500Z", "event": "open", "path": 'a"\n{"event": "x"}'}
    assert path.stat().st_mode & 0o7137 == 0
    assert audit.written == 2


def test_the_file_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(path)
    audit.put({"event": "open"})
    until(lambda: audit.written == 1)
    path.rename(tmp_path / "old")
    audit.reopen()
    until(path.exists)
    audit.put({"event": "delete"})
    audit.close()
    assert [entry["event"] for entry in records(path)] == ["delete"]


def test_a_full_disk_loses_records_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = Path("/dev/full")
    monkeypatch.setattr(audit_log, "open_append", lambda path: os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    audit = AuditLog(full)
    audit.put({"event": "open"})
    until(lambda: audit.lost == 1)
    audit.path = tmp_path / "audit.log"
    audit.reopen()
    until(audit.path.exists)
    audit.put({"event": "delete"})
    audit.close()
    lost, kept = records(audit.path)
    assert (lost["event"], lost["records"], kept["event"]) == ("lost", 1, "delete")
    assert sum("No space left" in entry.getMessage() for entry in caplog.records) == 1


@pytest.mark.parametrize("again", ["goes on", "starts again"])
def test_a_disk_that_is_full_within_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str) -> None:
    """What is left of the record is one bad line. Those before it count as written, and none after it is spoilt."""
    path = tmp_path / "audit.log"
    whole = len(json.dumps({"time": "2023-11-14T22:13:20.500Z", "event": "0"})) + 1
    room, gate, write = [whole + 10], threading.Event(), os.write

    def writing(descriptor: int, data: bytes) -> int:
        gate.wait(PATIENCE)
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(descriptor, data[: room[0]])
        room[0] -= done
        return done

    monkeypatch.setattr(os, "write", writing)
    audit = AuditLog(path, clock=lambda: 1_700_000_000.5)
    with audit._changed:
        for number in range(3):
            audit.put({"event": str(number)})
    gate.set()
    until(lambda: audit.lost == 2)
    assert audit.written == 1
    room[0] = 10_000
    if again == "starts again":
        audit.close()
        audit = AuditLog(path, clock=lambda: 1_700_000_000.5)
    audit.put({"event": "3"})
    audit.close()
    lines = path.read_text().splitlines()
    assert len(lines[1]) == 10
    found = [json.loads(line) for line in (lines[0], *lines[2:])]
    assert [entry["event"] for entry in found] == (["0", "lost", "3"] if again == "goes on" else ["0", "3"])
    assert again != "goes on" or found[1]["records"] == 2


def test_the_queue_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(path)
    go_on, write = threading.Event(), os.write

    def blocked(descriptor: int, data: bytes) -> int:
        go_on.wait(PATIENCE)
        return write(descriptor, data)

    monkeypatch.setattr(audit_log.os, "write", blocked)
    monkeypatch.setattr(audit_log, "MAX_QUEUED", 10)
    audit.put({"event": "first"})
    until(lambda: not audit._queue)
    for number in range(15):
        audit.put({"event": str(number)})
    assert audit.lost == 5
    go_on.set()
    audit.close()
    names = [entry["event"] for entry in records(path)]
    assert names == ["first", "lost", *map(str, range(10))]
