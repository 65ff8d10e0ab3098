"""Extract TCP segments and InfiniBand packets from frames.

Links: Ethernet with VLAN tags, Linux cooked v1 and v2, raw IP, loopback, InfiniBand, and ERF with Ethernet or
InfiniBand in it. Networks: IPv4, IPv6, and InfiniBand's own. InfiniBand packets come by UDP port 4791 (RoCEv2), by
EtherType (RoCE) or bare.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from smb3server.lab.pcap.capture import Frame

_IPV4, _IPV6, _ROCE = 0x0800, 0x86DD, 0x8915
_INFINIBAND = 0x10000
"""Stands for InfiniBand where others have an EtherType."""
_VLAN = (0x8100, 0x88A8, 0x9100)
_IPV6_EXTENSIONS = (0, 43, 60)
_IPV6_FRAGMENT = 44
TCP, UDP, _GRH_NEXT = 6, 17, 0x1B
ROCE_PORT = 4791

LINK_NULL, LINK_ETHERNET, LINK_LOOP, LINK_COOKED, LINK_COOKED_2 = 0, 1, 108, 113, 276
LINK_ERF, LINK_INFINIBAND = 197, 247
_LINK_RAW = (12, 14, 101, 228, 229)
_ERF_ETHERNET, _ERF_INFINIBAND = (2, 11, 16, 20), 21

Address = tuple[str, int]
"""Host and port. InfiniBand hosts are GIDs in the spelling of IPv6, or ``lid:N``; their port is 0."""


class TcpSegment(NamedTuple):
    """One TCP segment."""

    number: int
    time: float
    source: Address
    destination: Address
    sequence: int
    flags: int
    payload: bytes
    acknowledged: int = 0
    lost: int = 0
    """Bytes at the end of the payload that were on the wire, but not captured."""


class IbPacket(NamedTuple):
    """One packet of the InfiniBand transport."""

    number: int
    time: float
    source: Address
    destination: Address
    network: str
    """roce or ib."""
    covered: bytes
    """What the ICRC covers of the headers in front, with their variable fields set to ones. [IBA 7.8.1, A17.3.3]"""
    data: bytes
    """From the base transport header to the ICRC."""
    lost: int = 0
    """Bytes at the end that were on the wire, but not captured."""


class PacketError(Exception):
    """A frame that cannot be used: too little of it was captured, or it is an IP fragment."""


FIN, SYN, RST, ACK = 1, 2, 4, 0x10


def _ethernet(data: bytes, at: int) -> tuple[int, int]:
    offset, kind = at + 14, int.from_bytes(data[at + 12 : at + 14], "big")
    while kind in _VLAN and len(data) >= offset + 4:
        kind = int.from_bytes(data[offset + 2 : offset + 4], "big")
        offset += 4
    return kind, offset


def _network_layer(frame: Frame) -> tuple[int, int]:
    """Return EtherType and offset of the network header; EtherType 0 if there is none that is known."""
    data, link = frame.data, frame.link_type
    if link == LINK_ETHERNET and len(data) >= 14:
        return _ethernet(data, 0)
    if link == LINK_COOKED and len(data) >= 16:
        return int.from_bytes(data[14:16], "big"), 16
    if link == LINK_COOKED_2 and len(data) >= 20:
        return int.from_bytes(data[0:2], "big"), 20
    if link in _LINK_RAW and data:
        return (_IPV4 if data[0] >> 4 == 4 else _IPV6), 0
    if link in (LINK_NULL, LINK_LOOP) and len(data) >= 4:
        return (_IPV4 if 2 in (data[0], data[3]) else _IPV6), 4
    if link == LINK_INFINIBAND:
        return _INFINIBAND, 0
    if link == LINK_ERF and len(data) >= 16:
        kind, at = data[8], 16
        extension = kind
        while extension & 0x80 and at + 8 <= len(data):
            extension = data[at]
            at += 8
        if kind & 0x7F == _ERF_INFINIBAND:
            return _INFINIBAND, at
        if kind & 0x7F in _ERF_ETHERNET and len(data) >= at + 16:
            return _ethernet(data, at + 2)
    return 0, 0


class _Network(NamedTuple):
    """What a network header says."""

    protocol: int
    source: str
    destination: str
    offset: int
    end: int
    """End of the packet in the frame; beyond the data if the capture truncated the frame."""


def _ipv4(frame: Frame, at: int) -> _Network:
    data = frame.data
    header = (data[at] & 15) * 4
    total = int.from_bytes(data[at + 2 : at + 4], "big") or frame.original_length - at  # 0: segmentation offload
    if int.from_bytes(data[at + 6 : at + 8], "big") & 0x3FFF:
        raise PacketError("IP fragments are not put together")
    if header < 20 or total < header:
        raise PacketError("damaged IP header")
    source, destination = (socket.inet_ntop(socket.AF_INET, data[at + n : at + n + 4]) for n in (12, 16))
    return _Network(data[at + 9], source, destination, at + header, at + total)


def _ipv6(frame: Frame, at: int) -> _Network:
    data = frame.data
    length = int.from_bytes(data[at + 4 : at + 6], "big")
    end = at + 40 + length if length else frame.original_length
    source, destination = (socket.inet_ntop(socket.AF_INET6, data[at + n : at + n + 16]) for n in (8, 24))
    kind, offset = data[at + 6], at + 40
    while kind in _IPV6_EXTENSIONS and offset + 8 <= len(data):
        kind, offset = data[offset], offset + 8 + data[offset + 1] * 8
    if kind == _IPV6_FRAGMENT:
        raise PacketError("IP fragments are not put together")
    return _Network(kind, source, destination, offset, end)


def read_packet(frame: Frame) -> TcpSegment | IbPacket | None:
    """Return the frame's TCP segment or InfiniBand packet; None for other frames. Raises ``PacketError``."""
    kind, at = _network_layer(frame)
    data = frame.data
    if kind == _IPV4 and len(data) >= at + 20:
        network = _ipv4(frame, at)
    elif kind == _IPV6 and len(data) >= at + 40:
        network = _ipv6(frame, at)
    elif kind == _INFINIBAND:
        return _infiniband(frame, at)
    elif kind == _ROCE and len(data) >= at + 40:
        return _with_grh(frame, at, b"\xff" * 8, frame.original_length, "roce")
    else:
        return None
    if network.protocol == TCP:
        return _tcp(frame, network)
    if network.protocol == UDP and len(data) >= network.offset + 8:
        return _roce_v2(frame, at, network)
    return None


