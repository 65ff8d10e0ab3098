"""``python -m tools.soak --clients 2000 --minutes 20``: mixed work of good and bad clients, in rounds.

A round begins and ends without clients. After each one the server says what it holds. It has to be what it held
before the first client came; memory is compared with the end of the first round, which is a fifth of the time. The exit
status is 1 if something is left behind, if a client got a wrong answer, or if the server logged an error.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from smb3server.process import output
from tools.soak.crowd import Orders
from tools.soak.jobs import COMMON
from tools.soak.report import Seen, latencies, left_behind

SETTLED_WITHIN = 90.0
"""Seconds for the server to be rid of everything: half-open peers, durable opens, retransmissions."""
_OVERTIME = 300.0
MUCH = 8 << 20
_NUMBERS = re.compile(r"\d+")


WARM_UP_CLIENTS, WARM_UP_SECONDS = 16, 4.0
OF_CLIENTS = ("connection_list", "sessions", "opens", "files", "buffers lent", "unauthenticated bytes", "IwarpEndpoint")
"""What is 0 when no client is there."""


@dataclass(frozen=True)
class Load:
    """How much work there is."""

    clients: int
    seconds: float
    think: float
    """Mean seconds between two jobs of a client."""
    processes: int
    seed: int


class Child:
    """A process that answers a line with a line of JSON."""

    def __init__(self, module: str, *arguments: str, log: IO[bytes] | None = None) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=os.getcwd()
        )

    def tell(self, line: str) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """Return the next line; empty if the process has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> None:
        """Close its input and wait for its end."""
        self.process.communicate(timeout=_OVERTIME)


class Server:
    """The server in its process."""

    def __init__(self, folder: Path) -> None:
        self._log = (folder / "log").open("w+b")
        share = folder / "share"
        (share / "common").mkdir(parents=True)
        for number in range(COMMON):
            (share / "common" / str(number)).write_bytes(bytes(4096))
        (share / "much").write_bytes(bytes(MUCH))
        self._child = Child("tools.soak.server", str(share), log=self._log)
        self.ports: list[int] = json.loads(self._child.hear())

    def holds(self) -> dict[str, int]:
        """Ask what it holds."""
        self._child.tell("holds")
        found: dict[str, int] = json.loads(self._child.hear())
        return found

    def settled(self) -> dict[str, int]:
        """Wait until no client has left anything, or until it takes too long, and return what is held."""
        deadline = time.monotonic() + SETTLED_WITHIN
        while True:
            found = self.holds()
            if not any(found[name] for name in OF_CLIENTS) or time.monotonic() > deadline:
                return found
            time.sleep(1.0)

    def end(self) -> list[str]:
        """Stop it, and return the lines of its log that must not be there."""
        self._child.end()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        self._log.close()
        for line, count in Counter(_NUMBERS.sub("N", line) for line in lines).most_common(12):
            print(f"logged {count} times: {line[:160]}")
        return [line for line in lines if line.startswith(("Traceback", "ERROR", "CRITICAL"))][:20]


def round_of(server: Server, load: Load, seen: Seen) -> None:
    """Let all clients work for a while."""
    crowds = []
    tcp, rdma = server.ports
    for number in range(load.processes):
        first, end = (load.clients * step // load.processes for step in (number, number + 1))
        child = Child("tools.soak.crowd")
        child.tell(json.dumps(asdict(Orders(tcp, rdma, first, end - first, load.seconds, load.think, load.seed))))
        crowds.append(child)
    for child in crowds:
        told = child.hear()
        if told:
            seen.add(json.loads(told))
        else:
            seen.errors["a crowd has ended"] += 1
        child.end()


def soak(load: Load, folder: Path) -> bool:
    """Do all rounds and report. Return whether all is well."""
    server, seen = Server(folder), Seen()
    # What a server opens once, such as its inotify instance, is there afterwards.
    round_of(server, replace(load, clients=WARM_UP_CLIENTS, seconds=WARM_UP_SECONDS, think=0.1), Seen())
    start = server.settled()
    first: dict[str, int] | None = None
    problems: list[str] = []
    last = start
    for number, part in enumerate((0.2, 0.4, 0.4)):
        began = time.monotonic()
        round_of(server, replace(load, seconds=load.seconds * part, seed=load.seed + number), seen)
        last = server.settled()
        first = first or last
        jobs = sum(map(len, seen.times.values()))
        print(
            f"round {number + 1}: {time.monotonic() - began:.0f} s, {jobs} jobs so far, "
            f"RSS {last['Rss'] >> 10} MiB, PSS {last['Pss'] >> 10} MiB",
            flush=True,
        )
        left = left_behind(start, first, last)
        problems += [f"after round {number + 1}: {text}" for text in left]
        if left:
            print("  left behind: " + "; ".join(left), flush=True)
    problems += [f"{count} times: {error}" for error, count in seen.errors.most_common(20)]
    problems += [f"in the log: {line}" for line in server.end()]
    print("\n".join(latencies(seen)))
    print("bad clients: " + ", ".join(f"{name} {count}" for name, count in sorted(seen.done.items())))
    print("at the start: " + json.dumps(start))
    print("at the end:   " + json.dumps(last))
    for text in problems:
        print(f"PROBLEM {text}")
    return not problems


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--think", type=float, default=10.0, help="mean seconds between two jobs of a client")
    parser.add_argument("--processes", type=int, default=2, help="in which the clients are")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        Path(folder).chmod(0o755)
        load = Load(options.clients, options.minutes * 60, options.think, options.processes, options.seed)
        return 0 if soak(load, Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(output.run(main))
