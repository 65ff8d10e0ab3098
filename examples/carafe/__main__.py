"""The programs of the graph engine: ``python examples/carafe --help``."""

import argparse
import os
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import distributed
from rstore import StoreRefused
from rstore.interrupts import heed_interrupts

from carafe import bench
from carafe.engine import Address, CarafeError, Outcome, local_cluster, local_graph_store, run
from carafe.graph import Graph, kronecker, load
from carafe.programs import BreadthFirst, Components, NotConverged, PageRank, Program
from carafe.reference import faults
from smbdirect.errors import SmbDirectError


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="carafe", description="A graph engine on RStore. See docs/carafe.md.")
    commands = parser.add_subparsers(dest="command", required=True)
    gen = commands.add_parser("gen", help="make a Kronecker graph, as Graph500 does")
    gen.add_argument("graph", type=Path)
    gen.add_argument("scale", type=int, help="2**SCALE vertices")
    gen.add_argument("--edge-factor", type=int, default=16, help="edges for each vertex")
    gen.add_argument("--seed", type=int, default=1)
    gen.add_argument("--directed", action="store_true")
    for command, text in (
        ("pagerank", "the rank of each vertex"),
        ("bfs", "levels and parents from a root"),
        ("components", "the component of each vertex"),
    ):
        one = commands.add_parser(command, help=text)
        one.add_argument("graph", type=Path, help="of gen, or a text with two vertices in each line")
        one.add_argument("--output", type=Path, help="a file of numpy (.npz) for the results")
        one.add_argument("--directed", action="store_true", help="of a text; what gen made says it itself")
        one.add_argument("--workers", type=int, default=0, help="default: one for each processor, or the whole cluster")
        one.add_argument("--scheduler", help="of a dask cluster, in place of local processes: tcp://HOST:8786")
        one.add_argument("--store", type=_address, help="HOST:PORT of an RStore master; default: one on this machine")
        one.add_argument("--copies", type=int, default=1, help="2: survive a memory server that dies")
        one.add_argument("--check", action="store_true", help="compare with scipy")
        if command == "pagerank":
            one.add_argument("--damping", type=float, default=0.85)
            one.add_argument("--tolerance", type=float, default=1e-6, help="0: make all iterations")
            one.add_argument("--iterations", type=int, default=100, help="at the most")
        elif command == "bfs":
            one.add_argument("--root", type=int, help="default: the vertex with most edges out of it")
    bench.add_arguments(commands.add_parser("bench", help="compare with scipy.sparse on one core"))
    return parser


def _program(options: argparse.Namespace, graph: Graph) -> Program:
    if options.command == "pagerank":
        return PageRank(options.damping, options.tolerance, options.iterations)
    if options.command == "components":
        return Components()
    root = options.root
    if root is None:
        root = int(np.bincount(graph.simple(False) % graph.vertices, minlength=graph.vertices).argmax())
    if not 0 <= root < graph.vertices:
        raise ValueError(f"vertex {root} is not one of 0 to {graph.vertices - 1}")
    return BreadthFirst(root)


def _say(options: argparse.Namespace, graph: Graph, outcome: Outcome) -> None:
    steps = outcome.supersteps
    print(
        f"{graph.vertices} vertices, {len(graph.sources)} edges: {len(steps)} supersteps of "
        f"{statistics.median(steps) * 1e3:.1f} ms, after {outcome.preparing:.2f} s"
    )
    if options.command == "pagerank":
        rank = outcome.results["rank"]
        for vertex in np.argsort(-rank, kind="stable")[:5]:
            print(f"vertex {vertex}: {rank[vertex]:.3g}")
    elif options.command == "bfs":
        level = outcome.results["level"]
        root = int(np.flatnonzero(level == 0)[0])
        print(f"{int((level >= 0).sum())} vertices reached from {root}, the farthest in {int(level.max())} steps")
    else:
        _, sizes = np.unique(outcome.results["component"], return_counts=True)
        print(f"{len(sizes)} components, the largest with {sizes.max()} vertices")


def _run(options: argparse.Namespace) -> int:
    graph = load(options.graph, options.directed)
    program = _program(options, graph)
    with ExitStack() as stack:
        store = options.store or stack.enter_context(local_graph_store(graph, 2, options.copies))
        if options.scheduler:
            client = stack.enter_context(distributed.Client(options.scheduler))  # type: ignore[no-untyped-call]
        else:
            client = stack.enter_context(local_cluster(options.workers or os.cpu_count() or 1))
        outcome = run(client, graph, program, store, workers=options.workers, copies=options.copies)
    _say(options, graph, outcome)
    if options.output:
        with options.output.open("wb") as file:
            np.savez(file, **outcome.results)  # type: ignore[arg-type]
    said = faults(graph, program, outcome) if options.check else []
    if options.check:
        print("\n".join(said) or "scipy has the same")
    return 1 if said else 0


def main() -> int:
    options = _parser().parse_args()
    heed_interrupts()
    # The workers import this package.
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path[:1])) + os.pathsep + os.environ.get(
        "PYTHONPATH", ""
    )  # fmt: skip
    try:
        if options.command == "gen":
            kronecker(options.scale, options.edge_factor, options.seed, options.directed).save(options.graph)
            return 0
        return bench.main(options) if options.command == "bench" else _run(options)
    except (CarafeError, NotConverged, StoreRefused, SmbDirectError, OSError, ValueError) as error:
        print(f"carafe: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("carafe: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
