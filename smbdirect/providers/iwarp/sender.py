"""The outbound half of an iWARP stream: work requests in, scatter-gather lists of FPDUs out. No I/O.

Only as many FPDUs are cut as the next system calls can send, so a long Read Response holds no memory while it waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from smbdirect.codec import Buffer
from smbdirect.providers.base import Operation, Read, Send, WorkRequest, Write
from smbdirect.providers.iwarp import ddp, rdmap
from smbdirect.providers.iwarp.ddp import MSN_MASK, TAGGED_HEADER, TAGGED_WORDS, UNTAGGED_HEADER
from smbdirect.providers.iwarp.frame_calls import (
    LAST_WRITE,
    READ_REQUEST_FPDU,
    READ_REQUEST_SIZE,
    SEND,
    SEND_INVALIDATE,
    read_request,
)
from smbdirect.providers.iwarp.frames import cut
from smbdirect.providers.iwarp.mpa import ZERO_TRAILERS, Rtr, trailer
from smbdirect.providers.iwarp.operations import PendingRead, Posted
from smbdirect.providers.iwarp.rdmap import Opcode
from smbdirect.providers.memory import FileRange, NotCached, Region

IOV_MAX = 1024
"""Most buffers per ``sendmsg`` (Linux UIO_MAXIOV)."""
_BATCH_BUFFERS = IOV_MAX - 8
_BATCH_BYTES = 1 << 20
_SMALL = 512
"""An FPDU of up to this many bytes is joined in one buffer: for the system call, that costs less than several."""
_JOINED = 8192
"""Up to this many bytes of payload are copied beside their headers: for the system call, that costs less than a buffer
of its own."""
_MIDDLE = ddp.TAGGED | ddp.VERSION
_LAST = ddp.LAST | ddp.VERSION
_MOST_CUT = 256
"""Buffers that may wait while a whole Read Response is added: the batch does not exceed ``IOV_MAX`` then."""


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

    __slots__ = ("memory", "position", "region", "remote", "segments", "stag", "start", "total")

    def __init__(
        self, stag: int, start: int, region: Region | None, memory: memoryview, position: int = 0, length: int = 0
    ) -> None:
        """``memory`` goes to ``start`` of the peer's ``stag``. If the region is one of a file, ``length`` bytes at
        ``position`` of it do, and ``memory`` is empty."""
        self.stag = stag
        self.start = start
        self.region = region
        self.memory = memory
        self.position = position
        self.total = len(memory) or length
        self.segments = (memory,)
        self.remote = stag, start, self.total


_KINDS = Send, Write, Read, Response


class _Outgoing:
    """One message of which some FPDUs are still to be cut. All bytes of it come from ``segments``."""

    __slots__ = (
        "control", "file", "index", "kind", "msn", "offset", "owner", "segments", "stag", "start", "tagged_offset",
        "total", "whole",
    )  # fmt: skip

    def __init__(
        self, control: int, owner: Work | Response, segments: Sequence[memoryview], stag: int, tagged_offset: int | None
    ) -> None:
        """``tagged_offset`` is where the message begins at the peer; None means an untagged message on the queue of
        Sends. ``owner`` is done when the last byte was taken."""
        self.control = control
        self.owner = owner
        self.segments = segments
        self.whole = segments[0] if len(segments) == 1 else None
        """All bytes of the message if they lie in one segment: then ``take`` is not needed."""
        self.file: FileRange | None = None
        """Where the bytes are if they must be read first: then ``segments`` are those of the next FPDUs."""
        self.stag = stag
        self.tagged_offset = tagged_offset
        self.kind = _MIDDLE << 40 | control << 32 | stag
        """``TaggedWords.kind`` of a tagged message's FPDUs that are not the last, without the length."""
        self.total = owner.total
        self.msn = 0
        self.offset = 0
        """Bytes that were cut off."""
        self.index = 0
        self.start = 0
        """What ``take`` returns next begins at ``segments[index][start:]``."""

    def load(self, position: int, size: int) -> None:
        """Read what ``take`` returns next: ``size`` bytes from ``position`` of the file. Raise as ``FileRange.read``;
        nothing was changed then."""
        if self.file is not None:
            self.segments = (self.file.read(position, size),)
            self.index = self.start = 0

    def take(self, size: int) -> Sequence[memoryview]:
        """Return the next ``size`` bytes from ``segments``."""
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


