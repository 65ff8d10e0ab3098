"""``python -m tools.bench.quick.counted``: the server, counting the calls that it makes.

SIGUSR1 starts the count. SIGUSR2 ends it and writes the calls of Python functions and of C functions to the file that
the environment variable ``COUNTS`` names. With ``BYTECODES`` in the environment it writes how many bytecodes were
executed instead, as JSON, by the folder of the code below that of the project.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from smb3server.cli.main import main

_PROJECT = f"{Path(__file__).resolve().parents[3]}/"
_BYTECODES = "BYTECODES" in os.environ
_counts = {"call": 0, "c_call": 0}
_executed: Counter[CodeType] = Counter()


def _profile(frame: FrameType, event: str, argument: object) -> None:
    if event in _counts:
        _counts[event] += 1


def _trace(frame: FrameType, event: str, argument: object) -> Callable[[FrameType, str, Any], Any]:
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    return _bytecode


def _bytecode(frame: FrameType, event: str, argument: object) -> Any:
    if event == "opcode":
        _executed[frame.f_code] += 1
    return _bytecode


def _begin(number: int, frame: FrameType | None) -> None:
    _counts.update(call=0, c_call=0)
    _executed.clear()
    if _BYTECODES:
        sys.settrace(_trace)
    else:
        sys.setprofile(_profile)


def _end(number: int, frame: FrameType | None) -> None:
    sys.setprofile(None)
    sys.settrace(None)
    text = f"{_counts['call']} {_counts['c_call']}"
    if _BYTECODES:
        by_folder: Counter[str] = Counter()
        for code, count in _executed.items():
            by_folder[os.path.dirname(code.co_filename).removeprefix(_PROJECT)] += count
        text = json.dumps(by_folder)
    path = Path(os.environ["COUNTS"])
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _begin)
    signal.signal(signal.SIGUSR2, _end)
    sys.exit(main(sys.argv[1:]))
