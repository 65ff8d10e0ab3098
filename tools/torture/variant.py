"""Runs under other conditions than the plain one: with required signing or encryption, over SMB Direct, on continuously
available or slow shares, or in a cluster.

Each is compared with the plain run; variants.toml must explain the differences.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.torture.outcome import Outcome, read_table

REASONS = Path(__file__).resolve().parent / "variants.toml"
CORE = tuple(
    f"smb2.{name}"
    for name in (
        *("create", "read", "rw", "lock", "lease", "oplock", "compound", "ioctl", "dir", "notify", "rename"),
        "streams",
    )
)
"""Suites that run over SMB Direct."""
ABOUT_CHANNELS = frozenset(["smb2.multichannel", "smb2.session", "smb2.replay", "smb2.lease", "smb2.oplock"])
"""Suites that run over TCP and SMB Direct mixed, because their sessions have more than one connection."""
LASTING = frozenset(
    f"smb2.{name}"
    for name in (
        *("durable-open", "durable-open-disconnect", "durable-v2-open", "durable-v2-delay"),
        *("lease", "multichannel", "replay", "session"),
    )
)
"""Suites that run on continuously available shares: handles and sessions that outlast connections."""
ABOUT_SECURITY = frozenset(["smb2.session", "smb2.session-require-signing"])
"""Suites whose tests choose signing and encryption themselves."""

SLOW = frozenset(
    f"smb2.{name}"
    for name in (
        *("lease", "oplock", "kernel-oplocks", "notify", "notify-inotify", "replay", "multichannel", "timestamps"),
        *("durable-v2-delay", "bench", "maxfid", "aio_delay", "change_notify_disabled", "maximum_allowed", "twrp"),
    )
)
"""Suites that mostly wait for breaks to time out, or need the properties of a special share."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The conditions of a run."""

    name: str = ""
    """Empty for the plain run."""
    signing: bool = False
    encryption: bool = False
    fabric: str | None = None
    available: bool = False
    """Shares are continuously available."""
    cluster: bool = False
    """Shares are services of two nodes, at virtual addresses."""
    slow: bool = False
    """Shares are declared as slow storage (docs/slow-storage.md)."""

    @property
    def client_options(self) -> list[str]:
        """Options of smbtorture."""
        options = []
        if self.signing:
            options.append("--option=clientsigning=required")
        if self.encryption:
            options.append("--client-protection=encrypt")
        return options

    @property
    def server_options(self) -> dict[str, Any]:
        """Options of [server]."""
        options = {}
        if self.signing:
            options["require_signing"] = True
        if self.encryption:
            options["require_encryption"] = True
        return options

    @property
    def share_options(self) -> dict[str, Any]:
        """Options of every share."""
        options = {"continuous_availability": self.available, "slow_storage": self.slow}
        return {key: True for key, value in options.items() if value}

    def wants(self, suite: str) -> bool:
        """Return whether ``suite`` runs when none is named."""
        if self.fabric == "mixed":
            return suite in ABOUT_CHANNELS
        if self.slow:
            return suite in LASTING or suite in CORE
        if self.available:
            return suite in LASTING
        if self.fabric is not None:
            return suite in CORE
        return not self.name or suite not in ABOUT_SECURITY


def make(
    signing: bool = False,
    encryption: bool = False,
    fabric: str | None = None,
    available: bool = False,
    cluster: bool = False,
    slow: bool = False,
) -> Variant:
    """Make a variant whose name states its conditions: ``iwarp``, ``signing``, ``iwarp-encryption``.

    A cluster's shares are continuously available.
    """
    where = "cluster" if cluster else "available" if available else None
    flags = {"slow": slow, "signing": signing, "encryption": encryption}
    parts = [fabric, where, *(name for name, value in flags.items() if value)]
    name = "-".join(part for part in parts if part)
    return Variant(name, signing, encryption, fabric, available or cluster, cluster, slow)


def reasons(variant: str) -> dict[str, str]:
    """Return why tests that pass plainly do not pass in this variant, by test."""
    document = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    return {str(test): " ".join(str(reason).split()) for test, reason in document.get(variant, {}).items()}


def worse(outcomes: Iterable[Outcome], plain: Path) -> list[Outcome]:
    """Return the outcomes of tests that pass plainly and not here."""
    if not plain.exists():
        return []
    passed = {row["test"] for row in read_table(plain) if row["result"] == "pass"}
    return [outcome for outcome in outcomes if outcome.test in passed and not outcome.passed]


def markdown(results: dict[str, list[Outcome]], plain: Path) -> str:
    """Return the page: for each variant the differences from the plain run, and the reasons."""
    passed = {row["test"] for row in read_table(plain) if row["result"] == "pass"} if plain.exists() else set()
    lines = [
        "# smbtorture under other conditions",
        "",
        "Written by `python -m tools.torture --update` with `--signing required`, `--encryption required`, `--fabric`,",
        "`--available`, `--slow` or `--cluster`: the tests of [smbtorture.md](smbtorture.md), with both sides",
        "requiring signing or encryption; over SMB Direct through `smb3server proxy`, mixed: connections by turns over",
        "TCP and iWARP; on shares with `continuous_availability = true`, where handles are persistent; on shares with",
        "`slow_storage = true`; on continuously available shares of a two-node cluster, each node with one of them at",
        "its virtual address.",
    ]
    for name, outcomes in sorted(results.items()):
        why = reasons(name)
        rows = sorted(outcomes, key=lambda outcome: outcome.test)
        differing = [row for row in rows if row.passed != (row.test in passed)]
        lines += ["", f"## {name}", ""]
        lines.append(f"{sum(row.passed for row in rows)} of {len(rows)} tests pass; {len(differing)} differ.")
        if differing:
            lines.append("")
        for row in differing:
            reason = "passes only here" if row.passed else why.get(row.test, f"not explained: {row.reason}")
            lines.append(f"- {row.test}: {row.result}. {reason}")
    return "\n".join(lines) + "\n"
