"""The seal on a record, which proves that the writer knows the cluster's secret, and a store of sealed records.

A sealed value is a version byte, an HMAC-SHA256 (RFC 2104) and the content. The HMAC covers the key's name and the
content. Its key is derived from the secret and the cluster's name. So a value is valid only under the key name that it
was written for, and only in one cluster. The key's name determines the kind of the record.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
from collections.abc import AsyncIterator, Sequence

from smb3server.persistence.store import (
    Change,
    Condition,
    ConditionFailed,
    Delete,
    Entry,
    Operation,
    Put,
    Renewer,
    Store,
)

VERSION = 0x81
"""First byte of a sealed value. No content begins with it: contents are JSON, or made by ``peers.pack``."""
_TAG_SIZE = 32
_OVERHEAD = 1 + _TAG_SIZE
_LABEL = b"smb3server cluster record, version 1\0"


class SealError(Exception):
    """A record is ignored. The text says why."""


def new_secret() -> str:
    """Return a new secret of 256 bits, as one line of text."""
    return secrets.token_hex(32)


class Seal:
    """The seal of one cluster."""

    def __init__(self, secret: bytes | None, cluster: str) -> None:
        """``secret``: None means that values are not sealed and sealed ones are refused. ``cluster``: its name."""
        self._key = None if secret is None else hmac.digest(secret, _LABEL + cluster.encode(), "sha256")

    @property
    def has_secret(self) -> bool:
        """Whether values are sealed."""
        return self._key is not None

    def close(self, key: str, content: bytes) -> bytes:
        """Return the value to store under ``key``: ``content`` with its seal."""
        if self._key is None:
            return content
        return bytes([VERSION]) + _tag(self._key, key, content) + content

    def open(self, key: str, value: bytes) -> bytes:
        """Return the content of ``value``, which is stored under ``key``. Raises ``SealError``."""
        sealed = value[:1] == bytes([VERSION])
        if self._key is None:
            if sealed:
                raise SealError("it has the seal of a cluster with a secret; remedy: give its secret_file")
            return value
        if not sealed:
            raise SealError("it has no seal")
        content = value[_OVERHEAD:]
        if not hmac.compare_digest(value[1:_OVERHEAD], _tag(self._key, key, content)):
            raise SealError("its seal is of another cluster or another key")
        return content


def _tag(secret: bytes, key: str, content: bytes) -> bytes:
    name = key.encode()
    # With the length, no part of a name can pass as content.
    return hmac.digest(secret, len(name).to_bytes(4, "big") + name + content, "sha256")


log = logging.getLogger(__name__)

MAX_REFUSED = 1000
"""Refused keys that are remembered. Each of these is logged once; further ones are not logged."""
_TURN = 2000
"""Records checked in one turn of the event loop, which takes some milliseconds."""


class SealedStore(Store):
    """A layer over a store that seals values when they are written, and checks them when they are read.

    A record that fails the check counts as absent: ``get`` and ``scan`` omit it, and a watcher sees the key as deleted.
    The record stays in the store until it is removed. Until then, conditions that require its key to be absent fail.

    A seal does not show when a record was written. A party that may write to the store can put an older record back
    under its key.
    """

    def __init__(self, store: Store, seal: Seal) -> None:
        """``store``: the store below, which ``close`` closes as well."""
        # Invariant: at most MAX_REFUSED entries.
        self.refused: dict[str, str] = {}
        """Why records are refused, by key."""
        self._store = store
        self._seal = seal

    @property
    def sealed(self) -> bool:
        """Whether there is a secret."""
        return self._seal.has_secret

    def submit(self, operations: Sequence[Operation], conditions: Sequence[Condition] = ()) -> asyncio.Future[int]:
        return self._store.submit([self._sealed(operation) for operation in operations], conditions)

    def _sealed(self, operation: Operation) -> Operation:
        if isinstance(operation, Put):
            return operation._replace(value=self._seal.close(operation.key, operation.value))
        return operation

    def _opened(self, key: str, value: bytes) -> bytes | None:
        """Return the content of a record. Return None and remember the key if the record is refused."""
        try:
            content = self._seal.open(key, value)
        except SealError as error:
            if key not in self.refused and len(self.refused) < MAX_REFUSED:
                self.refused[key] = str(error)
                log.error("%r in the store is ignored: %s", key, error)
                if len(self.refused) == MAX_REFUSED:
                    log.error("%d records of the store are refused; further ones are not logged", MAX_REFUSED)
            return None
        self.refused.pop(key, None)
        return content

    async def get(self, key: str) -> Entry | None:
        entry = await self._store.get(key)
        content = self._opened(key, entry.value) if entry is not None else None
        if entry is None or content is None:
            return None
        return entry._replace(value=content)

    async def scan(self, prefix: str) -> list[Entry]:
        found: list[Entry] = []
        for number, entry in enumerate(await self._store.scan(prefix), 1):
            content = self._opened(entry.key, entry.value)
            if content is not None:
                found.append(entry._replace(value=content))
            if number % _TURN == 0:
                await asyncio.sleep(0)
        return found

    async def watch(self, prefix: str, after: int | None = None) -> AsyncIterator[Change]:
        async for change in self._store.watch(prefix, after):
            if change.value is None:
                self.refused.pop(change.key, None)
                yield change
            else:
                yield change._replace(value=self._opened(change.key, change.value))

    async def purge(self, prefix: str) -> list[str]:
        """Remove the refused records below ``prefix``, except those that change meanwhile. Return the removed keys."""
        gone: list[str] = []
        for entry in await self._store.scan(prefix):
            if self._opened(entry.key, entry.value) is None:
                with contextlib.suppress(ConditionFailed):
                    await self._store.commit([Delete(entry.key)], [Condition(entry.key, entry.version)])
                    self.refused.pop(entry.key, None)
                    gone.append(entry.key)
        return gone

    async def version(self, prefix: str = "\0") -> int:
        return await self._store.version(prefix)

    async def grant(self, ttl: float) -> int:
        return await self._store.grant(ttl)

    def renewer(self) -> Renewer:
        return self._store.renewer()

    async def revoke(self, lease: int) -> None:
        await self._store.revoke(lease)

    async def time_left(self, lease: int) -> float:
        return await self._store.time_left(lease)

    async def close(self) -> None:
        await self._store.close()
