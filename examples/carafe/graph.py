"""Graphs: Graph500's generator, files, and the form in which workers get them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

MOST_VERTICES = 1 << 31
"""An edge is one number of 64 bits: target * vertices + source."""


class Graph(NamedTuple):
    """Vertices are numbers from 0. An edge may occur twice, and may begin and end at the same vertex."""

    vertices: int
    sources: Numbers
    targets: Numbers
    directed: bool

    def simple(self, both_ways: bool) -> Numbers:
        """Return each edge once, as target * vertices + source, in order. ``both_ways``: and its reverse, unless it is
        there. An undirected graph always has both."""
        edges = self.targets * self.vertices + self.sources
        if both_ways or not self.directed:
            edges = np.concatenate([edges, self.sources * self.vertices + self.targets])
        # np.unique may look for equal numbers by hashing, which takes a hundred times as long as sorting.
        edges = np.sort(edges)
        return edges[np.diff(edges, prepend=-1) > 0]

    def save(self, path: Path) -> None:
        """Write the graph to a file that ``load`` reads."""
        with path.open("wb") as file:
            np.savez(file, vertices=self.vertices, sources=self.sources, targets=self.targets, directed=self.directed)


def checked(graph: Graph) -> Graph:
    """Return the graph. Raise ``ValueError`` if it has no vertex, too many, or an edge to one that is not there."""
    if not 0 < graph.vertices <= MOST_VERTICES:
        raise ValueError(f"a graph has 1 to {MOST_VERTICES} vertices, not {graph.vertices}")
    if graph.sources.shape != graph.targets.shape or graph.sources.ndim != 1:
        raise ValueError("a graph has as many sources as targets")
    for ends in (graph.sources, graph.targets):
        if len(ends) and not 0 <= int(ends.min()) <= int(ends.max()) < graph.vertices:
            raise ValueError(f"an edge leaves the vertices 0 to {graph.vertices - 1}")
    return graph


def load(path: Path, directed: bool = False) -> Graph:
    """Read a graph: a file of ``Graph.save``, or a text with two vertices in each line, as SNAP has them; ``directed``
    is for a text. Raise ``ValueError`` if it is neither, and ``OSError``."""
    with path.open("rb") as file:
        if file.read(2) == b"PK":
            file.seek(0)
            with np.load(file) as found:
                try:
                    vertices, sources, targets, directed = (found[name] for name in Graph._fields)
                except KeyError as error:
                    raise ValueError(f"{path}: not a graph: {error}") from None
                graph = Graph(int(vertices), sources.astype(np.int64), targets.astype(np.int64), bool(directed))
        else:
            lines = np.loadtxt(path, dtype=np.int64, comments="#", usecols=(0, 1), ndmin=2)
            vertices = int(lines.max(initial=0)) + 1
            graph = Graph(vertices, lines[:, 0].copy(), lines[:, 1].copy(), directed)
    return checked(graph)


def kronecker(scale: int, edge_factor: int = 16, seed: int = 1, directed: bool = False) -> Graph:
    """Make a Kronecker graph as Graph500 does: 2**scale vertices, edge_factor * 2**scale edges, A=0.57, B=0.19, C=0.19.

    Each bit of an edge's two ends is drawn by itself: both 0 with the probability A, (0, 1) with B, (1, 0) with C. Then
    vertices and edges are permuted. Some edges occur twice, some vertices have none. The same seed makes the same graph
    (Graph500 benchmark specification, Kronecker generator)."""
    a, b, c = 0.57, 0.19, 0.19
    random = np.random.default_rng(seed)
    count = edge_factor << scale
    sources, targets = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for bit in range(scale):
        low = random.random(count) > a + b
        sources += low.astype(np.int64) << bit
        targets += (random.random(count) > np.where(low, c / (1 - a - b), a / (a + b))).astype(np.int64) << bit
    names, order = random.permutation(1 << scale), random.permutation(count)
    return Graph(1 << scale, names[sources][order], names[targets][order], directed)


def bounds(vertices: int, edges: Numbers, workers: int) -> Numbers:
    """Divide the vertices: worker ``w`` has those from ``bounds[w]`` to ``bounds[w + 1]``. All have about the same
    weight: a vertex weighs 1, and so does each edge to it."""
    weight = np.bincount(edges // vertices, minlength=vertices) + 1
    shares = np.cumsum(weight)[-1] * np.arange(1, workers) / workers
    return np.concatenate([[0], np.searchsorted(np.cumsum(weight), shares), [vertices]]).astype(np.int64)
