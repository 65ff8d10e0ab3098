"""The tests of commands, files and opens, with every share on slow storage (``tests.lab.slow_shares``)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.lab.served import ROOT
from tests.lab.slow_shares import VARIABLE

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("folder", ["commands", "dispatch", "files", "state"])
def test_on_slow_storage(folder: str) -> None:
    command = [sys.executable, "-m", "pytest", f"tests/smb3server/{folder}", "-n", "2", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {VARIABLE: "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
