"""Where state lies that outlives a server: one small interface, kept by SQLite (one machine) and etcd (a cluster).

Keys are strings, values bytes. Every change of a key gives it a new, greater version, so that a writer can say "only if
nobody changed it since". Batches are all or nothing and take effect in the order in which they were submitted. A future
that is done means: on stable storage.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from smb3server.wire.status import NtStatus

MAX_BATCH = 100
"""Operations and conditions of one batch together: what every store can do at once."""
ABSENT = 0
"""The version of a key that does not exist."""


class StoreError(Exception):
    """It could not be done now. Unless a subclass says otherwise, whether it took effect is unknown."""

    status = NtStatus.SERVER_UNAVAILABLE
    """What a client is told whose request needed it: try again."""


class StoreFull(StoreError):
    """No room; nothing has changed."""

    status = NtStatus.INSUFFICIENT_RESOURCES


class ConditionFailed(StoreError):
    """Some condition of the batch does not hold; nothing has changed."""


class LeaseLost(StoreError):
    """The lease ran out or was revoked: what was bound to it is gone."""


class Entry(NamedTuple):
    key: str
    value: bytes
    version: int


class Put(NamedTuple):
    key: str
    value: bytes
    lease: int = 0
    """Lease that the key goes away with; 0: it stays."""


class Delete(NamedTuple):
    key: str


class DeletePrefix(NamedTuple):
    """Every key that starts with ``prefix``."""

    prefix: str


class Condition(NamedTuple):
    """The key's version is (still) this one; ``ABSENT``: it does not exist."""

    key: str
    version: int


class Change(NamedTuple):
    """What a watcher is told. ``value`` None: deleted."""

    key: str
    value: bytes | None
    version: int


Operation = Put | Delete | DeletePrefix


class Renewer(ABC):
    """Renews leases, whatever the event loop does. For one thread at a time, which may block."""

    @property
    @abstractmethod
    def members(self) -> int:
        """Of the store: how many may have to be asked."""

    @abstractmethod
    def renew(self, lease: int, timeout: float) -> None:
        """Its life starts anew. One attempt, of about ``timeout`` seconds at most. Raises ``LeaseLost``, or
        ``StoreError`` if it may be tried again; then another member is asked."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections; they come back with the next renewal."""


class Store(ABC):
    """Methods are called on one event loop; futures belong to it."""

    @abstractmethod
    def submit(self, operations: Sequence[Operation], conditions: Sequence[Condition] = ()) -> asyncio.Future[int]:
        """Queue a batch at once, in order; its future's result is the version that the keys put have now. Fails with
        ``ConditionFailed``, ``StoreFull``, ``LeaseLost`` or ``StoreError``; ``ValueError`` for more than
        ``MAX_BATCH``. Many callers' batches share one write to the disk. Nobody has to wait for the future."""

    async def commit(self, operations: Sequence[Operation], conditions: Sequence[Condition] = ()) -> int:
        """``submit``, and wait."""
        return await self.submit(operations, conditions)

    @abstractmethod
    async def get(self, key: str) -> Entry | None:
        """Sees every batch submitted before."""

    @abstractmethod
    async def scan(self, prefix: str) -> list[Entry]:
        """All keys that start with ``prefix``, in order of their names; one moment's state."""

    @abstractmethod
    async def version(self, prefix: str = "\0") -> int:
        """That of the latest change of any key: where a watch begins whose user has read everything before.
        ``prefix``: of keys that the caller may read, where a store limits that."""

    @abstractmethod
    def watch(self, prefix: str, after: int | None = None) -> AsyncIterator[Change]:
        """Changes to keys that start with ``prefix``, in order: those later than version ``after``, or than the call.
        Ends with ``StoreError`` when changes may have been missed: scan again, then watch again."""

    @abstractmethod
    async def grant(self, ttl: float) -> int:
        """A lease that lives ``ttl`` seconds (whole ones, at least 1) beyond its last renewal."""

    @abstractmethod
    def renewer(self) -> Renewer:
        """To renew leases with, by another thread."""

    @abstractmethod
    async def revoke(self, lease: int) -> None:
        """It ends now, with the keys bound to it. A lease that is gone already is no error."""

    @abstractmethod
    async def time_left(self, lease: int) -> float:
        """Seconds, as whole ones if the store counts so. Raises ``LeaseLost``."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what was submitted, then let go of everything."""


def check_batch(operations: Sequence[Operation], conditions: Sequence[Condition]) -> None:
    if len(operations) + len(conditions) > MAX_BATCH:
        raise ValueError(f"{len(operations)} operations and {len(conditions)} conditions exceed {MAX_BATCH}")


def prefix_end(prefix: str) -> str:
    """The first name behind all that start with ``prefix``. Keys have no U+10FFFF in them."""
    return prefix + "\U0010ffff"


def ignore_outcome(future: asyncio.Future[int]) -> None:
    """For batches whose outcome nobody waits for: no complaint that an exception was never retrieved."""
    future.add_done_callback(lambda done: None if done.cancelled() else done.exception() and None)
