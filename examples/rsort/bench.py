"""Compare RSort with GNU sort, and with itself when the shuffle goes over sockets, on this machine and in one run.

The rounds take turns, and the medians are shown. Nothing that is done once (workers, memory servers, connections) is
counted, for neither of ours. GNU sort has as many threads as RSort has workers.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import benches
import numpy as np
from rstore.local import local_store

from rsort.cluster import local_cluster
from rsort.model import Cluster, Costs, predict
from rsort.records import KEY, SIZE, generate, in_order, judge_file, records_of
from rsort.sockets import socket_servers
from rsort.sort import PIECE, InRStore, Memory, Step, bucket_of, partition, sort, splitters_of
from smb3server.lab.bench import machine, page
from smbdirect import rdma

_SOME = 500_000
"""Records that the processor costs are measured with."""
_HUNDRED = Cluster(nodes=100, cores=32, network=100, disk=0)
_THESIS = Cluster(nodes=12, cores=16, network=60, disk=0)
"""The machines of the thesis (6.4, 6.5.3): 64 workers on 12 machines with 60 Gbit/s each."""


class Case(NamedTuple):
    """One row of the table."""

    records: int
    workers: int


class Measured(NamedTuple):
    """The rounds of one system in one case."""

    name: str
    seconds: list[float]
    steps: list[list[Step]]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def step(self, word: str) -> float:
        """Return the median of all steps with this word."""
        return statistics.median(sum(s.seconds for s in steps if word in s.name) for steps in self.steps)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=2_400_000, help="of the largest input; default: %(default)s")
    benches.add_arguments(parser, "rsort")
    parser.add_argument("--fabric", default="iwarp", help="iwarp or roce")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="for the data; default: %(default)s")


def _gnu_sort(source: Path, target: Path, workers: int) -> list[Step]:
    began = time.perf_counter()
    words = [
        "sort",
        "-s",
        "-k1.1,1.10",
        f"--parallel={workers}",
        "-S",
        "50%",
        "-T",
        str(target.parent),
        "-o",
        str(target),
    ]
    subprocess.run([*words, str(source)], env={"LC_ALL": "C", "PATH": os.environ["PATH"]}, check=True)
    return [Step("sort", time.perf_counter() - began)]


def _cases(records: int) -> Iterator[Case]:
    """Yield the growth with records, then the growth with workers, at half of the records."""
    cores = os.cpu_count() or 1
    yield from (Case(count, cores) for count in (records // 8, records // 2, records))
    workers = 1
    while workers < cores:
        yield Case(records // 2, workers)
        workers *= 2


def _compare(
    case: Case, client: Any, memories: Sequence[tuple[str, Memory]], source: Path, rounds: int
) -> list[Measured]:
    target = source.with_name("out")
    systems: list[tuple[str, Callable[[], list[Step]]]] = [
        ("GNU sort", lambda: _gnu_sort(source, target, case.workers)),
        *((name, lambda memory=memory: sort(client, source, target, memory, report=lambda line: None))
          for name, memory in memories),
    ]  # fmt: skip
    found = [Measured(name, [], []) for name, _ in systems]
    given = judge_file(source)
    for number in range(rounds + 1):
        for (name, work), measured in zip(systems, found, strict=True):
            began = time.perf_counter()
            steps = work()
            seconds = time.perf_counter() - began
            if number == 0:
                # The first round warms up, and shows that the result is right.
                verdict = judge_file(target)
                if verdict.unordered or (verdict.records, verdict.checksum) != (given.records, given.checksum):
                    raise ValueError(f"{name}: the output is not the input in order")
            else:
                measured.seconds.append(seconds)
                measured.steps.append(steps)
            target.unlink()
    return found


def _per_record(work: Callable[[], object]) -> float:
    """Return the processor seconds per record of what works on ``_SOME`` records: the median of five times."""
    times = []
    for _ in range(5):
        before = time.process_time()
        work()
        times.append((time.process_time() - before) / _SOME)
    return statistics.median(times)


def _costs(client: Any, memory: InRStore) -> Costs:
    records = records_of(generate(0, _SOME, 1))
    splitters = splitters_of(records[::500, :KEY], 32)

    def scatter() -> None:
        part = partition(records, splitters)
        for bucket in range(len(splitters) + 1):
            part(bucket)

    began = time.perf_counter()
    client.gather([client.submit(_nothing, number, pure=False) for number in range(500)])
    task = (time.perf_counter() - began) / 500
    with memory.open() as store:
        began = time.perf_counter()
        for number in range(20):
            store.create(f"bench-{number}", 1 << 20, columns=1, keep=False)
        allocate = (time.perf_counter() - began) / 20
        for number in range(20):
            del store[f"bench-{number}"]
    return Costs(
        counting=_per_record(lambda: np.bincount(bucket_of(records, splitters))),
        partition=_per_record(scatter),
        sort=_per_record(lambda: in_order(records)),
        transfer=_transfer(memory.fabric),
        task=task,
        allocate=allocate,
    )


def _nothing(number: int) -> int:
    return number


def _transfer(fabric: str) -> float:
    """Return the processor seconds per record of both ends of a fabric in user space, for writes of 256 KiB."""
    memory, number = bytearray(1 << 18), 500

    async def measure() -> float:
        async with rdma.listen(fabric) as listener, rdma.connect(fabric, *listener.address) as client:
            region = (await listener.accept()).register(memory, writable=True)
            before = time.process_time()
            for _ in range(number):
                async with client.batch() as batch:
                    batch.write(region.handle, memory)
                    batch.fence()
            return time.process_time() - before

    return asyncio.run(measure()) / (number * len(memory) / SIZE)


def _growth(found: dict[Case, list[Measured]]) -> str:
    head = ["records", "workers"]
    lines: list[list[str]] = []
    for case, systems in found.items():
        if not lines:
            head += [f"{one.name}, s" for one in systems] + [f"{one.name}, MB/s" for one in systems]
            head += [f"shuffle alone: {one.name}, s" for one in systems[1:]]
            lines.append(head)
        lines.append([
            f"{case.records:,}", str(case.workers), *(f"{one.median:.2f}" for one in systems),
            *(f"{case.records * SIZE / one.median / 1e6:,.0f}" for one in systems),
            *(f"{one.step('shuffle'):.2f}" for one in systems[1:]),
        ])  # fmt: skip
    return page.grid(lines, "r" * len(head))


def _plots(found: dict[Case, list[Measured]]) -> list[benches.Lines]:
    """Draw the growth with records on all processors, and that with workers at the number that has most of them."""
    workers = max(case.workers for case in found)
    records = collections.Counter(case.records for case in found).most_common(1)[0][0]
    names = [one.name for one in next(iter(found.values()))]

    def lines(cases: dict[int, Case]) -> dict[str, list[tuple[float, list[float]]]]:
        return {
            name: [(place, found[case][number].seconds) for place, case in cases.items()]
            for number, name in enumerate(names)
        }

    by_records = {case.records: case for case in found if case.workers == workers}
    by_workers = {case.workers: case for case in found if case.records == records}
    return [
        benches.Lines(
            f"seconds, {workers} workers", "records", {count: f"{count:,}" for count in by_records}, lines(by_records)
        ),
        benches.Lines(
            f"seconds, {records:,} records", "workers", {count: str(count) for count in by_workers}, lines(by_workers)
        ),
    ]


def _model(costs: Costs, case: Case, measured: Measured) -> str:
    inputs = [
        ["measured here", "value"],
        ["count: processor per record", f"{costs.counting * 1e9:.0f} ns"],
        ["shuffle: processor per record, without the transfer", f"{costs.partition * 1e9:.0f} ns"],
        ["sort: processor per record, without the transfer", f"{costs.sort * 1e9:.0f} ns"],
        ["transfer: processor per record, software NICs, both ends", f"{costs.transfer * 1e9:.0f} ns"],
        ["scheduler per task", f"{costs.task * 1e3:.2f} ms"],
        ["allocation of a bucket", f"{costs.allocate * 1e3:.2f} ms"],
    ]  # fmt: skip
    here = Cluster(1, case.workers, 0, 0, nic_in_hardware=False)
    head = ["cluster", "records", "allocate", "count", "shuffle", "sort and write", "all, s",
            "without the control path, s", "longest step"]  # fmt: skip
    lines = [head]
    for name, records, cluster, piece in (
        (f"this machine, {case.workers} workers (measured: {measured.median:.2f} s)", case.records, here, PIECE),
        ("the thesis's: 12 nodes, 16 cores, 60 Gbit/s (measured there: 31.7 s)", 2_560_000_000, _THESIS, 1 << 28),
        ("100 nodes, 32 cores, 100 Gbit/s", 10_000_000_000, _HUNDRED, 1 << 28),
        ("100 nodes, 32 cores, 100 Gbit/s, disks of 3 GB/s", 10_000_000_000, _HUNDRED._replace(disk=3), 1 << 28),
        ("100 nodes, 32 cores, 100 Gbit/s", 100_000_000_000, _HUNDRED, 1 << 28),
    ):
        parts = predict(records, cluster, costs, piece)
        longest = max(parts, key=lambda part: part.seconds)
        lines.append([
            name, f"{records:,}", *(f"{part.seconds:.2f}" for part in parts),
            f"{sum(part.seconds for part in parts):.1f}", f"{sum(part.data for part in parts):.1f}",
            f"{longest.name}: {longest.limit}",
        ])  # fmt: skip
    return f"{page.grid(inputs, 'lr')}\n\n{page.grid(lines, 'l' + 'r' * (len(head) - 2))}"


def run(options: argparse.Namespace) -> None:
    """Measure everything, print it, and write it to the page."""
    cases = list(_cases(options.records))
    found: dict[Case, list[Measured]] = {}
    servers = min(4, os.cpu_count() or 1)
    capacity = int(options.records * SIZE * 1.25) // servers + (64 << 20)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rsort-", dir=options.folder)))
        memory = InRStore(*stack.enter_context(local_store(servers, capacity, options.fabric)), options.fabric)
        sockets = stack.enter_context(socket_servers(servers, capacity))
        memories: list[tuple[str, Memory]] = [(f"RSort ({options.fabric})", memory), ("over sockets", sockets)]
        costs: Costs | None = None
        for workers in sorted({case.workers for case in cases}, reverse=True):
            with local_cluster(workers) as client:
                for case in cases:
                    if case.workers != workers:
                        continue
                    source = folder / "in"
                    with source.open("wb") as file:
                        for first in range(0, case.records, 1 << 16):
                            file.write(generate(first, min(1 << 16, case.records - first), 1))
                    found[case] = _compare(case, client, memories, source, options.rounds)
                    times = ", ".join(f"{one.name} {one.median:.2f} s" for one in found[case])
                    print(f"{case.records} records, {workers} workers: {times}", flush=True)
                if costs is None:
                    costs = _costs(client, memory)
    assert costs is not None
    largest = max(found, key=lambda case: (case.workers, case.records))
    measured = machine.briefly(f"{options.rounds} rounds")
    tables = [_growth(found), "What the model says, and from what:", _model(costs, largest, found[largest][1])]
    benches.publish(
        options,
        benches.Result(
            "Seconds by the number of records and of workers",
            f"{measured} numpy {np.__version__}, {servers} memory servers, data in `{options.folder}`.",
            "\n\n".join(tables),
            _plots(found),
        ),
    )
