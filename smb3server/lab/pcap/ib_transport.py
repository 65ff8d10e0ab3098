"""Read whole RDMA messages from the packets of reliable connections: InfiniBand, and RoCE, which carries the same.

A packet that is lost on the wire is sent again, and that breaks no rule. A packet that the receiver has acknowledged,
but that the capture does not have, is a loss of the capture.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from smb3server.lab.pcap import rules
from smb3server.lab.pcap.packets import IbPacket
from smb3server.lab.pcap.rdma import Kind, RdmaMessage, RdmaRequest, Wire
from smb3server.lab.pcap.tcp import Direction

BTH = 12
ICRC = 4

_SENDS = {0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x16, 0x17}
_WRITES = {0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B}
_RESPONSES = {0x0D, 0x0E, 0x0F, 0x10}
_READ_REQUEST, _ACK = 0x0C, 0x11
_FIRST = {0x00, 0x04, 0x05, 0x06, 0x0A, 0x0B, 0x0D, 0x10, 0x17}
_LAST = {0x02, 0x03, 0x04, 0x05, 0x08, 0x09, 0x0A, 0x0B, 0x0F, 0x10, 0x16, 0x17}
_IMMEDIATE = {0x03, 0x05, 0x09, 0x0B}
_INVALIDATE = {0x16, 0x17}
_RETH = {0x06, 0x0A, 0x0B, _READ_REQUEST}
_AETH = {0x0D, 0x0F, 0x10, _ACK}
_RELIABLE = 0x20
"""Opcodes below are those of reliable connections."""
_NAK, _RNR = 3, 1


def icrc(packet: IbPacket) -> int:
    """Return the invariant CRC that the packet should carry. [IBA 7.8.1, A17.3.3]"""
    bth = bytearray(packet.data[:BTH])
    bth[4] = 0xFF
    return zlib.crc32(packet.data[BTH:-ICRC], zlib.crc32(packet.covered + bth))


def psn_distance(a: int, b: int) -> int:
    """Return a - b modulo 2**24 as a signed number."""
    return (a - b + 0x800000 & 0xFFFFFF) - 0x800000


def _headers(opcode: int) -> int:
    """Return the bytes of the extended headers of an opcode."""
    return 16 * (opcode in _RETH) + 4 * (opcode in _AETH) + 4 * (opcode in _INVALIDATE) + 4 * (opcode in _IMMEDIATE)


class Packet(NamedTuple):
    """A packet of a reliable connection."""

    number: int
    time: float
    direction: Direction
    opcode: int
    psn: int
    body: bytes
    """Extended headers and payload, without padding and ICRC; zeros where the capture has nothing."""
    known: int
    """Bytes of ``body`` that were captured."""


class _Read(NamedTuple):
    """An RDMA Read that waits for its data."""

    first: int
    packets: int
    request: RdmaRequest


class _Gap(NamedTuple):
    """Packets that did not come in their turn."""

    number: int
    expected: int
    found: int


@dataclass
class _Half:
    """One direction: its requests in PSN order, and the responses to the other direction's Reads."""

    next_psn: int | None = None
    """None until the first request, if the capture does not have the set-up."""
    gap: _Gap | None = None
    refused: bool = False
    """Whether the receiver has said that packets of the gap are missing."""
    early: tuple[int, int] | None = None
    """Frame and PSN of an acknowledgement for a packet that the capture does not have."""
    partial: bytearray = field(default_factory=bytearray)
    started: bool = False
    """Whether the first packet of a message has come, and not the last."""
    midway: bool = False
    """Whether the next packets may belong to a message whose beginning was not captured."""
    whole: int = -1
    remote: tuple[int, int, int] | None = None
    """Address, key and length of the Write in progress."""
    reads: deque[_Read] = field(default_factory=deque)
    """RDMA Reads sent in this direction that have no response yet."""
    read_depth: int = 255
    response: bytearray = field(default_factory=bytearray)
    response_psn: int | None = None
    response_whole: int = -1


