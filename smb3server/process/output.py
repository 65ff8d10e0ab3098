"""Commands whose output nobody reads to its end: ``smb3server doctor | head -1`` is no error of the command."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import TextIO

EXIT_CLOSED = 128 + signal.SIGPIPE
"""Exit status of a command whose output is closed before it has said everything, as shells give it for SIGPIPE."""


def run(command: Callable[[], int | None]) -> int:
    """Call ``command`` and flush what it printed; its exit status (None means 0), or ``EXIT_CLOSED``. Only a closed
    output is handled: other ``BrokenPipeError`` are raised."""
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
    """Whether the reader of ``stream`` is gone; if so, let what is left to write go nowhere, else the interpreter
    complains at its exit."""
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
