"""Work that may take seconds, in steps, on threads of its own.

Flushes and reads need not wait for it, and one user's work does not block that of others.
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
"""Most threads that work for one user at the same time, so that threads are left for the others."""

_PATIENCE = 5.0
"""Seconds that the end of the server waits for the steps under way."""

Steps = Iterator[None]
"""Work in steps of at most some tens of milliseconds. It begins with the first step, and may be closed between two."""
Done = Callable[[Exception | None], None]


_executor = ThreadPoolExecutor(THREADS, "long-work")
"""It starts threads when it gets work."""


class Job:
    """One piece of work, waiting or running."""

    __slots__ = ("_done", "_is_lost", "_steps", "_stopped", "owner")

    def __init__(self, owner: str, steps: Steps, done: Done, is_lost: Callable[[], bool] | None) -> None:
        self.owner = owner
        self._steps = steps
        self._done = done
        self._stopped = False
        self._is_lost = is_lost

    def stop(self) -> None:
        """End the job after its present step; the steps that were done are not undone. Any thread may call this."""
        self._stopped = True

    def run(self) -> Exception | None:
        """Take the steps, on a worker thread. Return the exception that ended them, or None."""
        steps, is_lost = self._steps, self._is_lost
        try:
            while not (self._stopped or (is_lost is not None and is_lost())):
                next(steps)
        except StopIteration:
            return None
        except Exception as error:
            return error
        finally:
            # Close the steps on this thread, not on the one that drops the last reference.
            close = getattr(self._steps, "close", None)
            if close is not None:
                close()
        return None

    def give_up(self) -> None:
        """End the job without running it, with ECANCELED."""
        close = getattr(self._steps, "close", None)
        if close is not None:
            close()
        self._done(OSError(errno.ECANCELED, "the server is stopping"))

    def finish(self, error: Exception | None) -> None:
        """Report the end of the job, on the event loop."""
        self._done(error)


class LongWork:
    """The long work of one server. All methods are called on its event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Job]] = {}
        """By owner, in the order of their turns. Invariant: no queue is empty."""
        self._running: dict[str, int] = {}
        """Invariant: how many of ``_jobs`` each owner has; no count is 0."""
        self._threads = 0
        self._jobs: set[Job] = set()
        """Running jobs. Invariant: ``_threads`` is their number."""
        self._watchers: list[tuple[set[Job], Callable[[], None]]] = []
        """Invariant: no set is empty. Its jobs wait or run."""

    def add(self, owner: str, steps: Steps, done: Done, is_lost: Callable[[], bool] | None = None) -> Job:
        """Take the steps on a worker thread, then call ``done`` on the event loop with the exception that they raised,
        or None. ``owner`` is the user whose turn it takes.

        ``is_lost`` is called on the thread before each step. Once it returns True, no further step is taken."""
        job = Job(owner, steps, done, is_lost)
        self._waiting.setdefault(owner, deque()).append(job)
        self._hand_out()
        return job

    async def close(self) -> None:
        """End the running jobs after their present step, and give up the waiting ones."""
        waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            for job in queue:
                job.give_up()
                self._ended(job)
        for job in self._jobs:
            job.stop()
        deadline = time.monotonic() + _PATIENCE
        while self._jobs and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    def after_present(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when all work that was added before has ended; at once if there is none."""
        queues = self._waiting.values()
        left = {job for queue in queues for job in queue} | self._jobs
        if left:
            self._watchers.append((left, callback))
        else:
            callback()

    def _hand_out(self) -> None:
        while self._threads < THREADS:
            owner = next((owner for owner in self._waiting if self._running.get(owner, 0) < THREADS_PER_USER), None)
            if owner is None:
                return
            queue = self._waiting.pop(owner)
            job = queue.popleft()
            if queue:
                # The owner's next turn comes after those of all others.
                self._waiting[owner] = queue
            self._threads += 1
            self._jobs.add(job)
            self._running[owner] = self._running.get(owner, 0) + 1
            future = asyncio.get_running_loop().run_in_executor(_executor, job.run)
            future.add_done_callback(functools.partial(self._finished, job))

    def _finished(self, job: Job, future: asyncio.Future[Exception | None]) -> None:
        self._threads -= 1
        self._jobs.discard(job)
        self._running[job.owner] -= 1
        if not self._running[job.owner]:
            del self._running[job.owner]
        self._hand_out()
        job.finish(future.result())
        self._ended(job)

    def _ended(self, job: Job) -> None:
        """Call those who have waited for ``job`` as the last one."""
        for left, _ in self._watchers:
            left.discard(job)
        done = [callback for left, callback in self._watchers if not left]
        self._watchers = [watcher for watcher in self._watchers if watcher[0]]
        for callback in done:
            callback()
