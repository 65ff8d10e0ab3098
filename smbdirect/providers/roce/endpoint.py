"""A RoCEv2 connection as the provider contract defines it: a queue pair with its path, timer and callbacks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from smbdirect.errors import ProviderError
from smbdirect.life import Life, change
from smbdirect.providers.base import (
    Access,
    Atomic,
    BaseEndpoint,
    Capabilities,
    CloseCause,
    CloseReason,
    Completion,
    Operation,
    Read,
    Send,
    SharedRegions,
    Status,
    WorkRequest,
    Write,
)
from smbdirect.providers.memory import AccessRefused, NotCached, Region, as_bytes_view, share
from smbdirect.providers.roce.cm import Connection
from smbdirect.providers.roce.path import PacketPath
from smbdirect.providers.roce.queue_pair import QueuePair
from smbdirect.providers.roce.requester import Work

log = logging.getLogger(__name__)

BUDGET = 256
"""Packets that one connection sends before other work of the event loop gets its turn."""


class RoceEndpoint(BaseEndpoint):
    """One RoCEv2 connection, open once the connection manager has established it. Implements ``base.Endpoint``."""

    def __init__(
        self,
        capabilities: Capabilities,
        number: int,
        local_address: tuple[str, int],
        peer_address: tuple[str, int],
        on_end: Callable[[RoceEndpoint, CloseReason], None],
    ) -> None:
        """``number`` is that of the queue pair. ``on_end`` is called once, when nothing is received, sent or placed any
        longer."""
        super().__init__(capabilities, local_address, peer_address)
        self.queue_pair = QueuePair(number)
        self.counters = self.queue_pair.counters
        self.peer = b""
        """The peer's packed address: packets from other addresses are not for this connection."""
        self.path: PacketPath | None = None
        self.connection: Connection | None = None
        """The connection manager's record of this connection."""
        self.dirty = False
        """Whether packets have arrived; the provider calls ``pump`` after it has read all of them."""
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._pumping = False
        """Whether ``pump`` is sending: it also sends work that is posted meanwhile."""
        self._continuing = False
        """Invariant: True if and only if ``_continue`` is among the loop's next calls."""
        self._delivering = False
        """Invariant: True if and only if ``_deliver`` is among the loop's next calls."""
        self._fetching = False
        """Whether a worker reads from a disk what the next read response needs."""

    # -- work requests -------------------------------------------------------------------------------------------

    def register(self, memory: memoryview, access: Access) -> Region:
        if self.life >= Life.DEAD:
            raise ProviderError("the connection is closed")
        region = self.queue_pair.regions.register(memory, access)
        self.counters["registrations"] += 1
        return region

    def register_file(self, descriptor: int, offset: int, length: int, access: Access) -> Region:
        if self.life >= Life.DEAD:
            raise ProviderError("the connection is closed")
        region = self.queue_pair.regions.register_file(descriptor, offset, length, access)
        self.counters["registrations"] += 1
        return region

    def share(self, regions: SharedRegions) -> None:
        share(self.queue_pair.regions, regions)

    def post_receive(self, buffer: memoryview, context: object = None) -> None:
        if self.life >= Life.DEAD:
            self._flushed(Operation.RECEIVE, context)
            return
        receives = self.queue_pair.responder.receives
        if len(receives) >= self.capabilities.max_receive_queue:
            raise ProviderError("the receive queue is full")
        receives.append((buffer, context))

    def post(self, requests: Sequence[WorkRequest]) -> None:
        if self.life >= Life.CLOSING:
            for request in requests:
                self._flushed(request.operation, request.context)
            return
        requester = self.queue_pair.requester
        if requester.queued + len(requests) > self.capabilities.max_send_queue:
            raise ProviderError("the send queue is full")
        requester.post([self._work(request) for request in requests])
        if not self._pumping:
            self.pump(from_callback=False)

    def _work(self, request: WorkRequest) -> Work:
        """Check a request, count it and return its internal form. Raise ``ProviderError`` if it is invalid."""
        counters = self.counters
        views = [as_bytes_view(segment) for segment in request.segments]
        length = sum(map(len, views))
        self.capabilities.check(request, length)
        if isinstance(request, Send):
            counters["sends"] += 1
            counters["bytes_sent"] += length
            return Work(
                Operation.SEND, views, length, request.context, request.signalled, invalidate=request.invalidate
            )
        if isinstance(request, Write):
            counters["writes"] += 1
            counters["bytes_written"] += length
        else:
            if any(view.readonly for view in views):
                raise ProviderError("an RDMA Read needs writable segments")
            if request.atomic:
                return self._atomic_work(request, views)
            counters["reads"] += 1
        signalled = request.signalled or request.operation is Operation.READ
        token, address, _ = request.remote
        return Work(request.operation, views, length, request.context, signalled, token, address)

    def _atomic_work(self, request: Read, views: list[memoryview]) -> Work:
        assert isinstance(request, Atomic)
        self.counters["atomics"] += 1
        token, address, _ = request.remote
        return Work(
            Operation.READ, views, 0, request.context, True, token, address, atomic=(request.compare, request.operand)
        )

    def disconnect(self) -> None:
        if self.life >= Life.CLOSING:
            return
        self.life = change(self.life, Life.CLOSING)
        self.pump(from_callback=False)

    def abort(self, reason: CloseReason | None = None) -> None:
        self.end(reason or CloseReason(CloseCause.LOCAL))

    # -- the provider's side ---------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the time of the queue pair's clock."""
        return self._loop.time()

    def established(self) -> None:
        """Allow sending: the peer is ready."""
        if self.life is Life.OPENING:
            self.life = change(self.life, Life.OPEN)
        self.queue_pair.ready_to_send = True
        self.pump()

    def pump(self, from_callback: bool = True) -> None:
        """Send what is due, deliver completions, arm the timer. Completions are delivered immediately if no ``post`` or
        ``disconnect`` is on the stack (``from_callback``), else in the next turn of the loop. What is posted while they
        are delivered leaves together with the acknowledgement of what has arrived."""
        self.dirty = False
        queue_pair, path = self.queue_pair, self.path
        if from_callback and queue_pair.completions and queue_pair.failure is None:
            self._pumping = True
            try:
                self._deliver_now()
            finally:
                self._pumping = False
        if self.life >= Life.DEAD:
            return
        if path is not None:
            self._pumping = True
            more = queue_pair.transmit(path, self._loop.time(), BUDGET)
            path.flush()
            self._pumping = False
            if more and not self._continuing:
                self._continuing = True
                self._loop.call_soon(self._continue)
        if queue_pair.responder.cold is not None:
            self._fetch(queue_pair.responder.cold)
        if queue_pair.failure is not None:
            self.end(queue_pair.failure)
        elif self.life is Life.CLOSING and queue_pair.requester.idle:
            self.end(CloseReason(CloseCause.LOCAL))
        else:
            self._arm()
            if queue_pair.completions:
                if from_callback:
                    self._deliver_now()
                else:
                    self._deliver_soon()

    def _fetch(self, cold: NotCached) -> None:
        """Have a file's data read from its disk, and go on then."""
        if self._fetching:
            return
        self._fetching = True

        def done() -> None:
            self._fetching = False
            self.queue_pair.responder.cold = None
            self.pump()

        try:
            cold.fetch(self._loop, done)
        except AccessRefused as error:
            self.end(CloseReason(CloseCause.REMOTE_ACCESS, str(error)))

    def _continue(self) -> None:
        self._continuing = False
        self.pump()

    def _arm(self) -> None:
        deadline = self.queue_pair.next_deadline
        if deadline is None:
            return
        if self._timer is not None:
            # A timer that fires early is armed again: that costs less than to cancel one with each acknowledgement.
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._expired)

    def _expired(self) -> None:
        self._timer = None
        if self.life < Life.DEAD:
            self.queue_pair.handle_timer(self._loop.time())
            self.pump()

    def end(self, reason: CloseReason) -> None:
        """End the connection: nothing is received, sent or placed any longer. Idempotent."""
        if self.life >= Life.DEAD:
            return
        self.life = change(self.life, Life.DEAD)
        self.close_reason = reason
        used = {name: value for name, value in self.counters.items() if value}
        log.info("%s port %d: %s (%s) %s", *self.peer_address, reason.cause.value, reason.detail, used)
        if self._timer is not None:
            self._timer.cancel()
        self.queue_pair.flush()
        self._on_end(self, reason)
        self._deliver_soon()

    def _flushed(self, operation: Operation, context: object) -> None:
        self.queue_pair.completions.append(Completion(operation, Status.FLUSHED, context))
        self._deliver_soon()

    def _deliver_soon(self) -> None:
        if not self._delivering:
            self._delivering = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        self._deliver_now()

    def _deliver_now(self) -> None:
        completions = self.queue_pair.completions
        if completions:
            batch = completions[:]
            completions.clear()
            self.on_completions(batch)
        if self.life is Life.DEAD and not completions and self.close_reason is not None:
            self.life = change(self.life, Life.ENDED)
            self.on_closed(self.close_reason)
