"""The inbound half of an iWARP stream: bytes in, placed data and completions out. No I/O.
[RFC 5040, RFC 5041, RFC 5044]

The owner calls ``buffers()`` to learn where to receive, receives, and reports the number of bytes with ``received()``.
Small FPDUs are parsed in a ring. Only the first part of a large payload passes through the ring: the rest is received
directly into the registered memory or receive buffer, after the header has passed every check. The FPDUs of a long
tagged message are received by a ``Layout``, and do not pass through the ring at all. If CRC is on, a payload is placed
only after its checksum was verified, so everything but the Layout of a Read Response passes through the ring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crc32c import crc32c

from smbdirect.codec import Buffer
from smbdirect.providers.base import Access, Completion, Operation, Status
from smbdirect.providers.iwarp import ddp, rdmap
from smbdirect.providers.iwarp.ddp import (
    MSN_MASK,
    TAGGED_HEADER,
    TAGGED_WORDS,
    UNTAGGED_HEADER,
    TaggedHeader,
    UntaggedHeader,
)
from smbdirect.providers.iwarp.layout import AHEAD, Layout
from smbdirect.providers.iwarp.mpa import Rtr, fpdu_size
from smbdirect.providers.iwarp.placement import RING_SIZE, RINGS_KEPT, PendingRead, RingPool
from smbdirect.providers.iwarp.rdmap import READ_REQUEST, Fault, Opcode, ReadRequest, TerminateError
from smbdirect.providers.memory import AccessRefused, Region, RegionTable
from smbdirect.providers.memory import Fault as Refusal

_MIN_ROOM = 0x10000 + 16
"""Bytes of the ring that must be free for a receive: an FPDU of any size fits."""
_MAX_STASH = 16 * 1024
"""A remainder of up to this many bytes is copied out of the ring, so that an idle connection holds no ring."""
_MIN_DIRECT = 16 * 1024
"""If at least this many bytes of a payload are missing, a second system call costs less than a copy."""
_BULK_WINDOW = 16 * 1024
"""Bytes of the ring that are offered while large payloads arrive: room for the end of a message and small messages."""
_MIN_LAYOUT = 4096
"""Smallest payload per FPDU of a Read Response by a ``Layout``. Many small ones cost less in the ring."""
_MIDDLE = ddp.TAGGED | ddp.VERSION
"""DDP control byte of a tagged segment that is not the last of its message."""
_WRITE = rdmap.CONTROL | Opcode.RDMA_WRITE
_RESPONSE = rdmap.CONTROL | Opcode.READ_RESPONSE
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
}
_READ_FAULTS = {
    Refusal.TOKEN: Fault.INVALID_STAG,
    Refusal.RANGE: Fault.BOUNDS,
    Refusal.RIGHT: Fault.ACCESS_RIGHTS,
}


def _fault(error: AccessRefused, faults: Mapping[Refusal, Fault], offset: int, length: int) -> Fault:
    """Return the Terminate code of a refused access."""
    if error.fault is Refusal.RANGE and offset + length > _ADDRESS_SPACE:
        return Fault.TAGGED_OFFSET_WRAP if faults is _WRITE_FAULTS else Fault.OFFSET_WRAP
    return faults[error.fault]


class Receiver:
    """The inbound half of one stream. ``received`` raises ``TerminateError`` if the peer breaks a rule: the receiver
    must not be used again, and nothing of the offending FPDU has been placed, except perhaps in the sink of a Read that
    was under way, which counts for nothing then."""

    def __init__(
        self,
        regions: RegionTable,
        rings: RingPool,
        *,
        crc: bool = False,
        rtr: Rtr | None = None,
        on_read_request: Callable[[ReadRequest, Region | None, memoryview], None] | None = None,
        on_read_done: Callable[[PendingRead], None] | None = None,
        on_terminate: Callable[[memoryview], None] | None = None,
    ) -> None:
        self.crc = crc
        self.receives: deque[tuple[memoryview, object]] = deque()
        self.reads: deque[PendingRead] = deque()
        self.completions: list[Completion] = []
        self.fpdus = 0
        self.crc_errors = 0
        self.bytes_send = 0
        self.bytes_write = 0
        self.bytes_read = 0
        self.bytes_direct = 0
        self.invalidations = 0
        self._regions = regions
        self._rings = rings
        self._on_read_request = on_read_request
        self._on_read_done = on_read_done
        self._on_terminate = on_terminate
        self.rtr = rtr
        # Invariant: the bytes not parsed yet are ring[head:tail], or the stash while no ring is held.
        self._ring: bytearray | None = None
        self._view = _EMPTY
        self._stash = b""
        self._head = 0
        self._tail = 0
        self.room = 0
        """Bytes in the latest ``buffers()``."""
        # Set while large payloads arrive: only little of the next receive should pass through the ring.
        self._bulk = False
        # The payload that is received directly into its place, and its FPDU. Invariant: _direct_left is the number of
        # bytes that _direct has room for; while it is not 0, _pending is that FPDU and nothing in the ring is unparsed.
        self._direct: list[memoryview] = []
        self._direct_left = 0
        self._direct_region: int | None = None
        self._pending: tuple[TaggedHeader | UntaggedHeader, int, int] | None = None
        # The message that is received by its expected layout, and its region if it is a Write. Invariant: while there
        # is one, neither _direct nor _pending is used, and nothing in the ring is unparsed.
        self._layout: Layout | None = None
        self._layout_region: Region | None = None
        # The untagged queues (RFC 5041 section 4.3).
        self._send_msn = ddp.FIRST_MSN
        self._send_offset = 0
        self._send_opcode = 0
        self._read_msn = ddp.FIRST_MSN
        self._control = memoryview(bytearray(rdmap.MAX_TERMINATE))

    # -- bytes in -----------------------------------------------------------------------------------------------

    def buffers(self) -> list[memoryview]:
        """Return the memory for the next bytes of the stream, in order."""
        layout = self._layout
        if layout is not None and layout.continues:
            self.room = layout.left
            return layout.buffers
        if self._ring is None:
            free = self._rings.free
            self._ring = free.pop() if free else self._rings.make()
            self._view = memoryview(self._ring)
            self._head = 0
            self._tail = len(self._stash)
            self._ring[: self._tail] = self._stash
            self._stash = b""
        elif self._tail > RING_SIZE - _MIN_ROOM:
            left = self._tail - self._head
            self._view[:left] = bytes(self._view[self._head : self._tail])
            self._head, self._tail = 0, left
        window = self._view[self._tail : self._tail + _BULK_WINDOW] if self._bulk else self._view[self._tail :]
        if layout is not None:
            self.room = layout.left + len(window)
            return [*layout.buffers, window]
        self.room = self._direct_left + len(window)
        if self._direct_left:
            return [*self._direct, window]
        return [window]

    def received(self, count: int) -> None:
        """Process ``count`` bytes that were received into ``buffers()``. Raise ``TerminateError`` if the peer breaks a
        rule."""
        full = count == self.room
        try:
            if self._layout is not None:
                count = self._follow(self._layout, count)
                if self._layout is not None:
                    return
            elif self._direct_left:
                taken = min(count, self._direct_left)
                count -= taken
                self._direct_left -= taken
                self.bytes_direct += taken
                if self._direct_left:
                    self._drop_direct(taken)
                else:
                    self._direct.clear()
            self._tail += count
            if full:
                self._bulk = False
            self._parse()
        finally:
            self._release_ring()

    def feed(self, data: Buffer) -> None:
        """Process bytes that are in memory already (for tests and captures)."""
        view = memoryview(data)
        while view:
            for buffer in self.buffers():
                part = view[: len(buffer)]
                buffer[: len(part)] = part
                view = view[len(part) :]
                self.received(len(part))
                break

    @property
    def at_boundary(self) -> bool:
        """Whether no FPDU is partly received."""
        return not self._stash and self._tail == self._head and self._pending is None and self._layout is None

    @property
    def midway(self) -> bool:
        """Whether a large payload is partly received: the peer is sending the rest of it."""
        return self._layout is not None or self._direct_left > 0

    def close(self) -> None:
        """Drop every reference to memory of the owner and of the peer's operations, and give the ring back."""
        self._direct.clear()
        self._direct_left = 0
        self._pending = None
        self._layout = self._layout_region = None
        self.reads.clear()
        self._tail = self._head
        self._stash = b""
        self._release_ring()

    def uses(self, region: Region) -> bool:
        """Return whether a payload is being received directly into ``region``."""
        if self._layout is not None:
            return self._layout_region is region
        return self._direct_left > 0 and self._direct_region == region.token

    def _drop_direct(self, taken: int) -> None:
        """Remove the first ``taken`` bytes of ``_direct``, which were received."""
        while taken:
            first = self._direct[0]
            if len(first) > taken:
                self._direct[0] = first[taken:]
                return
            taken -= len(first)
            del self._direct[0]

    def _release_ring(self) -> None:
        """Give the ring back, unless there is none or it holds a large part of an FPDU."""
        left = self._tail - self._head
        if self._ring is None or left > _MAX_STASH:
            return
        self._stash = bytes(self._view[self._head : self._tail]) if left else b""
        self._view = _EMPTY
        free = self._rings.free
        if len(free) < RINGS_KEPT:
            free.append(self._ring)
        self._ring = None
        self._head = self._tail = 0

    # -- FPDUs --------------------------------------------------------------------------------------------------

    def _parse(self) -> None:
        """Process the FPDUs in the ring, as far as they are complete or may be received directly."""
        view, tail = self._view, self._tail
        while True:
            head = self._head
            if self._pending is not None:
                header, payload, trailer = self._pending
                if self._direct_left or tail - head < trailer:
                    return
                self._head = head + trailer
                self._pending = None
                self.fpdus += 1
                _DONE[header.rdmap_control & rdmap.OPCODE_MASK](self, header, payload)
                continue
            available = tail - head
            if available < 8:
                return
            length = view[head] << 8 | view[head + 1]
            if length < ddp.TAGGED_HEADER_SIZE:
                self._zero_length_fpdu(length)
                continue
            if available < 20:
                return  # every FPDU is at least that long, including its trailer
            if view[head + 2] == _MIDDLE and not self.crc and self._run(head, tail):
                continue
            tagged = view[head + 2] & ddp.TAGGED
            payload = length - (ddp.TAGGED_HEADER_SIZE if tagged else ddp.UNTAGGED_HEADER_SIZE)
            try:
                header, targets = self._judge(view, head, length, payload)
            except TerminateError as error:
                error.header = self._faulty_header(view, head, length)
                if self.crc and not self._checksum_known_good(head, length):
                    raise TerminateError(Fault.CRC) from error
                raise
            start = head + (16 if tagged else 20)
            size = length + 9 & ~3
            if available < size:
                if view[head + 2] == _MIDDLE and self._expect_layout(head, payload):
                    return
                if not self.crc and start + payload - tail >= _MIN_DIRECT:
                    self._go_direct(header, targets, start, payload, size - length - 2)
                return
            if self.crc and not self._checksum_known_good(head, length):
                raise TerminateError(Fault.CRC)
            for target in targets:
                end = start + len(target)
                target[:] = view[start:end]
                start = end
            self._head = head + size
            self.fpdus += 1
            try:
                _DONE[header.rdmap_control & rdmap.OPCODE_MASK](self, header, payload)
            except TerminateError as error:
                error.header = self._faulty_header(view, head, length)
                raise

    def _run(self, head: int, tail: int) -> bool:
        """Place consecutive whole FPDUs of one Write or Read Response without CRC, none of them the last. A peer with
        segment-sized FPDUs sends mostly these. Stop before the first FPDU that is different or not obviously valid; the
        general path checks it. Return whether there was at least one."""
        view = self._view
        _, _, kind, token, offset = _TAGGED_FIELDS(view, head)
        if kind == _WRITE:
            region = self._regions.get(token)
            if region is not None and not region.access & Access.REMOTE_WRITE:
                region = None
            if region is None:
                return False
            memory, base, limit = region.memory, region.address, region.length
            expected = offset
        elif kind == _RESPONSE and self.reads and self.reads[0].segments:
            read = self.reads[0]
            if token != read.stag:
                return False
            memory, base = read.segments[0], read.base + read.passed
            # The last byte comes with the last segment.
            limit = min(len(memory), read.total - read.passed - 1)
            expected = read.base + read.received
        else:
            return False
        start, count, moved = head, 0, 0
        while tail - start >= 20:
            length, control, kind_here, token_here, offset = _TAGGED_FIELDS(view, start)
            payload = length - ddp.TAGGED_HEADER_SIZE
            end = start + (length + 9 & ~3)
            position = offset - base
            if (
                control != _MIDDLE
                or kind_here != kind
                or token_here != token
                or offset != expected
                or payload <= 0
                or end > tail
                or position < 0
                or position + payload > limit
            ):
                break
            memory[position : position + payload] = view[start + 16 : start + 16 + payload]
            start = end
            expected += payload
            moved += payload
            count += 1
        if not count:
            return False
        self._head = start
        self.fpdus += count
        if kind == _WRITE:
            self.bytes_write += moved
        else:
            self.bytes_read += moved
            self.reads[0].advance(moved)
        return True

    def _judge(
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

    def _go_direct(
        self,
        header: TaggedHeader | UntaggedHeader,
        targets: Sequence[memoryview],
        start: int,
        payload: int,
        trailer: int,
    ) -> None:
        """Place the part of the payload that has arrived, and have the rest received in its place. ``trailer``: bytes
        of padding and CRC."""
        here = self._tail - start
        left = here
        rest = []
        for target in targets:
            if left >= len(target):
                target[:] = self._view[start : start + len(target)]
                start += len(target)
                left -= len(target)
                continue
            target[:left] = self._view[start : start + left]
            rest.append(target[left:])
            start += left
            left = 0
        self._direct = rest
        self._direct_left = payload - here
        self._direct_region = header.stag if type(header) is TaggedHeader else None
        self._pending = (header, payload, trailer)
        self._head = self._tail
        self._bulk = True

    def _expect_layout(self, head: int, payload: int) -> bool:
        """Have the message of the FPDU at ``head`` received by a layout if enough of it is missing. The FPDU is
        incomplete, and its header is valid. Return whether there is a layout now."""
        view = self._view
        start = head + TAGGED_HEADER.size
        here = self._tail - start
        if here >= payload:
            return False
        _, _, operation, stag, offset = _TAGGED_FIELDS(view, head)
        region = None
        if operation == _RESPONSE:
            read = self.reads[0]
            if read.irregular or payload < _MIN_LAYOUT:
                return False
            memory, position = read.segments[0], read.received - read.passed
            # The last byte comes with the last FPDU.
            end = min(len(memory), position + read.total - read.received - 1)
            ahead = AHEAD
        else:
            region = self._regions.get(stag)
            if region is None or payload < _MIN_DIRECT or self.crc:
                return False
            memory, position, end = region.memory, offset - region.address, region.length
            ahead = 1
        if end - position < 2 * payload or end - position - here < _MIN_DIRECT:
            return False
        layout = Layout(memory, position, end, TAGGED_WORDS.fields_from(view, head), payload, ahead, self.crc)
        here = self._tail - start
        if here:
            memory[position : position + here] = view[start : self._tail]
            layout.received(here)
            self.bytes_direct -= here
        self._layout, self._layout_region = layout, region
        self._head = self._tail
        self._bulk = True
        return True

    def _follow(self, layout: Layout, count: int) -> int:
        """Process ``count`` bytes, of which the first were received by ``layout``. Return how many of them are in the
        ring."""
        taken = min(count, layout.left)
        count -= taken
        try:
            expected = layout.received(taken)
        except TerminateError:
            self.crc_errors += 1
            raise
        if expected and layout.left:
            return 0
        self._layout = None
        self.fpdus += layout.fpdus
        self.bytes_direct += layout.bytes_done
        if self._layout_region is not None:
            self._layout_region = None
            self.bytes_write += layout.bytes_done
        else:
            self.bytes_read += layout.bytes_done
            read = self.reads[0]
            read.advance(layout.bytes_done)
            read.irregular = not expected
        if expected:
            return count
        # The bytes behind belong elsewhere: they are read once more, from a copy.
        self.feed(layout.behind() + self._view[self._tail : self._tail + count])
        return 0

    def _checksum_known_good(self, head: int, length: int) -> bool:
        """Return False, and count an error, if the FPDU at ``head`` is complete and its CRC wrong. An incomplete FPDU
        cannot be checked: True."""
        end = head + fpdu_size(length) - 4
        if end + 4 > self._tail:
            # A faulty header ends the connection in any case; there is no checksum to compare.
            return True
        if crc32c(self._view[head:end]) == int.from_bytes(self._view[end : end + 4], "little"):
            return True
        self.crc_errors += 1
        return False

    def _faulty_header(self, view: memoryview, head: int, length: int) -> bytes:
        """Return the headers that a Terminate message quotes. [RFC 5040 section 4.8]"""
        if view[head + 2] & ddp.TAGGED:
            return bytes(view[head : head + 16])
        opcode = view[head + 3] & rdmap.OPCODE_MASK
        if opcode == Opcode.READ_REQUEST and length >= 46 and self._tail - head >= 48:
            return bytes(view[head : head + 48])
        return bytes(view[head : head + 20])

    def _zero_length_fpdu(self, length: int) -> None:
        """Accept a zero-length FPDU only as the agreed ready-to-receive indication. Raise ``TerminateError`` for any
        other short FPDU. [RFC 6581 section 4]"""
        if length or self.rtr is not Rtr.SEND or self.fpdus:
            raise TerminateError(Fault.ULPDU_LENGTH, f"ULPDU of {length} bytes")
        if self.crc and not self._checksum_known_good(self._head, 0):
            raise TerminateError(Fault.CRC)
        self.fpdus += 1
        self._head += fpdu_size(0)

    # -- operations: checks -------------------------------------------------------------------------------------

    def _write_targets(self, header: TaggedHeader, payload: int) -> Sequence[memoryview]:
        if not payload:
            return ()  # no checks apply to a zero-length Write (RFC 5040 section 5.1), such as the Write RTR
        try:
            region, start = self._regions.find(header.stag, header.tagged_offset, payload, Access.REMOTE_WRITE)
        except AccessRefused as error:
            raise TerminateError(_fault(error, _WRITE_FAULTS, header.tagged_offset, payload)) from None
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

    def _response_done(self, header: TaggedHeader, payload: int) -> None:
        read = self.reads[0]
        read.advance(payload)
        self.bytes_read += payload
        if header.control & ddp.LAST:
            self.reads.popleft()
            if self._on_read_done is not None:
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
                self._regions.remote_invalidate(header.invalidate_stag)
            except AccessRefused:
                raise TerminateError(Fault.CANNOT_INVALIDATE) from None  # RFC 5040 section 5.3
            invalidated = header.invalidate_stag
            self.invalidations += 1
        _, context = self.receives.popleft()
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
                region, start = self._regions.find(
                    request.source_stag, request.source_offset, request.length, Access.REMOTE_READ
                )
            except AccessRefused as error:
                raise TerminateError(_fault(error, _READ_FAULTS, request.source_offset, request.length)) from None
            memory = region.memory[start : start + request.length]
        if self._on_read_request is not None:
            self._on_read_request(request, region, memory)

    def _terminate_done(self, header: UntaggedHeader, payload: int) -> None:
        if self._on_terminate is not None:
            self._on_terminate(self._control[:payload])


_SENDS = (Opcode.SEND, Opcode.SEND_INVALIDATE, Opcode.SEND_SE, Opcode.SEND_SE_INVALIDATE)
_TAGGED: dict[int, Callable[[Receiver, TaggedHeader, int], Sequence[memoryview]]] = {
    Opcode.RDMA_WRITE: Receiver._write_targets,
    Opcode.READ_RESPONSE: Receiver._response_targets,
}
_UNTAGGED: dict[int, Callable[[Receiver, UntaggedHeader, int], Sequence[memoryview]]] = {
    **dict.fromkeys(_SENDS, Receiver._send_targets),
    Opcode.READ_REQUEST: Receiver._read_request_targets,
    Opcode.TERMINATE: Receiver._terminate_targets,
}
_DONE: dict[int, Callable[[Receiver, Any, int], None]] = {
    Opcode.RDMA_WRITE: Receiver._write_done,
    Opcode.READ_RESPONSE: Receiver._response_done,
    **dict.fromkeys(_SENDS, Receiver._send_done),
    Opcode.READ_REQUEST: Receiver._read_request_done,
    Opcode.TERMINATE: Receiver._terminate_done,
}
