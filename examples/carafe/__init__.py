"""Carafe: a graph engine whose workers write their messages one-sided into each other's memory.

Reading order: ``graph`` (edges, and who has which) -> ``programs`` (what a user writes) -> ``mailbox`` (the data path)
-> ``engine`` (a superstep, and the run). docs/carafe.md tells the rest.
"""

from carafe.engine import CarafeError, Outcome, run
from carafe.graph import Graph, kronecker, load
from carafe.programs import BreadthFirst, Components, PageRank, Program

__all__ = [
    "BreadthFirst",
    "CarafeError",
    "Components",
    "Graph",
    "Outcome",
    "PageRank",
    "Program",
    "kronecker",
    "load",
    "run",
]
