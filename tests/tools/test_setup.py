"""Which Python tools/setup.sh makes .venv with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTION = "/usr/bin/python3"
WORKS = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"


def chosen(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Ask where another Python comes first in PATH, as pyenv's does."""
    first = folder / "python3"
    first.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    first.chmod(0o755)
    given = {key: value for key, value in os.environ.items() if key != "PYTHON"}
    given["PATH"] = f"{folder}:/usr/bin:/bin"
    command = [str(ROOT / "tools" / "setup.sh"), "python"]
    return subprocess.run(command, env=given | environment, capture_output=True, text=True, check=False)


@pytest.fixture
def distribution() -> None:
    """Skip where the distribution's Python is too old or lacks venv: asking would install it."""
    try:
        subprocess.run([DISTRIBUTION, "-c", WORKS], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"{DISTRIBUTION} cannot make virtual environments")


@pytest.mark.usefixtures("distribution")
def test_the_distributions_python_comes_before_others_in_path(tmp_path: Path) -> None:
    ended = chosen(tmp_path)
    assert (ended.returncode, ended.stdout) == (0, f"{DISTRIBUTION}\n"), ended.stderr


def test_another_one_can_be_asked_for(tmp_path: Path) -> None:
    wanted = str(tmp_path / "python3")
    assert chosen(tmp_path, PYTHON=wanted).stdout == f"{wanted}\n"


def test_one_that_was_asked_for_and_does_not_work_is_not_replaced(tmp_path: Path) -> None:
    ended = chosen(tmp_path, PYTHON="/bin/false")
    assert ended.returncode == 1
    assert "PYTHON=/bin/false" in ended.stderr
