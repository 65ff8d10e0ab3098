"""One iWARP connection: pumps a non-blocking TCP socket through ``Receiver`` and ``Sender``."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import operator
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from smbdirect.codec import Buffer, new_record
from smbdirect.errors import ProviderError
from smbdirect.life import Life, change
from smbdirect.providers.base import (
    Access,
    BaseEndpoint,
    Capabilities,
    CloseCause,
    CloseReason,
    Completion,
    MemoryRegion,
    Operation,
    Read,
    Send,
    SharedRegions,
    Status,
    WorkRequest,
    Write,
    ignore,
)
from smbdirect.providers.iwarp.linger import Linger
from smbdirect.providers.iwarp.mpa import DEFAULT_READ_DEPTH, Parameters, ulpdu_for_segment
from smbdirect.providers.iwarp.operations import Operations, PendingRead, Posted
from smbdirect.providers.iwarp.rdmap import Fault, ReadRequest, TerminateError, describe_terminate
from smbdirect.providers.iwarp.receiver import Receiver, RingPool
from smbdirect.providers.iwarp.sender import Response, Sender, Work
from smbdirect.providers.memory import AccessRefused, NotCached, Region, RegionTable, as_bytes_view, share
from smbdirect.tcp_info import is_stalled, raise_error, retransmissions

_log = logging.getLogger(__name__)

DRAIN_TIMEOUT = 5.0
"""Seconds that ``disconnect`` waits for posted work to be sent."""
LARGE_ULPDU = 65520
"""Bytes per FPDU towards a peer that is known to accept more than one segment."""
_SEND, _WRITE, _READ, _OK = Operation.SEND, Operation.WRITE, Operation.READ, Status.OK
_EOR = int(socket.MSG_EOR)
_OPEN, _CLOSING, _DEAD = Life.OPEN, Life.CLOSING, Life.DEAD
_VIEW: Callable[[Buffer], memoryview] = memoryview
_SIZE_OF = operator.attrgetter("nbytes")
_CONTIGUOUS = operator.attrgetter("c_contiguous")
_TURNS = 16
"""Most system calls per readiness event, so that one busy connection does not starve the others."""
_FPDUS_PER_EVENT = 256
_BYTES_PER_EVENT = 1 << 20
"""After this many FPDUs or bytes were received the other connections get their turn."""
_CAUSES = {errno.ETIMEDOUT: CloseCause.TIMEOUT, errno.ECONNRESET: CloseCause.PEER, errno.EPIPE: CloseCause.PEER}

CAPABILITIES = Capabilities(
    name="iwarp",
    max_send_sge=256,
    max_read_sge=256,
    max_transfer=1 << 30,
    max_message=1 << 24,
    max_send_queue=4096,
    max_receive_queue=4096,
    max_outstanding_reads=DEFAULT_READ_DEPTH,
)


class PeerTerminatedError(Exception):
    """The peer has sent a Terminate message."""


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is a loopback address, including IPv4-mapped ones."""
    address = ipaddress.ip_address(host.split("%", maxsplit=1)[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class IwarpEndpoint(BaseEndpoint):
    """One iWARP connection, open once MPA set-up is done. Implements ``base.Endpoint``. ``establish`` starts the data
    phase."""

    def __init__(
        self, sock: socket.socket, rings: RingPool, private_data: bytes = b"", large_fpdus: bool | None = None
    ) -> None:
        super().__init__(CAPABILITIES, sock.getsockname()[:2], sock.getpeername()[:2])
        self.private_data = private_data
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._rings = rings
        self._large_fpdus = is_loopback(self.peer_address[0]) if large_fpdus is None else large_fpdus
        self._regions = RegionTable()
        self._regions.on_invalidated = self._invalidated
        self._registrations = 0
        self._operations = Operations(
            self._regions,
            on_read_request=self._read_requested,
            on_read_done=self._read_done,
            on_terminate=self._peer_terminated,
        )
        self._receiver = Receiver(self._operations, rings)
        self._sender = Sender(LARGE_ULPDU, False, DEFAULT_READ_DEPTH, self._operations.reads)
        self._ird = DEFAULT_READ_DEPTH
        self._queue: deque[Posted] = deque()
        """Work that was posted and is not completed, in posting order."""
        self._writing = False
        """Whether the loop watches for room in the socket. Invariant: if so, the sender has something to send."""
        self._receiving = False
        """Whether ``_readable`` is on the stack: a fault detected meanwhile waits for it in ``_deferred``."""
        self._send_wanted = False
        """Whether received data allows more to be sent: a Read Request to answer, or data that another Read waited
        for."""
        self._delivery_scheduled = False
        """Invariant: True if and only if ``_deliver_scheduled`` is among the loop's next calls."""
        self._delivering = False
        """Whether ``_deliver`` is on the stack. Invariant: it alone calls ``on_completions``, so ``post`` never does,
        and no call begins within another. What completes during a call is delivered after it, in the same turn of the
        loop."""
        self._fetching = False
        """Whether a worker reads from a disk what the next Read Response needs."""
        self._deferred: TerminateError | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self._terminates_sent = 0
        self._terminates_received = 0

    # -- set-up -------------------------------------------------------------------------------------------------

    def use_socket(self, sock: socket.socket) -> None:
        """Replace the TCP connection before ``establish``, and close the previous one."""
        self._sock.close()
        self._sock = sock
        self.local_address = sock.getsockname()[:2]
        self.peer_address = sock.getpeername()[:2]

    def establish(self, parameters: Parameters, initiator: bool) -> None:
        """Start the data phase after MPA set-up. An acceptor sends nothing until the first FPDU has arrived: Linux siw
        treats an earlier one as an error. [RFC 5044 section 7.1.2]"""
        if self.life >= Life.DEAD:
            return
        self.life = change(self.life, Life.OPEN)
        receiver, sender = self._receiver, self._sender
        receiver.crc = sender.crc = parameters.crc
        self._operations.rtr = None if initiator else parameters.rtr
        self._ird = parameters.ird
        sender.max_reads = parameters.ord
        self.capabilities = replace(CAPABILITIES, max_outstanding_reads=parameters.ord)
        sender.segment = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        if not self._large_fpdus:
            sender.max_ulpdu = ulpdu_for_segment(sender.segment)
        sender.open = initiator
        if initiator and parameters.rtr is not None:
            sender.ready_to_receive(parameters.rtr)
        self._loop.add_reader(self._sock, self._readable)
        if not parameters.ord and any(work.operation is Operation.READ for work in self._queue):
            self._die(CloseReason(CloseCause.PROTOCOL, "the peer answers no RDMA Reads"))
            return
        self._pump_out()

    # -- contract -----------------------------------------------------------------------------------------------

    @property
    def counters(self) -> dict[str, int]:
        """A snapshot. ``bytes_*`` count payload; ``bytes_direct`` counts payload that was received without a copy."""
        operations, receiver, sender = self._operations, self._receiver, self._sender
        return {
            "registrations": self._registrations,
            "allocations": self._rings.allocations,
            "regions": len(self._regions),
            "fpdus_sent": sender.fpdus,
            "fpdus_received": operations.fpdus,
            "bytes_sent_send": sender.bytes_send,
            "bytes_sent_write": sender.bytes_write,
            "bytes_sent_read_response": sender.bytes_read_response,
            "bytes_received_send": operations.bytes_send,
            "bytes_received_write": operations.bytes_write,
            "bytes_received_read_response": operations.bytes_read,
            "bytes_direct": receiver.bytes_direct,
            "retransmissions": retransmissions(self._sock),
            "crc_errors": receiver.crc_errors,
            "invalidations": operations.invalidations,
            "terminates_sent": self._terminates_sent,
            "terminates_received": self._terminates_received,
        }

    def is_stalled(self) -> bool:
        """See ``base.Endpoint.is_stalled``. TCP waits for minutes before it ends such a connection."""
        return is_stalled(self._sock)

    def register(self, memory: memoryview, access: Access) -> MemoryRegion:
        if self.life >= Life.DEAD:
            raise ProviderError("the connection is gone")
        region = self._regions.register(memory, access)
        self._registrations += 1
        return region

    def register_file(self, descriptor: int, offset: int, length: int, access: Access) -> MemoryRegion:
        if self.life >= Life.DEAD:
            raise ProviderError("the connection is gone")
        region = self._regions.register_file(descriptor, offset, length, access)
        self._registrations += 1
        return region

    def share(self, regions: SharedRegions) -> None:
        share(self._regions, regions)

    def post_receive(self, buffer: memoryview, context: object = None) -> None:
        receives = self._operations.receives
        if len(receives) >= self.capabilities.max_receive_queue:
            raise ProviderError("receive queue is full")
        view = buffer if buffer.format == "B" and buffer.ndim == 1 and buffer.contiguous else as_bytes_view(buffer)
        if view.readonly:
            raise ProviderError("receive into read-only memory")
        if self.life >= Life.DEAD:
            self._operations.completions.append(Completion(Operation.RECEIVE, Status.FLUSHED, context))
            self._schedule_delivery()
            return
        receives.append((view, context))

    def post_receives(self, receives: Sequence[tuple[memoryview, object]]) -> None:
        queue = self._operations.receives
        plain = self.life < Life.DEAD and len(queue) + len(receives) <= self.capabilities.max_receive_queue
        for view, _ in receives:
            if view.readonly or view.format != "B" or view.ndim != 1 or not view.contiguous:
                plain = False
        if plain:
            queue.extend(receives)
        else:
            super().post_receives(receives)

    def post(self, requests: Sequence[WorkRequest]) -> None:
        """See ``base.Endpoint.post``. As much as the socket accepts is sent before this returns."""
        if len(self._queue) + len(requests) > self.capabilities.max_send_queue:
            raise ProviderError("send queue is full")
        if self.life is _OPEN and not self._writing:
            reported: list[WorkRequest | PendingRead] = []
            reads: list[PendingRead] = []
            for request in requests:
                if type(request) is Read:
                    token = self._regions.new_token()
                    read = PendingRead(token, request.segments, request.remote[2], 0, request.context)
                    reads.append(read)
                    reported.append(read)
                elif request.signalled:
                    reported.append(request)
            chain = self._sender.chain(requests, reads)
            if chain is not None:
                self._send_chain(requests, chain, reported)
                return
        works: list[Work] = []
        for request in requests:
            works.append(self._work(request))
        if self.life >= Life.DEAD:
            self._operations.completions.extend(
                Completion(work.operation, Status.FLUSHED, work.context) for work in works
            )
            self._schedule_delivery()
            return
        self._queue.extend(works)
        if self.life is Life.CLOSING:
            for work in works:
                work.dropped = True  # flushed after the work that is still sent
            return
        self._sender.work.extend(works)
        if self.life is Life.OPEN and not self._writing:
            self._pump_out()
            if not self._delivering:
                self._schedule_delivery()

    def _send_chain(
        self,
        requests: Sequence[WorkRequest],
        chain: tuple[list[Buffer], int],
        reported: Sequence[WorkRequest | PendingRead],
    ) -> None:
        """Send what the sender has cut. What is sent at once needs no object of its own, unless it is ``reported``."""
        buffers, size = chain
        sock, error = self._sock, None
        try:
            count = sock.send(buffers[0], _EOR) if len(buffers) == 1 else sock.sendmsg(buffers, (), _EOR)
        except OSError as failure:
            count, error = 0, failure
        if count == size:
            for item in reported:
                if type(item) is PendingRead:
                    self._queue.append(item)
                else:
                    self._report_done(item)
        else:
            reads = (item for item in reported if type(item) is PendingRead)
            works: list[Posted] = []
            for request in requests:
                works.append(next(reads) if type(request) is Read else self._work(request))
            self._sender.chain_waits(buffers, size, works, count)
            self._queue.extend(works)
            if error is not None and not isinstance(error, BlockingIOError):
                self._socket_failed(error)
                return
            self._watch_writable(True)
        if not self._delivering:
            self._schedule_delivery()

    def _report_done(self, request: WorkRequest | PendingRead) -> None:
        """Have a request reported that is done, after those that were posted before it."""
        if self._queue:
            self._queue.append(Work(request.operation, (), 0, request.context, True, done=True))
        else:
            completion = new_record(Completion, (request.operation, _OK, request.context, 0, None))
            self._operations.completions.append(completion)

    def disconnect(self) -> None:
        """See ``base.Endpoint.disconnect``. The connection ends after ``DRAIN_TIMEOUT`` at the latest."""
        if self.life >= Life.CLOSING:
            return
        if self.life is Life.OPENING or not self._sender.open:
            self._die(CloseReason(CloseCause.LOCAL), graceful=True)
            return
        self.life = change(self.life, Life.CLOSING)
        self._drain_timer = self._loop.call_later(DRAIN_TIMEOUT, self._drain_expired)
        self._finish_if_drained()

    def abort(self, reason: CloseReason | None = None) -> None:
        self._die(reason or CloseReason(CloseCause.LOCAL, "aborted"))

    # -- work requests ------------------------------------------------------------------------------------------

    def _work(self, request: WorkRequest) -> Work:
        """Check a request and return its internal form. Raise ``ProviderError`` if it is invalid. Nothing is
        changed."""
        segments = list(map(_VIEW, request.segments))
        total = sum(map(len, segments))
        if total != sum(map(_SIZE_OF, segments)) or not all(map(_CONTIGUOUS, segments)):
            segments = list(map(as_bytes_view, segments))
            total = sum(map(len, segments))
        capabilities = self.capabilities
        if isinstance(request, Send):
            if total > capabilities.max_message or len(segments) > capabilities.max_send_sge:
                raise ProviderError("Send exceeds the provider's limits")
            return Work(_SEND, segments, total, request.context, request.signalled, 0, 0, request.invalidate)
        token, address, length = request.remote
        if total != length or total > capabilities.max_transfer:
            raise ProviderError(f"{total} local and {length} remote bytes")
        if isinstance(request, Write):
            if len(segments) > capabilities.max_send_sge:
                raise ProviderError("Write exceeds the provider's limits")
            return Work(_WRITE, segments, total, request.context, request.signalled, token, address)
        return self._read_work(request, segments, total)

    def _read_work(self, request: Read, segments: list[memoryview], total: int) -> Work:
        if request.atomic:
            raise ProviderError("iWARP has no atomic operations (RFC 5040; those of RFC 7306 are not spoken here)")
        if len(segments) > self.capabilities.max_read_sge or not self.capabilities.max_outstanding_reads:
            raise ProviderError("Read exceeds the provider's limits")
        for index, segment in enumerate(segments):
            if segment.readonly:
                raise ProviderError("Read into read-only memory")
            if segment.format != "B" or segment.ndim != 1:
                segments[index] = as_bytes_view(segment)
        pending = PendingRead(self._regions.new_token(), segments, total)
        token, address, _ = request.remote
        work = Work(_READ, segments, total, request.context, True, token, address, None, pending)
        pending.owner = work
        return work

    def _read_done(self, read: PendingRead) -> None:
        if self._sender.work:
            self._send_wanted = True

    def _schedule_delivery(self) -> None:
        """Have finished work reported: after the present delivery if there is one, else in a turn of its own."""
        if self._delivering or self._delivery_scheduled:
            return
        queue = self._queue
        while queue and queue[0].done and not queue[0].signalled:
            queue.popleft()
        if self._operations.completions or (queue and queue[0].done):
            self._delivery_scheduled = True
            self._loop.call_soon(self._deliver_scheduled)

    def _deliver_scheduled(self) -> None:
        self._delivery_scheduled = False
        self._deliver()

    def _deliver(self) -> None:
        """Report finished work to the owner, in posting order."""
        queue, operations = self._queue, self._operations
        turns = _TURNS
        self._delivering = True
        try:
            while turns:
                completions = operations.completions
                while queue and queue[0].done:
                    work = queue.popleft()
                    if work.signalled:
                        completions.append(new_record(Completion, (work.operation, _OK, work.context, 0, None)))
                if not completions:
                    break
                operations.completions = []
                self.on_completions(completions)
                turns -= 1
        finally:
            self._delivering = False
            if operations.completions or (queue and queue[0].done):
                self._schedule_delivery()
        if self.life is _CLOSING:
            self._finish_if_drained()

    # -- socket events ------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        operations, receiver, sender, sock = self._operations, self._receiver, self._sender, self._sock
        sent = sender.fpdus
        enough = operations.fpdus + _FPDUS_PER_EVENT
        left = _BYTES_PER_EVENT
        whole = True
        self._receiving = True
        try:
            for _ in range(_TURNS):
                ring = receiver.begin()
                if ring is None and receiver.one_by_one:
                    count, blocked = receiver.pull(sock.fileno(), left)
                    left -= count
                    if self._deferred is not None:
                        raise self._deferred
                    if blocked or left <= 0:
                        whole = False
                        break
                try:
                    if ring is not None:
                        count = sock.recv_into(ring)
                    else:
                        buffers = receiver.buffers()
                        count = sock.recv_into(buffers[0]) if len(buffers) == 1 else sock.recvmsg_into(buffers)[0]
                except BlockingIOError:
                    whole = receiver.received(0)
                    break
                if not count:
                    detail = "" if receiver.received(0) else "in the middle of an FPDU"
                    self._die(CloseReason(CloseCause.PEER, detail))
                    return
                whole = receiver.received(count)
                if self._deferred is not None:
                    raise self._deferred
                if whole and count < receiver.room:
                    break
                left -= count
                if left <= 0 or operations.fpdus > enough or (count < receiver.room and not receiver.midway):
                    break
        except TerminateError as error:
            self._die(CloseReason(error.fault.cause, str(error)), graceful=True, terminate=error)
            return
        except PeerTerminatedError as error:
            self._die(CloseReason(CloseCause.PEER, str(error)), graceful=True)
            return
        except OSError as error:
            self._socket_failed(error)
            return
        except Exception:
            # A defect of ours must not leave a half-parsed stream in use.
            _log.exception("%s: connection dropped", self.peer_address)
            self._die(CloseReason(CloseCause.LOCAL, "internal error"))
            return
        finally:
            self._receiving = False
        if not sender.open and operations.fpdus:
            sender.open = self._send_wanted = True
        if self._send_wanted and not self._writing:
            self._send_wanted = False
            self._pump_out()
        self._deliver()
        if (not whole or sender.fpdus == sent) and self.life < _DEAD:
            # Nothing was sent that would have met an error behind what was received, or its end is awaited.
            try:
                raise_error(sock)
            except OSError as error:
                self._socket_failed(error)

    def _writable(self) -> None:
        self._pump_out()
        self._deliver()

    def _pump_out(self) -> None:
        """Send until nothing is left to send, the socket is full, or the other connections must get their turn."""
        sender, sock = self._sender, self._sock
        try:
            for _ in range(_TURNS):
                buffers = sender.buffers()
                if not buffers:
                    if self._writing:
                        self._watch_writable(False)
                    if sender.cold is not None:
                        self._fetch(sender.cold)
                    return
                count = sock.send(buffers[0], _EOR) if len(buffers) == 1 else sock.sendmsg(buffers, (), _EOR)
                if not sender.sent(count):
                    break
        except BlockingIOError:
            pass  # the rest follows when the socket has room again
        except OSError as error:
            self._socket_failed(error)
            return
        except AccessRefused as error:
            # A file no longer has what a Read Response was to send.
            fault = TerminateError(Fault.BOUNDS, f"RDMA Read: {error}")
            self._die(CloseReason(fault.fault.cause, str(fault)), graceful=True, terminate=fault)
            return
        self._watch_writable(True)

    def _fetch(self, cold: NotCached) -> None:
        """Have a file's data read from its disk, and go on then. Raise ``AccessRefused`` if it is lent no longer."""
        if self._fetching:
            return

        def done() -> None:
            self._fetching = False
            self._sender.cold = None
            if self.life < Life.DEAD and not self._writing:
                self._pump_out()
                self._deliver()

        cold.fetch(self._loop, done)
        self._fetching = True

    def _watch_writable(self, wanted: bool) -> None:
        if wanted is self._writing:
            return
        self._writing = wanted
        if wanted:
            self._loop.add_writer(self._sock, self._writable)
        else:
            self._loop.remove_writer(self._sock)

    # -- callbacks of the receiver ------------------------------------------------------------------------------

    def _read_requested(self, request: ReadRequest, region: Region | None, memory: memoryview) -> None:
        if self._sender.responses >= self._ird:
            raise TerminateError(Fault.NO_BUFFER, "more RDMA Reads in flight than agreed")
        self._send_wanted = True
        position = 0 if region is None or region.file is None else request.source_offset - region.address
        response = Response(request.sink_stag, request.sink_offset, region, memory, position, request.length)
        self._sender.respond(response)

    def _peer_terminated(self, payload: memoryview) -> None:
        self._terminates_received += 1
        raise PeerTerminatedError(describe_terminate(payload))

    def _invalidated(self, region: Region) -> None:
        """End the connection if a transfer still uses the memory of a token that became invalid."""
        if not self._receiver.uses(region) and not self._sender.uses(region):
            return
        if self._receiving:
            self._deferred = TerminateError(Fault.INVALID_STAG, "token invalidated during a transfer")
        else:
            self._die(CloseReason(CloseCause.REMOTE_ACCESS, "token invalidated during a transfer"))

    # -- the end ------------------------------------------------------------------------------------------------

    def _socket_failed(self, error: OSError) -> None:
        self._die(CloseReason(_CAUSES.get(error.errno or 0, CloseCause.DEVICE), str(error)))

    def _drain_expired(self) -> None:
        self._die(CloseReason(CloseCause.LOCAL, "posted work did not go out in time"))

    def _finish_if_drained(self) -> None:
        if all(work.done or work.dropped for work in self._queue) and self._sender.idle:
            self._die(CloseReason(CloseCause.LOCAL), graceful=True)

    def _die(self, reason: CloseReason, graceful: bool = False, terminate: TerminateError | None = None) -> None:
        """End the connection: nothing is placed any longer, all work completes, and the owner is notified
        afterwards."""
        if self.life >= Life.DEAD:
            return
        self.life = change(self.life, Life.DEAD)
        self.close_reason = reason
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        farewell = b""
        if terminate is not None:
            # An acceptor that has sent nothing yet may send this: the offending FPDU was the first one.
            self._terminates_sent += 1
            farewell = self._sender.rest_of_fpdu() + self._sender.terminate_fpdu(terminate.message)
            _log.info("%s: %s", self.peer_address, reason)
        self._flush()
        self._regions.invalidate_all()
        self._receiver.close()
        self._sender.close()
        if graceful:
            Linger(self._loop, self._sock, farewell)
        else:
            _reset(self._sock)
        self._loop.call_soon(self._closed)

    def _flush(self) -> None:
        completions = self._operations.completions
        for work in self._queue:
            if work.signalled or not work.done:
                status = Status.OK if work.done else Status.FLUSHED
                completions.append(Completion(work.operation, status, work.context))
        self._queue.clear()
        receives = self._operations.receives
        completions.extend(Completion(Operation.RECEIVE, Status.FLUSHED, context) for _, context in receives)
        receives.clear()

    def _closed(self) -> None:
        try:
            self._deliver()
        finally:
            self.life = change(self.life, Life.ENDED)
            reason = self.close_reason
            on_closed, self.on_closed = self.on_closed, ignore
            if reason is not None:
                on_closed(reason)


def _reset(sock: socket.socket) -> None:
    """Close with a reset, which discards unsent data."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        _log.debug("no linger option on a dead socket")
    sock.close()
