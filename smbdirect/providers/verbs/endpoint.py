"""One queue pair: posting work and reaping completions. Work requests are packed into reusable memory; each chain needs
one doorbell."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from smbdirect.errors import ProviderError
from smbdirect.life import Life, change
from smbdirect.providers.base import (
    Access,
    Atomic,
    BaseEndpoint,
    CloseCause,
    CloseReason,
    Completion,
    Operation,
    Read,
    RemoteSegment,
    Send,
    Status,
    WorkRequest,
    Write,
    ignore,
)
from smbdirect.providers.verbs import abi
from smbdirect.providers.verbs.device import Device
from smbdirect.providers.verbs.memory import STAGING_SLOT, Domain, Registration, StagingSlot, address_of

POLL_BATCH = 32
FLUSH_SECONDS = 2.0
"""Seconds that a failed queue pair may take to flush before its work requests are completed here."""

_STATUS = {
    0: Status.OK,
    1: Status.LENGTH,
    5: Status.FLUSHED,
    8: Status.LOCAL_ERROR,
    9: Status.REMOTE_ERROR,
    10: Status.REMOTE_ACCESS,
    11: Status.REMOTE_ERROR,
    12: Status.RETRY_EXCEEDED,
    13: Status.RECEIVE_NOT_READY,
}
_CAUSE = {
    Status.REMOTE_ACCESS: CloseCause.REMOTE_ACCESS,
    Status.RETRY_EXCEEDED: CloseCause.TIMEOUT,
    Status.RECEIVE_NOT_READY: CloseCause.NO_RECEIVE,
    Status.LENGTH: CloseCause.PROTOCOL,
}


class _Posted(NamedTuple):
    """One posted work request or receive, and the resources that it holds until it completes."""

    operation: Operation
    context: object
    signalled: bool
    """Whether the caller requested a completion."""
    announced: bool
    """Whether the device reports a completion."""
    staging: StagingSlot | None
    sinks: tuple[Registration, ...]
    buffers: object
    """Keeps the memory of the work request alive until it completes."""


def _opcode(request: Write | Read) -> int:
    if isinstance(request, Atomic):
        return abi.WR_FETCH_ADD if request.compare is None else abi.WR_COMPARE_SWAP
    return abi.WR_READ if isinstance(request, Read) else abi.WR_WRITE


class _Chain:
    """Memory for a chain of send work requests and their scatter-gather lists."""

    def __init__(self, requests: int, segments: int) -> None:
        """``segments`` is the most that each work request may have."""
        self.segments = segments
        self.work = ctypes.create_string_buffer(requests * abi.SEND_WR_SIZE)
        self.at = ctypes.addressof(self.work)
        self.lists = ctypes.create_string_buffer(requests * segments * abi.SGE.size)
        self.lists_at = ctypes.addressof(self.lists)


class VerbsEndpoint(BaseEndpoint):
    """One connection on a kernel RDMA device. Implements ``base.Endpoint``."""

    def __init__(self, device: Device, domain: Domain, cm_id: int, loop: asyncio.AbstractEventLoop) -> None:
        local, peer = abi.unpack_sockaddr(cm_id + abi.CM_ID_SOURCE), abi.unpack_sockaddr(cm_id + abi.CM_ID_DESTINATION)
        super().__init__(device.capabilities, local, peer)
        self.counters: dict[str, int] = Counter()
        self.on_released: Callable[[VerbsEndpoint], None] = ignore
        self.domain = domain
        self._device = device
        self._domain = domain
        self._verbs = device.libraries.verbs
        self._cm = device.libraries.cm
        self._loop = loop
        self._cm_id: int | None = cm_id
        self.life = Life.OPEN
        """Closing while sends that were posted before ``disconnect`` are outstanding; dead while the queue pair flushes
        in its error state; ended when all resources of the device were released."""
        self._flush_timer: asyncio.TimerHandle | None = None
        self._regions: set[Registration] = set()
        # Invariant: _sends and _receives contain what was posted and not reported yet, by number, in posting order.
        self._sends: dict[int, _Posted] = {}
        self._receives: dict[int, _Posted] = {}
        self._finished: dict[int, Status] = {}
        """Completed sends that cannot be reported before earlier ones."""
        self._late: list[Completion] = []
        """Flushed completions of requests that were posted after the end began; delivered last."""
        self._next_id = 0
        self._handed = device.posts_by_write
        """Whether posting and arming are done by the device's thread."""
        self._refusing = False
        """Used only by the device's thread: a work request was refused, so no later one may be posted."""
        self._create_queues()

    def _create_queues(self) -> None:
        limits, verbs = self.capabilities, self._verbs
        self._channel: int = verbs.ibv_create_comp_channel(self._device.context)
        if not self._channel:
            raise ProviderError(str(abi.oserror("ibv_create_comp_channel")))
        depth = limits.max_send_queue + limits.max_receive_queue
        self._cq: int = verbs.ibv_create_cq(self._device.context, depth, None, self._channel, 0)
        if not self._cq:
            error = abi.oserror("ibv_create_cq")
            verbs.ibv_destroy_comp_channel(self._channel)
            raise ProviderError(str(error))
        for inline in (limits.max_inline, limits.max_inline // 2, 0):  # devices refuse a size that they do not support
            cap = abi.QpCap(limits.max_send_queue, limits.max_receive_queue, limits.max_send_sge, 1, inline)
            attributes = abi.QpInitAttr(None, self._cq, self._cq, None, cap, abi.QPT_RC, 0)
            if not self._cm.rdma_create_qp(self._cm_id, self._domain.pd, ctypes.byref(attributes)):
                break
        else:
            error = abi.oserror("rdma_create_qp")
            verbs.ibv_destroy_cq(self._cq)
            verbs.ibv_destroy_comp_channel(self._channel)
            raise ProviderError(str(error))
        assert self._cm_id is not None
        self._qp = self.queue_pair = abi.pointer_at(self._cm_id + abi.CM_ID_QP)
        self._max_inline = int(attributes.cap.max_inline_data)
        # Rewritten at every post: the library copies what it needs. Requests for the thread have memory of their own.
        standing = 1 if self._handed else limits.max_send_queue
        self._chain = _Chain(standing, limits.max_send_sge)
        self._receive_wr = ctypes.create_string_buffer(abi.RECV_WR_SIZE + abi.SGE.size)
        self._bad = ctypes.create_string_buffer(8)
        self._bad_at = ctypes.addressof(self._bad)
        self._wc = ctypes.create_string_buffer(POLL_BATCH * abi.WC_SIZE)
        self._wc_at = ctypes.addressof(self._wc)
        self._fd = abi.int_at(self._channel + abi.CHANNEL_FD)
        os.set_blocking(self._fd, False)
        if self._handed:
            self._device.thread.hand(self._arm_there)
        else:
            self._arm()
        self._loop.add_reader(self._fd, self._on_event)

    # ------------------------------------------------------------------ registration

    def register(self, memory: memoryview, access: Access) -> Registration:
        if self.life is Life.ENDED:
            raise ProviderError("the endpoint is closed")
        self.counters["registrations"] += 1
        registration = self._domain.register(memory, access)
        self._regions.add(registration)
        registration.on_gone = self._forget
        return registration

    def _forget(self, registration: Registration) -> None:
        self._regions.discard(registration)

    # ------------------------------------------------------------------ posting

    def post_receive(self, buffer: memoryview, context: object = None) -> None:
        if self.life is Life.ENDED:
            raise ProviderError("the endpoint is closed")
        if self.life is Life.DEAD:
            self._late.append(Completion(Operation.RECEIVE, Status.FLUSHED, context))
            return
        if len(self._receives) >= self.capabilities.max_receive_queue:
            raise ProviderError("receive queue is full")
        address, lkey = self._standing_key(buffer)
        number = self._next_id
        self._next_id += 1
        memory = ctypes.create_string_buffer(len(self._receive_wr)) if self._handed else self._receive_wr
        base = ctypes.addressof(memory)
        abi.RECV_WR.pack_into(memory, 0, number, 0, base + abi.RECV_WR_SIZE, 1)
        abi.SGE.pack_into(memory, abi.RECV_WR_SIZE, address, len(buffer), lkey)
        self._receives[number] = _Posted(Operation.RECEIVE, context, True, True, None, (), buffer)
        if self._handed:
            self._device.thread.hand(functools.partial(self._post_receive_there, memory, number))
        elif self._device.post_recv(self._qp, base, self._bad_at):
            del self._receives[number]
            raise ProviderError("ibv_post_recv failed")

    def post(self, requests: Sequence[WorkRequest]) -> None:
        if not requests:
            return
        if self.life is Life.ENDED:
            raise ProviderError("the endpoint is closed")
        if self.life is Life.DEAD:
            self._late += [Completion(request.operation, Status.FLUSHED, request.context) for request in requests]
            return
        limits = self.capabilities
        if len(self._sends) + len(requests) > limits.max_send_queue:
            raise ProviderError("send queue is full")
        for request in requests:
            limits.check(request, sum(memoryview(segment).nbytes for segment in request.segments))
        chain = _Chain(len(requests), limits.max_send_sge) if self._handed else self._chain
        posted: list[tuple[int, _Posted]] = []
        try:
            for index, request in enumerate(requests):
                posted.append(self._pack(chain, index, request, index + 1 == len(requests)))
        except ProviderError:
            for _, entry in posted:
                self._retire(entry)
            raise
        self._sends.update(posted)
        if self._handed:
            numbers = [number for number, _ in posted]
            self._device.thread.hand(functools.partial(self._post_there, chain, numbers))
        elif self._device.post_send(self._qp, chain.at, self._bad_at):
            self._refused([number for number, _ in posted[self._first_bad(chain) :]], "ibv_post_send failed")

    def _first_bad(self, chain: _Chain) -> int:
        """Return how many work requests of the chain the device accepted before it refused one."""
        bad = abi.pointer_at(self._bad_at)
        return max(0, bad - chain.at) // abi.SEND_WR_SIZE if bad else 0

    def _post_there(self, chain: _Chain, numbers: list[int]) -> None:
        """Post a chain. Runs on the device's thread."""
        taken = 0
        if not self._refusing:
            if not self._device.post_send(self._qp, chain.at, self._bad_at):
                return
            taken = self._first_bad(chain)
            self._refusing = True
        self._device.thread.tell(self._refused, numbers[taken:], "ibv_post_send failed")

    def _post_receive_there(self, memory: ctypes.Array[ctypes.c_char], number: int) -> None:
        """Post a receive. Runs on the device's thread."""
        if not self._refusing:
            if not self._device.post_recv(self._qp, ctypes.addressof(memory), self._bad_at):
                return
            self._refusing = True
        self._device.thread.tell(self._refused, [number], "ibv_post_recv failed")

    def _arm_there(self) -> None:
        """Arm the completion queue. Runs on the device's thread. Completions before that raise no event, so the loop
        polls once more."""
        if self._device.req_notify_cq(self._cq, 0):
            self._device.thread.tell(self._refused, [], "ibv_req_notify_cq failed")
        else:
            self._device.thread.tell(self._drain)

    def _arm(self) -> None:
        if self._device.req_notify_cq(self._cq, 0):
            self._refused([], "ibv_req_notify_cq failed")

    def _refused(self, numbers: list[int], what: str) -> None:
        """End the connection because the device did not accept these work requests. Those that it accepted will be
        flushed."""
        for number in numbers:
            entry = self._sends.pop(number, None) or self._receives.pop(number, None)
            if entry is not None:
                self._retire(entry)
                self._late.append(Completion(entry.operation, Status.FLUSHED, entry.context))
        self._fail(CloseReason(CloseCause.DEVICE, what))
        self._loop.call_soon(self._drain)

    def _standing_key(self, view: memoryview) -> tuple[int, int]:
        """Return address and lkey of writable memory. Register it for the lifetime of this endpoint if it is not
        registered."""
        address = address_of(view)
        lkey = self._domain.find(address, view.nbytes)
        if lkey is None:
            self.counters["implicit_registrations"] += 1
            registration = self._domain.register(view, Access.LOCAL_WRITE)
            self._regions.add(registration)
            lkey = registration.lkey
        return address, lkey

    def _gather(self, request: Send | Write, last: bool) -> tuple[list[tuple[int, int, int]], _Posted]:
        """Return the scatter-gather elements (address, length, lkey) of a work request, and its record.

        Memory with a standing registration is used directly. Other memory (headers) is copied: into one staging slot if
        it fits, else into memory that is registered only for this work request.
        """
        sges: list[tuple[int, int, int]] = []
        staging: StagingSlot | None = None
        temporary: list[Registration] = []
        used = 0
        for segment in request.segments:
            view = memoryview(segment).cast("B")
            size = view.nbytes
            if not size:
                continue
            if not view.readonly:
                address = address_of(view)
                lkey = self._domain.find(address, size)
                if lkey is not None:
                    sges.append((address, size, lkey))
                    continue
            if used + size > STAGING_SLOT:
                copy = self._domain.temporary(view)
                self.counters["implicit_registrations"] += 1
                temporary.append(copy)
                sges.append((copy.address, size, copy.lkey))
                continue
            if staging is None:
                staging = self._domain.staging_slot()
            staging.view[used : used + size] = view
            address, lkey = staging.address + used, staging.lkey
            used += size
            if sges and sges[-1][0] + sges[-1][1] == address and sges[-1][2] == lkey:
                sges[-1] = (sges[-1][0], sges[-1][1] + size, lkey)
            else:
                sges.append((address, size, lkey))
        self.counters["bytes_staged"] += used
        signalled = request.signalled
        # The last request of a chain always reports its completion, which also retires the unsignalled ones before it.
        announced = signalled or last or self._device.copies_if_signalled
        operation = request.operation
        entry = _Posted(operation, request.context, signalled, announced, staging, tuple(temporary), request.segments)
        if len(sges) > self.capabilities.max_send_sge:
            self._retire(entry)
            raise ProviderError(f"{len(sges)} segments, at most {self.capabilities.max_send_sge}")
        return sges, entry

    def _gather_read(self, request: Read) -> tuple[list[tuple[int, int, int]], _Posted]:
        """Do the same for a Read's sink. It is staged only if it is empty: siw requires exactly one element."""
        sges: list[tuple[int, int, int]] = []
        sinks: list[Registration] = []
        staging: StagingSlot | None = None
        for segment in request.segments:
            if not segment.nbytes:
                continue
            if self._device.read_sink_needs_remote_write:
                sink = self._domain.read_sink(segment)
                self.counters["read_sink_registrations"] += 1
                sinks.append(sink)
                sges.append((sink.address, sink.length, sink.lkey))
            else:
                address, lkey = self._standing_key(segment)
                sges.append((address, segment.nbytes, lkey))
        if not sges:
            staging = self._domain.staging_slot()
            sges.append((staging.address, 0, staging.lkey))
        return sges, _Posted(Operation.READ, request.context, True, True, staging, tuple(sinks), request.segments)

    def _pack(self, chain: _Chain, index: int, request: WorkRequest, last: bool) -> tuple[int, _Posted]:
        """Write the work request into slot ``index`` of the chain."""
        sges, entry = self._gather_read(request) if isinstance(request, Read) else self._gather(request, last)
        total = sum(sge[1] for sge in sges)
        number = self._next_id
        self._next_id += 1
        opcode, rkey, remote = abi.WR_SEND, 0, RemoteSegment(0, 0, 0)
        if isinstance(request, Send):
            if request.invalidate is not None:
                opcode, rkey = abi.WR_SEND_INV, request.invalidate
                # rdma-core 44: siw reads the key from the RDMA fields, which have no meaning for a Send on other
                # devices.
                remote = RemoteSegment(rkey, 0, 0)
                self.counters["send_with_invalidate"] += 1
        else:
            opcode, remote = _opcode(request), request.remote
        flags = abi.SEND_SIGNALED if entry.announced else 0
        if entry.operation is not Operation.READ and 0 < total <= self._max_inline:
            flags |= abi.SEND_INLINE
        sge_offset = index * chain.segments * abi.SGE.size
        for position, sge in enumerate(sges):
            abi.SGE.pack_into(chain.lists, sge_offset + position * abi.SGE.size, *sge)
        abi.SEND_WR.pack_into(
            chain.work,
            index * abi.SEND_WR_SIZE,
            number,
            0 if last else chain.at + (index + 1) * abi.SEND_WR_SIZE,
            chain.lists_at + sge_offset,
            len(sges),
            opcode,
            flags,
            rkey,
            remote.address,
            remote.token,
        )
        if isinstance(request, Atomic):
            swaps = request.compare is not None
            first, second = (request.compare, request.operand) if swaps else (request.operand, 0)
            place = index * abi.SEND_WR_SIZE + abi.ATOMIC_AT
            abi.ATOMIC.pack_into(chain.work, place, remote.address, first, second, remote.token)
        self.counters[_BYTES[entry.operation]] += total
        return number, entry

    def _retire(self, entry: _Posted) -> None:
        """Release the resources that a work request held."""
        if entry.staging is not None:
            self._domain.return_slot(entry.staging)
        for sink in entry.sinks:
            sink.deregister()

    # ------------------------------------------------------------------ reaping

    def _on_event(self) -> None:
        queue, context = ctypes.c_void_p(), ctypes.c_void_p()
        events = 0
        while not self._verbs.ibv_get_cq_event(self._channel, ctypes.byref(queue), ctypes.byref(context)):
            events += 1
        if events:
            self._verbs.ibv_ack_cq_events(self._cq, events)
        if self._handed:
            # Drained now, to save time, and once more after the queue was armed.
            self._drain()
            if self.life < Life.ENDED:
                self._device.thread.hand(self._arm_there)
            return
        # Arm first, then drain: a completion between the two raises the next event.
        self._arm()
        self._drain()

    def _drain(self) -> None:
        while self.life < Life.ENDED:
            count = self._device.poll_cq(self._cq, POLL_BATCH, self._wc_at)
            if count <= 0:
                break
            batch: list[Completion] = []
            for index in range(count):
                self._reap(index * abi.WC_SIZE, batch)
            if batch:
                self.on_completions(batch)
        if self.life is Life.DEAD and not self._sends and not self._receives:
            self._release()

    def _reap(self, offset: int, batch: list[Completion]) -> None:
        number, code, _, _, length, invalidated, _, _, flags = abi.WC.unpack_from(self._wc, offset)
        status = _STATUS.get(code, Status.LOCAL_ERROR)
        if status not in (Status.OK, Status.FLUSHED):
            detail = self._verbs.ibv_wc_status_str(code).decode()
            self._fail(CloseReason(_CAUSE.get(status, CloseCause.PROTOCOL), detail))
        entry = self._receives.pop(number, None)
        if entry is None:
            self._reap_send(number, status, batch)
            return
        token = None
        if status is Status.OK:
            self.counters["bytes_received"] += length
            token = invalidated if flags & abi.WC_WITH_INV else None
        else:
            length = 0
        batch.append(Completion(Operation.RECEIVE, status, entry.context, length, token))

    def _reap_send(self, number: int, status: Status, batch: list[Completion]) -> None:
        """Report completions in posting order, even if the device does not (Linux 6.12: siw completes a Send before the
        Read that was posted before it). An unsignalled work request is done once a later one is."""
        if number not in self._sends:
            return
        self._finished[number] = status
        while self._sends:
            first, entry = next(iter(self._sends.items()))
            outcome = self._finished.pop(first, None)
            if outcome is None:
                if entry.announced or not self._finished:
                    break
                outcome = Status.OK if self.life < Life.DEAD else Status.FLUSHED
            del self._sends[first]
            self._retire(entry)
            if outcome is not Status.OK or entry.signalled:
                batch.append(Completion(entry.operation, outcome, entry.context))

    # ------------------------------------------------------------------ the end

    def disconnect(self) -> None:
        """See ``base.Endpoint.disconnect``. The queue pair works in order, so it is enough to wait for its sends."""
        if self.life >= Life.CLOSING:
            return
        self.life = change(self.life, Life.CLOSING)
        if self._sends:
            self._loop.call_later(0.01, self._disconnect_when_sent, self._loop.time() + FLUSH_SECONDS)
            return
        self._fail(CloseReason(CloseCause.LOCAL))

    def _disconnect_when_sent(self, deadline: float) -> None:
        if self.life >= Life.DEAD:
            return
        if self._sends and self._loop.time() < deadline:
            self._loop.call_later(0.01, self._disconnect_when_sent, deadline)
        else:
            self._fail(CloseReason(CloseCause.LOCAL))

    def abort(self, reason: CloseReason | None = None) -> None:
        self._fail(reason or CloseReason(CloseCause.LOCAL))

    def peer_disconnected(self, reason: CloseReason) -> None:
        """End the connection: the connection manager reports ``reason``."""
        self._fail(reason)

    def _fail(self, reason: CloseReason) -> None:
        if self.life >= Life.DEAD:
            return
        self.life = change(self.life, Life.DEAD)
        self.close_reason = reason
        if self._cm_id is not None:
            # Moves the queue pair to its error state, which flushes everything. Fails harmlessly before establishment.
            self._cm.rdma_disconnect(self._cm_id)
        self._flush_timer = self._loop.call_later(FLUSH_SECONDS, self._flush_now)
        self._loop.call_soon(self._drain)

    def _flush_now(self) -> None:
        """Release the queue pair even if the driver did not flush everything: not every driver flushes the receives of
        a queue pair that was never established."""
        if self.life < Life.ENDED:
            self._release()

    def _release(self) -> None:
        """Release all resources of the device, report everything that is outstanding as flushed, then report the
        end."""
        if self.life is Life.ENDED:
            return
        self.life = change(self.life, Life.ENDED)
        assert self.close_reason is not None
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        self._loop.remove_reader(self._fd)
        regions, self._regions = self._regions, set()
        for region in regions:
            region.deregister()
        cm_id, self._cm_id = self._cm_id, None
        self._cm.rdma_destroy_qp(cm_id)
        left = [*self._receives.values(), *self._sends.values()]
        self._receives.clear()
        self._sends.clear()
        for entry in left:
            self._retire(entry)
        self._verbs.ibv_destroy_cq(self._cq)
        self._verbs.ibv_destroy_comp_channel(self._channel)
        self._cm.rdma_destroy_id(cm_id)
        flushed = [Completion(entry.operation, Status.FLUSHED, entry.context) for entry in left] + self._late
        self._late = []
        if flushed:
            self.on_completions(flushed)
        self.on_released(self)
        self.on_closed(self.close_reason)


_BYTES = {Operation.SEND: "bytes_sent", Operation.WRITE: "bytes_rdma_write", Operation.READ: "bytes_rdma_read"}
