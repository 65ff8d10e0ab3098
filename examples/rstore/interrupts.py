"""End a program at Ctrl-C and SIGTERM, so that it takes its processes and files with it."""

from __future__ import annotations

import gc
import signal
from types import FrameType


def heed_interrupts() -> None:
    """Let SIGINT and SIGTERM raise ``KeyboardInterrupt`` in the main thread. SIGALRM and its timer are taken for it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise ``KeyboardInterrupt``. Wait a little if it would be lost: the interpreter ignores what callbacks of its
    garbage collection raise, and dask has one."""
    callbacks = [getattr(getattr(one, "__func__", one), "__code__", None) for one in gc.callbacks]
    within = frame
    while within is not None:
        if within.f_code in callbacks:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            return
        within = within.f_back
    raise KeyboardInterrupt
