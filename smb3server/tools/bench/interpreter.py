"""The Python that our server runs on: which one it is, whether it was built with optimisation, and making one ready."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import NamedTuple

from smb3server.tools.bench.errors import BenchError

_PROBE = """
import json, os, platform, sys, sysconfig
print(json.dumps({
    "path": os.path.realpath(sys.executable), "version": platform.python_version(),
    "implementation": platform.python_implementation(), "prefix": sys.base_prefix,
    "arguments": sysconfig.get_config_var("CONFIG_ARGS") or ""}))
"""
_SERVER = "import smb3server.cli.main"


class Interpreter(NamedTuple):
    path: str
    version: str
    implementation: str
    built: str
    """How: "optimised", "distribution" (which all are, though Debian's does not say so), or "not optimised"."""

    def __str__(self) -> str:
        how = {"optimised": "built with --enable-optimizations", "distribution": "the distribution's"}
        return (
            f"{self.implementation} {self.version} ({self.path}, {how.get(self.built, 'built without optimisation')})"
        )

    @property
    def warning(self) -> str:
        """What to tell a person who measures with it; empty if there is nothing."""
        if self.built != "not optimised":
            return ""
        return (
            f"our server runs on {self}: it takes 12 to 27 % more processor time than on an optimised Python; "
            "--python /usr/bin/python3 measures with the distribution's"
        )


def classify(implementation: str, prefix: str, arguments: str) -> str:
    """Say how an interpreter was built, from ``sys.base_prefix`` and configure's arguments."""
    if implementation != "CPython" or "--enable-optimizations" in arguments:
        return "optimised"
    return "distribution" if prefix == "/usr" else "not optimised"


def identify(python: str) -> Interpreter:
    """Ask the interpreter ``python`` (a path, or a name in PATH) what it is. Raises ``BenchError`` if it is none."""
    try:
        ended = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, check=True)
        said = json.loads(ended.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):
        raise BenchError(f"{python} is no Python that runs") from None
    built = classify(said["implementation"], said["prefix"], said["arguments"])
    return Interpreter(said["path"], said["version"], said["implementation"], built)


def _lacks(python: str, root: Path) -> str:
    """Return why our server does not run on ``python``; empty if it does."""
    ended = subprocess.run(
        [python, "-c", _SERVER],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    return (ended.stderr.strip().splitlines() or ["no reason given"])[-1] if ended.returncode else ""


def environment_key(found: Interpreter, requirements: list[str]) -> str:
    """Name the virtual environment for an interpreter and what has to be in it."""
    digest = hashlib.sha256("\n".join([found.path, found.version, *requirements]).encode()).hexdigest()
    return f"{found.version}-{digest[:12]}"


def prepare(python: str, root: Path) -> str:
    """Return a path of ``python`` that has the packages our server needs.

    Where it lacks them, that is the one of a virtual environment below build/ in the checkout ``root``, which is made
    with pip and kept for the next time. Raises ``BenchError`` if that cannot be done.
    """
    found = identify(python)
    lack = _lacks(python, root)
    if not lack:
        return python
    if not (root / "pyproject.toml").exists():
        raise BenchError(f"our server does not run on {python}: {lack}; only a checkout makes environments for others")
    requirements: list[str] = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    folder = root / "build" / "bench-python" / environment_key(found, requirements)
    inside = str(folder / "bin" / "python")
    if not Path(inside).exists() or _lacks(inside, root):
        steps = (
            [python, "-m", "venv", "--clear", str(folder)],
            [inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements],
        )
        for step in steps:
            ended = subprocess.run(step, capture_output=True, text=True, check=False)
            if ended.returncode:
                said = (ended.stderr or ended.stdout).strip()
                raise BenchError(f"no environment for {python} (Debian: python3-venv):\n{said}")
    if lack := _lacks(inside, root):
        raise BenchError(f"our server does not run on {python}: {lack}")
    return inside
