"""The sort: a sample says which keys each bucket has, the shuffle writes every record one-sided to its bucket, and each
bucket is sorted by itself.

What can be done once is done before the shuffle: buckets are regions of RStore with exactly the bytes that they will
get, and each piece of the input knows where in each bucket its records go. The shuffle is nothing but RDMA Writes.
Every task may run twice, on any worker: it writes the same bytes to the same place. So a worker that dies costs time
alone.
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import rstore
from numpy.typing import NDArray
from rstore.layout import UNIT

from rsort.records import KEY, NOTHING, SIZE, Records, Verdict, in_order, judge, keys_of, records_of
from smbdirect.errors import SmbDirectError

log = logging.getLogger(__name__)

PIECE = 1 << 24
"""Bytes of input that a task reads at a time."""
BUCKET = 1 << 26
"""Bytes of the largest bucket that is planned: a worker needs about four times as much to sort it."""
SAMPLE = 1000
"""Records of each piece that are looked at for the ranges of the buckets."""
STRIPES = 4
"""Memory servers that a bucket is striped over, at most. There are many buckets, so all servers get some."""
WORKERS_WITHIN = 30.0
"""Seconds to wait for the first worker of a cluster."""


class Memory(Hashable, Protocol):
    """Where the buckets are. It is sent to every worker, and must be hashable: each process connects once."""

    def open(self) -> Any:
        """Connect. The result has the methods of ``rstore.Store``."""


class InRStore(NamedTuple):
    """Buckets in the store whose master is at this address."""

    host: str
    port: int
    fabric: str = "iwarp"

    def open(self) -> rstore.Store:
        return rstore.open_store(self.host, self.port, self.fabric)


class Plan(NamedTuple):
    """What every task knows."""

    source: str
    target: str
    memory: Memory
    splitters: Records
    """The smallest key of each bucket but the first, in order, a key in each row."""


class Step(NamedTuple):
    """How long a part of the sort took."""

    name: str
    seconds: float


class WrongOutput(Exception):
    """The output is not the input in order. It was removed."""


# -- what the workers do --------------------------------------------------------------------------------------------


@functools.cache
def _opened(memory: Any) -> Any:
    """Return this process's connections, which are made once."""
    return memory.open()


@functools.lru_cache(256)
def _region(memory: Any, name: str) -> Any:
    return _opened(memory)[name]


def _piece(path: str, start: int, length: int) -> bytes:
    with Path(path).open("rb") as file:
        file.seek(start)
        return file.read(length)


def sample(path: str, start: int, length: int) -> Records:
    """Return some keys of a piece, from all over it."""
    stride = max(1, length // SIZE // SAMPLE) * SIZE
    with Path(path).open("rb") as file:
        keys = [os.pread(file.fileno(), KEY, at) for at in range(start, start + length, stride)]
    return np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY)


