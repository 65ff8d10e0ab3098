"""A node of a cluster: it watches the cluster's state, takes services without an owner, and releases services that
another node should have.

All keys in the store are below the cluster's name. ``view`` describes them, except ``state/SERVICE/opens/...``
(persistent opens) and ``state/SERVICE/peers/...`` (clients' connections).
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any

from smb3server.cluster import storage
from smb3server.cluster.fencer import Fencer
from smb3server.cluster.lease_keeper import boottime
from smb3server.cluster.membership import Membership
from smb3server.cluster.service_owner import ServiceOwner
from smb3server.cluster.view import (
    EVENT_INTERVAL,
    Event,
    Freshness,
    MoveClientEvent,
    NodeEvent,
    Question,
    ReportEvent,
    ServiceEvent,
    View,
    answers_prefix,
    coordination_prefix,
    decode,
    read_view,
    stamped,
)
from smb3server.persistence.journal import Persistence
from smb3server.persistence.store import Change, HistoryGone, Put, Store, StoreError, ignore_outcome
from smb3server.settings.cluster import ClusterConfig, ServiceConfig

if TYPE_CHECKING:
    from smb3server.server.server import Server
    from smb3server.state.objects import Connection
    from smb3server.state.share import Share

log = logging.getLogger(__name__)

STARTUP_GRACE = 5.0
"""Seconds for which a node that has just joined leaves services to the nodes that the configuration prefers."""
SUCCESSION_DELAY = 1.5
"""Seconds for which each candidate waits for every better one."""
_TICK = 0.5
"""Seconds between two decisions if no event comes, and between attempts to read the store."""
_MAX_REPORTED = 100
"""Refused records that a report names at most."""
_NAMESPACE = uuid.UUID("6b1c0c3e-2f0a-4b57-9a0a-6a7d2c7f5d11")
_MOVE_NOTICE = 0.5
"""Seconds between notifying clients of a move and moving."""


Listener = Callable[[Event], int]
"""Takes an event, and returns how many clients were notified of it."""


class Cluster:
    """This node of a cluster.

    Make it when the server has its shares and before it serves any client. Then ``start`` it. ``stop`` it before the
    server."""

    def __init__(
        self,
        server: Server,
        persistence: Persistence,
        store: Store,
        config: ClusterConfig,
        info: Callable[[], dict[str, Any]],
        refused: Collection[str] = (),
        fencer: Fencer | None = None,
    ) -> None:
        """``persistence``: stores the opens of ``server``. ``info``: returns what this node publishes about itself, as
        JSON. ``refused``: keys of the store whose records are ignored, for reports. ``fencer``: None if nobody can
        fence a node that fell silent."""
        self._refused = refused
        self._info = info
        self.config = config
        self.node = config.node
        self.prefix = coordination_prefix(config.name)
        self.view = View(self.prefix)
        self.membership = Membership(store, self.prefix, config.node, self._describe, config.ttl, config.max_stall)
        self.services = {
            entry.name: ServiceOwner(
                server,
                persistence,
                store,
                self.prefix,
                f"{config.name}/state/",
                self.membership,
                entry,
                config.storage_timeout,
                fencer,
            )
            for entry in config.services
        }
        self._server = server
        self._store = store
        self._listeners: list[Listener] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._unowned_since: dict[str, tuple[list[str], float]] = {}
        """By service without an owner: its present candidates, and when they became that (``boottime``)."""
        self._holder = ThreadPoolExecutor(1, "addresses")
        self._holding: Future[None] | None = None
        self._freshness = Freshness()
        self._moving: set[str] = set()
        """Services that are being moved, from the notification of their clients on."""
        for share in server.share_list.values():
            if share.service in self.services:
                owner = self.services[share.service]
                owner.shares.append(share)
                share.placement = owner
        server.fence = self.membership.fence
        self.membership.on_lost = self._lost
        self.membership.on_joined = self._wake.set
        self.membership.on_renewed = self.membership.refresh
        self.membership.on_extended = self._extended
        server.guid_of_address = self._guid_of_address
        server.connection_changed = self._connection_changed

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` for every event, on the event loop. Return a function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def add_share(self, share: Share) -> None:
        """Serve one more share with its service, which is one of ``services``. Raises ``StoreError``."""
        await self.services[share.service].add_share(share)

    def remove_share(self, share: Share) -> None:
        """Forget a share that is no longer served."""
        self.services[share.service].remove_share(share)

    async def start(self) -> None:
        """Join the cluster, and begin to take services."""
        self._tasks = [
            asyncio.ensure_future(self.membership.run()),
            asyncio.ensure_future(self._watch()),
            asyncio.ensure_future(self._decide()),
            asyncio.ensure_future(self._keep_time()),
            *(asyncio.ensure_future(self._watch_storage(service)) for service in self.services.values()),
        ]

    async def stop(self) -> None:
        """Release all services and leave the cluster."""
        for task in self._tasks[1:]:
            task.cancel()
        for service in self.services.values():
            await service.release()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self.membership.leave()
        self._holder.shutdown()

    def _lost(self) -> None:
        for service in self.services.values():
            service.lose()

    def _extended(self) -> None:
        """Renew the virtual addresses. Runs on the lease's thread, which must not block, so another thread does it."""
        if self._holding is None or self._holding.done():
            self._holding = self._holder.submit(self._hold_addresses)

    def _hold_addresses(self) -> None:
        try:
            for service in self.services.values():
                service.hold_addresses()
        except Exception:
            log.exception("%s: addresses are not renewed", self.node)

    def _guid_of_address(self, address: str) -> bytes | None:
        """Return the ServerGuid of the service with this address, None if there is no such service.

        A service is one server to its clients, independently of its node. [MS-SMB2 3.3.1.5]"""
        for service in self.services.values():
            if service.has_address(address):
                return uuid.uuid5(_NAMESPACE, f"{self.config.name}/{service.name}").bytes_le
        return None

    def _connection_changed(self, connection: Connection, there: bool) -> None:
        for service in self.services.values():
            service.connection_changed(connection, there)

    def _describe(self) -> dict[str, Any]:
        missing = {
            service.name: service.storage.problem
            for service in self.services.values()
            if service.storage.looked and service.storage.problem is not None
        }
        return {**self._info(), "storage_missing": missing}

    # Seeing

    async def _watch_storage(self, service: ServiceOwner) -> None:
        """Look at the file systems of a service again and again. Others are told of changes."""
        while True:
            service.storage.marks = self.view.marks.get(service.name, {})
            if await service.storage.look():
                self.membership.refresh()
                self._wake.set()
            await asyncio.sleep(storage.INTERVAL)

    async def _watch(self) -> None:
        """Apply the store's changes to the view. Read everything first, and again when changes may have been missed."""
        told: set[str] = set()
        while True:
            try:
                async for change in self._store.watch(self.prefix, await self._read()):
                    told.clear()
                    self._apply(change)
            except HistoryGone:
                # Nothing has changed for so long that the watch's beginning is compacted (``upkeep``).
                continue
            except StoreError as error:
                # Once, not at every attempt.
                if str(error) not in told:
                    log.warning("%s: cannot see the cluster: %s", self.node, error)
                    told.add(str(error))
                await asyncio.sleep(_TICK)

    def _apply(self, change: Change) -> None:
        for service in self.services.values():
            if change.key == service.owner_key:
                service.owner_changed(change.version)
        is_event = change.key.startswith(f"{self.prefix}events/") and change.value is not None
        if is_event and not self._freshness.is_new(decode(change.value)):
            log.warning("%s: %r is not a new event: ignored", self.node, change.key)
            return
        self._tell(self.view.apply(change))

    async def _keep_time(self) -> None:
        """Advance the horizon of ``Freshness`` with the store's version."""
        while True:
            try:
                self._freshness.advance(await self._store.version(self.prefix))
            except StoreError as error:
                log.debug("%s: %s", self.node, error)
            await asyncio.sleep(EVENT_INTERVAL if self._freshness.started else _TICK)

    async def _read(self) -> int:
        """Read everything into a new view, except events, which are over. Return the version to watch from.

        Listeners get the differences to the old view as events. Raises ``StoreError``."""
        version = await self._store.version(self.prefix)
        fresh = await read_view(self._store, self.prefix)
        for owner in self.services.values():
            await owner.check_owner()
        old, self.view = self.view, fresh
        for node in old.nodes.keys() - fresh.nodes.keys():
            self._tell(NodeEvent(node, False))
        for node in fresh.nodes.keys() - old.nodes.keys():
            self._tell(NodeEvent(node, True))
        for service in old.serving.keys() | fresh.serving.keys():
            if old.served_by(service) != fresh.served_by(service):
                self._tell(ServiceEvent(service, fresh.served_by(service)))
        self._wake.set()
        return version

    def _tell(self, event: Event | None) -> None:
        self._wake.set()
        if event is None:
            return
        log.debug("%s: %s", self.node, event)
        told = sum([listener(event) for listener in self._listeners])
        if isinstance(event, MoveClientEvent):
            self._answer(event.question, {"told": told})
        elif isinstance(event, ReportEvent):
            self._answer(event.question, self.report())

    def _answer(self, question: Question, answer: dict[str, Any]) -> None:
        """Put an answer to a question of an administrator into the store, bound to the question's lease."""
        if not question.lease or not question.key.startswith(answers_prefix(self.config.name)):
            return
        put = Put(f"{question.key}/{self.node}", json.dumps(answer).encode(), question.lease)
        ignore_outcome(self._store.submit([put]))

    def report(self) -> dict[str, Any]:
        """Return what this node serves, to how many clients, for an administrator.

        ``lease``: seconds until this node must stop. ``max_opens``: the most that it may have.
        ``refused``: some keys whose records are ignored."""
        return {
            "services": {owner.name: owner.report() for owner in self.services.values() if owner.owned},
            "lease": round(max(0.0, self.membership.fence.deadline - boottime()), 1),
            "all_opens": len(self._server.opens.by_id),
            "max_opens": self._server.opens.ceiling,
            "refused": list(islice(self._refused, _MAX_REPORTED)),
        }

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
            if service.storage.problem is not None:
                return service.leave_storage
            best = next(iter(self.candidates(service.config)), self.node)
            wanted = self.view.targets.get(service.name)
            must_go = self.node in self.view.draining or (wanted == best and wanted != self.node)
            if must_go and best != self.node:
                return lambda: self._move(service, best)
            return None
        if service.name in self.view.owners:
            self._unowned_since.pop(service.name, None)
            # We stopped serving this service because its state can no longer be written. Release ownership as well, so
            # that another node can take it.
            return service.give_up if self.view.owners[service.name] == self.node else None
        if service.may_sign_off(self.view.last.get(service.name)):
            return service.sign_off
        order = self.candidates(service.config)
        known, since = self._unowned_since.get(service.name, ([], 0.0))
        if known != order:
            # New candidates get their time, too.
            since = boottime()
            self._unowned_since[service.name] = order, since
        return service.take if boottime() >= since + self.patience(service.config, order) else None

    async def _move(self, service: ServiceOwner, node: str) -> None:
        """Move a service to ``node``: notify its clients by Witness, then release it."""
        if service.busy or not service.owned or service.name in self._moving:
            return
        self._moving.add(service.name)
        try:
            try:
                await self.announce({"kind": "move", "service": service.name, "node": node})
            except StoreError as error:
                log.warning("service %s: clients are not notified that it moves: %s", service.name, error)
            await asyncio.sleep(_MOVE_NOTICE)
            await service.release()
        finally:
            self._moving.discard(service.name)

    async def announce(self, event: dict[str, Any]) -> None:
        """Send an event to all nodes. Its key is deleted when this membership ends. Raises ``StoreError``."""
        told = stamped(event, await self._store.version(self.prefix))
        self.membership.put(f"{self.prefix}events/{self.node}", json.dumps(told).encode())

    def candidates(self, config: ServiceConfig) -> list[str]:
        """Return the living nodes that may have the service, best first."""
        alive = [node for node in self.view.nodes if node not in self.view.draining and self._has_storage(node, config)]
        order = [node for node in config.nodes if node in alive] if config.nodes else sorted(alive)
        target = self.view.targets.get(config.name)
        if target in order:
            order.remove(target)
            order.insert(0, target)
        return order

    def _has_storage(self, node: str, config: ServiceConfig) -> bool:
        """Return whether a node can reach the file systems of a service."""
        if node == self.node:
            return self.services[config.name].storage.problem is None
        return not self.view.lacks_storage(node, config.name)

    def patience(self, config: ServiceConfig, order: list[str]) -> float:
        """Return the seconds for which this node leaves a free service to others.

        ``order``: the candidates, best first.
        """
        if self.node not in order:
            return float("inf")
        patience = order.index(self.node) * SUCCESSION_DELAY
        preferred = config.nodes[: config.nodes.index(self.node)] if self.node in config.nodes else []
        absent = [node for node in preferred if node not in self.view.nodes]
        if absent and boottime() < self.membership.joined_at + STARTUP_GRACE:
            # The cluster may be starting, and the preferred nodes may join a moment later.
            patience = max(patience, STARTUP_GRACE)
        return patience

    def addresses_of(self, service: str) -> Sequence[Any]:
        """Return the virtual addresses of a service; empty if it has none or does not exist."""
        owner = self.services.get(service)
        return [entry.address for entry in owner.config.addresses] if owner is not None else []
