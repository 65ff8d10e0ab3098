"""What the peer's messages mean: the checks before a byte of one is placed, and its effects. No I/O.
[RFC 5040, RFC 5041]"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from smbdirect.providers.base import Access, Completion, Operation, Status, ignore
from smbdirect.providers.iwarp import ddp, rdmap
from smbdirect.providers.iwarp.ddp import MSN_MASK, TAGGED_HEADER, UNTAGGED_HEADER, TaggedHeader, UntaggedHeader
from smbdirect.providers.iwarp.frames import arrived
from smbdirect.providers.iwarp.mpa import Rtr
from smbdirect.providers.iwarp.rdmap import READ_REQUEST, Fault, Opcode, ReadRequest, TerminateError
from smbdirect.providers.memory import AccessRefused, Region, RegionTable
from smbdirect.providers.memory import Fault as Refusal

WRITE = rdmap.CONTROL | Opcode.RDMA_WRITE
RESPONSE = rdmap.CONTROL | Opcode.READ_RESPONSE
"""RDMAP control bytes of Writes and Read Responses."""
_RECEIVED = Completion, Operation.RECEIVE, Status.OK
_TAGGED_FIELDS = TAGGED_HEADER.fields_from
_UNTAGGED_FIELDS = UNTAGGED_HEADER.fields_from
_EMPTY = memoryview(bytearray())
_ADDRESS_SPACE = 1 << 64
# DDP checks the token and the range of a Write, since it owns tagged buffers. RDMAP checks those of a Read Request's
# source, and all rights (RFC 5040 section 4.8).
_WRITE_FAULTS = {
    Refusal.TOKEN: Fault.TAGGED_INVALID_STAG,
    Refusal.RANGE: Fault.TAGGED_BOUNDS,
    Refusal.RIGHT: Fault.ACCESS_RIGHTS,
    Refusal.FILE: Fault.TAGGED_BOUNDS,
}
_READ_FAULTS = {Refusal.TOKEN: Fault.INVALID_STAG, Refusal.RANGE: Fault.BOUNDS, Refusal.RIGHT: Fault.ACCESS_RIGHTS}


def _fault(error: AccessRefused, faults: Mapping[Refusal, Fault], offset: int, length: int) -> Fault:
    """Return the Terminate code of a refused access."""
    if error.fault is Refusal.RANGE and offset + length > _ADDRESS_SPACE:
        return Fault.TAGGED_OFFSET_WRAP if faults is _WRITE_FAULTS else Fault.OFFSET_WRAP
    return faults[error.fault]


class Posted(Protocol):
    """A work request in the queue of those that were posted."""

    operation: Operation
    context: object
    signalled: bool
    done: bool
    dropped: bool


class PendingRead:
    """One RDMA Read of ours whose response is outstanding. Its sink token is valid only for that response.

    In the queue of what was posted it stands for itself, unless it has an ``owner``."""

    __slots__ = ("base", "context", "done", "owner", "passed", "received", "segments", "stag", "total")
    operation = Operation.READ
    signalled = True
    dropped = False

    def __init__(
        self, stag: int, segments: Sequence[memoryview], total: int, base: int = 0, context: object = None
    ) -> None:
        self.stag = stag
        self.context = context
        self.done = False
        """Whether all data has arrived."""
        self.base = base
        self.segments: list[memoryview] = list(segments if len(segments) == 1 else filter(len, segments))
        self.total = total
        # Invariant: ``received - passed`` is the fill position in the first of ``segments``.
        self.received = 0
        self.passed = 0
        """Bytes of the segments that are full, which were removed from ``segments``."""
        self.owner: Posted | None = None
        """The request, if it had to be queued before it was sent."""

    def targets(self, length: int) -> Sequence[memoryview]:
        """Return the memory for the next ``length`` bytes."""
        start = self.received - self.passed
        found = []
        for segment in self.segments:
            part = segment[start : start + length]
            found.append(part)
            length -= len(part)
            if not length:
                break
            start = 0
        return found

    def advance(self, length: int) -> None:
        """Note that ``length`` more bytes were placed."""
        self.received += length
        segments = self.segments
        while segments and self.received - self.passed >= len(segments[0]):
            self.passed += len(segments[0])
            del segments[0]


class Operations:
    """The inbound operations of one stream: where each FPDU may be placed, and what follows from it."""

    def __init__(
        self,
        regions: RegionTable,
        *,
        on_read_request: Callable[[ReadRequest, Region | None, memoryview], None] = ignore,
        on_read_done: Callable[[PendingRead], None] = ignore,
        on_terminate: Callable[[memoryview], None] = ignore,
    ) -> None:
        self.regions = regions
        self.rtr: Rtr | None = None
        """What the peer agreed to send first."""
        self.receives: list[tuple[memoryview, object]] = []
        self.reads: deque[PendingRead] = deque()
        """Our Reads in flight."""
        self.completions: list[Completion] = []
        """Receives that are complete. The owner takes them."""
        self.fpdus = 0
        self.bytes_send = 0
        self.bytes_write = 0
        self.bytes_read = 0
        self.invalidations = 0
        self._on_read_request = on_read_request
        self._on_read_done = on_read_done
        self._on_terminate = on_terminate
        # The untagged queues (RFC 5041 section 4.3).
        self._send_msn = ddp.FIRST_MSN
        self._send_offset = 0
        self._send_opcode = 0
        self._read_msn = ddp.FIRST_MSN
        self._control = memoryview(bytearray(rdmap.MAX_TERMINATE))
        self._landing: tuple[Region, int, memoryview] | None = None
        """The region of a file, the position in it, and the memory for a payload that is being received and goes
        there."""

    # -- what is obviously valid ----------------------------------------------------------------------------------

    def receive_whole(self, view: memoryview, start: int, tail: int, crc: bool) -> int:
        """Receive the consecutive messages in ``view[start:tail]`` that are in whole FPDUs, as most small ones are:
        Sends of one FPDU, and the responses to our Reads. Return where the first FPDU begins that is different or not
        obviously valid: the general path checks it. ``crc``: check the checksums."""
        if self._send_offset or (self.rtr is Rtr.SEND and not self.fpdus):
            return start
        start, made, size, responses, parts, bytes_read = arrived(
            view, start, tail, self._send_msn, self.receives, self.reads, _RECEIVED, crc
        )
        if made:
            count = len(made)
            del self.receives[:count]
            self.completions += made
            self.bytes_send += size
            self.fpdus += count
            self._send_msn = self._send_msn + count & MSN_MASK
        if parts:
            self.fpdus += parts
            self.bytes_read += bytes_read
            while responses:
                read = self.reads.popleft()
                read.done = True
                if read.owner is not None:
                    read.owner.done = True
                self._on_read_done(read)
                responses -= 1
        return start

    def room_for(self, operation: int, token: int, offset: int) -> tuple[memoryview, int, int] | None:
        """Return where an FPDU of a Write or Read Response is placed, if that is obvious: the memory, the position in
        it, and the end of what FPDUs other than the last may fill there."""
        if operation == WRITE:
            region = self.regions.get(token)
            if (
                region is not None
                and region.access & Access.REMOTE_WRITE
                and offset >= region.address
                and region.file is None
            ):
                return region.memory, offset - region.address, region.length
        elif operation == RESPONSE and self.reads:
            read = self.reads[0]
            if token == read.stag and offset == read.base + read.received and read.segments:
                memory = read.segments[0]
                # The last byte comes with the last FPDU.
                return memory, read.received - read.passed, min(len(memory), read.total - read.passed - 1)
        return None

    def placed(self, operation: int, fpdus: int, size: int) -> None:
        """Note that ``fpdus`` FPDUs of a Write or Read Response, none of them the last of the response, were placed
        where ``room_for`` said. They had ``size`` bytes of payload."""
        self.fpdus += fpdus
        if operation == WRITE:
            self.bytes_write += size
        else:
            self.bytes_read += size
            self.reads[0].advance(size)

    # -- checks -----------------------------------------------------------------------------------------------------

    def judge(
        self, view: memoryview, head: int, length: int, payload: int
    ) -> tuple[TaggedHeader | UntaggedHeader, Sequence[memoryview]]:
        """Make every check that the header of the FPDU at ``head`` allows, without changing anything. Return the header
        and the memory for the payload. Raise ``TerminateError`` if a check fails."""
        control = view[head + 2]
        if control & ddp.TAGGED:
            if control & ddp.VERSION_MASK != ddp.VERSION:
                raise TerminateError(Fault.TAGGED_VERSION)
            tagged_header = TaggedHeader._make(_TAGGED_FIELDS(view, head))
            operation = tagged_header.rdmap_control
            tagged = _TAGGED.get(operation & rdmap.OPCODE_MASK)
            if operation >> 6 != rdmap.VERSION:
                raise TerminateError(Fault.RDMAP_VERSION)
            if tagged is None:
                raise TerminateError(Fault.UNEXPECTED_OPCODE)
            return tagged_header, tagged(self, tagged_header, payload)
        if length < ddp.UNTAGGED_HEADER_SIZE:
            raise TerminateError(Fault.ULPDU_LENGTH)
        if control & ddp.VERSION_MASK != ddp.VERSION:
            raise TerminateError(Fault.UNTAGGED_VERSION)
        header = UntaggedHeader._make(_UNTAGGED_FIELDS(view, head))
        operation = header.rdmap_control
        untagged = _UNTAGGED.get(operation & rdmap.OPCODE_MASK)
        if operation >> 6 != rdmap.VERSION:
            raise TerminateError(Fault.RDMAP_VERSION)
        if untagged is None:
            raise TerminateError(Fault.UNEXPECTED_OPCODE)
        return header, untagged(self, header, payload)

    def done(self, header: TaggedHeader | UntaggedHeader, payload: int) -> None:
        """Let an FPDU have its effect: its ``payload`` bytes were placed where ``judge`` said. Raise ``TerminateError``
        for a fault that only the whole message shows."""
        self.fpdus += 1
        _DONE[header.rdmap_control & rdmap.OPCODE_MASK](self, header, payload)

    def _write_targets(self, header: TaggedHeader, payload: int) -> Sequence[memoryview]:
        if not payload:
            return ()  # no checks apply to a zero-length Write (RFC 5040 section 5.1), such as the Write RTR
        try:
            region, start = self.regions.find(header.stag, header.tagged_offset, payload, Access.REMOTE_WRITE)
        except AccessRefused as error:
            raise TerminateError(_fault(error, _WRITE_FAULTS, header.tagged_offset, payload)) from None
        if region.file is not None:
            self._landing = region, start, memoryview(bytearray(payload))
            return self._landing[2:]
        return (region.memory[start : start + payload],)

    def _response_targets(self, header: TaggedHeader, payload: int) -> Sequence[memoryview]:
        if not self.reads or header.stag != self.reads[0].stag:
            raise TerminateError(Fault.TAGGED_INVALID_STAG, "response to no RDMA Read of ours")
        read = self.reads[0]
        end = read.received + payload
        if header.tagged_offset != read.base + read.received or end > read.total:
            raise TerminateError(Fault.TAGGED_BOUNDS)
        if bool(header.control & ddp.LAST) != (end == read.total):
            raise TerminateError(Fault.TAGGED_BOUNDS, "response of another length than asked for")
        return read.targets(payload)

    def _send_targets(self, header: UntaggedHeader, payload: int) -> Sequence[memoryview]:
        if header.queue != ddp.SEND_QUEUE:
            raise self._wrong_queue(header)
        if self.rtr is Rtr.SEND and not self.fpdus and not payload and header.control & ddp.LAST:
            return ()  # the agreed ready-to-receive indication consumes no receive
        if header.msn != self._send_msn:
            raise TerminateError(Fault.MSN_RANGE)
        if not self.receives:
            raise TerminateError(Fault.NO_BUFFER)
        if header.message_offset != self._send_offset:
            raise TerminateError(Fault.MESSAGE_OFFSET)
        if self._send_offset and header.rdmap_control != self._send_opcode:
            raise TerminateError(Fault.UNEXPECTED_OPCODE)
        buffer = self.receives[0][0]
        end = self._send_offset + payload
        if end > len(buffer):
            raise TerminateError(Fault.MESSAGE_TOO_LONG)
        return (buffer[self._send_offset : end],)

    def _read_request_targets(self, header: UntaggedHeader, payload: int) -> Sequence[memoryview]:
        if header.queue != ddp.READ_QUEUE:
            raise self._wrong_queue(header)
        if header.msn != self._read_msn:
            raise TerminateError(Fault.MSN_RANGE)
        if header.message_offset:
            raise TerminateError(Fault.MESSAGE_OFFSET)
        if payload > READ_REQUEST.size:
            raise TerminateError(Fault.MESSAGE_TOO_LONG)
        if payload < READ_REQUEST.size or not header.control & ddp.LAST:
            raise TerminateError(Fault.UNSPECIFIED_OPERATION)
        return (self._control[:payload],)

    def _terminate_targets(self, header: UntaggedHeader, payload: int) -> Sequence[memoryview]:
        if header.queue != ddp.TERMINATE_QUEUE:
            raise self._wrong_queue(header)
        if payload > len(self._control):
            raise TerminateError(Fault.MESSAGE_TOO_LONG)
        return (self._control[:payload],)

    def _wrong_queue(self, header: UntaggedHeader) -> TerminateError:
        """Return the error for an operation on a wrong queue."""
        return TerminateError(Fault.INVALID_QUEUE if header.queue > ddp.TERMINATE_QUEUE else Fault.UNEXPECTED_OPCODE)

    # -- operations: effects ------------------------------------------------------------------------------------

    def _write_done(self, header: TaggedHeader, payload: int) -> None:
        self.bytes_write += payload
        if self._landing is not None and payload:
            (region, start, data), self._landing = self._landing, None
            try:
                if not region.valid or region.file is None:
                    raise AccessRefused(Refusal.TOKEN)
                region.file.write(start, (data,))
            except AccessRefused as error:
                raise TerminateError(_WRITE_FAULTS[error.fault], f"RDMA Write: {error}") from None

    def _response_done(self, header: TaggedHeader, payload: int) -> None:
        read = self.reads[0]
        read.advance(payload)
        self.bytes_read += payload
        if header.control & ddp.LAST:
            self.reads.popleft()
            read.done = True
            if read.owner is not None:
                read.owner.done = True
            self._on_read_done(read)

    def _send_done(self, header: UntaggedHeader, payload: int) -> None:
        if self.fpdus == 1 and self.rtr is Rtr.SEND and not payload:
            if header.msn == self._send_msn:
                self._send_msn = self._send_msn + 1 & MSN_MASK
            return
        self.bytes_send += payload
        self._send_offset += payload
        self._send_opcode = header.rdmap_control
        if not header.control & ddp.LAST:
            return
        invalidated = None
        if header.rdmap_control & rdmap.OPCODE_MASK in (Opcode.SEND_INVALIDATE, Opcode.SEND_SE_INVALIDATE):
            try:
                self.regions.remote_invalidate(header.invalidate_stag)
            except AccessRefused:
                raise TerminateError(Fault.CANNOT_INVALIDATE) from None  # RFC 5040 section 5.3
            invalidated = header.invalidate_stag
            self.invalidations += 1
        _, context = self.receives.pop(0)
        self.completions.append(Completion(Operation.RECEIVE, Status.OK, context, self._send_offset, invalidated))
        self._send_offset = 0
        self._send_msn = self._send_msn + 1 & MSN_MASK

    def _read_request_done(self, header: UntaggedHeader, payload: int) -> None:
        self._read_msn = self._read_msn + 1 & MSN_MASK
        request = READ_REQUEST.unpack(self._control)
        region: Region | None = None
        memory = _EMPTY
        if request.length:  # no checks apply to a zero-length Read, such as the Read RTR
            try:
                region, start = self.regions.find(
                    request.source_stag, request.source_offset, request.length, Access.REMOTE_READ
                )
            except AccessRefused as error:
                raise TerminateError(_fault(error, _READ_FAULTS, request.source_offset, request.length)) from None
            memory = region.memory[start : start + request.length]
        self._on_read_request(request, region, memory)

    def _terminate_done(self, header: UntaggedHeader, payload: int) -> None:
        self._on_terminate(self._control[:payload])


_SENDS = (Opcode.SEND, Opcode.SEND_INVALIDATE, Opcode.SEND_SE, Opcode.SEND_SE_INVALIDATE)
_TAGGED: dict[int, Callable[[Operations, TaggedHeader, int], Sequence[memoryview]]] = {
    Opcode.RDMA_WRITE: Operations._write_targets,
    Opcode.READ_RESPONSE: Operations._response_targets,
}
_UNTAGGED: dict[int, Callable[[Operations, UntaggedHeader, int], Sequence[memoryview]]] = {
    **dict.fromkeys(_SENDS, Operations._send_targets),
    Opcode.READ_REQUEST: Operations._read_request_targets,
    Opcode.TERMINATE: Operations._terminate_targets,
}
_DONE: dict[int, Callable[[Operations, Any, int], None]] = {
    Opcode.RDMA_WRITE: Operations._write_done,
    Opcode.READ_RESPONSE: Operations._response_done,
    **dict.fromkeys(_SENDS, Operations._send_done),
    Opcode.READ_REQUEST: Operations._read_request_done,
    Opcode.TERMINATE: Operations._terminate_done,
}
