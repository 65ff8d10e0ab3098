"""The walk of a request: which functions of the project a thread calls, in which order."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import smb3server
import smbdirect
import witness

_FOLDERS = tuple(f"{Path(str(package.__file__)).parent}/" for package in (smb3server, smbdirect, witness))
_START = len(str(Path(_FOLDERS[0]).parent)) + 1
_STATS = ("stat", "fstat", "lstat")


class Step(NamedTuple):
    file: str
    function: str
    depth: int


class Walk:
    """The calls that a thread makes of this project's functions, in order. It sees them between start and stop."""

    def __init__(self, entry: str = "") -> None:
        """``entry``: the function (qualified name) within which calls count. Empty means everywhere."""
        self.steps: list[Step] = []
        self.stats = 0
        """stat(2), fstat(2) and lstat(2) called through ``os``."""
        self._entry = entry
        # Invariant: the number of frames on the stack that have been seen since the walk, or the entry, began.
        self._depth = 0

    def start(self) -> None:
        sys.setprofile(self._event)

    def stop(self) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call":
            if self._depth or not self._entry or code.co_qualname == self._entry:
                if code.co_filename.startswith(_FOLDERS):
                    self.steps.append(Step(code.co_filename[_START:], code.co_qualname, self._depth))
                self._depth += 1
        elif event == "return":
            self._depth -= self._depth > 0
        elif event == "c_call" and self._depth and argument.__name__ in _STATS:
            self.stats += 1

    @property
    def calls(self) -> int:
        return len(self.steps)

    @property
    def changes(self) -> int:
        """How often a call goes to another file than the call before it. The first call counts, too."""
        files = ["", *(step.file for step in self.steps)]
        return sum(before != after for before, after in itertools.pairwise(files))

    def __str__(self) -> str:
        lines = [f"{self.calls} calls, {self.changes} changes of file"]
        before = ""
        for step in self.steps:
            lines.append(f"{'*' if step.file != before else ' '}{' ' * step.depth}{step.file}: {step.function}")
            before = step.file
        return "\n".join(lines)


@contextmanager
def walking(entry: str = "") -> Iterator[Walk]:
    """See what this thread calls in the block."""
    walk = Walk(entry)
    walk.start()
    try:
        yield walk
    finally:
        walk.stop()
