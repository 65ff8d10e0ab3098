"""The persistent opens of shares that belong to this server alone: their store in the state directory."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from smb3server.config.error import ConfigError
from smb3server.persistence.journal import Domain, Persistence
from smb3server.persistence.restore import restore
from smb3server.persistence.store import Store, StoreError
from smb3server.server.server import Server
from smb3server.service.state_directory import StateDirectory
from smb3server.state.share import Share

log = logging.getLogger(__name__)


class StoredOpens:
    """The store, opened when the first share needs it. Call ``close`` last."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.state: StateDirectory | None = None
        """Where the store lies; None if the server has no state directory."""
        self._store: Store | None = None
        self._domain: Domain | None = None
        self.persistence: Persistence | None = None
        """The journal of all persistent opens, those of a cluster included; None if there are none."""

    def journal(self) -> Persistence:
        """Return the journal, and make the server use it."""
        if self.persistence is None:
            self.persistence = self._server.opens.persistence = Persistence()
        return self.persistence

    async def serve(self, shares: Sequence[Share], all_shares: bool) -> None:
        """Restore the persistent opens of some shares before any client is served there, and store new ones.

        ``all_shares``: whether these are all shares that will be served. Raises ``ConfigError``.
        """
        if self.state is None:
            raise ConfigError(f"share {shares[0].name}: continuous_availability needs a state directory")
        if self._domain is None:
            self._store = await self.state.open_store()
            self._domain = Domain(self._store, "")
        self.journal().serve(self._domain, shares)
        try:
            count = await restore(self._server, self._domain, shares, all_shares)
        except StoreError as error:
            raise self.state.unusable(error) from error
        if count:
            log.info("%d persistent opens restored", count)

    async def drain(self) -> None:
        """Store what is not stored yet."""
        if self.persistence is not None:
            await self.persistence.drain()
            self.persistence.close()

    async def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            await self._store.close()
