"""Python's cyclic garbage collector, for a process with millions of objects that live long and refer to each other.

Connections, sessions and opens do. With Python's own thresholds the collector looks at all of them over and over while
tens of thousands of clients come; here it looks at them seldom, and not at all at what a takeover brought until the
rush is over.

It looks at what is young in small portions: everybody waits while it does, for some ten milliseconds for each 10,000
objects that are garbage. What connections leave behind refers to itself, so a stranger who makes connections fast
decides how many there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator

THRESHOLDS = 2_000, 4, 200
"""See ``gc.set_threshold``: what is young is at most 10,000 objects. All are looked at after two million, if a quarter
of them is new."""
RUSH = 120.0
"""Seconds after a takeover in which what it brought is not looked at."""


def freeze() -> None:
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
