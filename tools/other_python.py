"""``python -m tools.other_python --python PATH [ARGUMENTS OF PYTEST]``: run the tests on another CPython, as on one
without the interpreter's lock.

It gets a virtual environment of its own, below build/other-python, which is made again when the dependencies have
changed. A dependency that cannot be installed there is named, and the tests that need it fail or are skipped. Exit
status: that of pytest, 2 if there is no environment.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

from smb3server.process import output

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "other-python"
_ASK = (
    "import sys, sysconfig; print(sys.implementation.cache_tag, sysconfig.get_config_var('Py_GIL_DISABLED') or 0,"
    " sys.version.split()[0], *sys.version_info[:2])"
)


class Failed(Exception):
    """There is no such environment, and this is why."""


class Interpreter(NamedTuple):
    """What an interpreter says of itself."""

    path: Path
    tag: str
    """Names its environment: cpython-314, or cpython-314t without the interpreter's lock."""
    version: str
    is_unlocked: bool
    """Whether it was built to run without the interpreter's lock."""


def examine(path: Path) -> Interpreter:
    """Ask an interpreter what it is. Raises ``Failed`` for one that cannot run the project."""
    try:
        asked = subprocess.run([path, "-c", _ASK], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failed(f"{path} is no Python that runs: {error}") from None
    try:
        tag, unlocked, version, major, minor = asked.stdout.split()
    except ValueError:
        raise Failed(f"{path} is no Python that runs: it answers {asked.stdout[:80]!r}") from None
    if (int(major), int(minor)) < (3, 11):
        raise Failed(f"{path} is Python {version}; 3.11 is the oldest")
    is_unlocked = unlocked == "1"
    return Interpreter(path, tag + "t" * is_unlocked, version, is_unlocked)


def needs(pyproject: str) -> list[str]:
    """Return what the project and its tests need, of the text of pyproject.toml."""
    project = tomllib.loads(pyproject)["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["dev"]]


def _install(python: Path, *what: str) -> bool:
    """Install into an environment. What pip says is shown."""
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *what]
    return subprocess.run(pip, check=False, cwd=ROOT).returncode == 0


def environment(interpreter: Interpreter) -> Path:
    """Return the Python of the environment, after making it where it is needed. Raises ``Failed``."""
    folder = FOLDER / interpreter.tag
    python, stamp = folder / "bin" / "python", folder / "made-of"
    sources = [ROOT / "pyproject.toml", ROOT / "setup.py", *sorted(ROOT.glob("smb*/**/_*.c"))]
    made_of = (
        f"{interpreter.path.resolve()} {interpreter.version} "
        + hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    )
    if stamp.exists() and stamp.read_text() == made_of:
        return python
    if subprocess.run([interpreter.path, "-m", "venv", "--without-pip", "--clear", folder], check=False).returncode:
        raise Failed(f"{interpreter.path} -m venv has failed")
    # The pip that an interpreter brings may be older than the interpreter: Debian's comes from another package.
    where = [str(python), "-c", "import site; print(site.getsitepackages()[0])"]
    packages = subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip()
    if not _install(Path(sys.executable), "--target", packages, "pip"):
        raise Failed("pip cannot be had")
    if not _install(python, "-e", ".[dev]"):
        # One by one: what lacks is named, and the others serve the tests that need no more.
        wanted = needs((ROOT / "pyproject.toml").read_text())
        lacking = [requirement for requirement in wanted if not _install(python, requirement)]
        print(f"other_python: not to be had for Python {interpreter.version}: {', '.join(lacking)}", file=sys.stderr)
        if not _install(python, "--no-deps", "-e", "."):
            raise Failed(f"the project cannot be installed for Python {interpreter.version}")
    stamp.write_text(made_of)
    return python


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.other_python", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--python", type=Path, required=True, help="the interpreter")
    chosen, tests = parser.parse_known_args()
    try:
        interpreter = examine(chosen.python)
        python = environment(interpreter)
    except Failed as error:
        print(f"other_python: {error}", file=sys.stderr)
        return 2
    # A module in C that does not say it can do without the lock would switch it on again, for all.
    without = {"PYTHON_GIL": "0"} if interpreter.is_unlocked else {}
    return subprocess.run([python, "-m", "pytest", *tests], check=False, cwd=ROOT, env=os.environ | without).returncode


if __name__ == "__main__":
    sys.exit(output.run(main))
