"""``python -m tools.bench.quick.counted``: the server, counting the calls that it makes.

SIGUSR1 starts the count. SIGUSR2 ends it and writes the calls of Python functions and of C functions to the file that
the environment variable ``COUNTS`` names.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType

from smb3server.cli.main import main

_counts = {"call": 0, "c_call": 0}


def _profile(frame: FrameType, event: str, argument: object) -> None:
    if event in _counts:
        _counts[event] += 1


def _begin(number: int, frame: FrameType | None) -> None:
    _counts.update(call=0, c_call=0)
    sys.setprofile(_profile)


def _end(number: int, frame: FrameType | None) -> None:
    sys.setprofile(None)
    path = Path(os.environ["COUNTS"])
    new = path.with_suffix(".new")
    new.write_text(f"{_counts['call']} {_counts['c_call']}")
    new.replace(path)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _begin)
    signal.signal(signal.SIGUSR2, _end)
    sys.exit(main(sys.argv[1:]))
