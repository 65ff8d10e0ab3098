"""The UDP sockets of WS-Discovery on one link, for one family of addresses. [SOAP-over-UDP]

One socket receives what is sent to the multicast group on this link, another sends, and receives what is sent to the
server's own address. Nothing leaves the link: multicast has a hop limit of 1, and answers to hosts behind a router fail
(SO_DONTROUTE, socket(7)). A forged source address therefore cannot turn answers into an attack on somebody else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

from smb3server.discovery.links import Link
from smb3server.discovery.soap import MAX_SIZE

log = logging.getLogger(__name__)

PORT = 3702
GROUP_IPV4, GROUP_IPV6 = "239.255.255.250", "ff02::c"
"""[WSD 2.4]"""
# linux/in.h, linux/in6.h
_IP_MULTICAST_ALL, _IPV6_MULTICAST_ALL = 49, 29
_PER_WAKE = 16
"""Messages that are read in one turn of the event loop."""

Arrived = Callable[["LinkSockets", bytes, "Peer"], None]


class Peer(NamedTuple):
    """Where a message came from."""

    host: str
    socket_address: tuple[str, int] | tuple[str, int, int, int]


class LinkSockets:
    """The sockets of one link and family. Call ``close`` once."""

    def __init__(self, link: Link, address: str, arrived: Arrived) -> None:
        """Join the group on ``link``. ``address`` is the server's there. Raises ``OSError``."""
        self.link = link
        self.address = address
        self._arrived = arrived
        self._is_ipv6 = ":" in address
        self._sockets: list[socket.socket] = []
        try:
            receiver = self._open()
            self._sender = self._open()
            (self._join_ipv6 if self._is_ipv6 else self._join_ipv4)(receiver, self._sender)
        except OSError:
            self.close()
            raise
        for sock in self._sockets:
            asyncio.get_running_loop().add_reader(sock.fileno(), self._readable, sock)

    def _open(self) -> socket.socket:
        family = socket.AF_INET6 if self._is_ipv6 else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._sockets.append(sock)
        # Other programs of this machine may use the port, too: clients of WS-Discovery do.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)
        return sock

    def _join_ipv4(self, receiver: socket.socket, sender: socket.socket) -> None:
        # Without this option it would receive the groups that any socket of this machine has joined. [ip(7)]
        receiver.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
        receiver.bind((GROUP_IPV4, PORT))
        membership = struct.pack(
            "=4s4si", socket.inet_aton(GROUP_IPV4), socket.inet_aton(self.address), self.link.number
        )
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, membership)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
        sender.bind((self.address, PORT))

    def _join_ipv6(self, receiver: socket.socket, sender: socket.socket) -> None:
        index = self.link.number
        for sock in (receiver, sender):
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        receiver.setsockopt(socket.IPPROTO_IPV6, _IPV6_MULTICAST_ALL, 0)
        receiver.bind((GROUP_IPV6, PORT, 0, index))
        group = socket.inet_pton(socket.AF_INET6, GROUP_IPV6)
        receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group + struct.pack("=i", index))
        sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 1)
        sender.bind((self.address, PORT, 0, index))

    def _readable(self, sock: socket.socket) -> None:
        for _ in range(_PER_WAKE):
            try:
                # One byte more than is read, so that a longer message is recognised.
                data, source = sock.recvfrom(MAX_SIZE + 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                # An ICMP error of something that was sent.
                log.debug("WS-Discovery on %s: %s", self.link.name, error)
                continue
            host = source[0].partition("%")[0]
            # Link-local addresses cannot come from behind a router, as SO_DONTROUTE makes sure for IPv4.
            if not self._is_ipv6 or host.startswith("fe80:"):
                self._arrived(self, data, Peer(host, source))

    def send(self, data: bytes, peer: Peer | None = None) -> None:
        """Send a message to ``peer``; None means everybody on the link. An error is only logged."""
        if self._sender.fileno() < 0:
            return
        everybody = (GROUP_IPV6, PORT, 0, self.link.number) if self._is_ipv6 else (GROUP_IPV4, PORT)
        try:
            self._sender.sendto(data, everybody if peer is None else peer.socket_address)
        except OSError as error:
            log.debug("WS-Discovery on %s: %s", self.link.name, error)

    def close(self) -> None:
        """Leave the group. Idempotent."""
        loop = asyncio.get_running_loop()
        for sock in self._sockets:
            if sock.fileno() >= 0:
                loop.remove_reader(sock.fileno())
                sock.close()
