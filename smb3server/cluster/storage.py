"""Whether the file systems of a service's shares are there, are the right ones, and work.

A share of a service has a mark in its file system (``backends.local.storage_mark``), which the first owner writes. The
store has it, too. A node whose folder lacks the mark neither takes the service nor keeps it. Every node that may have
the service looks at each share every few seconds, and writes something there.

A look runs on a thread of its own, because a file system that hangs blocks whoever asks it. There is never more than
one thread for a service, however long it hangs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from smb3server.persistence.storage import StorageHangs, StorageMissing, check, key_of

if TYPE_CHECKING:
    from smb3server.state.share import Share

log = logging.getLogger(__name__)

INTERVAL = 3.0
"""Seconds between two looks."""

_T = TypeVar("_T")


class StorageWatch:
    """The file systems of one service's shares, as this node sees them."""

    def __init__(self, service: str, node: str, shares: Sequence[Share], limit: float) -> None:
        """``shares``: those of the service; the list may change. ``limit``: seconds within which a look must end."""
        self._service = service
        self._node = node
        self._shares = shares
        self._limit = limit
        self.marks: Mapping[str, str] = {}
        """The marks that the shares must have, by ``key_of``."""
        self.problem: str | None = "not looked at yet"
        """Why the service cannot be served here; None if it can."""
        self.hangs = False
        """Whether the last look did not end in time."""
        self.looked = False
        """Whether there was a look, so that ``problem`` means something to others."""
        self._running: asyncio.Future[Any] | None = None
        """The call on the thread; done if there is none."""

    async def look(self) -> bool:
        """Look at all shares. Return whether ``problem`` has changed, which is logged."""
        problem: str | None = None
        hangs = False
        try:
            await self.call(self._check_all)
        except StorageHangs as error:
            problem, hangs = str(error), True
        except StorageMissing as error:
            problem = str(error)
        self.looked = True
        changed, self.problem, self.hangs = problem != self.problem, problem, hangs
        if changed and problem is not None:
            log.error("service %s cannot be served here: %s", self._service, problem)
        elif changed:
            log.info("service %s: the file systems of its shares are there", self._service)
        return changed

    def _check_all(self) -> None:
        for share in list(self._shares):
            check(share, self.marks.get(key_of(share)), self._node)

    async def call(self, work: Callable[[], _T]) -> _T:
        """Return the result of ``work``, called on a thread. Raises its exception, and ``StorageHangs`` if it does not
        return in time, or if an earlier one has not returned yet."""
        loop = asyncio.get_running_loop()
        if self._running is not None and not self._running.done():
            await asyncio.wait([self._running], timeout=self._limit)
            if not self._running.done():
                raise StorageHangs(self._silence())
        future: asyncio.Future[_T] = loop.create_future()

        def finish(result: _T | None, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
                # It is nobody's failure if nobody waits any longer.
                future.exception()
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def run() -> None:
            result: _T | None = None
            failed: Exception | None = None
            try:
                result = work()
            except Exception as error:
                failed = error
            try:
                loop.call_soon_threadsafe(finish, result, failed)
            except RuntimeError:
                log.debug("the event loop is closed")

        self._running = future
        threading.Thread(target=run, name="storage", daemon=True).start()
        await asyncio.wait([future], timeout=self._limit)
        if not future.done():
            raise StorageHangs(self._silence())
        return future.result()

    def _silence(self) -> str:
        return f"a file system of service {self._service} has not answered for more than {self._limit:g} s"
