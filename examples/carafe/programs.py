"""Programs of the graph engine: small functions over the arrays of a whole partition.

A superstep: ``send`` makes one message for each own vertex. Every vertex gets the messages of those that have an edge
to it, combined to one number; ``apply`` gets these numbers. Votes are numbers that all workers add up, as those that
say whether it is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]
"""One number for each own vertex."""

VOTES = 2
NEVER = np.iinfo(np.int64).max
"""The message that says nothing, where the least message counts."""


class Part(NamedTuple):
    """The vertices of one worker."""

    first: int
    """The number of the first one."""
    out_degree: Values
    """How many edges leave each of them."""
    vertices: int
    """Of the whole graph."""

    def names(self) -> Values:
        """Return the numbers of the own vertices."""
        return np.arange(self.first, self.first + len(self.out_degree))


class Program:
    """What a user writes. Every worker has one of its own."""

    kind: Any = np.float64
    """Of messages and votes: a number of 8 bytes."""
    combine: np.ufunc = np.add
    """Makes one number of a vertex's messages: ``np.add``, ``np.minimum``, ``np.maximum``."""
    nothing: float = 0
    """What a vertex gets to which no edge leads."""
    both_ways = False
    """Whether messages go against directed edges as well."""
    results: tuple[str, ...] = ()
    """The attributes of the program that are its result, arrays of ``kind``."""

    def begin(self, part: Part) -> None:
        """Make the arrays."""
        raise NotImplementedError

    def send(self, part: Part) -> tuple[Values, Sequence[float]]:
        """Return the messages of the own vertices, and ``VOTES`` votes at the most."""
        raise NotImplementedError

    def apply(self, part: Part, received: Values, votes: Values) -> bool:
        """Change the arrays. Return whether this was the last superstep: all workers must return the same."""
        raise NotImplementedError


class NotConverged(Exception):
    """The superstep that should have been the last did not bring what was asked for."""


class PageRank(Program):
    """The rank of each vertex, as networkx has it. Vertices without edges out of them give their rank to all."""

    results = ("rank",)

    def __init__(self, damping: float = 0.85, tolerance: float = 1e-6, most: int = 100) -> None:
        """Stop when all ranks together change by less than ``tolerance`` times the vertices. With a tolerance of 0,
        ``most`` iterations are made; otherwise ``NotConverged`` is raised after them."""
        self.damping, self.tolerance, self.most = damping, tolerance, most
        self.iterations = 0

    def begin(self, part: Part) -> None:
        self.rank = np.full(len(part.out_degree), 1 / part.vertices)
        self.change = 0.0

    def send(self, part: Part) -> tuple[Values, Sequence[float]]:
        leaf = part.out_degree == 0
        return self.rank / np.maximum(part.out_degree, 1), (self.rank[leaf].sum(), self.change)

    def apply(self, part: Part, received: Values, votes: Values) -> bool:
        if self.iterations and votes[1] < part.vertices * self.tolerance:
            return True
        if self.iterations == self.most and self.tolerance:
            raise NotConverged(f"the ranks still change by {votes[1]:.2g} after {self.most} iterations; allow more")
        rank = (1 - self.damping + self.damping * votes[0]) / part.vertices + self.damping * received
        self.change = float(np.abs(rank - self.rank).sum())
        self.rank = rank
        self.iterations += 1
        return not self.tolerance and self.iterations == self.most


class BreadthFirst(Program):
    """The level and the parent of each vertex in a tree of shortest paths from ``root``; -1 where no path leads.
    The parent of the root is the root."""

    kind, combine, nothing = np.int64, np.minimum, NEVER
    results = ("level", "parent")

    def __init__(self, root: int) -> None:
        self.root = root

    def begin(self, part: Part) -> None:
        if not 0 <= self.root < part.vertices:
            raise ValueError(f"vertex {self.root} is not one of 0 to {part.vertices - 1}")
        self.frontier = part.names() == self.root
        self.level = np.where(self.frontier, 0, -1)
        self.parent = np.where(self.frontier, self.root, -1)
        self.depth = 0

    def send(self, part: Part) -> tuple[Values, Sequence[float]]:
        return np.where(self.frontier, part.names(), NEVER), (self.frontier.sum(),)

    def apply(self, part: Part, received: Values, votes: Values) -> bool:
        self.depth += 1
        self.frontier = (self.level < 0) & (received < NEVER)
        self.level[self.frontier] = self.depth
        self.parent[self.frontier] = received[self.frontier]
        return not votes[0]


class Components(Program):
    """The component of each vertex: the number of its least vertex. Directed edges count as undirected ones."""

    kind, combine, nothing = np.int64, np.minimum, NEVER
    both_ways = True
    results = ("component",)

    def begin(self, part: Part) -> None:
        self.component = part.names()
        self.changed = len(self.component)

    def send(self, part: Part) -> tuple[Values, Sequence[float]]:
        return self.component, (self.changed,)

    def apply(self, part: Part, received: Values, votes: Values) -> bool:
        self.changed = int((received < self.component).sum())
        self.component = np.minimum(self.component, received)
        return not votes[0]
