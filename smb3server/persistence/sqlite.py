"""The store of a single server: one SQLite file in its state directory.

With WAL and synchronous=FULL, a committed transaction survives a power failure. One thread owns the database. It puts
all queued batches into one transaction (group commit), so that many requests share one fsync.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import re
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from smb3server.persistence.store import (
    Change,
    Condition,
    ConditionFailed,
    Delete,
    Entry,
    LeaseLost,
    Operation,
    Put,
    Renewer,
    Store,
    StoreError,
    StoreFull,
    check_batch,
    prefix_end,
)
from smb3server.process.presence import exists

log = logging.getLogger(__name__)

T = TypeVar("T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL,
    lease INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_lease ON entries (lease) WHERE lease != 0;
CREATE TABLE IF NOT EXISTS counter (version INTEGER NOT NULL);
INSERT INTO counter SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM counter);
"""
_MAX_GROUP = 1024
"""Batches in one transaction at most."""
_LOCKED_TIMEOUT = 2.0
_TALLY = re.compile(rb"(\d{20}) (\d{20})\n")


_COUNTED = "opens/"
"""Prefix of the keys whose number is noted beside the database: those of opens (``records.opens_prefix``)."""


def _counts(key: str) -> int:
    return int(key.startswith(_COUNTED))


class _Batch(NamedTuple):
    operations: Sequence[Operation]
    conditions: Sequence[Condition]
    future: asyncio.Future[int]


class _Call(NamedTuple):
    """A function to call on the writer's thread, in order with the batches."""

    work: Callable[[], object]
    future: asyncio.Future[object]


class _Lease:
    __slots__ = ("deadline", "ttl")

    def __init__(self, ttl: float) -> None:
        self.ttl = ttl
        self.deadline = time.monotonic() + ttl


class _SqliteRenewer(Renewer):
    """Renews leases, which exist in memory only."""

    members = 1

    def __init__(self, leases: dict[int, _Lease], lock: threading.Lock) -> None:
        self._leases = leases
        self._lock = lock

    def renew(self, lease: int, timeout: float) -> None:
        with self._lock:
            found = self._leases.get(lease)
            if found is None or found.deadline < time.monotonic():
                raise LeaseLost(f"lease {lease}")
            found.deadline = time.monotonic() + found.ttl

    def close(self) -> None:
        return


