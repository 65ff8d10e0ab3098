"""Flushing files to stable storage on worker threads, many at a time.

A thread costs more to wake than most flushes cost it, so what comes in one turn of the event loop, or while all workers
are busy, goes to them in batches. Batches are spread over the workers: on a disk flushes run side by side, as far as
there are workers.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Sequence

from smb3server.process.turns import call_apart

WORKERS = min(32, (os.cpu_count() or 1) + 4)
"""As many as asyncio's own executor has."""
_PATIENCE = 0.002
"""Seconds of work after which a worker tells what it has done so far."""

Done = Callable[[Exception | None], None]
_Task = tuple[Callable[[], None], Done]


class Flushes:
    """A server's; used on its event loop."""

    def __init__(self) -> None:
        self.batches = 0
        """Handed to workers so far."""
        self._queue: deque[_Task] = deque()
        self._running = 0
        self._scheduled = False

    def add(self, flush: Callable[[], None], done: Done) -> None:
        """Call ``flush`` on a worker thread, then ``done`` on the event loop with what it raised."""
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
    told = time.monotonic()
    for flush, done in batch:
        try:
            flush()
        except Exception as error:
            outcomes.append((done, error))
        else:
            outcomes.append((done, None))
        now = time.monotonic()
        if now - told > _PATIENCE:
            loop.call_soon_threadsafe(_tell, outcomes)
            outcomes, told = [], now
    if outcomes:
        loop.call_soon_threadsafe(_tell, outcomes)


def _tell(outcomes: Sequence[tuple[Done, Exception | None]]) -> None:
    for done, error in outcomes:
        call_apart(done, error)
