"""The asyncio pump between the MS-SMBD core and an RDMA endpoint: ``message_transport`` over SMB Direct.

Completions come in by callback, in batches. All effects of a batch (messages handled by the upper layer, their
responses, credits) are collected and go out in one ``post`` at its end, so that an RDMA Write and the response that
follows it share a system call or a doorbell. Nothing here allocates a Future per message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import length_hint
from typing import Any, NamedTuple

from smbdirect.codec import Buffer
from smbdirect.core import constants
from smbdirect.core.connection import Connection, Keepalive, Role
from smbdirect.core.messages import Established, Event, MessageReceived, NegotiationFailed, OutgoingSend
from smbdirect.core.settings import Settings
from smbdirect.core.short import accepted, whole
from smbdirect.errors import ConnectionLost, ProtocolError, ProviderError
from smbdirect.life import Life, change
from smbdirect.message_transport import (
    FileRange,
    InboundMessage,
    Limits,
    PayloadTaker,
    PooledBuffer,
    Traffic,
    TransportKind,
    room_of,
)
from smbdirect.providers.base import (
    Capabilities,
    CloseCause,
    CloseReason,
    Completion,
    Endpoint,
    Operation,
    Send,
    Status,
)
from smbdirect.rdma.chain_calls import OnDone
from smbdirect.rdma.pool import BufferPool, PoolBuffer
from smbdirect.rdma.receives import ReceiveBuffer, ReceivePool
from smbdirect.rdma.registrations import Counters
from smbdirect.rdma.work_queue import Group
from smbdirect.tapping import showing
from smbdirect.transport.rdma import Rdma
from smbdirect.unauthenticated import Allowance

_log = logging.getLogger(__name__)
_RECEIVE = Operation.RECEIVE
_WHOLE_RECEIVE = Role.ESTABLISHED, Keepalive.NONE, Operation.RECEIVE, Status.OK
_WHOLE = Role.ESTABLISHED, Send
_CLOSING, _DEAD = Life.CLOSING, Life.DEAD
_NOTHING: Iterator[object] = iter(())

CLOSE_TIMEOUT = 5.0
"""Seconds that ``close`` waits for the peer to accept the queued messages."""

_COUNTERS = (
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
    "registrations",
    "allocations",
)


_RETRANSMISSIONS = ("retransmissions",)
_REGISTRATIONS = ("registrations",)
_ERRORS = (
    "errors",
    "malformed",
    "naks_sent",
    "naks_received",
    "terminates_sent",
    "terminates_received",
    "dropped_requests",
)
"""Provider counters that count as errors if their names end in these words."""


class _Queued(NamedTuple):
    """The context of a message that waits in the core: its last Send ends it."""

    on_done: OnDone | None
    length: int


def _sent(on_sent: Callable[[], None], error: BaseException | None) -> None:
    """End a message. A lost one is handled like a sent one."""
    on_sent()


def _sent_by(bounce: PooledBuffer, on_done: OnDone | None, error: BaseException | None) -> None:
    """End a message that was sent from a copy."""
    bounce.release()
    if on_done is not None:
        on_done(error)


class Message:
    """One inbound message, in the memory of its receive. Implements ``message_transport.InboundMessage``.

    ``short_calls.accepted`` sets the attributes by name."""

    __slots__ = ("buffer", "invalidated", "transport", "view")

    def __init__(
        self, transport: SmbDirectTransport, view: memoryview, buffer: ReceiveBuffer, invalidated: int | None
    ) -> None:
        self.transport = transport
        # Invariant: None once the memory was given back.
        self.buffer: ReceiveBuffer | None = buffer
        self.view = view
        self.invalidated = invalidated
        """Local token that the peer invalidated with this message, or None."""

    def release(self) -> None:
        """Give the memory back; a second call does nothing."""
        buffer = self.buffer
        if buffer is not None:
            self.buffer = None
            transport = self.transport
            transport.receives.free.append(buffer)
            if not transport.work.corked:
                transport.receive_released()


class AssembledMessage:
    """One inbound message of several parts, in memory of its own. Implements ``message_transport.InboundMessage``."""

    __slots__ = ("_memory", "invalidated", "view")

    def __init__(self, memory: PooledBuffer, invalidated: int | None) -> None:
        self._memory = memory
        self.view = memory.view
        self.invalidated = invalidated
        """As that of ``Message``."""

    @property
    def room(self) -> memoryview | None:
        """See ``message_transport.room_of``."""
        return room_of(self._memory)

    def release(self) -> None:
        """Give the memory back; a second call does nothing."""
        self._memory.release()


def _ignore(nothing: object) -> None:
    """Ignore what an endpoint reports after the end of the connection."""


def _within(settings: Settings, capabilities: Capabilities) -> Settings:
    """Limit ``settings`` to the capabilities of the endpoint."""
    return replace(
        settings,
        max_send_segments=min(settings.max_send_segments, capabilities.max_send_sge),
        receive_credit_max=min(settings.receive_credit_max, capabilities.max_receive_queue - constants.EXTRA_RECEIVES),
    )


def _sum_matching(counters: Mapping[str, int], names: Iterable[str]) -> int:
    """Add up the counters whose names are, or end in, one of ``names``."""
    return sum(
        count for key, count in counters.items() if any(key == name or key.endswith("_" + name) for name in names)
    )


class SmbDirectTransport:
    """One SMB Direct connection. Implements ``message_transport.MessageTransport``."""

    kind = TransportKind.SMB_DIRECT
    takes_file = False

    def __init__(
        self, endpoint: Endpoint, role: Role, settings: Settings, pool: BufferPool, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Post the first receive. Raise ``ProviderError`` if the endpoint refuses it. [MS-SMBD 3.1.4.1, 3.1.7.2]"""
        self.endpoint = endpoint
        self.loop = loop
        self.local_address = endpoint.local_address
        self.peer_address = endpoint.peer_address
        self.pool = pool
        self.counters: Counters = dict.fromkeys(_COUNTERS, 0)
        self.on_established: Callable[[SmbDirectTransport], None] | None = None
        """Called once, after negotiation has succeeded."""
        self.settings = _within(settings, endpoint.capabilities)
        self.connection = Connection(role, self.settings, loop.time(), self._allocate)
        self.life = Life.OPENING
        """Open once negotiated. Dead as soon as nothing more is to be sent, although the endpoint may still be
        disconnecting from the peer. Ended when the endpoint has reported its end."""
        self._error: BaseException | None = None
        """Why this side ended the connection."""
        self._end: BaseException | None = None
        """The argument of ``on_closed``."""
        self._on_message: Callable[[InboundMessage], None] | None = None
        self._untapped: Callable[[InboundMessage], None] = InboundMessage.release
        """The function that ``start`` was given."""
        self._on_closed: Callable[[BaseException | None], None] | None = None
        # The receive side.
        self._trusted = role is Role.ACTIVE
        self._allowance = Allowance(pool.unauthenticated)
        self._backlog: deque[Message | AssembledMessage] = deque()
        """Invariant: while it is not empty, messages are delivered from its front only."""
        self._paused = False
        """Set by ``pause_reading``."""
        # The send side. Invariant: the requests that wait in work go out at the end of the batch (work.corked), with
        # the scheduled pump, or when a completion makes room.
        self.pending_send_bytes = 0
        self.rdma = Rdma(endpoint, self.connection, pool, self.counters, loop, self._wake)
        self.fabric = self.rdma.fabric
        self._takes_any_memory = self.rdma.takes_any_memory
        self.acquire = self.rdma.acquire
        """See ``MessageTransport``. The buffer is registered if the fabric needs it."""
        self.work = self.rdma.work
        self._pump_scheduled = False
        """Invariant: True if and only if ``_scheduled_pump`` is among the loop's next calls."""
        self._pump_wanted = False
        """Set when there may be more to do at the end of a batch than ``_completed`` sees."""
        self._batch: Iterator[object] = _NOTHING
        """The completions of the batch that follow the one that is being handled."""
        self._at_end: Callable[[], None] | None = None
        """See ``at_end_of_turn``. Invariant: None unless a batch is being handled."""
        self._timer: asyncio.TimerHandle | None = None
        """Invariant: it fires no later than ``connection.next_deadline()`` while the connection is not dead."""
        self._close_timer: asyncio.TimerHandle | None = None
        self.receives = ReceivePool(
            max(settings.max_receive_size, constants.MIN_FIRST_RECEIVE_SIZE),
            2 * self.settings.receive_credit_max + constants.EXTRA_RECEIVES,
            self.rdma.cache,
            self.counters,
        )
        if role is Role.PASSIVE:
            self.connection.max_message_size = constants.UNAUTHENTICATED_MESSAGE_SIZE
            maximum = min(self.settings.receive_credit_max, constants.UNAUTHENTICATED_CREDITS)
            self.connection.credits.resize(maximum=maximum)
        endpoint.on_completions = self._completed
        endpoint.on_closed = self._endpoint_closed
        self._post_receives()
        self._arm_timer()

    # -- MessageTransport ----------------------------------------------------------------------------------------

    @property
    def max_outbound_message_size(self) -> int:
        return self.connection.max_fragmented_send_size

    @property
    def max_message_size(self) -> int:
        return self.connection.max_message_size

    @max_message_size.setter
    def max_message_size(self, size: int) -> None:
        self.connection.max_message_size = min(size, self.connection.max_fragmented_receive_size)

    def trust(self, max_message_size: int) -> None:
        """See ``MessageTransport``. A trusted peer gets its full number of credits."""
        self.max_message_size = max_message_size
        self._trusted = True
        self.connection.credits.resize(maximum=self.settings.receive_credit_max)
        self._allowance.give_back()
        self._pump_wanted = True
        if not self.work.corked:
            self._wake()

    @property
    def traffic(self) -> Traffic:
        counters, provider = self.counters, dict(self.endpoint.counters)
        implicit = _sum_matching(provider, _REGISTRATIONS) - provider.get("registrations", 0)
        return Traffic(
            rdma_read_bytes=counters["bytes_rdma_read"],
            rdma_write_bytes=counters["bytes_rdma_written"],
            inline_bytes_received=counters["bytes_received_inline"],
            inline_bytes_sent=counters["bytes_sent_inline"],
            send_credits=self.connection.credits.send_credits,
            receive_credits=self.connection.credits.receive_credits,
            registrations=counters["registrations"] + implicit,
            allocations=counters["allocations"] + provider.get("allocations", 0),
            retransmissions=_sum_matching(provider, _RETRANSMISSIONS),
            errors=_sum_matching(provider, _ERRORS),
            provider=provider,
        )

    @property
    def limits(self) -> Limits:
        return Limits(
            max_message_received=self.max_message_size,
            max_fragmented_received=self.connection.max_fragmented_receive_size,
            max_fragmented_sent=self.connection.max_fragmented_send_size,
            read_depth=self.endpoint.capabilities.max_outstanding_reads,
        )

    def start(
        self, on_message: Callable[[InboundMessage], None], on_closed: Callable[[BaseException | None], None]
    ) -> None:
        self._on_message = self._untapped = on_message
        self._on_closed = on_closed
        if self.life is Life.ENDED:
            self.loop.call_soon(self._report_end)
        elif self._backlog:
            self.loop.call_soon(self._deliver_backlog)

    def offer_payloads(self, taker: PayloadTaker) -> None:
        """Offer none: SMB Direct receives into registered memory."""

    def send(
        self,
        segments: Sequence[Buffer],
        invalidate: int | None = None,
        on_sent: Callable[[], None] | None = None,
        data: FileRange | None = None,
    ) -> None:
        """See ``MessageTransport``. Raise ``ValueError`` if the message is longer than the peer can reassemble."""
        if data is not None:
            raise ValueError("SMB Direct sends no files")
        if self.life >= _CLOSING:
            if on_sent is not None:
                self.loop.call_soon(on_sent)
            return
        if invalidate is not None and not self.endpoint.capabilities.remote_invalidation:
            invalidate = None
        on_done = None if on_sent is None else partial(_sent, on_sent)
        connection, work, counters = self.connection, self.work, self.counters
        entry = whole(connection, _WHOLE, segments, invalidate, on_done)
        if entry is None:
            length = sum(map(len, segments))
            connection.send_message(segments, invalidate, _Queued(on_done, length))
        else:
            length = entry[2]
        self.pending_send_bytes += length
        counters["messages_sent"] += 1
        counters["bytes_sent_inline"] += length
        try:
            if entry is not None and self._takes_any_memory:
                # As in _queue_send, without a call for each message.
                counters["sends"] += 1
                if invalidate is not None:
                    counters["remote_invalidations_sent"] += 1
                work.waiting.append(entry)
                if work.corked:
                    return
            elif entry is not None:
                self._queue_send(entry[0].segments, invalidate, on_done, length)
            if not work.corked:
                if entry is not None:
                    self._post()
                else:
                    self._pump()
        except ProviderError as error:
            self._terminate(error)

    def show_received(self, see: Callable[[memoryview], None] | None) -> None:
        """See ``MessageTransport``."""
        if self._on_message is not None:
            self._on_message = self._untapped if see is None else showing(see, self._untapped)

    def is_stalled(self) -> bool:
        return self.life < Life.DEAD and self.endpoint.is_stalled()

    def set_peer_timeout(self, seconds: float | None) -> None:
        """Set the interval of SMB Direct's keepalives. [MS-SMBD 3.1.6.2]"""
        settings = self.settings
        interval = settings.keepalive_interval
        if seconds is not None:
            interval = min(interval, max(1.0, seconds - settings.keepalive_response_timeout))
        self.connection.set_keepalive_interval(interval, self.loop.time())
        if self.life < Life.DEAD:
            self._arm_timer()

    def at_end_of_turn(self, callback: Callable[[], None]) -> bool:
        """See ``MessageTransport``. A batch of completions is a turn, up to the first that is neither a receive nor the
        end of a Read that its owner waits for."""
        if not length_hint(self._batch):
            return False
        self._at_end = callback
        return True

    def _end_turn(self) -> None:
        callback, self._at_end = self._at_end, None
        if callback is not None:
            callback()

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        if self._backlog:
            self.loop.call_soon(self._deliver_backlog)

    def close(self, reason: str = "") -> None:
        if self.life >= Life.CLOSING:
            return
        _log.debug("%s: closing: %s", self.peer_address, reason)
        self.life = change(self.life, Life.CLOSING)
        self.work.stop("the connection ended")
        self._close_timer = self.loop.call_later(CLOSE_TIMEOUT, self._close_expired)
        if not self.work.corked:
            self._pump()

    def abort(self, reason: str = "") -> None:
        if self.life < Life.DEAD:
            _log.debug("%s: aborting: %s", self.peer_address, reason)
            self._terminate(None)

    # -- pumping -------------------------------------------------------------------------------------------------

    def _allocate(self, size: int) -> PoolBuffer:
        """Lend a reassembly buffer. Raise ``ProtocolError`` if unauthenticated peers hold too much memory already."""
        if not self._trusted and not self._allowance.take(self.peer_address[0], size, self._evicted):
            raise ProtocolError(f"no memory for a message of {size} bytes from an unauthenticated peer")
        return self.pool.acquire(size, None, self.counters)

    def _evicted(self) -> None:
        """Abort the connection: the memory of its unfinished message is needed for other peers, and its source holds
        most."""
        self.abort("unfinished message of an unauthenticated peer")

    def receive_released(self) -> None:
        """Have the receive buffer that was given back posted and granted again if the peer needs it."""
        connection, credits = self.connection, self.connection.credits
        if credits.receives_posted <= credits.low or connection.has_to_send:
            self._wake()

    def _wake(self) -> None:
        """Schedule ``_pump``, for changes outside a batch."""
        if not self._pump_scheduled and self.life < Life.DEAD:
            self._pump_scheduled = True
            self.loop.call_soon(self._scheduled_pump)

    def _scheduled_pump(self) -> None:
        self._pump_scheduled = False
        self._pump()

    def _completed(self, completions: Sequence[Completion]) -> None:
        """Process a batch of completions and send everything that it caused at its end."""
        work, connection = self.work, self.connection
        credits = connection.credits
        work.corked = True
        try:
            items: Sequence[Any] = completions
            # Mostly all of a batch are of one kind. If they are no receives, nothing has to be looked at.
            if (completions[0][0] is _RECEIVE or completions[-1][0] is _RECEIVE) and self.life < _DEAD:
                now = self.loop.time()
                items, count, size = accepted(connection, _WHOLE_RECEIVE, completions, Message, self, now)
                if count:
                    counters = self.counters
                    counters["receives"] += count
                    counters["bytes_received_inline"] += size
                    if credits.receives_posted <= credits.low:
                        # Before the messages are handled: their replies can then grant them.
                        self._replenish()
            self._batch = batch = iter(items)
            for item in batch:
                if type(item) is Message:
                    if self._on_message is None or self._paused or self._backlog or self.life >= _CLOSING:
                        self._keep(item)
                        continue
                    try:
                        self._on_message(item)
                    except Exception as error:
                        self._failed(item, error)
                elif item[0] is _RECEIVE:
                    self._received(item)
                else:
                    if self._at_end is not None:
                        group = item[2]
                        if type(group) is not Group or group[1] or group[3] is None:
                            # It is more than the end of a Read that its owner waits for.
                            self._end_turn()
                    self.pending_send_bytes -= work.completed(item)
        finally:
            self._batch = _NOTHING
            if self._at_end is not None:
                self._end_turn()
            work.corked = False
        if (
            self._pump_wanted
            or credits.receives_posted <= credits.low
            # As Connection.has_to_send, without a call: if all posted receives are granted, there are few of them.
            or 2 * credits.receive_credits < credits.window
            or connection.send_queue
            or connection.send_immediate
            or self.life is _CLOSING
        ):
            self._pump()
        elif work.waiting and self.life < _DEAD:
            try:
                self.pending_send_bytes -= work.post()
            except ProviderError as error:
                self._terminate(error)

    def _replenish(self) -> None:
        """Post receives, or terminate the connection if that is impossible."""
        try:
            self._post_receives()
        except ProviderError as error:
            self._terminate(error)

    def _received(self, completion: Completion) -> None:
        """Process a completed receive that is no whole message."""
        _, status, buffer, length, invalidated = completion
        assert isinstance(buffer, ReceiveBuffer)
        if status is not Status.OK or self.life >= Life.DEAD:
            self.receives.free.append(buffer)
            return
        counters, connection = self.counters, self.connection
        counters["receives"] += 1
        if invalidated is not None:
            counters["remote_invalidations_received"] += 1
        try:
            event = connection.receive_message(buffer.view[:length], self.loop.time(), invalidated)
            if connection.credits.receives_posted <= connection.credits.low:
                self._post_receives()
        except (ProtocolError, ProviderError) as error:
            self.receives.free.append(buffer)
            self._terminate(error)
            return
        if type(event) is not MessageReceived:
            self.receives.free.append(buffer)
            if event is not None:
                self._advanced(event)
            return
        data, pooled, token = event
        counters["bytes_received_inline"] += len(data)
        message: Message | AssembledMessage
        if pooled is None:
            message = Message(self, data, buffer, token)
        else:
            self.receives.free.append(buffer)
            message = AssembledMessage(pooled, token)
        if self._on_message is None or self._paused or self._backlog or self.life is Life.CLOSING:
            self._keep(message)
            return
        try:
            self._on_message(message)
        except Exception as error:
            self._failed(message, error)

    def _keep(self, message: Message | AssembledMessage) -> None:
        """Deliver a message later, or never: the connection is ending."""
        if self.life < Life.DEAD and (self._on_message is None or self._paused or self._backlog):
            self._backlog.append(message)
        else:
            message.release()

    def _advanced(self, event: Event) -> None:
        """Note how negotiation has ended."""
        self._pump_wanted = True
        if type(event) is Established:
            if self.life is Life.OPENING:
                self.life = change(self.life, Life.OPEN)
            if self.on_established is not None:
                self.on_established(self)
        elif type(event) is NegotiationFailed:
            self._error = ProtocolError(event.detail, "MS-SMBD 3.1.5.6")

    def _failed(self, message: Message | AssembledMessage, error: Exception) -> None:
        """Terminate this connection, and no other: the upper layer failed to handle a message."""
        self._end_turn()
        _log.error("%s: handling a message failed", self.peer_address, exc_info=error)
        message.release()
        self._terminate(error)

    def _deliver_backlog(self) -> None:
        self.work.corked = True
        try:
            while self._backlog and not self._paused and self.life < Life.ENDED and self._on_message is not None:
                message = self._backlog.popleft()
                if self.life >= Life.CLOSING:
                    message.release()
                    continue
                try:
                    self._on_message(message)
                except Exception as error:
                    self._failed(message, error)
        finally:
            self.work.corked = False
        self._pump()

    def _pump(self) -> None:
        """Post receives, then everything that may be sent."""
        if self.life >= Life.DEAD:
            return
        self._pump_wanted = False
        connection = self.connection
        now = self.loop.time()
        try:
            while True:
                posted = self._post_receives()
                sends = connection.pending_sends(now)
                self._queue_sends(sends)
                if not (connection.asks_again and (posted or sends) and connection.receives_wanted):
                    break
            self._arm_timer()
            if self.work.waiting:
                self._post()
        except ProviderError as error:
            self._terminate(error)
            return
        if connection.role is Role.CLOSED:
            # A refused negotiation: the response was posted, and the peer may receive it until the close timer fires.
            self._finish_close()
        elif self.life is Life.CLOSING and not connection.send_queue and not self.work.waiting:
            self._finish_close()

    def _finish_close(self) -> None:
        """End the endpoint gracefully: everything was posted."""
        self._die()
        if self._close_timer is None:
            self._close_timer = self.loop.call_later(CLOSE_TIMEOUT, self._close_expired)
        self.endpoint.disconnect()

    def _post_receives(self) -> int:
        """Post the receives that the core requests, as far as there are buffers. Return how many."""
        wanted = self.connection.receives_wanted
        if not wanted:
            return 0
        buffers = self.receives.take(wanted)
        self.endpoint.post_receives([(buffer.view, buffer) for buffer in buffers])
        self.connection.receives_were_posted(len(buffers))
        return len(buffers)

    def _queue_sends(self, sends: Sequence[OutgoingSend]) -> None:
        """Queue Sends of the core. The context of each is the ``_Queued`` of the message that it ends, or None. Raise
        ``ProviderError`` if the device refuses to register more memory; all are queued even then, so that each message
        is ended."""
        refused: ProviderError | None = None
        for segments, invalidate, context in sends:
            on_done, length = context if isinstance(context, _Queued) else (None, 0)
            try:
                self._queue_send(segments, invalidate, on_done, length)
            except ProviderError as error:
                refused = error
        if refused is not None:
            raise refused

    def _queue_send(
        self, segments: Sequence[Buffer], invalidate: int | None, on_done: OnDone | None, length: int
    ) -> None:
        """Queue one Send, which ends a message of ``length`` bytes if that is not 0. Raise ``ProviderError`` if the
        device refuses to register more memory; the Send is queued even then."""
        self.counters["sends"] += 1
        if invalidate is not None:
            self.counters["remote_invalidations_sent"] += 1
        try:
            cache = self.rdma.cache
            if cache.needed:
                # Copy the segments to one registered buffer: at least the header is not registered.
                size = sum(map(len, segments))
                if size > self.endpoint.capabilities.max_inline:
                    bounce = cache.gathered(segments, size)
                    segments = [bounce.view]
                    on_done = partial(_sent_by, bounce, on_done)
        finally:
            self.work.waiting.append((Send(segments, None, invalidate, False), on_done, length))

    def _post(self) -> None:
        """Post the work that waits. Raise ``ProviderError`` if the connection is to be aborted."""
        self.pending_send_bytes -= self.work.post()

    # -- timers --------------------------------------------------------------------------------------------------

    def _arm_timer(self) -> None:
        """Have the timer fire no later than the next deadline. Deadlines mostly move later, so an armed timer that
        fires too early is kept rather than re-armed for each message."""
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
        """Withhold messages and the report of the end until the next ``start``."""
        self._on_message = None
        self._on_closed = None

    def _close_expired(self) -> None:
        """Abort: the peer did not let us end gracefully in time."""
        self._close_timer = None
        self._die()
        self.endpoint.abort()

    def begin(self) -> None:
        """Negotiate, now that the initiator's RDMA connection is up."""
        self.connection.start()
        self._pump()

    def _die(self) -> None:
        """Send and accept nothing more. Idempotent."""
        self._end_turn()
        if self.life < Life.DEAD:
            self.life = change(self.life, Life.DEAD)
        self.work.stop(self._error or self._end or "the connection ended")
        self.rdma.cache.leave_domain()
        self.connection.close()
        self._cancel_timer()

    def _terminate(self, error: BaseException | None) -> None:
        """Abort the connection because of ``error``, if any. [MS-SMBD 3.1.5]"""
        if self.life >= Life.DEAD:
            return
        self._error = self._error or (error if error is None else error.with_traceback(None))  # It would keep messages.
        if error is not None:
            # Its frames refer to this object. Without them the memory is freed without the garbage collector.
            error.with_traceback(None)
            _log.info("%s: terminating: %s", self.peer_address, error)
        self._die()
        detail = str(error) if error is not None else ""
        cause = CloseCause.PROTOCOL if isinstance(error, ProtocolError) else CloseCause.LOCAL
        self.endpoint.abort(CloseReason(cause, detail))

    def _endpoint_closed(self, reason: CloseReason) -> None:
        """Handle the connection loss, which is the last report of an endpoint. [MS-SMBD 3.1.7.1]"""
        _log.debug("%s: connection ended: %s %s", self.peer_address, reason.cause.value, reason.detail)
        self._die()
        self.life = change(self.life, Life.ENDED)
        if self._close_timer is not None:
            self._close_timer.cancel()
            self._close_timer = None
        if self._error is not None:
            self._end = self._error
        elif reason.cause not in (CloseCause.PEER, CloseCause.LOCAL):
            self._end = ConnectionLost(reason)
        self.work.stop(self._error or self._end or "the connection ended")
        for queued in self.connection.unsent():
            if isinstance(queued, _Queued) and queued.on_done is not None:
                queued.on_done(None)
        self.work.fail(ConnectionLost(reason))
        self.pending_send_bytes = 0
        while self._backlog:
            self._backlog.popleft().release()
        self.rdma.cache.clear()
        self._allowance.give_back()
        # Nothing more is received. Without these references the memory is freed without the garbage collector.
        self.receives.close()
        self.endpoint.on_completions = _ignore
        self.endpoint.on_closed = _ignore
        if self._on_closed is not None:
            self._report_end()

    def _report_end(self) -> None:
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed(self._end)
