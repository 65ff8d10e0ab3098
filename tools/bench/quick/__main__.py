"""``python -m tools.bench.quick``: compare what operations cost the server with the committed record.

Calls of Python and C functions and system calls per operation are counted, processor time is measured in turns of a
loop. A table tells what changed. Exit status 1 means that a case exceeds its bound, 2 that something is
missing or failed. ``--update`` makes this run the record.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from smb3server.lab.bench import machine
from smb3server.lab.bench.errors import BenchError, interruptible
from smb3server.process import output
from tools.bench.quick import record
from tools.bench.quick.measure import CASES_OF_QUICK, Costs, Quick, bench

_MEGABYTES = 64
_SPARE = 64
_HEADS = {"calls": "calls", "c_calls": "C calls", "system_calls": "system calls", "loops": "time, in loops"}


def _cell(change: record.Change) -> str:
    def show(value: float | None) -> str:
        return "?" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"

    before, now = show(change.before), show(change.now)
    return f"{now if now == before else f'{before} > {now}'} {change.verdict}".strip()


def show(name: str, found: dict[str, record.Change]) -> None:
    """Print one line of the table."""
    print(f"{name:34}" + "".join(f" {_cell(found[kind]):26}" for kind in _HEADS).rstrip(), flush=True)


def measure(cases: list[Quick], before: dict[str, Costs]) -> dict[str, Costs]:
    """Measure ``cases``, each compared with ``before``, and print the table as it grows. Raises ``BenchError``."""
    print(f"{'per operation':34}" + "".join(f" {head:26}" for head in _HEADS.values()).rstrip())
    costs: dict[str, Costs] = {}
    with machine.workplace(Path("/dev/shm"), 2 * _MEGABYTES + _SPARE) as root, bench(root, _MEGABYTES) as running:
        for quick in cases:
            costs[quick.name] = now = running.costs(quick)
            known = before.get(quick.name, now)
            if record.changes(quick.name, known, now)["loops"].verdict == "regression":
                # Other programs can do that, too: once more.
                costs[quick.name] = now._replace(loops=min(now.loops, running.time(quick)))
            show(quick.name, record.changes(quick.name, known, costs[quick.name]))
    return costs


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.quick", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", metavar="TEXT", help="cases whose name contains one of these")
    parser.add_argument("--update", action="store_true", help="make the cases of this run the record's")
    parser.add_argument("--record", type=Path, default=record.PATH, metavar="FILE")
    options = parser.parse_args(arguments)
    cases = [quick for quick in CASES_OF_QUICK if any(text in quick.name for text in options.cases or [""])]
    began = time.monotonic()
    with interruptible():
        try:
            before = {} if options.update else record.read(options.record)
            costs = measure(cases, before)
        except (BenchError, OSError) as error:
            print(f"bench: {error}", file=sys.stderr)
            return 2
    print(f"{time.monotonic() - began:.0f} s")
    if options.update:
        record.save(costs, options.record)
        return 0
    regressions = [
        f"{name}: {_HEADS[kind]}"
        for name, now in costs.items()
        if name in before
        for kind, change in record.changes(name, before[name], now).items()
        if change.verdict == "regression"
    ]
    for line in regressions:
        print(f"bench: regression: {line}", file=sys.stderr)
    return 1 if regressions else 0


if __name__ == "__main__":
    sys.exit(output.run(main))
