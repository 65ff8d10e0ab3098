"""Outcomes of Microsoft's cases, the committed ones and those of a run, and why cases do not pass."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
SUITES = {"smb2": "MS-SMB2", "fsa": "MS-FSA", "dfsc": "MS-DFSC", "rsvd": "MS-RSVD", "sqos": "MS-SQOS"}
"""The suites that have a committed table, and the protocol that each one tests."""
PLATFORMS = ("NonWindows", "WindowsServer2022")
"""As what the suites judge a server."""
_OUTCOMES = {"Passed": "passed", "Failed": "failed", "NotExecuted": "not applicable"}


class Case(NamedTuple):
    """The outcome of one case."""

    name: str
    outcome: str
    """passed, failed or not applicable; other words are the runner's own."""
    message: str = ""
    """The suite's first message."""


class TableError(Exception):
    """A table or the file of reasons cannot be used."""


def parse(text: str) -> list[Case]:
    """Return the cases of a table of the runner: case, outcome, seconds, message. Raises ``TableError``."""
    cases = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split("\t")
        if len(fields) < 3:
            raise TableError(f"line {number} has {len(fields)} columns")
        name, outcome, _, *message = fields
        cases.append(Case(name, _OUTCOMES.get(outcome, outcome.lower()), " ".join(message).strip()))
    if not cases:
        raise TableError("there is no case")
    return sorted(cases)


def read(path: Path) -> dict[str, str]:
    """Return the outcome of each case of a committed table; empty if there is none."""
    if not path.exists():
        return {}
    rows = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:])
    return {row[0]: row[1] for row in rows}


def write(path: Path, cases: Iterable[Case], samba: dict[str, str], why: Reasons) -> None:
    """Write a committed table: case, outcome here, outcome on Samba, and why it does not pass."""
    rows = [(case.name, case.outcome, samba.get(case.name, ""), why.of(case)) for case in sorted(cases)]
    path.write_text("\n".join("\t".join(row) for row in [("case", "here", "samba", "why"), *rows]) + "\n", "utf-8")


class Reasons:
    """Why cases fail, by patterns of their names: reasons.toml."""

    def __init__(self, suite: str, platform: str, document: str | None = None) -> None:
        """``document``: the text of the file. Raises ``TableError`` for a reason that names nothing to read."""
        text = (HERE / "reasons.toml").read_text(encoding="utf-8") if document is None else document
        found = tomllib.loads(text)
        self._rows: list[tuple[str, re.Pattern[str], str]] = []
        for row in found.get(suite, ()):
            if platform not in row.get("platforms", PLATFORMS):
                continue
            if not row.get("why", "").strip():
                raise TableError(f"{row['case']}: no reason")
            self._rows.append((row["case"], re.compile(row["case"]), row["why"]))

    def of(self, case: Case) -> str:
        """Return why a case does not pass; "" if it passes or nothing explains it."""
        if case.outcome == "passed":
            return ""
        if case.outcome == "not applicable":
            return re.sub(r"^Assert\.Inconclusive (?:failed|is inconclusive)\. ", "", case.message)[:150].strip()
        return next((why for _, pattern, why in self._rows if pattern.fullmatch(case.name)), "")

    def idle(self, cases: Iterable[Case]) -> list[str]:
        """Return the patterns that explain no failed case of a whole suite."""
        failed = [case.name for case in cases if case.outcome == "failed"]
        return [name for name, pattern, _ in self._rows if not any(map(pattern.fullmatch, failed))]


def judge(cases: list[Case], expected: dict[str, str], why: Reasons, whole: bool) -> list[str]:
    """Return what is wrong with a run, a line each. ``whole``: all cases of the suite were asked for."""
    wrong = []
    for case in cases:
        before = expected.get(case.name)
        if case.outcome not in ("passed", "failed", "not applicable"):
            wrong.append(f"{case.name}: {case.outcome}")
        elif before == "passed" and case.outcome != "passed":
            wrong.append(f"{case.name}: passed before, {case.outcome} now: {case.message}")
        elif case.outcome == "failed" and not why.of(case):
            wrong.append(f"{case.name}: failed, and reasons.toml does not say why: {case.message}")
    if whole:
        ran = {case.name for case in cases}
        wrong += [f"{name}: was not run" for name, before in expected.items() if before == "passed" and name not in ran]
        wrong += [f"{pattern}: the reason explains no failed case" for pattern in why.idle(cases)]
    return wrong
