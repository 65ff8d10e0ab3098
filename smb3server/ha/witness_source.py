"""The cluster as a node's Witness service sees it (``witness.cluster.ClusterEvents``)."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from smb3server.ha.cluster import Cluster, Event, MoveClientEvent, MoveEvent, NodeEvent, ServiceEvent
from witness import cluster as witness
from witness.ndr import V2, Address, InterfaceInfo, InterfaceState

if TYPE_CHECKING:
    from smb3server.server import Server


class WitnessSource:
    """Net names are those of the services, and the server's own for all of them."""

    def __init__(self, cluster: Cluster, server: Server) -> None:
        self._cluster = cluster
        self._server = server

    def _services(self, net_name: str) -> list[str]:
        wanted = net_name.casefold()
        every = list(self._cluster.services)
        if wanted == self._server.settings.server_name.casefold():
            return every
        return [name for name in every if name.casefold() == wanted]

    def net_names(self) -> Collection[str]:
        return [self._server.settings.server_name, *self._cluster.services]

    def shares(self, net_name: str) -> Collection[str]:
        return [share.name for service in self._services(net_name) for share in self._cluster.services[service].shares]

    def addresses(self, net_name: str) -> Collection[Address]:
        return {address for service in self._services(net_name) for address in self._cluster.addresses_of(service)}

    def node_addresses(self, node: str) -> list[Address]:
        found = self._cluster.view.nodes.get(node, {}).get("addresses", ())
        return [ipaddress.ip_address(text) for text in found]

    def interfaces(self) -> Sequence[InterfaceInfo]:
        found: list[InterfaceInfo] = []
        for node in sorted(self._cluster.view.nodes):
            addresses = self.node_addresses(node)
            ipv4 = [entry for entry in addresses if isinstance(entry, ipaddress.IPv4Address)]
            ipv6 = [entry for entry in addresses if isinstance(entry, ipaddress.IPv6Address)]
            for index in range(max(len(ipv4), len(ipv6))):
                first = ipv4[index] if index < len(ipv4) else None
                second = ipv6[index] if index < len(ipv6) else None
                other = node != self._cluster.node
                found.append(InterfaceInfo(node, V2, InterfaceState.AVAILABLE, first, second, other))
        return found

    def subscribe(self, listener: witness.Listener) -> Callable[[], None]:
        def on_event(event: Event) -> None:
            for translated in self._translate(event):
                listener(translated)

        return self._cluster.subscribe(on_event)

    def _translate(self, event: Event) -> list[witness.Event]:
        if isinstance(event, ServiceEvent):
            addresses = frozenset(self._cluster.addresses_of(event.service))
            up = event.node is not None
            # Those who registered with the server's own name know their service by its addresses.
            return [
                witness.ResourceChanged(event.service, up),
                witness.ResourceChanged(self._server.settings.server_name, up, addresses),
            ]
        if isinstance(event, MoveClientEvent):
            return [witness.ClientMove(event.client, witness.online(self.node_addresses(event.node)))]
        if isinstance(event, MoveEvent) and event.service in self._cluster.services:
            target = witness.online(self._cluster.addresses_of(event.service))
            owner = self._cluster.services[event.service]
            return [
                witness.ShareMove(name, share.name, target)
                for share in owner.shares
                for name in (event.service, self._server.settings.server_name)
            ]
        if isinstance(event, NodeEvent):
            return []
        return []
