"""Compile the tests before several processes import them.

Each worker of a run imports all modules of tests. In a new checkout each of them would rewrite the assertions of all
modules and look through all sources for hypothesis, and take half a minute of processor time for that. One process for
each processor does a part of it, and the workers find what it wrote.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
_MANY = 100
"""Modules. Fewer are compiled by the workers."""


def compile_for_workers(config: pytest.Config) -> None:
    """Compile what a whole run on several workers needs, in the process that starts them."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if not whole or sys.dont_write_bytecode or not getattr(config.option, "numprocesses", 0):
        return
    left = sorted(path for path in TESTS.rglob("test_*.py") if not _compiled(path))
    if len(left) < _MANY:
        return
    print(f"compiling {len(left)} modules of tests", file=sys.stderr)
    parts = max(os.cpu_count() or 1, 1)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-n", "0", "-p", "no:cacheprovider"]
    collectors = [
        subprocess.Popen([*command, *map(str, left[part::parts])], cwd=TESTS.parent, stdout=subprocess.DEVNULL)
        for part in range(parts)
    ]
    for collector in collectors:
        collector.wait()  # what fails here fails in the workers again, which say so


def _compiled(source: Path) -> bool:
    changed = source.stat().st_mtime
    tag = sys.implementation.cache_tag
    found = source.parent.joinpath("__pycache__").glob(f"{source.stem}.{tag}-pytest-*.pyc")
    return any(path.stat().st_mtime >= changed for path in found)
