"""One file of results: a line of JSON for each failed test, and for each later result of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal, NamedTuple

VARIABLE = "FLAKY_RECORD"
"""Environment variable with the name of the file; without it nothing is recorded."""
_LINES, _WIDTH = 12, 240
"""Number of last lines kept of a failure's text, and characters kept of each line."""

Result = Literal["failed", "passed", "skipped"]


class Entry(NamedTuple):
    source: str
    """The program that ran the test: pytest, smbtorture, kernel lab."""
    name: str
    result: Result
    text: str = ""
    """The end of a failure's text."""


class Totals(NamedTuple):
    """The totals of a whole run of pytest."""

    passed: int
    failed: int
    skipped: int
    seconds: float


def shorten(text: str) -> str:
    """Return the last lines of ``text``, each truncated to a width that fits a log."""
    lines = [line[:_WIDTH].rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-_LINES:])


def _append(path: Path, kind: str, fields: dict[str, object]) -> None:
    """Append a line in one write, since several programs may write to the file at the same time."""
    line = json.dumps({"kind": kind, **fields}) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def record(source: str, name: str, result: Result, text: str = "", path: Path | None = None) -> None:
    """Add a test's result to ``path``, or to the file that the environment names, if there is one."""
    path = path or file_of_environment()
    if path is not None:
        _append(path, "result", Entry(source, name, result, shorten(text))._asdict())


def record_totals(totals: Totals, path: Path) -> None:
    _append(path, "totals", totals._asdict())


def file_of_environment() -> Path | None:
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


def read(path: Path) -> tuple[list[Entry], list[Totals]]:
    """Return the entries of a file in the order of writing; nothing if the file does not exist."""
    entries: list[Entry] = []
    totals: list[Totals] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            fields = json.loads(line)
            if fields.pop("kind") == "totals":
                totals.append(Totals(**fields))
            else:
                entries.append(Entry(**fields))
    return entries, totals
