"""Run ``smb3server conformance`` against ksmbd in a guest, and judge what it finds.

All differences that are known were compared with the specification by hand, and are in ``ksmbd_differences.toml``. What
else fails is tried again in another guest, and cases run one at a time: siw can lose the first message of a connection
(docs/kernel-lab.md). A difference that is found each time and not known is a complaint, and so is a known one that is
gone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from smb3server.lab.bench.page import rewrite
from smb3server.process import output
from tools.kernel_lab.cases import Case
from tools.kernel_lab.ksmbd_guest import PASSWORD, SHARE, USER, serving
from tools.kernel_lab.network import TAP, tap_namespace

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parents[1] / "docs" / "conformance.md"
DIFFERENCES = HERE / "ksmbd_differences.toml"
PART = "ksmbd"
"""What stands between these markers of ``DOCUMENT`` is written by ``main``."""
ADDRESS = "10.77.0.2"
ATTEMPTS = 3
FOUND = "found.json"
_FABRICS = {"siw": ("iwarp", 5445), "rxe": ("roce", 445)}
_LIMIT = 900
"""Seconds of one run of the command. Its timers are real."""
_SHOWN = ("pass", "fail", "not applicable", "inconclusive")


class Difference(NamedTuple):
    """One difference that was compared with the specification by hand."""

    name: str
    """Of the case."""
    why: str
    """What the kernel does, and where."""
    sometimes: bool = False
    """Whether it depends on what happens first."""


def differences() -> list[Difference]:
    """Return the known differences."""
    return [Difference(**each) for each in tomllib.loads(DIFFERENCES.read_text())["difference"]]


def explore(case: Case, out: Path) -> None:
    """Run all cases against ksmbd; the inconclusive ones, and those that fail and are not known to, again.

    Writes ``FOUND``.

    Raises ``ServerError`` and ``NetworkError``.
    """
    out.mkdir(parents=True)
    secret = out / "password"
    secret.touch(0o600)
    secret.write_text(PASSWORD + "\n")
    known = {each.name for each in differences()}
    found: dict[str, dict[str, Any]] = {}
    kernel = ""
    names: list[str] = []
    with tap_namespace() as prefix:
        for attempt in range(ATTEMPTS):
            guest = out / f"guest-{attempt}"
            with serving(prefix, guest, TAP, ADDRESS, case.protocol, case.mtu, 1):
                kernel = (guest / "kernel").read_text().strip()
                found |= {each["name"]: each for each in _run(prefix, case.protocol, out, attempt, names)}
            names = [name for name, each in found.items() if each["verdict"] == "inconclusive" or _unknown(each, known)]
            if not names:
                break
    (out / FOUND).write_text(json.dumps({"kernel": kernel, "cases": list(found.values())}, indent=1))


def _run(prefix: Sequence[str], protocol: str, out: Path, attempt: int, names: Sequence[str]) -> list[dict[str, Any]]:
    fabric, port = _FABRICS[protocol]
    results = out / f"attempt-{attempt}.json"
    command = [*prefix, sys.executable, "-m", "smb3server", "conformance"]
    command += ["--target", ADDRESS, "--fabric", fabric, "--port", str(port), "--json", str(results)]
    command += ["--user", USER, "--password-file", str(out / "password"), "--share", SHARE]
    command += ["--html", str(out / f"attempt-{attempt}.html"), "--at-once", "1" if names else "4", "--settle", "0.2"]
    for name in names:
        command += ["--cases", name]
    with (out / f"attempt-{attempt}.txt").open("wb") as log:
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, timeout=_LIMIT, check=False
        )
    if not results.exists():
        return []
    cases: list[dict[str, Any]] = json.loads(results.read_text())[0]["cases"]
    return cases


def judge(out: Path) -> list[str]:
    """Return what is wrong with a run: it did not come to an end, or found other differences than those known."""
    if not (out / FOUND).exists():
        return [f"no results; see {out}"]
    cases = {each["name"]: each for each in json.loads((out / FOUND).read_text())["cases"]}
    known = {each.name for each in differences()}
    complaints = [f"{name}: {each['reason']}" for name, each in cases.items() if _unknown(each, known)]
    steady = sorted(each.name for each in differences() if not each.sometimes)
    gone = [name for name in steady if cases.get(name, {}).get("verdict") == "pass"]
    return complaints + [f"{name}: a known difference that is gone" for name in gone]


def _unknown(case: dict[str, Any], known: set[str]) -> bool:
    return case["verdict"] in ("fail", "inconclusive") and case["name"] not in known


def table(runs: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Return the differences found by runs over siw and rxe, as Markdown. Each run has its protocol and results."""
    kernel = runs[0][1]["kernel"]
    cases = {protocol: {each["name"]: each for each in results["cases"]} for protocol, results in runs}
    lines = [f"ksmbd of Linux {kernel}. Each row was compared with the specification and with the kernel's source.", ""]
    counts = {
        protocol: {verdict: sum(1 for each in named.values() if each["verdict"] == verdict) for verdict in _SHOWN}
        for protocol, named in cases.items()
    }
    for protocol, count in counts.items():
        lines.append(
            f"- {protocol}: " + ", ".join(f"{number} {verdict}" for verdict, number in count.items() if number)
        )
    lines += ["", "| case | section | over | what came | why |", "| --- | --- | --- | --- | --- |"]
    for name, why, _ in differences():
        failing = [each for each, named in cases.items() if named[name]["verdict"] in ("fail", "inconclusive")]
        if failing:
            case = cases[failing[0]][name]
            reason = case["reason"].replace("|", "\\|")
            lines.append(f"| `{name}` | {case['section']} | {', '.join(failing)} | {reason} | {why} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table of differences into docs/conformance.md."""
    parser = argparse.ArgumentParser(prog="python -m tools.kernel_lab.conformance", description=main.__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="FOLDER", help="of a case conformance-ksmbd-...")
    options = parser.parse_args(arguments)
    runs = [(each.name.rpartition("-")[2], json.loads((each / FOUND).read_text())) for each in options.runs]
    rewrite(DOCUMENT, table(runs), PART)
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
