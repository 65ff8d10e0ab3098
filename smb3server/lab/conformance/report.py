"""The results of a run: as a table on the terminal, JSON, JUnit XML, a page of HTML, and a table of Markdown."""

from __future__ import annotations

import html
import textwrap
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from smb3server.lab.conformance.verdict import Result, Verdict

_CONTROL = {number: f"\\x{number:02x}" for number in range(32) if number not in (9, 10)} | {127: "\\x7f"}
_WIDTH = 116
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; overflow-wrap: anywhere; }
th, td { text-align: left; vertical-align: top; padding: .35em .6em; border-bottom: 1px solid #ddd; }
th { position: sticky; top: 0; background: #fff; }
.verdict { white-space: nowrap; font-weight: 600; }
.pass { color: #17692c; } .fail { color: #b3160c; } .inconclusive { color: #8a5a00; } .not-applicable { color: #666; }
code, pre { font: 13px/1.4 ui-monospace, monospace; }
pre { overflow-x: auto; background: #f6f6f6; padding: .6em; }
summary { cursor: pointer; color: #555; }
"""


@dataclass(frozen=True, slots=True)
class Run:
    """The results of one target."""

    target: str
    fabric: str
    began: str
    """Date and time, for people."""
    seconds: float
    results: Sequence[Result]

    @property
    def counts(self) -> Counter[Verdict]:
        """How often each verdict was given."""
        return Counter(result.verdict for result in self.results)


def passed(runs: Iterable[Run]) -> bool:
    """Whether no rule was found broken, and every rule could be judged."""
    return not any(run.counts[Verdict.FAIL] or run.counts[Verdict.INCONCLUSIVE] for run in runs)


def summary(run: Run) -> str:
    """Return one line that counts the verdicts."""
    counted = ", ".join(f"{run.counts[verdict]} {verdict.value}" for verdict in Verdict if run.counts[verdict])
    return f"{run.target}: {counted or 'no cases'} in {run.seconds:.1f} s"


def text(runs: Sequence[Run], evidence: bool = False) -> str:
    """Return the table for a terminal. What did not pass shows its rule and its evidence; ``evidence`` shows all."""
    lines: list[str] = []
    for run in runs:
        lines.append(f"{run.target} (fabric {run.fabric}, {run.began})")
        for result in run.results:
            lines.append(f"  {result.verdict.value:14} {result.name}  [{result.section}]")
            shown = result.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE)
            if result.reason:
                lines += _wrapped(result.reason)
            if shown:
                lines += _wrapped("rule: " + result.rule)
            if shown or evidence:
                lines += [f"                   {line}" for line in result.evidence]
        lines += ["", summary(run), ""]
    return "\n".join(lines).translate(_CONTROL)


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, _WIDTH, initial_indent=" " * 17, subsequent_indent=" " * 19)


def as_json(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return everything, for programs."""
    return [
        {
            "target": run.target,
            "fabric": run.fabric,
            "began": run.began,
            "seconds": round(run.seconds, 3),
            "counts": {verdict.value: run.counts[verdict] for verdict in Verdict},
            "cases": [
                {
                    "name": result.name,
                    "suite": result.suite,
                    "section": result.section,
                    "rule": result.rule,
                    "verdict": result.verdict.value,
                    "reason": result.reason,
                    "evidence": result.evidence,
                    "seconds": round(result.seconds, 3),
                }
                for result in run.results
            ],
        }
        for run in runs
    ]


def junit(runs: Sequence[Run]) -> str:
    """Return JUnit XML: a suite per fabric, a test case per rule."""
    root = ET.Element("testsuites", name="smb3server conformance")
    for run in runs:
        suite = ET.SubElement(
            root,
            "testsuite",
            name=f"{run.target} ({run.fabric})",
            tests=str(len(run.results)),
            failures=str(run.counts[Verdict.FAIL]),
            errors=str(run.counts[Verdict.INCONCLUSIVE]),
            skipped=str(run.counts[Verdict.NOT_APPLICABLE]),
            time=f"{run.seconds:.3f}",
        )
        for result in run.results:
            entry = ET.SubElement(
                suite,
                "testcase",
                classname=f"{run.fabric}.{result.suite}",
                name=result.name,
                time=f"{result.seconds:.3f}",
            )
            kind = {Verdict.FAIL: "failure", Verdict.INCONCLUSIVE: "error", Verdict.NOT_APPLICABLE: "skipped"}
            if result.verdict in kind:
                found = ET.SubElement(entry, kind[result.verdict], message=result.reason.translate(_CONTROL))
                found.text = f"[{result.section}] {result.rule}"
            output = "\n".join([f"[{result.section}] {result.rule}", *result.evidence])
            ET.SubElement(entry, "system-out").text = output.translate(_CONTROL)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def page(runs: Sequence[Run]) -> str:
    """Return a page of HTML that needs nothing else."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<title>SMB Direct conformance</title><style>{_STYLE}</style>",
        "<h1>SMB Direct conformance</h1>",
    ]
    for run in runs:
        parts += [f"<h2>{_escaped(run.target)}</h2>", f"<p>{_escaped(summary(run))}, {_escaped(run.began)}.</p>"]
        parts.append(
            "<table><tr><th style='width: 36%'>Rule<th style='width: 12%'>Section<th style='width: 12%'>Verdict"
        )
        parts.append("<th>Evidence</tr>")
        parts += [_row(result) for result in run.results]
        parts.append("</table>")
    return "\n".join([*parts, "</html>", ""])


def _row(result: Result) -> str:
    kind = result.verdict.value.replace(" ", "-")
    opened = " open" if result.verdict is Verdict.FAIL else ""
    return (
        f"<tr><td><code>{_escaped(result.name)}</code><br>{_escaped(result.rule)}"
        f"<td>{_escaped(result.section)}<td class='verdict {kind}'>{_escaped(result.verdict.value)}"
        f"<td>{_escaped(result.reason)}"
        f"<details{opened}><summary>{len(result.evidence)} lines, {result.seconds:.2f} s</summary>"
        f"<pre>{_escaped(chr(10).join(result.evidence))}</pre></details></tr>"
    )


def _escaped(given: str) -> str:
    return html.escape(given.translate(_CONTROL))


def markdown(runs: Sequence[Run]) -> str:
    """Return a table for each suite, with one row per rule and one column of verdicts per run. A single run shows the
    reasons, too."""
    lines: list[str] = []
    suite = ""
    for results in zip(*(run.results for run in runs), strict=True):
        first = results[0]
        if first.suite != suite:
            suite = first.suite
            names = [run.fabric for run in runs]
            lines += ["", f"### {suite}", ""] if lines else [f"### {suite}", ""]
            lines += [f"| case | section | rule | {' | '.join(names)} |", f"| --- | --- | --- |{' --- |' * len(names)}"]
        verdicts = [result.verdict.value for result in results]
        if len(runs) == 1 and first.reason:
            verdicts = [f"{first.verdict.value}: {first.reason}"]
        cells = [f"`{first.name}`", first.section, first.rule, *verdicts]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines).translate(_CONTROL)
