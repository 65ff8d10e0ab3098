"""The plan of a run: smbtorture's suites, and the tests that need their own share or option (special.toml)."""

from __future__ import annotations

import fnmatch
import subprocess
import tomllib
from dataclasses import dataclass, field
from typing import Any

from tools.torture.release import Release

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


def _list(prefix: list[str], option: str) -> list[str]:
    """Return the names that smbtorture prints, one per line; names may contain spaces."""
    command = [*prefix, "smbtorture", option]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def make_plan(wanted: list[str] | None, release: Release, prefix: list[str]) -> Plan:
    """Plan all suites, or the named ones (without or with ``smb2.``). ``prefix``: the first words of commands."""
    tests = _list(prefix, "--list")
    suites: dict[str, list[str]] = {}
    for suite in _list(prefix, "--list-suites"):
        if suite.startswith("smb2.") and (not wanted or suite in wanted or suite.removeprefix("smb2.") in wanted):
            members = [normal(test) for test in tests if test == suite or test.startswith(suite + ".")]
            suites[suite] = list(dict.fromkeys(members))
    return Plan(suites, *special_needs(release))


def special_needs(release: Release) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]], list[Special]]:
    """Return the further shares and servers, and the ways in which some tests run. The first file counts first."""
    shares: dict[str, dict[str, Any]] = {}
    servers: dict[str, dict[str, Any]] = {}
    specials: list[Special] = []
    for file in release.specials:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
        shares = document.get("share", {}) | shares
        servers = document.get("server", {}) | servers
        specials += [
            Special(tuple(entry["tests"]), entry.get("share"), tuple(entry.get("arguments", ())), entry.get("timeout"))
            for entry in document.get("run", [])
        ]
    return shares, servers, specials
