"""Requests that cannot be answered yet: try, wait for what is in the way, try again.

A request that waited continues in a turn of the event loop of its own, never on the stack of the client that ended the
wait. What it raises is its own failure.

``until`` and ``over`` serve waits that have one end, an error or CANCELLED. Other waits call ``Request.pend``
themselves and use at most ``answer`` and ``fail``:

- LOCK: a state machine in ``files.locks``. A lock may be granted and queued again, because a program of the host holds
  the range. CLOSE ends it with RANGE_NOT_LOCKED, the end of the session or tree connect with SUCCESS.
- CHANGE_NOTIFY: a state machine in ``files.notify``, which gives the status and the output. It answers at once if it
  has kept changes, and the end of the session or tree connect ends the watcher instead of the one request.
- Acknowledgments of breaks: most do not wait, and only ``files.caching`` knows; ``until`` makes every request pend.
- READ and WRITE: they have lent buffers, which they give back whether the request was cancelled or not.
- SESSION_SETUP: a logon that is slowed may be slowed again, and is not cancelled while it is looked at.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from smb3server.backends.base import FolderNotRead, Reading
from smb3server.dispatch.errno_status import as_status_error
from smb3server.dispatch.request import Interim, Pending, Request, Response
from smb3server.process.turns import call_in_own_turn
from smb3server.wire.status import Disconnect, NtStatus, StatusError
from smbdirect.errors import DecodeError

log = logging.getLogger(__name__)

HOST_POLL = 0.05
"""Seconds between attempts while a program of the host has a lease on the file."""
HOST_LEASE_TIMEOUT = 60.0
"""Seconds; the kernel's own limit is 45 by default."""


