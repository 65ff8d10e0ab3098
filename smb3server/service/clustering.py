"""This node's part in a cluster, as configured. The module needs aiohttp, and is imported only if there is
a cluster.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from typing import Any

from smb3server.access.descriptor import SecurityDescriptor
from smb3server.cluster import tickle
from smb3server.cluster.cluster import Cluster
from smb3server.cluster.fencer import Fencer
from smb3server.cluster.lease_keeper import boottime
from smb3server.cluster.share_permissions import SharePermissions
from smb3server.cluster.upkeep import Upkeep
from smb3server.cluster.view import Event, ServiceEvent
from smb3server.cluster.witness_source import WitnessSource
from smb3server.net import store_access
from smb3server.persistence.etcd import ClusterStore, open_store
from smb3server.persistence.journal import Persistence
from smb3server.server.server import Server
from smb3server.settings.cluster import ClusterConfig
from smb3server.state.share import Share
from smb3server.status.model import ClusterRecord, ServiceRecord

log = logging.getLogger(__name__)


class ClusterNode:
    """This node of a cluster.

    ``start`` it once the server listens, ``stop`` it before the server, and ``close`` its store last.
    """

    def __init__(
        self, server: Server, persistence: Persistence, config: ClusterConfig, fencer: Fencer | None = None
    ) -> None:
        """``fencer``: runs ``fence_command``. None: it is started here, if there is such a command. ``close`` ends it
        either way."""
        self._server = server
        self._config = config
        self._cannot_tickle = tickle.why_not()
        """Why this node cannot notify clients of a node that died silently (``cluster.tickle``); empty if it can."""
        if self._cannot_tickle and any(service.addresses for service in config.services):
            log.warning(
                "this node cannot notify clients that only wait when it takes over from a silent node: %s",
                self._cannot_tickle,
            )
        self.warnings = store_access.warnings(config.url, config.access)
        """Warnings for the operator about access to the store."""
        for warning in self.warnings:
            log.warning("%s", warning)
        self._store: ClusterStore = open_store(config.url, config.name, config.access)
        self._fencer = fencer
        if fencer is None and config.fence_command:
            self._fencer = Fencer(config.fence_command, config.fence_timeout)
        self.cluster = Cluster(
            server, persistence, self._store, config, self._describe, self._store.refused, self._fencer
        )
        self.upkeep = Upkeep(self._store.etcd, self.cluster.prefix, config.node, lambda: self.cluster.view.nodes)
        """Looks after etcd."""
        self.permissions = SharePermissions(self._store, config.name, self._shares, self._store.refused)
        for owner in self.cluster.services.values():
            owner.before_serving = self.permissions.load
        self._takeovers: Counter[str] = Counter()
        self._losses: Counter[str] = Counter()
        self._here: set[str] = set()
        """Services that are served here, as the cluster's events say."""
        self.cluster.subscribe(self._count)
        self._tasks: list[asyncio.Task[None]] = []
        self.events = WitnessSource(self.cluster, server.settings.server_name)

    def _shares(self) -> list[Share]:
        return [share for owner in self.cluster.services.values() for share in owner.shares]

    async def start(self) -> None:
        """Join the cluster."""
        await self.cluster.start()
        self._tasks = [asyncio.ensure_future(self.permissions.run()), asyncio.ensure_future(self.upkeep.run())]

    async def stop(self) -> None:
        """Release all services and leave the cluster."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.cluster.stop()

    def _count(self, event: Event) -> int:
        """Count takeovers and losses of services. Nobody is notified."""
        if isinstance(event, ServiceEvent):
            if event.node == self._config.node and event.service not in self._here:
                self._here.add(event.service)
                self._takeovers[event.service] += 1
            elif event.node != self._config.node and event.service in self._here:
                self._here.discard(event.service)
                self._losses[event.service] += 1
        return 0

    def report(self) -> ClusterRecord:
        """Return what this node knows of the cluster (``status.cluster_state.ClusterState``)."""
        membership, view = self.cluster.membership, self.cluster.view
        left = round(max(0.0, membership.fence.deadline - boottime()), 1)
        member = bool(membership.lease) and left > 0
        opens = self._server.opens
        return ClusterRecord(
            name=self._config.name,
            node=self._config.node,
            member=member,
            lease_left=left if member else 0.0,
            nodes=sorted(view.nodes),
            # A view that is not kept up to date says nothing about other nodes.
            services=[
                ServiceRecord(
                    name=owner.name,
                    owned=owner.owned,
                    node=self._config.node if owner.owned else view.served_by(owner.name) if member else None,
                    addresses=[str(entry.address) for entry in owner.config.addresses],
                    shares=[share.name for share in owner.shares],
                    restored=owner.restored,
                    takeovers=self._takeovers[owner.name],
                    losses=self._losses[owner.name],
                    **owner.report(),
                )
                for owner in self.cluster.services.values()
            ],
            opens=len(opens.by_id),
            max_opens=opens.ceiling,
            etcd=self.upkeep.report(),
        )

    # What running shares need (``service.running_shares.ClusterShares``)

    async def add_share(self, share: Share) -> None:
        """Serve one more share with its service. Raises ``StoreError``."""
        await self.cluster.add_share(share)

    def remove_share(self, share: Share) -> None:
        """Forget a share that is no longer served."""
        self.cluster.remove_share(share)

    async def permit(self, share: Share, permissions: SecurityDescriptor | None) -> None:
        """Set the permissions of a service's share, at all nodes. Raises ``StoreError``."""
        await self.permissions.put(share, permissions)

    def _describe(self) -> dict[str, Any]:
        """Return the description of this node for other nodes' Witness services and for administrators."""
        virtual = {str(entry.address) for service in self._config.services for entry in service.addresses}
        found = [str(entry.address) for entry in self._server.interfaces.interfaces if not entry.loopback]
        return {
            "pid": os.getpid(),
            "addresses": [address for address in found if address not in virtual],
            "services": [service.name for service in self._config.services],
            "cannot_tickle": self._cannot_tickle,
        }

    async def close(self) -> None:
        """Close the store, and end the helper that fences."""
        await self._store.close()
        if self._fencer is not None:
            await asyncio.to_thread(self._fencer.close)
