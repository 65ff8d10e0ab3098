"""Read whole RDMA messages from iWARP over TCP: MPA (RFC 5044, 6581), DDP (RFC 5041), RDMAP (RFC 5040)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from crc32c import crc32c

from smb3server.tools.pcap.rdma import Kind, RdmaMessage, Wire
from smb3server.tools.pcap.tcp import Chunk, Conversation, Direction

REQUEST_KEY, REPLY_KEY = b"MPA ID Req Frame", b"MPA ID Rep Frame"
_HEADER = 20
FLAG_MARKERS, FLAG_CRC, FLAG_REJECT, FLAG_ENHANCED = 0x80, 0x40, 0x20, 0x10

_WRITE, _READ_REQUEST, _READ_RESPONSE, _SEND, _SEND_INV, _SEND_SE, _SEND_SE_INV, _TERMINATE = range(8)
_TAGGED_OPCODES = (_WRITE, _READ_RESPONSE)
_QUEUE = {_SEND: 0, _SEND_INV: 0, _SEND_SE: 0, _SEND_SE_INV: 0, _READ_REQUEST: 1, _TERMINATE: 2}


def is_iwarp(conversation: Conversation) -> bool:
    """Return whether the client began with an MPA request."""
    first = next((c.data for c in conversation.chunks if c.direction is Direction.TO_SERVER), b"")
    return first.startswith(REQUEST_KEY[:4])


@dataclass
class _Half:
    """One direction of a connection."""

    buffer: bytearray = field(default_factory=bytearray)
    set_up: bool = False
    next_msn: dict[int, int] = field(default_factory=dict)
    untagged: bytearray = field(default_factory=bytearray)
    tagged: bytearray = field(default_factory=bytearray)
    tagged_start: tuple[int, int, int] | None = None
    """Opcode, STag and offset of the tagged message in progress."""


class IwarpReader:
    """Reads the RDMA messages of one TCP connection at construction; ``wire`` holds them."""

    def __init__(self, conversation: Conversation) -> None:
        self.wire = Wire("iwarp", conversation.client, conversation.server)
        self._halves = (_Half(), _Half())
        self._crc = False
        self._largest_fpdu = [0, 0]
        for chunk in conversation.chunks:
            self._receive(chunk)
        for direction in Direction:
            half = self._halves[direction]
            if half.buffer:
                self.wire.problem(0, "capture", f"{len(half.buffer)} bytes {direction.arrow} are no whole FPDU")
        self.wire.properties["largest_ulpdu"] = tuple(self._largest_fpdu)

    def _receive(self, chunk: Chunk) -> None:
        half = self._halves[chunk.direction]
        half.buffer += chunk.data
        if not half.set_up and not self._set_up(half, chunk):
            return
        used, buffer = 0, half.buffer
        while len(buffer) - used >= 2:
            length = int.from_bytes(buffer[used : used + 2], "big")
            padded = length + 2 + 3 & ~3
            if len(buffer) - used < padded + 4:
                break
            fpdu = bytes(buffer[used : used + padded + 4])
            used += padded + 4
            self.wire.frames.append(chunk._replace(data=fpdu))
            self._largest_fpdu[chunk.direction] = max(self._largest_fpdu[chunk.direction], length)
            self._check_crc(chunk, fpdu)
            self._segment(chunk, half, memoryview(fpdu)[2 : 2 + length])
        del buffer[:used]

    def _check_crc(self, chunk: Chunk, fpdu: bytes) -> None:
        (wanted,) = struct.unpack("<I", fpdu[-4:])
        if (self._crc or wanted) and crc32c(fpdu[:-4]) != wanted:
            self.wire.problem(chunk.number, "RFC 5044 4.4", "wrong FPDU CRC")

    def _set_up(self, half: _Half, chunk: Chunk) -> bool:
        if len(half.buffer) < _HEADER:
            return False
        flags, revision, length = struct.unpack_from("!BBH", half.buffer, 16)
        if len(half.buffer) < _HEADER + length:
            return False
        request = chunk.direction is Direction.TO_SERVER
        name = "request" if request else "reply"
        if half.buffer[:16] != (REQUEST_KEY if request else REPLY_KEY):
            self.wire.problem(chunk.number, "RFC 5044 7.1", f"MPA {name} with a wrong key")
        private = bytes(half.buffer[_HEADER : _HEADER + length])
        properties = self.wire.properties
        properties[f"{name}_revision"] = revision
        properties[f"{name}_flags"] = flags
        if revision >= 2 and flags & FLAG_ENHANCED:
            if len(private) < 4:
                self.wire.problem(chunk.number, "RFC 6581 4", f"enhanced MPA {name} without IRD and ORD")
            else:
                properties[f"{name}_ird"], properties[f"{name}_ord"] = struct.unpack_from("!HH", private)
                private = private[4:]
        properties[f"{name}_private_data"] = private
        if not request:
            self._crc = bool((flags | int(str(properties.get("request_flags", 0)))) & FLAG_CRC)
            properties["crc"] = self._crc
            if flags & FLAG_MARKERS:
                self.wire.problem(chunk.number, "capture", "markers are in use: not readable here")
        self.wire.frames.append(chunk._replace(data=bytes(half.buffer[: _HEADER + length])))
        del half.buffer[: _HEADER + length]
        half.set_up = True
        return True

    def _segment(self, chunk: Chunk, half: _Half, segment: memoryview) -> None:
        if len(segment) < 2:
            self.wire.problem(chunk.number, "RFC 5041 4.1", f"DDP segment of {len(segment)} bytes")
            return
        ddp, rdmap = segment[0], segment[1]
        opcode = rdmap & 15
        tagged = bool(ddp & 0x80)
        if ddp & 3 != 1 or rdmap >> 6 != 1:
            self.wire.problem(chunk.number, "RFC 5040 4.1", f"versions DDP {ddp & 3}, RDMAP {rdmap >> 6}")
        if tagged != (opcode in _TAGGED_OPCODES) or opcode > _TERMINATE:
            self.wire.problem(chunk.number, "RFC 5040 4.1", f"opcode {opcode} in a segment with tag bit {tagged}")
        elif tagged and len(segment) >= 14:
            self._tagged(chunk, half, segment, opcode, last=bool(ddp & 0x40))
        elif not tagged and len(segment) >= 18:
            self._untagged(chunk, half, segment, opcode, last=bool(ddp & 0x40))
        else:
            self.wire.problem(chunk.number, "RFC 5041 4.1", "DDP header cut off")

    def _tagged(self, chunk: Chunk, half: _Half, segment: memoryview, opcode: int, last: bool) -> None:
        token, offset = struct.unpack_from("!IQ", segment, 2)
        if half.tagged_start is None:
            half.tagged_start = (opcode, token, offset)
        elif (opcode, token) != half.tagged_start[:2] or offset != half.tagged_start[2] + len(half.tagged):
            self.wire.problem(chunk.number, "RFC 5041 5.1", "tagged segment does not continue its message")
        half.tagged += segment[14:]
        if not last:
            return
        opcode, token, offset = half.tagged_start
        kind = Kind.WRITE if opcode == _WRITE else Kind.READ_RESPONSE
        payload = bytes(half.tagged)
        self.wire.messages.append(
            RdmaMessage(chunk.number, chunk.time, chunk.direction, kind, payload, token, offset, len(payload))
        )
        half.tagged_start, half.tagged = None, bytearray()

    def _untagged(self, chunk: Chunk, half: _Half, segment: memoryview, opcode: int, last: bool) -> None:
        invalidated, queue, msn, message_offset = struct.unpack_from("!IIII", segment, 2)
        if queue != _QUEUE[opcode]:
            self.wire.problem(chunk.number, "RFC 5040 4.3", f"opcode {opcode} on queue {queue}")
        if msn != half.next_msn.get(queue, 1):
            self.wire.problem(
                chunk.number, "RFC 5041 5.2", f"MSN {msn} on queue {queue}, {half.next_msn.get(queue, 1)} is next"
            )
        if message_offset != len(half.untagged):
            self.wire.problem(chunk.number, "RFC 5041 5.2", f"MO {message_offset}, {len(half.untagged)} is next")
        half.untagged += segment[18:]
        if not last:
            return
        half.next_msn[queue] = msn + 1
        payload = bytes(half.untagged)
        half.untagged = bytearray()
        number, time, direction = chunk.number, chunk.time, chunk.direction
        if opcode == _READ_REQUEST:
            if len(payload) < 28:
                self.wire.problem(number, "RFC 5040 4.4", f"Read Request of {len(payload)} bytes")
                return
            _, _, length, token, address = struct.unpack_from("!IQIIQ", payload)
            message = RdmaMessage(number, time, direction, Kind.READ_REQUEST, payload, token, address, length)
        elif opcode == _TERMINATE:
            message = RdmaMessage(number, time, direction, Kind.TERMINATE, payload, length=len(payload))
        else:
            named = invalidated if opcode in (_SEND_INV, _SEND_SE_INV) else None
            message = RdmaMessage(number, time, direction, Kind.SEND, payload, length=len(payload), invalidated=named)
        self.wire.messages.append(message)
