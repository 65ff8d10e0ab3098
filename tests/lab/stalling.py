"""A server whose event loop stands still on demand: ``python -m tests.lab.stalling FOLDER SERVER'S-ARGUMENTS...``.

SIGUSR1 holds the loop as long as FOLDER has a file "busy" (computing) or "stuck" (waiting, as for a lock that nobody
lets go); a file "stalled" says that it does. Signal handlers run on the thread of the event loop.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from smb3server.cli.main import main

COMPUTING = 0.2
"""Seconds at a time without a system call that would let other threads run."""


def stall(folder: Path) -> None:
    (folder / "stalled").touch()
    while (folder / "busy").exists():
        end = time.perf_counter() + COMPUTING
        while time.perf_counter() < end:
            pass
    while (folder / "stuck").exists():
        time.sleep(0.02)
    (folder / "stalled").unlink()


if __name__ == "__main__":
    place = Path(sys.argv[1])
    signal.signal(signal.SIGUSR1, lambda number, frame: stall(place))
    sys.exit(main(sys.argv[2:]))
