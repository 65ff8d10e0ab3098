"""Capture files made from frames: every format, and links around the same packets."""

from __future__ import annotations

import struct
from pathlib import Path

from smb3server.lab.pcap.capture import Frame, Frames, opened
from smb3server.lab.pcap.ib_transport import BTH, ICRC, icrc
from smb3server.lab.pcap.packets import IbPacket, read_packet
from tests.lab.captures import FOLDER


def frames_of(name: str) -> list[Frame]:
    """The frames of a capture under pcaps/."""
    with opened(str(FOLDER / f"{name}.pcap")) as stream:
        return list(Frames(stream))


def pcap(frames: list[Frame], link: int = 1, order: str = "<", nanoseconds: bool = False) -> bytes:
    """A pcap file."""
    magic, unit = (0xA1B23C4D, 10**9) if nanoseconds else (0xA1B2C3D4, 10**6)
    data = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, link)]
    for frame in frames:
        seconds, fraction = divmod(round(frame.time * unit), unit)
        data.append(struct.pack(order + "IIII", seconds, fraction, len(frame.data), frame.original_length) + frame.data)
    return b"".join(data)


def pcapng(frames: list[Frame], link: int = 1, order: str = "<") -> bytes:
    """A pcapng file with nanoseconds, and with a block that nobody knows."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        return struct.pack(order + "II", kind, len(body) + 12) + body + struct.pack(order + "I", len(body) + 12)

    data = [block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))]
    data.append(block(1, struct.pack(order + "HHI", link, 0, 0) + struct.pack(order + "HHB3xHH", 9, 1, 9, 0, 0)))
    data.append(block(0x0BAD, b"a block nobody knows"))
    for frame in frames:
        time = round(frame.time * 10**9)
        fixed = struct.pack(order + "IIIII", 0, time >> 32, time & 0xFFFFFFFF, len(frame.data), frame.original_length)
        data.append(block(6, fixed + frame.data))
    return b"".join(data)


ETHERNET = 14
LINKS = {
    "VLAN": (1, lambda data: data[:12] + b"\x81\x00\x00\x05" + data[12:]),
    "two VLANs": (1, lambda data: data[:12] + b"\x88\xa8\x00\x06\x81\x00\x00\x05" + data[12:]),
    "Linux cooked": (113, lambda data: bytes(14) + data[12:]),
    "Linux cooked v2": (276, lambda data: data[12:14] + bytes(18) + data[ETHERNET:]),
    "raw IP": (101, lambda data: data[ETHERNET:]),
    "loopback, little endian": (0, lambda data: b"\x02\0\0\0" + data[ETHERNET:]),
    "loopback, big endian": (108, lambda data: b"\0\0\0\x02" + data[ETHERNET:]),
    "ERF": (197, lambda data: bytes(8) + b"\x02\x04\0\0\0\0" + struct.pack("!H", len(data)) + b"\0\0" + data),
}
"""Link type, and how a frame of Ethernet becomes one of that link."""


def relinked(frames: list[Frame], name: str) -> tuple[int, list[Frame]]:
    """The same packets on another link."""
    link, change = LINKS[name]
    made = [(frame, change(frame.data)) for frame in frames]
    return link, [frame._replace(data=data, original_length=len(data), link_type=link) for frame, data in made]


def over_ipv6(frame: Frame) -> Frame:
    """A TCP frame over IPv6 instead of IPv4, without changed addresses in the payload."""
    ip = frame.data[ETHERNET:]
    header, total = (ip[0] & 15) * 4, int.from_bytes(ip[2:4], "big")
    ends = b"".join(b"\xfd" + bytes(11) + ip[at : at + 4] for at in (12, 16))
    payload = ip[header:total]
    data = frame.data[:12] + b"\x86\xdd" + struct.pack("!IHBB", 6 << 28, len(payload), ip[9], 64) + ends + payload
    return frame._replace(data=data, original_length=len(data))


def native(frame: Frame, global_route: bool) -> Frame:
    """A packet of RoCEv2 as InfiniBand sends it: with a local route header, and perhaps a global one."""
    packet = read_packet(frame)
    assert isinstance(packet, IbPacket)
    lids = [int(host.rsplit(".", 1)[1]) for host, _ in (packet.source, packet.destination)]
    network = b""
    if global_route:
        gids = b"".join(b"\xfe\x80" + bytes(12) + struct.pack("!H", lid) for lid in lids)
        network = struct.pack("!IHBB", 6 << 28, len(packet.data), 0x1B, 64) + gids
    words = (8 + len(network) + len(packet.data)) // 4
    route = struct.pack("!BBHHH", 0x10, 3 if global_route else 2, lids[1], words, lids[0])
    data = route + network + packet.data
    made = Frame(frame.number, frame.time, 247, data + b"\0\0", len(data) + 2)
    again = read_packet(made)
    assert isinstance(again, IbPacket)
    assert len(packet.data) >= BTH + ICRC
    right = data[:-ICRC] + struct.pack("<I", icrc(again))
    return made._replace(data=right + b"\0\0")


def write(path: Path, data: bytes) -> str:
    """Write a file and return its name."""
    path.write_bytes(data)
    return str(path)
