"""One reliable connection: requester and responder over one path, without I/O and clock.

``receive`` processes packets whose ICRC was checked. ``transmit`` sends to a ``Path``. ``next_deadline`` and
``handle_timer`` are for the owner of the clock. Completions are collected in ``completions``; a ``failure`` means that
the connection is over.
"""

from __future__ import annotations

from smbdirect.providers.base import CloseReason, Completion
from smbdirect.providers.memory import RegionTable
from smbdirect.providers.roce.arrival import MIN_PACKET, Run
from smbdirect.providers.roce.batch_calls import Awaited
from smbdirect.providers.roce.headers import (
    ACK_REQUEST,
    AETH,
    ATOMIC_ACK_ETH,
    BTH_STRUCT,
    DEFAULT_PKEY,
    EXTENSION_LENGTH,
    HEAD,
    ICRC_LENGTH,
    MIGRATED,
    PSN_MASK,
    Opcode,
)
from smbdirect.providers.roce.icrc import Flow
from smbdirect.providers.roce.requester import Path, Requester
from smbdirect.providers.roce.responder import REQUEST_OPCODES, Responder
from smbdirect.providers.roce.retry import CNP_INTERVAL

COUNTERS = (
    "registrations", "allocations", "sends", "writes", "reads", "atomics", "changes",
    "bytes_sent", "bytes_written", "bytes_read", "bytes_received", "bytes_placed", "bytes_served",
    "packets_sent", "packets_received", "retransmissions", "timeouts",
    "duplicates", "naks_sent", "naks_received", "rnr_sent", "rnr_received", "crc_errors", "malformed", "ecn_marks",
    "cnp_sent", "cnp_received",
)  # fmt: skip
"""Counters of one connection. ``allocations`` counts packets that had to be kept: they arrived before an earlier one,
or the socket did not accept them immediately. ``bytes_placed`` and ``bytes_served`` count the bytes that the peer wrote
into and read from our regions, ``changes`` its atomic operations on them that were carried out."""

_RESPONSES = frozenset(range(Opcode.READ_RESPONSE_FIRST, Opcode.READ_RESPONSE_ONLY + 1))
_RESERVED_16 = bytes(16)


