"""``python -m tools.fuzz --minutes 30 --seed 1 --kinds smb,signed,encrypted,twochannels,rdma,rpc,roce``

Start a server on a small file system and do run after run of valid, stateful requests, mutated before they are signed
or encrypted. The run fails (exit status 1) on a traceback or an error in the log, an INTERNAL_ERROR, an innocent client
that waits too long, or memory or descriptors that are not released. A failure is written as JSON; ``--replay FILE``
repeats that run on a fresh server, ``--before N`` with the N runs before it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from smb3server.process import output
from smb3server.wire.status import NtStatus
from tools.fuzz import pipes, roce, smb
from tools.fuzz.watch import Failed, Watch, watched

KINDS = (*smb.KINDS, "rpc", "roce")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="for all kinds together")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kinds", default="smb,signed,encrypted,twochannels,rdma,rpc")
    parser.add_argument("--rate", type=float, default=0.6, help="the share of requests that is damaged")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="where failing runs are written")
    parser.add_argument("--server", default="", help="lines for the server's section [server]: watchdog = 0.05")
    parser.add_argument("--replay", type=Path, help="a file that a failure has written")
    parser.add_argument("--before", type=int, default=0, help="with --replay: so many runs before the one that failed")
    return parser.parse_args()


class Fuzzer:
    """Runs of one kind against one server."""

    def __init__(self, watch: Watch, kind: str, seed: int, rate: float) -> None:
        self._watch, self._kind, self._seed, self._rate = watch, kind, seed, rate
        self.runs = self.requests = 0
        self.statuses: Counter[int] = Counter()
        self.last: list[bytes] = []

    def run(self, number: int) -> None:
        """Do one run and check the server. Raises ``Failed``."""
        seed = f"{self._seed}/{self._kind}/{number}"
        self.runs += 1
        told = asyncio.run(self._do(seed))
        self.requests += told.requests
        self.statuses.update(told.statuses)
        self._watch.look()

    async def _do(self, seed: str) -> smb.Told:
        run: smb.SmbRun | pipes.PipeRun | roce.RoceRun
        if self._kind == "rpc":
            run = pipes.PipeRun(self._watch, seed)
        elif self._kind == "roce":
            run = roce.RoceRun(self._watch, seed)
        else:
            run = smb.SmbRun(self._watch, self._kind, seed, self._rate)
        try:
            return await run.do()
        finally:
            self.last = run.told.last

    def summary(self) -> str:
        """Return a line about the runs so far."""
        common = ", ".join(f"{_name(status)} {count}" for status, count in self.statuses.most_common(8))
        return f"{self._kind}: {self.runs} runs, {self.requests} requests; {common}"


def _name(status: int) -> str:
    try:
        return NtStatus(status).name
    except ValueError:
        return hex(status)


def fuzz(
    kind: str, seconds: float, seed: int, rate: float = 0.6, server_options: str = "", out: Path | None = None
) -> None:
    """Fuzz one kind for ``seconds``. Raises ``Failed`` after writing the last messages to ``out``."""
    with watched("roce" if kind == "roce" else "iwarp", server_options) as watch:
        fuzzer = Fuzzer(watch, kind, seed, rate)
        end, number = time.monotonic() + seconds, 0
        try:
            while time.monotonic() < end:
                fuzzer.run(number)
                number += 1
            watch.settle()
        except Failed as failure:
            if out is not None:
                _write(out, kind, seed, number, rate, failure, fuzzer.last)
            raise
        finally:
            print(fuzzer.summary(), flush=True)
            if watch.server.alive():
                print(f"  {watch.summary()}", flush=True)


def _write(out: Path, kind: str, seed: int, number: int, rate: float, failure: Failed, last: list[bytes]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{kind}-{seed}-{number}.json"
    found = {
        "kind": kind,
        "seed": seed,
        "number": number,
        "rate": rate,
        "failure": str(failure),
        "last messages": [message.hex() for message in last],
    }
    path.write_text(json.dumps(found, indent=1))
    print(f"written: {path}", flush=True)


def _replay(path: Path, before: int) -> None:
    found = json.loads(path.read_text())
    with watched("roce" if found["kind"] == "roce" else "iwarp") as watch:
        fuzzer = Fuzzer(watch, found["kind"], found["seed"], found["rate"])
        for number in range(max(0, found["number"] - before), found["number"] + 1):
            fuzzer.run(number)
        print(fuzzer.summary())


def _in_own_namespace() -> int:
    """Run this command again in a network namespace of its own: a host has only one UDP port for RoCE."""
    command = [
        "unshare",
        "--net",
        "sh",
        "-c",
        'ip link set lo up && exec "$@"',
        "sh",
        sys.executable,
        "-m",
        "tools.fuzz",
    ]
    return subprocess.run(
        [*command, *sys.argv[1:]], env={**os.environ, "TOOLS_FUZZ_NAMESPACE": "1"}, check=False
    ).returncode


def main() -> int:
    """Run and report."""
    options = _arguments()
    kinds = options.kinds.split(",")
    if set(kinds) - set(KINDS):
        print(f"kinds are: {', '.join(KINDS)}")
        return 2
    if "roce" in kinds and "TOOLS_FUZZ_NAMESPACE" not in os.environ:
        return _in_own_namespace()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    try:
        if options.replay:
            _replay(options.replay, options.before)
            return 0
        for kind in kinds:
            seconds = options.minutes * 60 / len(kinds)
            fuzz(kind, seconds, seed, options.rate, options.server, options.out)
    except Failed as failure:
        print(f"FAILED: {failure}")
        return 1
    print("nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(output.run(main))