class _Tally:
    """A small file beside the database that says which version the database has, and how many records.

    SQLite drops what is behind a damaged part of its log, and makes a missing database anew, without a word. The file
    is written after each transaction, without waiting for the disk: it is never ahead of the database."""

    def __init__(self, path: Path) -> None:
        """Open the file, which is made if it does not exist. Raises ``OSError``."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._failed = False

    def read(self) -> tuple[int, int] | None:
        """Return version and number of records; None if the file is new or damaged."""
        found = _TALLY.fullmatch(os.pread(self._descriptor, 256, 0))
        return None if found is None else (int(found[1]), int(found[2]))

    def write(self, version: int, records: int) -> None:
        """Note version and number of records. An error is logged once."""
        try:
            os.pwrite(self._descriptor, b"%020d %020d\n" % (version, records), 0)
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.warning("%s: %s", self.path, error.strerror)
            self._failed = True

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class SqliteStore(Store):
    """A store in one SQLite file. Make it with ``open``.

    Leases exist in memory only. They end, with their keys, when the process that granted them ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Batch | _Call | None] = queue.SimpleQueue()
        self._database: sqlite3.Connection | None = None
        self._version = 0
        self._records = 0
        """Number of entries."""
        self._tally: _Tally | None = None
        self._leases: dict[int, _Lease] = {}
        self._leases_lock = threading.Lock()
        """Held while a lease expires, and while another thread renews it."""
        self._next_lease = 1
        self._watchers: list[tuple[str, asyncio.Queue[Change | None]]] = []
        self._closed = False
        self.transactions = 0
        """Number of transactions committed so far. It shows how many batches share one (group commit)."""
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)

    @classmethod
    async def open(cls, path: Path) -> SqliteStore:
        """Open the store in the file ``path``, which is made if it does not exist.

        Raises ``StoreError`` if the file cannot be opened, is not a database, or is used by another server."""
        store = cls(path)
        store._thread.start()
        try:
            await store._call(store._open)
        except BaseException:
            store._queue.put(None)
            raise
        return store

    # On the event loop

    def submit(self, operations: Sequence[Operation], conditions: Sequence[Condition] = ()) -> asyncio.Future[int]:
        check_batch(operations, conditions)
        future: asyncio.Future[int] = self._loop.create_future()
        if self._closed:
            future.set_exception(StoreError("store is closed"))
        else:
            self._queue.put(_Batch(tuple(operations), tuple(conditions), future))
        return future

    async def _call(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise StoreError("store is closed")
        future: asyncio.Future[object] = self._loop.create_future()
        self._queue.put(_Call(work, future))
        return await future  # type: ignore[return-value]

    async def get(self, key: str) -> Entry | None:
        def work() -> Entry | None:
            row = self._db.execute("SELECT key, value, version FROM entries WHERE key = ?", (key,)).fetchone()
            return Entry(*row) if row is not None else None

        return await self._call(work)

    async def scan(self, prefix: str) -> list[Entry]:
        def work() -> list[Entry]:
            rows = self._db.execute(
                "SELECT key, value, version FROM entries WHERE key >= ? AND key < ? ORDER BY key",
                (prefix, prefix_end(prefix)),
            )
            return [Entry(*row) for row in rows]

        return await self._call(work)

    async def version(self, prefix: str = "\0") -> int:
        return await self._call(lambda: self._version)

    async def watch(self, prefix: str, after: int | None = None) -> AsyncIterator[Change]:
        """Yield changes. ``after`` must be the present version, because earlier changes are not kept."""
        changes: asyncio.Queue[Change | None] = asyncio.Queue()
        watcher = (prefix, changes)
        self._watchers.append(watcher)
        try:
            if after is not None and await self._call(lambda: self._version) != after and changes.empty():
                raise StoreError("changes before the watch are not kept")
            while True:
                change = await changes.get()
                if change is None:
                    raise StoreError("store is closed")
                if after is None or change.version > after:
                    yield change
        finally:
            self._watchers.remove(watcher)

    async def grant(self, ttl: float) -> int:
        lease, self._next_lease = self._next_lease, self._next_lease + 1
        self._leases[lease] = _Lease(max(1.0, ttl))
        self._loop.call_later(max(1.0, ttl), self._check_lease, lease)
        return lease

    def renewer(self) -> Renewer:
        return _SqliteRenewer(self._leases, self._leases_lock)

    async def revoke(self, lease: int) -> None:
        if self._leases.pop(lease, None) is not None:
            await self._call(lambda: self._expire(lease))

    async def time_left(self, lease: int) -> float:
        found = self._leases.get(lease)
        if found is None or found.deadline < time.monotonic():
            raise LeaseLost(f"lease {lease}")
        return found.deadline - time.monotonic()

    def _check_lease(self, lease: int) -> None:
        found = self._leases.get(lease)
        if found is None or self._closed:
            return
        with self._leases_lock:
            left = found.deadline - time.monotonic()
            if left <= 0:
                del self._leases[lease]
        if left > 0:
            self._loop.call_later(left, self._check_lease, lease)
            return
        future: asyncio.Future[object] = self._loop.create_future()
        future.add_done_callback(lambda done: done.exception() and None)
        self._queue.put(_Call(lambda: self._expire(lease), future))

    async def close(self) -> None:
        if self._closed:
            return
        await self._call(self._close)
        self._closed = True
        self._queue.put(None)
        for _, changes in self._watchers:
            changes.put_nowait(None)
        await self._loop.run_in_executor(None, self._thread.join)

    # On the writer's thread

    @property
    def _db(self) -> sqlite3.Connection:
        if self._database is None:
            raise StoreError("store is closed")
        return self._database

    def _open(self) -> None:
        self._keep_private()
        # Locked exclusively, so that a second server on the same state directory does not start.
        database = sqlite3.connect(self.path, timeout=_LOCKED_TIMEOUT, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA locking_mode = EXCLUSIVE")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise StoreError(
                    f"{self.path} is damaged: {found}; remedy: move {self.path.name} and {self.path.name}-* away: the "
                    "persistent opens of the last run are then lost, and their clients open the files again"
                )
            database.executescript(_SCHEMA)
            database.execute("DELETE FROM entries WHERE lease != 0")
            (self._version,) = database.execute("SELECT version FROM counter").fetchone()
            (self._records,) = database.execute(
                "SELECT count(*) FROM entries WHERE key >= ? AND key < ?", (_COUNTED, prefix_end(_COUNTED))
            ).fetchone()
            self._compare(database)
        except BaseException:
            database.close()
            raise
        self._database = database

    def _compare(self, database: sqlite3.Connection) -> None:
        """Log whether records of the last run are missing."""
        path = self.path.with_name(f"{self.path.name}-count")
        is_known = exists(path)
        tally = self._tally = _Tally(path)
        noted = tally.read()
        if noted is None:
            if is_known or self._version:
                log.warning(
                    "%s is %s: whether opens of the last run are missing is not known",
                    path,
                    "damaged" if is_known else "missing",
                )
        elif noted[0] > self._version:
            missing = max(0, noted[1] - self._records)
            log.warning(
                "%d opens of the last run are missing (%d of %d records are there, and the last %d changes are not): "
                "%s or %s-wal was damaged, removed or taken from a backup; their clients have to open the files again, "
                "and others may have opened or locked them meanwhile",
                missing,
                self._records,
                noted[1],
                noted[0] - self._version,
                self.path,
                self.path.name,
            )
            # No version is used twice.
            self._version = noted[0]
            database.execute("UPDATE counter SET version = ?", (self._version,))
        tally.write(self._version, self._records)

    def _keep_private(self) -> None:
        """Make the file if it does not exist, and allow no other user to read or write it.

        A user who could write it could forge opens, and its contents name the open files of all users. SQLite gives its
        other files the mode of this one."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.fchmod(descriptor, 0o600)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise sqlite3.OperationalError(f"{self.path}: {error.strerror}") from error

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()
        if self._tally is not None:
            self._tally.close()

    def _run(self) -> None:
        item = self._queue.get()
        while item is not None:
            if isinstance(item, _Call):
                self._answer(item.future, *self._try(item.work))
                item = self._queue.get()
                continue
            group = [item]
            following: _Batch | _Call | None = None
            taken = False
            while len(group) < _MAX_GROUP:
                try:
                    following = self._queue.get_nowait()
                except queue.Empty:
                    break
                if not isinstance(following, _Batch):
                    taken = True
                    break
                group.append(following)
            self._write(group)
            item = following if taken else self._queue.get()

    @staticmethod
    def _try(work: Callable[[], object]) -> tuple[object, Exception | None]:
        try:
            return work(), None
        except sqlite3.Error as error:
            return None, _translated(error)
        except Exception as error:
            return None, error

    def _write(self, group: list[_Batch]) -> None:
        """Write all batches in one transaction. If that fails, write each in its own, so that no other batch fails."""
        results, error = self._try(lambda: self._transaction(group))
        if error is None and isinstance(results, list):
            for batch, result in zip(group, results, strict=True):
                failed = result if isinstance(result, Exception) else None
                self._answer(batch.future, result, failed)
            return
        for batch in group:
            results, error = self._try(lambda batch=batch: self._transaction([batch]))  # type: ignore[misc]
            result = results[0] if isinstance(results, list) else None
            self._answer(batch.future, result, error or (result if isinstance(result, Exception) else None))

    def _transaction(self, group: list[_Batch]) -> list[int | StoreError]:
        """Commit the batches that can be, and return the new version or the error of each. Raises ``sqlite3.Error``."""
        version, records = self._version, self._records
        changes: list[Change] = []
        results: list[int | StoreError] = []
        database = self._db
        database.execute("BEGIN IMMEDIATE")
        try:
            for batch in group:
                failure = self._failure(batch)
                if failure is not None:
                    results.append(failure)
                    continue
                version += 1
                for operation in batch.operations:
                    records += self._apply(operation, version, changes)
                results.append(version)
            database.execute("UPDATE counter SET version = ?", (version,))
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
        self._version, self._records = version, records
        if self._tally is not None:
            self._tally.write(version, records)
        self.transactions += 1
        if changes:
            self._loop.call_soon_threadsafe(self._report, changes)
        return results

    def _failure(self, batch: _Batch) -> StoreError | None:
        """Return why a batch cannot be committed, None if it can."""
        for operation in batch.operations:
            if isinstance(operation, Put) and operation.lease and operation.lease not in self._leases:
                return LeaseLost(f"lease {operation.lease}")
        for key, wanted in batch.conditions:
            row = self._db.execute("SELECT version FROM entries WHERE key = ?", (key,)).fetchone()
            if (row[0] if row is not None else 0) != wanted:
                return ConditionFailed(key)
        return None

    def _apply(self, operation: Operation, version: int, changes: list[Change]) -> int:
        """Carry out an operation. Return how many records of opens there are more."""
        database = self._db
        if isinstance(operation, Put):
            known = database.execute("SELECT 1 FROM entries WHERE key = ?", (operation.key,)).fetchone()
            database.execute(
                "INSERT INTO entries VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value, "
                "version = excluded.version, lease = excluded.lease",
                (operation.key, operation.value, version, operation.lease),
            )
            changes.append(Change(operation.key, operation.value, version))
            return 0 if known else _counts(operation.key)
        if isinstance(operation, Delete):
            keys = [operation.key]
        else:
            rows = database.execute(
                "SELECT key FROM entries WHERE key >= ? AND key < ?", (operation.prefix, prefix_end(operation.prefix))
            )
            keys = [row[0] for row in rows]
        removed = 0
        for key in keys:
            if database.execute("DELETE FROM entries WHERE key = ?", (key,)).rowcount:
                changes.append(Change(key, None, version))
                removed += _counts(key)
        return -removed

    def _expire(self, lease: int) -> None:
        keys = [row[0] for row in self._db.execute("SELECT key FROM entries WHERE lease = ?", (lease,))]
        future: asyncio.Future[int] = self._loop.create_future()
        self._transaction([_Batch([Delete(key) for key in keys], (), future)])

    # Back on the event loop

    def _answer(self, future: asyncio.Future[T], result: object, error: Exception | None) -> None:
        def finish() -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        try:
            self._loop.call_soon_threadsafe(finish)
        except RuntimeError:
            log.debug("the event loop is closed")

    def _report(self, changes: list[Change]) -> None:
        for change in changes:
            for prefix, waiting in self._watchers:
                if change.key.startswith(prefix):
                    waiting.put_nowait(change)


def _translated(error: sqlite3.Error) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF == sqlite3.SQLITE_FULL:
        return StoreFull(str(error))
    # A full disk under the WAL or its index shows as a failed write, not as SQLITE_FULL.
    if code in (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_TRUNCATE):
        return StoreFull(str(error))
    return StoreError(str(error))
