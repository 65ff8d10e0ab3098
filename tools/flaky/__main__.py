"""``python -m tools.flaky RECORD STEPS``: print the end of .ci/run, from the recorded results and the times of its
steps.

It needs only Python, so that it works even if the set-up failed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.flaky.closing import closing, read_steps
from tools.flaky.record import read


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.flaky", description=__doc__)
    parser.add_argument("record", type=Path, help="lines of JSON that pytest, smbtorture and the kernel lab wrote")
    parser.add_argument("steps", type=Path, help="lines of seconds, exit status and command, with tabs between")
    options = parser.parse_args(arguments)
    entries, totals = read(options.record)
    print(closing(entries, totals, read_steps(options.steps)), flush=True)


if __name__ == "__main__":
    main()
