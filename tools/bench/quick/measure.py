"""Count what one operation costs: calls, system calls, processor time beside that of a loop."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from smb3server.lab.bench import servers
from smb3server.lab.bench.accounting import server_seconds
from smb3server.lab.bench.cases import CASES, PROTECTIONS, Case, bulk, small, small_file
from smb3server.lab.bench.client import Client, Running, Target, build
from smb3server.lab.bench.errors import BenchError

_REPETITIONS = 2
"""Counts are taken so often, and the lowest is kept: a message that arrives in two pieces costs a call more."""
_ROUNDS = 3
_PATIENCE = 20.0
_REPEAT = 0.5
"""Seconds after which a signal is sent again."""
_LOOP = 20_000


class Costs(NamedTuple):
    """What one operation costs the server."""

    calls: float
    """Calls of Python functions."""
    c_calls: float
    """Calls of C functions from Python."""
    system_calls: float | None
    """None where strace is missing, or may not look at the server."""
    loops: float
    """Processor time, in turns of ``loop``."""


class Quick(NamedTuple):
    """A case, and how often it is done for a count and for a time."""

    case: Case
    counted: int
    timed: int
    fabric: str = ""

    @property
    def name(self) -> str:
        """Name in the record."""
        return f"{self.case.name} {self.fabric}".strip()


def _protected(case: Case, protection: str) -> Case:
    return case._replace(name=f"{case.name} {protection}", options=(*case.options, *PROTECTIONS[protection]))


def _compressed(case: Case) -> Case:
    """Return a case that reads text, compressed."""
    return case._replace(name=f"{case.name} compressed", options=(*case.options, "-Z", "-f", "text.bin", "-z", "1"))


CASES_OF_QUICK = (
    *(Quick(case, 64 * 8, 64 * 60) for case in (CASES["echo q32"], small(32), small(32, "write"))),
    *(Quick(case, 200, 2000) for case in (CASES["echo q1"], small(1), small(1, "write"))),
    *(Quick(_protected(small(32), protection), 64 * 8, 64 * 40) for protection in ("GMAC", "AES-128-GCM")),
    *(Quick(bulk(test, 1 << 20, 1), 60, 150) for test in ("read", "write")),
    Quick(_compressed(bulk("read", 1 << 16, 1)), 200, 1000),
    Quick(_compressed(bulk("read", 1 << 20, 1)), 60, 150),
    *(Quick(bulk("read", 1 << 20, 1, protection), 40, 100) for protection in ("GMAC", "AES-128-GCM")),
    *(Quick(CASES[name], 100, 250) for name in ("create + close", "open + close", "stat, compound")),
    *(Quick(small_file(write, compound), 100, 250) for write in (False, True) for compound in (False, True)),
    Quick(CASES["list 2000 entries"], 2, 5),
    Quick(CASES["connect + NTLM + tree"], 20, 100),
    *(Quick(bulk("read", size, 1), 100, 1000, "iwarp") for size in (1024, 4096)),
    Quick(bulk("write", 4096, 1), 100, 1000, "iwarp"),
    *(Quick(bulk(test, 1 << 20, 1), 40, 100, "iwarp") for test in ("read", "write")),
)


def loop() -> float:
    """Return the processor time of one turn of a loop of plain Python, in seconds."""
    began = time.thread_time()
    table: dict[int, tuple[int, bytes]] = {}
    for number in range(_LOOP):
        table[number & 255] = (number, number.to_bytes(8, "little"))
    return (time.thread_time() - began) / _LOOP


class Bench:
    """The servers of a run: one that counts its calls and one that does not."""

    def __init__(self, client: Client, counted: Target, plain: Target, counts: Path) -> None:
        self._client = client
        self._counted = counted
        self._plain = plain
        self._counts = counts

    def costs(self, quick: Quick) -> Costs:
        """Measure one case. Raises ``BenchError``."""
        with self._running(self._counted, quick, quick.counted) as running:
            running.count()  # Whatever is made once is made now.
        counts = [self._count_calls(quick) for _ in range(_REPETITIONS)]
        system_calls = [count for _ in range(_REPETITIONS) if (count := self._count_system_calls(quick)) is not None]
        calls, c_calls = (min(count[index] for count in counts) for index in (0, 1))
        return Costs(calls, c_calls, min(system_calls) if system_calls else None, self.time(quick))

    @contextlib.contextmanager
    def _running(self, target: Target, quick: Quick, operations: int) -> Iterator[Running]:
        if quick.fabric:
            generator = (sys.executable, "-m", "smb3server.lab.bench.rdma_client", "--fabric", quick.fabric)
            target = target._replace(port=target.ports[quick.fabric], generator=generator)
        try:
            with self._client.connected(target, (*quick.case.options, "-T", "30", "-c", str(operations))) as running:
                yield running
        finally:
            self._client.tidy(target)

    def _count_calls(self, quick: Quick) -> tuple[float, float]:
        text, operations = self.counted(quick)
        calls, c_calls = map(int, text.split())
        return calls / operations, c_calls / operations

    def counted(self, quick: Quick) -> tuple[str, float]:
        """Return what the server has counted, as it writes it, and the operations. Raises ``BenchError``."""
        self._counts.unlink(missing_ok=True)
        with self._running(self._counted, quick, quick.counted) as running:
            os.kill(self._counted.process, signal.SIGUSR1)
            found = running.count()
            deadline = time.monotonic() + _PATIENCE
            again = 0.0
            while not self._counts.exists():
                now = time.monotonic()
                if now > deadline:
                    raise BenchError("the server that counts its calls does not answer")
                if now >= again:
                    # A signal between the last step in Python and the wait of the event loop is seen at the next one.
                    os.kill(self._counted.process, signal.SIGUSR2)
                    again = now + _REPEAT
                time.sleep(0.002)
        return self._counts.read_text(), found["ops"]

    def _count_system_calls(self, quick: Quick) -> float | None:
        if shutil.which("strace") is None:
            return None
        with self._running(self._plain, quick, quick.counted) as running:
            command = ["strace", "-f", "-c", "-U", "calls,name", "-p", str(self._plain.process)]
            with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as tracer:
                assert tracer.stderr is not None
                if "attached" not in tracer.stderr.readline():
                    return None
                found = running.count()
                tracer.send_signal(signal.SIGINT)
                said = tracer.stderr.read()
        total = re.search(r"^ *(\d+) total$", said, re.MULTILINE)
        operations = int(found["ops"])
        return int(total[1]) / operations if total else None

    def time(self, quick: Quick) -> float:
        """Return the processor time of an operation, in turns of the loop. Raises ``BenchError``."""
        return min(self._time(quick) for _ in range(_ROUNDS))

    def _time(self, quick: Quick) -> float:
        """Return the server's processor time of an operation, in turns of the loop, measured before and after."""
        with self._running(self._plain, quick, quick.timed) as running:
            before = loop()
            spent = server_seconds(self._plain.process)
            found = running.count()
            spent = server_seconds(self._plain.process) - spent
            operations = int(found["ops"])
            return spent / operations / min(before, loop())


@contextlib.contextmanager
def bench(root: Path, megabytes: int) -> Iterator[Bench]:
    """Run both servers during a ``with`` block. Raises ``BenchError``."""
    counts = root / "counts"
    os.environ["COUNTS"] = str(counts)
    with contextlib.ExitStack() as stack:
        targets = []
        for name, module, address in (
            ("plain", "smb3server", servers.OUR_ADDRESS),
            ("counted", "tools.bench.quick.counted", servers.SECOND_ADDRESS),
        ):
            ours = servers.ours(root / name, sys.executable, (), megabytes, "iwarp", module, address)
            targets.append(stack.enter_context(ours))
        yield Bench(Client(build(root), 30.0, megabytes, (), []), targets[1], targets[0], counts)
