"""The tests on another CPython: what is asked of it, and how it is refused."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tools import other_python
from tools.other_python import ROOT, Failed, environment, examine, needs


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_an_interpreter_says_what_it_is() -> None:
    found = examine(Path(sys.executable))
    assert found.version == sys.version.split()[0]
    assert found.is_unlocked == bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    assert found.tag == str(sys.implementation.cache_tag) + "t" * found.is_unlocked


def test_one_without_the_lock_has_an_environment_of_its_own(tmp_path: Path) -> None:
    found = examine(script(tmp_path / "python", "echo cpython-314 1 3.14.0 3 14"))
    assert (found.tag, found.is_unlocked) == ("cpython-314t", True)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("echo cpython-310 0 3.10.1 3 10", "3.11 is the oldest"),
        ("exit 3", "no Python that runs"),
        ("echo hello", "no Python that runs"),
    ],
)
def test_what_is_none_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(Failed, match=complaint):
        examine(script(tmp_path / "python", text))
    with pytest.raises(Failed, match="no Python that runs"):
        examine(tmp_path / "nothing")


def test_one_that_makes_no_environment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_python, "FOLDER", tmp_path / "made")
    path = script(tmp_path / "python", '[ "$1" = -c ] && echo cpython-399 0 3.99.0 3 99')
    with pytest.raises(Failed, match="-m venv has failed"):
        environment(examine(path))


def test_the_command_says_why_there_is_none(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.other_python", "--python", str(tmp_path / "nothing"), "-q"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 2
    assert "no Python that runs" in ended.stderr


def test_all_that_the_tests_need_is_known() -> None:
    found = needs((ROOT / "pyproject.toml").read_text())
    assert any(one.startswith("cryptography") for one in found)
    assert any(one.startswith("pytest>=") for one in found)