class QueuePair:
    """The send and receive queues of one reliable connection."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.completions: list[Completion] = []
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.regions = RegionTable()
        self.failure: CloseReason | None = None
        self.requester = Requester(self.completions, self.counters, self.fail)
        self.responder = Responder(self.regions, self.completions, self.counters, self.fail)
        self.ready_to_receive = False
        self.ready_to_send = False
        self._write_head = HEAD.pack(Opcode.WRITE_MIDDLE, MIGRATED, DEFAULT_PKEY, number)
        self._response_head = HEAD.pack(Opcode.READ_RESPONSE_MIDDLE, MIGRATED, DEFAULT_PKEY, number)
        self._cnp_due = False
        self._cnp_sent = 0.0
        self._flushed = False

    def start(self, send_psn: int, receive_psn: int, mtu: int, max_reads: int, rnr_retry: int) -> None:
        """Accept packets from now on: the peer's parameters are known. Sends wait for ``ready_to_send``.

        ``send_psn`` and ``receive_psn`` are the first packet sequence numbers, ``mtu`` is the payload size in bytes,
        ``max_reads`` limits the RDMA Reads in flight, and ``rnr_retry`` is the retry count after RNR NAKs.
        """
        self.requester.start(send_psn, mtu, max_reads, rnr_retry)
        self.responder.start(receive_psn, mtu)
        self.ready_to_receive = True

    def fail(self, reason: CloseReason) -> None:
        """Note that the connection is over for ``reason`` (only the first one counts). The NAK for the peer is still
        sent."""
        if self.failure is None:
            self.failure = reason

    def receive(self, packet: memoryview, now: float) -> None:
        """Process one packet from its BTH to its ICRC, which the caller has checked. Malformed packets are counted and
        dropped: only a packet that passes those checks can end the connection. [IBTA 9.6]"""
        if not self.ready_to_receive or self.failure is not None:
            return
        opcode, flags, pkey, _, word = BTH_STRUCT.unpack_from(packet)
        self.counters["packets_received"] += 1
        end = len(packet) - ICRC_LENGTH - (flags >> 4 & 3)
        extension = EXTENSION_LENGTH.get(opcode)
        if extension is None or end < 12 + extension or flags & 0x0F or pkey & 0x7FFF != 0x7FFF:
            self.counters["malformed"] += 1
            return
        if opcode in REQUEST_OPCODES:
            self.responder.on_request(opcode, word & PSN_MASK, bool(word & ACK_REQUEST), packet, end, now)
        elif opcode in _RESPONSES:
            self.requester.on_read_response(word & PSN_MASK, packet[12 + extension : end], now)
        elif opcode == Opcode.ACKNOWLEDGE:
            self.requester.on_acknowledge(word & PSN_MASK, packet[12], now)
        elif opcode == Opcode.ATOMIC_ACKNOWLEDGE:
            (found,) = ATOMIC_ACK_ETH.fields_from(packet, 12 + AETH.size)
            self.requester.on_atomic_acknowledge(word & PSN_MASK, found, now)
        elif opcode == Opcode.CNP:
            self.counters["cnp_received"] += 1
            self.requester.congested(now)
        else:
            self.counters["malformed"] += 1

    def receive_run(self, run: Run, now: float) -> None:
        """Process several packets. Those in the middle of the message that is expected are placed in one pass; anything
        else is processed packet by packet."""
        opcode, flags, pkey, _ = HEAD.unpack(run.head)
        if self.ready_to_receive and self.failure is None and flags == MIGRATED and pkey & 0x7FFF == 0x7FFF:
            placed = False
            if opcode == Opcode.WRITE_MIDDLE:
                placed = self.responder.on_write_run(run)
            elif opcode == Opcode.READ_RESPONSE_MIDDLE:
                placed = self.requester.on_read_run(run, now)
            if placed:
                self.counters["packets_received"] += run.number
                return
        for packet in run.split():
            self.receive(packet, now)

    def awaited(self, flow: Flow) -> Awaited | None:
        """Return the packets that are due in the middle of a message, if they are to be placed in memory and nothing
        else. ``flow`` is the one that they come by."""
        if not self.ready_to_receive or self.failure is not None:
            return None
        head, due = self._write_head, self.responder.awaited()
        if due is None:
            head, due = self._response_head, self.requester.awaited()
            if due is None:
                return None
        psn, memory, position, size, number = due
        return Awaited(head, psn, memory, position, size, number, flow.states(size + MIN_PACKET, head))

    def on_placed(self, number: int, words: int, now: float) -> None:
        """Note that the first ``number`` packets that are ``awaited`` were placed. ``words``: see ``Run``."""
        self.counters["packets_received"] += number
        if self.responder.awaited() is not None:
            self.responder.on_placed(number, words)
        else:
            self.requester.on_placed(number, now)

    def congestion_seen(self, now: float) -> None:
        """Have the sender notified of a packet that arrived with the IP header's congestion mark. [IBTA A17.9.3]"""
        self.counters["ecn_marks"] += 1
        if now - self._cnp_sent >= CNP_INTERVAL:
            self._cnp_sent = now
            self._cnp_due = True

    def transmit(self, path: Path, now: float, budget: int) -> bool:
        """Send what is due, at most about ``budget`` packets. Return whether more could be sent immediately."""
        if not self.ready_to_receive:
            return False
        if self._cnp_due:
            self._cnp_due = False
            self.counters["cnp_sent"] += 1
            path.send(Opcode.CNP, 0, 0, False, _RESERVED_16, (), 0)
        if self.failure is None:
            budget = self.responder.transmit(path, budget)
        if self.failure is not None:
            self.responder.transmit_refusal(path)
            return False
        if budget > 0 and self.ready_to_send:
            budget = self.requester.transmit(path, now, budget)
        return budget <= 0 and path.ready

    @property
    def next_deadline(self) -> float | None:
        """When to call ``handle_timer``; None means not before another event."""
        first, second = self.requester.deadline, self.responder.deadline
        if first is None or second is None:
            return second if first is None else first
        return min(first, second)

    def handle_timer(self, now: float) -> None:
        """Handle the deadlines that have passed."""
        if self.failure is None:
            self.responder.handle_timer(now)
            self.requester.handle_timer(now)

    def flush(self) -> None:
        """Complete everything outstanding and invalidate all regions. Idempotent."""
        if self._flushed:
            return
        self._flushed = True
        self.ready_to_receive = self.ready_to_send = False
        self.requester.flush()
        self.responder.flush()
        self.regions.invalidate_all()
