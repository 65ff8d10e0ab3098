"""The outcome of a test, and files of outcomes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

COLUMNS = "suite\ttest\tresult\tsecs\thow\treason"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one test."""

    suite: str
    test: str
    result: str
    """pass, fail, error, skip, timeout or not-run."""
    seconds: float = 0.0
    how: str = "suite"
    """suite: in a run of its whole suite; solo: on its own; special: on its own, as special.toml says."""
    reason: str = ""

    @property
    def passed(self) -> bool:
        return self.result == "pass"

    @property
    def line(self) -> str:
        fields = (self.suite, self.test, self.result, f"{self.seconds:.2f}", self.how, self.reason)
        return "\t".join(field.replace("\t", " ").replace("\n", " ") for field in fields)


def write(path: Path, outcomes: Iterable[Outcome]) -> None:
    """Write outcomes as a table, in the order of suites and tests."""
    rows = sorted(outcomes, key=lambda outcome: (outcome.suite, outcome.test))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([COLUMNS, *(row.line for row in rows)]) + "\n", encoding="utf-8")


def read_table(path: Path) -> list[dict[str, str]]:
    """Read a file with a header line and tabs between fields; missing fields are empty."""
    lines = path.read_text(encoding="utf-8").splitlines()
    names = lines[0].split("\t")
    return [dict(zip(names, line.split("\t") + [""] * len(names), strict=False)) for line in lines[1:]]