def _tcp(frame: Frame, network: _Network) -> TcpSegment:
    data, offset, end = frame.data, network.offset, network.end
    if len(data) - offset < 20:
        raise PacketError("the TCP header is not captured")
    source, destination, sequence, acknowledged, words, flags = struct.unpack_from("!HHIIBB", data, offset)
    start = offset + (words >> 4) * 4
    if words >> 4 < 5 or start > end:
        raise PacketError("damaged TCP header")
    if end > len(data) and frame.original_length <= len(data):
        raise PacketError("damaged IP header")
    payload = data[start:end]
    return TcpSegment(
        frame.number,
        frame.time,
        (network.source, source),
        (network.destination, destination),
        sequence,
        flags,
        payload,
        acknowledged if flags & ACK else sequence,
        end - start - len(payload),
    )


# -- InfiniBand ---------------------------------------------------------------------------------------------------


def _roce_v2(frame: Frame, at: int, network: _Network) -> IbPacket | None:
    data, offset = frame.data, network.offset
    source, destination, length = struct.unpack_from("!HHH", data, offset)
    if destination != ROCE_PORT:
        return None
    end = min(offset + length, network.end)
    header = bytearray(data[at:offset])
    if header[0] >> 4 == 4:
        header[1] = header[8] = 0xFF
        header[10:12] = b"\xff\xff"
    else:
        _mask_grh(header)
    return IbPacket(
        frame.number,
        frame.time,
        (network.source, source),
        (network.destination, destination),
        "roce",
        b"\xff" * 8 + header + data[offset : offset + 6] + b"\xff\xff",
        data[offset + 8 : end],
        max(end - len(data), 0),
    )


def _mask_grh(header: bytearray) -> None:
    """Set the variable fields of an IPv6 header or a GRH to ones: traffic class, flow label, hop limit."""
    header[0] |= 0x0F
    header[1:4] = b"\xff\xff\xff"
    header[7] = 0xFF


def _infiniband(frame: Frame, at: int) -> IbPacket | None:
    """Read a packet with a local route header, which has its length in words. [IBA 7.7]"""
    data = frame.data
    if len(data) < at + 8:
        raise PacketError("the local route header is not captured")
    lanes, kind, destination, words, source = struct.unpack_from("!BBHHH", data, at)
    end = at + (words & 0x7FF) * 4
    route = bytes((lanes | 0xF0, kind)) + data[at + 2 : at + 8]
    if kind & 3 == 3 and len(data) >= at + 48:
        return _with_grh(frame, at + 8, route, end, "ib")
    if kind & 3 != 2:
        return None
    ends = (f"lid:{source}", 0), (f"lid:{destination}", 0)
    body = data[at + 8 : end]
    return IbPacket(frame.number, frame.time, *ends, "ib", route, body, max(end - len(data), 0))


def _with_grh(frame: Frame, at: int, route: bytes, end: int, network: str) -> IbPacket | None:
    """Read a packet with a global route header, which is an IPv6 header in other words. [IBA 8.3]"""
    data = frame.data
    if data[at + 6] != _GRH_NEXT:
        return None
    source, destination = (socket.inet_ntop(socket.AF_INET6, data[at + n : at + n + 16]) for n in (8, 24))
    end = min(end, at + 40 + int.from_bytes(data[at + 4 : at + 6], "big"))
    header = bytearray(data[at : at + 40])
    _mask_grh(header)
    return IbPacket(
        frame.number,
        frame.time,
        (source, 0),
        (destination, 0),
        network,
        route + header,
        data[at + 40 : end],
        max(end - len(data), 0),
    )
