"""Measure small operations on one and on several processes of our server, and on Samba, which has one per connection.

    python -m tools.bench.many_cores [--servers 1 2] [--seconds S] [--rounds N] [--no-samba]

Each process of ours is a server of its own, with its own share and address. Clients read 4 KiB anywhere in a file, with
eight requests in flight on each connection. All rows of ours have the same number of connections.

The clients take processor time of the same machine. Therefore two bounds stand beside the throughput. They follow from
the processor time of an operation, and a process uses one core at most: what these cores allow servers and clients
together, and what is possible if each server process has a core of its own and the clients run elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from smb3server.lab.bench import interpreter, machine
from smb3server.lab.bench.accounting import server_seconds
from smb3server.lab.bench.cases import crowd, small
from smb3server.lab.bench.client import Client, Target, build
from smb3server.lab.bench.errors import BenchError, interruptible
from smb3server.lab.bench.servers import ROOT, ours, samba, samba_version
from smb3server.process import output

_DEPTH = 8
_NETWORK = "127.0.2"
"""Loopback addresses of the servers."""


class Sample(NamedTuple):
    """The measurement of one row in one round."""

    rate: float
    """Operations per second of all clients."""
    server: float
    """Processor time of all server processes for one operation, in microseconds."""
    client: float
    """That of the clients."""


class Setup(NamedTuple):
    """One row: what serves, and how many connections it gets."""

    name: str
    processes: int
    targets: Sequence[Target]
    connections: int
    """Connections to each of the targets."""


def measure(client: Client, setup: Setup) -> Sample:
    """Drive all targets of ``setup`` at once. Raises ``BenchError``."""
    options = (*crowd(small(_DEPTH), setup.connections).options, "-T", str(client.seconds))
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(client.connected(target, options)) for target in setup.targets]
        threads = stack.enter_context(ThreadPoolExecutor(len(running)))
        before = sum(server_seconds(target.process) for target in setup.targets)
        found = list(threads.map(lambda one: one.count(), running))
        spent = sum(server_seconds(target.process) for target in setup.targets) - before
    if any(one["errs"] or not one["ops"] for one in found):
        raise BenchError(f"{setup.name}: errors, or no operations")
    operations = sum(one["ops"] for one in found)
    # The clients of several targets do not begin and end at the same moment: each has its own clock.
    rate = sum(one["ops_s"] for one in found)
    return Sample(rate, spent / operations * 1e6, sum(one["client_cpu"] for one in found) / operations * 1e6)


def table(found: Sequence[tuple[Setup, list[Sample]]], cores: int) -> str:
    """Return the figures, each row compared with the first one of the same server."""
    lines = [
        "| server | processes | reads/s | server, µs/op | client, µs/op | reads/s, ratio "
        f"| bound, {cores} cores shared with clients | bound, a core each |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    base: dict[str, tuple[Setup, list[Sample]]] = {}
    for setup, samples in found:
        one, firsts = base.setdefault(setup.name, (setup, samples))
        rate, server, client = (statistics.median(column) for column in zip(*samples, strict=True))
        ratio = statistics.median(more.rate / first.rate for more, first in zip(samples, firsts, strict=True))
        first_server, first_client = (statistics.median(s[column] for s in firsts) for column in (1, 2))
        shared = possible(setup.processes, server, client, cores) / possible(
            one.processes, first_server, first_client, cores
        )
        alone = setup.processes / one.processes * first_server / server
        lines.append(
            f"| {setup.name} | {setup.processes} | {rate:,.0f} | {server:.1f} | {client:.1f} | {ratio:.2f} "
            f"| {shared:.2f} | {alone:.2f} |"
        )
    return "\n".join(lines)


def possible(processes: int, server: float, client: float, cores: int) -> float:
    """Return how many operations per microsecond are possible on ``cores`` that servers and clients share.

    A process uses one core at most, and all together use all cores at most.
    """
    return min(processes / server, cores / (server + client))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.many_cores",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2], metavar="N", help="numbers of processes")
    parser.add_argument("--seconds", type=float, default=0.5, help="per round and row; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--size", type=int, default=64, metavar="MIB", help="size of each file; default: %(default)s")
    parser.add_argument("--no-samba", action="store_true", help="measure our server alone")
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="interpreter that runs our server")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="for the data; default: %(default)s")
    options = parser.parse_args(arguments)
    if min(options.servers) < 1 or any(max(options.servers) % number for number in options.servers):
        parser.error("--servers: each number must divide the largest one, so that all rows have as many connections")
    if options.rounds < 1 or options.seconds <= 0 or options.size < 1:
        parser.error("--rounds, --seconds and --size must be positive")
    return options


def run(options: argparse.Namespace) -> str:
    """Do a whole run and return its text. Raises ``BenchError``."""
    version = "" if options.no_samba else samba_version()
    python = interpreter.prepare(options.python, ROOT)
    most = max(options.servers)
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(machine.workplace(options.folder, (most + bool(version)) * (options.size + 8)))
        client = Client(build(root), options.seconds, options.size, (), [os.getpid()])
        targets = [
            stack.enter_context(
                ours(root / f"ours{number}", python, (), options.size, address=f"127.0.0.{50 + number}")
            )
            for number in range(most)
        ]
        setups = [Setup("smb3server", number, targets[:number], most // number) for number in options.servers]
        if version:
            theirs = stack.enter_context(samba(root / "samba", (), options.size))
            setups += [Setup("Samba", number, [theirs], number) for number in options.servers]
        found: list[tuple[Setup, list[Sample]]] = [(setup, []) for setup in setups]
        for turn in range(options.rounds):
            for setup, samples in found if turn % 2 == 0 else reversed(found):
                samples.append(measure(client, setup))
    cores = len(os.sched_getaffinity(0))
    return "\n".join(
        (
            f"- 4 KiB random reads, {_DEPTH} in flight; ours: {most} connections in each row, Samba: one per process",
            f"- {options.rounds} rounds of {options.seconds:g} s; {cores} cores; {interpreter.identify(python)}"
            + (f"; Samba {version}" if version else ""),
            f"- load average {os.getloadavg()[0]:.1f} at the end",
            "",
            table(found, cores),
        )
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit status."""
    options = parse(arguments)
    with interruptible():
        try:
            text = run(options)
        except (BenchError, OSError) as error:
            print(f"many_cores: {error}", file=sys.stderr)
            return 2
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
