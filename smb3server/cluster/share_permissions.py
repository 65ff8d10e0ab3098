"""The permissions that administrators have given shares of services: the cluster's, whichever node serves them.

``permissions/SHARE`` below the cluster's name has them as SDDL, in the state of the service.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from smb3server.access import sddl
from smb3server.access.descriptor import SecurityDescriptor
from smb3server.persistence.store import Condition, Put, Store, StoreError
from smb3server.state.share import Share

log = logging.getLogger(__name__)
_NONE = b"-"
"""The record of a share whose permissions were taken away: everybody may do what the configuration says."""


class SharePermissions:
    """The permissions of one service's shares in the store."""

    def __init__(self, store: Store, state_prefix: str) -> None:
        """``state_prefix``: of the state of the service."""
        self._store = store
        self._prefix = f"{state_prefix}permissions/"

    def _key(self, share: Share) -> str:
        return f"{self._prefix}{share.name.casefold()}"

    async def load(self, shares: Sequence[Share], conditions: Sequence[Condition]) -> None:
        """Give shares the permissions that the cluster has for them. Raises ``StoreError``.

        A share without a record keeps the permissions that this node knows, and from now on the cluster has them. A
        record that cannot be read is an error: the service is not served without the permissions.
        """
        for share in shares:
            entry = await self._store.get(self._key(share))
            if entry is None:
                if share.permissions is not None:
                    await self.keep(share, share.permissions, conditions)
                continue
            try:
                share.permissions = None if entry.value == _NONE else sddl.parse(entry.value.decode())
            except ValueError as error:
                raise StoreError(
                    f"permissions of share {share.name}: {error}; remedy: delete {self._key(share)} in the store"
                ) from error

    async def keep(self, share: Share, permissions: SecurityDescriptor | None, conditions: Sequence[Condition]) -> None:
        """Store the permissions of a share, provided that this node serves the service. Raises ``StoreError``."""
        value = _NONE if permissions is None else sddl.show(permissions).encode()
        await self._store.commit([Put(self._key(share), value)], conditions)
