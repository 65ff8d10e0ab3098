"""A node of a cluster: watches what the nodes agree on, takes services that nobody has, hands on those it should not.

Everything lies in the store below the cluster's name: ``c/nodes/NODE`` (bound to the node's lease),
``c/services/SERVICE/owner`` (bound to its owner's), ``c/services/SERVICE/target`` and ``c/draining/NODE`` (the
administrator's wishes), ``c/events/...`` (told to all nodes, for their Witness services), and apart from those
``state/SERVICE/opens/...`` (persistent opens).
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smb3server.ha.membership import DEFAULT_TTL, Membership, boottime
from smb3server.ha.persistence import Persistence
from smb3server.ha.service_owner import ServiceConfig, ServiceOwner
from smb3server.ha.store import Change, Store, StoreError

if TYPE_CHECKING:
    from smb3server.server import Server

log = logging.getLogger(__name__)

DEFAULT_NAME = "smb3server"
STARTUP_GRACE = 5.0
"""Seconds in which a node that has just joined leaves services to nodes that would rather have them."""
SUCCESSION_DELAY = 1.5
"""Seconds that each further candidate gives those before it."""
_TICK = 0.5
_NAMESPACE = uuid.UUID("6b1c0c3e-2f0a-4b57-9a0a-6a7d2c7f5d11")
_MOVE_NOTICE = 0.5
"""Seconds between telling clients of a move and moving."""


@dataclass(slots=True)
class ClusterConfig:
    """``--cluster`` and ``--node``, sections [cluster] and [[service]]."""

    url: str = ""
    node: str = ""
    name: str = DEFAULT_NAME
    ttl: float = DEFAULT_TTL
    services: list[ServiceConfig] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ServiceEvent:
    """A service is served by ``node`` from now on, or by nobody (None)."""

    service: str
    node: str | None


@dataclass(frozen=True, slots=True)
class NodeEvent:
    node: str
    alive: bool


@dataclass(frozen=True, slots=True)
class MoveEvent:
    """A service is about to move; its clients may as well connect anew."""

    service: str
    node: str


@dataclass(frozen=True, slots=True)
class MoveClientEvent:
    """The administrator wants a client elsewhere."""

    client: str
    node: str


Event = ServiceEvent | NodeEvent | MoveEvent | MoveClientEvent


class View:
    """What the store says: nodes, owners, wishes."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: dict[str, dict[str, Any]] = {}
        self.owners: dict[str, str] = {}
        self.targets: dict[str, str] = {}
        self.draining: set[str] = set()

    def apply(self, change: Change) -> Event | None:
        """Take in a change; the event it means."""
        kind, _, rest = change.key.removeprefix(self.prefix).partition("/")
        value = _decode(change.value)
        if kind == "nodes":
            known = rest in self.nodes
            if change.value is None:
                self.nodes.pop(rest, None)
                return NodeEvent(rest, False) if known else None
            self.nodes[rest] = value
            return None if known else NodeEvent(rest, True)
        if kind == "draining":
            (self.draining.discard if change.value is None else self.draining.add)(rest)
        elif kind == "services":
            service, _, what = rest.partition("/")
            if what == "owner":
                return self._owner(service, None if change.value is None else str(value.get("node")))
            if what == "target" and change.value is not None:
                self.targets[service] = str(value.get("node"))
            elif what == "target":
                self.targets.pop(service, None)
        elif kind == "events" and change.value is not None:
            if value.get("kind") == "move-client":
                return MoveClientEvent(str(value.get("client")), str(value.get("node")))
            if value.get("kind") == "move":
                return MoveEvent(str(value.get("service")), str(value.get("node")))
        return None

    def _owner(self, service: str, node: str | None) -> Event | None:
        if self.owners.get(service) == node:
            return None
        if node is None:
            del self.owners[service]
        else:
            self.owners[service] = node
        return ServiceEvent(service, node)


