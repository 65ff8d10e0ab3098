"""Write the results as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from smb3server.lab.bench import page
from smb3server.lab.bench.figures import Sample
from smb3server.lab.bench.idle import BUSY_CASE
from tools.bench.report.plan import SAMBA, TCP, Point
from tools.bench.report.store import Results


def rows(results: Results) -> list[page.Row]:
    """Return the cases of the table that were measured, with as many rounds of ours as of Samba's."""
    sides: dict[str, dict[str, tuple[Point, list[Sample]]]] = {}
    for point, samples in results.of("table").items():
        sides.setdefault(point.case.name, {})[point.target] = (point, samples)
    found = []
    for side in sides.values():
        if TCP in side:
            point, ours = side[TCP]
            theirs = side[SAMBA][1] if SAMBA in side else []
            count = min(len(ours), len(theirs)) or len(ours)
            found.append(page.Row(point.case, ours[:count], theirs[:count]))
    # An interrupted run may have cases of ours alone; the table has columns for both, or for one.
    return [row for row in found if row.theirs] or found


def _of(samples: Sequence[Sample], value: Callable[[Sample], float]) -> str:
    return page.number(median(value(sample) for sample in samples)) if samples else ""


def _crowds(results: Results) -> str:
    lines = [
        ["case", "server", "unit", "rate", "µs/op", "median latency, µs", "99th percentile", "fairness", "least ÷ most"]
    ]
    for point, samples in results.of("connections").items():
        lines.append([point.case.name, point.target, point.case.unit])
        lines[-1] += [
            _of(samples, value)
            for value in (
                lambda sample: sample.rate,
                lambda sample: sample.cost,
                lambda sample: sample.middle,
                lambda sample: sample.late,
                lambda sample: sample.fairness,
                lambda sample: sample.least,
            )
        ]
    return page.grid(lines)


def _idle(results: Results) -> str:
    busy = f"{BUSY_CASE.name} beside them"
    lines = [["server", "idle connections", "KiB each", f"{busy}, per s", "without", "µs/op beside them", "without"]]
    for name, found in results.idle.items():
        lines.append([name, f"{found.connections:,}", page.number(found.kibibytes)])
        for value in (lambda sample: sample.rate, lambda sample: sample.cost):
            lines[-1] += [_of(samples, value) for samples in (found.beside, found.without)]
    return page.grid(lines)


def _touched(results: Results) -> str:
    lines = [["server", "data stays where it came, MB/s", "copied out by the client, MB/s"]]
    found: dict[str, list[str]] = {}
    for point, samples in results.of("touched").items():
        found.setdefault(point.target, [point.target]).append(_of(samples, lambda sample: sample.rate))
    return page.grid(lines + [line for line in found.values() if len(line) == 3])


def document(results: Results, pictures: Sequence[tuple[str, str]]) -> str:
    """Return what comes behind the table. ``pictures`` are their paths, as the page sees them, and their titles."""
    parts = []
    if results.done < results.planned:
        parts.append(f"The run was interrupted after {results.done} of {results.planned} measurements.")
    parts += [f"![{title}]({path})" for path, title in pictures]
    if results.of("connections"):
        parts.append(_crowds(results))
    if results.idle:
        parts.append(_idle(results))
    if results.of("touched"):
        parts.append(_touched(results))
    if results.lab:
        parts.append(f"In the [kernel lab](#ksmbd), Linux's client over SMB Direct:\n\n{results.lab}")
    if results.failures:
        parts.append("What did not work:\n\n" + "\n".join(f"- {failure}" for failure in results.failures))
    return "\n\n".join(parts)
