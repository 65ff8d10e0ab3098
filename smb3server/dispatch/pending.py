"""The pending requests of a connection: their interim replies and their cancellation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from smb3server.dispatch.request import Interim, Pending, Request
from smb3server.process.turns import call_apart
from smb3server.wire.header import Command, Header, HeaderFlags
from smb3server.wire.status import NtStatus

if TYPE_CHECKING:
    import asyncio

    from smb3server.settings.server import Settings
    from smb3server.state.objects import Session

_CHANGE_NOTIFY = int(Command.CHANGE_NOTIFY)
_CANCELLED_AHEAD = 32


class Settles(Protocol):
    """What becomes a pending request when it has to."""

    def settle(self) -> object: ...


class PendingRequests:
    """The pending requests of Connection.RequestList and Connection.AsyncCommandList. [MS-SMB2 3.3.1.7]"""

    def __init__(
        self, settings: Settings, loop: asyncio.AbstractEventLoop, send_interim: Callable[[Request], None]
    ) -> None:
        """``send_interim`` sends STATUS_PENDING with the request's AsyncId."""
        self._settings = settings
        self._loop = loop
        self._send_interim = send_interim
        self._by_message_id: dict[int, Request] = {}
        self._by_async_id: dict[int, Request] = {}
        """Requests for which STATUS_PENDING was sent."""
        # Invariant: every request in _by_async_id is also in _by_message_id.
        self._delayed: deque[tuple[float, Request]] = deque()
        """Requests that get an interim reply at a time of the event loop's clock, if they are still pending then. All
        delays are equal, so it is sorted by time."""
        self._timer_running = False
        self.fetches: dict[int, Settles] = {}
        """WRITEs by RDMA that have no objects of pending requests yet, by MessageId. All functions here that look for
        requests give them these first."""
        self.watching = False
        """Whether ``_watch_fetches`` is to be called."""
        self._next_async_id = 0
        self._blocking = 0
        """Requests that wait for what others do."""
        # Invariant: _blocking is the number of requests in _by_message_id whose interim reply is sent at once.

    def __len__(self) -> int:
        return len(self._by_message_id) + len(self.fetches)

    def watch_fetches(self) -> None:
        """Have the fetches become requests that are still under way after a while: they may get interim replies."""
        self.watching = True
        self._loop.call_later(self._settings.interim_delay, self._watch_fetches)

    def _watch_fetches(self) -> None:
        self.watching = False
        self._settle_fetches()

    def _settle_fetches(self) -> None:
        for fetch in list(self.fetches.values()):
            fetch.settle()

    def add(self, request: Request, pending: Pending) -> None:
        """Add a request that pends, and send or schedule its interim reply. Cancel it, with a status of its own, if it
        is not allowed to wait."""
        may_wait = self._may_wait(pending)
        self._blocking += pending.interim is Interim.AT_ONCE
        self._by_message_id[request.header.message_id] = request
        more_follow = request.chain.offset >= 0
        if not may_wait:
            self._refuse(pending, NtStatus.INSUFFICIENT_RESOURCES)
        elif request.header.command == _CHANGE_NOTIFY and more_follow:
            # The commands after it would wait forever. Windows gives the same answer to a command that must not wait
            # within a compound.
            self._refuse(pending, NtStatus.INTERNAL_ERROR)
        elif (request.header.message_id, request.session) in request.chain.cancelled:
            pending.cancel()
        elif pending.interim is Interim.AT_ONCE and not more_follow:
            self._make_async(request)
        elif pending.interim is not Interim.NEVER:
            delay = self._settings.interim_delay
            self._delayed.append((self._loop.time() + delay, request))
            if not self._timer_running:
                self._timer_running = True
                self._loop.call_later(delay, self._on_timer)

    def go_on(self, request: Request, pending: Pending) -> None:
        """Note that a request, which has waited for its turn, waits for what its handler waits for."""
        del self._by_message_id[request.header.message_id]
        pending.interim = pending.wanted
        self.add(request, pending)

    def _may_wait(self, pending: Pending) -> bool:
        """Return whether one more request may wait. [MS-SMB2 3.3.4.2]

        Those that may wait forever are limited as by Windows, where the request that reaches the limit is refused.
        Others are slow: credits limit them until their interim reply, and this limits them afterwards."""
        limit = self._settings.max_async_requests
        if pending.interim is Interim.AT_ONCE:
            return self._blocking < limit - 1
        return len(self._by_message_id) < limit + self._settings.max_credits

    def remove(self, request: Request) -> None:
        """Remove a request that is about to be answered."""
        if self._by_message_id.pop(request.header.message_id, None) is not None and request.pending is not None:
            self._blocking -= request.pending.interim is Interim.AT_ONCE
        if request.async_id:
            self._by_async_id.pop(request.async_id, None)

    def find(self, header: Header) -> Request | None:
        """Return the request that a CANCEL names. [MS-SMB2 3.3.5.16]"""
        if header.flags & HeaderFlags.ASYNC_COMMAND:
            return self._by_async_id.get(header.async_id)
        if header.message_id in self.fetches:
            self.fetches[header.message_id].settle()
        return self._by_message_id.get(header.message_id)

    def cancel_ahead(self, message_id: int, session: Session | None) -> None:
        """Note a CANCEL of a command that has not begun, because one before it in its message waits: the command is
        cancelled if it has to wait as well.

        Only so many are noted as no client has under way. [MS-SMB2 3.3.5.16 leaves it to the server]"""
        for request in islice(reversed(self._by_message_id.values()), _CANCELLED_AHEAD):
            chain = request.chain
            if chain.offset >= 0 and len(chain.cancelled) < _CANCELLED_AHEAD:
                chain.cancelled += ((message_id, session),)

    def holds(self, request: Request) -> bool:
        """Return whether a request is among them."""
        return self._by_message_id.get(request.header.message_id) is request

    def cancel_waiting(self) -> None:
        """Cancel every request whose client was sent STATUS_PENDING, or that waits for another client. The others may
        finish."""
        self._settle_fetches()
        for request in list(self._by_message_id.values()):
            if request.pending is not None and (request.async_id or request.pending.waits):
                call_apart(request.pending.cancel)

    def cancel_of(self, session: Session, tree_id: int | None = None) -> None:
        """Cancel the requests of a session that ends, or of one of its tree connects that ends."""
        self._settle_fetches()
        for request in list(self._by_message_id.values()):
            if request.session is not session or request.pending is None:
                continue
            if tree_id is None or (request.tree is not None and request.tree.tree_id == tree_id):
                call_apart(request.pending.cancel, closing=True)

    def close(self, outlives: Callable[[Request, Pending], bool]) -> None:
        """Cancel all requests of the ended connection except those for which ``outlives`` returns True."""
        self._settle_fetches()
        for request in list(self._by_message_id.values()):
            if request.pending is not None and not outlives(request, request.pending):
                call_apart(request.pending.cancel)
        self._delayed.clear()

    def _refuse(self, pending: Pending, status: NtStatus) -> None:
        """Cancel a request that is not allowed to wait. ``status`` is its final status."""
        pending.refused_with = status
        pending.cancel()

    def _on_timer(self) -> None:
        """Send the interim replies that are due."""
        delayed = self._delayed
        now = self._loop.time()
        while delayed:
            deadline, request = delayed[0]
            pending = request.pending
            if pending is None or pending.done or pending.interim is Interim.NEVER:
                # It waited for its turn, and waits for something else now.
                delayed.popleft()
            elif deadline <= now:
                delayed.popleft()
                self._make_async(request)
            else:
                self._loop.call_at(deadline, self._on_timer)
                return
        self._timer_running = False

    def _make_async(self, request: Request) -> None:
        """Give the request an AsyncId, and send its interim reply, unless it has one. [MS-SMB2 3.3.4.2]"""
        if request.async_id:
            return
        self._next_async_id += 1
        request.async_id = self._next_async_id
        self._by_async_id[request.async_id] = request
        self._send_interim(request)
