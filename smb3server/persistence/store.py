"""The interface of stores for state that outlives a server: SQLite for one machine, etcd for a cluster.

Keys are strings, values are bytes. Every change of a key gives it a new, greater version, so that a writer can make a
batch conditional on a key being unchanged. A batch takes effect as a whole or not at all. Batches take effect in the
order in which they were submitted. When the future of a batch is done, the batch is on stable storage.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from smb3server.wire.status import NtStatus

MAX_BATCH = 100
"""Operations and conditions of one batch together. Every store supports that many."""
ABSENT = 0
"""The version of a key that does not exist."""


class StoreError(Exception):
    """The store failed. Unless a subclass says otherwise, it is unknown whether the operation took effect."""

    status = NtStatus.SERVER_UNAVAILABLE
    """Status of a request that needed the operation. It makes the client try again."""


class StoreFull(StoreError):
    """The store has no room. Nothing has changed."""

    status = NtStatus.INSUFFICIENT_RESOURCES


class ConditionFailed(StoreError):
    """A condition of the batch does not hold. Nothing has changed."""


class LeaseLost(StoreError):
    """The lease has expired or was revoked. The keys bound to it are deleted."""


class HistoryGone(StoreError):
    """A watch cannot go on, because the store has forgotten the changes since. The caller scans and watches again."""


class Entry(NamedTuple):
    """A key with its value."""

    key: str
    value: bytes
    version: int


class Put(NamedTuple):
    """Sets a key to a value."""

    key: str
    value: bytes
    lease: int = 0
    """The lease that the key is deleted with; 0 if it is bound to none."""


class Delete(NamedTuple):
    """Deletes a key, if it exists."""

    key: str


class DeletePrefix(NamedTuple):
    """Deletes every key that starts with ``prefix``."""

    prefix: str


class Condition(NamedTuple):
    """Requires that the key has this version, or with ``ABSENT`` that it does not exist."""

    key: str
    version: int


class Change(NamedTuple):
    """One change that a watch reports. ``value`` None means that the key was deleted."""

    key: str
    value: bytes | None
    version: int


Operation = Put | Delete | DeletePrefix


class Renewer(ABC):
    """Renews leases independently of the event loop. For one thread at a time, which may block."""

    @property
    @abstractmethod
    def members(self) -> int:
        """Number of members of the store. A renewal may have to try them all."""

    @abstractmethod
    def renew(self, lease: int, timeout: float) -> None:
        """Let the lease live for its whole time again. Make one attempt, of about ``timeout`` seconds at most.

        Raises ``LeaseLost``, or another ``StoreError`` if the caller may try again. The next attempt then uses another
        member."""

    @abstractmethod
    def close(self) -> None:
        """Close connections. The next renewal makes new ones."""


class Store(ABC):
    """A store of keys and values. Its methods are called on one event loop, which its futures belong to.

    Every coroutine raises ``StoreError`` if the store cannot be reached."""

    @abstractmethod
    def submit(self, operations: Sequence[Operation], conditions: Sequence[Condition] = ()) -> asyncio.Future[int]:
        """Queue a batch without waiting. The result of its future is the version that the keys put have now.

        The future fails with ``ConditionFailed``, ``StoreFull``, ``LeaseLost`` or another ``StoreError``. Raises
        ``ValueError`` for more than ``MAX_BATCH`` operations and conditions. The batches of many callers share one
        write to the disk. The caller need not wait for the future."""

    async def commit(self, operations: Sequence[Operation], conditions: Sequence[Condition] = ()) -> int:
        """Submit a batch and wait for it. Raises what the future of ``submit`` fails with."""
        return await self.submit(operations, conditions)

    @abstractmethod
    async def get(self, key: str) -> Entry | None:
        """Return the entry of a key, None if there is none. It reflects every batch submitted before."""

    @abstractmethod
    async def scan(self, prefix: str) -> list[Entry]:
        """Return all entries whose keys start with ``prefix``, in order of the keys, as they are at one moment."""

    @abstractmethod
    async def version(self, prefix: str = "\0") -> int:
        """Return the version of the latest change of any key. A caller that reads afterwards can watch from there.

        ``prefix``: a prefix of keys that the caller may read, for stores that restrict reading."""

    @abstractmethod
    def watch(self, prefix: str, after: int | None = None) -> AsyncIterator[Change]:
        """Yield the changes to keys that start with ``prefix``, in order.

        They are those later than version ``after``, or later than the call if that is None. Raises ``StoreError`` if
        changes may have been missed. The caller then has to scan and watch again."""

    @abstractmethod
    async def grant(self, ttl: float) -> int:
        """Grant a lease, and return it. It expires ``ttl`` seconds (whole ones, at least 1) after its last renewal."""

    @abstractmethod
    def renewer(self) -> Renewer:
        """Return a renewer of leases, for use by another thread."""

    @abstractmethod
    async def revoke(self, lease: int) -> None:
        """End a lease now, and delete the keys bound to it. It is no error if the lease has ended already."""

    @abstractmethod
    async def time_left(self, lease: int) -> float:
        """Return the seconds until the lease expires; some stores count whole seconds. Raises ``LeaseLost``."""

    @abstractmethod
    async def close(self) -> None:
        """Finish the submitted batches, then release all resources."""


def check_batch(operations: Sequence[Operation], conditions: Sequence[Condition]) -> None:
    """Raise ``ValueError`` if a batch has more than ``MAX_BATCH`` operations and conditions."""
    if len(operations) + len(conditions) > MAX_BATCH:
        raise ValueError(f"{len(operations)} operations and {len(conditions)} conditions exceed {MAX_BATCH}")


def prefix_end(prefix: str) -> str:
    """Return a name that sorts after all keys that start with ``prefix``. No key contains U+10FFFF."""
    return prefix + "\U0010ffff"


def ignore_outcome(future: asyncio.Future[int]) -> None:
    """Prevent asyncio's warning about an exception that was never retrieved, for a batch that no caller waits for."""
    future.add_done_callback(lambda done: None if done.cancelled() else done.exception() and None)
