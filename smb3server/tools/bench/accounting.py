"""Processor time of the servers, of the run and of all other programs, from /proc. [proc(5)]"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

_TICK = 1 / os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """One process."""

    parent: int
    session: int
    seconds: float
    """Processor time, including that of children that have ended and been waited for."""


def parse_stat(content: bytes) -> Process:
    """Parse /proc/PID/stat. The name in it may contain any character, even brackets."""
    fields = content.rpartition(b")")[2].split()
    return Process(int(fields[1]), int(fields[3]), sum(map(int, fields[11:15])) * _TICK)


def processes(proc: Path = Path("/proc")) -> dict[int, Process]:
    """Return all visible processes by their ids."""
    found = {}
    for name in os.listdir(proc):
        if name.isdigit():
            try:
                found[int(name)] = parse_stat((proc / name / "stat").read_bytes())
            except (FileNotFoundError, ProcessLookupError):
                continue  # The process ended in the meantime; its parent has its time.
    return found


def family(table: Mapping[int, Process], roots: Collection[int]) -> set[int]:
    """Return ``roots``, the members of sessions that they lead (daemons leave their parents), and all descendants."""
    children: dict[int, list[int]] = {}
    for number, process in table.items():
        children.setdefault(process.parent, []).append(number)
    members: set[int] = set()
    waiting = [number for number, process in table.items() if number in roots or process.session in roots]
    while waiting:
        number = waiting.pop()
        if number not in members:
            members.add(number)
            waiting += children.get(number, ())
    return members


def used(table: Mapping[int, Process], members: Collection[int]) -> float:
    """Return the seconds of processor time that ``members`` have used."""
    return sum(process.seconds for number, process in table.items() if number in members)


def server_seconds(server: int, patience: float = 1.0) -> float:
    """Return the processor time of a server and all its children, living and ended, in seconds.

    A child that ends in the meantime is counted twice or not at all until its parent has waited for it. Therefore the
    function reads until two readings agree, for at most ``patience`` seconds.
    """
    deadline = time.monotonic() + patience
    last = -1.0
    while True:
        table = processes()
        now = used(table, family(table, {server}))
        if abs(now - last) < _TICK / 2 or time.monotonic() > deadline:
            return now
        last = now
        time.sleep(0.05)


class Reading(NamedTuple):
    """The state of the machine at one moment; all fields except ``at`` are seconds of processor time."""

    at: float
    busy: float
    """Used in user and kernel mode."""
    stolen: float
    """Taken by the host of a virtual machine."""
    run: float
    """Used by the bench, its servers and its clients."""
    others: float
    """Used by all other visible processes."""


def parse_machine(content: str) -> tuple[float, float]:
    """Parse /proc/stat; return the seconds in user and kernel mode (without interrupts), and those stolen."""
    fields = [int(field) * _TICK for field in content.splitlines()[0].split()[1:]]
    return fields[0] + fields[1] + fields[2], fields[7]


def read_machine(roots: Collection[int]) -> Reading:
    """Read the processor time used so far. ``roots`` are the processes that started the run."""
    busy, stolen = parse_machine(Path("/proc/stat").read_text())
    table = processes()
    run = used(table, family(table, roots))
    return Reading(time.monotonic(), busy, stolen, run, used(table, table) - run)


def others_share(before: Reading, after: Reading, processors: int) -> float:
    """Return the share of the machine's processor time that programs outside the run used between two readings.

    It is computed in two ways, and the larger result counts, because each can only be too small: the visible processes
    do not include those of other containers, and the machine's busy time lacks interrupts, which some kernels charge to
    processes of the run.
    """
    seen = after.others - before.others
    left = (after.busy - before.busy) - (after.run - before.run)
    stolen = after.stolen - before.stolen
    capacity = (after.at - before.at) * processors
    return min(1.0, max(seen, left, 0.0) / capacity + stolen / capacity) if capacity > 0 else 0.0
