"""Idle connections: the memory that each takes in the server, and what they cost a busy one beside them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from smb3server.lab.bench.accounting import family, processes
from smb3server.lab.bench.cases import small
from smb3server.lab.bench.client import Client, Target
from smb3server.lab.bench.figures import Sample

BUSY_CASE = small(8)
"""What the busy connection does."""


class Idle(NamedTuple):
    """What was found with some idle connections."""

    connections: int
    kibibytes: float
    """Memory of the server for each of them."""
    without: list[Sample]
    """The busy connection before they came ..."""
    beside: list[Sample]
    """... and while they were there."""


def memory(server: int) -> int:
    """Return the memory of a server and its children in KiB; pages that they share count once. [proc(5), smaps]"""
    total = 0
    for number in family(processes(), {server}):
        try:
            lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # The process ended in the meantime.
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def measure(client: Client, target: Target, connections: int, rounds: int) -> Idle:
    """Measure ``target`` without and with idle connections. Raises ``BenchError`` if it refuses one."""
    without = [client.measure(target, BUSY_CASE) for _ in range(rounds)]
    before = memory(target.process)
    with client.holding(target, connections):
        taken = memory(target.process) - before
        beside = [client.measure(target, BUSY_CASE) for _ in range(rounds)]
    return Idle(connections, taken / connections, without, beside)
