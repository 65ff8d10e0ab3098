"""What a cluster would do: the time of each step from bytes, processors, NICs, disks, and what the control path costs.

Within a step, disk, processors and NIC work at the same time, so the slowest of them says how long it takes. The steps
follow each other, and so do the calls of the control path: one program makes them.
"""

from __future__ import annotations

from typing import NamedTuple

from rsort.records import SIZE
from rsort.sort import BUCKET


class Cluster(NamedTuple):
    """The hardware: what each node has."""

    nodes: int
    cores: int
    """That sort."""
    network: float
    """Gbit/s of the NIC, in each direction."""
    disk: float
    """GB/s, reading or writing; 0: input and output are in memory."""
    nic_in_hardware: bool = True
    """Whether the transfers cost no processor time."""


class Costs(NamedTuple):
    """Measured on one machine. Processor times are seconds of one core per record."""

    counting: float
    partition: float
    sort: float
    transfer: float
    """Of both ends, if the NICs are software."""
    task: float
    """Seconds of the scheduler for one task."""
    allocate: float
    """Seconds for one bucket."""


class Part(NamedTuple):
    """One step, and what limits it."""

    name: str
    seconds: float
    limit: str
    data: float
    """Seconds if the control path took no time."""


class Needs(NamedTuple):
    """What a node does in one step."""

    name: str
    processor: float
    """Seconds of one core per record."""
    network: int
    """How often each byte passes the NIC."""
    disk: int
    """How often each byte is read or written."""
    tasks: int
    """In the whole cluster."""


def predict(records: int, cluster: Cluster, costs: Costs, piece: int) -> list[Part]:
    """Return the time of each step. ``piece``: bytes of input for a task."""
    nodes, cores, network, disk, hardware = cluster
    size = records * SIZE
    pieces = -(-size // piece)
    buckets = max(4 * nodes * cores, -(-size // BUCKET))
    transfer = 0.0 if hardware else costs.transfer
    parts = [Part("allocate", buckets * costs.allocate, "control path", 0.0)]
    for name, processor, crossings, accesses, tasks in (
        Needs("count", costs.counting, 0, 1, pieces),
        Needs("shuffle", costs.partition + transfer, 1, 1, pieces),
        Needs("sort and write", costs.sort + transfer, 1, 1, buckets),
    ):
        # What stays at its node passes no network.
        crossing = crossings * size / nodes * (nodes - 1) / nodes
        limits = {
            "processor": records / nodes * processor / cores,
            "network": crossing * 8 / (network * 1e9) if crossing else 0.0,
            "disk": accesses * size / nodes / (disk * 1e9) if disk else 0.0,
        }
        data = max(limits.values())
        limits["control path"] = tasks * costs.task
        limit = max(limits, key=lambda word: limits[word])
        parts.append(Part(name, limits[limit], limit, data))
    return parts
