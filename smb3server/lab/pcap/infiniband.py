"""Find the reliable connections among InfiniBand packets: ICRC, the CM exchange on queue pair 1, queue pairs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from smb3server.lab.pcap import rules
from smb3server.lab.pcap.ib_transport import (
    BTH,
    ICRC,
    Packet,
    ReliableConnection,
    icrc,
    is_reliable,
    sent_by_server,
)
from smb3server.lab.pcap.packets import Address, IbPacket
from smb3server.lab.pcap.rdma import Wire
from smb3server.lab.pcap.tcp import Direction
from smb3server.lab.pcap.verdicts import Verdicts

_CM_CLASS = 7
_REQ, _REJ, _REP, _DREP = 0x10, 0x12, 0x13, 0x16
CM_NAMES = {_REQ: "REQ", 0x11: "MRA", _REJ: "REJ", _REP: "REP", 0x14: "RTU", 0x15: "DREQ", _DREP: "DREP"}
_UD_SEND = 0x64
_MAD, _DETH = 256, 8
_HELD = 1024
"""Packets that wait until it shows who of two hosts is the server."""

NewWire = Callable[[str, Address, Address, int, bool], Wire]
"""Makes a connection: fabric, client, server, first frame, and whether the capture has its set-up."""
EndWire = Callable[[Wire, int], None]
"""Called at the end of a connection, with the connection and the frame."""


def _queue_pair(packet: IbPacket) -> tuple[str, int]:
    """Return the host and the queue pair that a packet goes to."""
    return packet.destination[0], int.from_bytes(packet.data[5:8], "big")


@dataclass
class _Connection:
    """A connection by its CM exchange. The ids are those of the communication managers."""

    transport: ReliableConnection
    request_id: int
    reply_id: int = 0
    queue_pairs: dict[Direction, tuple[str, int]] = field(default_factory=dict)
    """Host and queue pair that packets of each direction go to."""
    depths: tuple[int, int] = (255, 255)
    """RDMA Reads that the client serves, and begins, at once."""


@dataclass
class _Unknown:
    """Two hosts with packets of queue pairs whose CM exchange is not in the capture."""

    held: list[tuple[IbPacket, Packet]] = field(default_factory=list)
    hopeless: bool = False


class InfinibandReader:
    """Reads connections from packets; ``add`` every packet, then ``finish``."""

    def __init__(self, new_wire: NewWire, end_wire: EndWire, verdicts: Verdicts) -> None:
        self._new_wire, self._end_wire = new_wire, end_wire
        self._verdicts = verdicts
        """Of packets that belong to no connection."""
        self.management: list[tuple[int, str]] = []
        """Frame number and name of the first CM messages."""
        self._connections: list[_Connection] = []
        self._by_destination: dict[tuple[str, int], tuple[ReliableConnection, Direction]] = {}
        self._unknown: dict[frozenset[str], _Unknown] = {}

    def add(self, packet: IbPacket) -> None:
        """Process one packet."""
        data, number = packet.data, packet.number
        if len(data) < BTH + (0 if packet.lost else ICRC):
            self._verdicts.check(rules.IB_PACKET, False, number, Direction.TO_SERVER, "packet of {} bytes", len(data))
            return
        known = self._by_destination.get(_queue_pair(packet))
        verdicts, way = (known[0].wire.verdicts, known[1]) if known else (self._verdicts, self._direction(packet))
        if packet.lost:
            verdicts.unjudged(number, "packets are not captured whole")
        elif not verdicts.check(
            rules.IB_ICRC, icrc(packet) == int.from_bytes(data[-ICRC:], "little"), number, way, "wrong ICRC"
        ):
            return
        size = len(data) + packet.lost - ICRC - (data[1] >> 4 & 3) - BTH
        body = data[BTH : BTH + max(size, 0)]
        held = Packet(
            number,
            packet.time,
            way,
            data[0],
            int.from_bytes(data[9:12], "big"),
            body.ljust(size, b"\0") if size > len(body) else body,
            len(body),
        )
        if data[0] == _UD_SEND:
            self._datagram(packet, held)
        elif known is not None:
            known[0].receive(held)
        elif is_reliable(data[0]):
            self._stranger(packet, held)

    def _direction(self, packet: IbPacket) -> Direction:
        """Return the direction of a packet that belongs to no connection; from the client if nothing is known of it."""
        to_client = any(one.transport.wire.client[0] == packet.destination[0] for one in self._connections)
        return Direction.TO_CLIENT if to_client else Direction.TO_SERVER

    def finish(self) -> None:
        """End all connections: the capture has ended."""
        for unknown in self._unknown.values():
            if unknown.held:
                self._verdicts.unjudged(
                    unknown.held[0][0].number, "queue pairs without their CM exchange: it does not show who serves"
                )
        for connection, _ in list(self._by_destination.values()):
            self._end(connection, 0)

    def _end(self, transport: ReliableConnection, number: int) -> None:
        """End a connection once, and forget its queue pairs."""
        mine = [key for key, (known, _) in self._by_destination.items() if known is transport]
        for key in mine:
            del self._by_destination[key]
        self._connections = [c for c in self._connections if c.transport is not transport]
        if mine:
            transport.finish()
            self._end_wire(transport.wire, number)

    # -- Connection management ------------------------------------------------------------------------------------

    def _datagram(self, packet: IbPacket, held: Packet) -> None:
        mad = held.body[_DETH:]
        if held.known < _DETH + _MAD or int.from_bytes(packet.data[5:8], "big") != 1 or mad[1] != _CM_CLASS:
            return
        (attribute,) = struct.unpack_from("!H", mad, 16)
        data = mad[24:]
        local, remote = struct.unpack_from("!II", data)
        if len(self.management) < _HELD:
            self.management.append((packet.number, CM_NAMES.get(attribute, hex(attribute))))
        if attribute == _REQ:
            self._request(packet, data, local)
            return
        for connection in self._connections:
            wire = connection.transport.wire
            asked = connection.request_id == remote and wire.client[0] == packet.destination[0]
            if attribute == _REP and asked:
                self._reply(connection, packet, data, local)
            elif attribute == _REJ and asked:
                wire.properties["rejected"] = struct.unpack_from("!H", data, 10)[0]
            elif attribute == _DREP and {connection.request_id, connection.reply_id} == {local, remote}:
                self._end(connection.transport, packet.number)
                return

    def _request(self, packet: IbPacket, data: bytes, local: int) -> None:
        source, destination = packet.source[0], packet.destination[0]
        for connection in self._connections:
            wire = connection.transport.wire
            if connection.request_id == local and wire.client[0] == source:
                wire.properties["requests"] = int(str(wire.properties["requests"])) + 1
                return  # A retry.
        (service,) = struct.unpack_from("!Q", data, 8)
        client = (source, int.from_bytes(data[140 + 2 : 140 + 4], "big"))
        wire = self._new_wire(packet.network, client, (destination, service & 0xFFFF), packet.number, True)
        connection = _Connection(ReliableConnection(wire, 128 << (data[50] >> 4)), local, depths=(data[35], data[39]))
        wire.properties |= {
            "requests": 1,
            "service_id": service,
            "mtu": connection.transport.mtu,
            "request_responder_resources": data[35],
            "request_initiator_depth": data[39],
            "request_private_data": bytes(data[176:232]).rstrip(b"\0"),
            "rnr_retry": data[50] & 7,
        }
        self._connections.append(connection)
        connection.transport.begin(Direction.TO_CLIENT, int.from_bytes(data[44:47], "big"), data[35])
        self._bind(connection, Direction.TO_CLIENT, source, int.from_bytes(data[32:35], "big"))

    def _reply(self, connection: _Connection, packet: IbPacket, data: bytes, local: int) -> None:
        if connection.reply_id == local:
            return  # A retry.
        connection.reply_id = local
        connection.transport.wire.properties |= {
            "reply_responder_resources": data[24],
            "reply_initiator_depth": data[25],
            "reply_private_data": bytes(data[36:232]).rstrip(b"\0"),
        }
        connection.transport.begin(Direction.TO_SERVER, int.from_bytes(data[20:23], "big"), data[24])
        self._bind(connection, Direction.TO_SERVER, packet.source[0], int.from_bytes(data[12:15], "big"))

    def _bind(self, connection: _Connection, direction: Direction, host: str, queue_pair: int) -> None:
        key = (host, queue_pair)
        if key in self._by_destination and self._by_destination[key][0] is not connection.transport:
            self._end(self._by_destination[key][0], 0)  # Its end was not captured.
        self._by_destination[key] = connection.transport, direction
        peer = (
            connection.transport.wire.server[0]
            if direction is Direction.TO_CLIENT
            else connection.transport.wire.client[0]
        )
        unknown = self._unknown.get(frozenset((host, peer)))
        early = [] if unknown is None else [one for one in unknown.held if _queue_pair(one[0]) == key]
        for one in early:  # In the capture before the message that names their queue pair.
            assert unknown is not None
            unknown.held.remove(one)
            connection.transport.receive(one[1]._replace(direction=direction))

    # -- Captures that begin within a connection ------------------------------------------------------------------

    def _stranger(self, packet: IbPacket, held: Packet) -> None:
        """Keep packets of unknown queue pairs until both directions are known, and who serves."""
        hosts = frozenset((packet.source[0], packet.destination[0]))
        unknown = self._unknown.setdefault(hosts, _Unknown())
        if unknown.hopeless or len(hosts) != 2:
            return
        unknown.held.append((packet, held))
        pairs = {_queue_pair(p) for p, _ in unknown.held}
        shown = [(p, server) for p, h in unknown.held if (server := sent_by_server(h)) is not None]
        if len(pairs) > 2 or len(unknown.held) > _HELD:
            unknown.hopeless = True
            self._verdicts.unjudged(packet.number, "several queue pairs of two hosts without their CM exchange")
            unknown.held.clear()
        elif len({host for host, _ in pairs}) == 2 and shown:
            first, server = shown[0]
            ends = (first.source[0], 0), (first.destination[0], 0)
            wire = self._new_wire(packet.network, *(ends[::-1] if server else ends), packet.number, False)
            transport = ReliableConnection(wire, 0)
            for host, queue_pair in pairs:
                way = Direction.TO_CLIENT if host == wire.client[0] else Direction.TO_SERVER
                self._by_destination[host, queue_pair] = transport, way
            for origin, kept in unknown.held:
                way = Direction.TO_SERVER if origin.source[0] == wire.client[0] else Direction.TO_CLIENT
                transport.receive(kept._replace(direction=way))
            unknown.held.clear()
