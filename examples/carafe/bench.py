"""Compare a PageRank of Carafe with one of scipy.sparse on one core, on this machine and in the same run.

    python examples/carafe bench --markdown docs/carafe.md

One iteration of the same graph, at several scales and with several numbers of workers. The rounds take turns, and the
medians are shown.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import benches
import numpy as np

from carafe import reference
from carafe.engine import local_cluster, local_graph_store, run
from carafe.graph import Graph, kronecker
from carafe.programs import PageRank
from smb3server.lab.bench import machine, page

ITERATIONS = 15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the comparison."""
    parser.add_argument("--scales", type=int, nargs="+", default=[12, 14, 16, 18])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    benches.add_arguments(parser, "carafe")


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


def measure(scales: list[int], workers: list[int], rounds: int) -> benches.Result:
    """Return table and picture."""
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
    lines = [["scale", "edges", *names]]
    for scale, graph in graphs.items():
        cells = []
        for column in columns:
            times, preparing = (statistics.median(part) for part in zip(*found[scale, column], strict=True))
            cells.append(f"{page.number(times)} ({preparing:.2f})")
        lines.append([str(scale), f"{len(graph.simple(False)):,}", *cells])
    ticks = {1 << scale: str(scale) for scale in scales}
    plots = [
        benches.Lines(title, "scale", ticks, {
            name: [(1 << scale, [values[which] for values in found[scale, column]]) for scale in scales]
            for name, column in zip(names, columns, strict=True)
        })
        for which, title in enumerate(("an iteration, ms", "before the first iteration, s"))
    ]  # fmt: skip
    return benches.Result(
        "Time of an iteration, and before the first one, by scale",
        f"{machine.briefly(f'{rounds} rounds')} numpy {np.__version__}. Milliseconds for an iteration; in brackets the "
        "seconds before the first one.",
        page.grid(lines, "r" * len(lines[0])),
        plots,
    )


def main(options: argparse.Namespace) -> int:
    """Measure, and print the table or write it into a page."""
    benches.publish(options, measure(options.scales, options.workers, options.rounds))
    return 0
