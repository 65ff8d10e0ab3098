"""``python -m tools.bench.bytecodes``: count the bytecodes that the server executes for a READ or WRITE.

Over TCP and over SMB Direct on iWARP, 400 operations of each kind; and how many of those over SMB Direct are executed
in the NIC, in SMB Direct, and in the rest. What is in C has none. Other load of the machine matters little: the data of
a long WRITE comes in more or fewer pieces.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from smb3server.lab.bench import machine, page
from smb3server.lab.bench.cases import bulk
from smb3server.lab.bench.errors import BenchError
from smb3server.process import output
from tools.bench.quick.measure import Quick, bench

_MEGABYTES = 64
_SPARE = 64
_OPERATIONS = 400
KINDS = [(name, size, depth) for name in ("read", "write") for size, depth in ((4096, 4), (4096, 1), (65536, 4))]
"""Commands, bytes of each, and how many are in flight."""


def part(folder: str) -> int:
    """Return where the code of a folder belongs: 0 for the NIC, 1 for SMB Direct, 2 for the rest."""
    return 0 if folder.startswith("smbdirect/providers") else 1 if folder.startswith("smbdirect/") else 2


def main() -> int:
    """Print the table. Return the exit status."""
    lines = [["operation", "TCP", "SMB Direct on iWARP", "ratio", "in the NIC", "in SMB Direct", "in the rest"]]
    os.environ["BYTECODES"] = "1"
    try:
        with machine.workplace(Path("/dev/shm"), 2 * _MEGABYTES + _SPARE) as root, bench(root, _MEGABYTES) as running:
            for name, size, depth in KINDS:
                parts: dict[str, list[float]] = {}
                for fabric in ("", "iwarp"):
                    text, operations = running.counted(Quick(bulk(name, size, depth), _OPERATIONS, 0, fabric))
                    parts[fabric] = [0.0, 0.0, 0.0]
                    for folder, count in json.loads(text).items():
                        parts[fabric][part(folder)] += count / operations
                tcp, rdma = (sum(found) for found in parts.values())
                cells = [f"{value:,.0f}" for value in (tcp, rdma)]
                shares = [f"{value:,.0f}" for value in parts["iwarp"]]
                lines.append([f"{name.upper()} {size >> 10} KiB q{depth}", *cells, f"{rdma / tcp:.2f}", *shares])
    except BenchError as error:
        print(f"bytecodes: {error}", file=sys.stderr)
        return 2
    print(page.grid(lines, "lrrrrrr"))
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
