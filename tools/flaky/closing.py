"""The end of a long run: the times of its steps, and the tests that passed only when they were repeated."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tools.flaky.record import Entry, Totals


class Step(NamedTuple):
    seconds: int
    status: int
    command: str


class Story(NamedTuple):
    """The results of one test over all its runs."""

    source: str
    name: str
    failures: int
    last: str
    """The result of its last run."""
    text: str
    """The text of its first failure."""


def read_steps(path: Path) -> list[Step]:
    """Read lines of seconds, exit status and command, with tabs between."""
    steps = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        seconds, status, command = line.split("\t", 2)
        steps.append(Step(int(seconds), int(status), command))
    return steps


def stories(entries: Iterable[Entry]) -> list[Story]:
    """Return one story for each test that failed at least once, in the order of the first failures."""
    together: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        together.setdefault((entry.source, entry.name), []).append(entry)
    found = []
    for (source, name), runs in together.items():
        failures = [entry for entry in runs if entry.result == "failed"]
        if failures:
            found.append(Story(source, name, len(failures), runs[-1].result, failures[0].text))
    return found


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:3}:{int(seconds) % 60:02}"


def _table(steps: Sequence[Step]) -> list[str]:
    lines = ["=== steps (minutes)"]
    for step in steps:
        failed = f"  exit status {step.status}" if step.status else ""
        command = textwrap.shorten(step.command, 100, placeholder=" ...")
        lines.append(f"{_clock(step.seconds)}  {command}{failed}")
    return [*lines, f"{_clock(sum(step.seconds for step in steps))}  together; some ran beside others"]


def _list(title: str, found: Sequence[Story]) -> list[str]:
    lines = [f"=== {title}: {len(found) or 'none'}"]
    for story in found:
        times = "once" if story.failures == 1 else f"{story.failures} times"
        lines.append(f"{story.source}: {story.name} (failed {times})")
        lines += [f"    | {line}" for line in story.text.splitlines()]
    return lines


def _sum(totals: Sequence[Totals], failing: int) -> str:
    """Return the sum of all runs in pytest's words; a test that passed when it was repeated counts as passed."""
    failed = f"{failing} failed, " if failing else ""
    passed, seconds = sum(run.passed for run in totals), sum(run.seconds for run in totals)
    # Skipped tests are not repeated, unless they had failed.
    skipped = sum(run.skipped for run in totals)
    return f"===== {failed}{passed} passed, {skipped} skipped in {seconds:.2f}s ====="


def closing(entries: Iterable[Entry], totals: Sequence[Totals], steps: Sequence[Step]) -> str:
    """Return the end of a run as text."""
    found = stories(entries)
    failing = [story for story in found if story.last == "failed"]
    lines = _table(steps)
    lines += _list("passed only when repeated", [story for story in found if story.last == "passed"])
    if skipped := [story for story in found if story.last == "skipped"]:
        lines += _list("failed, and skipped when repeated", skipped)
    if failing:
        lines += _list("failed to the end", failing)
    if totals:
        lines.append(_sum(totals, sum(story.source == "pytest" for story in failing)))
    return "\n".join(lines)
