"""The programs of the sort: ``python examples/rsort --help``."""

import argparse
import contextlib
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import distributed
from rstore import RegionLost, StoreRefused
from rstore.local import local_store

from rsort.records import SIZE, generate, judge_file
from rsort.sort import PIECE, Address, sort
from smbdirect.errors import SmbDirectError


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rsort", description="Sort records of 100 bytes. See docs/rsort.md.")
    commands = parser.add_subparsers(dest="command", required=True)
    gen = commands.add_parser("gen", help="make records, as gensort -a does")
    gen.add_argument("file", type=Path)
    gen.add_argument("records", type=int)
    gen.add_argument("--seed", type=int, default=1)
    check = commands.add_parser("check", help="judge a file, as valsort does")
    check.add_argument("file", type=Path)
    one = commands.add_parser("sort", help="sort a file")
    one.add_argument("source", type=Path)
    one.add_argument("target", type=Path)
    one.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="local processes")
    one.add_argument("--scheduler", help="of a dask cluster, in place of local processes: tcp://HOST:8786")
    one.add_argument("--store", type=_address, help="HOST:PORT of an RStore master; default: one on this machine")
    one.add_argument("--memory", type=int, default=0, help="bytes of the local store; default: enough for all")
    one.add_argument("--copies", type=int, default=1, help="of each bucket: 2 survive a memory server that dies")
    one.add_argument("--buckets", type=int, default=0)
    one.add_argument("--piece", type=int, default=PIECE, help="bytes of input for a task")
    one.add_argument("--mark", help=argparse.SUPPRESS)
    return parser


def _generate(path: Path, records: int, seed: int) -> None:
    with path.open("wb") as file:
        for first in range(0, records, 1 << 16):
            file.write(generate(first, min(1 << 16, records - first), seed))


def _check(path: Path) -> int:
    found = judge_file(path)
    print(f"Records: {found.records}\nChecksum: {found.checksum:x}")
    if found.unordered:
        print(f"First unordered records: {found.unordered}")
        return 1
    print("SUCCESS - all records are in order")
    return 0


def _sort(options: argparse.Namespace) -> None:
    dask: Any = distributed
    with contextlib.ExitStack() as stack:
        size = options.source.stat().st_size
        store = options.store
        if store is None:
            servers = max(options.copies, min(options.workers, 4))
            # Columns end with whole units, and each bucket has its own.
            memory = options.memory or int(size * options.copies * 1.3) // servers + (64 << 20)
            store = stack.enter_context(local_store(servers, memory))
        if options.scheduler:
            client = stack.enter_context(dask.Client(options.scheduler))
        else:
            cluster = dask.LocalCluster(
                n_workers=options.workers, threads_per_worker=1, dashboard_address=None, silence_logs=logging.ERROR
            )
            client = stack.enter_context(dask.Client(stack.enter_context(cluster)))
        began = time.perf_counter()
        sort(client, options.source, options.target, store, copies=options.copies, buckets=options.buckets,
             piece=options.piece)  # fmt: skip
        seconds = time.perf_counter() - began
        print(f"{size // SIZE} records in {seconds:.2f} s, {size / seconds / 1e6:.0f} MB/s")


def main() -> int:
    options = _parser().parse_args()
    # The workers import this package.
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, sys.path[:1])) + os.pathsep + os.environ.get(
        "PYTHONPATH", ""
    )  # fmt: skip
    try:
        if options.command == "gen":
            _generate(options.file, options.records, options.seed)
        elif options.command == "check":
            return _check(options.file)
        else:
            _sort(options)
    except (RegionLost, StoreRefused, SmbDirectError, OSError, ValueError) as error:
        print(f"rsort: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
