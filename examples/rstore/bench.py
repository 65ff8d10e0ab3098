"""Compare reads of RStore with those of Redis and memcached, on this machine and in the same run.

    python examples/rstore bench --markdown docs/rstore.md

First one read after the other from one server. Then one client process reads from one to eight server processes, with
the same number of reads in flight, whatever the number of servers. Value ``k`` lies at server ``k`` modulo their
number, in all three systems. The rounds take turns, and the medians are shown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import benches

from rstore import compared
from smb3server.lab.bench import machine, page
from smb3server.lab.bench.cases import size_name
from smb3server.lab.bench.errors import interruptible

BENDS = 1.5
"""The line bends where twice as many servers do less than this many times the reads."""
FULL = 0.9
"""Share of its processors that somebody uses who has no time left."""


class Alone(NamedTuple):
    """A round of one read after the other."""

    latency: float
    """Microseconds."""
    server: float
    """Microseconds of the server's processor for each read."""


class Flow(NamedTuple):
    """A round with ``compared.DEPTH`` reads in flight."""

    rate: float
    """Reads per second."""
    servers: float
    """Processors that all servers used together."""
    client: float
    """Processors that the client used."""


# -- the run --------------------------------------------------------------------------------------------------------

Alones = dict[tuple[int, str], list[Alone]]
"""By size and system."""
Flows = dict[tuple[int, str], dict[int, list[Flow]]]
"""By size and system, then by the number of servers."""


async def _alone(system: compared.System, size: int, seconds: float) -> Alone:
    pids = system.processes(1)
    used, began = benches.processor_time(*pids), time.perf_counter()
    count = await system.alone(size, seconds)
    spent = time.perf_counter() - began
    return Alone(spent / count * 1e6, (benches.processor_time(*pids) - used) / count * 1e6)


async def _flow(system: compared.System, servers: int, size: int, seconds: float) -> Flow:
    pids = system.processes(servers)
    used, own, began = benches.processor_time(*pids), time.process_time(), time.perf_counter()
    count = await system.flow(servers, size, seconds)
    spent = time.perf_counter() - began
    return Flow(count / spent, (benches.processor_time(*pids) - used) / spent, (time.process_time() - own) / spent)


async def measure(systems: Sequence[compared.System], rounds: int, seconds: float) -> tuple[Alones, Flows]:
    """Measure everything ``rounds`` times, in turns. Each measurement takes ``seconds``."""
    alones: Alones = {}
    flows: Flows = {}
    for number in range(rounds + 1):
        print(f"round {number} of {rounds}" if number else "warming up", file=sys.stderr, flush=True)
        length = seconds if number else seconds / 10
        for size in compared.SIZES:
            for system in systems:
                alone = await _alone(system, size, length)
                if number:
                    alones.setdefault((size, system.name), []).append(alone)
        for size, servers in itertools.product(compared.SHARDED, compared.SERVERS):
            for system in systems:
                flow = await _flow(system, servers, size, length)
                if number:
                    flows.setdefault((size, system.name), {}).setdefault(servers, []).append(flow)
    return alones, flows


# -- what it shows --------------------------------------------------------------------------------------------------


def bend(flows: dict[int, list[Flow]]) -> int | None:
    """Return the number of servers from which on twice as many serve less than ``BENDS`` times the reads. None: in what
    was measured there is none."""
    for servers, rounds in flows.items():
        twice = flows.get(2 * servers)
        if twice and statistics.median(b.rate / a.rate for a, b in zip(rounds, twice, strict=True)) < BENDS:
            return servers
    return None


def full(servers: int, busy: Flow, processors: int) -> str:
    """Return who has no processor time left. ``busy``: medians with so many servers."""
    found = [
        name
        for name, share in (
            ("the client", busy.client),
            ("the servers", busy.servers / servers),
            ("the machine", (busy.client + busy.servers) / processors),
        )
        if share >= FULL
    ]
    return ", ".join(found) or "nobody"


def _middle(rounds: Sequence[Flow]) -> Flow:
    return Flow(*map(statistics.median, zip(*rounds, strict=True)))


