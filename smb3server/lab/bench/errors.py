"""Ends of a run without results: obstacles, and signals."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(number: int, _frame: object) -> None:
    """End the run and clean up its servers, addresses and folders; ignore further signals meanwhile."""
    for ignored in _ENDING:
        signal.signal(ignored, signal.SIG_IGN)
    # Not print: the signal may have come within one, which takes no second writer.
    os.write(2, b"bench: interrupted\n")
    raise SystemExit(128 + number)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """During a ``with`` block, let the signals that end programs raise ``SystemExit``."""
    before = {number: signal.signal(number, _interrupt) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class BenchError(Exception):
    """The machine lacks something, or a server or the client failed. The text says what to do about it."""
