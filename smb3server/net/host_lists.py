"""Which hosts may come in: lists of addresses and networks."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from smb3server.wire.address import Address

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse(entries: Sequence[str]) -> tuple[Network, ...]:
    """``192.0.2.7``, ``192.0.2.0/24``, ``2001:db8::/32``. Raises ``ValueError``, also where host bits are set."""
    return tuple(ipaddress.ip_network(entry) for entry in entries)


@dataclass(frozen=True, slots=True)
class HostLists:
    """Whoever is in ``deny`` stays out; of the others those in ``allow`` come in, or all where that is None."""

    allow: tuple[Network, ...] | None = None
    deny: tuple[Network, ...] = ()

    def admits(self, host: str) -> bool:
        """``host``: an address as sockets have it, with or without its interface."""
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
