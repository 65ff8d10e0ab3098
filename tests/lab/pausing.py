"""A server that stops itself in the middle of a request: ``python -m tests.lab.pausing FOLDER SERVER'S-ARGUMENTS...``.

It stops (SIGSTOP, as a machine that is paused) at the point that the file "pause" in FOLDER names, which is removed
then. While FOLDER has a file "hang-NODE", what NODE writes to stable storage waits, as on a file system that hangs.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smb3server.cli.main import main
from smb3server.dispatch.dispatcher import Dispatcher
from smb3server.state.server_state import ServerState

POINTS = ("received", "asked", "write", "written", "fsync", "answer", "read", "have-read")
"""Before the fence is asked for a message; after that; before and after pwrite(2) and its like; before fsync(2); after
the last question to the fence and before a WRITE's answer; before and after pread(2)."""


class Pauses:
    """``folder`` has the files. ``node``: this server's name in the cluster."""

    def __init__(self, folder: Path, node: str) -> None:
        self._trigger = folder / "pause"
        self._hang = folder / f"hang-{node}"
        self._armed = ""
        """A point that comes next, as one before it was passed."""

    def reach(self, point: str) -> None:
        """Stop if this is the point."""
        try:
            wanted = self._trigger.read_text()
        except FileNotFoundError:
            return
        if wanted == point:
            self._trigger.unlink()
            os.kill(os.getpid(), signal.SIGSTOP)
        elif wanted == "answer" and point == "written":
            self._trigger.unlink()
            self._armed = wanted

    def has_asked(self, fenced: bool) -> None:
        """Stop behind the question to the fence that comes before the answer."""
        if self._armed and not fenced:
            self._armed = ""
            os.kill(os.getpid(), signal.SIGSTOP)

    def hang(self) -> None:
        """Wait as long as the file system does not answer."""
        while self._hang.exists():
            time.sleep(0.05)


def around(name: str, before: Callable[[], None], after: Callable[[], None], pauses: Pauses) -> None:
    """Do something before and after each call of a function of ``os``."""
    real = getattr(os, name)

    def call(*arguments: Any, **more: Any) -> Any:
        if name == "splice" and more.get("offset_dst") is None:
            return real(*arguments, **more)
        before()
        done = real(*arguments, **more)
        after()
        return done

    setattr(os, name, call)


def install(pauses: Pauses) -> None:
    """Let the server pass all points."""
    for name in ("pwrite", "pwritev", "splice"):
        around(name, lambda: pauses.reach("write"), lambda: pauses.reach("written"), pauses)
    for name in ("pread", "preadv"):
        around(name, lambda: pauses.reach("read"), lambda: pauses.reach("have-read"), pauses)
    for name in ("fsync", "fdatasync"):
        around(name, lambda: (pauses.hang(), pauses.reach("fsync"))[0], lambda: None, pauses)
    receive, is_fenced = Dispatcher.receive, ServerState.is_fenced
    receiving: list[bool] = []

    def received(self: Dispatcher, inbound: Any) -> None:
        pauses.reach("received")
        receiving.append(True)
        receive(self, inbound)
        receiving.clear()

    def asked(self: ServerState, connection: Any) -> bool:
        answer = is_fenced(self, connection)
        pauses.has_asked(answer)
        if receiving:
            receiving.clear()
            pauses.reach("asked")
        return answer

    Dispatcher.receive, ServerState.is_fenced = received, asked  # type: ignore[method-assign]


if __name__ == "__main__":
    install(Pauses(Path(sys.argv[1]), sys.argv[sys.argv.index("--node") + 1]))
    sys.exit(main(sys.argv[2:]))