def _growth(flows: Flows, processors: int) -> tuple[str, str]:
    """Return the tables of rates, and of rates per processor."""
    names = [f"{servers} server{'s' * (servers > 1)}" for servers in compared.SERVERS]
    rates = [["value", "system", *names, "bends at", "busy there: client", "servers", "no time left"]]
    shares = [["value", "system", *names]]
    for (size, name), found in flows.items():
        start = [size_name(size), name]
        where = bend(found)
        at = where or max(found)
        busy = _middle(found[at])
        rates.append([
            *start, *(page.number(_middle(rounds).rate) for rounds in found.values()),
            str(where) if where else f"not up to {max(found)}",
            f"{busy.client:.2f}", f"{busy.servers:.2f}", full(at, busy, processors),
        ])  # fmt: skip
        shares.append([
            *start,
            *(f"{_per(rounds, 'servers')} / {_per(rounds, 'client')}" for rounds in found.values()),
        ])  # fmt: skip
    count = len(compared.SERVERS)
    return page.grid(rates, "ll" + "r" * (count + 3)), page.grid(shares, "ll" + "r" * count)


def _per(rounds: Sequence[Flow], whose: str) -> str:
    """Return the reads that one processor of the servers or the client would do in a second."""
    used = [(flow.rate, getattr(flow, whose)) for flow in rounds]
    # A very short measurement may end before the kernel has counted anything.
    return page.number(statistics.median(rate / share for rate, share in used)) if all(s for _, s in used) else "-"


def result(alones: Alones, flows: Flows, measured: str, notes: Sequence[str], processors: int) -> benches.Result:
    """Return tables and picture."""
    systems = list(dict.fromkeys(name for _, name in alones))
    head = [f"{what}: {name}" for what in ("latency, µs", "processor of the server, µs") for name in systems]
    lines = [["bytes", *head]]
    for size in compared.SIZES:
        columns = [list(zip(*alones[size, name], strict=True)) for name in systems]
        values = [statistics.median(column[which]) for which in (0, 1) for column in columns]
        lines.append([f"{size:,}", *map(page.number, values)])
    rates, shares = _growth(flows, processors)
    tables = [
        *notes,
        f"One read after the other, from one server:\n\n{page.grid(lines, 'r' * len(lines[0]))}",
        f"Reads per second of one client with {compared.DEPTH} in flight. The line bends where twice as many servers "
        f"serve less than {BENDS:g} times the reads. *Busy there* are the processors that the client and all servers "
        f"used then, of {processors}. Whoever used {FULL:.0%} of what it could has no time left:\n\n{rates}",
        f"Reads per second of one processor: of the servers / of the client:\n\n{shares}",
    ]
    latency = {
        name: [(size, [alone.latency for alone in alones[size, name]]) for size in compared.SIZES] for name in systems
    }
    sizes = {size: size_name(size) for size in compared.SIZES}
    plots = [benches.Lines("one read after the other, µs", "value", sizes, latency)]
    for size in compared.SHARDED:
        growth = {
            name: [(servers, [flow.rate for flow in rounds]) for servers, rounds in flows[size, name].items()]
            for name in systems
        }
        plots.append(
            benches.Lines(
                f"{size_name(size)}, reads per second, {compared.DEPTH} in flight",
                "servers",
                {servers: str(servers) for servers in compared.SERVERS},
                growth,
            )
        )
    return benches.Result("Latency by size, and reads per second by the number of servers", measured,
                          "\n\n".join(tables), plots)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the comparison."""
    benches.add_arguments(parser, "rstore")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement; default: %(default)s")


def _version(words: compared.Words) -> str:
    said = subprocess.run([words.program, words.version], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+\.\d+\.\d+", said)
    return f"{words.name} {found[0] if found else 'of an unknown version'}"


def installed(every: Sequence[compared.Words]) -> tuple[list[compared.Words], list[str]]:
    """Return those whose programs are there, and a note about the others."""
    there = [words for words in every if shutil.which(words.program)]
    missing = [words.program for words in every if words not in there]
    if not missing:
        return there, []
    return there, [f"**Left out, since not installed:** {', '.join(missing)} (apt-get install {' '.join(missing)})."]


async def _compare(options: argparse.Namespace) -> benches.Result:
    there, notes = installed([compared.Redis(), compared.Memcached()])
    for note in notes:
        print(note, file=sys.stderr)
    async with contextlib.AsyncExitStack() as stack:
        systems: list[compared.System] = [await compared.RStore.start(options.fabric, stack)]
        systems += [compared.TextSystem(words, stack.enter_context(contextlib.ExitStack())) for words in there]
        alones, flows = await measure(systems, options.rounds, options.seconds)
    extent = f"{options.rounds} rounds of {options.seconds:g} s for each value"
    measured = " ".join([machine.briefly(extent), *(f"{_version(words)}." for words in there)])
    return result(alones, flows, measured, notes, len(os.sched_getaffinity(0)))


def run(options: argparse.Namespace) -> None:
    """Measure everything, print it, and write it to the page."""
    with interruptible():
        benches.publish(options, asyncio.run(_compare(options)))
