"""What kind of address a host has, and the lists that decide which hosts may connect."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from smb3server.wire.address import Address

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def is_address(text: str) -> bool:
    """Return whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host."""
    return ipaddress.ip_address(host).is_loopback if is_address(host) else host == "localhost"


def parse(entries: Sequence[str]) -> tuple[Network, ...]:
    """Parse entries such as ``192.0.2.7``, ``192.0.2.0/24`` or ``2001:db8::/32``. Raise ``ValueError`` for other
    entries and for networks with host bits set."""
    return tuple(ipaddress.ip_network(entry) for entry in entries)


@dataclass(frozen=True, slots=True)
class HostLists:
    """The hosts that may connect: those in ``allow`` (None means all), except those in ``deny``."""

    allow: tuple[Network, ...] | None = None
    deny: tuple[Network, ...] = ()

    def admits(self, host: str) -> bool:
        """Return whether ``host`` may connect: an address as sockets return it, with or without its interface."""
        if self.allow is None and not self.deny:
            return True
        try:
            address: Address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if any(address in network for network in self.deny):
            return False
        return self.allow is None or any(address in network for network in self.allow)


EVERYBODY = HostLists()
