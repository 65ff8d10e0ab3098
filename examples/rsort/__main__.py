"""The programs of the sort: ``python examples/rsort --help``."""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from distributed import CancelledError, KilledWorker
from rstore import RegionGone, RegionLost, StoreRefused
from rstore.interrupts import heed_interrupts
from rstore.local import local_store

from rsort import bench
from rsort.cluster import at_scheduler, local_cluster
from rsort.records import SIZE, generate, judge_file
from rsort.sort import PIECE, InRStore, WrongOutput, sort
from smbdirect.errors import SmbDirectError

_ERRORS = (
    RegionGone, RegionLost, StoreRefused, SmbDirectError, OSError, ValueError, WrongOutput, CancelledError, ImportError,
)  # fmt: skip


def _address(text: str) -> tuple[str, int]:
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
    one.add_argument("--fabric", default="iwarp", help="of the store: iwarp, roce or verbs")
    one.add_argument("--memory", type=int, default=0, help="bytes of the local store; default: what the input needs")
    one.add_argument("--copies", type=int, default=1, help="of each bucket: 2 survive a memory server that dies")
    one.add_argument("--buckets", type=int, default=0)
    one.add_argument("--piece", type=int, default=PIECE, help="bytes of input for a task")
    one.add_argument("--check", action="store_true", help="judge the output before it appears")
    bench.add_arguments(commands.add_parser("bench", help="compare with GNU sort and with sockets"))
    return parser


def _generate(path: Path, records: int, seed: int) -> None:
    with path.open("wb") as file:
        for first in range(0, records, 1 << 16):
            file.write(generate(first, min(1 << 16, records - first), seed))


def _check(path: Path) -> int:
    found = judge_file(path)
    print(f"Records: {found.records}\nChecksum: {found.checksum:x}\nDuplicate keys: {found.duplicates}")
    if found.unordered:
        print(f"ERROR - there are {found.unordered} unordered records")
        return 1
    print("SUCCESS - all records are in order")
    return 0


def _available() -> int:
    """Return the bytes of memory that programs may still take."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo does not say how much memory there is: use --memory")


@contextlib.contextmanager
def _store(options: argparse.Namespace, size: int) -> Iterator[tuple[str, int]]:
    if options.store is not None:
        yield options.store
        return
    servers = max(options.copies, min(options.workers, 4))
    # A quarter more than the input: buckets end with whole units. Half of the memory is left to the workers.
    memory = options.memory or min(int(size * options.copies * 1.25) + (64 << 20), _available() // 2)
    with local_store(servers, memory // servers, options.fabric) as address:
        yield address


def _cluster(options: argparse.Namespace) -> Any:
    return at_scheduler(options.scheduler) if options.scheduler else local_cluster(options.workers)


def _sort(options: argparse.Namespace) -> None:
    size = options.source.stat().st_size
    with _store(options, size) as store, _cluster(options) as client:
        began = time.perf_counter()
        sort(client, options.source, options.target, InRStore(*store, options.fabric), copies=options.copies,
             buckets=options.buckets, piece=options.piece, check=options.check,
             report=lambda line: print(line, flush=True))  # fmt: skip
        seconds = time.perf_counter() - began
        print(f"{size // SIZE} records in {seconds:.2f} s, {size / seconds / 1e6:.0f} MB/s")


def main() -> int:
    options = _parser().parse_args()
    heed_interrupts()
    try:
        if options.command == "gen":
            _generate(options.file, options.records, options.seed)
        elif options.command == "check":
            return _check(options.file)
        elif options.command == "bench":
            bench.run(options)
        else:
            _sort(options)
    except KilledWorker as error:
        print(f"rsort: the workers of {error.task} died again and again: out of memory?", file=sys.stderr)
        return 1
    except _ERRORS as error:
        print(f"rsort: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rsort: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
