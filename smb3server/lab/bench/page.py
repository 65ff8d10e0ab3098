"""Write the results as a Markdown table, alone or between the markers of a page, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from smb3server.lab.bench.cases import Case
from smb3server.lab.bench.errors import BenchError
from smb3server.lab.bench.figures import Sample, Spread, ratios, spread, verdict

BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"
TABLE, REPORT, FABRICS = "bench", "report", "fabrics"
"""What stands between the markers of a page: circumstances and table, everything else, or the table of fabrics."""


class Row(NamedTuple):
    """A case and its rounds."""

    case: Case
    ours: list[Sample]
    """Over TCP."""
    theirs: list[Sample]
    """Samba's; empty if only our server was measured."""
    fabrics: Mapping[str, list[Sample]] = {}
    """Ours over SMB Direct."""
    foreign: bool = False
    """Whether ``ours`` is of a server on whose processor time nothing is known."""

    @property
    def samples(self) -> list[Sample]:
        """All of them."""
        return [*self.ours, *self.theirs, *(sample for found in self.fabrics.values() for sample in found)]

    @property
    def others(self) -> float:
        """Share of the machine's processor time that other programs used in the median round."""
        return median(sample.others for sample in self.samples)


class Compared(NamedTuple):
    """Our result compared with theirs, for the rate or the cost."""

    ratio: Spread | None
    verdict: str


def compare(row: Row) -> tuple[Compared, Compared]:
    """Compare the rate, of which more is better, and the cost, of which less is better."""
    rate = ratios([sample.rate for sample in row.ours], [sample.rate for sample in row.theirs])
    cost = ratios([sample.cost for sample in row.ours], [sample.cost for sample in row.theirs])
    rounds = len(row.ours)
    return (
        Compared(rate, verdict(rate, rounds, row.others)),
        Compared(cost, verdict(cost, rounds, row.others, less_is_better=True)),
    )


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _measured(values: list[float]) -> str:
    found = spread(values)
    if len(values) == 1:
        return number(found.median)
    return f"{number(found.median)} ({number(found.low)}–{number(found.high)})"


def _ratio(found: Compared) -> list[str]:
    if found.ratio is None:
        return ["", found.verdict]
    return [f"{found.ratio.median:.2f} ({found.ratio.low:.2f}–{found.ratio.high:.2f})", found.verdict]


def table(rows: list[Row]) -> str:
    """Return a table with one line per case."""
    if rows and rows[0].fabrics:
        return grid(_fabric_columns(rows))
    if rows and rows[0].foreign:
        return grid(_foreign_columns(rows))
    both = bool(rows and rows[0].theirs)
    columns = ["case", "unit", *(["ours", "Samba", "ratio", "verdict"] if both else ["ours"])]
    columns += ["ours, µs/op", "Samba, µs/op", "ratio", "verdict"] if both else ["ours, µs/op"]
    lines = [columns]
    for row in rows:
        sides = [side for side in (row.ours, row.theirs) if side]
        rate, cost = compare(row) if both else (None, None)
        cells = [row.case.name, row.case.unit, *(_measured([sample.rate for sample in side]) for side in sides)]
        cells += _ratio(rate) if rate else []
        cells += [_measured([sample.cost for sample in side]) for side in sides]
        cells += _ratio(cost) if cost else []
        lines.append(cells)
    return grid(lines)


def _fabric_columns(rows: list[Row]) -> list[list[str]]:
    names = ["TCP", *rows[0].fabrics]
    columns = ["case", "unit", *names, *(f"{name}, µs/op" for name in names)]
    lines = [columns]
    for row in rows:
        sides = [row.ours, *row.fabrics.values()]
        rates = [_measured([sample.rate for sample in side]) for side in sides]
        costs = [_measured([sample.cost for sample in side]) for side in sides]
        lines.append([row.case.name, row.case.unit, *rates, *costs])
    return lines


def _foreign_columns(rows: list[Row]) -> list[list[str]]:
    lines = [["case", "unit", "rate", "median latency, µs", "99th percentile"]]
    for row in rows:
        figures = zip(*((sample.rate, sample.middle, sample.late) for sample in row.ours), strict=True)
        lines.append([row.case.name, row.case.unit, *(_measured(list(values)) for values in figures)])
    return lines


def grid(lines: Sequence[Sequence[str]], align: str = "") -> str:
    """Return a table of Markdown; the first line has the names of the columns. ``align`` has a letter for each column:
    r for one of numbers, which stand on the right."""
    head, *body = lines
    rule = ["---:" if letter == "r" else "---" for letter in align.ljust(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *body))


def _counted(verdicts: list[str]) -> str:
    counts = Counter(text.partition(":")[0] for text in verdicts)
    return ", ".join(f"{text} in {counts[text]}" for text in ("ahead", "behind", "even", "no verdict") if counts[text])


def document(circumstances: dict[str, str], rows: list[Row]) -> str:
    """Return the circumstances of the run, the table, and how often each verdict was given."""
    lines = [f"- {key}: {value}" for key, value in circumstances.items()]
    lines += ["", table(rows)]
    if rows and rows[0].theirs:
        found = [compare(row) for row in rows]
        rates, costs = [rate.verdict for rate, _ in found], [cost.verdict for _, cost in found]
        lines += ["", f"- Throughput, of {len(rows)} cases: {_counted(rates)}."]
        lines += [f"- Processor time per operation, of {len(rows)} cases: {_counted(costs)}."]
    return "\n".join(lines)


def as_json(circumstances: dict[str, str], rows: list[Row]) -> dict[str, Any]:
    """Return everything, including each round's figures."""
    cases = []
    for row in rows:
        entry: dict[str, Any] = {"case": row.case.name, "unit": row.case.unit, "others": row.others}
        entry |= {"ours": [sample._asdict() for sample in row.ours]}
        entry |= {name: [sample._asdict() for sample in found] for name, found in row.fabrics.items()}
        if row.theirs:
            entry |= {"samba": [sample._asdict() for sample in row.theirs]}
            for name, found in zip(("rate", "cost"), compare(row), strict=True):
                ratio = found.ratio._asdict() if found.ratio else None
                entry[name] = {"ratio": ratio, "verdict": found.verdict}
        cases.append(entry)
    return {"circumstances": circumstances, "cases": cases}


def check_page(path: Path, part: str = TABLE) -> None:
    """Raise ``BenchError`` unless ``path`` contains the two markers of ``part``, in order."""
    begin, end = BEGIN.format(part), END.format(part)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from None
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise BenchError(f"{path}: no lines {begin} and {end} to write between")


def rewrite(path: Path, content: str, part: str = TABLE) -> None:
    """Put ``content`` between the markers of ``part`` in the page ``path``. Raises ``BenchError`` if it lacks them."""
    check_page(path, part)
    begin, end = BEGIN.format(part), END.format(part)
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    path.write_text(f"{before}{begin}\n{content}\n{end}{after}", encoding="utf-8")
