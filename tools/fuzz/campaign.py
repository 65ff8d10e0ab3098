"""``python -m tools.fuzz.campaign --seconds 60 --targets "names captures"``: fuzz each target in a process of its own.

The corpus of a target is kept in ``--out`` and goes on with the next run. Findings are made smaller and written beside
it. The exit status is 1 if there is one, and 0 with a line that says so where atheris is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from smb3server.process import output
from tools.fuzz import target as targets
from tools.fuzz.minimise import minimise
from tools.fuzz.targets import load, names

PROGRESS = 20.0
"""Seconds between two lines of progress."""
OVERTIME = 120.0
"""Seconds that a target may take beyond its time, to start and to end."""
_STATUS = re.compile(r"#(\d+)\s.*cov: (\d+) ft: (\d+) corp: (\d+)")


@dataclass
class Ended:
    """What one target has done."""

    name: str
    executions: int = 0
    branches: int = 0
    corpus: int = 0
    processor: float = 0.0
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        found = f"{len(self.findings)} FINDINGS" if self.findings else "nothing found"
        return (
            f"{self.name:22} {self.executions:>10} executions, {self.branches:>5} branches, "
            f"{self.corpus:>5} inputs kept, {self.processor:6.0f} s of processor; {found}"
        )


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def fuzz(name: str, seconds: int, seed: int, out: Path) -> Ended:
    """Fuzz one target."""
    ended, began = Ended(name), _processor()
    found = out / "found" / name
    before = set(found.glob("*"))
    command = [sys.executable, "-m", "tools.fuzz.guided", name, "--seconds", str(seconds), "--seed", str(seed)]
    command += ["--corpus", str(out / "corpus" / name), "--found", str(found)]
    shown = time.monotonic()
    tail: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            tail = [*tail[-30:], line]
            status = _STATUS.match(line)
            if status is None:
                continue
            ended.executions, ended.branches, _, ended.corpus = map(int, status.groups())
            if time.monotonic() - shown > PROGRESS:
                shown = time.monotonic()
                print(f"  ... {ended}", flush=True)
        code = run.wait(OVERTIME)
    ended.processor = _processor() - began
    for path in sorted(set(found.glob("*")) - before):
        ended.findings.append(_explain(name, path))
    if code:
        ended.findings.append(f"the fuzzer ended with status {code}:\n{''.join(tail)}")
    return ended


def _explain(name: str, path: Path) -> str:
    """Make an input smaller, and return what it does."""
    target = load(name)
    targets.prepare()

    def finding(data: bytes) -> targets.Finding | None:
        try:
            targets.judge(target, data)
        except targets.Finding as error:
            return error
        return None

    first = finding(path.read_bytes())
    if first is None:
        return f"{path} does nothing when it is run alone"

    def shows(data: bytes) -> bool:
        again = finding(data)
        return again is not None and again.place == first.place

    path.write_bytes(minimise(path.read_bytes(), shows, 30 if first.kind == "too slow" else 2000))
    return f"{path}: {first}"


def main() -> int:
    """Fuzz the chosen targets one after the other, and report."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz.campaign", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--targets", default="", help="separated by blanks; all if there is none")
    parser.add_argument("--seed", type=int, default=0, help="0 takes the time")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"))
    options = parser.parse_args()
    chosen = options.targets.split() or names()
    unknown = sorted(set(chosen) - set(names()))
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are: {', '.join(names())}")
    if importlib.util.find_spec("atheris") is None:
        print("SKIPPED: fuzzing needs atheris: pip install atheris, where it has a wheel")
        return 0
    seed = options.seed or int(time.time())
    print(f"seed {seed}, {options.seconds} s for each of {len(chosen)} targets", flush=True)
    done = []
    for name in chosen:
        ended = fuzz(name, options.seconds, seed, options.out)
        print(ended, flush=True)
        for text in ended.findings:
            print(f"FINDING in {name}: {text}", flush=True)
        done.append(ended)
    found = sum(len(ended.findings) for ended in done)
    total = sum(ended.processor for ended in done)
    print(f"{sum(ended.executions for ended in done)} executions, {total:.0f} s of processor, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(output.run(main))
