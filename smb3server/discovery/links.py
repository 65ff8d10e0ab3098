"""The links that the server is announced on, and its addresses there."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import IPv6Address
from pathlib import Path
from typing import NamedTuple

from smb3server.net.interfaces import UNUSABLE, Interface
from smb3server.wire.address import Address

IF_INET6 = Path("/proc/thread-self/net/if_inet6")
_SCOPE_LINK = 0x20
"""IPV6_ADDR_LINKLOCAL (linux/include/net/ipv6.h), as /proc/net/if_inet6 prints it."""


class Link(NamedTuple):
    """One interface, and the addresses at which the server can be reached there."""

    number: int
    """IfIndex."""
    name: str
    ipv4: tuple[str, ...]
    ipv6: tuple[str, ...]
    """Without link-local ones."""
    link_local: str = ""
    """The interface's link-local IPv6 address, if the server listens on IPv6 there."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return all addresses that other links may know, IPv4 first."""
        return self.ipv4 + self.ipv6


def link_local_addresses(path: Path = IF_INET6) -> dict[int, str]:
    """Return the link-local IPv6 address of each interface, by the interface's index. [proc(5)]"""
    found: dict[int, str] = {}
    try:
        lines = path.read_text().splitlines()
    except OSError:
        # A machine without IPv6 does not have the file.
        return found
    for line in lines:
        digits, index, _, scope, flags, _ = line.split(maxsplit=5)
        if int(scope, 16) == _SCOPE_LINK and not int(flags, 16) & UNUSABLE:
            found.setdefault(int(index, 16), str(IPv6Address(bytes.fromhex(digits))))
    return found


def choose(
    interfaces: Iterable[Interface], served: Collection[str], wanted: Collection[str], link_local: dict[int, str]
) -> list[Link]:
    """Return the links to announce on.

    ``served``: the addresses that the server listens on, wildcards among them. ``wanted``: names of interfaces; if it
    is empty, all but loopback.
    """
    by_index: dict[int, list[Interface]] = {}
    for entry in interfaces:
        chosen = entry.name in wanted if wanted else not entry.loopback
        if chosen and entry.running and _is_served(entry.address, served):
            by_index.setdefault(entry.number, []).append(entry)
    links = []
    for index, entries in sorted(by_index.items()):
        ipv4 = tuple(str(entry.address) for entry in entries if entry.address.version == 4)
        ipv6 = tuple(str(entry.address) for entry in entries if entry.address.version == 6)
        local = link_local.get(index, "") if "::" in served else ""
        links.append(Link(index, entries[0].name, ipv4, ipv6, local))
    return links


def _is_served(address: Address, served: Collection[str]) -> bool:
    return str(address) in served or ("0.0.0.0" if address.version == 4 else "::") in served
