"""Requests that cannot be answered yet: try, wait for what is in the way, try again.

A request that waited continues in a turn of the event loop of its own, never on the stack of the client that ended the
wait. What it raises is its own failure.

``until`` and ``over`` serve waits that have one end, an error or CANCELLED. Other waits call ``Request.pend``
themselves and use at most ``answer`` and ``fail``:

- LOCK: a state machine in ``files.locks``. A granted lock is queued again if a program of the host holds the range.
  CLOSE ends it with RANGE_NOT_LOCKED, the end of the session or tree connect with SUCCESS.
- CHANGE_NOTIFY: a state machine in ``files.notify``, which gives the status and the output. It answers at once if it
  has kept changes, and the end of the session or tree connect ends the watcher instead of the one request.
- Acknowledgments of breaks: most do not wait, and only ``files.caching`` knows; ``until`` makes every request pend.
- READ and WRITE: they hold buffers, which they must give back even if the request was cancelled.
- SESSION_SETUP: a delayed logon may be delayed again, and cannot be cancelled while its token is checked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from smb3server.backends.base import FolderNotRead, Reading
from smb3server.dispatch.errno_status import NO_DESCRIPTORS, STORAGE_FAILS, as_status_error
from smb3server.dispatch.in_turn import continue_in_turn, in_turns, queue_of
from smb3server.dispatch.request import Interim, Pending, Request, Response
from smb3server.process.turns import call_in_own_turn
from smb3server.wire.header import Command
from smb3server.wire.status import Disconnect, NtStatus, StatusError
from smbdirect.errors import DecodeError

log = logging.getLogger(__name__)

HOST_POLL = 0.05
"""Seconds between attempts while a program of the host has a lease on the file."""
HOST_LEASE_TIMEOUT = 60.0
"""Seconds; the kernel's own limit is 45 by default."""


