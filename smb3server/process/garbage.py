"""Settings of Python's cyclic garbage collector for a process with millions of long-lived objects in circles.

Connections, sessions and opens are such objects. With Python's own thresholds the collector would examine all of them
again and again while tens of thousands of clients connect. Here it examines them rarely, and it does not examine the
objects of a takeover until the rush is over.

It examines young objects in small portions, because all clients wait meanwhile: some ten milliseconds for each 10,000
objects that are garbage. The remains of connections are circles, so an unauthenticated peer that connects fast
determines how many there are.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

THRESHOLDS = 2_000, 4, 200
"""See ``gc.set_threshold``. The young generations have at most 10,000 objects. All objects are examined after two
million new ones, if a quarter of all is new."""
RUSH = 120.0
"""Seconds after a takeover during which its objects are not examined."""
STARTING = 50_000, 20, 20
"""Thresholds of a process that starts, or runs one command: modules are most of its objects, and none of them becomes
garbage."""


def begin() -> None:
    """Examine objects rarely while the process starts. This is the first thing that it does."""
    gc.set_threshold(*STARTING)


def end() -> None:
    """Examine nothing when the process ends: all of its memory goes with it. The interpreter would examine everything
    twice.
    """
    gc.freeze()


def freeze() -> None:
    """Exempt all present objects from collection and set the thresholds. To be called when the process has started."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Collect nothing inside, for code that makes thousands of objects of which none becomes garbage. An event loop
    must be running: it ends the exemption of these objects after ``RUSH`` seconds."""
    # The first thing that a process loads is this module: a command line without an event loop does not pay for one.
    import asyncio

    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
        gc.freeze()
        asyncio.get_running_loop().call_later(RUSH, gc.unfreeze)
