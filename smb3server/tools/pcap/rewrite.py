"""Rewrite a capture with one FPDU per TCP segment, for judges that need that.

tshark 4.0 joins SMB Direct fragments by frame: of several in one TCP segment it keeps one, and then considers the rest
of the message malformed. The bytes of both streams stay the same; packets, their headers and times are made anew.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from smb3server.tools.pcap.packets import SYN, Address
from smb3server.tools.pcap.rdma import Wire
from smb3server.tools.pcap.tcp import Direction

_ACK, _PUSH = 0x10, 0x08
_MAX_SEGMENT = 65535 - 60
_LINK_RAW = 101


def _ip(source: str, destination: str, payload: bytes) -> bytes:
    ends = ipaddress.ip_address(source), ipaddress.ip_address(destination)
    packed = ends[0].packed + ends[1].packed
    if ends[0].version == 6:
        return struct.pack("!IHBB", 6 << 28, len(payload), 6, 64) + packed + payload
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0x4000, 64, 6, 0) + packed + payload


def _packets(wire: Wire) -> Iterator[tuple[float, bytes]]:
    ends: dict[Direction, tuple[Address, Address]] = {
        Direction.TO_SERVER: (wire.client, wire.server),
        Direction.TO_CLIENT: (wire.server, wire.client),
    }
    sequence = dict.fromkeys(Direction, 0)

    def segment(direction: Direction, flags: int, payload: bytes) -> bytes:
        source, destination = ends[direction]
        acknowledged = sequence[Direction(1 - direction)]
        header = struct.pack(
            "!HHIIBBHHH", source[1], destination[1], sequence[direction], acknowledged, 0x50, flags, 65535, 0, 0
        )
        sequence[direction] = sequence[direction] + len(payload) + bool(flags & SYN) & 0xFFFFFFFF
        return _ip(source[0], destination[0], header + payload)

    start = wire.frames[0].time if wire.frames else 0.0
    yield start, segment(Direction.TO_SERVER, SYN, b"")
    yield start, segment(Direction.TO_CLIENT, SYN | _ACK, b"")
    for frame in wire.frames:
        for at in range(0, len(frame.data), _MAX_SEGMENT):
            yield frame.time, segment(frame.direction, _ACK | _PUSH, frame.data[at : at + _MAX_SEGMENT])


def rewrite(wires: Iterable[Wire], path: Path) -> None:
    """Write the iWARP connections ``wires`` to the pcap file ``path``."""
    with path.open("wb") as output:
        output.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 0x40000, _LINK_RAW))
        for wire in wires:
            for time, packet in _packets(wire):
                whole = int(time)
                microseconds = int((time - whole) * 1e6)
                output.write(struct.pack("<IIII", whole, microseconds, len(packet), len(packet)) + packet)
