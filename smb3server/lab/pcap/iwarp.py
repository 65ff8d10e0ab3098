"""Read whole RDMA messages from iWARP over TCP: MPA (RFC 5044, 6581), DDP (RFC 5041), RDMAP (RFC 5040)."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field

from crc32c import crc32c

from smb3server.lab.pcap import rules
from smb3server.lab.pcap.byte_stream import ByteStream
from smb3server.lab.pcap.rdma import Kind, RdmaMessage, RdmaRequest, Wire
from smb3server.lab.pcap.tcp import Chunk, Direction

REQUEST_KEY, REPLY_KEY = b"MPA ID Req Frame", b"MPA ID Rep Frame"
_HEADER = 20
FLAG_MARKERS, FLAG_CRC, FLAG_REJECT, FLAG_ENHANCED = 0x80, 0x40, 0x20, 0x10
_DEPTH = 0x3FFF
"""Bits of IRD and ORD; the others are flags, and all ones mean that the peer does not say. [RFC 6581 4]"""
_TAGGED_HEADER, _UNTAGGED_HEADER = 14, 18

_WRITE, _READ_REQUEST, _READ_RESPONSE, _SEND, _SEND_INV, _SEND_SE, _SEND_SE_INV, _TERMINATE = range(8)
_TAGGED_OPCODES = (_WRITE, _READ_RESPONSE)
_INVALIDATING = (_SEND_INV, _SEND_SE_INV)
_QUEUE = {_SEND: 0, _SEND_INV: 0, _SEND_SE: 0, _SEND_SE_INV: 0, _READ_REQUEST: 1, _TERMINATE: 2}


def begins_fpdu(data: bytes) -> bool:
    """Return whether ``data`` looks like the start of an FPDU: for captures that begin within a connection."""
    if len(data) < 20:
        return False
    ddp, rdmap = data[2], data[3]
    opcode = rdmap & 15
    if ddp & 0x3F != 1 or rdmap >> 4 != 4 or opcode > _TERMINATE or bool(ddp & 0x80) != (opcode in _TAGGED_OPCODES):
        return False
    return ddp & 0x80 != 0 or int.from_bytes(data[8:12], "big") == _QUEUE[opcode]


@dataclass
class _Half:
    """One direction of a connection."""

    stream: ByteStream = field(default_factory=ByteStream)
    set_up: bool = False
    fpdus: int = 0
    next_msn: dict[int, int | None] = field(default_factory=dict)
    """By queue; None if a loss has hidden it."""
    untagged: bytearray = field(default_factory=bytearray)
    tagged: bytearray = field(default_factory=bytearray)
    tagged_start: tuple[int, int, int] | None = None
    """Opcode, STag and offset of the tagged message in progress."""
    whole: int = -1
    """Bytes of the message in progress up to the first that was not captured; -1: all."""
    broken: bool = False
    """Whether the beginning of the message in progress was not captured."""
    reads: deque[RdmaRequest] = field(default_factory=deque)
    """RDMA Reads sent in this direction that have no response yet."""
    read_depth: int = _DEPTH
    """RDMA Reads that may be outstanding in this direction."""


class IwarpReader:
    """Reads the RDMA messages of one TCP connection from its chunks, and delivers them to ``wire``."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._verdicts = wire.verdicts
        self._halves = (_Half(), _Half())
        self._crc: bool | None = None
        """Whether FPDUs have a CRC; None if the capture does not say."""
        self._largest_fpdu = [0, 0]
        if not wire.saw_start:
            for half in self._halves:
                half.set_up = half.broken = True
                half.next_msn = dict.fromkeys((0, 1, 2))
                half.stream.lost_place = True

    def receive(self, chunk: Chunk) -> None:
        """Take the next bytes."""
        half = self._halves[chunk.direction]
        stream = half.stream
        if not chunk.known:
            self._verdicts.lost(chunk.number, "bytes of the TCP stream are missing")
        if stream.lost_place:
            if not chunk.known or not begins_fpdu(chunk.data):
                return
            stream.lost_place = False
        stream.append(chunk)
        if stream.lost_place:
            self._forget(chunk.direction, chunk.number)
        if not half.set_up and not self._set_up(half, chunk):
            return
        while len(stream) >= 4:
            head = stream.peek(2)
            if head is None:
                self._lose(chunk.direction, chunk.number)
                return
            length = int.from_bytes(head, "big")
            size = (length + 2 + 3 & ~3) + 4
            if len(stream) < size:
                return
            fpdu, known = stream.take(size)
            half.fpdus += 1
            self._fpdu(chunk, half, fpdu, known, length)

    def finish(self, number: int, refused: Direction | None) -> None:
        """Note what is left when the connection has ended. Nothing can be missing in the direction ``refused``, whose
        receiver has reset the connection."""
        for direction in Direction:
            if direction is not refused and (left := len(self._halves[direction].stream)):
                self._verdicts.unjudged(number, f"{left} bytes {direction.arrow} are no whole FPDU")
        self.wire.properties["largest_ulpdu"] = tuple(self._largest_fpdu)

    def _lose(self, direction: Direction, number: int) -> None:
        """Give up the place in the stream: the next FPDU is looked for at the beginning of a segment."""
        self._halves[direction].stream.lose_place()
        self._forget(direction, number)

    def _forget(self, direction: Direction, number: int) -> None:
        """Forget the messages in progress: a part of them is not there."""
        half = self._halves[direction]
        self.wire.lost(direction, number)
        for one in self._halves:  # Either end may have lost its RDMA Reads, or their responses.
            one.reads.clear()
            one.broken = True
        half.untagged.clear()
        half.tagged.clear()
        half.tagged_start = None
        half.next_msn = dict.fromkeys((0, 1, 2))

    # -- MPA ------------------------------------------------------------------------------------------------------

    def _set_up(self, half: _Half, chunk: Chunk) -> bool:
        header = half.stream.peek(_HEADER)
        if header is None:
            return False
        flags, revision, length = struct.unpack_from("!BBH", header, 16)
        whole = half.stream.peek(_HEADER + length)
        if whole is None:
            return False
        half.stream.take(_HEADER + length)
        half.set_up = True
        request = chunk.direction is Direction.TO_SERVER
        name = "request" if request else "reply"
        check, number = self._verdicts.check, chunk.number
        key = REQUEST_KEY if request else REPLY_KEY
        check(rules.MPA_SET_UP, header[:16] == key, number, chunk.direction, "MPA {} with key {!r}", name, header[:16])
        private = whole[_HEADER:]
        properties = self.wire.properties
        properties[f"{name}_revision"], properties[f"{name}_flags"] = revision, flags
        enhanced = revision >= 2 and flags & FLAG_ENHANCED
        text = "MPA {} with {} bytes of data"
        if enhanced and check(rules.MPA_ENHANCED, length >= 4, number, chunk.direction, text, name, length):
            self._depths(chunk.direction, name, *struct.unpack_from("!HH", private))
            private = private[4:]
        properties[f"{name}_private_data"] = private
        if not request:
            self._crc = bool((flags | int(str(properties.get("request_flags", 0)))) & FLAG_CRC)
            properties["crc"] = self._crc
            if flags & FLAG_MARKERS:
                self._verdicts.unjudged(number, "markers are in use, which are not read here")
                for one in self._halves:
                    one.stream.lose_place()
        if self.wire.record:
            self.wire.frames.append(chunk._replace(data=whole))
        return True

    def _depths(self, direction: Direction, name: str, ird: int, ord_: int) -> None:
        """Note how many RDMA Reads the sender of an MPA frame serves and sends at once."""
        self.wire.properties[f"{name}_ird"], self.wire.properties[f"{name}_ord"] = ird, ord_
        peer = self._halves[direction.reverse]
        if ird & _DEPTH:
            peer.read_depth = ird & _DEPTH

    # -- DDP ------------------------------------------------------------------------------------------------------

    def _fpdu(self, chunk: Chunk, half: _Half, fpdu: bytes, known: int, length: int) -> None:
        self._largest_fpdu[chunk.direction] = max(self._largest_fpdu[chunk.direction], length)
        if self.wire.record:
            self.wire.frames.append(chunk._replace(data=fpdu))
        check, number, way = self._verdicts.check, chunk.number, chunk.direction
        if way is Direction.TO_CLIENT and self.wire.saw_start:
            heard = self._halves[Direction.TO_SERVER].fpdus > 0
            check(rules.MPA_FIRST_FPDU, heard, number, way, "an FPDU before the initiator's first")
        if known == len(fpdu):
            self._check_crc(chunk, fpdu)
        needed = _TAGGED_HEADER if fpdu[2] & 0x80 else _UNTAGGED_HEADER
        if known < min(2 + length, 2 + needed):
            self._verdicts.unjudged(number, "the header of an FPDU is not captured")
            self._forget(way, number)
            return
        self._segment(chunk, half, fpdu[2 : 2 + length], min(known - 2, length))

    def _check_crc(self, chunk: Chunk, fpdu: bytes) -> None:
        (wanted,) = struct.unpack("<I", fpdu[-4:])
        right = (self._crc is not True and not wanted) or crc32c(fpdu[:-4]) == wanted
        if self._crc is None and wanted and right:
            self._crc = True  # A CRC is not right at random.
        if self._crc is not None or right:
            self._verdicts.check(rules.MPA_CRC, right, chunk.number, chunk.direction, "CRC {:#010x}", wanted)

    def _segment(self, chunk: Chunk, half: _Half, segment: bytes, known: int) -> None:
        """Read a segment of which the first ``known`` bytes were captured, its header among them."""
        check, number, way = self._verdicts.check, chunk.number, chunk.direction
        ddp, rdmap = (segment[0], segment[1]) if len(segment) >= 2 else (0, 0)
        opcode, tagged, last = rdmap & 15, bool(ddp & 0x80), bool(ddp & 0x40)
        right = (
            ddp & 3 == 1
            and rdmap >> 6 == 1
            and opcode <= _TERMINATE
            and tagged == (opcode in _TAGGED_OPCODES)
            and len(segment) >= (_TAGGED_HEADER if tagged else _UNTAGGED_HEADER)
        )
        text = "segment of {} bytes, DDP control {:#04x}, RDMAP control {:#04x}"
        if not check(rules.DDP_HEADER, right, number, way, text, len(segment), ddp, rdmap):
            return
        if tagged:
            self._tagged(chunk, half, segment, known, last)
        else:
            self._untagged(chunk, half, segment, known, last)

    @staticmethod
    def _note_loss(half: _Half, segment: bytes, known: int, before: int, header: int) -> None:
        """Note how much of the message in progress is known; ``before`` are its bytes in earlier segments."""
        if known < len(segment) and half.whole < 0:
            half.whole = before + max(known - header, 0)

    def _tagged(self, chunk: Chunk, half: _Half, segment: bytes, known: int, last: bool) -> None:
        opcode = segment[1] & 15
        token, offset = struct.unpack_from("!IQ", segment, 2)
        if half.tagged_start is None:
            half.tagged_start = (opcode, token, offset)
        else:
            right = (opcode, token, offset) == (*half.tagged_start[:2], half.tagged_start[2] + len(half.tagged))
            text = "tagged segment of {:#x} at {:#x} continues {:#x} at {:#x}"
            at = half.tagged_start[2] + len(half.tagged)
            self._verdicts.check(
                rules.DDP_OFFSET, right, chunk.number, chunk.direction, text, token, offset, half.tagged_start[1], at
            )
        self._note_loss(half, segment, known, len(half.tagged), _TAGGED_HEADER)
        half.tagged += segment[_TAGGED_HEADER:]
        if not last:
            return
        opcode, token, offset = half.tagged_start
        payload, whole = bytes(half.tagged), half.whole
        half.tagged.clear()
        half.tagged_start, half.whole = None, -1
        kind = Kind.WRITE if opcode == _WRITE else Kind.READ_RESPONSE
        message = RdmaMessage(
            chunk.number, chunk.time, chunk.direction, kind, payload, token, offset, len(payload), None, whole
        )
        if kind is Kind.READ_RESPONSE:
            self._answered(message)
        self.wire.deliver(message)

    def _answered(self, message: RdmaMessage) -> None:
        """Compare a Read Response with the oldest RDMA Read of the other end."""
        asker = self._halves[message.direction.reverse]
        if not asker.reads and asker.broken:
            return
        asked = asker.reads.popleft() if asker.reads else RdmaRequest(0, 0, 0)
        right = asked.number != 0 and (asked.sink, asked.length) == (message.token, message.length)
        self._verdicts.check(
            rules.RDMA_RESPONSE,
            right,
            message.number,
            message.direction,
            "{} bytes for STag {:#x}; frame {} asks for {} bytes and STag {:#x}",
            message.length,
            message.token,
            asked.number,
            asked.length,
            asked.sink,
        )

    def _untagged(self, chunk: Chunk, half: _Half, segment: bytes, known: int, last: bool) -> None:
        opcode, check, number, way = segment[1] & 15, self._verdicts.check, chunk.number, chunk.direction
        invalidated, queue, msn, message_offset = struct.unpack_from("!IIII", segment, 2)
        if not check(rules.DDP_QUEUE, queue == _QUEUE[opcode], number, way, "opcode {} on queue {}", opcode, queue):
            return
        if opcode not in _INVALIDATING:
            text = "opcode {} with STag {:#x}"
            check(rules.RDMAP_STAG, not invalidated, number, way, text, opcode, invalidated)
        expected = half.next_msn.get(queue, 1)
        if half.broken and expected is None and message_offset:
            return  # A part of a message that began before the capture, or in a gap of it.
        if expected is not None:
            text = "MSN {} on queue {}, {} is next"
            check(rules.DDP_MSN, msn == expected, number, way, text, msn, queue, expected)
        right = message_offset == len(half.untagged)
        check(rules.DDP_OFFSET, right, number, way, "message offset {}, {} is next", message_offset, len(half.untagged))
        self._note_loss(half, segment, known, len(half.untagged), _UNTAGGED_HEADER)
        half.untagged += segment[_UNTAGGED_HEADER:]
        half.next_msn[queue] = msn
        if not last:
            return
        half.next_msn[queue] = msn + 1 & 0xFFFFFFFF
        payload, whole = bytes(half.untagged), half.whole
        half.untagged.clear()
        half.whole = -1
        named = invalidated if opcode in _INVALIDATING else None
        message = RdmaMessage(number, chunk.time, way, Kind.SEND, payload, 0, 0, len(payload), named, whole)
        if opcode == _READ_REQUEST:
            self._read_request(message, half)
        elif opcode == _TERMINATE:
            self.wire.count(f"terminated by the {way.sender}")
            self.wire.deliver(message._replace(kind=Kind.TERMINATE))
        else:
            self.wire.deliver(message)

    def _read_request(self, message: RdmaMessage, half: _Half) -> None:
        check, payload, number = self._verdicts.check, message.payload, message.number
        if not check(
            rules.RDMAP_READ, len(payload) == 28, number, message.direction, "Read Request of {} bytes", len(payload)
        ):
            return
        if not message.whole:
            self._verdicts.unjudged(number, "an RDMA Read Request is not captured whole")
            half.reads.clear()
            half.broken = True
            return
        sink, _, length, token, address = struct.unpack("!IQIIQ", payload)
        half.reads.append(RdmaRequest(number, sink, length))
        waiting = len(half.reads)
        text = "{} RDMA Reads outstanding, {} were negotiated"
        check(rules.RDMA_READS, waiting <= half.read_depth, number, message.direction, text, waiting, half.read_depth)
        self.wire.deliver(message._replace(kind=Kind.READ_REQUEST, token=token, address=address, length=length))
