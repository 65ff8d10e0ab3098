"""Plugin for pytest (``-p tools.flaky.plugin``) that records failures, and the results when failed tests
are repeated.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tools.flaky.record import VARIABLE, Totals, file_of_environment, read, record, record_totals

_SOURCE = "pytest"


class Recorder:
    """Receives the reports of one run of pytest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open = {entry.name for entry in read(path)[0] if entry.source == _SOURCE}
        """Tests that failed in an earlier run."""
        self._failed: set[str] = set()
        self._skipped: set[str] = set()
        self._started = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record each phase (setup, call, teardown) that fails; the last one, teardown, completes the others."""
        if report.failed:
            self._fail(report.nodeid, report.longreprtext)
        elif report.skipped:
            self._skipped.add(report.nodeid)
        if report.when == "teardown" and report.nodeid not in self._failed and report.nodeid in self._open:
            skipped = report.nodeid in self._skipped
            record(_SOURCE, report.nodeid, "skipped" if skipped else "passed", path=self._path)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record modules that cannot be imported."""
        if report.failed:
            self._fail(report.nodeid, report.longreprtext)
        elif report.nodeid in self._open:
            record(_SOURCE, report.nodeid, "passed", path=self._path)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Record the number of tests."""
        counts = {
            key: len(terminalreporter.stats.get(key, ()))
            for key in ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
        }
        passed = counts["passed"] + counts["xfailed"] + counts["xpassed"]
        seconds = time.monotonic() - self._started
        record_totals(Totals(passed, counts["failed"] + counts["error"], counts["skipped"], seconds), self._path)

    def _fail(self, name: str, text: str) -> None:
        self._failed.add(name)
        record(_SOURCE, name, "failed", text, self._path)


def pytest_configure(config: pytest.Config) -> None:
    """Remove the file's name from the environment, so that programs started by tests do not write to it."""
    path = file_of_environment()
    os.environ.pop(VARIABLE, None)
    # Workers of pytest-xdist report to the process that started them; only that process records.
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path), "flaky-recorder")
