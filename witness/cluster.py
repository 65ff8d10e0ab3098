"""The events of a cluster, the interface through which the Witness service gets them, and a cluster whose events come
from the administrator."""

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
    """Only registrations for these addresses are notified. None means all for the name."""

    def __str__(self) -> str:
        return f"{self.name} is {'available' if self.available else 'unavailable'}"


@dataclass(frozen=True, slots=True)
class ClientMove:
    """A client is asked to connect elsewhere."""

    client: str
    """ClientComputerName of its registrations."""
    addresses: tuple[AddressInfo, ...]
    net_name: str | None = None
    """Only registrations for this name are notified. None means any."""
    registered: frozenset[Address] | None = None
    """Only registrations for these addresses are notified. None means any."""

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
    """The shares of a net name are about to move, and their clients should reconnect.

    Registrations for one of the shares get a share move. Those without a share, and those in version 1, get a client
    move."""

    net_name: str
    shares: frozenset[str]
    addresses: tuple[AddressInfo, ...]
    registered: frozenset[Address] | None = None
    """Of registrations without a share, only those for these addresses are notified. None means any."""

    def __str__(self) -> str:
        return f"{self.net_name} moves to {_listed(self.addresses)}"


@dataclass(frozen=True, slots=True)
class IpChange:
    """Addresses of a net name were added or removed (version 2)."""

    net_name: str
    addresses: tuple[AddressInfo, ...]

    def __str__(self) -> str:
        return f"{self.net_name} has changed addresses: {_listed(self.addresses)}"


Event = ResourceChanged | ClientMove | ShareMove | ServiceMove | IpChange
Listener = Callable[[Event], int]
"""Takes an event, and returns how many registrations were notified of it."""


class ClusterEvents(Protocol):
    """A cluster, as one of its nodes sees it. Case is ignored when names are compared."""

    def net_names(self) -> Collection[str]:
        """Return the names that clients connect to, of all services."""
        ...

    def shares(self, net_name: str) -> Collection[str]:
        """Return the shares of a net name that clients may register for."""
        ...

    def interfaces(self) -> Sequence[InterfaceInfo]:
        """Return the interfaces of all nodes.

        ``witness`` is set for those of the *other* nodes, because a witness must outlive the node that it watches."""
        ...

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` for every event, on the event loop's thread. Return a function that ends this."""
        ...


@dataclass(slots=True)
class Node:
    """A configured node of a ``ManualCluster``."""

    name: str
    addresses: list[Address]
    local: bool = False
    """Whether it is this node."""
    available: bool = True


@dataclass(slots=True)
class ManualCluster:
    """A cluster with configured names, shares and nodes. Its events come from the callers of the methods below."""

    names: list[str]
    nodes: list[Node]
    list_shares: Callable[[], Collection[str]] = field(default=lambda: ())
    list_local_addresses: Callable[[], Collection[Address]] = field(default=lambda: ())
    """Returns the present addresses of this machine."""
    _listeners: list[Listener] = field(default_factory=list)
    _seen: frozenset[Address] | None = None
    """This machine's addresses at the last check; None before the first."""

    def net_names(self) -> Collection[str]:
        return self.names

    def shares(self, net_name: str) -> Collection[str]:
        return self.list_shares()

    def _addresses_of(self, node: Node) -> list[Address]:
        """Return the addresses of a node. Those of this node need not be configured."""
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
        """Pass an event to every listener."""
        for listener in list(self._listeners):
            listener(event)

    def node(self, name: str) -> Node:
        """Return a node by name, without regard to case. Raises ``KeyError``."""
        for entry in self.nodes:
            if entry.name.casefold() == name.casefold():
                return entry
        raise KeyError(name)

    def check_local_addresses(self) -> None:
        """Emit events for addresses of this machine that were added or removed since the last call."""
        now = frozenset(entry for entry in self.list_local_addresses() if not entry.is_loopback)
        before, self._seen = self._seen, now
        if before is not None and now != before:
            for net_name in self.names:
                self.ip_change(net_name, sorted(now - before, key=str), sorted(before - now, key=str))

    def resource_changed(self, name: str, available: bool) -> None:
        """Report that a net name or a share is available, or is not."""
        self.emit(ResourceChanged(name, available))

    def node_changed(self, name: str, available: bool) -> None:
        """Report that a node came back or failed. Raises ``KeyError``.

        Clients of its addresses are notified for every net name."""
        node = self.node(name)
        node.available = available
        for net_name in self.names:
            self.emit(ResourceChanged(net_name, available, frozenset(self._addresses_of(node))))

    def move_client(self, client: str, addresses: Sequence[Address]) -> None:
        """Ask a client, by its ClientComputerName, to connect to one of ``addresses``."""
        self.emit(ClientMove(client, online(addresses)))

    def move_share(self, net_name: str, share: str, addresses: Sequence[Address]) -> None:
        """Ask the clients of a share to connect to one of ``addresses``."""
        self.emit(ShareMove(net_name, share, online(addresses)))

    def ip_change(self, net_name: str, added: Sequence[Address], removed: Sequence[Address] = ()) -> None:
        """Report addresses that were added to a net name or removed from it."""
        gone = tuple(AddressInfo(address, False) for address in removed)
        self.emit(IpChange(net_name, online(added) + gone))


def online(addresses: Sequence[Address]) -> tuple[AddressInfo, ...]:
    """Return the addresses marked as online."""
    return tuple(AddressInfo(address, True) for address in addresses)
