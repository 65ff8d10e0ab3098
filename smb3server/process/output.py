"""Commands whose output is closed early: ``smb3server doctor | head -1`` is not an error of the command."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import TextIO

EXIT_CLOSED = 128 + signal.SIGPIPE
"""Exit status of a command whose output was closed before its end, as shells report it for SIGPIPE."""


def run(command: Callable[[], int | None]) -> int:
    """Call ``command`` and flush its output. Return its exit status (None means 0), or ``EXIT_CLOSED`` if the output
    was closed. Any other ``BrokenPipeError`` is raised."""
    try:
        try:
            return command() or 0
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        gone = [_abandon(stream) for stream in (sys.stdout, sys.stderr)]
        if not any(gone):
            raise
        return EXIT_CLOSED


def _abandon(stream: TextIO) -> bool:
    """Return whether ``stream`` has no reader. If so, redirect it to nowhere, since the interpreter would complain
    about unwritten output at its exit."""
    try:
        descriptor = stream.fileno()
    except (AttributeError, io.UnsupportedOperation, ValueError):
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    if not any(state & select.POLLERR for _, state in poll.poll(0)):
        return False
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
    return True