class Breaking(Protocol):
    """The oplocks and leases of a stream, of which some are breaking (``caching.Caching``), or an empty pipe."""

    def wait(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, in a turn of its own, when a break ends, or when the pipe has a message."""
        ...

    def unwait(self, callback: Callable[[], None]) -> None:
        """Undo ``wait``."""
        ...


class MustWait(Exception):
    """Raised by an attempt that needs an oplock or lease break to end, or a pipe to have a message. Try again when
    ``breaking`` reports this."""

    def __init__(self, breaking: Breaking) -> None:
        super().__init__()
        self.breaking = breaking


Attempt = Callable[[], Response | Awaitable[Response | None]]
"""Returns the response, or an awaitable that returns it. If the awaitable returns None, another attempt is made.

An attempt that cannot succeed yet raises ``MustWait``, ``FolderNotRead`` or, if a program of the host has a lease
(fcntl(2), F_SETLEASE), ``BlockingIOError``. Such an attempt must not leave changes behind. The fence is asked before
every attempt but the first."""
Begin = Callable[[Pending], Callable[[], None]]
"""Called when the request has to wait. Returns a function to be called when the wait is over, before the reply."""


def retry(
    request: Request, attempt: Attempt, interim: Interim = Interim.DELAYED, begin: Begin | None = None
) -> Response | Pending:
    """Answer a request by ``attempt``, which is repeated until it does not have to wait.

    ``interim`` is when to send the interim reply if the request waits for a break; otherwise it is sent after the usual
    delay. ``begin`` is called before the first wait. Raises the exception of the first attempt if it is not one to
    wait for.
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
    """Answer a request with the result or the exception of a coroutine. CANCEL cancels the coroutine."""
    waiting = _Waiting(request, None, interim, None)
    waiting.work_on(work)
    return waiting.pending


Done = Callable[[BaseException | None], None]
"""Called when an operation has ended, with its error or None."""


Begins = Callable[[Done], "Callable[[], object] | None"]
"""Begins an operation. Returns a function that calls it off, or None if it cannot be called off. It calls its argument
in a later turn, never before it has returned."""


def until(
    request: Request, begin: Begins, work: Callable[[], Response | None], interim: Interim = Interim.DELAYED
) -> Pending:
    """Answer a request by ``work`` when the operation that ``begin`` begins has ended, or fail it with its error.

    CANCEL calls the operation off and fails the request immediately. If ``work`` returns None the request stays
    pending."""
    pending = request.pending or request.pend(interim)

    def ended(error: BaseException | None) -> None:
        if error is None:
            continue_in_turn(request, partial(answer, pending, work))
        elif not pending.done:
            fail(pending, error)

    call_off = begin(ended)
    if call_off is not None:
        pending.on_cancel = partial(_called_off, pending, call_off)
    return pending


def _called_off(pending: Pending, call_off: Callable[[], object]) -> None:
    call_off()
    pending.fail(StatusError(NtStatus.CANCELLED))


async def over(begin: Begins) -> None:
    """Wait until the operation that ``begin`` begins has ended. Raises its error.

    The operation is called off if the task is cancelled."""
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
    """Read a large directory for a look-up of a name without regard to case, then call ``done`` in a turn of its own.

    Requests that wait for the same directory share the work, which continues if they are cancelled. Return a function
    that withdraws ``done``."""
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
    """Complete a request with the result of ``work``, or fail it with its exception. Do nothing if the request is done.
    ``work`` is not called if another node may be serving the share by now.

    If ``work`` returns None the request stays pending.
    """
    if pending.done:
        return
    try:
        pending.request.check_fence()
        response = work()
    except Exception as error:
        fail(pending, error)
        return
    if response is not None:
        pending.complete(response)


def fail(pending: Pending, error: BaseException) -> None:
    """Fail a request with the status for ``error``. If it is ``Disconnect``, close the connection, which ends the
    request."""
    try:
        pending.fail(failure(pending.request, error))
    except Disconnect as reason:
        pending.request.connection.violated(reason)


def failure(request: Request, error: BaseException) -> StatusError:
    """Return the status for an exception of a request. Unexpected exceptions are logged and become INTERNAL_ERROR.

    ``Disconnect`` is raised again."""
    if isinstance(error, StatusError):
        return error
    if isinstance(error, Disconnect):
        raise error
    if isinstance(error, OSError):
        if request.tree is not None:
            if error.errno in STORAGE_FAILS:
                if request.open is not None and request.open.handle is not None:
                    request.open.handle.storage_failed()
                _tell(request, request.tree.share.name, error, "see the kernel's log")
            elif error.errno in NO_DESCRIPTORS:
                _tell(request, request.tree.share.name, error, "remedy: let the server have more (LimitNOFILE=)")
        return as_status_error(error)
    if isinstance(error, DecodeError):
        return StatusError(NtStatus.INVALID_PARAMETER)
    log.error("%s: command %d failed", request.connection.client_name, request.header.command, exc_info=error)
    return StatusError(NtStatus.INTERNAL_ERROR)


def _tell(request: Request, share: str, error: OSError, hint: str) -> None:
    """Log that the host has failed a request. A client knows no more than the status."""
    opened = request.open
    place = "/".join(opened.path) if opened is not None else error.filename or ""
    command = Command(request.header.command).name
    log.warning("share %s: %s of %r fails: %s; %s", share, command, place, error.strerror, hint)


class _Waiting:
    """A request that is not answered yet."""

    # Invariant: at most one of _call_off and _task is set.

    __slots__ = ("_attempt", "_call_off", "_deadline", "_end", "_request", "_task", "_trying", "pending")

    def __init__(self, request: Request, attempt: Attempt | None, interim: Interim, begin: Begin | None) -> None:
        self._request = request
        self._attempt = attempt
        """None means that there will be no further attempt."""
        self._call_off: Callable[[], object] | None = None
        """Ends the present wait. Not used for a task."""
        self._task: asyncio.Future[Response | None] | None = None
        self._trying = False
        """An attempt is under way that lets the event loop go on while it waits for storage."""
        self._deadline: float | None = None
        """Time of the event loop at which the wait for leases of host programs ends. None before the first of them."""
        self.pending = request.pend(interim, self._cancelled)
        self._end = begin(self.pending) if begin is not None else None

    def wait_for(self, blocked: MustWait | BlockingIOError) -> None:
        """Try again when the cause of ``blocked`` has ended."""
        try:
            if isinstance(blocked, MustWait):
                self.pending.waits = True
                blocked.breaking.wait(self._again)
                self._call_off = partial(blocked.breaking.unwait, self._again)
            elif isinstance(blocked, FolderNotRead):
                self._call_off = when_read(self._request, blocked, self._read)
            else:
                self._call_off = self._poll().cancel
        except Exception as error:
            self._fail(error)

    def _poll(self) -> asyncio.TimerHandle:
        """Try again in a moment. Raises ``StatusError``: SHARING_VIOLATION after ``HOST_LEASE_TIMEOUT``.

        The kernel has notified the program, which must release its lease within /proc/sys/fs/lease-break-time seconds.
        There is no notification of the release."""
        loop = self._request.connection.loop
        if self._deadline is None:
            self._deadline = loop.time() + HOST_LEASE_TIMEOUT
        elif loop.time() >= self._deadline:
            raise StatusError(NtStatus.SHARING_VIOLATION)
        return loop.call_later(HOST_POLL, self._again)

    def _read(self, error: BaseException | None) -> None:
        """Continue after the directory was read, or could not be read."""
        if error is None:
            self._again()
        elif not self.pending.done:
            self._fail(error)

    def _again(self) -> None:
        self._call_off = None
        self.pending.waits = False
        queue = queue_of(self._request)
        if queue is None or queue.is_here:
            self._try()
        else:
            self._call_off = queue.add(self._try)

    def _try(self) -> None:
        self._call_off = None
        if self.pending.done or self._attempt is None:
            return
        self._trying = queue_of(self._request) is not None
        try:
            self._request.check_fence()
            result = self._attempt()
        except (MustWait, BlockingIOError) as blocked:
            if self._is_cancelled():
                self._fail(StatusError(NtStatus.CANCELLED))
            else:
                self.wait_for(blocked)
        except Exception as error:
            self._fail(error)
        else:
            if isinstance(result, Response):
                self._complete(result)
            else:
                self.work_on(result)
        finally:
            self._trying = False

    def _is_cancelled(self) -> bool:
        """Return whether there will be no further attempt."""
        return self._attempt is None

    def work_on(self, work: Awaitable[Response | None]) -> None:
        """Complete the request with the result of ``work``."""
        queue = queue_of(self._request)
        self._task = asyncio.ensure_future(work if queue is None else in_turns(queue, work))
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
        """End the wait on CANCEL, or when session, tree connect or connection end. A task cleans up before the request
        fails."""
        self._attempt = None
        if self._trying:
            # It is not left half done, and may succeed.
            return
        if self._task is not None:
            # Not now: a task that is cancelled before its first step does not clean up.
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
