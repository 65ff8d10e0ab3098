"""Requests for shares whose storage may answer late: they run one after another, and nobody else waits for them.

A handler runs on the thread of the share's ``StorageQueue``, which has the event loop's turn while the handler does not
wait for the storage. So nothing changes for handlers. Requests of the same share find the state that the one before has
left, as on the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from smb3server.dispatch import lookup
from smb3server.dispatch.request import Handler, Interim, Pending, Request, Response
from smb3server.wire.status import Disconnect, NtStatus, StatusError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from smb3server.dispatch.pending import PendingRequests
    from smb3server.process.storage_queue import StorageQueue

log = logging.getLogger(__name__)

Outcome = Response | StatusError | Pending


class TurnHost(Protocol):
    """The part of a dispatcher that runs requests in their turn."""

    requests: PendingRequests

    def run_in_turn(self, request: Request, handler: Handler) -> Outcome:
        """Call the handler, unless the share was lost meanwhile. An exception becomes a status, but ``Disconnect``."""
        ...

    def finish(self, request: Request, result: Response | StatusError) -> None:
        """See ``Host``."""
        ...


class InTurn:
    """A request that waits for its turn, or has it. It pends from the beginning."""

    __slots__ = ("_cancelled", "_handler", "_host", "_pending", "_queue", "_request", "_withdraw")

    def __init__(self, host: TurnHost, request: Request, handler: Handler, queue: StorageQueue) -> None:
        self._host = host
        self._request = request
        self._handler = handler
        self._queue = queue
        self._cancelled = False
        """It was cancelled while its handler ran, and ends when that would wait for something else."""
        self._pending = request.pend(Interim.DELAYED, self._cancel)
        self._withdraw = queue.add(self._run, self._ran)

    @property
    def pending(self) -> Pending:
        """What the dispatcher gets in place of an answer."""
        return self._pending

    def _cancel(self) -> None:
        """End the wait for the turn. A handler is not left half done.

        A CANCEL that comes right behind its request finds the request begun on other shares: a CHANGE_NOTIFY has made
        its folder watched (MS-FSA 2.1.5.11), and what may not be done has failed. So it ends the wait only if the
        storage takes long."""
        request, pending = self._request, self._pending
        at_once = request.async_id or pending.closing or pending.refused_with is not None or request.connection.closed
        self._cancelled = True
        pending.on_cancel = self._cancel
        if at_once:
            self._end_wait()
        else:
            request.connection.loop.call_later(request.server.settings.interim_delay, self._end_wait)

    def _end_wait(self) -> None:
        if self._withdraw():
            self._pending.fail(StatusError(NtStatus.CANCELLED))

    def _run(self) -> Outcome | Disconnect:
        """Call the handler, in its turn."""
        request, pending = self._request, self._pending
        pending.goes_on(self._host.finish, self._cancel)
        try:
            return self._host.run_in_turn(request, self._handler)
        except Disconnect as reason:
            return reason

    def _ran(self, outcome: Outcome | Disconnect) -> None:
        """Answer, or let the request wait for what its handler waits for. If that fails the client is told so: nobody
        else would answer it."""
        request = self._request
        try:
            self._answer(outcome)
        except Exception:
            log.exception("%s: command %d failed", request.connection.client_name, request.header.command)
            self._pending.drop()
            if self._host.requests.holds(request):
                self._host.finish(request, StatusError(NtStatus.INTERNAL_ERROR))
            else:
                request.connection.disconnect("a reply could not be sent")
        self._end_late_opens()

    def _answer(self, outcome: Outcome | Disconnect) -> None:
        request, pending = self._request, self._pending
        request.pending = pending
        if isinstance(outcome, Pending):
            lookup.begin(request)
            self._host.requests.go_on(request, outcome)
            if self._cancelled:
                outcome.cancel(outcome.closing)
        elif isinstance(outcome, Disconnect):
            pending.goes_on(self._host.finish, None)
            pending.handler_returned()
            request.connection.disconnect(str(outcome), broke_protocol=True)
        else:
            self._host.finish(request, outcome)

    def _end_late_opens(self) -> None:
        """Close what the handler has opened for a session or tree connect that ended meanwhile."""
        session, tree = self._request.session, self._request.tree
        if session is None or tree is None:
            return
        opens = self._request.server.opens
        ended = session.session_id not in self._request.server.sessions.by_id
        if ended or session.tree_connect_table.get(tree.tree_id) is not tree:
            for opened in list(session.open_table.values()):
                if opened.tree is tree:
                    (opens.disconnect if ended else opens.close)(opened)


def queue_of(request: Request) -> StorageQueue | None:
    """Return what does the work on the storage of the request's share. None: the loop itself does it."""
    tree = request.tree
    return tree.share.queue if tree is not None else None


def continue_in_turn(request: Request, work: Callable[[], None]) -> None:
    """Go on with a request that has waited: now, or when the storage of its share has its turn."""
    queue = queue_of(request)
    if queue is None:
        work()
    else:
        queue.or_now(work)


class _Turns:
    """A coroutine whose steps are pieces of work of a queue, to be awaited."""

    def __init__(self, queue: StorageQueue, coroutine: Generator[Any, Any, Any]) -> None:
        self._queue = queue
        self._coroutine = coroutine

    def _step(self, error: BaseException | None) -> tuple[str, Any]:
        """Take a step, in its turn. Return how it ended."""
        try:
            return "waits", self._coroutine.send(None) if error is None else self._coroutine.throw(error)
        except StopIteration as stop:
            return "returned", stop.value
        except BaseException as failure:
            return "raised", failure

    def __await__(self) -> Generator[Any, Any, Any]:
        import asyncio

        thrown: BaseException | None = None
        while True:
            stepped: asyncio.Future[tuple[str, Any]] = asyncio.get_running_loop().create_future()
            self._queue.add(partial(self._step, thrown), stepped.set_result)
            thrown = None
            while not stepped.done():
                try:
                    # Not cancelled with this task: the step is under way, and its end has to be seen.
                    yield from asyncio.shield(stepped).__await__()
                except asyncio.CancelledError as error:
                    thrown = error
            how, what = stepped.result()
            if how == "returned":
                return what
            if how == "raised":
                raise what
            if thrown is not None:
                if what is not None:
                    what.cancel()
                continue
            try:
                yield what
            except BaseException as error:
                thrown = error


async def in_turns(queue: StorageQueue, work: Awaitable[Any]) -> Any:
    """Await ``work``, each step of which is a piece of work of ``queue``."""
    return await _Turns(queue, work.__await__())
