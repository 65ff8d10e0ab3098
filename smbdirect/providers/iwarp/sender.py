"""The outbound half of an iWARP stream: work requests in, scatter-gather lists of FPDUs out. No I/O.

Only as many FPDUs are cut as the next system calls can send, so a long Read Response holds no memory while it waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from crc32c import crc32c

from smbdirect.codec import Buffer
from smbdirect.providers.base import Operation
from smbdirect.providers.iwarp import ddp, rdmap
from smbdirect.providers.iwarp.ddp import MSN_MASK, TAGGED_HEADER, UNTAGGED_HEADER, UntaggedHeader
from smbdirect.providers.iwarp.mpa import ZERO_TRAILERS, Rtr, trailer
from smbdirect.providers.iwarp.placement import PendingRead
from smbdirect.providers.iwarp.rdmap import READ_REQUEST, Opcode, ReadRequest
from smbdirect.providers.memory import Region

IOV_MAX = 1024
"""Most buffers per ``sendmsg`` (Linux UIO_MAXIOV)."""
_BATCH_BUFFERS = IOV_MAX - 8
_BATCH_BYTES = 1 << 20


@dataclass(slots=True, eq=False)
class Work:
    """One posted work request in the send queue."""

    operation: Operation
    segments: Sequence[memoryview]
    total: int
    """Bytes in ``segments``."""
    context: object
    signalled: bool
    stag: int = 0
    remote_offset: int = 0
    invalidate: int | None = None
    read: PendingRead | None = None
    done: bool = False
    """Whether its last byte was taken by the socket or, for a Read, its data has arrived."""
    dropped: bool = False
    """Whether it was posted too late to be sent."""


class Response:
    """One Read Response, the answer to a Read Request of the peer."""

    __slots__ = ("memory", "region", "stag", "start", "total")

    def __init__(self, stag: int, start: int, region: Region | None, memory: memoryview) -> None:
        self.stag = stag
        self.start = start
        self.region = region
        self.memory = memory
        self.total = len(memory)


class _Outgoing:
    """One message of which some FPDUs are still to be cut."""

    __slots__ = (
        "control",
        "index",
        "invalidate",
        "msn",
        "offset",
        "owner",
        "queue",
        "request",
        "segments",
        "start",
        "stag",
        "tagged_offset",
        "total",
    )

    def __init__(
        self,
        opcode: Opcode,
        segments: Sequence[memoryview],
        total: int,
        owner: Work | Response | None,
        *,
        stag: int = 0,
        tagged_offset: int = 0,
        queue: int | None = None,
        msn: int = 0,
        invalidate: int = 0,
        request: bytes = b"",
    ) -> None:
        """``total`` counts the bytes in ``segments`` and in ``request``, the RDMAP header of a Read Request. ``owner``
        is done when the last byte was taken; None means that another event completes it. ``queue`` is that of an
        untagged message; None means a tagged message to ``stag`` from ``tagged_offset`` on."""
        self.control = rdmap.CONTROL | opcode
        self.segments = segments
        self.total = total
        self.owner = owner
        self.stag = stag
        self.tagged_offset = tagged_offset
        self.queue = queue
        self.msn = msn
        self.invalidate = invalidate
        self.request = request
        self.offset = 0
        """Bytes that were cut off. Invariant: ``segments[index][start:]`` begins with the next byte."""
        self.index = 0
        self.start = 0

    def take(self, size: int) -> Sequence[memoryview]:
        """Return the next ``size`` bytes. The caller advances ``offset``."""
        parts: list[memoryview] = []
        while size:
            segment = self.segments[self.index]
            part = segment[self.start : self.start + size]
            if len(part):
                parts.append(part)
                size -= len(part)
                self.start += len(part)
            if size:
                self.index += 1
                self.start = 0
        return parts


class Sender:
    """The outbound half of one stream: cuts messages into FPDUs of at most ``max_ulpdu`` bytes.

    A ``Work`` (except a Read) is ``done`` when its last byte was taken by the socket. At most ``max_reads`` Reads are
    in flight; one more Read delays the requests posted after it, as in a hardware send queue.
    """

    def __init__(self, max_ulpdu: int, crc: bool, max_reads: int, reads: deque[PendingRead]) -> None:
        """``reads`` contains the Reads in flight; the receiver removes them."""
        self.max_ulpdu = max_ulpdu
        self.segment = 0
        """The connection's maximum segment size in bytes; 0 if unknown. See ``_needs_segment``."""
        self.crc = crc
        self.max_reads = max_reads
        self.open = False
        """Whether anything may be sent: an acceptor must not send before the initiator."""
        self.fpdus = 0
        self.bytes_send = 0
        self.bytes_write = 0
        self.bytes_read_response = 0
        self._reads = reads
        self._work: deque[Work] = deque()
        self._responses: deque[Response] = deque()
        self._current: _Outgoing | None = None
        """Invariant: its FPDUs so far are in ``_iov`` or ``_held``, or were sent; no FPDU of another message comes
        between."""
        self._prefer_work = True
        self._iov: deque[Buffer] = deque()
        """The batch, which ``buffers`` returns. Invariant: whole FPDUs, except that the first may be partly sent; the
        next batch begins when all of it was taken."""
        self._held: deque[Buffer] = deque()
        """The first FPDU of the next batch. Invariant: while there is one, nothing is added to ``_iov``."""
        self._batch_bytes = 0
        """Bytes of the batch, whether sent or not."""
        self._produced = 0
        """Stream position after the last FPDU that was cut."""
        self._sent = 0
        """Stream position after the last byte that was taken. Invariant: ``_iov`` and ``_held`` hold the bytes from
        here to ``_produced``."""
        self._ends: deque[tuple[int, Work | Response]] = deque()
        """(stream position of a message's end, the message), for ends after ``_sent``."""
        self._fpdu_ends: deque[int] = deque()
        self._boundary = 0
        """Stream position of the end of the last FPDU that was sent completely."""
        self._send_msn = ddp.FIRST_MSN
        self._read_msn = ddp.FIRST_MSN

    @property
    def idle(self) -> bool:
        """Whether nothing is waiting to be sent."""
        return not self._iov and not self._held and self._current is None and not self._work and not self._responses

    @property
    def responses(self) -> int:
        """How many Read Responses are not completely sent."""
        return (
            len(self._responses)
            + (self._current is not None and type(self._current.owner) is Response)
            + sum(type(owner) is Response for _, owner in self._ends)
        )

    def post(self, *works: Work) -> None:
        """Queue ``works``, in their order, after the work posted before."""
        self._work.extend(works)

    def ready_to_receive(self, rtr: Rtr) -> None:
        """Queue the initiator's first FPDU of a peer-to-peer set-up before everything else. [RFC 6581 section 4]"""
        if rtr is Rtr.SEND:
            self._emit(bytes(2), (), 0)
        elif rtr is Rtr.WRITE:
            self._work.appendleft(Work(Operation.WRITE, (), 0, None, False, stag=1))
        else:
            self._work.appendleft(Work(Operation.READ, (), 0, None, False, stag=1, read=PendingRead(1, (), 0)))

    def respond(self, response: Response) -> None:
        """Queue a Read Response."""
        self._responses.append(response)

    def uses(self, region: Region) -> bool:
        """Return whether a Read Response from ``region`` is not completely sent."""
        current = () if self._current is None else (self._current.owner,)
        owners = (*self._responses, *current, *(owner for _, owner in self._ends))
        return any(type(owner) is Response and owner.region is region for owner in owners)

    def buffers(self) -> Sequence[Buffer]:
        """Return what to send next: at most ``IOV_MAX`` buffers, none if nothing can be sent now. After all of a batch
        was taken, the next one begins a new TCP segment (``MSG_EOR``)."""
        if not self._iov and self.open and (self._held or self._current or self._work or self._responses):
            self._fill()
        return self._iov if len(self._iov) <= IOV_MAX else list(islice(self._iov, IOV_MAX))

    def sent(self, count: int) -> bool:
        """Note that ``count`` bytes of ``buffers()`` were taken. Return whether that was all of them."""
        iov = self._iov
        self._sent += count
        while iov:
            first = iov[0]
            size = len(first)
            if size > count:
                if count:
                    iov[0] = memoryview(first)[count:]
                break
            count -= size
            iov.popleft()
        ends = self._ends
        while ends and ends[0][0] <= self._sent:
            owner = ends.popleft()[1]
            if type(owner) is Work:
                owner.done = True
        fpdu_ends = self._fpdu_ends
        while fpdu_ends and fpdu_ends[0] <= self._sent:
            self._boundary = fpdu_ends.popleft()
        return not iov

    def rest_of_fpdu(self) -> bytes:
        """Return a copy of the unsent rest of a partly sent FPDU: a Terminate message can only follow it."""
        if self._sent == self._boundary:
            return b""
        left = self._fpdu_ends[0] - self._sent
        rest = bytearray()
        for buffer in self._iov:
            rest += memoryview(buffer)[: left - len(rest)]
            if len(rest) == left:
                break
        return bytes(rest)

    def terminate_fpdu(self, payload: bytes) -> bytes:
        """Return a whole Terminate FPDU: queue 2, first message. [RFC 5040 section 4.8]"""
        length = ddp.UNTAGGED_HEADER_SIZE + len(payload)
        header = UNTAGGED_HEADER.pack(
            UntaggedHeader(
                length,
                ddp.LAST | ddp.VERSION,
                rdmap.CONTROL | Opcode.TERMINATE,
                0,
                ddp.TERMINATE_QUEUE,
                ddp.FIRST_MSN,
                0,
            )
        )
        data = header + payload
        return data + trailer(length, crc32c(data) if self.crc else None)

    def close(self) -> None:
        """Drop everything that is queued, and with it every reference to memory of the owner."""
        self._current = None
        for queue in (self._iov, self._held, self._ends, self._fpdu_ends, self._work, self._responses):
            queue.clear()

    # -- segmentation -------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Cut FPDUs until the batch is full or nothing more may be sent."""
        self._iov, self._held = self._held, self._iov
        iov, held = self._iov, self._held
        self._batch_bytes = sum(map(len, iov))
        while len(iov) < _BATCH_BUFFERS and self._batch_bytes < _BATCH_BYTES and not held:
            message = self._current
            if message is None:
                if not self._work and not self._responses:
                    return
                message = self._current = self._next_message()
                if message is None:
                    return
            self._cut_fpdu(message)

    def _next_message(self) -> _Outgoing | None:
        """Begin the next message and return it, or None if nothing may be sent. Messages of work requests and Read
        Responses alternate."""
        stalled = not self._work or (self._work[0].read is not None and len(self._reads) >= self.max_reads)
        if self._responses and (stalled or not self._prefer_work):
            self._prefer_work = True
            response = self._responses.popleft()
            total = response.total
            self.bytes_read_response += total
            return _Outgoing(
                Opcode.READ_RESPONSE,
                (response.memory,),
                total,
                response,
                stag=response.stag,
                tagged_offset=response.start,
            )
        if stalled:
            return None
        self._prefer_work = False
        work = self._work.popleft()
        total = work.total
        if work.operation is Operation.WRITE:
            self.bytes_write += total
            return _Outgoing(
                Opcode.RDMA_WRITE, work.segments, total, work, stag=work.stag, tagged_offset=work.remote_offset
            )
        if work.read is not None:
            return self._read_request(work, work.read)
        self.bytes_send += total
        msn, self._send_msn = self._send_msn, self._send_msn + 1 & MSN_MASK
        opcode, token = Opcode.SEND, work.invalidate
        if token is not None:
            opcode = Opcode.SEND_INVALIDATE
        return _Outgoing(opcode, work.segments, total, work, queue=ddp.SEND_QUEUE, msn=msn, invalidate=token or 0)

    def _read_request(self, work: Work, read: PendingRead) -> _Outgoing:
        self._reads.append(read)
        msn, self._read_msn = self._read_msn, self._read_msn + 1 & MSN_MASK
        request = READ_REQUEST.pack(ReadRequest(read.stag, read.base, read.total, work.stag, work.remote_offset))
        return _Outgoing(Opcode.READ_REQUEST, (), len(request), None, queue=ddp.READ_QUEUE, msn=msn, request=request)

    def _cut_fpdu(self, message: _Outgoing) -> None:
        """Queue the next FPDU of ``message``, which is no longer the current message after its last FPDU."""
        queue, offset, total = message.queue, message.offset, message.total
        headers = ddp.TAGGED_HEADER_SIZE if queue is None else ddp.UNTAGGED_HEADER_SIZE
        size = min(self.max_ulpdu - headers, total - offset)
        payload = message.segments if size == total else message.take(size)
        message.offset = offset + size
        length = headers + size
        flags = ddp.VERSION
        if message.offset == total:
            flags |= ddp.LAST
            self._current = None
            if message.owner is not None:
                self._ends.append((self._produced + (length + 9 & ~3), message.owner))
        if queue is None:
            header = TAGGED_HEADER.pack_fields(
                length, flags | ddp.TAGGED, message.control, message.stag, message.tagged_offset + offset
            )
        else:
            header = UNTAGGED_HEADER.pack_fields(
                length, flags, message.control, message.invalidate, queue, message.msn, offset
            )
            header += message.request
        self._emit(header, payload, length)

    def _needs_segment(self, size: int, header: int) -> bool:
        """Return whether an untagged FPDU must wait for the next batch, which begins a new TCP segment.

        ``size`` is the number of its bytes, of which the first ``header`` are headers. It must wait if the end of a
        segment could split its headers at a place where a receiver is known to fail. Any segmentation is legal (RFC
        5044 section 4.3), but Linux siw (6.12) copies too much if an untagged header continues in another segment after
        its first 16 bytes: a Send then loses bytes of its payload, and a Read Request overwrites memory of the peer's
        kernel. The data of one call is cut at multiples of the segment size. After the first of these cuts it may be
        cut anywhere, where the peer's window ends.
        """
        if not self.segment or not self._iov:
            return False
        start = self._batch_bytes
        if header > UNTAGGED_HEADER.size:
            return start + size > self.segment
        return TAGGED_HEADER.size < self.segment - start % self.segment < header

    def _emit(self, header: bytes, payload: Sequence[Buffer], length: int) -> None:
        """Queue an FPDU. ``header`` contains all of its headers; ``length`` is its ULPDU_Length."""
        size = length + 9 & ~3
        iov = self._iov
        if len(header) > TAGGED_HEADER.size and self._needs_segment(size, len(header)):
            iov = self._held
        iov.append(header)
        iov.extend(payload)
        if self.crc:
            crc = crc32c(header)
            for part in payload:
                crc = crc32c(part, crc)
            iov.append(trailer(length, crc))
        else:
            iov.append(ZERO_TRAILERS[-(length + 2) & 3])
        self._produced += size
        self._batch_bytes += size
        self._fpdu_ends.append(self._produced)
        self.fpdus += 1
