"""The Python that runs our server: identify it, find out whether it was built with optimisation, and prepare it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import NamedTuple

from smb3server.lab.bench.errors import BenchError

_PROBE = """
import json, os, platform, sys, sysconfig
print(json.dumps({
    "path": os.path.realpath(sys.executable), "version": platform.python_version(),
    "implementation": platform.python_implementation(), "prefix": sys.base_prefix,
    "arguments": sysconfig.get_config_var("CONFIG_ARGS") or ""}))
"""
_SERVER = "import smb3server.cli.server.serving"
_MODULES = "from smbdirect import native; print(native.report())"


class Interpreter(NamedTuple):
    """A Python interpreter."""

    path: str
    version: str
    implementation: str
    built: str
    """How it was built: "optimised", "distribution" (all of those are, though Debian's does not say so), or "not
    optimised".
    """

    def __str__(self) -> str:
        how = {"optimised": "built with --enable-optimizations", "distribution": "the distribution's"}
        return (
            f"{self.implementation} {self.version} ({self.path}, {how.get(self.built, 'built without optimisation')})"
        )

    @property
    def warning(self) -> str:
        """Warning for the person who measures with it; empty if there is none."""
        if self.built != "not optimised":
            return ""
        return (
            f"our server runs on {self}: it takes 12 to 27 % more processor time than on an optimised Python; "
            "--python /usr/bin/python3 measures with the distribution's"
        )


def classify(implementation: str, prefix: str, arguments: str) -> str:
    """Return how an interpreter was built, judging by ``sys.base_prefix`` and the arguments of configure."""
    if implementation != "CPython" or "--enable-optimizations" in arguments:
        return "optimised"
    return "distribution" if prefix == "/usr" else "not optimised"


def identify(python: str) -> Interpreter:
    """Identify the interpreter ``python``, a path or a name in PATH. Raises ``BenchError`` if it does not run."""
    try:
        ended = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, check=True)
        said = json.loads(ended.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):
        raise BenchError(f"{python} is not a Python that runs") from None
    built = classify(said["implementation"], said["prefix"], said["arguments"])
    return Interpreter(said["path"], said["version"], said["implementation"], built)


def _lacks(python: str, root: Path) -> str:
    """Return why our server cannot run on ``python``; empty if it can."""
    ended = subprocess.run(
        [python, "-c", _SERVER],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    return (ended.stderr.strip().splitlines() or ["no reason given"])[-1] if ended.returncode else ""


def modules_in_c(python: str, root: Path) -> str:
    """Return which of the optional modules in C our server uses on ``python``. Raises ``BenchError``."""
    try:
        command = [python, "-c", _MODULES]
        environment = os.environ | {"PYTHONPATH": str(root)}
        ended = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BenchError(f"our server does not run on {python}: {error}") from None
    return ended.stdout.strip()


def environment_key(found: Interpreter, requirements: list[str]) -> str:
    """Return the name of the virtual environment for an interpreter and its required packages."""
    digest = hashlib.sha256("\n".join([found.path, found.version, *requirements]).encode()).hexdigest()
    return f"{found.version}-{digest[:12]}"


def prepare(python: str, root: Path) -> str:
    """Return the path of a ``python`` that has the packages that our server needs.

    If ``python`` lacks them, the result is that of a virtual environment below build/ in the checkout ``root``. It is
    made with pip and kept for the next run. Raises ``BenchError`` if that fails.
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
