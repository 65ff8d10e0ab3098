"""Extract TCP segments and UDP datagrams from frames (Ethernet with VLAN tags, Linux cooked, raw IP; IPv4, IPv6)."""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

from smb3server.tools.pcap.capture import Frame

TCP, UDP = 6, 17
_IPV4, _IPV6 = 0x0800, 0x86DD
_VLAN = (0x8100, 0x88A8)
_IPV6_EXTENSIONS = (0, 43, 60)

Address = tuple[str, int]


class TcpSegment(NamedTuple):
    """One TCP segment."""

    number: int
    time: float
    source: Address
    destination: Address
    sequence: int
    flags: int
    payload: bytes


class UdpDatagram(NamedTuple):
    """One UDP datagram."""

    number: int
    time: float
    source: Address
    destination: Address
    ip_header: bytes
    udp_header: bytes
    payload: bytes


class PacketError(Exception):
    """A frame that cannot be read completely: it is truncated, or an IP fragment."""


FIN, SYN, RST = 1, 2, 4


def _network_layer(frame: Frame) -> tuple[int, int]:
    """Return EtherType and offset of the network header; EtherType 0 if there is none."""
    data, link = frame.data, frame.link_type
    if link == 1 and len(data) >= 14:
        offset, kind = 14, int.from_bytes(data[12:14], "big")
        while kind in _VLAN and len(data) >= offset + 4:
            kind = int.from_bytes(data[offset + 2 : offset + 4], "big")
            offset += 4
        return kind, offset
    if link == 113 and len(data) >= 16:
        return int.from_bytes(data[14:16], "big"), 16
    if link == 276 and len(data) >= 20:
        return int.from_bytes(data[0:2], "big"), 20
    if link in (101, 228, 229, 12) and data:
        return (_IPV4 if data[0] >> 4 == 4 else _IPV6), 0
    if link == 0 and len(data) >= 4:
        return (_IPV4 if 2 in (data[0], data[3]) else _IPV6), 4
    return 0, 0


def _ipv4(data: bytes, at: int) -> tuple[int, str, str, int, int]:
    header = (data[at] & 15) * 4
    total = int.from_bytes(data[at + 2 : at + 4], "big") or len(data) - at  # 0: segmentation offload
    fragment = int.from_bytes(data[at + 6 : at + 8], "big")
    if fragment & 0x3FFF:
        raise PacketError("IP fragment")
    if header < 20 or total < header or at + total > len(data):
        raise PacketError("IP packet cut off")
    source, destination = (str(ipaddress.IPv4Address(data[at + n : at + n + 4])) for n in (12, 16))
    return data[at + 9], source, destination, at + header, at + total


def _ipv6(data: bytes, at: int) -> tuple[int, str, str, int, int]:
    length = int.from_bytes(data[at + 4 : at + 6], "big")
    end = at + 40 + length if length else len(data)
    if end > len(data):
        raise PacketError("IP packet cut off")
    source, destination = (str(ipaddress.IPv6Address(data[at + n : at + n + 16])) for n in (8, 24))
    kind, offset = data[at + 6], at + 40
    while kind in _IPV6_EXTENSIONS and offset + 8 <= end:
        kind, offset = data[offset], offset + 8 + data[offset + 1] * 8
    return kind, source, destination, offset, end


def read_packet(frame: Frame) -> TcpSegment | UdpDatagram | None:
    """Return the frame's TCP segment or UDP datagram; None for other frames. Raises ``PacketError``."""
    kind, at = _network_layer(frame)
    data = frame.data
    if kind == _IPV4 and len(data) >= at + 20:
        protocol, source, destination, offset, end = _ipv4(data, at)
    elif kind == _IPV6 and len(data) >= at + 40:
        protocol, source, destination, offset, end = _ipv6(data, at)
    else:
        return None
    if protocol == TCP:
        if end - offset < 20:
            raise PacketError("TCP header cut off")
        sport, dport, sequence, _, words, flags = struct.unpack_from("!HHIIBB", data, offset)
        header = (words >> 4) * 4
        if header < 20 or offset + header > end:
            raise PacketError("TCP header cut off")
        payload = data[offset + header : end]
        return TcpSegment(frame.number, frame.time, (source, sport), (destination, dport), sequence, flags, payload)
    if protocol == UDP:
        if end - offset < 8:
            raise PacketError("UDP header cut off")
        sport, dport, length = struct.unpack_from("!HHH", data, offset)
        if length < 8 or offset + length > end:
            raise PacketError("UDP datagram cut off")
        return UdpDatagram(
            frame.number,
            frame.time,
            (source, sport),
            (destination, dport),
            data[at:offset],
            data[offset : offset + 8],
            data[offset + 8 : offset + length],
        )
    return None
