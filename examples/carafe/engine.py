"""A run: the graph goes into RStore, each worker takes its part, and then there are only supersteps.

What can be done once is done before the first of them: vertices are divided, regions are allocated, and every edge
knows where in the mailbox the message of its source will lie. A superstep is one RDMA Write to each other worker and a
pass over the edges in own memory.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import dask
import distributed
import numpy as np
import rstore
from rstore.local import local_store

from carafe.graph import Graph, Numbers, bounds
from carafe.mailbox import WORD, Mailbox, WorkerLost
from carafe.programs import Part, Program, Values
from smbdirect.errors import SmbDirectError

cluster: Any = distributed

Address = tuple[str, int]
AGAIN = "nothing is left of this run; start it again"
LEAVING = 5.0
"""Seconds that workers have to notice that one of them is gone."""


class CarafeError(Exception):
    """The run has failed. The text says which part, and what to do."""


class Plan(NamedTuple):
    """What every worker knows."""

    run: str
    store: Address
    fabric: str
    vertices: int
    bounds: Numbers
    """The first vertex of each worker, and the number of vertices."""
    edges: Numbers
    """The first edge of each worker, and the number of edges."""
    program: Program


class Report(NamedTuple):
    """What a worker says at its end."""

    preparing: float
    """Seconds before the first superstep."""
    supersteps: list[float]
    """Seconds of each."""


class Outcome(NamedTuple):
    """The result of a run."""

    results: dict[str, Values]
    """By name, one number for each vertex."""
    preparing: float
    """Seconds before the first superstep, of the slowest worker."""
    supersteps: list[float]
    """Seconds of each, of the slowest worker."""


class Gather:
    """The edges of a partition: they combine the messages of their sources for each target."""

    def __init__(self, targets: Numbers, slots: Values, count: int, program: Program) -> None:
        """``targets``: of each edge, from 0, in order. ``slots``: where in the buffer its message lies. ``count``: of
        the own vertices."""
        self._slots, self._combine = slots, program.combine
        self._reached, self._begin = np.unique(targets, return_index=True)
        self._messages: Values = np.empty(len(slots), program.kind)
        self._received: Values = np.full(count, program.nothing, program.kind)

    def __call__(self, buffer: Values) -> Values:
        """Return what each vertex gets. It is good until the next call."""
        if len(self._reached):
            np.take(buffer, self._slots, out=self._messages, mode="clip")
            self._received[self._reached] = self._combine.reduceat(self._messages, self._begin)
        return self._received


def work(plan: Plan, index: int) -> Report:
    """Do the part of worker ``index``: all supersteps, in step with the other workers. Raise ``WorkerLost``, and what
    the program raises."""
    began = time.perf_counter()
    program = plan.program
    with rstore.open_store(*plan.store, plan.fabric) as store:
        first, stop = int(plan.bounds[index]), int(plan.bounds[index + 1])
        edges = np.empty(int(plan.edges[index + 1] - plan.edges[index]), np.int64)
        store[f"{plan.run}-edges"].read_into(edges, int(plan.edges[index]) * WORD)
        degrees = np.empty(stop - first, np.int64)
        store[f"{plan.run}-degrees"].read_into(degrees, first * WORD)
        targets, sources = np.divmod(edges, plan.vertices)
        needed = np.bincount(sources, minlength=plan.vertices) > 0
        needs, place = np.flatnonzero(needed), (np.cumsum(needed) - 1)[sources]
        host = "127.0.0.1" if plan.store[0] == "127.0.0.1" else "0.0.0.0"
        mailbox = Mailbox(store, plan.run, index, plan.bounds, needs, program.kind, host)
        gather = Gather(targets - first, mailbox.slots[place], stop - first, program)
        part = Part(first, degrees, plan.vertices)
        program.begin(part)
        mailbox.connect(program.kind)
        report = Report(time.perf_counter() - began, [])
        over = False
        while not over:
            began = time.perf_counter()
            buffer, votes = mailbox.exchange(*program.send(part))
            over = program.apply(part, gather(buffer), votes)
            report.supersteps.append(time.perf_counter() - began)
        for column, name in enumerate(program.results):
            data: Values = np.ascontiguousarray(getattr(program, name), program.kind)
            store[f"{plan.run}-results"].write(data, (column * plan.vertices + first) * WORD)
        mailbox.leave()
    return report


def run(
    client: Any,
    graph: Graph,
    program: Program,
    store: Address,
    *,
    workers: int = 0,
    copies: int = 1,
    fabric: str = "iwarp",
) -> Outcome:
    """Run a program on the workers of ``client`` (of dask), or on the first ``workers`` of them.

    ``copies``: of the graph and of the results in the store; with 2 the run survives a memory server that dies. Raise
    ``CarafeError`` if a worker or the store is lost, and what the program raises."""
    addresses = sorted(client.ncores())[: workers or None]
    edges = graph.simple(program.both_ways)
    cuts = bounds(graph.vertices, edges, len(addresses))
    name = f"carafe-{secrets.token_hex(6)}"
    plan = Plan(name, store, fabric, graph.vertices, cuts, np.searchsorted(edges, cuts * graph.vertices), program)
    out_degree = np.bincount(edges % graph.vertices, minlength=graph.vertices)
    try:
        # What this client makes is freed when it closes.
        with rstore.open_store(*store, fabric) as here:
            for what, data in (("edges", edges), ("degrees", out_degree)):
                here.create(f"{name}-{what}", max(data.nbytes, 1), copies=copies, keep=False).write(data)
            size = len(program.results) * graph.vertices * WORD
            here.create(f"{name}-results", max(size, 1), copies=copies, keep=False)
            reports = _run_workers(client, plan, addresses, here)
            found: Values = np.empty((len(program.results), graph.vertices), program.kind)
            here[f"{name}-results"].read_into(found)
    except SmbDirectError as error:
        raise CarafeError(f"the store does not answer: {error}; {AGAIN} with a store that has a master") from error
    except rstore.RegionLost as error:
        lost = str(error).partition(":")[0]
        hint = f"{AGAIN}, with two copies to survive a memory server that dies"
        raise CarafeError(f"a memory server died: {lost}; {hint}") from error
    slowest = np.max([report.supersteps for report in reports], axis=0)
    return Outcome(
        dict(zip(program.results, found, strict=True)), max(report.preparing for report in reports), slowest.tolist()
    )


def _run_workers(client: Any, plan: Plan, addresses: Sequence[str], store: rstore.Store) -> list[Report]:
    """Start a task for each worker, at that worker and nowhere else, and wait for all."""
    futures = [
        client.submit(work, plan, index, workers=[address], pure=False, retries=0)
        for index, address in enumerate(addresses)
    ]
    pending = set(futures)
    try:
        while pending:
            try:
                done, pending = cluster.wait(pending, timeout=1.0, return_when="FIRST_COMPLETED")
            except TimeoutError:
                done = set()
            failed = [future.exception() for future in done if future.status == "error"]
            if failed:
                # The others lose a worker because it failed.
                raise min(failed, key=lambda error: isinstance(error, WorkerLost))
            gone = [index for index, address in enumerate(addresses) if address not in client.ncores()]
            if gone and pending:
                raise WorkerLost(f"worker {gone[0]} at {addresses[gone[0]]} is gone")
            store[f"{plan.run}-results"]  # it raises RegionLost: what is computed now could not be kept
        reports: list[Report] = client.gather(futures)
        return reports
    except (WorkerLost, cluster.scheduler.KilledWorker) as error:
        raise CarafeError(f"{_cause(error, addresses)}; {AGAIN}") from error
    finally:
        _let_go(store, plan, futures)


def _cause(error: Any, addresses: Sequence[str]) -> str:
    if isinstance(error, WorkerLost):
        return str(error)
    died = [index for index, address in enumerate(addresses) if address == error.last_worker.address]
    return f"worker {died[0] if died else '?'} was killed"


def _let_go(store: rstore.Store, plan: Plan, futures: Sequence[Any]) -> None:
    """End what still runs: who finds no mailbox to write to gives up. A lost worker's task cannot end: it is
    cancelled."""
    deadline = 0.0
    with suppress(SmbDirectError):  # nobody can be told, if the store has no master any more
        for index, future in enumerate(futures):
            if future.status == "pending":
                with suppress(rstore.RegionGone, rstore.StoreRefused):
                    del store[f"{plan.run}-mailbox-{index}"]
        deadline = time.monotonic() + LEAVING
    for future in futures:
        while future.status == "pending" and time.monotonic() < deadline:
            time.sleep(0.05)
        future.cancel()


@contextmanager
def local_cluster(workers: int) -> Iterator[Any]:
    """Start a cluster of dask with ``workers`` processes on this machine."""
    private = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    # A task that lost its worker cannot go on by itself: the others have gone on, too.
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        cluster.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            silence_logs=logging.CRITICAL,
            worker_dashboard_address="127.0.0.1:0",
            scheduler_kwargs=private,
        ) as processes,
        cluster.Client(processes) as client,
    ):
        yield client


@contextmanager
def local_graph_store(graph: Graph, servers: int, copies: int = 1, fabric: str = "iwarp") -> Iterator[Address]:
    """Start a store on this machine with enough memory for the graph and its results."""
    servers = max(servers, copies)
    words = 2 * len(graph.sources) + 4 * graph.vertices
    with local_store(servers, int(words * WORD * copies * 1.3) // servers + (16 << 20), fabric) as address:
        yield address
