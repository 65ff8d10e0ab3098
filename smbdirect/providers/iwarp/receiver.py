"""The inbound half of an iWARP stream: bytes in, placed data and completions out. No I/O.
[RFC 5040, RFC 5041, RFC 5044]

The owner calls ``buffers()`` to learn where to receive, receives, and reports the number of bytes with ``received()``.
Small FPDUs are parsed in a ring. Only the first part of a large payload passes through the ring: the rest is received
directly into the registered memory or receive buffer, after the header has passed every check. The FPDUs of a long
tagged message are received by a ``Layout``, and do not pass through the ring at all. If CRC is on, a payload is placed
only after its checksum was verified, so everything but the Layout of a Read Response passes through the ring.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

from smbdirect.codec import Buffer
from smbdirect.providers.iwarp import ddp, rdmap
from smbdirect.providers.iwarp.ddp import TAGGED_HEADER, TAGGED_WORDS, TaggedHeader, UntaggedHeader
from smbdirect.providers.iwarp.frames import run
from smbdirect.providers.iwarp.layout import Layout
from smbdirect.providers.iwarp.mpa import Rtr, fpdu_size, is_intact
from smbdirect.providers.iwarp.operations import RESPONSE, WRITE, Operations
from smbdirect.providers.iwarp.rdmap import Fault, Opcode, TerminateError
from smbdirect.providers.memory import Region

RING_SIZE = 256 * 1024
"""Bytes of one receive ring: room for several of the largest FPDUs."""
_RING_START = 2048
"""Where a ring begins in its first page. What arrives lies at the begin of a page of the kernel, mostly. Processors of
AMD copy four times slower ("rep movsb") to a place that is 1 to 63 bytes further in its page than the source is."""
RINGS_KEPT = 4
"""Free rings that are kept. More would stay unused, since a connection holds a ring only while it parses."""
_MIN_ROOM = 0x10000 + 16
"""Bytes of the ring that must be free for a receive: an FPDU of any size fits."""
_MAX_STASH = 16 * 1024
"""A remainder of up to this many bytes is copied out of the ring, so that an idle connection holds no ring."""
_MIN_DIRECT = 16 * 1024
"""If at least this many bytes of a payload are missing, a second system call costs less than a copy."""
_BULK_WINDOW = 4 * 1024
"""Bytes of the ring that are offered while large payloads arrive: room for the end of a message and small messages."""
_MIDDLE = ddp.TAGGED | ddp.VERSION
"""DDP control byte of a tagged segment that is not the last of its message."""
_TAGGED_FIELDS = TAGGED_HEADER.fields_from


class RingPool:
    """The receive rings that the connections of one thread share. Only a connection that holds a large part of an FPDU
    keeps its ring."""

    def __init__(self) -> None:
        self.free: list[memoryview] = []
        """Invariant: rings that no connection holds, at most ``RINGS_KEPT``. Users take a ring from here, or make one
        if there is none, and put it back."""
        self.allocations = 0

    def make(self) -> memoryview:
        """Return a new ring; to be called if none is free."""
        self.allocations += 1
        # Private: a forked process must not write in this one's rings.
        memory = mmap.mmap(-1, RING_SIZE + mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return memoryview(memory)[_RING_START : _RING_START + RING_SIZE]


class Receiver:
    """The inbound half of one stream. ``received`` raises ``TerminateError`` if the peer breaks a rule: the receiver
    must not be used again, and nothing of the offending FPDU has been placed, except perhaps in the sink of a Read that
    was under way, which counts for nothing then."""

    def __init__(self, operations: Operations, rings: RingPool, crc: bool = False) -> None:
        self.crc = crc
        self.crc_errors = 0
        self.bytes_direct = 0
        """Bytes of payload that were received into their place."""
        self._operations = operations
        self._rings = rings
        # Invariant: the bytes not parsed yet are ring[head:tail], or the stash while no ring is held.
        self._ring: memoryview | None = None
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

    # -- bytes in -----------------------------------------------------------------------------------------------

    def begin(self) -> memoryview | None:
        """Return the memory for the next bytes of the stream if nothing is under way, as mostly. Otherwise return None:
        ``buffers`` has it."""
        if self._ring is not None or self._layout is not None or self._stash or self._direct_left or self._bulk:
            return None
        free = self._rings.free
        ring = self._ring = free.pop() if free else self._rings.make()
        self.room = RING_SIZE
        return ring

    def buffers(self) -> list[memoryview]:
        """Return the memory for the next bytes of the stream, in order."""
        layout, ring = self._layout, self._ring
        if layout is not None and layout.continues:
            self.room = layout.left
            return layout.buffers
        if ring is None:
            free = self._rings.free
            ring = self._ring = free.pop() if free else self._rings.make()
            self._head = 0
            self._tail = len(self._stash)
            ring[: self._tail] = self._stash
            self._stash = b""
        elif self._tail > RING_SIZE - _MIN_ROOM:
            left = self._tail - self._head
            ring[:left] = bytes(ring[self._head : self._tail])
            self._head, self._tail = 0, left
        window = ring[self._tail : self._tail + _BULK_WINDOW] if self._bulk else ring[self._tail :]
        if layout is not None:
            self.room = layout.left + len(window)
            return [*layout.buffers, window]
        self.room = self._direct_left + len(window)
        if self._direct_left:
            return [*self._direct, window]
        return [window]

    def received(self, count: int) -> bool:
        """Process ``count`` bytes that were received into ``begin()`` or ``buffers()``. Return whether no FPDU is
        partly received. Raise ``TerminateError`` if the peer breaks a rule."""
        layout, ring = self._layout, self._ring
        if ring is not None and layout is None and self._pending is None:
            # Mostly these are whole Sends and Read Responses, and nothing else.
            tail = self._tail + count
            self._head = self._operations.receive_whole(ring, self._head, tail, self.crc)
            if self._head == tail:
                if count == self.room:
                    self._bulk = False
                self._ring = None
                self._head = self._tail = 0
                free = self._rings.free
                if len(free) < RINGS_KEPT:
                    free.append(ring)
                return True
        elif layout is not None and ring is None:
            self._follow(layout, count)
            return self.at_boundary
        full = count == self.room
        try:
            if layout is not None:
                count = self._follow(layout, count)
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
            if self._ring is not None:
                self._parse(self._ring)
        finally:
            self._release_ring()
        return self.at_boundary

    @property
    def one_by_one(self) -> bool:
        """Whether ``pull`` may receive what comes next."""
        return self._layout is not None and self._layout.continues

    def pull(self, descriptor: int, most: int) -> tuple[int, bool]:
        """Receive the FPDUs of a long message from a socket, until about ``most`` bytes were. Return how many were, and
        whether no more have arrived. Conditions: ``one_by_one``. Raise as ``received``, and ``OSError`` if the
        connection has ended."""
        layout = self._layout
        assert layout is not None
        try:
            size, count, blocked = layout.pull(descriptor, most)
        except TerminateError:
            self.crc_errors += 1
            raise
        self._follow(layout, count)
        return size + count, blocked

    def feed(self, data: Buffer) -> None:
        """Process bytes that are in memory already."""
        view = memoryview(data)
        while view:
            buffer = self.buffers()[0]
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            view = view[count:]
            self.received(count)

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
        self._operations.reads.clear()
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
        self._stash = bytes(self._ring[self._head : self._tail]) if left else b""
        free = self._rings.free
        if len(free) < RINGS_KEPT:
            free.append(self._ring)
        self._ring = None
        self._head = self._tail = 0

    # -- FPDUs --------------------------------------------------------------------------------------------------

    def _parse(self, view: memoryview) -> None:
        """Process the FPDUs in the ring, as far as they are complete or may be received directly."""
        operations, tail = self._operations, self._tail
        if self._pending is not None and not self._finish_direct(*self._pending):
            return
        while True:
            head = self._head
            available = tail - head
            if available < 8:
                return
            length = view[head] << 8 | view[head + 1]
            if length < ddp.TAGGED_HEADER_SIZE:
                self._zero_length_fpdu(view, length)
                continue
            if available < ddp.SHORTEST_FPDU:
                return
            size = length + 9 & ~3
            tagged = view[head + 2] & ddp.TAGGED
            if available < size:
                if view[head + 2] == _MIDDLE and self._expect_more(view, head, length - ddp.TAGGED_HEADER_SIZE):
                    return
            else:
                self._head = operations.receive_whole(view, head, tail, self.crc)
                if self._head == head and tagged:
                    self._head = self._run(view, head, tail)
                if self._head > head:
                    continue
            payload = length - (ddp.TAGGED_HEADER_SIZE if tagged else ddp.UNTAGGED_HEADER_SIZE)
            try:
                header, targets = operations.judge(view, head, length, payload)
            except TerminateError as error:
                if self.crc:
                    # Only the whole FPDU shows whether the peer made the mistake or the path damaged a header.
                    if available < size:
                        return
                    if not self._is_intact(view, head, length):
                        raise TerminateError(Fault.CRC) from error
                error.header = self._faulty_header(view, head, length)
                raise
            start = head + (16 if tagged else 20)
            if available < size:
                if not self.crc and start + payload - tail >= _MIN_DIRECT:
                    self._go_direct(view, header, targets, start, payload, size - length - 2)
                return
            if self.crc and not self._is_intact(view, head, length):
                raise TerminateError(Fault.CRC)
            for target in targets:
                end = start + len(target)
                target[:] = view[start:end]
                start = end
            self._head = head + size
            try:
                operations.done(header, payload)
            except TerminateError as error:
                error.header = self._faulty_header(view, head, length)
                raise

    def _finish_direct(self, header: TaggedHeader | UntaggedHeader, payload: int, trailer: int) -> bool:
        """Finish the FPDU whose payload was received directly, unless a part of it or of its trailer is missing. Return
        whether it is finished."""
        if self._direct_left or self._tail - self._head < trailer:
            return False
        self._head += trailer
        self._pending = None
        self._operations.done(header, payload)
        return True

    def _run(self, view: memoryview, start: int, tail: int) -> int:
        """Place the consecutive whole FPDUs of one Write or Read Response in ``view[start:tail]``, of the latter not
        the last. A peer with segment-sized FPDUs sends mostly these. Return where the first FPDU begins that is
        different or not obviously valid: the general path checks it."""
        _, _, operation, token, expected = _TAGGED_FIELDS(view, start)
        room = self._operations.room_for(operation, token, expected)
        if room is None:
            return start
        memory, position, limit = room
        if position > limit:
            return start
        start, count, size = run(
            view, start, tail, memory, position, limit, operation == WRITE, operation, token, expected, self.crc
        )
        if count:
            self._operations.placed(operation, count, size)
        return start

    def _go_direct(
        self,
        view: memoryview,
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
                target[:] = view[start : start + len(target)]
                start += len(target)
                left -= len(target)
                continue
            target[:left] = view[start : start + left]
            rest.append(target[left:])
            start += left
            left = 0
        self._direct = rest
        self._direct_left = payload - here
        self._direct_region = header.stag if type(header) is TaggedHeader else None
        self._pending = (header, payload, trailer)
        self._head = self._tail
        self._bulk = True

    def _expect_more(self, view: memoryview, head: int, payload: int) -> bool:
        """Have the rest of the incomplete FPDU at ``head`` received in its place, if its header is obviously valid and
        enough is missing: by a layout, if several FPDUs of its size may follow each other. Return whether this was
        done."""
        _, _, operation, token, offset = _TAGGED_FIELDS(view, head)
        operations = self._operations
        if payload < _MIN_DIRECT or (self.crc and operation != RESPONSE):
            return False
        room = operations.room_for(operation, token, offset)
        start = head + TAGGED_HEADER.size
        here = self._tail - start
        if room is None or here >= payload:
            return False
        memory, position, end = room
        if end - position < 2 * payload or end - position - here < _MIN_DIRECT:
            if self.crc or payload > end - position or payload - here < _MIN_DIRECT:
                return False
            header = TaggedHeader._make(_TAGGED_FIELDS(view, head))
            size = fpdu_size(payload + ddp.TAGGED_HEADER_SIZE)
            target = memory[position : position + payload]
            self._go_direct(view, header, (target,), start, payload, size - TAGGED_HEADER.size - payload)
            return True
        self._layout = Layout(memory, position, end, TAGGED_WORDS.fields_from(view, head), payload, self.crc)
        if here:
            memory[position : position + here] = view[start : self._tail]
            self._layout.received(here)
            self.bytes_direct -= here
        self._layout_region = operations.regions.get(token) if operation == WRITE else None
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
        self.bytes_direct += layout.bytes_done
        operations = self._operations
        if self._layout_region is not None:
            self._layout_region = None
            operations.placed(WRITE, layout.fpdus, layout.bytes_done)
        else:
            operations.placed(RESPONSE, layout.fpdus, layout.bytes_done)
        if expected:
            return count
        # The bytes behind belong elsewhere: they are read once more, from a copy.
        behind = layout.behind()
        if count and self._ring is not None:
            behind += self._ring[self._tail : self._tail + count]
        self.feed(behind)
        return 0

    def _is_intact(self, view: memoryview, head: int, length: int) -> bool:
        """Return whether the CRC of the complete FPDU at ``head`` is right. Count an error if it is not."""
        if is_intact(view, head, head + fpdu_size(length)):
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

    def _zero_length_fpdu(self, view: memoryview, length: int) -> None:
        """Accept a zero-length FPDU only as the agreed ready-to-receive indication. Raise ``TerminateError`` for any
        other short FPDU. [RFC 6581 section 4]"""
        operations = self._operations
        if length or operations.rtr is not Rtr.SEND or operations.fpdus:
            raise TerminateError(Fault.ULPDU_LENGTH, f"ULPDU of {length} bytes")
        if self.crc and not self._is_intact(view, self._head, 0):
            raise TerminateError(Fault.CRC)
        operations.fpdus += 1
        self._head += fpdu_size(0)
