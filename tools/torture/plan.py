"""The plan of a run: smbtorture's suites, and the tests that need their own share or option (special.toml)."""

from __future__ import annotations

import fnmatch
import subprocess
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ENDLESS = frozenset(["smb2.hold-oplock", "smb2.hold-sharemode", "smb2.check-sharemode", "smb2.scan"])
"""Suites that wait for a person, or try every existing number."""


@dataclass(frozen=True, slots=True)
class Special:
    """The way in which some tests are run instead of with their suite."""

    tests: tuple[str, ...]
    """Patterns of test names."""
    share: str | None = None
    arguments: tuple[str, ...] = ()
    timeout: float | None = None


@dataclass(slots=True)
class Plan:
    """The suites and tests to run, and the shares and servers that they need."""

    suites: dict[str, list[str]]
    """Tests by suite."""
    shares: dict[str, dict[str, Any]]
    """Further shares: volume (kind of file system), server (one of ``servers``) and share options."""
    servers: dict[str, dict[str, Any]]
    """Options of further servers by name."""
    specials: list[Special] = field(default_factory=list)

    def special(self, test: str) -> Special | None:
        """Return how a test is run specially, or None."""
        for special in self.specials:
            if any(fnmatch.fnmatchcase(test, pattern) for pattern in special.tests):
                return special
        return None

    def wanted_shares(self) -> dict[str, dict[str, Any]]:
        """Return the further shares.

        Shares of further servers are included only if a planned test needs them. The others always are, because tests
        know some of them by name.
        """
        found = (self.special(test) for tests in self.suites.values() for test in tests)
        used = {special.share for special in found if special is not None}
        return {name: given for name, given in self.shares.items() if "server" not in given or name in used}


def normal(name: str) -> str:
    """Return the reported name of a suite: smbtorture lists a suite of one test as ``smb2.x.x`` and reports it as
    ``smb2.x``.
    """
    parts = name.split(".")
    return ".".join(parts[:-1]) if len(parts) > 2 and parts[-1] == parts[-2] else name


def _list(option: str) -> list[str]:
    """Return the names that smbtorture prints, one per line; names may contain spaces."""
    return subprocess.run(["smbtorture", option], capture_output=True, text=True, check=True).stdout.splitlines()


def make_plan(wanted: list[str] | None) -> Plan:
    """Plan all suites, or the named ones (without or with ``smb2.``)."""
    document = tomllib.loads((HERE / "special.toml").read_text(encoding="utf-8"))
    tests = _list("--list")
    suites: dict[str, list[str]] = {}
    for suite in _list("--list-suites"):
        if suite.startswith("smb2.") and (not wanted or suite in wanted or suite.removeprefix("smb2.") in wanted):
            members = [normal(test) for test in tests if test == suite or test.startswith(suite + ".")]
            suites[suite] = list(dict.fromkeys(members))
    specials = [
        Special(tuple(entry["tests"]), entry.get("share"), tuple(entry.get("arguments", ())), entry.get("timeout"))
        for entry in document.get("run", [])
    ]
    return Plan(suites, document.get("share", {}), document.get("server", {}), specials)
