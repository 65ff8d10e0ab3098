"""The page that tells how Microsoft's suites judge this server: docs/microsoft-suites.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tools.wpts.table import PLATFORMS, SUITES

Rows = list[dict[str, str]]
_ORDER = ("passed", "failed", "not applicable")


def rows_of(path: Path) -> Rows:
    """Return the rows of a committed table, by the names of its columns."""
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    names = first.split("\t")
    return [dict(zip(names, line.split("\t"), strict=True)) for line in lines]


def _counts(rows: Rows, column: str) -> str:
    found = Counter(row[column] for row in rows if row[column])
    return " / ".join(str(found[outcome]) for outcome in _ORDER) if found else ""


def _grouped(rows: Rows) -> list[str]:
    """Return a line for each reason, with the cases that it explains."""
    by_reason: dict[str, list[str]] = {}
    for row in rows:
        by_reason.setdefault(row["why"], []).append(f"`{row['case']}`")
    return [f"| {why} | {len(names)} | {', '.join(names)} |" for why, names in sorted(by_reason.items())]


def markdown(tables: Mapping[tuple[str, str], Rows], decisions: str) -> str:
    """Return the whole page. ``tables``: by suite and platform. ``decisions``: a text of its own."""
    lines = [
        "# Microsoft's test suites",
        "",
        "Written by `make wpts WPTS=FOLDER WPTS_ARGS=--update`. FOLDER has Microsoft's file-server suites (Windows",
        "Protocol Test Suites), built to run on Linux. They are no part of this repository: without the folder the",
        "command says so and does nothing. The tables with every case are `tests/conformance/wpts-*.tsv`. A run fails",
        "if a case that passed does not, or fails without a reason, or if a reason explains nothing any more.",
        "",
        "| suite | judged as | passed / failed / not applicable | Samba 4.25.1 |",
        "|---|---|---|---|",
    ]
    for suite, protocol in SUITES.items():
        for platform in PLATFORMS:
            rows = tables.get((suite, platform))
            if rows:
                lines.append(
                    f"| {protocol} ({len(rows)}) | {platform} | {_counts(rows, 'here')} | {_counts(rows, 'samba')} |"
                )
    for (suite, platform), rows in tables.items():
        failed = [row for row in rows if row["here"] == "failed"]
        lines += ["", f"## {SUITES[suite]}, judged as {platform}: failed ({len(failed)})", ""]
        if failed:
            lines += ["| why | cases | which |", "|---|---|---|", *_grouped(failed)]
        else:
            lines += ["None."]
    return "\n".join([*lines, "", decisions.strip(), ""])
