"""Repeat unexpected failures, since machines are busy, and record the tests that pass only then."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Protocol

from tools.flaky.record import record
from tools.torture import report
from tools.torture.outcome import Outcome


class Repeats(Protocol):
    """The part of a runner that this module uses."""

    def repeat(self, outcomes: list[Outcome], tests: set[str]) -> list[Outcome]: ...


def repeat(
    runner: Repeats, outcomes: list[Outcome], times: int, expected: Path, source: str, explained: Container[str]
) -> list[Outcome]:
    """Repeat the tests that did worse than the file ``expected`` says, at most ``times`` times; return the new
    outcomes.

    Each failure is recorded under ``source``, and so is a later success. Tests that are ``explained`` may fail: they
    are repeated, but not recorded.
    """
    failed: set[str] = set()
    for left in range(times, -1, -1):
        worse = report.regressions(outcomes, expected)
        for row in worse:
            if row.test not in explained:
                record(source, row.test, "failed", f"{row.result}: {row.reason}")
        now = {row.test for row in worse}
        for test in sorted(failed - now):
            record(source, test, "passed")
        failed = now - {test for test in now if test in explained}
        if not worse or not left:
            break
        outcomes = runner.repeat(outcomes, now)
    return outcomes
