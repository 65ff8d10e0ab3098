"""``python -m tools.fuzz.guided TARGET --seconds 60``: fuzz one target, guided by coverage, in this process.

Needs atheris. ``tools.fuzz.campaign`` starts one such process for each target. Findings are written to ``--found`` and
the run goes on: each cause is written once.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
from pathlib import Path

from smb3server.process import output

SUBJECTS = ("smbdirect", "smb3server", "witness")
"""Packages whose branches count as coverage."""
SEEDS = 2000
"""Most seeds that are written to a corpus."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz.guided")
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--found", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    """Fuzz; the fuzzer's end is the end of the process."""
    # Modules in C count no coverage, and do the same as those in Python.
    os.environ["SMB3SERVER_NATIVE"] = "0"
    options = _arguments()
    import atheris

    with atheris.instrument_imports(include=SUBJECTS):
        from tools.fuzz import target as targets
        from tools.fuzz.targets import load

        target = load(options.target)
    options.corpus.mkdir(parents=True, exist_ok=True)
    options.found.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.seeds()):
        if number == SEEDS:
            break
        (options.corpus / hashlib.sha1(data).hexdigest()).write_bytes(data[: target.max_input])
    targets.prepare()
    known: set[str] = set()

    def one_input(data: bytes) -> None:
        try:
            targets.judge(target, data)
        except targets.Finding as finding:
            if finding.place not in known:
                known.add(finding.place)
                name = hashlib.sha1(data).hexdigest()[:16]
                (options.found / name).write_bytes(data)
                print(f"FINDING {name} {finding}", flush=True)

    mutate = target.mutate

    def custom(data: bytes, size: int, seed: int) -> bytes:
        assert mutate is not None
        return mutate(data, size, random.Random(seed), lambda part: bytes(atheris.Mutate(part, len(part) + 64)))[:size]

    arguments = [
        sys.argv[0],
        f"-max_total_time={options.seconds}",
        f"-seed={options.seed}",
        f"-max_len={target.max_input}",
        "-timeout=60",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        str(options.corpus),
    ]
    atheris.Setup(arguments, one_input, **({"custom_mutator": custom} if mutate is not None else {}))
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(output.run(main))
