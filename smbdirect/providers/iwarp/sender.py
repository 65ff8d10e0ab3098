"""Outbound half of an iWARP stream: work requests in, scatter-gather lists of FPDUs out. No I/O.

Messages are cut into FPDUs only as far as the next system calls can take them, so a long Read Response holds no
memory while it waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from crc32c import crc32c

from smbdirect.codec import Buffer
from smbdirect.providers.base import Operation
from smbdirect.providers.iwarp import ddp, rdmap
from smbdirect.providers.iwarp.ddp import TAGGED_HEADER, UNTAGGED_HEADER, TaggedHeader, UntaggedHeader, next_msn
from smbdirect.providers.iwarp.mpa import Rtr, fpdu_size, trailer
from smbdirect.providers.iwarp.placement import PendingRead
from smbdirect.providers.iwarp.rdmap import READ_REQUEST, Opcode, ReadRequest
from smbdirect.providers.memory import Region

IOV_MAX = 1024
"""Buffers per ``sendmsg`` (Linux UIO_MAXIOV)."""
_BATCH_BUFFERS = IOV_MAX - 8
_BATCH_BYTES = 1 << 20


class Work:
    """One posted work request in the send queue."""

    __slots__ = (
        "context",
        "done",
        "dropped",
        "invalidate",
        "operation",
        "read",
        "remote_offset",
        "segments",
        "signalled",
        "stag",
        "total",
    )

    def __init__(
        self,
        operation: Operation,
        segments: Sequence[memoryview],
        total: int,
        context: object,
        signalled: bool,
        *,
        stag: int = 0,
        remote_offset: int = 0,
        invalidate: int | None = None,
        read: PendingRead | None = None,
    ) -> None:
        self.operation = operation
        self.segments = segments
        self.total = total
        self.context = context
        self.signalled = signalled
        self.stag = stag
        self.remote_offset = remote_offset
        self.invalidate = invalidate
        self.read = read
        self.done = False
        self.dropped = False


class Response:
    """The answer to a Read Request of the peer."""

    __slots__ = ("memory", "region", "stag", "start", "total")

    def __init__(self, stag: int, start: int, region: Region | None, memory: memoryview) -> None:
        self.stag = stag
        self.start = start
        self.region = region
        self.memory = memory
        self.total = len(memory)


class Sender:
    """Segments messages into FPDUs of at most ``max_ulpdu`` bytes.

    ``on_sent`` is told of each ``Work`` (but Reads) whose last byte was taken. ``max_reads`` Reads are in flight at
    most; a Read beyond that holds up the requests posted after it, as in a hardware send queue.
    """

    def __init__(
        self, max_ulpdu: int, crc: bool, max_reads: int, reads: deque[PendingRead], on_sent: Callable[[Work], None]
    ) -> None:
        self.max_ulpdu = max_ulpdu
        self.segment = 0
        """The connection's maximum segment size in bytes; 0 if unknown. See ``_needs_segment``."""
        self.crc = crc
        self.max_reads = max_reads
        self.open = False
        """False holds everything back: an acceptor may not send before the initiator has."""
        self.fpdus = 0
        self.bytes_send = 0
        self.bytes_write = 0
        self.bytes_read_response = 0
        self._reads = reads
        self._on_sent = on_sent
        self._work: deque[Work] = deque()
        self._responses: deque[Response] = deque()
        self._current: Iterator[None] | None = None
        self._current_owner: Work | Response | None = None
        self._prefer_work = True
        self._iov: deque[Buffer] = deque()
        self._held: deque[Buffer] = deque()  # the FPDU that the next batch begins with
        self._batch_bytes = 0
        self._produced = 0
        self._sent = 0
        self._ends: deque[tuple[int, Work | Response]] = deque()
        self._fpdu_ends: deque[int] = deque()
        self._boundary = 0  # end of the last FPDU that went out completely
        self._send_msn = ddp.FIRST_MSN
        self._read_msn = ddp.FIRST_MSN

    @property
    def idle(self) -> bool:
        """Nothing is waiting to be sent."""
        return not self._iov and not self._held and self._current is None and not self._work and not self._responses

    @property
    def partial(self) -> bool:
        """The last ``sendmsg`` did not take all of ``buffers()``."""
        return bool(self._iov)

    @property
    def responses(self) -> int:
        """Read Responses not completely sent."""
        return (
            len(self._responses)
            + (type(self._current_owner) is Response)
            + sum(type(owner) is Response for _, owner in self._ends)
        )

    def post(self, work: Work) -> None:
        self._work.append(work)

    def ready_to_receive(self, rtr: Rtr) -> None:
        """Queue the initiator's first FPDU of a peer-to-peer set-up (RFC 6581 section 4), ahead of everything."""
        if rtr is Rtr.SEND:
            self._emit(bytes(2), (), 0)
        elif rtr is Rtr.WRITE:
            self._work.appendleft(Work(Operation.WRITE, (), 0, None, False, stag=1))
        else:
            self._work.appendleft(Work(Operation.READ, (), 0, None, False, stag=1, read=PendingRead(1, (), 0)))

    def respond(self, response: Response) -> None:
        self._responses.append(response)

    def uses(self, region: Region) -> bool:
        """True while a Read Response out of ``region`` is not completely sent."""
        owners = (*self._responses, self._current_owner, *(owner for _, owner in self._ends))
        return any(type(owner) is Response and owner.region is region for owner in owners)

    def buffers(self) -> Sequence[Buffer]:
        """What to send next: at most ``IOV_MAX`` buffers, empty when there is nothing (or nothing may go yet). Once all
        of it was taken, what comes next begins a segment of its own (``MSG_EOR``)."""
        if not self._iov and self.open:
            self._fill()
        return self._iov if len(self._iov) <= IOV_MAX else list(islice(self._iov, IOV_MAX))

    def sent(self, count: int) -> None:
        """``count`` bytes of ``buffers()`` were taken."""
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
                self._on_sent(owner)
        fpdu_ends = self._fpdu_ends
        while fpdu_ends and fpdu_ends[0] <= self._sent:
            self._boundary = fpdu_ends.popleft()

    def rest_of_fpdu(self) -> bytes:
        """The unsent rest of an FPDU of which a part is on the wire, copied: a Terminate message can only follow it."""
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
        """A whole Terminate FPDU (RFC 5040 section 4.8: queue 2, first message)."""
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
        """Drop every reference to memory that is not ours."""
        self._current = self._current_owner = None
        for queue in (self._iov, self._held, self._ends, self._fpdu_ends, self._work, self._responses):
            queue.clear()

    # -- segmentation -------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Cut FPDUs until the batch is full or nothing may be sent."""
        self._iov, self._held = self._held, self._iov
        self._batch_bytes = sum(map(len, self._iov))
        while len(self._iov) < _BATCH_BUFFERS and self._batch_bytes < _BATCH_BYTES and not self._held:
            if self._current is None:
                self._current = self._next_message()
                if self._current is None:
                    return
            if next(self._current, _EXHAUSTED) is _EXHAUSTED:
                self._current = self._current_owner = None

    def _next_message(self) -> Iterator[None] | None:
        """Work requests and Read Responses take turns, message by message."""
        stalled = not self._work or (self._work[0].read is not None and len(self._reads) >= self.max_reads)
        if self._responses and (stalled or not self._prefer_work):
            self._prefer_work = True
            response = self._current_owner = self._responses.popleft()
            return self._response(response)
        if stalled:
            return None
        self._prefer_work = False
        work = self._work.popleft()
        if work.operation is Operation.SEND:
            return self._send(work)
        if work.operation is Operation.WRITE:
            return self._write(work)
        return self._read(work)

    def _needs_segment(self, size: int, header: int) -> bool:
        """Whether an FPDU of ``size`` bytes, the first ``header`` of them headers, must wait for the next batch, which
        begins a TCP segment, because the end of a segment could part its headers where a receiver is known to fail.

        Any segmentation is legal (RFC 5044 section 4.3), but Linux siw (6.12) copies too much when an untagged header
        continues in another segment behind its first 16 bytes: a Send then loses bytes of its payload, and a Read
        Request overwrites memory of the peer's kernel. What goes out with one call is cut at multiples of the segment
        size; behind the first of these it may be cut anywhere, where the peer's window ends.
        """
        if header <= TAGGED_HEADER.size or not self.segment or not self._iov:
            return False
        start = self._batch_bytes
        if header > UNTAGGED_HEADER.size:
            return start + size > self.segment
        return TAGGED_HEADER.size < self.segment - start % self.segment < header

    def _emit(self, header: bytes, payload: Sequence[Buffer], length: int) -> None:
        """Queue an FPDU; ``header`` is all of its headers, ``length`` its ULPDU_Length."""
        size = fpdu_size(length)
        iov = self._held if self._needs_segment(size, len(header)) else self._iov
        iov.append(header)
        iov.extend(payload)
        crc = None
        if self.crc:
            crc = crc32c(header)
            for part in payload:
                crc = crc32c(part, crc)
        iov.append(trailer(length, crc))
        self._produced += size
        self._batch_bytes += size
        self._fpdu_ends.append(self._produced)
        self.fpdus += 1

    def _tagged(
        self, opcode: Opcode, stag: int, start: int, segments: Sequence[memoryview], owner: Work | Response
    ) -> Iterator[None]:
        room = self.max_ulpdu - ddp.TAGGED_HEADER_SIZE
        total = owner.total
        control = rdmap.CONTROL | opcode
        offset = 0
        for parts, size in _cut(segments, total, room):
            last = offset + size == total
            length = ddp.TAGGED_HEADER_SIZE + size
            flags = ddp.TAGGED | ddp.VERSION | (ddp.LAST if last else 0)
            if last:
                self._ends.append((self._produced + fpdu_size(length), owner))
                self._current_owner = None
            self._emit(TAGGED_HEADER.pack(TaggedHeader(length, flags, control, stag, start + offset)), parts, length)
            offset += size
            yield None

    def _write(self, work: Work) -> Iterator[None]:
        self.bytes_write += work.total
        return self._tagged(Opcode.RDMA_WRITE, work.stag, work.remote_offset, work.segments, work)

    def _response(self, response: Response) -> Iterator[None]:
        self.bytes_read_response += response.total
        return self._tagged(Opcode.READ_RESPONSE, response.stag, response.start, (response.memory,), response)

    def _send(self, work: Work) -> Iterator[None]:
        self.bytes_send += work.total
        msn, self._send_msn = self._send_msn, next_msn(self._send_msn)
        control = rdmap.CONTROL | (Opcode.SEND if work.invalidate is None else Opcode.SEND_INVALIDATE)
        offset = 0
        for parts, size in _cut(work.segments, work.total, self.max_ulpdu - ddp.UNTAGGED_HEADER_SIZE):
            last = offset + size == work.total
            length = ddp.UNTAGGED_HEADER_SIZE + size
            if last:
                self._ends.append((self._produced + fpdu_size(length), work))
            header = UntaggedHeader(
                length,
                ddp.VERSION | (ddp.LAST if last else 0),
                control,
                work.invalidate or 0,
                ddp.SEND_QUEUE,
                msn,
                offset,
            )
            self._emit(UNTAGGED_HEADER.pack(header), parts, length)
            offset += size
            yield None

    def _read(self, work: Work) -> Iterator[None]:
        read = work.read
        if read is not None:
            self._reads.append(read)
            msn, self._read_msn = self._read_msn, next_msn(self._read_msn)
            request = READ_REQUEST.pack(ReadRequest(read.stag, read.base, read.total, work.stag, work.remote_offset))
            length = ddp.UNTAGGED_HEADER_SIZE + len(request)
            control = rdmap.CONTROL | Opcode.READ_REQUEST
            header = UntaggedHeader(length, ddp.VERSION | ddp.LAST, control, 0, ddp.READ_QUEUE, msn, 0)
            self._emit(UNTAGGED_HEADER.pack(header) + request, (), length)
            yield None


def _cut(segments: Sequence[memoryview], total: int, room: int) -> Iterator[tuple[Sequence[memoryview], int]]:
    """The concatenated segments in pieces of ``room`` bytes; one empty piece if there are none."""
    if total <= room:
        yield segments, total
        return
    index = start = 0
    while total:
        size = min(room, total)
        segment = segments[index]
        if len(segment) - start >= size:
            parts = [segment[start : start + size]]
            start += size
        else:
            parts = []
            left = size
            while left:
                segment = segments[index]
                part = segment[start : start + left]
                if len(part):
                    parts.append(part)
                left -= len(part)
                start += len(part)
                if start == len(segment) and left:
                    index += 1
                    start = 0
        total -= size
        yield parts, size


_EXHAUSTED = object()
