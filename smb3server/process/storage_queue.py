"""Work on storage that may answer late, done so that the event loop goes on meanwhile.

The work on one storage is done one piece after another, on a thread of its own. That thread and the event loop never
run at the same time: the loop stands still while a piece of work runs, and goes on while the work is ``away``, which is
while it waits for the storage. So the work may use everything that belongs to the loop, as if it ran there. What else
may run while it is away are other callbacks of the loop, but no other work on the same storage.

The kernel keeps credentials for each thread. So acting as a user (``backends.local.impersonate``) needs no care here.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, ParamSpec, TypeVar

from smb3server.process.turns import call_apart

log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")

HELPERS = 4
"""Most threads of one storage for work that does not wait for its turn. A storage that hangs takes no others."""
PATIENCE = 5.0
"""Seconds without an answer after which the log says so."""


class _Here(threading.local):
    """What the present thread works for."""

    queue: StorageQueue | None = None


_here = _Here()


def away(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call ``function``, which may wait for storage and touches nothing of the event loop. The loop goes on meanwhile,
    if this is a piece of work of a ``StorageQueue``."""
    here = _here.queue
    if here is None or here.since:
        return function(*args, **kwargs)
    return here.leave(partial(function, *args, **kwargs))


class _Job(Generic[_T]):
    """A piece of work, waiting or under way."""

    __slots__ = ("done", "work")

    def __init__(self, work: Callable[[], _T], done: Callable[[_T], None]) -> None:
        self.work = work
        self.done = done

    def run(self) -> Callable[[], None]:
        """Do the work, and return what reports its result."""
        return partial(self.done, self.work())


def _nothing(result: object) -> None:
    """Ignore the result of a piece of work."""


