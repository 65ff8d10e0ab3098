"""Compare outcomes with Samba's and with the expected ones, and write the page in docs/."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tools.torture.outcome import Outcome, read_table
from tools.torture.release import DISTRIBUTION, ROOT, Release

_SECTION = re.compile(r"MS-[A-Z0-9]+ \d+(\.\d+)+")


def samba_passes(release: Release) -> dict[str, bool]:
    """Return whether each test passes on Samba, plainly or with the shares and options that it needs (pass2)."""
    if not release.baseline.exists():
        return {}
    rows = read_table(release.baseline)
    return {row["test"]: row["result"] == "pass" or row.get("pass2", "").startswith("pass") for row in rows}


def reasons(release: Release) -> dict[str, str]:
    """Return why tests do not pass, by test."""
    files = dict.fromkeys((DISTRIBUTION.reasons, release.reasons))
    documents = [tomllib.loads(file.read_text(encoding="utf-8")) for file in files]
    return {str(test): str(reason) for document in documents for test, reason in document.items()}


def behind(outcomes: Iterable[Outcome], release: Release) -> list[Outcome]:
    """Return the outcomes of tests that pass on Samba and not here."""
    samba = samba_passes(release)
    return [outcome for outcome in outcomes if samba.get(outcome.test) and not outcome.passed]


def without_section(outcomes: Iterable[Outcome], release: Release) -> list[Outcome]:
    """Return the outcomes that need a reason which names a section of a specification, and have none."""
    if not release.cites:
        return []
    why = reasons(release)
    return [outcome for outcome in behind(outcomes, release) if not _SECTION.search(why.get(outcome.test, ""))]


def regressions(outcomes: Iterable[Outcome], expected: Path) -> list[Outcome]:
    """Return the outcomes that do not pass although the file of expectations says so."""
    if not expected.exists():
        return []
    passed = {row["test"] for row in read_table(expected) if row["result"] == "pass"}
    return [outcome for outcome in outcomes if outcome.test in passed and not outcome.passed]


def merged(outcomes: list[Outcome], expected: Path) -> list[Outcome]:
    """Return ``outcomes``, with those of ``expected`` for tests that were not run."""
    new = {outcome.test for outcome in outcomes}
    old = read_table(expected) if expected.exists() else []
    kept = [
        Outcome(row["suite"], row["test"], row["result"], float(row["secs"] or 0), row["how"], row["reason"])
        for row in old
        if row["test"] not in new
    ]
    return [*kept, *outcomes]


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"## {title} ({len(lines)})", "", *(lines or ["None."]), ""]


def markdown(outcomes: list[Outcome], release: Release) -> str:
    """Return the whole page."""
    samba, why = samba_passes(release), reasons(release)
    outcomes = sorted(outcomes, key=lambda outcome: (outcome.suite, outcome.test))
    counts = Counter(outcome.result for outcome in outcomes)
    totals = ", ".join(f"{count} {result}" for result, count in counts.most_common())
    ahead = [f"- {outcome.test}" for outcome in outcomes if outcome.passed and not samba.get(outcome.test)]
    missing: list[str] = []
    rest: list[str] = []
    for outcome in outcomes:
        if not outcome.passed:
            reason = why.get(outcome.test) or why.get(outcome.suite) or outcome.reason or outcome.result
            line = f"- {outcome.test}: {outcome.result}. {' '.join(reason.split())}"
            (missing if samba.get(outcome.test) else rest).append(line)
    lines = [
        f"# smbtorture {release.version}",
        "",
        f"Written by `{release.command}`, which runs every `smb2.*` suite of Samba's smbtorture {release.version} "
        "against this server and",
        f"compares with the verdicts of Samba {release.version} on the same kind of machine "
        f"(`{release.baseline.relative_to(ROOT)}`).",
        "",
        f"{len(outcomes)} tests: {totals}. Samba passes {sum(samba.values())} of {len(samba)}.",
        "",
        *_section("Pass here, not on Samba", ahead),
        *_section("Pass on Samba, not here", missing),
        *_section("Pass on neither", rest),
    ]
    return "\n".join(lines).rstrip() + "\n"
