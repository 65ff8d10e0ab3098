"""The responder half of a reliable connection. No I/O, no clock. [IBTA volume 1, 9.7.4]

Sends, RDMA Writes and Read requests come in; read responses and acknowledgements go out. Acknowledgements are
coalesced: one is sent per batch of received packets, after the read responses that are due before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from smbdirect.codec import Buffer
from smbdirect.providers.base import Access, CloseCause, CloseReason, Completion, Operation, Status, ignore
from smbdirect.providers.memory import AccessRefused, Fault, NotCached, Region, RegionTable
from smbdirect.providers.roce.arrival import Run
from smbdirect.providers.roce.headers import (
    ACK_REQUEST,
    AETH,
    ATOMIC_ACK_ETH,
    ATOMIC_ETH,
    IETH,
    PSN_MASK,
    RETH,
    Opcode,
    Syndrome,
    extend_psn,
)
from smbdirect.providers.roce.requester import REORDER_DELAY, Path

MAX_PENDING_READS = 16
"""Most Reads and atomic operations that the peer may have in flight: the responder resources offered in connection
management."""
REPEAT_NAK_AFTER = 0.02
"""Seconds after which a gap is reported again if it is still open: the first NAK or the repeated packet was lost."""
RNR_TIMER = 20
"""RNR NAK timer code: 10.24 ms."""

MAX_EARLY = 64
"""Most packets that are kept because they arrived before an earlier one."""

_SEND, _WRITE, _READ, _ATOMIC, _REFUSED = range(5)
_FIRST, _LAST = 1, 2

_REQUESTS: dict[int, tuple[int, int]] = {
    Opcode.SEND_FIRST: (_SEND, _FIRST),
    Opcode.SEND_MIDDLE: (_SEND, 0),
    Opcode.SEND_LAST: (_SEND, _LAST),
    Opcode.SEND_LAST_INVALIDATE: (_SEND, _LAST),
    Opcode.SEND_ONLY: (_SEND, _FIRST | _LAST),
    Opcode.SEND_ONLY_INVALIDATE: (_SEND, _FIRST | _LAST),
    Opcode.WRITE_FIRST: (_WRITE, _FIRST),
    Opcode.WRITE_MIDDLE: (_WRITE, 0),
    Opcode.WRITE_LAST: (_WRITE, _LAST),
    Opcode.WRITE_ONLY: (_WRITE, _FIRST | _LAST),
    Opcode.READ_REQUEST: (_READ, _FIRST | _LAST),
    **dict.fromkeys((Opcode.COMPARE_SWAP, Opcode.FETCH_ADD), (_ATOMIC, _FIRST | _LAST)),
    # The users of this package do not use immediate data; accepting it would drop information silently.
    **dict.fromkeys((Opcode.SEND_LAST_IMMEDIATE, Opcode.SEND_ONLY_IMMEDIATE), (_REFUSED, 0)),
    **dict.fromkeys((Opcode.WRITE_LAST_IMMEDIATE, Opcode.WRITE_ONLY_IMMEDIATE), (_REFUSED, 0)),
}
REQUEST_OPCODES = frozenset(_REQUESTS)
_NOWHERE: tuple[Region | None, int] = (None, 0)
"""The region and the position of a Write or Read of length 0, which no check concerns."""


@dataclass(slots=True, eq=False)
class _ReadAnswer:
    """The rest of one read response: ``left`` bytes from ``position`` of the region, starting at packet ``psn``."""

    region: Region | None
    position: int
    left: int
    psn: int
    msn: int
    first: bool = True
    found: int | None = None
    """What the memory had before an atomic operation, whose answer this is; None for a Read."""


class Responder:
    """The receive queue of one queue pair. ``fail(reason)`` is called when the connection must end;
    ``transmit_refusal`` sends the NAK for the peer."""

    def __init__(
        self,
        regions: RegionTable,
        completions: list[Completion],
        counters: dict[str, int],
        fail: Callable[[CloseReason], None],
    ) -> None:
        self.mtu = 1024
        self.receives: deque[tuple[memoryview, object]] = deque()
        self.starved = False
        """Whether a message waits for a receive that was not posted."""
        self._regions = regions
        self._completions = completions
        self._counters = counters
        self._fail = fail
        self._expected = 0
        self._msn = 0
        self._message: int | None = None
        self._buffer: memoryview = memoryview(b"")
        self._context: object = None
        self._receiving = False
        self._filled = 0
        self._region: Region | None = None
        self._position = 0
        self._left = 0
        self._reads: deque[_ReadAnswer] = deque()
        self._results: dict[int, int] = {}
        """What the latest atomic operations found, by number, the oldest first: a repeated request gets the same answer
        and changes nothing. Invariant: at most ``MAX_PENDING_READS``, and a peer that keeps to that many in flight
        repeats no other. [IBTA 9.4.5, 9.7.5.1.4]"""
        self._acknowledge = False
        self._nak: int | None = None
        self._nak_sent: float | None = None
        self._early: dict[int, tuple[int, bool, bytes, int]] = {}
        """Requests that arrived before an earlier one, by number: opcode, AckReq, packet, end of its payload.
        Invariant: all numbers are larger than ``_expected``, except while a packet is processed."""
        self.deadline: float | None = None
        """When to call ``handle_timer``, or None."""
        self.cold: NotCached | None = None
        """What has to be read from a disk before the next read response. The owner does so, and sets it to None."""
        self._fatal: int | None = None

    def start(self, psn: int, mtu: int) -> None:
        """Take over the parameters of the connection."""
        self._expected = psn
        self.mtu = mtu

    # -- in ------------------------------------------------------------------------------------------------------

    def on_request(self, opcode: int, psn: int, ack_request: bool, packet: memoryview, end: int, now: float) -> None:
        """Process a request packet: extension headers at offset 12, payload up to ``end``. The caller has checked that
        ``packet`` is long enough for the headers of ``opcode``."""
        number = extend_psn(psn, self._expected)
        if number != self._expected:
            self._out_of_order(opcode, number, ack_request, packet, end, now)
            return
        done = self._carry_out(opcode, ack_request, packet, end, now)
        while done and self._early:
            later = self._early.pop(self._expected, None)
            if later is None:
                break
            opcode, ack_request, kept, end = later
            done = self._carry_out(opcode, ack_request, memoryview(kept), end, now)
        if self._early:
            self._early = {key: value for key, value in self._early.items() if key > self._expected}
        if done:
            self.deadline = now + REORDER_DELAY if self._early else None

    def on_write_run(self, run: Run) -> bool:
        """Carry out several middle packets of an RDMA Write at once, if they are the expected ones. Return False, and
        do nothing, if anything is unusual."""
        region = self._expected_in()
        if (
            region is None
            or extend_psn(run.psn, self._expected) != self._expected
            or run.payload_length() != self.mtu
            or self.mtu * run.number >= self._left
        ):
            return False
        if region.file is not None:
            try:
                region.file.write(self._position, run.payloads())
            except AccessRefused as error:
                self._refuse(Syndrome.REMOTE_ACCESS, f"RDMA Write: {error}")
                return True
        else:
            run.place(region.memory, self._position)
        self.on_placed(run.number, run.words)
        return True

    def _expected_in(self) -> Region | None:
        """Return the region in which the next packet of an RDMA Write belongs, if nothing is unusual."""
        region = self._region
        if region is None or self._message != _WRITE or self._early or not region.valid:
            return None
        return region

    def awaited(self) -> tuple[int, memoryview, int, int, int] | None:
        """Return the middle packets of an RDMA Write that are due, if they are to be placed in memory and nothing else:
        the first number, the memory, the place there, bytes of each payload, how many there are."""
        region = self._expected_in()
        number = (self._left - 1) // self.mtu
        if region is None or region.file is not None or number <= 0:
            return None
        return self._expected, region.memory, self._position, self.mtu, number

    def on_placed(self, number: int, words: int) -> None:
        """Note that the next ``number`` middle packets of an RDMA Write were placed. ``words``: see ``Run``."""
        total = number * self.mtu
        self._position += total
        self._left -= total
        self._counters["bytes_placed"] += total
        self._expected += number
        self._nak = self._nak_sent = None
        if words & ACK_REQUEST:
            self._acknowledge = True

    def _carry_out(self, opcode: int, ack_request: bool, packet: memoryview, end: int, now: float) -> bool:
        """Carry out the request with the expected number. Return False if that was not possible."""
        kind, part = _REQUESTS[opcode]
        # 9.7.4.1.2: FIRST or ONLY begins a message, MIDDLE and LAST continue one of the same kind.
        if kind == _REFUSED or (self._message is not None if part & _FIRST else self._message != kind):
            return self._refuse(Syndrome.INVALID_REQUEST, f"unexpected opcode {opcode:#x}")
        if kind == _SEND:
            done = self._on_send(opcode, part, packet, end, now)
        elif kind == _WRITE:
            done = self._on_write(part, packet, end)
        elif kind == _READ:
            done = self._on_read(packet, end)
        else:
            done = self._on_atomic(opcode, packet, end)
        if done:
            self._nak = self._nak_sent = None
            if ack_request:
                self._acknowledge = True
        return done

    def _out_of_order(
        self, opcode: int, number: int, ack_request: bool, packet: memoryview, end: int, now: float
    ) -> None:
        if number > self._expected:
            if len(self._early) < MAX_EARLY and number - self._expected <= 2 * MAX_EARLY:
                self._early[number] = opcode, ack_request, bytes(packet), end
                self._counters["allocations"] += 1
                if self.deadline is None and self._nak_sent is None:
                    self.deadline = now + REORDER_DELAY
                    return
            elif self._nak_sent is None:
                self._missing(now)
            if self._nak_sent is not None and now - self._nak_sent >= REPEAT_NAK_AFTER:
                self._missing(now)
            return
        self._counters["duplicates"] += 1
        if opcode == Opcode.READ_REQUEST:
            self._repeat_read(number, packet, end)
        elif opcode in (Opcode.COMPARE_SWAP, Opcode.FETCH_ADD):
            self._repeat_atomic(number)
        else:
            self._acknowledge = True

    def _missing(self, now: float) -> None:
        """Have a NAK sent for a gap: one per gap, repeated only if it stays open. [IBTA 9.7.4.1.4]"""
        self._nak = Syndrome.SEQUENCE_ERROR
        self._nak_sent = now
        self.deadline = None

    def handle_timer(self, now: float) -> None:
        if self.deadline is not None and now >= self.deadline:
            self._missing(now)

    def _refuse(self, syndrome: Syndrome, detail: str) -> bool:
        """End the connection, have ``syndrome`` sent to the peer, and return False."""
        self._fatal = syndrome
        cause = CloseCause.REMOTE_ACCESS if syndrome is Syndrome.REMOTE_ACCESS else CloseCause.PROTOCOL
        self._fail(CloseReason(cause, detail))
        return False

    def _wrong_length(self) -> bool:
        return self._refuse(Syndrome.INVALID_REQUEST, "packet of a wrong length")

    def _complete_packet(self, part: int) -> bool:
        self._expected += 1
        if part & _LAST:
            self._message = None
            self._msn += 1
        return True

    def _on_send(self, opcode: int, part: int, packet: memoryview, end: int, now: float) -> bool:
        start = 12
        invalidate: int | None = None
        if opcode >= Opcode.SEND_LAST_INVALIDATE:
            (invalidate,) = IETH.fields_from(packet, 12)
            start = 16
        size = end - start
        if part & _FIRST:
            if not self.receives:
                self._not_ready(now)
                return False
            self._buffer, self._context = self.receives[0]
            self._filled = 0
        if (size > self.mtu) if part & _LAST else (size != self.mtu):
            return self._wrong_length()
        position = self._filled
        if position + size > len(self._buffer):
            return self._refuse(Syndrome.INVALID_REQUEST, "message longer than its receive")
        if invalidate is not None:
            try:
                self._regions.remote_invalidate(invalidate)
            except AccessRefused as error:
                return self._refuse(Syndrome.REMOTE_ACCESS, f"invalidation: {error}")
        self._buffer[position : position + size] = packet[start:end]
        self._filled = position + size
        self._message = _SEND
        if part & _LAST:
            self.starved = False
            self.receives.popleft()
            self._counters["bytes_received"] += self._filled
            self._completions.append(Completion(Operation.RECEIVE, Status.OK, self._context, self._filled, invalidate))
            self._buffer, self._context = memoryview(b""), None
        return self._complete_packet(part)

    def _not_ready(self, now: float) -> None:
        """Have the peer retry later with an RNR NAK; the peer ends the connection after too many retries.
        [IBTA 9.7.5.2.8]"""
        self._counters["rnr_sent"] += 1
        self.starved = True
        self._nak = Syndrome.RNR | RNR_TIMER
        self._nak_sent = now

    def _on_write(self, part: int, packet: memoryview, end: int) -> bool:
        start = 12
        if part & _FIRST:
            address, token, length = RETH.fields_from(packet, 12)
            start = 28
            try:
                found = self._regions.find(token, address, length, Access.REMOTE_WRITE) if length else _NOWHERE
            except AccessRefused as error:
                return self._refuse(Syndrome.REMOTE_ACCESS, f"RDMA Write: {error}")
            self._region, self._position = found
            self._left = length
        size = end - start
        # 9.7.4.1.6: full packets up to the last, which holds exactly the rest.
        if (size != self._left or size > self.mtu) if part & _LAST else (size != self.mtu or size >= self._left):
            return self._wrong_length()
        region = self._region
        if region is not None:
            if not region.valid:
                return self._refuse(Syndrome.REMOTE_ACCESS, "RDMA Write: invalidated under way")
            position = self._position
            if region.file is None:
                region.memory[position : position + size] = packet[start:end]
            else:
                try:
                    region.file.write(position, (packet[start:end],))
                except AccessRefused as error:
                    return self._refuse(Syndrome.REMOTE_ACCESS, f"RDMA Write: {error}")
            self._position = position + size
            self._left -= size
            self._counters["bytes_placed"] += size
        self._message = _WRITE
        if part & _LAST:
            self._region = None
        return self._complete_packet(part)

    def _on_read(self, packet: memoryview, end: int) -> bool:
        address, token, length = RETH.fields_from(packet, 12)
        if end != 28:
            return self._wrong_length()
        if len(self._reads) >= MAX_PENDING_READS:
            return self._refuse(Syndrome.INVALID_REQUEST, "more RDMA Reads outstanding than agreed")
        try:
            region, position = self._regions.find(token, address, length, Access.REMOTE_READ) if length else _NOWHERE
        except AccessRefused as error:
            return self._refuse(Syndrome.REMOTE_ACCESS, f"RDMA Read: {error}")
        self._msn += 1
        self._reads.append(_ReadAnswer(region, position, length, self._expected, self._msn))
        self._expected += -(-length // self.mtu) or 1
        return True

    def _repeat_read(self, number: int, packet: memoryview, end: int) -> None:
        """Carry out a duplicate RDMA Read again if it is still allowed, else drop it. [IBTA 9.7.5.1.4]"""
        address, token, length = RETH.fields_from(packet, 12)
        after = number + (-(-length // self.mtu) or 1)
        if end != 28 or after > self._expected:
            return
        try:
            region, position = self._regions.find(token, address, length, Access.REMOTE_READ) if length else _NOWHERE
        except AccessRefused:
            return
        # Responses that are still queued for the same packets need not be sent twice.
        kept = [a for a in self._reads if a.psn < number or a.psn + (-(-a.left // self.mtu) or 1) > after]
        if len(kept) < MAX_PENDING_READS:
            self._reads = deque([*kept, _ReadAnswer(region, position, length, number, self._msn)])

    def _on_atomic(self, opcode: int, packet: memoryview, end: int) -> bool:
        """Carry out an atomic operation. It is done when it arrives, so whatever comes later sees it. [IBTA 9.4.5]"""
        address, token, operand, compare = ATOMIC_ETH.fields_from(packet, 12)
        if end != 12 + ATOMIC_ETH.size:
            return self._wrong_length()
        if len(self._reads) >= MAX_PENDING_READS:
            return self._refuse(Syndrome.INVALID_REQUEST, "more RDMA Reads and atomic operations than agreed")
        try:
            found = self._regions.change(token, address, compare if opcode == Opcode.COMPARE_SWAP else None, operand)
        except AccessRefused as error:
            misplaced = error.fault is Fault.ALIGNMENT
            return self._refuse(
                Syndrome.INVALID_REQUEST if misplaced else Syndrome.REMOTE_ACCESS, f"atomic operation: {error}"
            )
        self._counters["changes"] += 1
        self._results[self._expected] = found
        if len(self._results) > MAX_PENDING_READS:
            del self._results[next(iter(self._results))]
        self._msn += 1
        self._reads.append(_ReadAnswer(None, 0, 0, self._expected, self._msn, found=found))
        self._expected += 1
        return True

    def _repeat_atomic(self, number: int) -> None:
        """Answer a repeated atomic operation as the first time, or drop it if that is not known any longer."""
        found = self._results.get(number)
        if found is None or len(self._reads) >= MAX_PENDING_READS:
            return
        if all(answer.psn != number for answer in self._reads):
            self._reads.append(_ReadAnswer(None, 0, 0, number, self._msn, found=found))

    # -- out -----------------------------------------------------------------------------------------------------

    def transmit(self, path: Path, budget: int) -> int:
        """Send read responses, at most ``budget`` packets, then the acknowledgement. Return the rest of the budget."""
        if self.cold is not None:
            return budget
        while self._reads and budget > 0 and path.ready:
            answer = self._reads[0]
            count = min(budget, (answer.left - 1) // self.mtu)
            try:
                if count > 1 and not answer.first and answer.region is not None and answer.region.valid:
                    budget -= self._answer_middles(path, answer, answer.region, count)
                    continue
                if not self._answer(path, answer):
                    return budget
            except AccessRefused as error:
                self._break_off(answer, str(error))
                return budget
            except NotCached as error:
                self.cold = error
                return budget
            budget -= 1
        if self._reads or not path.ready:
            return budget
        if self._nak is not None:
            # A NAK acknowledges everything before its own number.
            self._send_aeth(path, self._nak, self._expected)
            if self._nak == Syndrome.SEQUENCE_ERROR:
                self._counters["naks_sent"] += 1
            self._nak = None
            self._acknowledge = False
        elif self._acknowledge:
            self._acknowledge = False
            self._send_aeth(path, Syndrome.ACK, self._expected - 1)
        return budget

    def transmit_refusal(self, path: Path) -> None:
        """Send the NAK that ended the connection, if there is one."""
        if self._fatal is not None:
            self._send_aeth(path, self._fatal, self._expected)
            self._counters["naks_sent"] += 1
            self._fatal = None

    def _send_aeth(self, path: Path, syndrome: int, psn: int) -> None:
        aeth = AETH.pack_fields(syndrome << 24 | self._msn & PSN_MASK)
        path.send(Opcode.ACKNOWLEDGE, 0, psn & PSN_MASK, False, aeth, (), 0)

    def _answer_middles(self, path: Path, answer: _ReadAnswer, region: Region, count: int) -> int:
        """Send several packets of a read response, neither the first nor the last one. Return how many were sent."""
        if region.file is None:
            memory = region.memory[answer.position : answer.position + count * self.mtu]
        else:
            memory = region.file.read(answer.position, count * self.mtu)
        sent = path.send_middles(Opcode.READ_RESPONSE_MIDDLE, answer.psn, memory, count)
        size = sent * self.mtu
        self._counters["bytes_served"] += size
        answer.psn += sent
        answer.position += size
        answer.left -= size
        return sent

    def _break_off(self, answer: _ReadAnswer, detail: str) -> bool:
        """Refuse the rest of a read response, which ends the connection."""
        self._reads.clear()
        self._expected = answer.psn
        return self._refuse(Syndrome.REMOTE_ACCESS, f"RDMA Read: {detail}")

    def _answer(self, path: Path, answer: _ReadAnswer) -> bool:
        """Send one packet of a read response. Return False if its region is no longer valid, which ends the
        connection. Raise ``AccessRefused`` if it is that of a file which does not have the data any longer."""
        size = min(self.mtu, answer.left)
        segments: tuple[Buffer, ...] = ()
        region = answer.region
        if region is not None:
            if not region.valid:
                return self._break_off(answer, "invalidated under way")
            if region.file is None:
                segments = (region.memory[answer.position : answer.position + size],)
            else:
                segments = (region.file.read(answer.position, size),)
        elif answer.found is not None:
            return self._answer_atomic(path, answer, answer.found)
        last = size == answer.left
        extension = b""
        if answer.first:
            opcode = Opcode.READ_RESPONSE_ONLY if last else Opcode.READ_RESPONSE_FIRST
        else:
            opcode = Opcode.READ_RESPONSE_LAST if last else Opcode.READ_RESPONSE_MIDDLE
        if answer.first or last:
            extension = AETH.pack_fields(Syndrome.ACK << 24 | answer.msn & PSN_MASK)
        path.send(opcode, 0, answer.psn & PSN_MASK, False, extension, segments, size)
        self._counters["bytes_served"] += size
        answer.first = False
        answer.psn += 1
        answer.position += size
        answer.left -= size
        if last:
            self._reads.popleft()
        return True

    def _answer_atomic(self, path: Path, answer: _ReadAnswer, found: int) -> bool:
        word = Syndrome.ACK << 24 | answer.msn & PSN_MASK
        extension = AETH.pack_fields(word) + ATOMIC_ACK_ETH.pack_fields(found)
        path.send(Opcode.ATOMIC_ACKNOWLEDGE, 0, answer.psn & PSN_MASK, False, extension, (), 0)
        self._reads.popleft()
        return True

    # -- the end -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Complete all receives as flushed."""
        # The queue pair refers to this object. Breaking the circle frees both without the garbage collector.
        self._fail = ignore
        self._reads.clear()
        self._acknowledge = False
        self._nak = None
        self._region = None
        self._early.clear()
        self.deadline = None
        self._completions += (Completion(Operation.RECEIVE, Status.FLUSHED, context) for _, context in self.receives)
        self.receives.clear()
