"""Notifying clients that their connections to a server are lost because it died without closing them.

A client that only waits for an answer notices such a death minutes later, when its own time-outs expire. So the new
owner of a service's address sends one bare acknowledgment to the peer of each recorded connection, as if from the old
server. Its sequence number is not acceptable, so the client answers with an acknowledgment that has its real numbers
(RFC 9293 section 3.10.7.4, first check). The kernel here has no such connection, and answers with a reset that the
client must accept (section 3.10.7.1, and 3.10.7.2 for a port that is listened on). A connection that lives, or one that
its client has forgotten, is not affected.

The packets are sent whole, with their IP headers, through sockets that receive nothing. Needs CAP_NET_RAW.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import struct
from collections.abc import Callable, Collection, Sequence

from smb3server.cluster.peers import Peer, PeerRecord
from smb3server.persistence.store import StoreError
from smb3server.wire.address import Address

log = logging.getLogger(__name__)

_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_IPV6 = struct.Struct("!IHBB16s16s")
_TCP = struct.Struct("!HHIIBBHHH")
_IPV4_VERSION_AND_LENGTH, _IPV6_VERSION = 0x45, 6 << 28
_DONT_FRAGMENT = 0x4000
_HOPS = 64
_DATA_OFFSET = 5 << 4
_ACK = 0x10
_WINDOW = 1024
"""Not zero: if the numbers are acceptable by chance, the client must not conclude that it may not send."""
_MAX_SEQUENCE = 1 << 32

DELAYS = (0.0, 1.0, 3.0, 8.0)
"""Seconds after the takeover at which the packets are sent: packets get lost, and a network may learn late where the
address is. Linux answers only one such packet of a connection in half a second (net.ipv4.tcp_invalid_ratelimit)."""
PER_TURN, PAUSE = 100, 0.02
"""Packets sent in one turn of the event loop, and seconds until the next: at most 5,000 packets per second."""


def _sum(data: bytes) -> int:
    """Return the sum of the 16 bit words, without folding carries (RFC 1071). ``data`` has an even length."""
    return sum(struct.unpack(f"!{len(data) // 2}H", data))


def _checksum(total: int) -> int:
    """Return the complement of the one's complement sum (RFC 1071). ``total``: results of ``_sum``, added up."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def packet(peer: Peer, sequence: int, acknowledgment: int) -> bytes:
    """Return an acknowledgment without data from the server's end of a connection to its client's end.

    It consists of an IP header (RFC 791 section 3.1 or RFC 8200 section 3) and a TCP header (RFC 9293 section 3.1)."""
    source, target = peer.local.packed, peer.client.packed
    ports = peer.local_port, peer.client_port
    bare = _TCP.pack(*ports, sequence, acknowledgment, _DATA_OFFSET, _ACK, _WINDOW, 0, 0)
    # The pseudo headers of IPv4 and IPv6 (RFC 8200 section 8.1) have the same sum.
    total = _checksum(_sum(source) + _sum(target) + socket.IPPROTO_TCP + len(bare) + _sum(bare))
    segment = _TCP.pack(*ports, sequence, acknowledgment, _DATA_OFFSET, _ACK, _WINDOW, total, 0)
    if peer.local.version == 6:
        return _IPV6.pack(_IPV6_VERSION, len(segment), socket.IPPROTO_TCP, _HOPS, source, target) + segment
    fields = (_IPV4_VERSION_AND_LENGTH, 0, _IPV4.size + len(segment), 0, _DONT_FRAGMENT, _HOPS, socket.IPPROTO_TCP)
    header = _IPV4.pack(*fields, _checksum(_sum(_IPV4.pack(*fields, 0, source, target))), source, target)
    return header + segment


def _raw_socket(version: int) -> socket.socket:
    """Return a socket that sends whole packets and receives none (raw(7), ipv6(7)). Raises ``OSError``."""
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    return socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, socket.IPPROTO_RAW)


def why_not() -> str:
    """Return why this process cannot send such packets; empty if it can."""
    try:
        _raw_socket(4).close()
    except PermissionError:
        return "without CAP_NET_RAW"
    except OSError as error:
        return f"no raw sockets: {error}"
    return ""


class Tickler:
    """Sends the packets of one takeover, from the service's addresses. ``close`` it."""

    def __init__(self, addresses: Collection[Address]) -> None:
        """Raises ``OSError`` if this machine does not have the addresses, or this process no CAP_NET_RAW."""
        self.sent = 0
        self.failed = 0
        """Number of packets that the system did not take: it had no route to the client, or no room."""
        self._sequence = secrets.randbelow(_MAX_SEQUENCE)
        self._acknowledgment = secrets.randbelow(_MAX_SEQUENCE)
        self._sockets: dict[Address, socket.socket] = {}
        try:
            for address in addresses:
                sock = self._sockets[address] = _raw_socket(address.version)
                # With this, no packet is sent from an address that this machine does not have or no longer has.
                sock.bind((str(address), 0))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the sockets."""
        for sock in self._sockets.values():
            sock.close()

    def _send(self, peer: Peer) -> None:
        data = packet(peer, self._sequence, self._acknowledgment)
        try:
            self._sockets[peer.local].sendto(data, (str(peer.client), 0))
        except OSError:
            self.failed += 1
        else:
            self.sent += 1

    async def tell(self, peers: Sequence[Peer], lives: Callable[[Peer], bool], delays: Sequence[float]) -> None:
        """Send a packet to every peer after each of ``delays`` (seconds from now).

        Skip connections for which ``lives`` returns True at that time, because the client has reused the ports for a
        connection to this node. Skip addresses that the service no longer has."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        wanted = [peer for peer in peers if peer.local in self._sockets]
        for delay in delays:
            await asyncio.sleep(start + delay - loop.time())
            for number, peer in enumerate(wanted, 1):
                if not lives(peer):
                    self._send(peer)
                if number % PER_TURN == 0:
                    await asyncio.sleep(PAUSE)
            # A window is less than half of all numbers: if one packet hits it by chance, the next one does not.
            self._sequence = (self._sequence + _MAX_SEQUENCE // 2) % _MAX_SEQUENCE


async def end_connections(service: str, record: PeerRecord, addresses: Collection[Address]) -> None:
    """Notify the clients of nodes that had a service before that their connections are lost. Then forget these.

    ``record``: that of the present ownership. ``addresses``: the service's, which this machine must have already."""
    try:
        peers, prefixes = await record.left_over()
        if peers:
            await _end(service, peers, record, addresses)
        await record.forget(prefixes)
    except StoreError as error:
        log.warning("service %s: connections to its last node: %s", service, error)


async def _end(service: str, peers: Sequence[Peer], record: PeerRecord, addresses: Collection[Address]) -> None:
    try:
        tickler = Tickler(addresses)
    except OSError as error:
        # The process has no right to do it, which was reported when the node started. Or the addresses are moving to
        # another node already.
        log.info("service %s: %d connections to its last node are left alone: %s", service, len(peers), error)
        return
    log.info("service %s: ending %d connections to its last node", service, len(peers))
    try:
        await tickler.tell(peers, record.__contains__, DELAYS)
    finally:
        tickler.close()
    log.info("service %s: %d packets sent for that, %d could not be sent", service, tickler.sent, tickler.failed)
