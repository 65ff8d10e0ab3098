"""A clean Debian, made once below build/ and copied for each test."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
BASE = ROOT / "build" / "debian" / "bookworm"
MIRROR = "http://deb.debian.org/debian"


def run(*command: str | Path) -> str:
    """What a program prints. It has to succeed."""
    ended = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def clean_debian() -> Path:
    """The folder of a Debian that nobody changes; made if it is not there. Needs root and debootstrap."""
    if not (BASE / "usr/bin/python3").exists():
        BASE.parent.mkdir(parents=True, exist_ok=True)
        made = BASE.with_suffix(".new")
        run("rm", "-rf", made)
        wanted = "--include=ca-certificates,python3,adduser"
        run("debootstrap", "--variant=minbase", wanted, "bookworm", made, MIRROR)
        made.rename(BASE)
    return BASE
