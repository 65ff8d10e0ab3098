"""A node's membership: one lease in the store, which is renewed while the node lives, and the fence derived from it.

The store ends the lease ``ttl`` seconds after the last renewal reached it, never earlier. The node counts from before
it *sent* that renewal, and stops ``margin`` seconds before the end. So a node that was stopped, cut off or merely slow
has stopped serving before the store lets another node take over. Clocks need not agree. They only have to run at the
same speed to within margin / ttl. ``lease_keeper`` renews the lease on a separate thread.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from smb3server.cluster.lease_keeper import STALLS_PER_TTL, Fence, LeaseKeeper, boottime, margin_of
from smb3server.persistence.store import ABSENT, Condition, ConditionFailed, Put, Store, StoreError, ignore_outcome
from smb3server.settings.cluster import DEFAULT_TTL

log = logging.getLogger(__name__)

_JOIN_DELAY = 0.4


class Membership:
    """The membership of this node, as a sequence of leases. ``run`` it as a task."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        node: str,
        info: Callable[[], dict[str, Any]],
        ttl: float = DEFAULT_TTL,
        max_stall: float = 0.0,
    ) -> None:
        """``info``: returns what this node publishes about itself, as JSON. ``ttl``: seconds. ``max_stall``: seconds
        without a sign of life of the event loop after which the lease is no longer renewed; 0 means ``STALLS_PER_TTL``
        times the ``ttl``."""
        self.store = store
        self.node = node
        self.key = f"{prefix}nodes/{node}"
        self.ttl = max(1.0, round(ttl))
        self.max_stall = max_stall or STALLS_PER_TTL * self.ttl
        self.margin = margin_of(self.ttl)
        self.fence = Fence()
        self.lease = 0
        """The lease in the store; 0 if this node is not a member."""
        self.joined_at = 0.0
        self.on_joined: Callable[[], None] = lambda: None
        self.on_renewed: Callable[[], None] = lambda: None
        self.on_extended: Callable[[], None] = lambda: None
        """Called on the thread that renewed, at once, even if the event loop is busy. Must not block or raise."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called once per membership that is lost, as soon as the event loop can after the deadline."""
        self._info = info
        self._told = b""
        """The info that other nodes have."""
        self._old_lease = 0
        """An earlier lease, or one that may not have been used, to be revoked before the next attempt to join."""
        self._keeper: LeaseKeeper | None = None
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Join, stay a member, and join again when the lease is lost, until the task is cancelled."""
        told: set[str] = set()
        while True:
            try:
                await self._join()
            except StoreError as error:
                # Once, not at every attempt: etcd may be unreachable for hours.
                if str(error) not in told:
                    log.warning("%s cannot join the cluster, and keeps trying: %s", self.node, error)
                    told.add(str(error))
                await asyncio.sleep(_JOIN_DELAY)
                continue
            told.clear()
            try:
                await self._stay()
            finally:
                self._lose()

    async def _join(self) -> None:
        """Become a member, after revoking an earlier lease. Raises ``StoreError``.

        It fails while another process with this node's name is a member."""
        if self._old_lease:
            await self.store.revoke(self._old_lease)
            self._old_lease = 0
        start = boottime()
        lease = await self.store.grant(self.ttl)
        try:
            told = self._encoded(lease)
            await self.store.commit([Put(self.key, told, lease)], [Condition(self.key, ABSENT)])
        except ConditionFailed:
            await self.store.revoke(lease)
            raise StoreError("a node of this name is a member, or its lease has not expired yet") from None
        except StoreError:
            self._old_lease = lease
            raise
        self.lease, self._told = lease, told
        self.joined_at = boottime()
        loop = asyncio.get_running_loop()

        def tell() -> None:
            """Wake the event loop. Runs on the keeper's thread."""
            try:
                loop.call_soon_threadsafe(self._news.set)
            except RuntimeError:
                log.debug("the event loop is closed")

        self._news.clear()
        self._keeper = LeaseKeeper(
            self.node,
            self.store.renewer(),
            lease,
            self.fence,
            ttl=self.ttl,
            max_stall=self.max_stall,
            granted_at=start,
            on_extended=self.on_extended,
            on_news=tell,
        )
        self._keeper.start()
        log.info("%s joined the cluster", self.node)
        self.on_joined()

    async def _stay(self) -> None:
        """Give signs of life until the deadline has passed or the lease is lost."""
        keeper = self._keeper
        while keeper is not None and not self.fence.expired():
            keeper.beat()
            try:
                async with asyncio.timeout(min(keeper.beat_interval, max(0.0, self.fence.deadline - boottime()))):
                    await self._news.wait()
            except TimeoutError:
                continue
            self._news.clear()
            if not self.fence.expired():
                self.on_renewed()
        log.error("%s: no longer a member: the store did not answer in time", self.node)

    def _lose(self) -> None:
        if not self.lease:
            return
        self._old_lease, self.lease = self.lease, 0
        self._end()
        self.on_lost()

    def _end(self) -> None:
        if self._keeper is not None:
            self._keeper.end()

    async def leave(self) -> None:
        """Leave the cluster for good. Keys bound to the lease are deleted at once."""
        lease, self.lease = self.lease or self._old_lease, 0
        self._end()
        if lease:
            try:
                await self.store.revoke(lease)
            except StoreError as error:
                log.warning("%s: lease not returned: %s", self.node, error)
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await asyncio.to_thread(keeper.join)

    def addresses(self) -> list[str]:
        """Return the node's own addresses, as it publishes them."""
        return [str(entry) for entry in self._info().get("addresses", ())]

    def _encoded(self, lease: int) -> bytes:
        return json.dumps({**self._info(), "lease": lease}).encode()

    def refresh(self) -> None:
        """Publish the info if it has changed."""
        told = self._encoded(self.lease)
        if not self.lease or told == self._told:
            return
        self._told = told

        def stored(done: asyncio.Future[int]) -> None:
            if done.cancelled() or done.exception() is not None:
                # Try again with the next renewal.
                self._told = b""

        self.store.submit([Put(self.key, told, self.lease)]).add_done_callback(stored)

    def put(self, key: str, value: bytes) -> None:
        """Set a key that is deleted when the membership ends. Does nothing if this node is not a member."""
        if self.lease:
            ignore_outcome(self.store.submit([Put(key, value, self.lease)]))
