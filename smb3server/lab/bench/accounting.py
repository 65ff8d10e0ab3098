"""Processor time of the servers, of the run and of all other programs, from /proc. [proc(5)]"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_SCHEDULED = 2
"""CPUCLOCK_SCHED: the clock of what the scheduler counted."""
_AGREE = 0.0005
"""Seconds that a server may use between two readings that count as equal."""


class Process(NamedTuple):
    """One process."""

    parent: int
    session: int
    seconds: float
    """Processor time, including that of children that have ended and been waited for."""
    ended: float = 0.0
    """The part of those children."""


def parse_stat(content: bytes) -> Process:
    """Parse /proc/PID/stat. The name in it may contain any character, even brackets."""
    fields = content.rpartition(b")")[2].split()
    own, ended = sum(map(int, fields[11:13])) * _TICK, sum(map(int, fields[13:15])) * _TICK
    return Process(int(fields[1]), int(fields[3]), own + ended, ended)


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


def clock_seconds(process: int) -> float | None:
    """Return the processor time of a process and its threads, living and ended, to the nanosecond; None if it is gone.

    It is the clock of clock_getcpuclockid(3), whose number Linux makes of the process id.
    """
    try:
        return time.clock_gettime((~process << 3) | _SCHEDULED)
    except OSError:
        return None


def server_seconds(server: int, patience: float = 1.0) -> float:
    """Return the processor time of a server and all its children, living and ended, in seconds.

    Living processes count to the nanosecond, ended children in the kernel's steps of 10 ms. A child that ends in the
    meantime is counted twice or not at all until its parent has waited for it. Therefore the function reads until two
    readings agree, for at most ``patience`` seconds.
    """
    deadline = time.monotonic() + patience
    last = -1.0
    while True:
        table = processes()
        members = family(table, {server})
        now = sum(clock_seconds(number) or 0.0 for number in members)
        now += sum(table[number].ended for number in members if number in table)
        if abs(now - last) < _AGREE or time.monotonic() > deadline:
            return now
        last = now
        time.sleep(0.01)


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
