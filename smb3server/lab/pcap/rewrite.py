"""Write TCP connections to a capture, one chunk per segment, for judges that need that.

tshark 4.0 joins SMB Direct fragments by frame: of several in one TCP segment it keeps one, and then considers the rest
of the message malformed. The bytes of both streams stay the same; packets, their headers and times are new.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from smb3server.lab.pcap.packets import SYN, Address
from smb3server.lab.pcap.tcp import Chunk, Direction

_ACK, _PUSH = 0x10, 0x08
_MAX_SEGMENT = 65535 - 60
_LINK_RAW = 101


def _ip(source: str, destination: str, payload: bytes) -> bytes:
    ends = ipaddress.ip_address(source), ipaddress.ip_address(destination)
    packed = ends[0].packed + ends[1].packed
    if ends[0].version == 6:
        return struct.pack("!IHBB", 6 << 28, len(payload), 6, 64) + packed + payload
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0x4000, 64, 6, 0) + packed + payload


class TcpStream(NamedTuple):
    """One TCP connection. An iWARP connection has a chunk per FPDU."""

    client: Address
    server: Address
    chunks: Sequence[Chunk]


def _packets(stream: TcpStream) -> Iterator[tuple[float, bytes]]:
    ends: dict[Direction, tuple[Address, Address]] = {
        Direction.TO_SERVER: (stream.client, stream.server),
        Direction.TO_CLIENT: (stream.server, stream.client),
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

    start = stream.chunks[0].time if stream.chunks else 0.0
    yield start, segment(Direction.TO_SERVER, SYN, b"")
    yield start, segment(Direction.TO_CLIENT, SYN | _ACK, b"")
    for frame in stream.chunks:
        for at in range(0, len(frame.data), _MAX_SEGMENT):
            yield frame.time, segment(frame.direction, _ACK | _PUSH, frame.data[at : at + _MAX_SEGMENT])


def rewrite(streams: Iterable[TcpStream], path: Path) -> None:
    """Write ``streams`` to the pcap file ``path``, one after the other."""
    with path.open("wb") as output:
        output.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 0x40000, _LINK_RAW))
        for stream in streams:
            for time, packet in _packets(stream):
                whole = int(time)
                microseconds = int((time - whole) * 1e6)
                output.write(struct.pack("<IIII", whole, microseconds, len(packet), len(packet)) + packet)
