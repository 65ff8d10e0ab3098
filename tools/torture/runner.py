"""Run smbtorture: each suite whole, then tests without a verdict one by one; suites run in parallel, one per share."""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tools.torture import subunit
from tools.torture.outcome import Outcome
from tools.torture.plan import ENDLESS, Plan, Special, normal
from tools.torture.server import PASSWORD, SECOND_USER, USER

_TIMED_OUT = (124, 137)
_SOLO_BUDGET = 600.0
"""Seconds per suite for tests on their own."""


@dataclass(slots=True)
class Runner:
    """Runs smbtorture against servers that are already running."""

    plan: Plan
    addresses: dict[str, tuple[str, int]]
    """Address by share."""
    paths: dict[str, Path]
    """Folders of the shares on this machine."""
    raw: Path
    """Folder for smbtorture's own output."""
    suite_timeout: float
    test_timeout: float
    extra: list[str]
    prefix: list[str] = field(default_factory=list)
    """First words of smbtorture's command: ip netns exec ..."""
    _processes: set[subprocess.Popen[str]] = field(default_factory=set, init=False)
    _stopped: bool = field(default=False, init=False)

    def run_all(self, shares: list[str]) -> list[Outcome]:
        """Run the suites on all ``shares`` at the same time."""
        waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        for suite in self.plan.suites:
            waiting.put(suite)
        outcomes: list[Outcome] = []
        lock = threading.Lock()

        def work(share: str) -> None:
            while True:
                try:
                    suite = waiting.get_nowait()
                except queue.Empty:
                    return
                started = time.monotonic()
                done = self._run_suite(suite, share)
                with lock:
                    outcomes.extend(done)
                    counts = Counter(outcome.result for outcome in done)
                    text = ", ".join(f"{count} {result}" for result, count in sorted(counts.items()))
                    print(f"{suite:34s} {time.monotonic() - started:6.1f} s  {text}", flush=True)

        threads = [threading.Thread(target=work, args=(share,), daemon=True) for share in shares]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            # The shares must not be in use any longer when they are unmounted.
            self._stopped = True
            for process in list(self._processes):
                process.terminate()
            for thread in threads:
                thread.join()
            raise
        return outcomes

    def repeat(self, outcomes: list[Outcome], tests: set[str]) -> list[Outcome]:
        """Return ``outcomes`` after running each of ``tests`` once more, on its own."""
        share = next(iter(self.paths))
        return [
            self._run_alone(old.suite, old.test, share, self.plan.special(old.test)) if old.test in tests else old
            for old in outcomes
        ]

    def _run_suite(self, suite: str, share: str) -> list[Outcome]:
        tests = self.plan.suites[suite]
        if suite in ENDLESS:
            return [
                Outcome(suite, test, "not-run", how="-", reason="waits for a person or never ends") for test in tests
            ]
        special = {test: self.plan.special(test) for test in tests}
        code = 0
        verdicts: dict[str, subunit.Verdict] = {}
        if not all(special.values()):
            code, output = self._run(suite, share, self.suite_timeout)
            verdicts = {normal(name): verdict for name, verdict in subunit.parse(output).items()}
        outcomes = []
        deadline = time.monotonic() + _SOLO_BUDGET
        for test in tests:
            how = special[test]
            verdict = None if how else _find(verdicts, test)
            if verdict is not None:
                outcomes.append(Outcome(suite, test, verdict.result, verdict.seconds, "suite", verdict.reason))
            elif how is None and len(tests) == 1 and code in _TIMED_OUT:
                outcomes.append(Outcome(suite, test, "timeout", self.suite_timeout))
            elif time.monotonic() > deadline:
                outcomes.append(Outcome(suite, test, "timeout", how="-", reason="no time was left for it"))
            else:
                outcomes.append(self._run_alone(suite, test, share, how))
        return outcomes

    def _run_alone(self, suite: str, test: str, share: str, special: Special | None) -> Outcome:
        how = "special" if special else "solo"
        share = special.share if special and special.share in self.addresses else share
        arguments = [text.replace("FOLDER", str(self.paths[share])) for text in special.arguments] if special else []
        started = time.monotonic()
        timeout = special.timeout if special and special.timeout else self.test_timeout
        code, output = self._run(test, share, timeout, arguments)
        verdicts = list(subunit.parse(output).values())
        if verdicts:
            last = verdicts[-1]
            return Outcome(suite, test, last.result, last.seconds, how, last.reason)
        result = "timeout" if code in _TIMED_OUT else "error"
        return Outcome(suite, test, result, time.monotonic() - started, how, f"exit {code}: {output.strip()[-160:]}")

    def _run(self, name: str, share: str, timeout: float, arguments: list[str] | None = None) -> tuple[int, str]:
        host, port = self.addresses[share]
        command = [*self.prefix, "timeout", "-k", "2", f"{timeout:.0f}", "smbtorture", f"//{host}/{share}"]
        command += ["-p", str(port), "-U", f"{USER}%{PASSWORD}", f"--extra-user={SECOND_USER}%{PASSWORD}"]
        command += ["--fullname", "--format=subunit", *self.extra, *(arguments or []), name]
        started = time.monotonic()
        if self._stopped:
            return 0, ""
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process:
            self._processes.add(process)
            output, errors = process.communicate()
            self._processes.discard(process)
        with (self.raw / f"{name}.txt").open("a", encoding="utf-8") as file:
            file.write(f"### {' '.join(command)}: exit {process.returncode}, {time.monotonic() - started:.1f} s\n")
            file.write(output + errors)
        return process.returncode, output


def _find(verdicts: dict[str, subunit.Verdict], test: str) -> subunit.Verdict | None:
    """Find the verdict of a test. Suites print full names, the last part, or names without the first parts."""
    for name in (test, test.rsplit(".", maxsplit=1)[-1]):
        if name in verdicts:
            return verdicts[name]
    for name, verdict in verdicts.items():
        if test.endswith("." + name) or name.endswith("." + test):
            return verdict
    return None
