"""The asyncio pump between the MS-SMBD core and an RDMA endpoint: ``message_transport`` over SMB Direct.

Completions come in by callback, in batches; whatever a batch causes (messages handled by the upper layer, their
responses, credits) is collected and goes out in one ``post`` at its end, so that an RDMA Write and the response that
follows it share a system call or a doorbell. Nothing here allocates a Future per message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from smbdirect.codec import Buffer
from smbdirect.core import constants
from smbdirect.core.connection import Connection, Role
from smbdirect.core.events import Established, MessageReceived, NegotiationFailed
from smbdirect.core.settings import Settings
from smbdirect.errors import ConnectionLost, ProtocolError, ProviderError
from smbdirect.message_transport import InboundMessage, RemoteBuffer
from smbdirect.providers.base import (
    CloseCause,
    CloseReason,
    Completion,
    Endpoint,
    Operation,
    Read,
    Send,
    Status,
    WorkRequest,
    Write,
)
from smbdirect.transport.buffers import (
    STRANGER_SIZE,
    BufferPool,
    Counters,
    PoolBuffer,
    ReceiveBuffer,
    ReceivePool,
    RegistrationCache,
)
from smbdirect.transport.rdma import OnDone, Rdma, Transfer, check_descriptors, cut
from smbdirect.transport.work_queue import Sent, WorkQueue
from smbdirect.unauthenticated import Stranger

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT = 5.0
"""Seconds that ``close`` waits for the peer to take what was queued."""

_COUNTERS = (
    "messages_received",
    "messages_sent",
    "bytes_received_inline",
    "bytes_sent_inline",
    "bytes_rdma_read",
    "bytes_rdma_written",
    "rdma_reads",
    "rdma_writes",
    "sends",
    "receives",
    "bounced_bytes",
    "remote_invalidations_sent",
    "remote_invalidations_received",
    "credits_granted",
    "credits_received",
    "registrations",
    "allocations",
)


class Message:
    """An inbound message; keeps ``message_transport.InboundMessage``."""

    __slots__ = ("_owner", "_transport", "invalidated", "view")

    def __init__(
        self,
        transport: SmbDirectTransport,
        view: memoryview,
        owner: ReceiveBuffer | PoolBuffer | Any,
        invalidated: int | None,
    ) -> None:
        self._transport = transport
        self._owner = owner
        self.view = view
        self.invalidated = invalidated
        """Local token the peer invalidated with this message, or None."""

    def release(self) -> None:
        owner, self._owner = self._owner, None
        if owner is None:
            return
        owner.release()
        if type(owner) is ReceiveBuffer:
            self._transport.receive_released()


def _ignore(nothing: object) -> None:
    """Take what an endpoint tells once it has told its end."""


class SmbDirectTransport:
    """One SMB Direct connection; keeps ``message_transport.MessageTransport``."""

    def __init__(
        self, endpoint: Endpoint, role: Role, settings: Settings, pool: BufferPool, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Posts the first receive (3.1.4.1, 3.1.7.2). Raises ``ProviderError``."""
        capabilities = endpoint.capabilities
        self.endpoint = endpoint
        self.loop = loop
        self.local_address = endpoint.local_address
        self.peer_address = endpoint.peer_address
        self.pool = pool
        self.counters: Counters = dict.fromkeys(_COUNTERS, 0)
        self.pending_send_bytes = 0
        self.on_established: Callable[[SmbDirectTransport], None] | None = None
        """Called once, when negotiation has succeeded."""
        settings = replace(
            settings,
            max_send_segments=min(settings.max_send_segments, capabilities.max_send_sge),
            receive_credit_max=min(
                settings.receive_credit_max, capabilities.max_receive_queue - constants.EXTRA_RECEIVES
            ),
        )
        self.settings = settings
        self.connection = Connection(role, settings, loop.time(), self._allocate)
        self._rdma: Rdma | None = None
        self._cache = RegistrationCache(endpoint, self.counters, pool)
        if self._cache.needed:
            pool.caches.add(self._cache)
        self._receives = ReceivePool(
            max(settings.max_receive_size, constants.MIN_FIRST_RECEIVE_SIZE),
            2 * settings.receive_credit_max + constants.EXTRA_RECEIVES,
            self._cache,
            self.counters,
        )
        if role is Role.PASSIVE:
            self.connection.max_message_size = constants.UNAUTHENTICATED_MESSAGE_SIZE
            self.connection.credits.receive_credit_max = min(
                settings.receive_credit_max, constants.UNAUTHENTICATED_CREDITS
            )
        self._on_message: Callable[[InboundMessage], None] | None = None
        self._on_closed: Callable[[BaseException | None], None] | None = None
        self._backlog: deque[Message] = deque()
        self._paused = False
        self._work = WorkQueue(endpoint, self._report_sent)
        self._in_batch = False
        self._changed = False
        self._flush_scheduled = False
        self._closing = False
        self._dead = False
        self._ended = False
        self._allowance: Stranger | None = None
        """What it has of the memory for peers that are not trusted."""
        self._error: BaseException | None = None
        self._end: BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        endpoint.on_completions = self._completed
        endpoint.on_closed = self._endpoint_closed
        self._post_receives()
        self._arm_timer()

    # -- MessageTransport ----------------------------------------------------------------------------------------

    @property
    def rdma(self) -> Rdma:
        if self._rdma is None:
            self._rdma = Rdma(self)
        return self._rdma

    @property
    def max_outbound_message_size(self) -> int:
        return self.connection.max_fragmented_send_size

    @property
    def max_message_size(self) -> int:
        return self.connection.max_message_size

    @max_message_size.setter
    def max_message_size(self, size: int) -> None:
        """Raising it beyond ``TRUSTED_MESSAGE_SIZE`` also gives the peer its full number of credits."""
        connection = self.connection
        connection.max_message_size = min(size, connection.max_fragmented_receive_size)
        if size > constants.TRUSTED_MESSAGE_SIZE:
            connection.credits.receive_credit_max = self.settings.receive_credit_max
            self._give_back_allowance()
            self._wake()

    def start(
        self, on_message: Callable[[InboundMessage], None], on_closed: Callable[[BaseException | None], None]
    ) -> None:
        self._on_message = on_message
        self._on_closed = on_closed
        if self._ended:
            self.loop.call_soon(self._report_end)
        elif self._backlog:
            self.loop.call_soon(self._deliver_backlog)

    def send(
        self,
        segments: Sequence[Buffer],
        invalidate: int | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """See ``MessageTransport``. Raises ``ValueError`` for a message longer than the peer can reassemble."""
        if self._dead or self._closing:
            if on_sent is not None:
                self.loop.call_soon(on_sent)
            return
        if invalidate is not None and not self.endpoint.capabilities.remote_invalidation:
            invalidate = None
        sent = Sent(0, on_sent)
        sent.length = self.connection.send_message(segments, invalidate, sent)
        self.pending_send_bytes += sent.length
        self.counters["messages_sent"] += 1
        self.counters["bytes_sent_inline"] += sent.length
        if not self._in_batch:
            self._pump()

    def is_stalled(self) -> bool:
        return not self._dead and self.endpoint.is_stalled()

    def limit_silence(self, seconds: float | None) -> None:
        """By the keepalives of SMB Direct (MS-SMBD 3.1.6.2)."""
        settings = self.settings
        interval = settings.keepalive_interval
        if seconds is not None:
            interval = min(interval, max(1.0, seconds - settings.keepalive_response_timeout))
        self.connection.set_keepalive_interval(interval, self.loop.time())
        if not self._dead:
            self._arm_timer()

    def acquire(self, size: int) -> PoolBuffer:
        """See ``MessageTransport``. On a fabric that needs it the buffer is registered."""
        home = None if self._dead else self._cache.home
        before = self.pool.allocations
        buffer = self.pool.acquire(size, home)
        made = self.pool.allocations - before
        self.counters["allocations"] += made
        if home is not None:
            self.counters["registrations"] += made
        return buffer

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        if self._backlog:
            self.loop.call_soon(self._deliver_backlog)

    def close(self, reason: str = "") -> None:
        if self._closing or self._dead:
            return
        _log.debug("%s: closing: %s", self.peer_address, reason)
        self._closing = True
        self._close_timer = self.loop.call_later(CLOSE_TIMEOUT, self._close_expired)
        if not self._in_batch:
            self._pump()

    def abort(self, reason: str = "") -> None:
        if not self._dead:
            _log.debug("%s: aborting: %s", self.peer_address, reason)
            self._terminate(None)

    # -- RDMA ----------------------------------------------------------------------------------------------------

    def post_rdma(
        self, operation: Operation, remote: Sequence[RemoteBuffer], local: Sequence[Any], on_done: OnDone
    ) -> None:
        """Queue the work requests of one transfer; they go out with the next send, or at the end of this turn."""
        total = sum(map(len, local))
        check_descriptors(remote, total)
        transfer = Transfer(on_done)
        if self._dead or self._closing or total == 0:
            error = None if total == 0 and not self._dead else self._lost()
            self.loop.call_soon(transfer.finish, error)
            return
        capabilities = self.endpoint.capabilities
        requests: list[WorkRequest]
        try:
            local = self._registered(operation, local, transfer)
        except ProviderError as error:
            self.loop.call_soon(transfer.finish, error)
            return
        if operation is Operation.WRITE:
            pieces = cut(remote, local, capabilities.max_transfer, capabilities.max_send_sge)
            requests = [Write(segments, segment) for segment, segments in pieces]
            self.counters["bytes_rdma_written"] += total
            self.counters["rdma_writes"] += len(requests)
        else:
            pieces = cut(remote, local, capabilities.max_transfer, capabilities.max_read_sge)
            requests = [Read(segments, segment) for segment, segments in pieces]
            self.counters["bytes_rdma_read"] += total
            self.counters["rdma_reads"] += len(requests)
        last = requests.pop()
        for request in requests:
            self._work.add(request, None)
        self._work.add(last, transfer)
        self._wake()

    def _registered(self, operation: Operation, local: Sequence[Any], transfer: Transfer) -> Sequence[Any]:
        """``local`` as the fabric can post it: targets of Reads registered, sources of Writes copied to registered
        memory where they are not in it. Raises ``ProviderError``."""
        if not self._cache.needed:
            return local
        if operation is Operation.READ:
            for view in local:
                self._cache.add(view)
            return local
        copies: list[Buffer] = []
        for segment in local:
            if self._cache.covers(segment):
                copies.append(segment)
                continue
            buffer = self.acquire(len(segment))
            buffer.view[:] = segment
            self.counters["bounced_bytes"] += len(segment)
            copies.append(buffer.view)
            transfer.keep(buffer)
        return copies

    # -- pumping -------------------------------------------------------------------------------------------------

    def _allocate(self, size: int) -> PoolBuffer:
        """A reassembly buffer. Raises ``ProtocolError`` where peers that are not trusted hold too much already."""
        if size > STRANGER_SIZE and self.connection.max_message_size <= constants.TRUSTED_MESSAGE_SIZE:
            self._give_back_allowance()
            self._allowance = self.pool.strangers.enter(self.peer_address[0], self._evicted, size)
            if self._allowance is None:
                raise ProtocolError(f"no memory for a message of {size} bytes from a peer that is not trusted")
        before = self.pool.allocations
        buffer = self.pool.acquire(size)
        self.counters["allocations"] += self.pool.allocations - before
        return buffer

    def _give_back_allowance(self) -> None:
        if self._allowance is not None:
            self._allowance.leave()
            self._allowance = None

    def _evicted(self) -> None:
        """Others need the memory more than the unfinished message of this peer, who has most of it."""
        self.abort("unfinished message of a peer that is not trusted")

    def receive_released(self) -> None:
        """A receive buffer came back: post it and, if the peer needs it, grant it."""
        if self.connection.receives_wanted:
            self._wake()

    def _wake(self) -> None:
        self._changed = True
        if not self._in_batch and not self._flush_scheduled and not self._dead:
            self._flush_scheduled = True
            self.loop.call_soon(self._scheduled_pump)

    def _scheduled_pump(self) -> None:
        self._flush_scheduled = False
        self._pump()

    def _completed(self, completions: Sequence[Completion]) -> None:
        self._in_batch = True
        now = self.loop.time()
        try:
            for completion in completions:
                if completion.operation is Operation.RECEIVE:
                    self._received(completion, now)
                else:
                    self._work.completed(completion, self._lost)
        finally:
            self._in_batch = False
        # A batch of nothing but finished Sends leaves nothing to do.
        if self._changed or self._work.waiting or self.connection.send_queue or self._closing:
            self._pump()

    def _received(self, completion: Completion, now: float) -> None:
        buffer: Any = completion.context
        if completion.status is not Status.OK or self._dead:
            buffer.release()
            return
        self._changed = True
        self.counters["receives"] += 1
        view = buffer.view[: completion.length]
        credits = self.connection.credits
        before = credits.send_credits
        if completion.invalidated is not None:
            self.counters["remote_invalidations_received"] += 1
        try:
            event = self.connection.receive_message(view, now, completion.invalidated)
        except ProtocolError as error:
            buffer.release()
            self._terminate(error)
            return
        self.counters["credits_received"] += credits.send_credits - before
        if type(event) is MessageReceived:
            self.counters["messages_received"] += 1
            self.counters["bytes_received_inline"] += len(event.view)
            if event.buffer is None:
                self._deliver(Message(self, event.view, buffer, event.invalidated))
                return
            buffer.release()
            self._deliver(Message(self, event.view, event.buffer, event.invalidated))
            return
        buffer.release()
        if type(event) is Established:
            if self.on_established is not None:
                self.on_established(self)
        elif type(event) is NegotiationFailed:
            self._error = ProtocolError(event.detail, "MS-SMBD 3.1.5.6")

    def _deliver(self, message: Message) -> None:
        if self._on_message is None or self._paused or self._backlog:
            self._backlog.append(message)
        elif self._closing:
            message.release()
        else:
            self._hand_up(message)

    def _hand_up(self, message: Message) -> None:
        """An upper layer that fails to handle a message loses this connection, and no other."""
        assert self._on_message is not None
        try:
            self._on_message(message)
        except Exception as error:
            _log.exception("%s: handling a message failed", self.peer_address)
            message.release()
            self._terminate(error)

    def _deliver_backlog(self) -> None:
        self._in_batch = True
        try:
            while self._backlog and not self._paused and not self._ended and self._on_message is not None:
                message = self._backlog.popleft()
                if self._closing or self._dead:
                    message.release()
                else:
                    self._hand_up(message)
        finally:
            self._in_batch = False
        self._pump()

    def _report_sent(self, sent: Sent) -> None:
        self.pending_send_bytes -= sent.length
        if sent.bounce is not None:
            sent.bounce.release()
        if sent.on_sent is not None:
            sent.on_sent()

    def _pump(self) -> None:
        """Post receives, then everything that may go out."""
        if self._dead:
            return
        self._changed = False
        connection = self.connection
        now = self.loop.time()
        try:
            before = connection.credits.receive_credits
            more = True
            while more:
                posted = self._post_receives()
                sends = connection.pending_sends(now)
                for item in sends:
                    self._queue_send(item.segments, item.invalidate, item.context)
                more = bool(posted or sends) and connection.receives_wanted > 0
            self.counters["credits_granted"] += connection.credits.receive_credits - before
            if self._work.waiting:
                self._work.post()
        except ProviderError as error:
            self._terminate(error)
            return
        if connection.role is Role.CLOSED:
            # A refused negotiation: the response is on its way, the rest is up to the peer's patience.
            self._finish_close()
        elif self._closing and not connection.send_queue and not self._work.waiting:
            self._finish_close()
        else:
            self._arm_timer()

    def _finish_close(self) -> None:
        self._dead = True
        if self._close_timer is None:
            self._close_timer = self.loop.call_later(CLOSE_TIMEOUT, self._close_expired)
        self.connection.close()
        self._cancel_timer()
        self.endpoint.disconnect()

    def _post_receives(self) -> int:
        """Post what the core wants, as far as there are buffers; returns how many."""
        wanted = self.connection.receives_wanted
        if not wanted:
            return 0
        buffers = self._receives.take(wanted)
        for buffer in buffers:
            self.endpoint.post_receive(buffer.view, buffer)
        self.connection.receives_were_posted(len(buffers))
        return len(buffers)

    def _queue_send(self, segments: Sequence[Buffer], invalidate: int | None, context: object) -> None:
        self.counters["sends"] += 1
        if invalidate is not None:
            self.counters["remote_invalidations_sent"] += 1
        sent = context if type(context) is Sent else None
        if self._cache.needed:
            segments, sent = self._bounce(segments, sent)
        self._work.add(Send(segments, None, invalidate), sent)

    def _bounce(self, segments: Sequence[Buffer], sent: Sent | None) -> tuple[Sequence[Buffer], Sent | None]:
        """Gather a Send that holds unregistered memory in one registered buffer (headers always are)."""
        length = sum(map(len, segments))
        if length <= self.endpoint.capabilities.max_inline:
            return segments, sent
        buffer = self.acquire(length)
        position = 0
        for segment in segments:
            buffer.view[position : position + len(segment)] = segment
            position += len(segment)
        self.counters["bounced_bytes"] += length
        if sent is None:
            sent = Sent(0, None)
        sent.bounce = buffer
        return [buffer.view], sent

    # -- timers --------------------------------------------------------------------------------------------------

    def _arm_timer(self) -> None:
        """Deadlines mostly move later: keep an armed timer that fires too early rather than re-arm per message."""
        deadline = self.connection.next_deadline()
        timer = self._timer
        if deadline is None or (timer is not None and timer.when() <= deadline):
            return
        if timer is not None:
            timer.cancel()
        self._timer = self.loop.call_at(deadline, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        try:
            self.connection.handle_timer(self.loop.time())
        except ProtocolError as error:
            self._terminate(error)
            return
        self._pump()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- the end -------------------------------------------------------------------------------------------------

    def detach(self) -> None:
        """Hold messages and the end back until the next ``start``."""
        self._on_message = None
        self._on_closed = None

    def _close_expired(self) -> None:
        """The peer did not let us end gracefully."""
        self._close_timer = None
        self._dead = True
        self.connection.close()
        self._cancel_timer()
        self.endpoint.abort()

    def begin(self) -> None:
        """The initiator's RDMA connection is up: negotiate."""
        self.connection.start()
        self._pump()

    def _lost(self) -> ConnectionLost:
        return ConnectionLost(self._error or self._end or "the connection ended")

    def _terminate(self, error: BaseException | None) -> None:
        """Abortive end (3.1.5: terminate the connection)."""
        if self._dead:
            return
        self._dead = True
        self._error = self._error or error
        if error is not None:
            # Its frames refer to this object: memory comes back without the garbage collector.
            error.with_traceback(None)
            _log.info("%s: terminating: %s", self.peer_address, error)
        self.connection.close()
        self._cancel_timer()
        detail = str(error) if error is not None else ""
        cause = CloseCause.PROTOCOL if isinstance(error, ProtocolError) else CloseCause.LOCAL
        self.endpoint.abort(CloseReason(cause, detail))

    def _endpoint_closed(self, reason: CloseReason) -> None:
        """3.1.7.1: connection loss, the last thing an endpoint reports."""
        _log.debug("%s: connection ended: %s %s", self.peer_address, reason.cause.value, reason.detail)
        self._dead = True
        self._ended = True
        self.connection.close()
        self._cancel_timer()
        if self._close_timer is not None:
            self._close_timer.cancel()
            self._close_timer = None
        if self._error is not None:
            self._end = self._error
        elif reason.cause not in (CloseCause.PEER, CloseCause.LOCAL):
            self._end = ConnectionLost(reason)
        for sent in self.connection.unsent():
            if type(sent) is Sent:
                self._report_sent(sent)
        self._work.fail(ConnectionLost(reason))
        while self._backlog:
            self._backlog.popleft().release()
        self._cache.clear()
        self._give_back_allowance()
        # Nothing more comes. Memory comes back without the garbage collector.
        self._receives.close()
        self.endpoint.on_completions = _ignore
        self.endpoint.on_closed = _ignore
        if self._on_closed is not None:
            self._report_end()

    def _report_end(self) -> None:
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed(self._end)
