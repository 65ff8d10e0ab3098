"""The requester half of a reliable connection. No I/O, no clock. [IBTA volume 1, 9.7.5]

Sends, RDMA Writes and Reads go out; their acknowledgements and read responses come in. Packet sequence numbers are
counted without wrapping and truncated to 24 bits on the wire. A message gets its numbers when its first packet is sent.
After a loss, packets are sent again from the lost number on (go-back-N), rebuilt from the work request.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from smbdirect.codec import Buffer
from smbdirect.providers.base import ATOMIC_SIZE, CloseCause, CloseReason, Completion, Operation, Status, ignore
from smbdirect.providers.roce.arrival import Run
from smbdirect.providers.roce.headers import (
    ATOMIC_ETH,
    IETH,
    PSN_MASK,
    RETH,
    RNR_DELAYS,
    SOLICITED,
    Opcode,
    Syndrome,
    extend_psn,
)
from smbdirect.providers.roce.retry import MAX_WINDOW, RetryTimer, Window

READ_PACKETS = 128
"""Most packets requested by one RDMA Read request, and half of the window, so that two requests can be in flight."""
READ_UNIT = 16
"""Packets requested by a repeated RDMA Read request. All requests begin and end at multiples of it, so that a repeated
request never reaches beyond the first one that the peer saw."""
ACK_EVERY = 128
"""At least every so many packets request an acknowledgement, and twice in a window."""
REORDER_DELAY = 0.002
"""Seconds that a missing packet may be late before it counts as lost. Networks with several paths reorder packets, and
a retransmission can harm peers: if a registration stands between the messages that Linux's rxe repeats, rxe executes it
again, which fails and ends its connection."""
NO_RNR_LIMIT = 7
"""RNR retry count that means no limit (9.7.5.2.8)."""


class Path(Protocol):
    """The way for packets to the peer."""

    @property
    def ready(self) -> bool:
        """Whether the network accepts more packets at present."""

    def send(
        self,
        opcode: int,
        flags: int,
        psn: int,
        ack_request: bool,
        extension: bytes,
        segments: Sequence[Buffer],
        size: int,
    ) -> None:
        """Send one packet. ``size`` is the length of the concatenated ``segments``, which may change after the
        return."""

    def send_middles(
        self, opcode: int, psn: int, memory: memoryview, count: int, countdown: int = 0, ask_every: int = 0
    ) -> int:
        """Send ``memory`` in ``count`` packets of the path's MTU without extension headers, numbered from ``psn`` on.
        The ``countdown``-th packet, and after it every ``ask_every``-th, requests an acknowledgement (with 0 none
        does). Return how many were sent: fewer if ``ready`` became False."""


_Opcodes = Mapping[tuple[bool, bool], Opcode]
"""Keys: whether a packet is the first of its message, and whether it is the last."""
_SEND: _Opcodes = {
    (True, True): Opcode.SEND_ONLY,
    (True, False): Opcode.SEND_FIRST,
    (False, False): Opcode.SEND_MIDDLE,
    (False, True): Opcode.SEND_LAST,
}
_SEND_INVALIDATE: _Opcodes = {
    **_SEND,
    (True, True): Opcode.SEND_ONLY_INVALIDATE,
    (False, True): Opcode.SEND_LAST_INVALIDATE,
}
_WRITE: _Opcodes = {
    (True, True): Opcode.WRITE_ONLY,
    (True, False): Opcode.WRITE_FIRST,
    (False, False): Opcode.WRITE_MIDDLE,
    (False, True): Opcode.WRITE_LAST,
}


_MIDDLE = {Operation.SEND: Opcode.SEND_MIDDLE, Operation.WRITE: Opcode.WRITE_MIDDLE}
_READ = Operation.READ


@dataclass(slots=True, eq=False)
class Work:
    """One work request in the send queue."""

    operation: Operation
    segments: Sequence[memoryview]
    length: int
    context: object
    signalled: bool
    token: int = 0
    address: int = 0
    invalidate: int | None = None
    atomic: tuple[int | None, int] | None = None
    """(compare, operand) of an ``Atomic``, which is a Read that has one packet in each direction and ``length`` 0."""
    answered: bool = False
    """Whether the number that an ``Atomic`` found is in ``segments``."""
    # Invariant: the numbers of the first and the last packet, once one was sent.
    first: int = 0
    last: int = 0


def cut(segments: Sequence[memoryview], offset: int, size: int) -> list[memoryview]:
    """Return ``size`` bytes at ``offset`` of the concatenated ``segments``."""
    if len(segments) == 1:
        return [segments[0][offset : offset + size]]
    pieces = []
    for segment in segments:
        length = len(segment)
        if offset >= length:
            offset -= length
            continue
        piece = segment[offset : offset + size]
        pieces.append(piece)
        size -= len(piece)
        if not size:
            break
        offset = 0
    return pieces


def _atomic_request(work: Work, atomic: tuple[int | None, int]) -> tuple[Opcode, bytes]:
    """Return opcode and extension header of an ``Atomic``."""
    compare, operand = atomic
    opcode = Opcode.FETCH_ADD if compare is None else Opcode.COMPARE_SWAP
    return opcode, ATOMIC_ETH.pack_fields(work.address, work.token, operand, compare or 0)


def locate(segments: Sequence[memoryview], offset: int) -> tuple[memoryview, int] | None:
    """Return the segment with the byte at ``offset`` of the concatenated ``segments``, and where that byte is in it."""
    for segment in segments:
        if offset < len(segment):
            return segment, offset
        offset -= len(segment)
    return None


class Requester:
    """The send queue of one queue pair. ``fail(reason)`` is called when it cannot continue."""

    def __init__(self, completions: list[Completion], counters: dict[str, int], fail: Callable[[CloseReason], None]):
        self.window = Window()
        self.timer = RetryTimer()
        self.mtu = 1024
        self.max_reads = 1
        self.rnr_retry = NO_RNR_LIMIT
        self._completions = completions
        self._counters = counters
        self._fail = fail
        self._queue: deque[Work] = deque()
        """Work of which nothing was sent."""
        self._sent: deque[Work] = deque()
        """Work that has packet numbers and is not completed, the oldest first."""
        self._index = 0
        """Invariant: how many of ``_sent`` lie wholly before ``_next``."""
        self._una = self._next = self._high = 0
        """The oldest unacknowledged packet, the next one to send, and the first one never sent. Invariant between
        calls: ``_una <= _next <= _high``."""
        self._reads: deque[int] = deque()
        """The last packet of each read request in flight."""
        self._since_ack = 0
        self._timed: tuple[int, float] | None = None
        self._early: dict[int, bytes] = {}
        """Payloads of read responses that arrived before an earlier one."""
        self._acknowledged = 0
        """The peer acknowledged everything below this number, but a part of it waits for an RDMA Read's data."""
        self._gap_deadline: float | None = None
        self._rnr_until = 0.0
        self._rnr_tries = 0
        self._deadline: float | None = None

    @property
    def deadline(self) -> float | None:
        """When to call ``handle_timer``, or None."""
        if self._gap_deadline is None or self._deadline is None:
            return self._deadline if self._gap_deadline is None else self._gap_deadline
        return min(self._deadline, self._gap_deadline)

    def start(self, psn: int, mtu: int, max_reads: int, rnr_retry: int) -> None:
        """Take over the parameters of the connection."""
        self._una = self._next = self._high = psn
        self.mtu = mtu
        self.max_reads = max_reads
        self.rnr_retry = rnr_retry

    @property
    def queued(self) -> int:
        """How many work requests are not completed."""
        return len(self._queue) + len(self._sent)

    @property
    def idle(self) -> bool:
        """Whether all work requests are completed."""
        return not self._sent and not self._queue

    def post(self, works: Iterable[Work]) -> None:
        """Queue work requests."""
        self._queue.extend(works)

    # -- out -----------------------------------------------------------------------------------------------------

    def transmit(self, path: Path, now: float, budget: int) -> int:
        """Send what the window allows, at most about ``budget`` packets. Return the rest of the budget."""
        if now < self._rnr_until:
            return budget
        start = self._next
        while budget > 0 and path.ready:
            room = self.window.size - (self._next - self._una)
            if room <= 0:
                break
            if self._index < len(self._sent):
                work = self._sent[self._index]
            elif self._queue:
                work = self._queue.popleft()
                work.first = self._next
                work.last = self._next + (-(-work.length // self.mtu) or 1) - 1
                self._sent.append(work)
            else:
                break
            if work.operation is _READ:
                if not self._send_read(path, work, now, room):
                    break
                budget -= 1
            else:
                budget = self._send_data(path, work, now, min(room, budget), budget)
            if self._next > work.last:
                self._index += 1
        if self._next > start and self._deadline is None:
            self._deadline = now + self.timer.timeout
        return budget

    def _send_read(self, path: Path, work: Work, now: float, room: int) -> bool:
        if not self.max_reads:
            self._break(Status.LOCAL_ERROR, CloseCause.PROTOCOL, "the peer accepts no RDMA Reads")
            return False
        position = self._next - work.first
        count = READ_UNIT - position % READ_UNIT
        if self._next == self._high:
            count = max(count, min(READ_PACKETS, self.window.size // 2, room) // READ_UNIT * READ_UNIT)
        count = min(count, work.last + 1 - self._next)
        if count > room or len(self._reads) >= self.max_reads:
            return False
        offset = position * self.mtu
        length = min(work.length - offset, count * self.mtu)
        if self._next < self._high:
            self._counters["retransmissions"] += 1
        elif self._timed is None:
            self._timed = (self._next, now)
        if work.atomic is not None:
            opcode, request = _atomic_request(work, work.atomic)
        else:
            opcode = Opcode.READ_REQUEST
            request = RETH.pack_fields((work.address + offset) & 0xFFFFFFFFFFFFFFFF, work.token, length)
        path.send(opcode, 0, self._next & PSN_MASK, True, request, (), 0)
        self._next += count
        self._reads.append(self._next - 1)
        self._high = max(self._high, self._next)
        self._since_ack = 0
        return True

    def _send_data(self, path: Path, work: Work, now: float, count: int, budget: int) -> int:
        """Send up to ``count`` packets of a Send or Write. Return the rest of ``budget``."""
        psn, last = self._next, work.last
        half = min(ACK_EVERY, max(1, self.window.size // 2))
        end = min(last + 1, psn + count)
        budget -= end - psn
        if psn < self._high:
            self._counters["retransmissions"] += min(end, self._high) - psn
            self._since_ack = half
        while psn < end:
            middles = min(end, last) - psn
            if middles > 1 and psn != work.first:
                # Those whose payload lies in one segment are sent together.
                found = locate(work.segments, (psn - work.first) * self.mtu)
                if found is not None:
                    segment, offset = found
                    middles = min(middles, (len(segment) - offset) // self.mtu)
                    if middles > 1:
                        memory = segment[offset : offset + middles * self.mtu]
                        sent = self._send_middles(path, _MIDDLE[work.operation], psn, memory, middles, half, now)
                        psn += sent
                        if sent < middles:
                            break
                        continue
            self._send_packet(path, work, psn, half, now)
            psn += 1
            if not path.ready:
                break
        self._next = psn
        self._high = max(self._high, psn)
        return budget

    def _send_packet(self, path: Path, work: Work, psn: int, half: int, now: float) -> None:
        """Send packet ``psn`` of a Send or Write, and request an acknowledgement if one is due."""
        first, final = psn == work.first, psn == work.last
        offset = (psn - work.first) * self.mtu
        size = work.length - offset if final else self.mtu
        extension, flags, opcodes = b"", 0, _SEND
        if work.operation is Operation.WRITE:
            opcodes = _WRITE
            if first:
                extension = RETH.pack_fields(work.address, work.token, work.length)
        elif final:
            flags = SOLICITED
            if work.invalidate is not None:
                opcodes = _SEND_INVALIDATE
                extension = IETH.pack_fields(work.invalidate)
        self._since_ack += 1
        ask = self._since_ack >= half or (final and (work.signalled or not self._queue))
        if ask:
            self._since_ack = 0
            if self._timed is None and psn >= self._high:
                self._timed = (psn, now)
        segments = cut(work.segments, offset, size)
        path.send(opcodes[first, final], flags, psn & PSN_MASK, ask, extension, segments, size)

    def _send_middles(
        self, path: Path, opcode: int, psn: int, memory: memoryview, count: int, half: int, now: float
    ) -> int:
        countdown = max(1, half - self._since_ack)
        sent = path.send_middles(opcode, psn, memory, count, countdown, half)
        if sent < countdown:
            self._since_ack += sent
            return sent
        self._since_ack = (sent - countdown) % half
        if self._timed is None and psn + countdown - 1 >= self._high:
            self._timed = (psn + countdown - 1, now)
        return sent

    # -- in ------------------------------------------------------------------------------------------------------

    def on_acknowledge(self, psn: int, syndrome: int, now: float) -> None:
        """Process an ACKNOWLEDGE packet. Numbers that were never sent, or acknowledged before, are ignored.
        [IBTA 9.7.5.2]"""
        number = extend_psn(psn, self._una)
        if number >= self._high or number < self._una - 1:
            return
        kind = syndrome >> 5
        if kind == Syndrome.ACK >> 5:
            self._advance(number + 1, now)
        elif number < self._una:
            return
        elif kind == Syndrome.RNR >> 5:
            self._advance(number, now)
            self._receiver_not_ready(number, syndrome & 0x1F, now)
        elif kind == Syndrome.SEQUENCE_ERROR >> 5:
            self._advance(number, now)
            self._refused(number, syndrome, now)

    def _advance(self, upto: int, now: float) -> None:
        """Note that everything below ``upto`` was carried out. If the data of an RDMA Read in between does not arrive
        soon, it is requested again (implicit NAK). [IBTA 9.7.5.2.5]"""
        before = self._una
        while self._sent:
            work = self._sent[0]
            if work.first >= upto:
                break
            if work.operation is _READ:
                self._una = max(self._una, work.first)
                if self._una < upto:
                    self._acknowledged = max(self._acknowledged, upto)
                    if self._gap_deadline is None:
                        self._gap_deadline = now + max(REORDER_DELAY, self.timer.round_trip)
                self._progressed(before, now)
                return
            if work.last >= upto:
                break
            self._finish(work)
        self._una = max(self._una, upto)
        self._progressed(before, now)

    def _finish(self, work: Work) -> None:
        """Complete ``work``, which is the oldest one."""
        self._sent.popleft()
        self._index = max(0, self._index - 1)
        self._una = work.last + 1
        if work.signalled:
            self._completions.append(Completion(work.operation, Status.OK, work.context))

    def _progressed(self, before: int, now: float) -> None:
        """Update timers and window if the oldest unacknowledged packet is no longer ``before``."""
        una = self._una
        if una == before:
            return
        if self._next < una:
            self._next = una
            self._index = 0
        while self._reads and self._reads[0] < una:
            self._reads.popleft()
        timed = self._timed
        if timed is not None and timed[0] < una:
            self.timer.measured(now - timed[1])
            self._timed = None
        self.timer.progress()
        self._rnr_tries = 0
        self.window.acknowledged(una - before)
        self._deadline = now + self.timer.timeout if una < self._next else None

    def on_read_response(self, psn: int, payload: memoryview, now: float) -> None:
        """Place one packet of a read response; its number determines the place. [IBTA 9.7.5.2.4]"""
        number = extend_psn(psn, self._una)
        if number < self._una:
            self._counters["duplicates"] += 1
            return
        if number >= self._high:
            return
        if number > self._una:
            self._advance(number, now)
            if self._una != number:
                if len(self._early) < MAX_WINDOW:
                    self._early[number] = bytes(payload)
                    self._counters["allocations"] += 1
                return
        before = self._una
        data: memoryview | bytes | None = payload
        while data is not None and self._place(data):
            data = self._early.pop(self._una, None)
        self._gap_deadline = None
        self._progressed(before, now)
        if self._acknowledged > self._una:
            self._advance(self._acknowledged, now)
        if self._early:
            self._early = {key: value for key, value in self._early.items() if key > self._una}

    def on_atomic_acknowledge(self, psn: int, found: int, now: float) -> None:
        """Process an ATOMIC Acknowledge packet. One that belongs to no ``Atomic`` in flight is dropped.
        [IBTA 9.7.5.2.4]"""
        number = extend_psn(psn, self._una)
        for work in self._sent:
            if work.first == number and work.atomic is not None and number < self._high:
                work.segments[0][:] = found.to_bytes(ATOMIC_SIZE, sys.byteorder)
                work.answered = True
                self.on_read_response(psn, memoryview(b""), now)
                return
        self._counters["duplicates"] += 1

    def on_read_run(self, run: Run, now: float) -> bool:
        """Place several middle packets of a read response at once, if they are the expected ones. Return False, and do
        nothing, if anything is unusual."""
        due = self.awaited()
        if due is None:
            return False
        psn, memory, position, size, number = due
        if extend_psn(run.psn, psn) != psn or run.payload_length() != size or run.number > number:
            return False
        run.place(memory, position)
        self.on_placed(run.number, now)
        return True

    def awaited(self) -> tuple[int, memoryview, int, int, int] | None:
        """Return the packets of a read response that are due and lie one behind the other in one segment, all but the
        last, if nothing is unusual: the first number, the memory, the place there, bytes of each payload, how many
        there are. Middle packets among them are only to be placed."""
        work = self._sent[0] if self._sent else None
        una, mtu = self._una, self.mtu
        if work is None or work.operation is not _READ or self._early or una < work.first:
            return None
        found = locate(work.segments, (una - work.first) * mtu)
        if found is None:
            return None
        memory, position = found
        number = min(work.last - una, self._high - una, (len(memory) - position) // mtu)
        return (una, memory, position, mtu, number) if number > 0 else None

    def on_placed(self, number: int, now: float) -> None:
        """Note that the next ``number`` middle packets of a read response were placed."""
        before = self._una
        self._counters["bytes_read"] += number * self.mtu
        self._una = before + number
        self._gap_deadline = None
        self._progressed(before, now)
        if self._acknowledged > self._una:
            self._advance(self._acknowledged, now)

    def _place(self, payload: memoryview | bytes) -> bool:
        """Place the next packet of the oldest work request. Return False if that is not an RDMA Read or the packet does
        not fit."""
        number = self._una
        work = self._sent[0] if self._sent else None
        if work is None or work.operation is not _READ or number < work.first:
            return False
        offset = (number - work.first) * self.mtu
        size = len(payload)
        if size != min(self.mtu, work.length - offset):
            self._break(Status.LENGTH, CloseCause.PROTOCOL, "read response of a wrong length")
            return False
        if size:
            if len(work.segments) == 1:
                work.segments[0][offset : offset + size] = payload
            else:
                position = 0
                for piece in cut(work.segments, offset, size):
                    piece[:] = payload[position : position + len(piece)]
                    position += len(piece)
            self._counters["bytes_read"] += size
        elif work.atomic is not None and not work.answered:
            self._break(Status.REMOTE_ERROR, CloseCause.PROTOCOL, "read response to an atomic operation")
            return False
        if number == work.last:
            self._finish(work)
        else:
            self._una = number + 1
        return True

    def _refused(self, psn: int, syndrome: int, now: float) -> None:
        self._counters["naks_received"] += 1
        if syndrome == Syndrome.SEQUENCE_ERROR:
            if self.timer.refused():
                self._break(Status.RETRY_EXCEEDED, CloseCause.TIMEOUT, "sequence NAKs without progress")
                return
            self.window.cut(now, self.timer.round_trip)
            self._go_back(psn, now)
        elif syndrome == Syndrome.REMOTE_ACCESS:
            self._break(Status.REMOTE_ACCESS, CloseCause.REMOTE_ACCESS, "refused by the peer")
        else:
            self._break(Status.REMOTE_ERROR, CloseCause.PROTOCOL, f"NAK {syndrome:#x} from the peer")

    def _receiver_not_ready(self, psn: int, code: int, now: float) -> None:
        self._counters["rnr_received"] += 1
        if self.rnr_retry != NO_RNR_LIMIT and self._rnr_tries >= self.rnr_retry:
            self._break(Status.RECEIVE_NOT_READY, CloseCause.NO_RECEIVE, "the peer posted no receive")
            return
        self._rnr_tries += 1
        self._go_back(psn, now)
        self._rnr_until = self._deadline = now + RNR_DELAYS[code] / 1000

    def _go_back(self, psn: int, now: float) -> None:
        """Have packets sent again from ``psn`` on."""
        self._next = psn
        self._index = sum(work.last < psn for work in self._sent)
        while self._reads and self._reads[-1] >= psn:
            self._reads.pop()
        self._timed = None
        self._deadline = now + self.timer.timeout

    # -- time ----------------------------------------------------------------------------------------------------

    def handle_timer(self, now: float) -> None:
        """Handle the deadlines that have passed."""
        if self._gap_deadline is not None and now >= self._gap_deadline:
            # Data of a read response is missing; it is not merely late.
            self._gap_deadline = None
            self.window.cut(now, self.timer.round_trip)
            self._go_back(self._una, now)
        if self._deadline is None or now < self._deadline:
            return
        if self._rnr_until:
            self._rnr_until = 0.0
            self._deadline = now + self.timer.timeout if self._una < self._high else None
            return
        if self._una == self._high:
            self._deadline = None
            return
        self._counters["timeouts"] += 1
        if self.timer.expired():
            self._break(Status.RETRY_EXCEEDED, CloseCause.TIMEOUT, "no acknowledgement")
            return
        self.window.cut(now, self.timer.round_trip)
        self._go_back(self._una, now)

    def congested(self, now: float) -> None:
        """Handle a congestion notification. [IBTA A17.9.3]"""
        self.window.cut(now, self.timer.round_trip)

    # -- the end -------------------------------------------------------------------------------------------------

    def _break(self, status: Status, cause: CloseCause, detail: str) -> None:
        """Fail the oldest work request with ``status`` and end the connection."""
        if self._sent:
            work = self._sent.popleft()
            self._completions.append(Completion(work.operation, status, work.context))
        self._fail(CloseReason(cause, detail))

    def flush(self) -> None:
        """Complete all work requests as flushed."""
        # The queue pair refers to this object. Breaking the circle frees both without the garbage collector.
        self._fail = ignore
        for queue in (self._sent, self._queue):
            self._completions += (Completion(work.operation, Status.FLUSHED, work.context) for work in queue)
            queue.clear()
        self._reads.clear()
        self._early.clear()
        self._deadline = self._gap_deadline = None
