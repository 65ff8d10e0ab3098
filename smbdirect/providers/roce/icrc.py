"""The invariant CRC at the end of every RoCEv2 packet: plain CRC-32, little-endian on the wire. [IBTA A17.3.3]

It covers eight bytes of ones, the IP header, the UDP header and all following bytes up to the ICRC itself. The fields
that routers may change are replaced by ones: TOS/traffic class and flow label, TTL/hop limit, both checksums and byte 4
of the BTH.
"""

from __future__ import annotations

import struct
from zlib import crc32

from smbdirect.codec import Buffer

ONES = b"\xff" * 8
UDP_HEADER = 8
IPV4_HEADER = 20
BTH_MASKED_BYTE = 4

_IPV4 = struct.Struct(">BBHHHBBH4s4s")
_IPV6 = struct.Struct(">IHBB16s16s")
_UDP = struct.Struct(">HHHH")
_DONT_FRAGMENT = 0x4000


def prefix(source: bytes, destination: bytes, source_port: int, port: int, length: int, ip_id: int = 0) -> int:
    """Return the CRC state after the IP and UDP headers of a packet with ``length`` bytes of UDP payload.

    ``source`` and ``destination`` are packed addresses of four or sixteen bytes. ``ip_id`` is the IPv4 identification:
    Linux sends 0 with DF from unconnected sockets that do path MTU discovery, and counts up within one UDP_SEGMENT
    batch.
    """
    udp_length = UDP_HEADER + length
    if len(source) == 4:
        ip = _IPV4.pack(
            0x45, 0xFF, IPV4_HEADER + udp_length, ip_id, _DONT_FRAGMENT, 0xFF, 17, 0xFFFF, source, destination
        )
    else:
        ip = _IPV6.pack(0x6FFFFFFF, udp_length, 17, 0xFF, source, destination)
    return crc32(ip + _UDP.pack(source_port, port, udp_length, 0xFFFF), crc32(ONES))


def of_payload(packet: Buffer, state: int) -> bytes:
    """Return the ICRC of ``packet`` (a UDP payload without its ICRC), given the ``prefix`` state. For tests and rare
    packets: the data path computes it piece by piece."""
    masked = bytearray(packet)
    masked[BTH_MASKED_BYTE] = 0xFF
    return crc32(masked, state).to_bytes(4, "little")


def check_ipv4(buffer: bytearray, view: memoryview, end: int) -> bool:
    """Return whether the ICRC of the IPv4 packet at ``buffer[8:end]`` is right. ``buffer[:8]`` must contain ones. The
    variant fields are overwritten with ones: read ECN bits and BTH byte 4 before. The packet must have no IP
    options."""
    buffer[9] = 0xFF
    buffer[16] = 0xFF
    buffer[18] = buffer[19] = 0xFF
    buffer[34] = buffer[35] = 0xFF
    buffer[40] = 0xFF
    return crc32(view[: end - 4]) == int.from_bytes(view[end - 4 : end], "little")