class _Run(NamedTuple):
    """Consecutive FPDUs of one size in the stream, by their positions in it."""

    start: int
    size: int
    """Bytes of each FPDU."""
    end: int


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
        self.cold: NotCached | None = None
        """What has to be read from a disk before more is cut. The owner does so, and sets it to None."""
        self.fpdus = 0
        self.bytes_send = 0
        self.bytes_write = 0
        self.bytes_read_response = 0
        self._reads = reads
        self.work: deque[Work] = deque()
        """Work that was posted and not begun. The owner appends to it."""
        self._responses: deque[Response] = deque()
        self._current: _Outgoing | None = None
        """Invariant: its FPDUs so far are in ``_iov`` or ``_held``, or were sent; no FPDU of another message comes
        between."""
        self._prefer_work = True
        self._iov: list[Buffer] = []
        """What is unsent of the batch, which ``buffers`` returns. Invariant: whole FPDUs, except that the first may be
        partly sent; the next batch begins when all of it was taken."""
        self._held: list[Buffer] = []
        """The first FPDU of the next batch. Invariant: while there is one, nothing is added to ``_iov``."""
        self._batch_start = 0
        """Stream position of the first byte of the batch."""
        self._batch_end = 0
        """Stream position after the last byte of the batch."""
        self._produced = 0
        """Stream position after the last FPDU that was cut."""
        self._sent = 0
        """Stream position after the last byte that was taken. Invariant: ``_iov`` and ``_held`` hold the bytes from
        here to ``_produced``."""
        self._ends: deque[tuple[int, Work | Response]] = deque()
        """(stream position of a message's end, the message), for ends after ``_sent``."""
        self._runs: deque[_Run] = deque()
        """Where the FPDUs lie that were cut and not completely sent."""
        self._send_msn = ddp.FIRST_MSN
        self._read_msn = ddp.FIRST_MSN

    @property
    def idle(self) -> bool:
        """Whether nothing is waiting to be sent."""
        return not self._iov and not self._held and self._current is None and not self.work and not self._responses

    @property
    def responses(self) -> int:
        """How many Read Responses are not completely sent."""
        return (
            len(self._responses)
            + (self._current is not None and type(self._current.owner) is Response)
            + sum(type(owner) is Response for _, owner in self._ends)
        )

    def ready_to_receive(self, rtr: Rtr) -> None:
        """Queue the initiator's first FPDU of a peer-to-peer set-up before everything else. [RFC 6581 section 4]"""
        if rtr is Rtr.SEND:
            self._emit(bytes(2), (), 0)
        elif rtr is Rtr.WRITE:
            self.work.appendleft(Work(Operation.WRITE, (), 0, None, False, stag=1))
        else:
            self.work.appendleft(Work(Operation.READ, (), 0, None, False, stag=1, read=PendingRead(1, (), 0)))

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
        wanted = self._held or self._current or self.work or self._responses
        if not self._iov and self.open and wanted and self.cold is None:
            self._fill()
        return self._iov if len(self._iov) <= IOV_MAX else self._iov[:IOV_MAX]

    def chain(self, requests: Sequence[WorkRequest], reads: Sequence[PendingRead]) -> tuple[list[Buffer], int] | None:
        """Cut ordinary requests while nothing else waits, all of them in one pass. Return what to send, and its bytes.
        Return None, with nothing changed, for any other requests: they have to be queued. ``reads``: of the Reads among
        them.

        The caller sends it at once. If less than all of it is taken, call ``chain_waits``."""
        if (
            self._sent != self._produced
            or self._current is not None
            or self.work
            or self._responses
            or not self.open
            or (reads and len(reads) > self.max_reads - len(self._reads))
        ):
            return None
        chain = cut(
            _KINDS, requests, reads, self.max_ulpdu, self.segment, self._send_msn, self._read_msn, _JOINED, self.crc
        )
        if chain is None:
            return None
        buffers, size, fpdus, sends, bytes_send, bytes_write = chain
        if reads:
            self._reads.extend(reads)
            self._read_msn = self._read_msn + len(reads) & MSN_MASK
        self.fpdus += fpdus
        if sends:
            self._send_msn = self._send_msn + sends & MSN_MASK
            self.bytes_send += bytes_send
        self.bytes_write += bytes_write
        return buffers, size

    def chain_waits(self, buffers: list[Buffer], size: int, works: Sequence[Posted], count: int) -> None:
        """Queue a chain of which only ``count`` bytes were taken. ``works`` are its requests."""
        self._iov = buffers
        self._batch_start = self._sent
        self._batch_end = self._produced = self._sent + size
        start, full, room = self._sent, self.max_ulpdu + 9 & ~3, self.max_ulpdu - ddp.TAGGED_HEADER_SIZE
        for work in works:
            if type(work) is not Work or work.read is not None:
                last = READ_REQUEST_FPDU
            elif work.operation is Operation.SEND:
                last = work.total + ddp.UNTAGGED_HEADER_SIZE + 9 & ~3
            else:
                more = max(work.total - 1, 0) // room
                if more:
                    self._runs.append(_Run(start, full, start + full * more))
                    start += full * more
                last = work.total - more * room + ddp.TAGGED_HEADER_SIZE + 9 & ~3
            self._runs.append(_Run(start, last, start + last))
            start += last
            if type(work) is Work and work.read is None:
                self._ends.append((start, work))
        self.sent(count)

    def sent(self, count: int) -> bool:
        """Note that ``count`` bytes of ``buffers()`` were taken. Return whether the batch was sent completely."""
        iov = self._iov
        self._sent += count
        if self._sent == self._batch_end:
            iov.clear()
        else:
            taken = 0
            while len(iov[taken]) <= count:
                count -= len(iov[taken])
                taken += 1
            iov[taken] = memoryview(iov[taken])[count:]
            del iov[:taken]
        ends = self._ends
        while ends and ends[0][0] <= self._sent:
            owner = ends.popleft()[1]
            if type(owner) is Work:
                owner.done = True
        runs = self._runs
        while runs and runs[0].end <= self._sent:
            runs.popleft()
        return not iov

    def rest_of_fpdu(self) -> bytes:
        """Return a copy of the unsent rest of a partly sent FPDU: a Terminate message can only follow it."""
        if not self._runs or self._sent <= self._runs[0].start:
            return b""
        run = self._runs[0]
        left = (run.start - self._sent) % run.size
        rest = bytearray()
        for buffer in self._iov:
            rest += memoryview(buffer)[: left - len(rest)]
            if len(rest) == left:
                break
        return bytes(rest)

    def terminate_fpdu(self, payload: bytes) -> bytes:
        """Return a whole Terminate FPDU: queue 2, first message. [RFC 5040 section 4.8]"""
        length = ddp.UNTAGGED_HEADER_SIZE + len(payload)
        header = UNTAGGED_HEADER.pack_fields(
            length, _LAST, rdmap.CONTROL | Opcode.TERMINATE, 0, ddp.TERMINATE_QUEUE, ddp.FIRST_MSN, 0
        )
        data = header + payload
        return data + trailer(length, crc32c(data) if self.crc else None)

    def close(self) -> None:
        """Drop everything that is queued, and with it every reference to memory of the owner."""
        self._current = None
        for queue in (self._iov, self._held, self._ends, self._runs, self.work, self._responses):
            queue.clear()

    # -- segmentation -------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Cut FPDUs until the batch is full or nothing more may be sent."""
        self._iov, self._held = self._held, self._iov
        iov = self._iov
        self._batch_start = self._sent
        self._batch_end = self._produced
        while len(iov) < _BATCH_BUFFERS and self._batch_end - self._batch_start < _BATCH_BYTES and not self._held:
            message = self._current
            if message is None:
                if not self._begin_message():
                    return
            elif message.tagged_offset is None:
                self._cut_send(message)
            elif message.file is None:
                self._cut_tagged(message, message.tagged_offset)
            else:
                try:
                    self._cut_tagged(message, message.tagged_offset)
                except NotCached as error:
                    self.cold = error
                    return

    def _begin_message(self) -> bool:
        """Cut the next message if it fits one FPDU, else make it the current one. Return False if nothing may
        be sent. Messages of work requests and Read Responses alternate."""
        stalled = not self.work or (self.work[0].read is not None and len(self._reads) >= self.max_reads)
        if self._responses and (stalled or not self._prefer_work):
            self._prefer_work = True
            response = self._responses.popleft()
            self.bytes_read_response += response.total
            if response.memory and self._cut_response(response):
                return True
            message = self._current = _Outgoing(
                rdmap.CONTROL | Opcode.READ_RESPONSE, response, (response.memory,), response.stag, response.start
            )
            if response.region is not None and response.region.file is not None:
                message.file, message.whole = response.region.file, None
            return True
        if stalled:
            return False
        self._prefer_work = False
        work = self.work.popleft()
        if work.operation is Operation.SEND:
            self._begin_send(work)
        elif work.read is not None:
            self._request_read(work, work.read)
        else:
            self.bytes_write += work.total
            if work.total <= self.max_ulpdu - ddp.TAGGED_HEADER_SIZE:
                self._emit_tagged(LAST_WRITE | work.stag, work.remote_offset, work.segments, work)
                return True
            self._current = _Outgoing(
                rdmap.CONTROL | Opcode.RDMA_WRITE, work, work.segments, work.stag, work.remote_offset
            )
        return True

    def _cut_response(self, response: Response) -> bool:
        """Cut a whole Read Response in one pass, unless it is too long. Return whether that was done."""
        if len(self._iov) > _MOST_CUT:
            return False
        chain = cut(_KINDS, (response,), (), self.max_ulpdu, 0, 0, 0, _JOINED, self.crc)
        if chain is None:
            return False
        buffers, size, fpdus, *_ = chain
        self._iov += buffers
        full = self.max_ulpdu + 9 & ~3
        if fpdus > 1:
            self._cut(full, fpdus - 1)
        self._cut(size - full * (fpdus - 1), 1)
        self._ends.append((self._produced, response))
        return True

    def _begin_send(self, work: Work) -> None:
        total, token = work.total, work.invalidate
        self.bytes_send += total
        control, stag = SEND, 0
        if token is not None:
            control, stag = SEND_INVALIDATE, token
        msn, self._send_msn = self._send_msn, self._send_msn + 1 & MSN_MASK
        length = ddp.UNTAGGED_HEADER_SIZE + total
        if length <= self.max_ulpdu:
            header = UNTAGGED_HEADER.pack_fields(length, _LAST, control, stag, ddp.SEND_QUEUE, msn, 0)
            self._emit(header, work.segments, length, work)
            return
        message = self._current = _Outgoing(control, work, work.segments, stag, None)
        message.msn = msn

    def _request_read(self, work: Work, read: PendingRead) -> None:
        """Cut a Read Request. The Read is done by the response. [RFC 5040 section 4.4]"""
        self._reads.append(read)
        header = read_request(read, work.stag, work.remote_offset, self._read_msn)
        self._read_msn = self._read_msn + 1 & MSN_MASK
        self._emit(header, (), READ_REQUEST_SIZE)

    def _cut_send(self, message: _Outgoing) -> None:
        """Cut the next FPDU of a Send that needs several."""
        offset = message.offset
        size = min(self.max_ulpdu - ddp.UNTAGGED_HEADER_SIZE, message.total - offset)
        payload = message.take(size)
        message.offset = offset + size
        length = ddp.UNTAGGED_HEADER_SIZE + size
        owner, control = None, ddp.VERSION
        if message.offset == message.total:
            owner, control = message.owner, _LAST
            self._current = None
        header = UNTAGGED_HEADER.pack_fields(
            length, control, message.control, message.stag, ddp.SEND_QUEUE, message.msn, offset
        )
        self._emit(header, payload, length, owner)

    def _cut_tagged(self, message: _Outgoing, tagged_offset: int) -> None:
        """Cut as many FPDUs of a tagged message as the batch has room for, in one pass: the headers of all but the last
        differ in the offset alone. The trailer of one and the header of the next are one buffer."""
        iov, crc = self._iov, self.crc
        room = self.max_ulpdu - ddp.TAGGED_HEADER_SIZE
        full = self.max_ulpdu + 9 & ~3
        kind, whole, offset = message.kind, message.whole, message.offset
        left = message.total - offset
        more = max(0, left - 1) // room
        lengths = [self.max_ulpdu] * min(more, 1 + (_BATCH_BYTES - 1 - (self._batch_end - self._batch_start)) // full)
        if len(lengths) == more:
            lengths.append(ddp.TAGGED_HEADER_SIZE + left - more * room)
        if message.file is not None and type(message.owner) is Response:
            # Each of these FPDUs is two buffers, so no more of them are cut than there is room for.
            most = -(-(_BATCH_BUFFERS - len(iov)) // 2)
            message.load(message.owner.position + offset, min(left, min(len(lengths), most) * room))
        cut = length = 0
        before = b""
        for length in lengths:
            if cut == more:
                kind |= ddp.LAST_TAGGED
            header = TAGGED_WORDS.pack_fields(length << 48 | kind, tagged_offset + offset)
            iov.append(before + header)
            size = length - ddp.TAGGED_HEADER_SIZE
            payload = message.take(size) if whole is None else (whole[offset : offset + size],)
            iov.extend(payload)
            offset += size
            before = trailer(length, _crc(header, payload)) if crc else ZERO_TRAILERS[-(length + 2) & 3]
            cut += 1
            if len(iov) >= _BATCH_BUFFERS:
                break
        iov.append(before)
        message.offset = offset
        if more:
            self._cut(full, min(cut, more))
        if cut > more:
            self._cut(length + 9 & ~3, 1)
            self._current = None
            self._ends.append((self._produced, message.owner))

    def _emit_tagged(
        self, kind: int, tagged_offset: int, payload: Sequence[memoryview], owner: Work | Response
    ) -> None:
        """Queue a tagged message that is one FPDU. ``kind``: as in ``TaggedWords``, without the length."""
        length = ddp.TAGGED_HEADER_SIZE + owner.total
        header = TAGGED_WORDS.pack_fields(length << 48 | kind, tagged_offset)
        end = trailer(length, _crc(header, payload)) if self.crc else ZERO_TRAILERS[-(length + 2) & 3]
        self._iov += (header, *payload, end)
        self._cut(length + 9 & ~3, 1)
        self._ends.append((self._produced, owner))

    def _cut(self, size: int, count: int) -> None:
        """Note that ``count`` FPDUs of ``size`` bytes each were added to the batch."""
        start = self._produced
        self._produced = self._batch_end = start + size * count
        self._runs.append(_Run(start, size, self._produced))
        self.fpdus += count

    def _needs_segment(self, size: int, header: int) -> bool:
        """Return whether an untagged FPDU must wait for the next batch, which begins a new TCP segment.

        ``size`` is the number of its bytes, of which the first ``header`` are headers. It must wait if the end of a
        segment could split its headers at a place where a receiver is known to fail. Any segmentation is legal (RFC
        5044 section 4.3), but Linux siw (6.12) copies too much if an untagged header continues in another segment after
        its first 16 bytes: a Send then loses bytes of its payload, and a Read Request overwrites memory of the peer's
        kernel. The data of one call is cut at multiples of the segment size. After the first of these cuts it may be
        cut anywhere, where the peer's window ends.
        """
        if not self.segment:
            return False
        start = self._batch_end - self._batch_start
        if header > UNTAGGED_HEADER.size:
            return start + size > self.segment
        return TAGGED_HEADER.size < self.segment - start % self.segment < header

    def _emit(
        self, header: bytes, payload: Sequence[memoryview], length: int, owner: Work | Response | None = None
    ) -> None:
        """Queue an untagged FPDU. ``header`` contains all of its headers; ``length`` is its ULPDU_Length. It is the
        last of ``owner``."""
        size = length + 9 & ~3
        waits = bool(self._iov) and self._needs_segment(size, len(header))
        end = trailer(length, _crc(header, payload)) if self.crc else ZERO_TRAILERS[-(length + 2) & 3]
        parts: list[Buffer] = [header, *payload, end]
        iov = self._held if waits else self._iov
        if size <= _SMALL:
            iov.append(b"".join(parts))
        else:
            iov.extend(parts)
        batch_end = self._batch_end
        self._cut(size, 1)
        if waits:
            self._batch_end = batch_end
        if owner is not None:
            self._ends.append((self._produced, owner))


def _crc(header: bytes, payload: Sequence[Buffer]) -> int:
    """Return the checksum of a length field and ULPDU."""
    crc = crc32c(header)
    for part in payload:
        crc = crc32c(part, crc)
    return int(crc)
