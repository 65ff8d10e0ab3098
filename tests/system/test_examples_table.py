"""``make examples``: every system in examples/ has a row, and a row that fails is seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import examples
from tools.examples import PROGRAMS, Done, Failed, Program, run, table, thirty_lines


def test_every_system_has_a_row() -> None:
    folders = {path.parent.name for path in examples.EXAMPLES.glob("*/__main__.py")}
    assert folders and folders <= {program.path for program in PROGRAMS}


def test_what_a_row_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_: Path) -> Done:
        raise Failed("another order")

    right = run(Program("Lines", "rdma_in_thirty_lines.py", thirty_lines))
    failed = run(Program("Wrong", "rstore", wrong))
    missing = run(Program("Next", "nowhere", wrong))
    assert (right.failed, failed.failed, missing.failed) == (False, True, False)
    shown = table([right, failed, missing]).splitlines()
    assert "what docs/rdma-api.md shows" in shown[2]
    assert "FAILED: another order" in shown[3] and "not there yet: examples/nowhere" in shown[4]
    # A program that fails, and one that does not end, are told by name.
    (tmp_path / "bad.py").write_text("import sys; sys.exit('no memory left')")
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(examples, "EXAMPLES", tmp_path)
    monkeypatch.setattr(examples, "PATIENCE", 0.3)
    with pytest.raises(Failed, match=r"slow\.py did not end within 0\.3 s"):
        examples._call("slow.py")
    monkeypatch.setattr(examples, "PATIENCE", 60.0)
    with pytest.raises(Failed, match="exit status 1: no memory left"):
        examples._call("bad.py")
    monkeypatch.setattr(examples, "PROGRAMS", (Program("Bad", "bad.py", lambda _: Done(examples._call("bad.py"), "")),))
    monkeypatch.setattr(sys, "argv", ["examples"])
    assert examples.main() == 1


@pytest.mark.long
def test_all_of_them() -> None:
    command = [sys.executable, "-m", "tools.examples"]
    done = subprocess.run(command, cwd=examples.ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for program in PROGRAMS:
        assert f"\n{program.name} " in done.stdout
