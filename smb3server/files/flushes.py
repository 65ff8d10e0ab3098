"""Flushes of files to stable storage on worker threads, many at a time.

To wake a thread costs more than most flushes. So flushes that come in one turn of the event loop, or while all workers
are busy, are handed to the workers in batches. The batches are spread over all workers, because a disk handles flushes
in parallel.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Sequence

from smb3server.process.turns import call_apart

WORKERS = min(32, (os.cpu_count() or 1) + 4)
"""The number of threads of asyncio's default executor."""
_PATIENCE = 0.002
"""Seconds of work after which a worker reports the flushes it has done so far."""

Done = Callable[[Exception | None], None]
_Task = tuple[Callable[[], None], Done]


class Flushes:
    """The flushes of one server. To be used on its event loop only."""

    # Invariant: _running, the number of workers that are busy, is at most WORKERS.

    def __init__(self) -> None:
        self.batches = 0
        """Number of batches handed to workers so far."""
        self._queue: deque[_Task] = deque()
        self._running = 0
        self._scheduled = False

    def add(self, flush: Callable[[], None], done: Done) -> None:
        """Call ``flush`` on a worker thread, then ``done`` on the event loop, with the exception it raised or None."""
        self._queue.append((flush, done))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._hand_out)

    def _hand_out(self) -> None:
        self._scheduled = False
        queue, loop = self._queue, asyncio.get_running_loop()
        while queue and self._running < WORKERS:
            count = -(-len(queue) // (WORKERS - self._running))
            batch = [queue.popleft() for _ in range(count)]
            self._running += 1
            self.batches += 1
            loop.run_in_executor(None, _work, loop, batch).add_done_callback(self._finished)

    def _finished(self, job: asyncio.Future[None]) -> None:
        self._running -= 1
        job.result()
        self._hand_out()


def _work(loop: asyncio.AbstractEventLoop, batch: Sequence[_Task]) -> None:
    outcomes: list[tuple[Done, Exception | None]] = []
    reported = time.monotonic()
    for flush, done in batch:
        try:
            flush()
        except Exception as error:
            outcomes.append((done, error))
        else:
            outcomes.append((done, None))
        now = time.monotonic()
        if now - reported > _PATIENCE:
            loop.call_soon_threadsafe(_report, outcomes)
            outcomes, reported = [], now
    if outcomes:
        loop.call_soon_threadsafe(_report, outcomes)


def _report(outcomes: Sequence[tuple[Done, Exception | None]]) -> None:
    for done, error in outcomes:
        call_apart(done, error)
