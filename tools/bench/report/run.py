"""Measure the plan: every point in every round, the servers of one case right after each other."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from smb3server.lab.bench import idle, servers
from smb3server.lab.bench.client import Client, Target, build
from smb3server.lab.bench.errors import BenchError
from tools.bench.report.plan import IMPACKET, LOOPBACK, SAMBA, TCP, Point, Section
from tools.bench.report.store import Results, save

_OVERHEAD = 0.35
"""Seconds that a measurement takes in addition to its own; only the first guess of the time that is left uses it."""
IDLE = {TCP: 5000, SAMBA: 300}
"""Idle connections to each server. Samba has a process for each."""


class Progress:
    """Tells what runs and how long the rest will take, from the pace so far."""

    def __init__(self, planned: Sequence[float]) -> None:
        self._left = sum(planned)
        self._done = 0.0
        self._began = time.monotonic()

    def show(self, what: str) -> None:
        """Tell what runs next."""
        elapsed = time.monotonic() - self._began
        left = self._left * (elapsed / self._done if self._done > self._left / 20 else 1)
        print(f"bench: {int(left) // 60}:{int(left) % 60:02} left: {what}", file=sys.stderr, flush=True)

    def passed(self, seconds: float) -> None:
        """Count a measurement that was planned to take ``seconds``."""
        self._left -= seconds
        self._done += seconds


@contextlib.contextmanager
def targets(
    root: Path, python: str, prefix: Sequence[str], megabytes: int, wanted: set[str]
) -> Iterator[dict[str, Target]]:
    """Run the ``wanted`` servers. Raises ``BenchError``."""
    with contextlib.ExitStack() as stack:
        found: dict[str, Target] = {}
        fabrics = [fabric for fabric, name in servers.FABRICS.items() if name in wanted]
        tcp = stack.enter_context(servers.ours(root / "ours", python, prefix, megabytes, ",".join(fabrics) or "off"))
        found[TCP] = tcp
        found |= {target.name: target for target in servers.over_fabrics(tcp, fabrics, python)}
        if LOOPBACK in wanted:
            command = (python, *servers.RDMA_CLIENT, "loopback", "--folder", str(tcp.folder))
            found[LOOPBACK] = tcp._replace(name=LOOPBACK, process=0, generator=command)
        if SAMBA in wanted:
            found[SAMBA] = stack.enter_context(servers.samba(root / "samba", prefix, megabytes))
        if IMPACKET in wanted:
            found[IMPACKET] = stack.enter_context(servers.impacket(root / "impacket", python, prefix, megabytes))
        yield found


def measure(
    client: Client,
    found: dict[str, Target],
    plan: Sequence[Section],
    rounds: int,
    seconds: float,
    results: Results,
    path: Path,
) -> None:
    """Measure ``plan`` into ``results``, and save them to ``path`` after each round.

    What a server refuses is noted there, and not tried again.
    """
    order = list(steps(plan, rounds, seconds))
    progress = Progress([length for *_, length in order])
    results.planned = len(order)
    broken: set[Point] = set()
    last = 0
    for number, point, length in order:
        if number != last:
            save(results, path)
            last = number
        if point not in broken:
            progress.show(f"round {number + 1}: {point.section}: {point.case.name} on {point.target}")
            client.seconds = length - _OVERHEAD
            try:
                sample = client.measure(found[point.target], point.case)
                results.samples.setdefault(point, []).append(sample)
            except BenchError as error:
                broken.add(point)
                results.failures[str(error)] = None
        progress.passed(length)
        results.done += 1


def steps(plan: Sequence[Section], rounds: int, seconds: float) -> Iterator[tuple[int, Point, float]]:
    """Yield the number of the round, the point and the planned seconds of every measurement, in order.

    All servers of a case follow each other at once; who is first changes from round to round.
    """
    for number in range(rounds):
        for section in plan:
            if number >= max(1, round(rounds * section.rounds)):
                continue
            for _, together in groupby(section.points, key=lambda point: (point.case, point.x)):
                points = list(together)
                first = number % len(points)
                for point in points[first:] + points[:first]:
                    yield number, point, seconds * section.share + _OVERHEAD


def measure_idle(client: Client, found: dict[str, Target], results: Results) -> None:
    """Measure idle connections."""
    client.seconds = 0.3
    for name, connections in IDLE.items():
        if name in found:
            print(f"bench: {connections} idle connections to {name}", file=sys.stderr, flush=True)
            try:
                results.idle[name] = idle.measure(client, found[name], connections, 5)
            except BenchError as error:
                results.failures[str(error)] = None


def measure_lab(path: Path, results: Results) -> str:
    """Run the bench of the kernel lab, which saves its measurements to ``path``; return its table.

    What went wrong is noted in ``results``.
    """
    command = [sys.executable, "-m", "tools.kernel_lab.bench", "--json", str(path)]
    ended = subprocess.run(
        command, cwd=servers.ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
    )
    if ended.returncode:
        results.failures[f"the kernel lab's bench ended with status {ended.returncode}"] = None
    return ended.stdout.strip()


def make_client(root: Path, megabytes: int, prefix: Sequence[str], found: dict[str, Target]) -> Client:
    """Build the client. Raises ``BenchError``."""
    roots = [os.getpid(), *{target.process for target in found.values() if target.process}]
    return Client(build(root), 0, megabytes, prefix, roots)
