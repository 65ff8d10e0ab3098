"""Work that may take seconds, in steps, on threads of its own: flushes and reads need not wait for it, and one user's
does not keep the others' waiting.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger(__name__)

THREADS = 4
THREADS_PER_USER = 2
"""One user's work leaves threads to the others'."""

_PATIENCE = 5.0
"""Seconds that the server's end waits for a step."""

Steps = Iterator[None]
"""Work in pieces of at most some tens of milliseconds. It begins with the first, and may be closed between two."""
Done = Callable[[Exception | None], None]


@functools.cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "long-work")


class Job:
    """Something to do, or being done."""

    __slots__ = ("_done", "_steps", "_stopped", "owner")

    def __init__(self, owner: str, steps: Steps, done: Done) -> None:
        self.owner = owner
        self._steps = steps
        self._done = done
        self._stopped = False

    def stop(self) -> None:
        """End it after the step that it is at; what it has done stays done. Any thread may call."""
        self._stopped = True

    def run(self) -> Exception | None:
        """Called on a worker; returns what went wrong."""
        try:
            for _ in self._steps:
                if self._stopped:
                    break
        except Exception as error:
            return error
        finally:
            # Here, not on the thread of whoever forgets the job last.
            close = getattr(self._steps, "close", None)
            if close is not None:
                close()
        return None

    def give_up(self) -> None:
        """Instead of ``run``."""
        close = getattr(self._steps, "close", None)
        if close is not None:
            close()
        self._done(OSError(errno.ECANCELED, "the server ends"))

    def finish(self, error: Exception | None) -> None:
        """Called on the event loop."""
        self._done(error)


class LongWork:
    """A server's; used on its event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Job]] = {}
        """By owner, in the order in which their turns come."""
        self._running: dict[str, int] = {}
        self._threads = 0
        self._jobs: set[Job] = set()
        """Running."""

    def add(self, owner: str, steps: Steps, done: Done) -> Job:
        """Take the steps on a worker thread, then call ``done`` on the event loop with what they raised."""
        job = Job(owner, steps, done)
        self._waiting.setdefault(owner, deque()).append(job)
        self._hand_out()
        return job

    async def close(self) -> None:
        """End what is running after the step that it is at, and give up the rest."""
        waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            for job in queue:
                job.give_up()
        for job in self._jobs:
            job.stop()
        deadline = time.monotonic() + _PATIENCE
        while self._jobs and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    def _hand_out(self) -> None:
        while self._threads < THREADS:
            owner = next((owner for owner in self._waiting if self._running.get(owner, 0) < THREADS_PER_USER), None)
            if owner is None:
                return
            queue = self._waiting.pop(owner)
            job = queue.popleft()
            if queue:
                # Behind everybody else.
                self._waiting[owner] = queue
            self._threads += 1
            self._jobs.add(job)
            self._running[owner] = self._running.get(owner, 0) + 1
            future = asyncio.get_running_loop().run_in_executor(_executor(), job.run)
            future.add_done_callback(functools.partial(self._finished, job))

    def _finished(self, job: Job, future: asyncio.Future[Exception | None]) -> None:
        self._threads -= 1
        self._jobs.discard(job)
        self._running[job.owner] -= 1
        if not self._running[job.owner]:
            del self._running[job.owner]
        self._hand_out()
        job.finish(future.result())
