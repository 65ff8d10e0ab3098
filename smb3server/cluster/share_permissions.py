"""The permissions of services' shares, which are the cluster's: every node has them, and applies them before it serves.

Each share has a record ``NAME/permissions/SHARE``. A share whose permissions were removed has one that says so. So a
share without a record has never had permissions, or etcd has lost them: the nodes then keep those that they know, and
put them into etcd.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Iterable

from smb3server.access import sddl
from smb3server.access.descriptor import SecurityDescriptor
from smb3server.cluster.view import decode
from smb3server.persistence.store import ABSENT, Condition, ConditionFailed, HistoryGone, Put, Store, StoreError
from smb3server.state.share import Share

log = logging.getLogger(__name__)

_RETRY = 0.5
"""Seconds between attempts to read the store."""

Adopt = Callable[[Share, SecurityDescriptor | None], None]
"""Gives a share other permissions, and ends the tree connects that these do not allow."""


class SharePermissions:
    """The permissions of services' shares in the store. ``run`` it as a task."""

    def __init__(
        self, store: Store, name: str, shares: Callable[[], Iterable[Share]], refused: Collection[str] = ()
    ) -> None:
        """``name``: the cluster's. ``shares``: returns this node's shares of services. ``refused``: keys of the store
        whose records are ignored."""
        self._store = store
        self._refused = refused
        self._prefix = f"{name}/permissions/"
        self._shares = shares
        self._versions: dict[str, int] = {}
        """Of the records that were applied, by key."""
        self.adopt: Adopt = _adopt

    def _key(self, share: Share) -> str:
        return self._prefix + share.name.casefold()

    async def run(self) -> None:
        """Apply what other nodes set, until the task is cancelled."""
        told: set[str] = set()
        while True:
            try:
                version = await self._store.version(self._prefix)
                await self.load(self._shares())
                async for change in self._store.watch(self._prefix, version):
                    told.clear()
                    for share in self._shares():
                        if self._key(share) == change.key and change.value is not None:
                            self._apply(share, change.value, change.version)
            except HistoryGone:
                continue
            except StoreError as error:
                # Once, not at every attempt.
                if str(error) not in told:
                    log.warning("permissions of services' shares: %s", error)
                    told.add(str(error))
                await asyncio.sleep(_RETRY)

    async def load(self, shares: Iterable[Share]) -> None:
        """Give shares the permissions that the cluster has for them. Raises ``StoreError``.

        A share without a valid record keeps those that this node knows, and they become the cluster's."""
        for share in shares:
            key = self._key(share)
            entry = await self._store.get(key)
            if entry is not None:
                # Read just now, so it counts whatever its version is: etcd may have been made anew.
                self._versions[key] = entry.version
                self._apply(share, entry.value, entry.version)
            elif share.permissions is None and key in self._refused:
                raise StoreError(
                    f"share {share.name}: the record of its permissions is not valid, and this node has none; remedy: "
                    "smb3server cluster purge, then set the permissions again"
                )
            elif share.permissions is not None:
                log.warning("share %s: etcd has no permissions for it: this node's are used", share.name)
                await self._offer(share, share.permissions)

    async def _offer(self, share: Share, permissions: SecurityDescriptor) -> None:
        try:
            await self._put(share, permissions, [Condition(self._key(share), ABSENT)])
        except ConditionFailed:
            # Another node was first, and the watch says what it has put; or the record there is refused.
            log.info("share %s: etcd has a record of its permissions meanwhile", share.name)

    async def put(self, share: Share, permissions: SecurityDescriptor | None) -> None:
        """Set the permissions of a share in the whole cluster, and here at once. Raises ``StoreError``.

        With an error it is unknown whether the other nodes have them, unless its subclass says that nothing changed."""
        await self._put(share, permissions)
        self.adopt(share, permissions)

    async def _put(
        self, share: Share, permissions: SecurityDescriptor | None, conditions: Collection[Condition] = ()
    ) -> None:
        text = sddl.show(permissions) if permissions is not None else ""
        record = json.dumps({"permissions": text}).encode()
        key = self._key(share)
        version = await self._store.commit([Put(key, record)], list(conditions))
        self._versions[key] = max(version, self._versions.get(key, 0))

    def _apply(self, share: Share, value: bytes, version: int) -> None:
        """Apply a record, unless a later one was applied."""
        key = self._key(share)
        if version < self._versions.get(key, 0):
            return
        text = decode(value).get("permissions")
        try:
            if not isinstance(text, str):
                raise ValueError("no text")
            permissions = sddl.parse(text) if text else None
        except ValueError as error:
            log.error("share %s: its permissions in etcd cannot be read, and stay as they were: %s", share.name, error)
            return
        self._versions[key] = version
        shown = sddl.show(share.permissions) if share.permissions is not None else ""
        if shown != text:
            self.adopt(share, permissions)


def _adopt(share: Share, permissions: SecurityDescriptor | None) -> None:
    share.permissions = permissions
