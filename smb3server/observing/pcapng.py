"""Captures that are made of messages, not of frames: pcapng with IP and TCP headers that nobody has sent.

A conversation is a TCP connection to port 445 whose segments carry the messages, each behind its length (direct TCP).
Sequence numbers are right, so programs put the messages together again. TCP checksums are zero, as in captures of
machines whose NIC computes them. [draft-ietf-opsawg-pcapng, RFC 9293, RFC 791, RFC 8200, MS-SMB2 2.1]
"""

from __future__ import annotations

import ipaddress
import struct
import time
from collections.abc import Sequence

from smbdirect.codec import Buffer

_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_MAGIC = 0x1A2B3C4D
_COMMENT, _APPLICATION = 1, 4
_RAW_IP = 101
"""LINKTYPE_RAW: a packet begins with its IP header."""
_PORT = 445
SEGMENT = 32768
"""Most bytes of data in a packet."""
_LENGTH = struct.Struct(">I")
_TCP = struct.Struct(">HHIIBBHHH")
_IPV4 = struct.Struct(">BBHHHBBH4s4s")
_IPV6 = struct.Struct(">IHBB16s16s")
_FIN, _SYN, _PUSH, _ACK = 0x01, 0x02, 0x08, 0x10


def _option(code: int, text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<HH", code, len(raw)) + raw + bytes(-len(raw) & 3)


def _block(kind: int, body: bytes) -> bytes:
    size = len(body) + 12
    return struct.pack("<II", kind, size) + body + struct.pack("<I", size)


def header(comment: str) -> bytes:
    """Return what a file begins with: its section and its only interface."""
    options = _option(_COMMENT, comment) + _option(_APPLICATION, "smb3server") + bytes(4)
    section = struct.pack("<IHHq", _MAGIC, 1, 0, -1) + options
    return _block(_SECTION, section) + _block(_INTERFACE, struct.pack("<HHI", _RAW_IP, 0, 0))


def packet(when: float, data: bytes, comment: str = "") -> bytes:
    """Return a packet. ``when``: seconds since 1970."""
    high, low = divmod(int(when * 1e6), 1 << 32)
    body = struct.pack("<IIIII", 0, high, low, len(data), len(data)) + data + bytes(-len(data) & 3)
    if comment:
        body += _option(_COMMENT, comment) + bytes(4)
    return _block(_PACKET, body)


def _checksum(raw: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(raw) // 2}H", raw))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Conversation:
    """One connection in a capture: the packets of its beginning, its messages and its end."""

    def __init__(self, client: tuple[str, int], server: str) -> None:
        """``client``: address and port. ``server``: address of the same family; the port is always 445."""
        hosts = [ipaddress.ip_address(host.partition("%")[0]) for host in (client[0], server)]
        self._v6 = any(host.version == 6 for host in hosts)
        self._hosts = [
            ipaddress.IPv6Address(f"::ffff:{host}").packed if self._v6 and host.version == 4 else host.packed
            for host in hosts
        ]
        self._ports = client[1], _PORT
        self._next = [0, 0]
        """Next sequence number of client and server."""

    def _frame(self, side: int, flags: int, data: bytes = b"") -> bytes:
        """Return one packet of a side: 0 is the client, 1 the server."""
        own, other = self._next[side], self._next[1 - side]
        tcp = _TCP.pack(self._ports[side], self._ports[1 - side], own, other, 5 << 4, flags, 65535, 0, 0) + data
        self._next[side] = (own + len(data) + bool(flags & (_SYN | _FIN))) & 0xFFFFFFFF
        source, target = self._hosts[side], self._hosts[1 - side]
        if self._v6:
            return _IPV6.pack(6 << 28, len(tcp), 6, 64, source, target) + tcp
        plain = _IPV4.pack(0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0, source, target)
        return plain[:10] + _checksum(plain).to_bytes(2, "big") + plain[12:] + tcp

    def beginning(self, when: float, comment: str = "") -> bytes:
        """Return the packets by which a connection begins. Sequence numbers begin again."""
        self._next = [0, 0]
        return (
            packet(when, self._frame(0, _SYN), comment)
            + packet(when, self._frame(1, _SYN | _ACK))
            + packet(when, self._frame(0, _ACK))
        )

    def message(self, when: float, by_server: bool, segments: Sequence[Buffer], comment: str = "") -> bytes:
        """Return the packets of a message."""
        length = sum(map(len, segments))
        data = b"".join((_LENGTH.pack(length), *segments))
        side = 1 if by_server else 0
        found = [
            packet(when, self._frame(side, _ACK | _PUSH, data[start : start + SEGMENT]), "" if start else comment)
            for start in range(0, len(data), SEGMENT)
        ]
        return b"".join(found)

    def end(self, when: float) -> bytes:
        """Return the packets by which a connection ends."""
        return (
            packet(when, self._frame(0, _FIN | _ACK))
            + packet(when, self._frame(1, _FIN | _ACK))
            + packet(when, self._frame(0, _ACK))
        )


def now() -> float:
    """Return the time as captures have it."""
    return time.time()