class Breaking(Protocol):
    """Where caching rights are being taken back (``leases.Caching``)."""

    def wait(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, in a turn of its own, when a break comes to an end."""
        ...

    def unwait(self, callback: Callable[[], None]) -> None: ...


class MustWait(Exception):
    """Somebody's caching rights are being taken back. Try again when ``breaking`` reports the end of it."""

    def __init__(self, breaking: Breaking) -> None:
        super().__init__()
        self.breaking = breaking


Attempt = Callable[[], Response | Awaitable[Response | None]]
"""Returns the response, or work that leads to it; work that returns None is to be followed by another attempt.

An attempt that cannot succeed yet raises ``MustWait``, ``FolderNotRead`` or, where a program of the host has a lease
(fcntl(2), F_SETLEASE), ``BlockingIOError``. It leaves nothing behind then."""
Begin = Callable[[Pending], Callable[[], None]]
"""Called when the request has to wait; returns what is to be called when that is over, before the reply is made."""


def retry(
    request: Request, attempt: Attempt, interim: Interim = Interim.DELAYED, begin: Begin | None = None
) -> Response | Pending:
    """Answer a request by ``attempt``: at once, or as soon as nothing is in its way any more.

    ``interim`` says when the client hears that a break is waited for; of everything else it hears after a moment.
    Raises what the first attempt raises, unless that can be waited for.
    """
    try:
        result = attempt()
    except (MustWait, BlockingIOError) as blocked:
        at = interim if isinstance(blocked, MustWait) else Interim.DELAYED
        waiting = _Waiting(request, attempt, at, begin)
        waiting.wait_for(blocked)
        return waiting.pending
    if isinstance(result, Response):
        return result
    waiting = _Waiting(request, attempt, Interim.DELAYED, begin)
    waiting.work_on(result)
    return waiting.pending


def run(request: Request, work: Awaitable[Response], interim: Interim = Interim.DELAYED) -> Pending:
    """Answer a request with the result of a coroutine or what it raises. CANCEL cancels it."""
    waiting = _Waiting(request, None, interim, None)
    waiting.work_on(work)
    return waiting.pending


Done = Callable[[BaseException | None], None]
"""Called when something is over, with what went wrong."""


Begins = Callable[[Done], "Callable[[], None] | None"]
"""Begins something and returns what calls it off, or None if it goes on to its end in any case. It calls what it is
given in a turn of its own, never at once."""


def until(
    request: Request, begin: Begins, work: Callable[[], Response | None], interim: Interim = Interim.DELAYED
) -> Pending:
    """Answer a request by ``work`` when something is over that ``begin`` begins, or fail it with what went wrong.
    CANCEL fails it at once. ``work`` may return None: then the request waits on."""
    pending = request.pending or request.pend(interim)

    def ended(error: BaseException | None) -> None:
        if error is None:
            answer(pending, work)
        elif not pending.done:
            fail(pending, error)

    call_off = begin(ended)
    if call_off is not None:
        pending.on_cancel = partial(_called_off, pending, call_off)
    return pending


def _called_off(pending: Pending, call_off: Callable[[], None]) -> None:
    call_off()
    pending.fail(StatusError(NtStatus.CANCELLED))


async def over(begin: Begins) -> None:
    """Return when something is over that ``begin`` begins. Raises what went wrong. It is called off if the task is
    cancelled."""
    future: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    call_off = begin(lambda error: None if future.done() else future.set_result(error))
    try:
        error = await future
    finally:
        if call_off is not None:
            call_off()
    if error is not None:
        raise error


def when_read(request: Request, unread: FolderNotRead, done: Done) -> Callable[[], None]:
    """Read a large directory, for requests that look up a name in it ignoring case, and call ``done`` in a turn of its
    own. Requests that wait for the same one share the reading, which goes on when they are cancelled. Returns what
    forgets ``done``."""
    reading = unread.reading
    reading.waiting.append(done)
    if not reading.started:
        reading.started = True
        identity = request.session.identity if request.session is not None else None
        owner = identity.owner if identity is not None else ""
        request.server.long_work.add(owner, reading.steps, partial(_report, reading))

    def forget() -> None:
        if done in reading.waiting:
            reading.waiting.remove(done)

    return forget


def _report(reading: Reading, error: Exception | None) -> None:
    waiting, reading.waiting = reading.waiting, []
    for done in waiting:
        call_in_own_turn(partial(done, error))


def answer(pending: Pending, work: Callable[[], Response | None]) -> None:
    """Complete a request with what ``work`` returns, or fail it with what ``work`` raises. None: it waits on.

    Nothing is done for a request that is over already.
    """
    if pending.done:
        return
    try:
        response = work()
    except Exception as error:
        fail(pending, error)
        return
    if response is not None:
        pending.complete(response)


def fail(pending: Pending, error: BaseException) -> None:
    """Fail a request with the status that ``error`` stands for. ``Disconnect`` ends its connection, and so the
    request."""
    try:
        pending.fail(failure(pending.request, error))
    except Disconnect as reason:
        pending.request.connection.disconnect(str(reason))


def failure(request: Request, error: BaseException) -> StatusError:
    """Return the status that a request fails with which raised ``error``: INTERNAL_ERROR, and a line in the log, for
    what was not foreseen. ``Disconnect`` is raised again."""
    if isinstance(error, StatusError):
        return error
    if isinstance(error, Disconnect):
        raise error
    if isinstance(error, OSError):
        return as_status_error(error)
    if isinstance(error, DecodeError):
        return StatusError(NtStatus.INVALID_PARAMETER)
    log.error("%s: command %d failed", request.connection.client_name, request.header.command, exc_info=error)
    return StatusError(NtStatus.INTERNAL_ERROR)


class _Waiting:
    """One request that is not answered yet. It waits for one thing at a time, or a task works on it."""

    __slots__ = ("_attempt", "_call_off", "_deadline", "_end", "_request", "_task", "pending")

    def __init__(self, request: Request, attempt: Attempt | None, interim: Interim, begin: Begin | None) -> None:
        self._request = request
        self._attempt = attempt
        """None: there is to be no other."""
        self._call_off: Callable[[], None] | None = None
        """Ends what is waited for now, unless that is a task."""
        self._task: asyncio.Future[Response | None] | None = None
        self._deadline: float | None = None
        """Until when a lease of a host program is waited for; None until one was met."""
        self.pending = request.pend(interim, self._cancelled)
        self._end = begin(self.pending) if begin is not None else None

    def wait_for(self, blocked: MustWait | BlockingIOError) -> None:
        """Attempt again when what ``blocked`` tells of is over."""
        try:
            if isinstance(blocked, MustWait):
                blocked.breaking.wait(self._again)
                self._call_off = partial(blocked.breaking.unwait, self._again)
            elif isinstance(blocked, FolderNotRead):
                self._call_off = when_read(self._request, blocked, self._read)
            else:
                self._call_off = self._poll().cancel
        except Exception as error:
            self._fail(error)

    def _poll(self) -> asyncio.TimerHandle:
        """The kernel has told the program to let go of its lease, which it does, or is made to within
        /proc/sys/fs/lease-break-time. Nobody tells when."""
        loop = self._request.connection.loop
        if self._deadline is None:
            self._deadline = loop.time() + HOST_LEASE_TIMEOUT
        elif loop.time() >= self._deadline:
            raise StatusError(NtStatus.SHARING_VIOLATION)
        return loop.call_later(HOST_POLL, self._again)

    def _read(self, error: BaseException | None) -> None:
        """The directory is read, or cannot be."""
        if error is None:
            self._again()
        elif not self.pending.done:
            self._fail(error)

    def _again(self) -> None:
        self._call_off = None
        if self.pending.done or self._attempt is None:
            return
        try:
            result = self._attempt()
        except (MustWait, BlockingIOError) as blocked:
            self.wait_for(blocked)
        except Exception as error:
            self._fail(error)
        else:
            if isinstance(result, Response):
                self._complete(result)
            else:
                self.work_on(result)

    def work_on(self, work: Awaitable[Response | None]) -> None:
        """Complete the request with what ``work`` comes to."""
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(self._worked)

    def _worked(self, task: asyncio.Future[Response | None]) -> None:
        self._task = None
        if task.cancelled():
            self._fail(StatusError(NtStatus.CANCELLED))
            return
        error = task.exception()
        if error is not None:
            self._fail(error)
            return
        response = task.result()
        if response is not None:
            self._complete(response)
        elif self._attempt is None:
            self._fail(StatusError(NtStatus.CANCELLED))
        else:
            self._again()

    def _cancelled(self) -> None:
        """CANCEL, or session, tree or connection go away. Work under way cleans up before the request fails."""
        self._attempt = None
        if self._task is not None:
            # A task that is cancelled before its first step never gets to clean up.
            self._request.connection.loop.call_soon(self._task.cancel)
            return
        call_off, self._call_off = self._call_off, None
        if call_off is not None:
            call_off()
        self._fail(StatusError(NtStatus.CANCELLED))

    def _complete(self, response: Response) -> None:
        self._over()
        self.pending.complete(response)

    def _fail(self, error: BaseException) -> None:
        self._over()
        fail(self.pending, error)

    def _over(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            end()
