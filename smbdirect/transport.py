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

from smbdirect import constants
from smbdirect.buffers import BufferPool, Counters, PoolBuffer, ReceiveBuffer, ReceivePool, RegistrationCache
from smbdirect.codec import Buffer
from smbdirect.connection import Connection, Role
from smbdirect.errors import ConnectionLost, ProtocolError, ProviderError
from smbdirect.events import Established, MessageReceived, NegotiationFailed
from smbdirect.message_transport import InboundMessage, OnTransport, RemoteBuffer
from smbdirect.providers.base import (
    Access,
    CloseCause,
    CloseReason,
    Completion,
    ConnectionRequest,
    Endpoint,
    Listener,
    Operation,
    Provider,
    Read,
    Send,
    Status,
    WorkRequest,
    Write,
)
from smbdirect.rdma import OnDone, RegisteredBuffer, Transfer, check_descriptors, cut
from smbdirect.settings import Settings

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


class _Group:
    """What to report when the signalled work request that carries it completes: everything posted since the last."""

    __slots__ = ("callbacks", "count", "transfers")

    def __init__(self) -> None:
        self.count = 0
        self.callbacks: list[_Sent] = []
        self.transfers: list[Transfer] = []


class _Sent:
    """The end of one upper-layer message: its length, who wants to know, and bounce buffers to give back."""

    __slots__ = ("bounce", "length", "on_sent")

    def __init__(self, length: int, on_sent: Callable[[], None] | None) -> None:
        self.length = length
        self.on_sent = on_sent
        self.bounce: list[PoolBuffer] | None = None