class ReliableConnection:
    """Reads the packets of one reliable connection, and delivers its messages to ``wire``."""

    def __init__(self, wire: Wire, mtu: int) -> None:
        self.wire = wire
        self.mtu = mtu
        """0 if the capture does not say."""
        self.halves = (_Half(), _Half())
        self._verdicts = wire.verdicts

    def begin(self, direction: Direction, psn: int, read_depth: int) -> None:
        """Set the first PSN of a direction, and how many RDMA Reads may be outstanding in it."""
        self.halves[direction].next_psn, self.halves[direction].read_depth = psn, read_depth

    def receive(self, packet: Packet) -> None:
        """Take the next packet."""
        opcode, check, number = packet.opcode, self._verdicts.check, packet.number
        known = opcode in _SENDS or opcode in _WRITES or opcode in _RESPONSES or opcode in (_READ_REQUEST, _ACK)
        whole = known and len(packet.body) >= _headers(opcode)
        text = "opcode {:#04x} with {} bytes"
        if not check(rules.IB_PACKET, whole, number, packet.direction, text, opcode, len(packet.body)):
            return
        if packet.known < _headers(opcode):
            self._lose(packet.direction, number, "the headers of a packet are not captured")
            return
        if opcode == _ACK:
            self._acknowledged(packet)
        elif opcode in _RESPONSES:
            self._read_response(packet)
        elif self._in_order(packet):
            if opcode == _READ_REQUEST:
                self._read_request(packet)
            else:
                self.halves[packet.direction].next_psn = packet.psn + 1 & 0xFFFFFF
                self._request_packet(packet)

    def finish(self) -> None:
        """Judge what is left when the connection has ended."""
        for direction in Direction:
            half = self.halves[direction]
            if half.gap is not None and half.refused:
                text = "PSN {:#x}, {:#x} is next and never came"
                self._verdicts.check(
                    rules.IB_PSN, False, half.gap.number, direction, text, half.gap.found, half.gap.expected
                )
            elif half.gap is not None:
                self._verdicts.unjudged(half.gap.number, "packets are missing up to the end")

    # -- Sequence numbers -----------------------------------------------------------------------------------------

    def _in_order(self, packet: Packet) -> bool:
        """Return whether a request packet is the next one."""
        half, direction = self.halves[packet.direction], packet.direction
        if half.early is not None:
            self._judge_early(half, packet)
        if half.next_psn is None:
            half.next_psn, half.midway = packet.psn, True
            return True
        ahead = psn_distance(packet.psn, half.next_psn)
        if ahead < 0:
            self.wire.count("duplicates")
            return False
        if ahead:
            self.wire.count("out_of_order")
            if half.gap is None:
                half.gap = _Gap(packet.number, half.next_psn, packet.psn)
            return False
        half.gap, half.refused = None, False
        return self._verdicts.check(rules.IB_PSN, True, packet.number, direction, "")

    def _acknowledged(self, packet: Packet) -> None:
        kind = packet.body[0] >> 5
        sender = self.halves[packet.direction.reverse]
        if kind == _NAK:
            self.wire.count("naks")
            sender.refused = sender.gap is not None
            return
        if kind == _RNR:
            self.wire.count("rnr_naks")
            return
        if sender.next_psn is None:
            return
        if psn_distance(packet.psn, sender.next_psn) < 0:
            self._verdicts.check(rules.IB_ACK, True, packet.number, packet.direction, "")
        elif sender.gap is not None and psn_distance(packet.psn, sender.gap.found) >= 0:
            self._skip(packet.direction.reverse, packet.number, packet.psn + 1 & 0xFFFFFF)
        elif sender.early is None:
            sender.early = packet.number, packet.psn

    def _judge_early(self, half: _Half, packet: Packet) -> None:
        """Judge an acknowledgement for a packet that had not been seen, now that its sender goes on.

        If the sender goes on behind that packet, it was sent, and not captured.
        """
        assert half.early is not None
        number, psn = half.early
        half.early = None
        behind = psn_distance(packet.psn, psn)
        if behind > 0:
            self._skip(packet.direction, number, psn + 1 & 0xFFFFFF)
            return
        text = "acknowledges PSN {:#x}; {:#x} is sent only in frame {}"
        self._verdicts.check(
            rules.IB_ACK, False, number, packet.direction.reverse, text, psn, packet.psn, packet.number
        )

    def _skip(self, direction: Direction, number: int, psn: int) -> None:
        """Go on at ``psn``: the packets before were received, but not captured."""
        half = self.halves[direction]
        half.next_psn, half.gap, half.refused = psn, None, False
        self._lose(direction, number, "packets are not captured")

    def _lose(self, direction: Direction, number: int, reason: str) -> None:
        half = self.halves[direction]
        half.partial.clear()
        half.started, half.remote, half.whole, half.midway = False, None, -1, True
        half.reads.clear()
        self.halves[direction.reverse].reads.clear()
        self._verdicts.lost(number, reason)
        self.wire.lost(direction, number)

    # -- Messages -------------------------------------------------------------------------------------------------

    def _request_packet(self, packet: Packet) -> None:
        half, opcode, body = self.halves[packet.direction], packet.opcode, packet.body
        check, number, way = self._verdicts.check, packet.number, packet.direction
        first, last = opcode in _FIRST, opcode in _LAST
        if half.midway:
            half.midway = not (first or last)
            if not first:
                return
        same = (opcode in _WRITES) == (half.remote is not None)
        right = first != half.started and (first or same)
        text = "opcode {:#04x} {} a message"
        check(rules.IB_OPCODE, right, number, way, text, opcode, "inside" if half.started else "outside")
        if not right and not first:
            return
        if first:
            half.partial.clear()
            half.remote, half.whole = None, -1
        invalidated, offset = None, _headers(opcode)
        if opcode in _RETH:
            half.remote = struct.unpack_from("!QII", body)
        elif opcode in _INVALIDATE:
            (invalidated,) = struct.unpack_from("!I", body)
        if packet.known < len(body) and half.whole < 0:
            half.whole = len(half.partial) + packet.known - offset
        half.partial += body[offset:]
        half.started = not last
        if self.mtu:
            size = len(body) - offset
            right = size <= self.mtu if last else size == self.mtu
            check(rules.IB_SIZE, right, number, way, "packet of {} bytes, the MTU is {}", size, self.mtu)
        if last:
            self._complete(packet, half, invalidated)

    def _complete(self, packet: Packet, half: _Half, invalidated: int | None) -> None:
        payload, number, way = bytes(half.partial), packet.number, packet.direction
        message = RdmaMessage(number, packet.time, way, Kind.SEND, payload, 0, 0, len(payload), invalidated, half.whole)
        if half.remote is not None:
            address, token, length = half.remote
            text = "a Write of {} bytes, announced as {}"
            self._verdicts.check(rules.IB_WRITE, length == len(payload), number, way, text, len(payload), length)
            message = message._replace(kind=Kind.WRITE, token=token, address=address)
        half.partial.clear()
        half.remote, half.whole = None, -1
        self.wire.deliver(message)

    def _read_request(self, packet: Packet) -> None:
        address, token, length = struct.unpack_from("!QII", packet.body)
        half, number, way = self.halves[packet.direction], packet.number, packet.direction
        packets = max(1, -(-length // (self.mtu or 4096)))
        half.next_psn = packet.psn + packets & 0xFFFFFF
        if not self.mtu:
            half.next_psn = None  # How many PSNs the response takes is not known.
        half.reads.append(_Read(packet.psn, packets, RdmaRequest(number, 0, length)))
        waiting, depth = len(half.reads), half.read_depth
        text = "{} RDMA Reads outstanding, {} were negotiated"
        self._verdicts.check(rules.RDMA_READS, waiting <= depth, number, way, text, waiting, depth)
        self.wire.deliver(
            RdmaMessage(number, packet.time, way, Kind.READ_REQUEST, packet.body[:16], token, address, length)
        )

    def _read_response(self, packet: Packet) -> None:
        opcode, psn, body = packet.opcode, packet.psn, packet.body
        half, requester = self.halves[packet.direction], self.halves[packet.direction.reverse]
        if not requester.reads:
            self.wire.count("duplicates")
            return  # To a repeated request, or to one that was not captured.
        first, packets, request = requester.reads[0]
        if psn != (first if half.response_psn is None else half.response_psn):
            self.wire.count("duplicates")
            return  # A duplicate, or a packet after a loss: the request is repeated.
        offset = _headers(opcode)
        if packet.known < len(body) and half.response_whole < 0:
            half.response_whole = len(half.response) + packet.known - offset
        half.response += body[offset:]
        half.response_psn = psn + 1 & 0xFFFFFF
        done = opcode in _LAST if not self.mtu else half.response_psn == first + packets & 0xFFFFFF
        if not done:
            return
        payload, whole = bytes(half.response), half.response_whole
        half.response, half.response_psn, half.response_whole = bytearray(), None, -1
        requester.reads.popleft()
        right = len(payload) == request.length and opcode in _LAST
        text = "{} bytes for the Read of {} bytes in frame {}"
        self._verdicts.check(
            rules.RDMA_RESPONSE,
            right,
            packet.number,
            packet.direction,
            text,
            len(payload),
            request.length,
            request.number,
        )
        self.wire.deliver(
            RdmaMessage(
                packet.number,
                packet.time,
                packet.direction,
                Kind.READ_RESPONSE,
                payload,
                length=len(payload),
                known=whole,
            )
        )


def is_reliable(opcode: int) -> bool:
    """Return whether an opcode is one of reliable connections."""
    return opcode < _RELIABLE


def sent_by_server(packet: Packet) -> bool | None:
    """Return whether the server sent a packet of a connection whose set-up was not captured; None if it does not show.

    Only the server begins RDMA Reads and Writes, and headers of SMB2 say who sends them. [MS-SMB2 2.2.1.2]
    """
    if packet.opcode in _RETH:
        return True
    if packet.opcode in _RESPONSES:
        return False
    start = packet.body.find(b"\xfeSMB", 24, 40) if packet.opcode in _SENDS else -1
    return None if start < 0 or len(packet.body) < start + 20 else bool(packet.body[start + 16] & 1)
