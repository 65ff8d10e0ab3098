"""Measure the software NICs between two processes over loopback, next to raw TCP, in one table of one run.

    python -m tools.bench.fabrics [--size BYTES] [--seconds S] [--rounds N] [--depth N] [--placed apart|together]
        [--mss] [--mtu BYTES]

Each operation is that of a server for one READ (RDMA Write + Send) or one WRITE (RDMA Read). With a depth of 1 the peer
answers it before the next one starts. In each round every row is measured once; the table has the medians, and the
rates of the slowest and the fastest round. One GB is 1e9 bytes. The ratio to raw TCP is the median of the rounds'
ratios. The processor time is that of one operation: of the server, which begins it, and of the client.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from statistics import median

from smb3server.process import output
from smbdirect import native
from tools.bench.iwarp import Result, bench_iwarp, bench_raw
from tools.bench.roce import Setting, bench_roce

RAW = "raw TCP"
_KINDS = {"write": "RDMA Write + Send", "read": "RDMA Read"}


def one_round(options: argparse.Namespace) -> Iterator[tuple[str, Result]]:
    """Measure every row once."""
    size, seconds, depth, placed = options.size, options.seconds, options.depth, options.placed
    yield RAW, bench_raw(size, seconds, placed)
    for crc in (False, True):
        results = asyncio.run(bench_iwarp(size, seconds, crc, not options.mss, depth, placed))
        for kind, name in _KINDS.items():
            yield f"iWARP, CRC {'on' if crc else 'off'}: {name}", results[kind]
    setting = Setting(options.udp_port, options.mtu, not options.no_segmentation)
    results, trouble = asyncio.run(bench_roce(size, seconds, depth, setting, placed))
    if trouble:
        print(f"RoCEv2: {trouble} packets were lost, late or damaged", file=sys.stderr)
    for kind, name in _KINDS.items():
        yield f"RoCEv2: {name}", results[kind]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.fabrics", description=__doc__)
    parser.add_argument("--size", type=int, default=512 * 1024)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument(
        "--placed",
        choices=("apart", "together"),
        default="",
        help="put the two ends on two processors, or both on one: without it the kernel does as it likes, and changes"
        " its mind from round to round",
    )
    parser.add_argument("--mss", action="store_true", help="iWARP: FPDUs of one TCP segment instead of 64 KiB")
    parser.add_argument("--mtu", type=int, default=4096, help="RoCEv2: the most bytes of payload per packet")
    parser.add_argument("--udp-port", type=int, default=14791)
    parser.add_argument("--no-segmentation", action="store_true", help="RoCEv2: send packets one by one")
    options = parser.parse_args()
    rows: dict[str, list[Result]] = {}
    for _ in range(options.rounds):
        for name, result in one_round(options):
            rows.setdefault(name, []).append(result)
    print(native.report())
    print("| operation | GB/s | slowest to fastest | server, us | client, us | of raw TCP |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, results in rows.items():
        rates = [result.rate for result in results]
        ratio = median(rate / raw.rate for rate, raw in zip(rates, rows[RAW], strict=True))
        print(
            f"| {name} | {median(rates) / 1e9:.2f} | {min(rates) / 1e9:.2f} to {max(rates) / 1e9:.2f}"
            f" | {median(result.ours for result in results) * 1e6:.0f}"
            f" | {median(result.theirs for result in results) * 1e6:.0f} | {ratio:.2f} |"
        )


if __name__ == "__main__":
    sys.exit(output.run(main))
