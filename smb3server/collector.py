"""Python's cyclic garbage collector, for a process with millions of objects that live long and refer to each other.

Connections, sessions and opens do. With Python's own thresholds the collector looks at all of them over and over while
tens of thousands of clients come; here it looks seldom, and not at all at what a takeover brought until the rush is
over.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator

THRESHOLDS = 10_000, 20, 10
RUSH = 120.0
"""Seconds after a takeover in which what it brought is not looked at."""


def settle() -> None:
    """The process has started: what is there stays."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Nothing is collected inside, where thousands of objects are made and none becomes garbage. In an event loop."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
        gc.freeze()
        asyncio.get_running_loop().call_later(RUSH, gc.unfreeze)