class _Rdma:
    """``message_transport.RdmaOperations`` of one transport, and buffer registration for initiators."""

    def __init__(self, transport: SmbDirectTransport) -> None:
        self._transport = transport
        self.fabric = transport.endpoint.capabilities.name

    @property
    def max_read_write_size(self) -> int:
        return self._transport.connection.max_read_write_size

    def write_to_peer(self, remote: Sequence[RemoteBuffer], local: Sequence[Buffer], on_done: OnDone) -> None:
        """See ``RdmaOperations``. Raises ``ValueError`` if the descriptors are too short."""
        self._transport.post_rdma(Operation.WRITE, remote, local, on_done)

    def read_from_peer(self, remote: Sequence[RemoteBuffer], local: Sequence[memoryview], on_done: OnDone) -> None:
        """See ``RdmaOperations``. Raises ``ValueError`` if the descriptors are too short."""
        self._transport.post_rdma(Operation.READ, remote, local, on_done)

    def register(self, view: memoryview, *, readable: bool = False, writable: bool = False) -> RegisteredBuffer:
        """Expose ``view`` to the peer for RDMA Read and/or Write (3.1.4.3). Raises ``ProviderError``."""
        access = Access.LOCAL_WRITE
        if readable:
            access |= Access.REMOTE_READ
        if writable:
            access |= Access.REMOTE_WRITE
        transport = self._transport
        buffer = RegisteredBuffer(transport.endpoint, view, access, transport.endpoint.capabilities.max_transfer)
        transport.counters["registrations"] += len(buffer.descriptors)
        return buffer


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
        self.rdma = _Rdma(self)
        self._cache = RegistrationCache(endpoint, self.counters)
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
        self._outgoing: deque[tuple[WorkRequest, _Sent | Transfer | None]] = deque()
        self._stranded: list[_Group] = []
        self._posted = 0
        self._in_batch = False
        self._flush_scheduled = False
        self._closing = False
        self._dead = False
        self._ended = False
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
    def max_message_size(self) -> int:
        return self.connection.max_message_size

    @max_message_size.setter
    def max_message_size(self, size: int) -> None:
        """Raising it beyond the limit for strangers also gives the peer its full number of credits."""
        connection = self.connection
        connection.max_message_size = min(size, connection.max_fragmented_receive_size)
        if size > constants.UNAUTHENTICATED_MESSAGE_SIZE:
            connection.credits.receive_credit_max = self.settings.receive_credit_max
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
        sent = _Sent(0, on_sent)
        sent.length = self.connection.send_message(segments, invalidate, sent)
        self.pending_send_bytes += sent.length
        self.counters["messages_sent"] += 1
        self.counters["bytes_sent_inline"] += sent.length
        if not self._in_batch:
            self._pump()

    def acquire(self, size: int) -> PoolBuffer:
        """See ``MessageTransport``. On a fabric that needs it the buffer is registered."""
        before = self.pool.allocations
        buffer = self.pool.acquire(size)
        self.counters["allocations"] += self.pool.allocations - before
        if self._cache.needed and not self._dead:
            try:
                self._cache.add(buffer.view)
            except ProviderError:
                buffer.release()
                raise
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
        counters = self.counters
        if operation is Operation.WRITE:
            local = self._registered_copies(local, transfer)
            counters["bytes_rdma_written"] += total
            for segment, pieces in cut(remote, local, capabilities.max_transfer, capabilities.max_send_sge):
                self._outgoing.append((Write(pieces, segment), None))
                counters["rdma_writes"] += 1
        else:
            for view in local:
                self._cache.add(view)
            counters["bytes_rdma_read"] += total
            for segment, pieces in cut(remote, local, capabilities.max_transfer, capabilities.max_read_sge):
                self._outgoing.append((Read(pieces, segment), None))
                counters["rdma_reads"] += 1
        last, _ = self._outgoing.pop()
        self._outgoing.append((last, transfer))
        self._wake()

    def _registered_copies(self, local: Sequence[Buffer], transfer: Transfer) -> Sequence[Buffer]:
        """``local``, with what the fabric cannot post as it is copied to registered memory."""
        if not self._cache.needed:
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
        before = self.pool.allocations
        buffer = self.pool.acquire(size)
        self.counters["allocations"] += self.pool.allocations - before
        return buffer

    def receive_released(self) -> None:
        """A receive buffer came back: post it and, if the peer needs it, grant it."""
        if not self._in_batch and self.connection.receives_wanted:
            self._wake()

    def _wake(self) -> None:
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
                    self._request_done(completion)
        finally:
            self._in_batch = False
        self._pump()

    def _received(self, completion: Completion, now: float) -> None:
        buffer: Any = completion.context
        if completion.status is not Status.OK or self._dead:
            buffer.release()
            return
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
            self._on_message(message)

    def _deliver_backlog(self) -> None:
        self._in_batch = True
        try:
            while self._backlog and not self._paused and not self._ended and self._on_message is not None:
                message = self._backlog.popleft()
                if self._closing or self._dead:
                    message.release()
                else:
                    self._on_message(message)
        finally:
            self._in_batch = False
        self._pump()

    def _request_done(self, completion: Completion) -> None:
        group = completion.context
        if type(group) is not _Group:
            return
        self._posted -= group.count
        error = None if completion.status is Status.OK else self._lost()
        for sent in group.callbacks:
            self._report_sent(sent)
        for transfer in group.transfers:
            transfer.finish(error)

    def _report_sent(self, sent: _Sent) -> None:
        self.pending_send_bytes -= sent.length
        if sent.bounce is not None:
            for buffer in sent.bounce:
                buffer.release()
        if sent.on_sent is not None:
            sent.on_sent()

    def _pump(self) -> None:
        """Post receives, then everything that may go out."""
        if self._dead:
            return
        connection = self.connection
        try:
            self._post_receives()
            before = connection.credits.receive_credits
            for item in connection.pending_sends(self.loop.time()):
                self._queue_send(item.segments, item.invalidate, item.context)
            self.counters["credits_granted"] += connection.credits.receive_credits - before
            if self._outgoing:
                self._post_outgoing()
        except ProviderError as error:
            self._terminate(error)
            return
        if connection.role is Role.CLOSED:
            # A refused negotiation: the response is on its way, the rest is up to the peer's patience.
            self._finish_close()
        elif self._closing and not connection.send_queue and not self._outgoing:
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

    def _post_receives(self) -> None:
        wanted = self.connection.receives_wanted
        if wanted:
            buffers = self._receives.take(wanted)
            for buffer in buffers:
                self.endpoint.post_receive(buffer.view, buffer)
            self.connection.receives_were_posted(len(buffers))

    def _queue_send(self, segments: Sequence[Buffer], invalidate: int | None, context: object) -> None:
        self.counters["sends"] += 1
        if invalidate is not None:
            self.counters["remote_invalidations_sent"] += 1
        sent = context if type(context) is _Sent else None
        if self._cache.needed:
            segments, sent = self._bounce(segments, sent)
        self._outgoing.append((Send(segments, None, invalidate), sent))

    def _bounce(self, segments: Sequence[Buffer], sent: _Sent | None) -> tuple[Sequence[Buffer], _Sent | None]:
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
            sent = _Sent(0, None)
        sent.bounce = [buffer]
        return [buffer.view], sent

    def _post_outgoing(self) -> None:
        """Post what fits the send queue, in one chain; only its last request and Reads are signalled."""
        outgoing = self._outgoing
        room = self.endpoint.capabilities.max_send_queue - self._posted
        count = min(room, len(outgoing))
        if count <= 0:
            return
        chain: list[WorkRequest] = []
        group = _Group()
        # Signal at least twice per queue length, so that room is reported before the queue is full.
        every = max(self.endpoint.capabilities.max_send_queue // 2, 1)
        for index in range(count):
            request, ending = outgoing.popleft()
            group.count += 1
            if ending is not None:
                if type(ending) is Transfer:
                    group.transfers.append(ending)
                else:
                    group.callbacks.append(ending)  # type: ignore[arg-type]
            if index == count - 1 or group.count >= every or type(request) is Read:
                chain.append(request._replace(context=group))
                group = _Group()
            elif type(request) is Send:
                chain.append(Send(request.segments, None, request.invalidate, False))
            else:
                chain.append(Write(request.segments, request.remote, None, False))
        self._posted += count
        try:
            self.endpoint.post(chain)
        except ProviderError:
            self._stranded += [request.context for request in chain if type(request.context) is _Group]
            raise

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
            _log.info("%s: terminating: %s", self.peer_address, error)
        self.connection.close()
        self._cancel_timer()
        detail = str(error) if error is not None else ""
        cause = CloseCause.PROTOCOL if isinstance(error, ProtocolError) else CloseCause.LOCAL
        self.endpoint.abort(CloseReason(cause, detail))

    def _endpoint_closed(self, reason: CloseReason) -> None:
        """3.1.7.1: connection loss, the last thing an endpoint reports."""
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
            if type(sent) is _Sent:
                self._report_sent(sent)
        lost = ConnectionLost(reason)
        for group in self._stranded:
            for sent in group.callbacks:
                self._report_sent(sent)
            for transfer in group.transfers:
                transfer.finish(lost)
        outgoing, self._outgoing = self._outgoing, deque()
        for _, ending in outgoing:
            if type(ending) is Transfer:
                ending.finish(lost)
            elif type(ending) is _Sent:
                self._report_sent(ending)
        while self._backlog:
            self._backlog.popleft().release()
        self._cache.clear()
        if self._on_closed is not None:
            self._report_end()

    def _report_end(self) -> None:
        on_closed, self._on_closed = self._on_closed, None
        if on_closed is not None:
            on_closed(self._end)


class SmbDirectListener:
    """Keeps ``message_transport.MessageListener``."""

    def __init__(self, on_transport: OnTransport, settings: Settings, pool: BufferPool) -> None:
        self.address: tuple[str, int] = ("", 0)
        self.transports: set[SmbDirectTransport] = set()
        """Connections that have not finished negotiating."""
        self._on_transport = on_transport
        self._settings = settings
        self._pool = pool
        self._listener: Listener | None = None
        self._accepting: set[asyncio.Task[None]] = set()

    def attach(self, listener: Listener) -> None:
        self._listener = listener
        self.address = listener.address

    def on_request(self, request: ConnectionRequest) -> None:
        """3.1.7.2: connection arrival."""
        loop = asyncio.get_running_loop()
        try:
            transport = SmbDirectTransport(request.prepare(), Role.PASSIVE, self._settings, self._pool, loop)
        except ProviderError as error:
            _log.warning("%s: connection refused: %s", request.peer_address, error)
            request.reject()
            return
        transport.on_established = self._established
        self.transports.add(transport)
        task = loop.create_task(self._accept(request, transport))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def _accept(self, request: ConnectionRequest, transport: SmbDirectTransport) -> None:
        transport.start(_ignore_message, lambda error: self.transports.discard(transport))
        try:
            await request.accept()
        except (ConnectionLost, ProviderError) as error:
            _log.info("%s: not established: %s", request.peer_address, error)
            self.transports.discard(transport)
            transport.abort("not established")

    def _established(self, transport: SmbDirectTransport) -> None:
        self.transports.discard(transport)
        transport.detach()
        self._on_transport(transport)

    async def close(self) -> None:
        """Stop listening, end connections that are still negotiating; established ones live on."""
        if self._listener is not None:
            await self._listener.close()
        for transport in tuple(self.transports):
            transport.abort("the listener was closed")
        for task in tuple(self._accepting):
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)


