"""The same results by scipy.sparse, on one core: what Carafe is checked against, and compared with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from carafe.engine import Outcome
from carafe.graph import Graph
from carafe.programs import BreadthFirst, PageRank, Program, Values


def matrix(graph: Graph, both_ways: bool = False) -> Any:
    """Return the graph as a matrix: row = source, column = target, each edge a 1."""
    targets, sources = np.divmod(graph.simple(both_ways), graph.vertices)
    shape = (graph.vertices, graph.vertices)
    return sparse.csr_array((np.ones(len(sources)), (sources, targets)), shape=shape)


def ranks(graph: Graph, damping: float = 0.85) -> Iterator[Values]:
    """Yield the ranks after each iteration, without end."""
    edges = matrix(graph)
    degree = edges.sum(axis=1)
    leaf = degree == 0
    incoming = (edges.T * (1 / np.maximum(degree, 1))).tocsr()
    rank = np.full(graph.vertices, 1 / graph.vertices)
    while True:
        rank = (1 - damping + damping * rank[leaf].sum()) / graph.vertices + damping * (incoming @ rank)
        yield rank


def faults(graph: Graph, program: Program, outcome: Outcome) -> list[str]:
    """Return what scipy says against the outcome of a program."""
    results = outcome.results
    if isinstance(program, PageRank):
        # With a tolerance, the last superstep only finds that it is over.
        iterations = len(outcome.supersteps) - bool(program.tolerance)
        right = next(itertools.islice(ranks(graph, program.damping), iterations - 1, None))
        return [] if np.allclose(results["rank"], right, rtol=1e-9, atol=0) else ["ranks are not those of scipy"]
    if not isinstance(program, BreadthFirst):
        count, right = csgraph.connected_components(matrix(graph), directed=False)
        # Numbers may differ, the division may not.
        pairs = len(np.unique(np.stack([right, results["component"]]), axis=1).T)
        return [] if count == pairs == len(np.unique(results["component"])) else ["components are not those of scipy"]
    root = program.root
    right = csgraph.dijkstra(matrix(graph), indices=root, unweighted=True)
    level, parent = results["level"], results["parent"]
    said = []
    if not np.array_equal(np.where(np.isinf(right), -1, right), level):
        said.append("levels are not those of scipy")
    reached = np.flatnonzero(level > 0)
    if parent[root] != root or not ((parent >= 0) == (level >= 0)).all():
        said.append("the tree has not every vertex that is reached")
    elif (level[parent[reached]] != level[reached] - 1).any():
        said.append("a parent is not one level above")
    elif len(np.setdiff1d(reached * graph.vertices + parent[reached], graph.simple(False))):
        said.append("the tree has an edge that the graph has not")
    return said
