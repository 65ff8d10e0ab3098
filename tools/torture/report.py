"""Compare outcomes with Samba's and with the expected ones, and write the page in docs/."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tools.torture.outcome import Outcome, read_table

HERE = Path(__file__).resolve().parent


def samba_passes() -> dict[str, bool]:
    """Return whether each test passes on Samba 4.17, plainly or with the shares and options that it needs (pass2)."""
    rows = read_table(HERE / "baseline.tsv")
    return {row["test"]: row["result"] == "pass" or row["pass2"].startswith("pass") for row in rows}


def reasons() -> dict[str, str]:
    """Return why tests do not pass, by test."""
    document = tomllib.loads((HERE / "reasons.toml").read_text(encoding="utf-8"))
    return {str(test): str(reason) for test, reason in document.items()}


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


def markdown(outcomes: list[Outcome]) -> str:
    """Return the whole page."""
    samba, why = samba_passes(), reasons()
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
        "# smbtorture 4.17",
        "",
        "Written by `make torture`, which runs every `smb2.*` suite of Samba's smbtorture 4.17 against this server and",
        "compares with the verdicts of Samba 4.17 on the same kind of machine (`tools/torture/baseline.tsv`).",
        "",
        f"{len(outcomes)} tests: {totals}. Samba passes {sum(samba.values())} of {len(samba)}.",
        "",
        *_section("Pass here, not on Samba", ahead),
        *_section("Pass on Samba, not here", missing),
        *_section("Pass on neither", rest),
    ]
    return "\n".join(lines).rstrip() + "\n"
