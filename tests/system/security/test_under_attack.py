"""Attacks on a server process while an innocent client waits for its ECHOs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tools.attacks import accounts, bounds, doors, lab, rights, strangers, tickets
from tools.attacks.lab import CASES, MOST_LOG, MOST_PROCESSOR, MOST_RESIDENT, Verdict

MODULES = (strangers, doors, accounts, bounds, rights, tickets)
"""Whose import registers the cases. Some need a network namespace: ``python -m tools.attacks`` makes one."""
QUICK = (
    "which_accounts_exist",
    "stolen_ids",
    "escapes",
    "forged_log_lines",
    "large_descriptors",
    "locks_given_back",
    "requests_that_are_none",
    "silent_at_the_metrics",
    "forged_tickets",
    "stolen_tickets",
)
"""Cases that take about a second each."""


def _run(name: str) -> None:
    wrapper = CASES[name].wrapper
    if wrapper and shutil.which(wrapper[0]) is None:
        pytest.skip(f"{wrapper[0]} is not installed")
    if CASES[name].lacks:
        pytest.skip(f"not installed: {', '.join(CASES[name].lacks)}")
    verdict = lab.run(CASES[name], seconds=3)
    assert not verdict.judge(), f"{verdict}\n" + "\n".join([*verdict.judge(), *verdict.notes])


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, found in CASES.items() if not found.alone])
def test_the_innocent_are_served_and_nothing_is_taken(name: str) -> None:
    """Every case of ``python -m tools.attacks`` that may run beside others, against the limits of its ``lab``."""
    _run(name)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="takes root: accounts act as users of the host, the share is a tmpfs")
@pytest.mark.parametrize("name", QUICK)
def test_quick_attacks(name: str) -> None:
    _run(name)


@pytest.mark.root
@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="takes root: the ports of a controller are in a network namespace")
def test_controllers_that_lie() -> None:
    """The command gives the case a network namespace of its own."""
    command = [sys.executable, "-m", "tools.attacks", "lying_controllers"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"processor": MOST_PROCESSOR * 1.1}, "processor time"),
        ({"resident": MOST_RESIDENT + (1 << 20)}, "held"),
        ({"log": MOST_LOG + 1}, "log grew"),
        ({"tracebacks": 1}, "tracebacks"),
        ({"echoes": 0}, "no answer"),
        ({"failures": ["read through '..'"]}, "read through"),
    ],
)
def test_each_limit_is_judged(broken: dict[str, object], says: str) -> None:
    good = {"name": "case", "processor": MOST_PROCESSOR, "resident": MOST_RESIDENT, "log": MOST_LOG, "echoes": 1}
    assert not Verdict(**good).judge()  # type: ignore[arg-type]
    (found,) = Verdict(**{**good, **broken}).judge()  # type: ignore[arg-type]
    assert says in found
