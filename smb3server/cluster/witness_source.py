"""The cluster, in the form that a node's Witness service needs (``witness.cluster.ClusterEvents``)."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Sequence

from smb3server.cluster.cluster import Cluster
from smb3server.cluster.view import Event, MoveClientEvent, MoveEvent, NodeChanged, NodeEvent, ServiceEvent
from smb3server.wire.address import Address
from witness import cluster as witness
from witness.ndr import V2, AddressInfo, InterfaceInfo, InterfaceState


class WitnessSource:
    """The ``ClusterEvents`` of a node of a cluster.

    Each service has its net name, and the server's own name stands for all services. A client that registers with the
    server's name means the service at the address in its registration."""

    def __init__(self, cluster: Cluster, server_name: str) -> None:
        """``server_name``: the net name of the server itself."""
        self._cluster = cluster
        self._server_name = server_name
        self._nodes: dict[str, list[Address]] = {}
        """Addresses of every node that has been a member since this node's start."""
        self._places: dict[str, list[Address]] = {}
        """By service: the addresses that its clients were notified of last."""
        self._listeners: list[witness.Listener] = []
        cluster.subscribe(self._on_event)

    # State

    def _services(self, net_name: str) -> list[str]:
        wanted = net_name.casefold()
        every = list(self._cluster.services)
        if wanted == self._server_name.casefold():
            return every
        return [name for name in every if name.casefold() == wanted]

    def net_names(self) -> Collection[str]:
        return [self._server_name, *self._cluster.services]

    def shares(self, net_name: str) -> Collection[str]:
        return [share.name for service in self._services(net_name) for share in self._cluster.services[service].shares]

    def _place(self, service: str, node: str) -> list[Address]:
        """Return the addresses at which clients reach a service if it is on ``node``."""
        return list(self._cluster.addresses_of(service) or self._nodes.get(node, ()))

    def interfaces(self) -> Sequence[InterfaceInfo]:
        """Return the interfaces of all nodes. Those of nodes that are no longer members are unavailable."""
        found: list[InterfaceInfo] = []
        for node, addresses in sorted(self._nodes.items()):
            state = InterfaceState.AVAILABLE if node in self._cluster.view.nodes else InterfaceState.UNAVAILABLE
            ipv4 = [entry for entry in addresses if isinstance(entry, ipaddress.IPv4Address)]
            ipv6 = [entry for entry in addresses if isinstance(entry, ipaddress.IPv6Address)]
            for index in range(max(len(ipv4), len(ipv6))):
                first = ipv4[index] if index < len(ipv4) else None
                second = ipv6[index] if index < len(ipv6) else None
                other = node != self._cluster.node
                found.append(InterfaceInfo(node, V2, state, first, second, other))
        return found

    # Events

    def subscribe(self, listener: witness.Listener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _on_event(self, event: Event) -> int:
        if isinstance(event, NodeEvent) and event.alive:
            self._nodes[event.node] = self._said(event.node)
        return sum([listener(told) for told in self._translate(event) for listener in self._listeners])

    def _said(self, node: str) -> list[Address]:
        """Return the addresses that a node publishes."""
        texts = self._cluster.view.nodes.get(node, {}).get("addresses", ())
        return [ipaddress.ip_address(text) for text in texts]

    def _translate(self, event: Event) -> list[witness.Event]:
        if isinstance(event, ServiceEvent):
            return self._moved(event)
        if isinstance(event, MoveEvent) and event.service in self._cluster.services:
            return self._about_to_move(event)
        if isinstance(event, MoveClientEvent):
            return self._move_client(event)
        if isinstance(event, NodeChanged):
            return self._changed(event.node)
        return []

    def _moved(self, event: ServiceEvent) -> list[witness.Event]:
        """Return the events for a service that is served by another node, or by none. [MS-SWN 3.1.6.1, 3.1.6.4]

        First come those that make clients reconnect, then the addresses for clients that registered for them."""
        up, server = event.node is not None, self._server_name
        before = self._places.get(event.service, [])
        now = before
        if event.node is not None:
            now = self._places[event.service] = self._place(event.service, event.node)
        told = witness.online(now) if up else tuple(AddressInfo(address, False) for address in now)
        found: list[witness.Event] = [
            witness.ResourceChanged(event.service, up),
            witness.ResourceChanged(server, up, frozenset([*before, *now])),
        ]
        if told:
            found += [witness.IpChange(name, told) for name in (event.service, server)]
        return found

    def _about_to_move(self, event: MoveEvent) -> list[witness.Event]:
        """Return the events for a service that is about to move. [MS-SWN 3.1.6.3 for registrations of a share, 3.1.6.2
        for the others]

        Virtual addresses move with the service, so clients reconnect to the same addresses."""
        target = witness.online(self._place(event.service, event.node))
        shares = frozenset(share.name for share in self._cluster.services[event.service].shares)
        at = frozenset(self._places.get(event.service) or self._place(event.service, event.node))
        return [
            witness.ServiceMove(event.service, shares, target),
            witness.ServiceMove(self._server_name, shares, target, at),
        ]

    def _move_client(self, event: MoveClientEvent) -> list[witness.Event]:
        """Return the events that move a client, only for services that the node serves. [MS-SWN 3.1.6.2]"""
        found: list[witness.Event] = []
        for service in self._cluster.services:
            if self._cluster.view.served_by(service) == event.node:
                target = witness.online(self._place(service, event.node))
                at = frozenset([*self._places.get(service, ()), *(entry.address for entry in target)])
                found.append(witness.ClientMove(event.client, target, service))
                found.append(witness.ClientMove(event.client, target, self._server_name, at))
        return found

    def _changed(self, node: str) -> list[witness.Event]:
        """Return the events for changed addresses of a node. [MS-SWN 3.1.6.4]

        They concern the clients of the node's services that have no virtual addresses."""
        before, now = self._nodes.get(node, []), self._said(node)
        self._nodes[node] = now
        changes = witness.online([entry for entry in now if entry not in before])
        changes += tuple(AddressInfo(entry, False) for entry in before if entry not in now)
        found: list[witness.Event] = []
        for service in self._cluster.services:
            if changes and not self._cluster.addresses_of(service) and self._cluster.view.served_by(service) == node:
                self._places[service] = self._place(service, node)
                found += [witness.IpChange(name, changes) for name in (service, self._server_name)]
        return found