class StorageQueue:
    """The work on one storage. It belongs to the event loop of its first piece of work."""

    def __init__(self, name: str) -> None:
        """``name``: what the log calls it."""
        self.name = name
        self.since = 0.0
        """When the call began that the work under way waits for, in monotonic seconds. 0: it waits for none."""
        self.classes: dict[type, type] = {}
        """By class: the one that ``backends.slow_store`` has made of it for this storage."""
        self._waiting: deque[_Job[object]] = deque()
        self._job: _Job[object] | None = None
        """The work under way."""
        self._report: Callable[[], None] | None = None
        """Reports the result of the work under way, once that has ended."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._go = threading.Lock()
        """Released by the loop when the thread may run."""
        self._back = threading.Lock()
        """Released by the thread when the loop may run."""
        self._go.acquire()
        self._back.acquire()
        # Invariant: exactly one of the loop and the thread runs while there is a job that is not away.
        self._watching = False
        """A timer for ``_watch`` runs."""
        self._silent = False
        """The log says that the storage does not answer."""
        self._help: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._helpers = 0
        self._helping: dict[object, float] = {}
        """Work that is with the helpers: when it was given to them, in monotonic seconds."""

    # Asking

    @property
    def is_here(self) -> bool:
        """Whether the caller is a piece of this work."""
        return _here.queue is self

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and nothing is under way."""
        return self._job is None and not self._waiting and not self._helping

    def __len__(self) -> int:
        """Return how many pieces of work wait or are under way."""
        return len(self._waiting) + (self._job is not None) + len(self._helping)

    def silent_for(self) -> float:
        """Return for how many seconds the storage has not answered what it was asked first. 0: nobody waits for it."""
        asked = [self.since] if self.since else []
        asked += self._helping.values()
        return time.monotonic() - min(asked) if asked else 0.0

    # Work in turn

    def add(self, work: Callable[[], _T], done: Callable[[_T], None] = _nothing) -> Callable[[], bool]:
        """Do ``work`` after the work that was added before, then call ``done`` with its result in the same turn of the
        loop. Return a function that withdraws it: it returns False if the work has begun.

        Neither may raise: an exception is logged, and ``done`` is not called."""
        job: _Job[object] = _Job(work, done)  # type: ignore[arg-type]
        self._waiting.append(job)
        if self._job is None and len(self._waiting) == 1:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._next)

        def withdraw() -> bool:
            if job not in self._waiting:
                return False
            # Whoever is called by ``_next`` finds the queue empty then, and does nothing.
            self._waiting.remove(job)
            return True

        return withdraw

    def or_now(self, work: Callable[[], object]) -> None:
        """Do ``work``: now if the caller is a piece of this work, else in turn."""
        if self.is_here:
            call_apart(work)
        else:
            self.add(work)

    def _next(self) -> None:
        """Begin the next piece of work, on the loop."""
        if self._job is not None or not self._waiting:
            return
        self._job = self._waiting.popleft()
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name=f"storage {self.name}", daemon=True)
            self._thread.start()
        self._give_turn()

    def _give_turn(self) -> None:
        """Let the thread run until its work is away or has ended, on the loop."""
        self._go.release()
        self._back.acquire()
        report, self._report = self._report, None
        if report is None:
            self._watch_later()
            return
        self._job = None
        self._heard()
        call_apart(report)
        if self._waiting and self._loop is not None:
            # In another turn: the loop has other clients.
            self._loop.call_soon(self._next)

    def _main(self) -> None:
        """Do the work, on the thread."""
        _here.queue = self
        asyncio._set_running_loop(self._loop)
        while True:
            self._go.acquire()
            job = self._job
            if job is None:
                break
            report: Callable[[], None] = _no_report
            try:
                report = job.run()
            except BaseException:
                # The loop waits for this thread, so it goes on.
                log.exception("work on %s failed", self.name)
            job = None
            self._report = report
            del report
            self._back.release()
        self._back.release()

    def leave(self, call: Callable[[], _T]) -> _T:
        """Let the loop go on while ``call`` waits for the storage, on the thread."""
        loop = self._loop
        assert loop is not None
        self.since = time.monotonic()
        self._back.release()
        try:
            return call()
        finally:
            try:
                loop.call_soon_threadsafe(self._give_turn)
            except RuntimeError:
                # The loop has ended without this storage: nobody may go on.
                log.debug("%s answers after the end of the server", self.name)
            self._go.acquire()
            self.since = 0.0

    # Work beside it

    def help(self, work: Callable[[], _T], done: Callable[[_T | None, Exception | None], None]) -> None:
        """Do ``work``, which touches nothing of the event loop, on one of a few threads. Then call ``done`` on the loop
        with its result, or with the exception that it raised."""
        loop = self._loop = asyncio.get_running_loop()
        token = object()

        def ended(result: _T | None, error: Exception | None) -> None:
            self._helping.pop(token, None)
            self._heard()
            call_apart(done, result, error)

        def run() -> None:
            result: _T | None = None
            failure: Exception | None = None
            try:
                result = work()
            except Exception as error:
                failure = error
            try:
                loop.call_soon_threadsafe(ended, result, failure)
            except RuntimeError:
                log.debug("%s answers after the end of the server", self.name)

        self._helping[token] = time.monotonic()
        self._watch_later()
        if self._helpers < min(HELPERS, len(self._helping)):
            self._helpers += 1
            threading.Thread(target=self._assist, name=f"storage {self.name}", daemon=True).start()
        self._help.put(run)

    def helped(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Do ``work`` as ``help`` does. Return a future of its result."""
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

        def done(result: _T | None, error: Exception | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]
            else:
                future.set_exception(error)

        self.help(work, done)
        return future

    def _assist(self) -> None:
        while (work := self._help.get()) is not None:
            work()

    # Silence

    def _watch_later(self) -> None:
        if not self._watching and self._loop is not None:
            self._watching = True
            self._loop.call_later(PATIENCE, self._watch)

    def _watch(self) -> None:
        """Tell the operator if the storage does not answer."""
        self._watching = False
        seconds = self.silent_for()
        if not seconds:
            return
        if seconds >= PATIENCE and not self._silent:
            self._silent = True
            log.warning("%s: storage has not answered for %.0f s, %d requests wait", self.name, seconds, len(self))
        self._watch_later()

    def _heard(self) -> None:
        if self._silent:
            self._silent = False
            log.warning("%s: storage answers again", self.name)

    # The end

    async def drained(self, deadline: float) -> bool:
        """Wait until all work is done, until ``deadline`` of the loop's clock. Return whether it is."""
        loop = asyncio.get_running_loop()
        while not self.is_idle:
            if loop.time() > deadline:
                log.warning("%s: storage does not answer, and %d requests are given up", self.name, len(self))
                return False
            await asyncio.sleep(0.01)
        return True

    def close(self) -> None:
        """End the threads, unless they wait for the storage: then they end with the process. Idempotent."""
        for _ in range(self._helpers):
            self._help.put(None)
        self._helpers = 0
        if self._thread is not None and self._job is None:
            self._thread = None
            self._go.release()
            self._back.acquire()


def _no_report() -> None:
    """Report nothing, of work that has failed."""
