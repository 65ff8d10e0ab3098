"""Compare a PageRank of Carafe with one of scipy.sparse on one core, on this machine and in the same run.

    python examples/carafe bench --markdown docs/carafe.md

One iteration of the same graph, at several scales and with several numbers of workers. The rounds take turns, and the
medians are shown.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from carafe import reference
from carafe.engine import local_cluster, local_graph_store, run
from carafe.graph import Graph, kronecker
from carafe.programs import PageRank

BEGIN, END = "<!-- figures of python examples/carafe bench -->", "<!-- end of figures -->"
ITERATIONS = 15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the comparison."""
    parser.add_argument("--scales", type=int, nargs="+", default=[12, 14, 16, 18])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--markdown", type=Path, help="a page; the table between its markers is replaced")


def _scipy(graph: Graph) -> tuple[float, float]:
    """Return milliseconds for an iteration, and seconds before the first one."""
    began = time.perf_counter()
    ranks = reference.ranks(graph)
    next(ranks)
    preparing, times = time.perf_counter() - began, []
    for _ in range(ITERATIONS):
        began = time.perf_counter()
        next(ranks)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3, preparing


def measure(scales: list[int], workers: list[int], rounds: int) -> list[str]:
    """Return the table, as lines of Markdown."""
    graphs = {scale: kronecker(scale) for scale in scales}
    columns = ["scipy", *workers]
    found: dict[tuple[int, object], list[tuple[float, float]]] = {(s, c): [] for s in scales for c in columns}
    largest = max(graphs.values(), key=lambda graph: graph.vertices)
    with local_graph_store(largest, 2) as store, local_cluster(max(workers)) as client:
        for number in range(rounds):
            for scale, graph in graphs.items():
                found[scale, "scipy"].append(_scipy(graph))
                for count in workers:
                    program = PageRank(tolerance=0, most=ITERATIONS)
                    outcome = run(client, graph, program, store, workers=count)
                    found[scale, count].append((statistics.median(outcome.supersteps) * 1e3, outcome.preparing))
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    names = ["scipy, one core", *(f"{count} worker{'s' * (count > 1)}" for count in workers)]
    lines = [
        f"Medians of {rounds} rounds that took turns; {os.cpu_count()} processors, Python {platform.python_version()}, "
        f"numpy {np.__version__}. Milliseconds for an iteration; in brackets the seconds before the first one.",
        "",
        "| scale | edges | " + " | ".join(names) + " |",
        "| ---: | ---: |" + " ---: |" * len(names),
    ]
    for scale, graph in graphs.items():
        cells = []
        for column in columns:
            times, preparing = (statistics.median(part) for part in zip(*found[scale, column], strict=True))
            cells.append(f"{times:.1f} ({preparing:.2f})")
        lines.append(f"| {scale} | {len(graph.simple(False)):,} | " + " | ".join(cells) + " |")
    return lines


def replaced(page: str, lines: list[str]) -> str:
    """Return the page with the table between its markers. Raise ``ValueError`` if it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return before + begin + "\n" + "\n".join(lines) + "\n" + end + after


def main(options: argparse.Namespace) -> int:
    """Measure, and print the table or write it into a page."""
    page = options.markdown.read_text() if options.markdown else f"{BEGIN}{END}"
    replaced(page, [])
    lines = measure(options.scales, options.workers, options.rounds)
    print("\n".join(lines))
    if options.markdown:
        options.markdown.write_text(replaced(page, lines))
    return 0