def splitters_of(keys: Records, buckets: int) -> Records:
    """Return the keys that cut the sorted ``keys`` into ``buckets`` of about the same size."""
    return in_order(keys)[np.arange(1, buckets) * len(keys) // buckets]


def bucket_of(records: Records, splitters: Records) -> NDArray[np.intp]:
    """Return the bucket of each record. Records with the same key are in the same one."""
    heads, edges = keys_of(records)[0], keys_of(splitters)[0]
    buckets = np.searchsorted(edges, heads, side="right")
    if len(edges):
        # 8 bytes decide quickly for nearly all. Those that have the same as a splitter are compared as a whole.
        tied = np.flatnonzero(edges[np.maximum(buckets, 1) - 1] == heads)
        keys = np.ascontiguousarray(records[tied, :KEY]).view(f"S{KEY}").reshape(-1)
        whole = np.ascontiguousarray(splitters).view(f"S{KEY}").reshape(-1)
        buckets[tied] = np.searchsorted(whole, keys, side="right")
    return buckets


def count(plan: Plan, start: int, length: int) -> NDArray[np.int64]:
    """Return how many records of a piece are for each bucket."""
    records = records_of(_piece(plan.source, start, length))
    return np.bincount(bucket_of(records, plan.splitters), minlength=len(plan.splitters) + 1)


def partition(records: Records, splitters: Records) -> Callable[[int], Records]:
    """Return a function that returns the records of a bucket, in the order of the input."""
    buckets = bucket_of(records, splitters)
    order = np.argsort(buckets, kind="stable")
    edges = np.searchsorted(buckets[order], np.arange(len(splitters) + 2))
    return lambda bucket: records[order[edges[bucket] : edges[bucket + 1]]]


def shuffle(plan: Plan, start: int, length: int, places: dict[int, tuple[str, int]]) -> int:
    """Write the records of a piece to their buckets. ``places``: the region of each bucket of this pass, and where the
    piece's records begin in it. Return the bytes written."""
    part = partition(records_of(_piece(plan.source, start, length)), plan.splitters)
    written = 0
    for bucket, (name, at) in places.items():
        chosen = part(bucket)
        if len(chosen):
            _region(plan.memory, name).write(chosen.reshape(-1), at * SIZE)
            written += chosen.size
    return written


def finish(plan: Plan, name: str, records: int, place: int) -> int:
    """Sort a bucket, and write it to its place in the output, in records. Return the records."""
    data = bytearray(records * SIZE)
    _region(plan.memory, name).read_into(data)
    ordered = in_order(records_of(data)).reshape(-1).data
    # Not created: a task that comes too late must not leave a file behind.
    descriptor = os.open(plan.target, os.O_WRONLY)
    try:
        done = 0
        while done < len(ordered):
            done += os.pwrite(descriptor, ordered[done:], place * SIZE + done)
    finally:
        os.close(descriptor)
    return records


def judge_piece(path: str, start: int, length: int) -> Verdict:
    """Judge a piece of a file."""
    return judge(_piece(path, start, length))


# -- what the program does ------------------------------------------------------------------------------------------


def footprint(size: int, servers: int) -> int:
    """Return the bytes that a bucket of ``size`` bytes takes in the store: each column has whole units."""
    row = UNIT * min(servers, STRIPES)
    return -(-size // row) * row


def passes(sizes: Sequence[int], room: int) -> Iterator[list[int]]:
    """Yield the buckets that fit into the store together, in order. Raise ``ValueError`` if one does not fit at all."""
    chosen: list[int] = []
    used = 0
    for bucket, size in enumerate(sizes):
        if size > room:
            raise ValueError(f"a bucket needs {size} bytes, the store has room for {room}: give it more memory (equal "
                             "keys are in one bucket), or take more buckets")  # fmt: skip
        if used + size > room:
            yield chosen
            chosen, used = [], 0
        chosen.append(bucket)
        used += size
    yield chosen


def _room(store: Any, copies: int) -> int:
    """Return how many bytes fit into a store: what the fullest server has left, of each."""
    servers = store.servers()
    left = min((entry["capacity"] - entry["used"] for entry in servers), default=0)
    return int(left * len(servers) // copies * 0.95)


@contextmanager
def _regions(store: Any, sizes: dict[int, int], copies: int, stripes: int) -> Iterator[dict[int, str]]:
    """Make a region for each bucket, and free them at the end. Yield their names."""
    names: dict[int, str] = {}
    try:
        for bucket, size in sizes.items():
            name = f"rsort-{secrets.token_hex(6)}"
            # If this program is killed, the master frees them.
            store.create(name, size, copies=copies, columns=stripes, keep=False)
            names[bucket] = name
        yield names
    except BaseException:
        try:
            _free(store, names.values())
        except (rstore.StoreRefused, rstore.RegionGone, SmbDirectError, OSError) as error:
            log.warning("buckets are left in the store: %s", error)
        raise
    _free(store, names.values())


def _free(store: Any, names: Iterable[str]) -> None:
    for name in names:
        del store[name]


def sort(
    client: Any,
    source: Path,
    target: Path,
    memory: Memory,
    *,
    buckets: int = 0,
    copies: int = 1,
    piece: int = PIECE,
    check: bool = False,
    report: Callable[[str], None] = print,
) -> list[Step]:
    """Sort ``source`` to ``target`` by the workers of ``client`` (of dask). Return how long each step took.

    ``buckets``: 0 means four for each worker, or more if they were too large. With less room in the store than the
    input needs, the buckets are done in several passes over the input. ``target`` appears when it is whole and, with
    ``check``, was found to be the input in order. Raise ``OSError``, ``ValueError`` for an input that is no records or
    does not fit, ``WrongOutput``, and what the tasks raise: ``rstore.RegionLost`` if a memory server died and there is
    no copy."""
    # Workers may have other working directories.
    source, target = source.resolve(), target.resolve()
    size = source.stat().st_size
    if size % SIZE:
        raise ValueError(f"{source}: {size} bytes are not whole records of {SIZE}")
    piece = max(piece // SIZE, 1) * SIZE
    pieces = [(start, min(piece, size - start)) for start in range(0, size, piece)]
    client.wait_for_workers(1, timeout=WORKERS_WITHIN)
    workers = sum(client.ncores().values())
    number = buckets or max(1, 4 * workers, -(-size // BUCKET))
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    steps, began = [], time.perf_counter()

    def run(task: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> list[Any]:
        # A task whose worker died runs again. dask drops those that nobody waits for any longer.
        found: list[Any] = client.gather([client.submit(task, *words, pure=False) for words in arguments])
        return found

    def step(name: str) -> None:
        nonlocal began
        steps.append(Step(name, time.perf_counter() - began))
        report(f"{name}: {steps[-1].seconds:.2f} s")
        began = time.perf_counter()

    def sorted_to_partial() -> None:
        keys = np.concatenate(run(sample, [(str(source), *place) for place in pieces]))
        plan = Plan(str(source), str(partial), memory, splitters_of(keys, number))
        step("sample")
        counts = np.array(run(count, [(plan, *place) for place in pieces]))
        before, totals = np.cumsum(counts, axis=0) - counts, counts.sum(axis=0)
        firsts = np.cumsum(totals) - totals
        step("count")
        with memory.open() as store:
            stripes = min(len(store.servers()), STRIPES)
            for chosen in passes([footprint(int(n) * SIZE, stripes) for n in totals], _room(store, copies)):
                sizes = {bucket: int(totals[bucket]) * SIZE for bucket in chosen if totals[bucket]}
                with _regions(store, sizes, copies, stripes) as names:
                    step(f"allocate {len(names)} buckets")
                    run(shuffle, [
                        (plan, *place, {bucket: (name, int(before[row, bucket])) for bucket, name in names.items()})
                        for row, place in enumerate(pieces)
                    ])  # fmt: skip
                    step("shuffle")
                    run(finish, [(plan, name, int(totals[b]), int(firsts[b])) for b, name in names.items()])
                    step("sort and write")

    def checked() -> None:
        verdicts = [
            sum(run(judge_piece, [(str(path), *place) for place in pieces]), NOTHING) for path in (source, partial)
        ]
        given, made = verdicts
        if made.unordered or (made.records, made.checksum) != (given.records, given.checksum):
            raise WrongOutput(f"{made.unordered} records out of order; records {made.records} of {given.records}, "
                              f"checksum {made.checksum:x} of {given.checksum:x}")  # fmt: skip
        step("check")

    try:
        with partial.open("wb") as made:
            if size:
                # A disk that is too small says so now.
                os.posix_fallocate(made.fileno(), 0, size)
        if size:
            sorted_to_partial()
            if check:
                checked()
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return steps