def _decode(value: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(value or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def coordination_prefix(name: str) -> str:
    """Of what nodes watch, in a cluster of this name."""
    return f"{name}/c/"


async def read_view(store: Store, prefix: str) -> View:
    """Raises ``StoreError``."""
    view = View(prefix)
    for kind in ("nodes/", "draining/", "services/"):
        for entry in await store.scan(prefix + kind):
            view.apply(Change(*entry))
    return view


class Cluster:
    """Made once shares are there and before anybody is served. Then ``start`` it; ``stop`` it before the server."""

    def __init__(self, server: Server, store: Store, config: ClusterConfig, info: Callable[[], dict[str, Any]]) -> None:
        self.config = config
        self.node = config.node
        self.prefix = coordination_prefix(config.name)
        self.view = View(self.prefix)
        self.membership = Membership(store, self.prefix, config.node, info, config.ttl)
        self.services = {
            entry.name: ServiceOwner(server, store, self.prefix, f"{config.name}/state/", self.membership, entry)
            for entry in config.services
        }
        self._server = server
        self._store = store
        self._listeners: list[Callable[[Event], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._unowned_since: dict[str, tuple[list[str], float]] = {}
        """Since when a service has no owner, and these candidates for it."""
        for share in server.share_list.values():
            if share.service in self.services:
                owner = self.services[share.service]
                owner.shares.append(share)
                share.placement = owner
        server.fence = self.membership.fence
        if server.persistence is None:
            server.persistence = Persistence()
        self.membership.on_lost = self._lost
        self.membership.on_joined = self._wake.set
        self.membership.on_renewed = self._renewed
        server.guid_of_address = self._guid_of_address

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call the listener for every event from now on, on the event loop; the result ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def start(self) -> None:
        self._tasks = [
            asyncio.ensure_future(self.membership.run()),
            asyncio.ensure_future(self._watch()),
            asyncio.ensure_future(self._decide()),
        ]

    async def stop(self) -> None:
        """Hand everything on and leave."""
        for task in self._tasks[1:]:
            task.cancel()
        for service in self.services.values():
            await service.release()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self.membership.leave()

    def _lost(self) -> None:
        for service in self.services.values():
            service.lose()

    def _renewed(self) -> None:
        for service in self.services.values():
            service.keep_addresses()

    def _guid_of_address(self, address: str) -> bytes | None:
        """A service is one server to its clients, whichever node it is on (ServerGuid, 3.3.1.5)."""
        for service in self.services.values():
            if service.has_address(address):
                return uuid.uuid5(_NAMESPACE, f"{self.config.name}/{service.name}").bytes_le
        return None

    # Seeing

    async def _watch(self) -> None:
        """Start from a listing; whenever changes may have been missed, from a new one."""
        while True:
            try:
                async for change in self._store.watch(self.prefix, await self._read()):
                    self._tell(self.view.apply(change))
            except StoreError as error:
                log.warning("%s: cannot see the cluster: %s", self.node, error)
                await asyncio.sleep(_TICK)

    async def _read(self) -> int:
        """Everything as it is now, but for events, which are over; the version to watch from."""
        version = await self._store.version()
        fresh = await read_view(self._store, self.prefix)
        old, self.view = self.view, fresh
        for node in old.nodes.keys() - fresh.nodes.keys():
            self._tell(NodeEvent(node, False))
        for node in fresh.nodes.keys() - old.nodes.keys():
            self._tell(NodeEvent(node, True))
        for service in old.owners.keys() | fresh.owners.keys():
            if old.owners.get(service) != fresh.owners.get(service):
                self._tell(ServiceEvent(service, fresh.owners.get(service)))
        self._wake.set()
        return version

    def _tell(self, event: Event | None) -> None:
        self._wake.set()
        if event is None:
            return
        log.debug("%s: %s", self.node, event)
        for listener in list(self._listeners):
            listener(event)

    # Deciding

    async def _decide(self) -> None:
        running: set[asyncio.Task[Any]] = set()
        while True:
            self._wake.clear()
            if self.membership.lease and not self.membership.fence.expired() and self.node in self.view.nodes:
                for service in self.services.values():
                    action = self._action(service)
                    if action is not None:
                        task = asyncio.ensure_future(action())
                        running.add(task)
                        task.add_done_callback(running.discard)
            try:
                async with asyncio.timeout(_TICK):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _action(self, service: ServiceOwner) -> Callable[[], Any] | None:
        if service.busy:
            return None
        if service.owned:
            self._unowned_since.pop(service.name, None)
            best = next(iter(self.candidates(service.config)), self.node)
            wanted = self.view.targets.get(service.name)
            must_go = self.node in self.view.draining or (wanted == best and wanted != self.node)
            if must_go and best != self.node:
                return lambda: self._move(service, best)
            return None
        if service.name in self.view.owners:
            self._unowned_since.pop(service.name, None)
            return None
        order = self.candidates(service.config)
        known, since = self._unowned_since.get(service.name, ([], 0.0))
        if known != order:
            # Candidates that have just appeared get their turn, too.
            since = boottime()
            self._unowned_since[service.name] = order, since
        return service.take if boottime() >= since + self._patience(service.config, order) else None

    async def _move(self, service: ServiceOwner, node: str) -> None:
        """Clients first, by Witness; then the service."""
        if service.busy or not service.owned:
            return
        self.announce({"kind": "move", "service": service.name, "node": node})
        await asyncio.sleep(_MOVE_NOTICE)
        await service.release()

    def announce(self, event: dict[str, Any]) -> None:
        """Tell all nodes; forgotten with this membership."""
        self.membership.put(f"{self.prefix}events/{self.node}", json.dumps(event).encode())

    def candidates(self, config: ServiceConfig) -> list[str]:
        """Living nodes that may have the service, best first."""
        alive = [node for node in self.view.nodes if node not in self.view.draining]
        order = [node for node in config.nodes if node in alive] if config.nodes else sorted(alive)
        target = self.view.targets.get(config.name)
        if target in order:
            order.remove(target)
            order.insert(0, target)
        return order

    def _patience(self, config: ServiceConfig, order: list[str]) -> float:
        """How long to leave a free service to others."""
        if self.node not in order:
            return float("inf")
        patience = order.index(self.node) * SUCCESSION_DELAY
        preferred = config.nodes[: config.nodes.index(self.node)] if self.node in config.nodes else []
        absent = [node for node in preferred if node not in self.view.nodes]
        if absent and boottime() < self.membership.joined_at + STARTUP_GRACE:
            # The cluster may be starting: they may be a moment behind.
            patience = max(patience, STARTUP_GRACE)
        return patience

    def addresses_of(self, service: str) -> Sequence[Any]:
        owner = self.services.get(service)
        return [entry.address for entry in owner.config.addresses] if owner is not None else []
