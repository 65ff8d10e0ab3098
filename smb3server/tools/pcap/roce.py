"""Read whole RDMA messages from RoCEv2 (InfiniBand transport over UDP 4791): ICRC, CM exchange, reliable
connections.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import NamedTuple

from smb3server.tools.pcap.packets import UdpDatagram
from smb3server.tools.pcap.rdma import Kind, Problem, RdmaMessage, Wire
from smb3server.tools.pcap.tcp import Direction

PORT = 4791
_BTH = 12
_CM_CLASS = 7
CM_NAMES = {0x10: "REQ", 0x11: "MRA", 0x12: "REJ", 0x13: "REP", 0x14: "RTU", 0x15: "DREQ", 0x16: "DREP"}

_UD_SEND = 0x64
_SENDS = {0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x16, 0x17}
_WRITES = {0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B}
_RESPONSES = {0x0D, 0x0E, 0x0F, 0x10}
_READ_REQUEST, _ACK = 0x0C, 0x11
_FIRST = {0x00, 0x04, 0x05, 0x06, 0x0A, 0x0B, 0x0D, 0x10, 0x17}
_LAST = {0x02, 0x03, 0x04, 0x05, 0x08, 0x09, 0x0A, 0x0B, 0x0F, 0x10, 0x16, 0x17}
_IMMEDIATE = {0x03, 0x05, 0x09, 0x0B}
_INVALIDATE = {0x16, 0x17}
_RETH = {0x06, 0x0A, 0x0B}
_AETH = {0x0D, 0x0F, 0x10}


def icrc(datagram: UdpDatagram) -> int:
    """Return the invariant CRC that the packet should carry. [RoCEv2 annex A17.3.3]

    It covers 8 bytes of ones, and the packet with its variable fields set to ones.
    """
    ip = bytearray(datagram.ip_header)
    if ip[0] >> 4 == 4:
        ip[1], ip[8] = 0xFF, 0xFF
        ip[10:12] = b"\xff\xff"
    else:
        ip[0] |= 0x0F
        ip[1:4] = b"\xff\xff\xff"
        ip[7] = 0xFF
    udp = datagram.udp_header[:6] + b"\xff\xff"
    bth = bytearray(datagram.payload[:_BTH])
    bth[4] = 0xFF
    return zlib.crc32(b"\xff" * 8 + ip + udp + bth + datagram.payload[_BTH:-4])


class _Packet(NamedTuple):
    """A packet of a reliable connection."""

    number: int
    time: float
    opcode: int
    psn: int
    body: bytes
    """Extended headers and payload, without padding and ICRC."""


@dataclass
class _Half:
    """One direction: its requests in PSN order, and the responses to the other direction's Reads."""

    queue_pair: int = 0
    """Destination queue pair of packets in this direction."""
    next_psn: int = 0
    partial: bytearray = field(default_factory=bytearray)
    remote: tuple[int, int, int] | None = None
    """Address, key and length of the Write in progress."""
    reads: list[tuple[int, int, RdmaMessage]] = field(default_factory=list)
    """First PSN, number of packets and request of each unanswered Read."""
    response: bytearray = field(default_factory=bytearray)
    response_psn: int | None = None


@dataclass
class _Connection:
    wire: Wire
    request_id: int
    reply_id: int = 0
    mtu: int = 1024
    halves: tuple[_Half, _Half] = field(default_factory=lambda: (_Half(), _Half()))


def _psn_distance(a: int, b: int) -> int:
    return (a - b + 0x800000 & 0xFFFFFF) - 0x800000


