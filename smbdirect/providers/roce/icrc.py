"""The invariant CRC at the end of every RoCEv2 packet: plain CRC-32, little-endian on the wire. [IBTA A17.3.3]

It covers eight bytes of ones, the IP header, the UDP header and all following bytes up to the ICRC itself. The fields
that routers may change are replaced by ones: TOS/traffic class and flow label, TTL/hop limit, both checksums and byte 4
of the BTH.

A CRC is linear: a change of some bits of the covered bytes changes the CRC by a value that depends only on these bits
and on the number of bytes behind them. So the CRC of a header with one IP identification gives that of any other, and
a wrong CRC shows which identification, if any, makes it right.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from smbdirect.codec import Buffer
from smbdirect.providers.roce.headers import HEAD

try:
    from isal.isal_zlib import crc32  # eight times as fast as zlib's, by carry-less multiplication
except ImportError:  # there are machines without a wheel of it
    from zlib import crc32

__all__ = ["ONES", "RESIDUE", "Flow", "check_ipv4", "crc32", "identification", "of_payload", "prefix"]

ONES = b"\xff" * 8
UDP_HEADER = 8
IPV4_HEADER = 20
BTH_MASKED_BYTE = 4
RESIDUE = 0x2144DF1C
"""The CRC-32 of anything that ends with its own CRC-32."""

_IPV4 = struct.Struct(">BBHHHBBH4s4s")
_IPV6 = struct.Struct(">IHBB16s16s")
_UDP = struct.Struct(">HHHH")
_DONT_FRAGMENT = 0x4000
_BEHIND_IDENTIFICATION = IPV4_HEADER - 6 + UDP_HEADER + HEAD.size
"""Bytes between the IPv4 identification and the word with the PSN."""


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


def check_ipv4(buffer: bytearray, view: memoryview, start: int, end: int) -> bool:
    """Return whether the ICRC of an IPv4 packet is right. The packet is at ``buffer[start + 8 : end]``, behind eight
    bytes of ones. The variant fields are overwritten with ones: read ECN bits and BTH byte 4 before. The packet must
    have no IP options."""
    buffer[start + 9] = 0xFF
    buffer[start + 16] = 0xFF
    buffer[start + 18] = buffer[start + 19] = 0xFF
    buffer[start + 34] = buffer[start + 35] = 0xFF
    buffer[start + 40] = 0xFF
    return crc32(view[start:end]) == RESIDUE


def _effect(ip_id: int, behind: int) -> int:
    """Return by how much ``ip_id`` instead of 0 changes a CRC, with ``behind`` bytes between it and the CRC."""
    zeros = bytes(behind)
    return crc32(ip_id.to_bytes(2, "big") + zeros) ^ crc32(bytes(2) + zeros)


IDENTIFICATIONS = 128
"""How many identifications a batch can have: the most packets of one (UDP_MAX_SEGMENTS)."""
_EFFECTS = tuple(_effect(ip_id, _BEHIND_IDENTIFICATION) for ip_id in range(IDENTIFICATIONS))
"""What to xor to a state in front of the word with the PSN for each identification."""


@lru_cache(64)
def _basis(length: int) -> tuple[tuple[int, int, int], ...]:
    """Return the 16 equations that ``identification`` solves. Each is a bit of the CRC that no later one has, the
    change of the CRC, and the identification that causes it."""
    equations: list[tuple[int, int, int]] = []
    for number in range(16):
        ip_id = 1 << number
        change = _effect(ip_id, _BEHIND_IDENTIFICATION + length - HEAD.size)
        for bit, known, its_id in equations:
            if change & bit:
                change, ip_id = change ^ known, ip_id ^ its_id
        equations.append((change & -change, change, ip_id))
    return tuple(equations)


def identification(difference: int, length: int) -> int | None:
    """Return the IPv4 identification that explains why the CRC of a packet of ``length`` bytes, computed for
    identification 0, differs by ``difference`` from what it should be. Return None if no identification does: the
    packet is damaged. (One damage in 65,536 goes unnoticed where the identification is not known.)"""
    found = 0
    for bit, change, ip_id in _basis(length):
        if difference & bit:
            difference, found = difference ^ change, found ^ ip_id
    return None if difference else found


class Addresses(NamedTuple):
    """Where packets come from and go to."""

    source: bytes
    destination: bytes
    source_port: int
    port: int


@lru_cache(4096)
def _state(addresses: Addresses, length: int, head: bytes) -> int:
    """See ``Flow.state``."""
    masked = head[:BTH_MASKED_BYTE] + b"\xff" + head[BTH_MASKED_BYTE + 1 :]
    return crc32(masked, prefix(*addresses, length))


@lru_cache(1024)
def _states(addresses: Addresses, length: int, head: bytes) -> tuple[int, ...]:
    """See ``Flow.states``."""
    first = _state(addresses, length, head)
    if len(addresses.source) == 4:
        return tuple(first ^ effect for effect in _EFFECTS)
    return (first,) * IDENTIFICATIONS


class Flow:
    """The CRC states of the packets that one UDP port sends to another. They are computed once for all packets of the
    same length whose BTHs differ only in the word with the PSN, as long as not too many kinds of packets come in
    between."""

    __slots__ = ("_addresses", "has_identification")

    def __init__(self, source: bytes, destination: bytes, source_port: int, port: int) -> None:
        self._addresses = Addresses(source, destination, source_port, port)
        self.has_identification = len(source) == 4
        """Whether the IP header has an identification."""

    def state(self, length: int, head: bytes) -> int:
        """Return the CRC state in front of the word with the PSN, for a packet of ``length`` bytes with identification
        0. ``head`` is what is in front of that word."""
        return _state(self._addresses, length, head)

    def states(self, length: int, head: bytes) -> tuple[int, ...]:
        """Return ``state`` for identifications 0, 1, 2, ..., which are those of the packets of a batch."""
        return _states(self._addresses, length, head)
