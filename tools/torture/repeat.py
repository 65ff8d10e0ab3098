"""Running again what fails against expectation, since machines are busy; what only then passes is recorded."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Protocol

from tools.flaky.record import record
from tools.torture import report
from tools.torture.outcome import Outcome


class Repeats(Protocol):
    """A runner, as far as this needs it."""

    def repeat(self, outcomes: list[Outcome], tests: set[str]) -> list[Outcome]: ...


def repeat(
    runner: Repeats, outcomes: list[Outcome], times: int, expected: Path, source: str, explained: Container[str]
) -> list[Outcome]:
    """Return ``outcomes`` after those worse than the file ``expected`` ran again, ``times`` at most.

    Each failure is recorded under ``source``, and so is what passes afterwards. Tests that are ``explained`` may fail:
    they run again, but are not recorded.
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
