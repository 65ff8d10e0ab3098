"""Virtual addresses: adding them to an interface, announcing them to the neighbours, and removing them.

IPv4 is announced by gratuitous ARP (RFC 5227 section 3), IPv6 by an unsolicited neighbour advertisement with the
override flag (RFC 4861 section 7.2.6). Needs CAP_NET_ADMIN and CAP_NET_RAW.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smb3server.settings.cluster import VirtualAddress

log = logging.getLogger(__name__)

_ETH_P_ARP = 0x0806
_ARP = struct.Struct("!HHBBH6s4s6s4s")
_ARP_REQUEST, _ARP_REPLY = 1, 2
_BROADCAST = b"\xff" * 6
_ADVERTISEMENT = struct.Struct("!BBHI16sBB6s")
_NA_TYPE, _NA_OVERRIDE, _TARGET_ADDRESS = 136, 0x20000000, 2
_NODAD = 0x02
"""IFA_F_NODAD: usable at once. The lease in the store guarantees that no other node has the address."""


def _change(command: str, entry: VirtualAddress, lifetime: Callable[[], int] = int) -> None:
    # Loading it takes a quarter of a second, which a node without virtual addresses saves.
    from pyroute2 import IPRoute, NetlinkError

    with IPRoute() as route:
        indices = route.link_lookup(ifname=entry.interface)
        if not indices:
            raise OSError(errno.ENODEV, f"no interface {entry.interface}")
        more: dict[str, Any] = {}
        if command == "replace":
            # As late as possible: this process may have been stopped since it entered this function.
            seconds = lifetime()
            if seconds < 1:
                raise OSError(errno.ETIME, f"{entry} is no longer this node's")
            more["IFA_CACHEINFO"] = {"ifa_valid": seconds, "ifa_preferred": seconds}
            if entry.address.version == 6:
                more["flags"] = _NODAD
        try:
            route.addr(command, index=indices[0], address=str(entry.address), prefixlen=entry.prefix_length, **more)
        except NetlinkError as error:
            if command == "del" and error.code == errno.EADDRNOTAVAIL:
                return
            raise OSError(error.code, f"{command} {entry}: {error}") from error


def hold(entry: VirtualAddress, lifetime: Callable[[], int]) -> None:
    """Add the address to its interface for ``lifetime()`` seconds, or renew it for that time.

    Blocks for some milliseconds. Raises ``OSError``, also if the lifetime is less than one second."""
    _change("replace", entry, lifetime)


def remove(entry: VirtualAddress) -> None:
    """Remove the address from its interface, if it is there. Raises ``OSError``."""
    _change("del", entry)


def announce(entry: VirtualAddress) -> None:
    """Announce to the neighbours that this machine has the address.

    Failures are only logged, because the neighbours find out by themselves later."""
    try:
        hardware = bytes.fromhex(Path(f"/sys/class/net/{entry.interface}/address").read_text().strip().replace(":", ""))
        if len(hardware) != 6 or not any(hardware):
            return
        if isinstance(entry.address, ipaddress.IPv4Address):
            _announce_ipv4(entry, hardware)
        else:
            _announce_ipv6(entry, hardware)
    except (OSError, ValueError) as error:
        log.warning("%s is not announced: %s", entry, error)


def arp_packets(address: ipaddress.IPv4Address, hardware: bytes) -> list[bytes]:
    """Return gratuitous ARP packets, as a request and as a reply: some neighbours accept only one of the two."""
    own = address.packed
    header = _BROADCAST + hardware + _ETH_P_ARP.to_bytes(2, "big")
    return [
        header + _ARP.pack(1, 0x0800, 6, 4, kind, hardware, own, target, own)
        for kind, target in ((_ARP_REQUEST, bytes(6)), (_ARP_REPLY, _BROADCAST))
    ]


def advertisement(address: ipaddress.IPv6Address, hardware: bytes) -> bytes:
    """Return an unsolicited neighbour advertisement. The kernel fills in its checksum (RFC 3542 section 3.1)."""
    return _ADVERTISEMENT.pack(_NA_TYPE, 0, 0, _NA_OVERRIDE, address.packed, _TARGET_ADDRESS, 1, hardware)


def _announce_ipv4(entry: VirtualAddress, hardware: bytes) -> None:
    if not isinstance(entry.address, ipaddress.IPv4Address):
        return
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ARP)) as sock:
        sock.bind((entry.interface, 0))
        for packet in arp_packets(entry.address, hardware):
            sock.send(packet)


def _announce_ipv6(entry: VirtualAddress, hardware: bytes) -> None:
    if not isinstance(entry.address, ipaddress.IPv6Address):
        return
    index = socket.if_nametoindex(entry.interface)
    with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as sock:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        sock.bind((str(entry.address), 0, 0, index if entry.address.is_link_local else 0))
        sock.sendto(advertisement(entry.address, hardware), ("ff02::1", 0, 0, index))
