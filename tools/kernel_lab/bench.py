"""``python -m tools.kernel_lab.bench``: direct reads and writes of Linux's client at ksmbd and at our server, in turns.

The client is one guest, ksmbd is in a second one, and our server runs on the host; all three are on one bridge with one
MTU. The guests' processors are emulated, and our server's is not: the ratio says what this client gets here, not which
server is faster on equal machines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from smb3server.lab.bench.errors import BenchError, interruptible
from smb3server.process import output
from tools.kernel_lab.__main__ import build
from tools.kernel_lab.ksmbd_guest import guest, serving
from tools.kernel_lab.network import NetworkError
from tools.kernel_lab.server import ServerError, running_server

OURS, CLIENT, KSMBD = "10.77.0.1", "10.77.0.2", "10.77.0.3"
_TAPS = ("lab0", "lab1")
_LINE = re.compile(r"BENCH (\w+) (\w+) (\d+) (\d+) ([0-9.]+)")
_PROTOCOLS = {"siw": "iwarp", "rxe": "roce"}


class Found(NamedTuple):
    """One measurement by the client."""

    protocol: str
    server: str
    operation: str
    block: int
    per_second: float
    """Blocks per second."""


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise NetworkError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextlib.contextmanager
def bridge(mtu: int) -> Iterator[list[str]]:
    """Make a namespace with a bridge that joins two taps and has our server's address.

    Yield the first words of commands that run in it. Raises ``NetworkError``, also without root.
    """
    name = f"smb-bench-{os.getpid()}"
    _ip("netns", "add", name)
    try:
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "link", "add", "wire", "type", "bridge")
        for tap in _TAPS:
            _ip("-n", name, "tuntap", "add", tap, "mode", "tap")
            _ip("-n", name, "link", "set", tap, "mtu", str(mtu), "master", "wire", "up")
        _ip("-n", name, "addr", "add", f"{OURS}/24", "dev", "wire")
        _ip("-n", name, "link", "set", "wire", "mtu", str(mtu), "up")
        yield ["ip", "netns", "exec", name]
    finally:
        _ip("netns", "delete", name)


def run(protocol: str, options: argparse.Namespace, folder: Path) -> list[Found]:
    """Boot both guests and measure over ``protocol``. Raises ``BenchError``, ``NetworkError`` and ``ServerError``."""
    share = folder / "share"
    share.mkdir()
    with (share / "big.bin").open("wb") as file:
        for _ in range(options.size):
            file.write(os.urandom(1 << 20))
    settings = f"FILE_MIB={options.size} ROUNDS={options.rounds} OURS={OURS} KSMBD={KSMBD} CASE_TIMEOUT=1100"
    case = f"{protocol}:255:{options.mtu}::"
    found: list[Found] = []
    with contextlib.ExitStack() as stack:
        prefix = stack.enter_context(bridge(options.mtu))
        fabric = _PROTOCOLS[protocol]
        stack.enter_context(running_server(share, folder / "server.log", (OURS,), fabric, prefix))
        client = folder / "client"
        stack.enter_context(serving(prefix, folder / "ksmbd", _TAPS[1], KSMBD, protocol, options.mtu, options.size))
        print(f"bench: {protocol}: ksmbd serves, the client boots", file=sys.stderr, flush=True)
        arguments = [f"{settings} WORKOUT=bench-client.sh", CLIENT, f"client:{case}"]
        process = stack.enter_context(guest(prefix, "cases.sh", client, _TAPS[0], arguments))
        for line in process.stdout or ():
            if match := _LINE.match(line):
                name, operation, block, count, seconds = match.groups()
                print(f"bench: {protocol}: {line.strip()}", file=sys.stderr, flush=True)
                found.append(Found(protocol, name, operation, int(block), int(count) / max(0.01, float(seconds))))
        if process.wait():
            raise BenchError(f"the client's guest failed; its console is {client / 'console.log'}")
    return found


def table(found: Sequence[Found]) -> str:
    """Return medians and the ratio of ours to ksmbd's, round by round, as Markdown."""
    lines = ["| wire | case | ours, MB/s | ksmbd, MB/s | ratio |", "| --- | --- | --- | --- | --- |"]
    for kind in dict.fromkeys((item.protocol, item.operation, item.block) for item in found):
        sides: dict[str, list[float]] = {}
        for item in found:
            if kind == (item.protocol, item.operation, item.block):
                sides.setdefault(item.server, []).append(item.per_second * item.block / 1e6)
        ratios = [one / other for one, other in zip(sides["ours"], sides["ksmbd"], strict=False)]
        size = f"{kind[2] >> 20} MiB" if kind[2] >= 1 << 20 else f"{kind[2] >> 10} KiB"
        cells = [f"{median(sides[name]):.3g}" for name in ("ours", "ksmbd")]
        spread = f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
        lines.append(f"| {kind[0]} | direct {kind[1]} {size} | {' | '.join(cells)} | {spread} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.kernel_lab.bench", description=__doc__)
    parser.add_argument("protocols", nargs="*", metavar="PROTOCOL", help="siw, rxe; default: both")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=32, metavar="MIB", help="size of the file")
    parser.add_argument("--mtu", type=int, default=9000)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every measurement to this file")
    options = parser.parse_args(arguments)
    if unknown := set(options.protocols) - set(_PROTOCOLS):
        parser.error(f"no protocol {', '.join(unknown)}; there are {', '.join(_PROTOCOLS)}")
    found: list[Found] = []
    status = 0
    with interruptible():
        for protocol in options.protocols or _PROTOCOLS:
            folder = Path(tempfile.mkdtemp(prefix=f"smb-lab-bench-{protocol}-", dir="/dev/shm"))
            try:
                build()
                found += run(protocol, options, folder)
                shutil.rmtree(folder)  # After a failure its consoles are needed.
            except (BenchError, NetworkError, ServerError, OSError) as error:
                print(f"bench: {protocol}: {error}", file=sys.stderr)
                status = 2
    if found:
        print(table(found))
    if options.json:
        options.json.write_text(json.dumps([item._asdict() for item in found], indent=1))
    return status


if __name__ == "__main__":
    sys.exit(output.run(main))
