"""The persistent opens of shares that belong to this server alone: their store in the state directory.

The file system of such a share has a mark, which the store has as well. Without it, the opens of the share are neither
restored nor forgotten, and no client can connect until it is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from smb3server.config.error import ConfigError
from smb3server.persistence.journal import Domain, Persistence
from smb3server.persistence.restore import restore
from smb3server.persistence.storage import StorageMissing, check_mark, key_of
from smb3server.persistence.store import Put, Store, StoreError
from smb3server.server.server import Server
from smb3server.service.state_directory import StateDirectory
from smb3server.state.share import Share
from smb3server.wire.status import NtStatus, Reason, StatusError

log = logging.getLogger(__name__)

_MARKS = "storage/"
"""Prefix of the keys of marks."""
_LOOK = 2.0
"""Seconds between two looks for a file system that is not there."""


class NotMounted:
    """The ``Placement`` of a share whose file system is not there."""

    arriving: asyncio.Future[None] | None = None
    owned = False

    def check(self, share: Share, address: str, dialect: int, flags: int) -> None:
        """Refuse every tree connect."""
        raise StatusError(NtStatus.BAD_NETWORK_NAME, reason=Reason("not mounted", "its file system is not there"))


class StoredOpens:
    """The store, opened when the first share needs it. Call ``close`` last."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.state: StateDirectory | None = None
        """Where the store lies; None if the server has no state directory."""
        self._store: Store | None = None
        self._domain: Domain | None = None
        self._waiting: set[asyncio.Task[None]] = set()
        """For file systems that are not there."""
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
            there: list[Share] = []
            fresh: set[Share] = set()
            for share in shares:
                problem = await self._look(share, fresh)
                if problem is None:
                    there.append(share)
                else:
                    log.error("%s; its persistent opens are kept, and no client can connect until then", problem)
                    share.placement = NotMounted()
                    self._waiting.add(asyncio.ensure_future(self._serve_later(share)))
            await self._restore(there, fresh, all_shares and not self._waiting)
        except StoreError as error:
            raise self.state.unusable(error) from error

    async def _restore(self, shares: Sequence[Share], fresh: set[Share], all_shares: bool) -> None:
        """Restore the opens of shares whose file systems are there. Raises ``StoreError``."""
        if self._domain is None:
            raise StoreError("the store is not open")

        async def is_there(share: Share) -> bool:
            return share not in fresh and await self._look(share, fresh) is None

        count = await restore(self._server, self._domain, shares, all_shares, is_there=is_there)
        if count:
            log.info("%d persistent opens restored", count)

    async def _look(self, share: Share, fresh: set[Share]) -> str | None:
        """Return why the file system of a share is not the one on which its opens were made; None if it is.

        A share that was never served gets a mark, and is added to ``fresh``. Raises ``StoreError``."""
        backend, store = share.backend, self._store
        storage = backend.storage() if backend is not None else None
        if backend is None or storage is None or store is None:
            return None
        key = _MARKS + key_of(share)
        entry = await store.get(key)
        if entry is not None:
            backend.expect(entry.value.decode())
        try:
            if entry is not None:
                await asyncio.to_thread(check_mark, share, storage, entry.value.decode())
                return None if backend.is_available() else f"share {share.name}: {storage.root} was replaced meanwhile"
            mark = await asyncio.to_thread(storage.read if backend.read_only else storage.make)
        except OSError as error:
            if entry is None:
                # It cannot be marked, so nothing is known about it: as for shares without persistent opens.
                log.warning("share %s: no storage mark: %s", share.name, error.strerror or error)
                fresh.add(share)
                return None
            return str(error) if isinstance(error, StorageMissing) else f"share {share.name}: {error}"
        fresh.add(share)
        if mark is not None:
            await store.commit([Put(key, mark.encode())])
            backend.expect(mark)
        return None

    async def _serve_later(self, share: Share) -> None:
        """Restore the opens of a share when its file system is there, then let clients connect."""
        fresh: set[Share] = set()
        try:
            while await self._look(share, fresh) is not None:
                await asyncio.sleep(_LOOK)
            await self._restore([share], fresh, False)
        except StoreError as error:
            log.error("share %s cannot be served: %s", share.name, error)
            return
        share.placement = None
        log.info("share %s: its file system is there, and clients can connect", share.name)

    async def drain(self) -> None:
        """Store what is not stored yet."""
        for task in self._waiting:
            task.cancel()
        if self.persistence is not None:
            await self.persistence.drain()
            self.persistence.close()

    async def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            await self._store.close()