class RoceReader:
    """Collects connections from datagrams of port 4791; ``add`` every datagram. ``wires`` are the connections, by CM
    REQ.
    """

    def __init__(self) -> None:
        self.wires: list[Wire] = []
        self.problems: list[Problem] = []
        self.management: list[tuple[int, str]] = []
        """Frame number and name of every CM message."""
        self.packets = 0
        self.bad_icrc = 0
        self._connections: list[_Connection] = []
        self._by_destination: dict[tuple[str, int], tuple[_Connection, Direction]] = {}

    def add(self, datagram: UdpDatagram) -> None:
        """Process one datagram."""
        self.packets += 1
        payload = datagram.payload
        if len(payload) < _BTH + 4:
            self.problems.append(Problem(datagram.number, "IBA 9.2", f"packet of {len(payload)} bytes"))
            return
        if icrc(datagram) != int.from_bytes(payload[-4:], "little"):
            self.bad_icrc += 1
            self.problems.append(Problem(datagram.number, "RoCEv2 A17.3.3", "wrong ICRC"))
            return
        opcode, flags = payload[0], payload[1]
        destination = int.from_bytes(payload[5:8], "big")
        psn = int.from_bytes(payload[9:12], "big")
        padding = flags >> 4 & 3
        body = payload[_BTH : len(payload) - 4 - padding]
        if opcode == _UD_SEND:
            if destination == 1 and len(body) >= 8 + 256 and body[8 + 1] == _CM_CLASS:
                self._management(datagram, body[8:])
            return
        known = self._by_destination.get((datagram.destination[0], destination))
        if known is None:
            self.problems.append(
                Problem(datagram.number, "capture", f"queue pair {destination:#x} without its CM exchange")
            )
            return
        self._reliable(_Packet(datagram.number, datagram.time, opcode, psn, body), *known)

    def _management(self, datagram: UdpDatagram, mad: bytes) -> None:
        (attribute,) = struct.unpack_from("!H", mad, 16)
        data = mad[24:]
        local, remote = struct.unpack_from("!II", data)
        self.management.append((datagram.number, CM_NAMES.get(attribute, hex(attribute))))
        source, destination = datagram.source, datagram.destination
        if attribute == 0x10:
            self._request(datagram, data, local)
        elif attribute == 0x13:
            for connection in self._connections:
                if connection.request_id == remote and connection.wire.client[0] == destination[0]:
                    self._reply(connection, source[0], data, local)
        elif attribute == 0x12:
            (reason,) = struct.unpack_from("!H", data, 10)
            for connection in self._connections:
                if connection.request_id == remote and connection.wire.client[0] == destination[0]:
                    connection.wire.properties["rejected"] = reason

    def _request(self, datagram: UdpDatagram, data: bytes, local: int) -> None:
        for connection in self._connections:
            if connection.request_id == local and connection.wire.client[0] == datagram.source[0]:
                connection.wire.properties["requests"] = int(str(connection.wire.properties["requests"])) + 1
                return  # A retry.
        (service,) = struct.unpack_from("!Q", data, 8)
        server = (datagram.destination[0], service & 0xFFFF)
        wire = Wire("roce", (datagram.source[0], int.from_bytes(data[140 + 2 : 140 + 4], "big")), server)
        connection = _Connection(wire, local, mtu=128 << (data[50] >> 4))
        to_client = connection.halves[Direction.TO_CLIENT]
        to_client.queue_pair = int.from_bytes(data[32:35], "big")
        to_client.next_psn = int.from_bytes(data[44:47], "big")
        wire.properties |= {
            "requests": 1,
            "service_id": service,
            "mtu": connection.mtu,
            "request_responder_resources": data[35],
            "request_initiator_depth": data[39],
            "request_private_data": bytes(data[176:232]).rstrip(b"\0"),
            "rnr_retry": data[50] & 7,
        }
        self._connections.append(connection)
        self.wires.append(wire)
        self._by_destination[(datagram.source[0], to_client.queue_pair)] = (connection, Direction.TO_CLIENT)

    def _reply(self, connection: _Connection, server: str, data: bytes, local: int) -> None:
        to_server = connection.halves[Direction.TO_SERVER]
        if connection.reply_id == local:
            return  # A retry.
        connection.reply_id = local
        to_server.queue_pair = int.from_bytes(data[12:15], "big")
        to_server.next_psn = int.from_bytes(data[20:23], "big")
        connection.wire.properties |= {
            "reply_responder_resources": data[24],
            "reply_initiator_depth": data[25],
            "reply_private_data": bytes(data[36:232]).rstrip(b"\0"),
        }
        self._by_destination[(server, to_server.queue_pair)] = (connection, Direction.TO_SERVER)

    def _reliable(self, packet: _Packet, connection: _Connection, direction: Direction) -> None:
        opcode, psn, body = packet.opcode, packet.psn, packet.body
        if opcode in _RESPONSES:
            self._read_response(packet, connection, direction)
            return
        if opcode == _ACK:
            if len(body) >= 4 and body[0] >> 5 == 3:
                connection.wire.properties["naks"] = int(str(connection.wire.properties.get("naks", 0))) + 1
            return
        half = connection.halves[direction]
        ahead = _psn_distance(psn, half.next_psn)
        if ahead:
            # A PSN behind is a duplicate. One ahead means a loss: go-back-N repeats the missing packets and this one.
            name = "duplicates" if ahead < 0 else "out_of_order"
            connection.wire.properties[name] = int(str(connection.wire.properties.get(name, 0))) + 1
            return
        if opcode == _READ_REQUEST:
            self._read_request(packet, connection, direction)
        elif opcode in _SENDS or opcode in _WRITES:
            half.next_psn = psn + 1 & 0xFFFFFF
            self._request_packet(packet, connection, direction)
        else:
            connection.wire.problem(packet.number, "IBA 9.2.1", f"opcode {opcode:#x}")

    def _request_packet(self, packet: _Packet, connection: _Connection, direction: Direction) -> None:
        half, wire, opcode, body = connection.halves[direction], connection.wire, packet.opcode, packet.body
        if opcode in _FIRST:
            if half.partial or half.remote:
                wire.problem(packet.number, "IBA 9.8", "a message starts inside another")
            half.partial, half.remote = bytearray(), None
        offset, invalidated = 0, None
        if opcode in _RETH:
            address, token, length = struct.unpack_from("!QII", body)
            half.remote, offset = (address, token, length), 16
        elif opcode in _INVALIDATE:
            (invalidated,), offset = struct.unpack_from("!I", body), 4
        if opcode in _IMMEDIATE:
            offset += 4
        half.partial += body[offset:]
        if opcode not in _LAST:
            if len(body) - offset != connection.mtu:
                wire.problem(packet.number, "IBA 9.8", f"middle packet of {len(body) - offset} bytes")
            return
        payload = bytes(half.partial)
        number, time = packet.number, packet.time
        if half.remote is not None:
            address, token, length = half.remote
            if length != len(payload):
                wire.problem(number, "IBA 9.4.3", f"Write of {len(payload)} bytes announced as {length}")
            wire.messages.append(
                RdmaMessage(number, time, direction, Kind.WRITE, payload, token, address, len(payload))
            )
        else:
            wire.messages.append(
                RdmaMessage(number, time, direction, Kind.SEND, payload, length=len(payload), invalidated=invalidated)
            )
        half.partial, half.remote = bytearray(), None

    def _read_request(self, packet: _Packet, connection: _Connection, direction: Direction) -> None:
        psn, body = packet.psn, packet.body
        address, token, length = struct.unpack_from("!QII", body)
        message = RdmaMessage(
            packet.number, packet.time, direction, Kind.READ_REQUEST, body[:16], token, address, length
        )
        packets = max(1, -(-length // connection.mtu))
        half = connection.halves[direction]
        half.next_psn = psn + packets & 0xFFFFFF
        half.reads.append((psn, packets, message))
        connection.wire.messages.append(message)

    def _read_response(self, packet: _Packet, connection: _Connection, direction: Direction) -> None:
        opcode, psn, body = packet.opcode, packet.psn, packet.body
        half = connection.halves[direction]
        requester = connection.halves[1 - direction]
        if not requester.reads:
            return  # A response to a repeated request.
        first, packets, request = requester.reads[0]
        wanted = first if half.response_psn is None else half.response_psn
        if psn != wanted:
            return  # A duplicate, or a packet after a loss: the request is repeated.
        half.response += body[4:] if opcode in _AETH else body
        half.response_psn = psn + 1 & 0xFFFFFF
        if half.response_psn != first + packets & 0xFFFFFF:
            return
        payload = bytes(half.response)
        half.response, half.response_psn = bytearray(), None
        requester.reads.pop(0)
        wire = connection.wire
        if len(payload) != request.length:
            wire.problem(packet.number, "IBA 9.7.5", f"{len(payload)} bytes for a Read of {request.length}")
        wire.messages.append(
            RdmaMessage(
                packet.number,
                packet.time,
                direction,
                Kind.READ_RESPONSE,
                payload,
                request.token,
                request.address,
                len(payload),
            )
        )
