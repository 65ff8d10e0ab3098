"""The sort: a sample says which keys each bucket has, the shuffle writes every record one-sided to its bucket, and each
bucket is sorted by itself.

What can be done once is done before the shuffle: buckets are regions of RStore with exactly the bytes that they will
get, and each piece of the input knows where in each bucket its records go. The shuffle is nothing but RDMA Writes.
Every task may run twice, on any worker: it writes the same bytes to the same place. So a worker that dies costs time
alone.
"""

from __future__ import annotations

import functools
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rstore
from numpy.typing import NDArray

from rsort.records import SIZE, in_order, keys_of, records_of

PIECE = 1 << 24
"""Bytes of input that a task reads at a time."""
SAMPLE = 2000
"""Records of each piece that are looked at for the ranges of the buckets."""

Address = tuple[str, int]


class Plan(NamedTuple):
    """What every task knows."""

    source: str
    target: str
    store: Address
    fabric: str
    splitters: NDArray[np.uint64]
    """The smallest key (its first 8 bytes) of each bucket but the first."""


class Step(NamedTuple):
    """How long a part of the sort took."""

    name: str
    seconds: float


@functools.cache
def _store(address: Address, fabric: str) -> rstore.Store:
    """Return this process's store: its connections are made once."""
    return rstore.open_store(*address, fabric)


@functools.lru_cache(256)
def _region(address: Address, fabric: str, name: str) -> Any:
    return _store(address, fabric)[name]


def _piece(path: str, start: int, length: int) -> bytes:
    with Path(path).open("rb") as file:
        file.seek(start)
        return file.read(length)


def sample(path: str, start: int, length: int) -> NDArray[np.uint64]:
    """Return some keys of a piece."""
    head, _ = keys_of(records_of(_piece(path, start, length)))
    return head[:: max(1, len(head) // SAMPLE)]


def count(plan: Plan, start: int, length: int) -> NDArray[np.int64]:
    """Return how many records of a piece are for each bucket."""
    head, _ = keys_of(records_of(_piece(plan.source, start, length)))
    buckets = np.searchsorted(plan.splitters, head, side="right")
    return np.bincount(buckets, minlength=len(plan.splitters) + 1)


def shuffle(plan: Plan, start: int, length: int, places: dict[int, tuple[str, int]]) -> int:
    """Write the records of a piece to their buckets. ``places``: the region of each bucket of this pass, and where the
    piece's records begin in it. Return the bytes written."""
    records = records_of(_piece(plan.source, start, length))
    head, _ = keys_of(records)
    buckets = np.searchsorted(plan.splitters, head, side="right")
    order = np.argsort(buckets, kind="stable")
    edges = np.searchsorted(buckets[order], np.arange(len(plan.splitters) + 2))
    written = 0
    for bucket, (name, at) in places.items():
        chosen = records[order[edges[bucket] : edges[bucket + 1]]]
        if len(chosen):
            _region(plan.store, plan.fabric, name).write(chosen.reshape(-1), at * SIZE)
            written += chosen.size
    return written


def finish(plan: Plan, name: str, records: int, place: int) -> int:
    """Sort a bucket, and write it to its place in the output, in records. Return the records."""
    data = bytearray(records * SIZE)
    _region(plan.store, plan.fabric, name).read_into(data)
    ordered = in_order(records_of(data)).tobytes()
    descriptor = os.open(plan.target, os.O_WRONLY)
    try:
        done = 0
        while done < len(ordered):
            done += os.pwrite(descriptor, memoryview(ordered)[done:], place * SIZE + done)
    finally:
        os.close(descriptor)
    return records


def _passes(sizes: Sequence[int], room: int) -> Iterable[list[int]]:
    """Yield the buckets that fit into the store together, in order."""
    chosen: list[int] = []
    for bucket, size in enumerate(sizes):
        if chosen and sum(sizes[other] for other in chosen) + size > room:
            yield chosen
            chosen = []
        chosen.append(bucket)
    yield chosen


def sort(
    client: Any,
    source: Path,
    target: Path,
    store: Address,
    *,
    fabric: str = "iwarp",
    buckets: int = 0,
    copies: int = 1,
    piece: int = PIECE,
    report: Callable[[str], None] = print,
) -> list[Step]:
    """Sort ``source`` to ``target`` by the workers of ``client`` (of dask). Return how long each step took.

    ``buckets``: 0 means four for each worker. With less room in the store than the input needs, the buckets are done in
    several passes over the input. ``target`` appears when it is whole. Raise ``OSError``, ``ValueError`` for an input
    that is no records, and what the tasks raise: ``rstore.RegionLost`` if a memory server died and there is no copy."""
    size = source.stat().st_size
    if size % SIZE:
        raise ValueError(f"{source}: {size} bytes are not whole records of {SIZE}")
    piece = max(piece // SIZE, 1) * SIZE
    pieces = [(start, min(piece, size - start)) for start in range(0, size, piece)]
    workers = sum(client.ncores().values())
    number = buckets or max(1, min(4 * workers, size // SIZE))
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    steps, began = [], time.perf_counter()

    def step(name: str) -> None:
        nonlocal began
        steps.append(Step(name, time.perf_counter() - began))
        report(f"{name}: {steps[-1].seconds:.2f} s")
        began = time.perf_counter()

    def run(task: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> list[Any]:
        futures = [client.submit(task, *words, pure=False, retries=2) for words in arguments]
        found: list[Any] = client.gather(futures)
        return found

    try:
        with partial.open("wb") as made:
            made.truncate(size)
        keys = np.sort(np.concatenate([np.empty(0, np.uint64), *run(sample, [(str(source), *p) for p in pieces])]))
        places = np.linspace(0, len(keys), number + 1).astype(int)[1:-1]
        plan = Plan(str(source), str(partial), store, fabric, keys[places])
        step("sample")
        counts = np.array(run(count, [(plan, *p) for p in pieces])).reshape(len(pieces), -1)
        before, totals = np.cumsum(counts, axis=0) - counts, counts.sum(axis=0)
        firsts = np.cumsum(totals) - totals
        step("count")
        with rstore.open_store(*store, fabric) as here:
            servers = here.servers()
            room = int(sum(entry["capacity"] - entry["used"] for entry in servers) / copies * 0.9)
            for chosen in _passes([int(total) * SIZE for total in totals], room):
                names = {bucket: f"rsort-{secrets.token_hex(6)}" for bucket in chosen if totals[bucket]}
                for bucket, name in names.items():
                    here.create(name, int(totals[bucket]) * SIZE, copies=copies, keep=False)
                step(f"allocate {len(names)} buckets")
                run(shuffle, [
                    (plan, *place, {bucket: (name, int(before[row, bucket])) for bucket, name in names.items()})
                    for row, place in enumerate(pieces)
                ])  # fmt: skip
                step("shuffle")
                run(finish, [(plan, name, int(totals[b]), int(firsts[b])) for b, name in names.items()])
                step("sort and write")
                for name in names.values():
                    del here[name]
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return steps
