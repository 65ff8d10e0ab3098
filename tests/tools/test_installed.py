"""What users are told to run works from an installed wheel: without this checkout's tools, and with its own files."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from smb3server.cli.tree import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("smbdirect", "smb3server", "witness")
NOT_INSTALLED = ("tools", "tests", "scapy", "pytest", "hypothesis", "smbprotocol")
CAPTURE = min((ROOT / "pcaps").rglob("*.pcap*"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command ``smb3server`` in a process that has nothing but what is installed with it."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({NOT_INSTALLED!r}))\n"
        "from smb3server.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_commands_need_nothing_that_is_not_installed(command: str) -> None:
    ended = run(command, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"Usage: smb3server {command} ")


def test_a_capture_is_judged() -> None:
    ended = run("pcap", str(CAPTURE))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"{CAPTURE}: ok (" in ended.stdout


def test_the_help_names_every_command() -> None:
    said = " ".join(run("--help").stdout.split())
    assert all(f" {name} {entry.help}" in said for name, entry in COMMANDS.items() if not entry.hidden)
    assert "verbs-check" not in said


def test_files_beside_the_modules_are_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    patterns = [(ROOT / package.replace(".", "/"), name) for package, names in settings.items() for name in names]
    matched = [list(folder.glob(name)) for folder, name in patterns]
    assert all(matched)
    known = {str(path.relative_to(ROOT)) for paths in matched for path in paths}
    found = {path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()}
    others = {path for path in found if path.suffix not in (".py", ".pyc") and not is_native(path)}
    assert {str(path.relative_to(ROOT)) for path in others} == known


def is_native(path: Path) -> bool:
    """Return whether this is a module in C, or its source, which a wheel need not have."""
    return path.suffix == ".so" or path.match("_*.c")