def _ignore_message(message: InboundMessage) -> None:
    message.release()


async def listen(
    provider: Provider,
    host: str,
    port: int,
    on_transport: OnTransport,
    settings: Settings | None = None,
    pool: BufferPool | None = None,
) -> SmbDirectListener:
    """Accept SMB Direct connections; each is handed to ``on_transport`` once it has negotiated.

    Until the upper layer raises ``max_message_size``, a peer gets few credits and only short messages. Raises
    ``OSError`` or ``ProviderError`` if the address cannot be listened on.
    """
    listener = SmbDirectListener(on_transport, settings or Settings(), pool or BufferPool())
    listener.attach(await provider.listen(host, port, listener.on_request))
    return listener


async def connect(
    provider: Provider,
    host: str,
    port: int,
    settings: Settings | None = None,
    pool: BufferPool | None = None,
    timeout: float = 5.0,
) -> SmbDirectTransport:
    """Connect and negotiate (3.1.4.1). ``timeout`` is for the RDMA connection; negotiation has its own timer.

    Raises ``ConnectionLost``, or the ``ProtocolError`` that ended the negotiation.
    """
    loop = asyncio.get_running_loop()
    established: asyncio.Future[None] = loop.create_future()
    made: list[SmbDirectTransport] = []

    def prepare(endpoint: Endpoint) -> None:
        made.append(SmbDirectTransport(endpoint, Role.ACTIVE, settings or Settings(), pool or BufferPool(), loop))

    def ready(transport: SmbDirectTransport) -> None:
        transport.detach()
        if not established.done():
            established.set_result(None)

    def ended(error: BaseException | None) -> None:
        if not established.done():
            established.set_exception(error or ConnectionLost("closed by the peer during negotiation"))

    await provider.connect(host, port, prepare, timeout=timeout)
    (transport,) = made
    transport.on_established = ready
    transport.start(_ignore_message, ended)
    transport.begin()
    try:
        await established
    except asyncio.CancelledError:
        transport.abort("cancelled")
        raise
    return transport
