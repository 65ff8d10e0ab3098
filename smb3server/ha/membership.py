"""A node's membership: one lease in the store, renewed while the node lives, and the fence that follows from it.

The store ends the lease ``ttl`` seconds after the last renewal reached it, never earlier. The node counts from before
it *sent* that renewal, and stops ``margin`` seconds before the end: so a node that was stopped, cut off or merely slow
has stopped serving before the store gives what it had to another. Clocks need not agree; they must only run at the same
speed to within margin / ttl.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from typing import Any

from smb3server.ha.store import ABSENT, Condition, ConditionFailed, LeaseLost, Put, Store, StoreError, ignore_outcome

log = logging.getLogger(__name__)

DEFAULT_TTL = 4.0
_RENEWALS_PER_TTL = 4
_RETRY_DELAY = 0.2


def boottime() -> float:
    """Seconds; goes on while the machine is suspended, and no one can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Fence:
    """Whether this node may still answer. Asked before every request and every reply."""

    __slots__ = ("deadline",)

    def __init__(self) -> None:
        self.deadline = 0.0

    def expired(self) -> bool:
        return time.clock_gettime(time.CLOCK_BOOTTIME) >= self.deadline


class Membership:
    """``run`` it as a task. ``info`` is what other nodes are told of this one (JSON)."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        node: str,
        info: Callable[[], dict[str, Any]],
        ttl: float = DEFAULT_TTL,
    ) -> None:
        self.store = store
        self.node = node
        self.key = f"{prefix}nodes/{node}"
        self.ttl = max(1.0, round(ttl))
        self.margin = max(0.5, self.ttl / 5)
        self.fence = Fence()
        self.lease = 0
        """0: not a member."""
        self.joined_at = 0.0
        self.on_joined: Callable[[], None] = lambda: None
        self.on_renewed: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None
        """Called once per membership, no later than the event loop can after the deadline."""
        self._info = info
        self._told = b""
        """The info as other nodes know it."""
        self._old_lease = 0

    async def run(self) -> None:
        """Join, renew, and join again when the lease is lost. Until cancelled."""
        while True:
            try:
                await self._join()
            except StoreError as error:
                log.warning("%s cannot join the cluster: %s", self.node, error)
                await asyncio.sleep(_RETRY_DELAY * 2)
                continue
            watchdog = asyncio.ensure_future(self._watch_deadline())
            renewing = asyncio.ensure_future(self._renew())
            try:
                await asyncio.wait([watchdog, renewing], return_when=asyncio.FIRST_COMPLETED)
            finally:
                watchdog.cancel()
                renewing.cancel()
                self._lose()

    async def _join(self) -> None:
        """Nothing of an earlier membership, or of another process of this name, may be left."""
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
            raise StoreError("a node of this name is a member, or was until a moment ago") from None
        except StoreError:
            self._old_lease = lease
            raise
        self.lease, self._told = lease, told
        self.joined_at = boottime()
        self.fence.deadline = start + self.ttl - self.margin
        log.info("%s joined the cluster", self.node)
        self.on_joined()

    async def _renew(self) -> None:
        pause = self.ttl / _RENEWALS_PER_TTL
        while True:
            await asyncio.sleep(pause)
            start = boottime()
            try:
                await self.store.renew(self.lease)
            except LeaseLost:
                log.error("%s: the lease is gone", self.node)
                return
            except StoreError as error:
                log.warning("%s: lease not renewed: %s", self.node, error)
                pause = _RETRY_DELAY
                continue
            if self.fence.expired():
                # Stopped for too long: who knows what happened meanwhile.
                return
            self.fence.deadline = start + self.ttl - self.margin
            self.on_renewed()
            pause = self.ttl / _RENEWALS_PER_TTL

    async def _watch_deadline(self) -> None:
        while (left := self.fence.deadline - boottime()) > 0:
            await asyncio.sleep(left)
        log.error("%s: no word from the store in time", self.node)

    def _lose(self) -> None:
        if not self.lease:
            return
        self._old_lease, self.lease = self.lease, 0
        self.fence.deadline = 0.0
        self.on_lost()

    async def leave(self) -> None:
        """For good; what was bound to the lease is free at once."""
        lease, self.lease = self.lease or self._old_lease, 0
        self.fence.deadline = 0.0
        if lease:
            try:
                await self.store.revoke(lease)
            except StoreError as error:
                log.warning("%s: lease not returned: %s", self.node, error)

    def _encoded(self, lease: int) -> bytes:
        return json.dumps({**self._info(), "lease": lease}).encode()

    def refresh(self) -> None:
        """Tell the others if the info is not what it was."""
        told = self._encoded(self.lease)
        if not self.lease or told == self._told:
            return
        self._told = told

        def stored(done: asyncio.Future[int]) -> None:
            if done.cancelled() or done.exception() is not None:
                # Again, with the next renewal.
                self._told = b""

        self.store.submit([Put(self.key, told, self.lease)]).add_done_callback(stored)

    def put(self, key: str, value: bytes) -> None:
        """Set a key that goes away with the membership."""
        if self.lease:
            ignore_outcome(self.store.submit([Put(key, value, self.lease)]))
