"""Setting up the Witness service by a server's configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from smb3server.admin.socket import Command
from smb3server.auth.acceptor import Acceptor
from smb3server.settings.witness import WitnessConfig
from smb3server.state.events import Events
from smb3server.wire.address import Address
from smbdirect.unauthenticated import UnauthenticatedPeers
from witness.cluster import ClusterEvents, ManualCluster, Node
from witness.service import NotifyError, WitnessService, WitnessSettings, notify_by_hand

ADDRESS_CHECK_INTERVAL = 1.0
"""Seconds between checks of this machine's addresses."""


class Witness:
    """The Witness service of a server. ``start`` it, then ``stop`` it, once."""

    def __init__(
        self,
        config: WitnessConfig,
        hosts: Sequence[str],
        server_name: str,
        new_acceptor: Callable[[], Acceptor],
        unauthenticated: UnauthenticatedPeers,
        list_shares: Callable[[], Collection[str]],
        list_local_addresses: Callable[[], Collection[Address]],
        cluster: ClusterEvents | None = None,
        admits: Callable[[str], bool] = lambda host: True,
        events: Events | None = None,
    ) -> None:
        """``hosts``: local addresses to listen on. ``cluster``: the source of events, None means that they come from
        the administrator only. ``admits``: returns whether connections from an address are accepted.
        ``events`` is told of failed logons."""
        self.manual: ManualCluster | None = None
        if cluster is None:
            nodes = [Node(name, addresses) for name, addresses in config.nodes]
            nodes.insert(0, Node(server_name, [], local=True))
            names = config.names or [server_name]
            cluster = self.manual = ManualCluster(names, nodes, list_shares, list_local_addresses)
        settings = WitnessSettings(
            list(hosts), config.port, config.endpoint_mapper_port, config.require_privacy, admits=admits, events=events
        )
        self.service = WitnessService(cluster, new_acceptor, settings, unauthenticated=unauthenticated)
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start listening. Raises ``OSError`` as ``WitnessService.start`` does."""
        await self.service.start()
        if self.manual is not None:
            self._watch = asyncio.get_running_loop().create_task(self._watch_addresses(self.manual))

    async def _watch_addresses(self, cluster: ManualCluster) -> None:
        while True:
            cluster.check_local_addresses()
            await asyncio.sleep(ADDRESS_CHECK_INTERVAL)

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        await self.service.stop()

    def admin_commands(self) -> dict[str, Command]:
        """Return the commands for the admin socket, by name."""
        return {"witness": lambda _: self.service.status(), "witness-notify": self._notify}

    def _notify(self, request: dict[str, Any]) -> dict[str, Any]:
        kind, subject, addresses = request.get("kind"), request.get("subject"), request.get("addresses", [])
        texts = isinstance(addresses, list) and all(isinstance(entry, str) for entry in addresses)
        if not isinstance(kind, str) or not isinstance(subject, str) or not texts:
            return {"error": "kind, subject and addresses are needed"}
        if self.manual is None:
            return {"error": "events come from the cluster"}
        before = self.service.events_told
        try:
            notify_by_hand(self.manual, kind, subject, addresses)
        except NotifyError as error:
            return {"error": str(error)}
        return {"told": self.service.events_told - before}
