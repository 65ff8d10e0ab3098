"""What the Witness service has to know of the cluster, and a cluster that is told by hand."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from smb3server.wire.address import Address
from witness.ndr import V2, AddressInfo, InterfaceInfo, InterfaceState


def _listed(addresses: Sequence[AddressInfo]) -> str:
    return ", ".join(f"{entry.address}{'' if entry.online else ' (offline)'}" for entry in addresses) or "nowhere"


@dataclass(frozen=True, slots=True)
class ResourceChanged:
    """A net name, a share or an address went down or came up."""

    name: str
    """Net name or share name."""
    available: bool
    addresses: frozenset[Address] | None = None
    """Only clients of these addresses are told; None: all of the name's."""

    def __str__(self) -> str:
        return f"{self.name} is {'available' if self.available else 'unavailable'}"


@dataclass(frozen=True, slots=True)
class ClientMove:
    """A client is asked to connect elsewhere."""

    client: str
    """ClientComputerName of its registrations."""
    addresses: tuple[AddressInfo, ...]
    net_name: str | None = None
    """Only registrations for this name; None: any."""
    registered: frozenset[Address] | None = None
    """Only those of these addresses; None: any."""

    def __str__(self) -> str:
        return f"client {self.client} moves to {_listed(self.addresses)}"


@dataclass(frozen=True, slots=True)
class ShareMove:
    """Clients of a share are asked to connect elsewhere (version 2)."""

    net_name: str
    share: str
    addresses: tuple[AddressInfo, ...]

    def __str__(self) -> str:
        return f"share {self.share} of {self.net_name} moves to {_listed(self.addresses)}"


@dataclass(frozen=True, slots=True)
class ServiceMove:
    """What a net name serves is about to move, and clients had better connect anew: those of its shares are told a
    share move, those that registered no share, or in version 1, a client move."""

    net_name: str
    shares: frozenset[str]
    addresses: tuple[AddressInfo, ...]
    registered: frozenset[Address] | None = None
    """Of registrations without a share, only those of these addresses; None: any."""

    def __str__(self) -> str:
        return f"{self.net_name} moves to {_listed(self.addresses)}"


@dataclass(frozen=True, slots=True)
class IpChange:
    """Addresses of a net name came or went (version 2)."""

    net_name: str
    addresses: tuple[AddressInfo, ...]

    def __str__(self) -> str:
        return f"{self.net_name} has changed addresses: {_listed(self.addresses)}"


Event = ResourceChanged | ClientMove | ShareMove | ServiceMove | IpChange
Listener = Callable[[Event], int]
"""Returns how many registrations were told."""


class ClusterEvents(Protocol):
    """The cluster as one node sees it. Names are compared without case."""

    def net_names(self) -> Collection[str]:
        """Names that clients connect to, of all services."""
        ...

    def shares(self, net_name: str) -> Collection[str]:
        """Shares of a net name that clients may register for."""
        ...

    def addresses(self, net_name: str) -> Collection[Address]:
        """Addresses of a net name, online or not; none: any address can be registered."""
        ...

    def interfaces(self) -> Sequence[InterfaceInfo]:
        """Of all nodes. ``witness`` is set for those of the *other* nodes: a witness must outlive what it watches."""
        ...

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call the listener for every event from now on, on the event loop's thread; the result ends that."""
        ...


@dataclass(slots=True)
class Node:
    name: str
    addresses: list[Address]
    local: bool = False
    """This node."""
    available: bool = True


@dataclass(slots=True)
class ManualCluster:
    """Names, shares and nodes as configured; events come from whoever calls the methods below."""

    names: list[str]
    nodes: list[Node]
    list_shares: Callable[[], Collection[str]] = field(default=lambda: ())
    virtual_addresses: list[Address] = field(default_factory=list)
    """Of the net names, beyond those of the nodes."""
    list_local_addresses: Callable[[], Collection[Address]] = field(default=lambda: ())
    """Of this machine, as they are now."""
    _listeners: list[Listener] = field(default_factory=list)
    _seen: frozenset[Address] | None = None

    def net_names(self) -> Collection[str]:
        return self.names

    def shares(self, net_name: str) -> Collection[str]:
        return self.list_shares()

    def addresses(self, net_name: str) -> Collection[Address]:
        of_nodes = [address for node in self.nodes for address in self._addresses_of(node)]
        return {*of_nodes, *self.virtual_addresses, *self.list_local_addresses()}

    def _addresses_of(self, node: Node) -> list[Address]:
        """This node's are known without being configured."""
        if node.local and not node.addresses:
            return [entry for entry in self.list_local_addresses() if not entry.is_loopback]
        return node.addresses

    def interfaces(self) -> Sequence[InterfaceInfo]:
        found = []
        for node in self.nodes:
            state = InterfaceState.AVAILABLE if node.available else InterfaceState.UNAVAILABLE
            addresses = self._addresses_of(node)
            ipv4 = [address for address in addresses if isinstance(address, ipaddress.IPv4Address)]
            ipv6 = [address for address in addresses if isinstance(address, ipaddress.IPv6Address)]
            # One entry holds one address of each family.
            for index in range(max(len(ipv4), len(ipv6))):
                first = ipv4[index] if index < len(ipv4) else None
                second = ipv6[index] if index < len(ipv6) else None
                found.append(InterfaceInfo(node.name, V2, state, first, second, not node.local))
        return found

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def emit(self, event: Event) -> None:
        """Tell every listener."""
        for listener in list(self._listeners):
            listener(event)

    def node(self, name: str) -> Node:
        """Raises ``KeyError``."""
        for entry in self.nodes:
            if entry.name.casefold() == name.casefold():
                return entry
        raise KeyError(name)

    def check_local_addresses(self) -> None:
        """Call it now and then: addresses of this machine that came or went since the last time are told."""
        now = frozenset(entry for entry in self.list_local_addresses() if not entry.is_loopback)
        before, self._seen = self._seen, now
        if before is not None and now != before:
            for net_name in self.names:
                self.ip_change(net_name, sorted(now - before, key=str), sorted(before - now, key=str))

    def resource_changed(self, name: str, available: bool) -> None:
        """A net name or a share."""
        self.emit(ResourceChanged(name, available))

    def node_changed(self, name: str, available: bool) -> None:
        """A node failed or came back: clients of its addresses are told for every net name. Raises ``KeyError``."""
        node = self.node(name)
        node.available = available
        for net_name in self.names:
            self.emit(ResourceChanged(net_name, available, frozenset(self._addresses_of(node))))

    def move_client(self, client: str, addresses: Sequence[Address]) -> None:
        self.emit(ClientMove(client, online(addresses)))

    def move_share(self, net_name: str, share: str, addresses: Sequence[Address]) -> None:
        self.emit(ShareMove(net_name, share, online(addresses)))

    def ip_change(self, net_name: str, added: Sequence[Address], removed: Sequence[Address] = ()) -> None:
        gone = tuple(AddressInfo(address, False) for address in removed)
        self.emit(IpChange(net_name, online(added) + gone))


def online(addresses: Sequence[Address]) -> tuple[AddressInfo, ...]:
    return tuple(AddressInfo(address, True) for address in addresses)
