"""The journal between persistent opens and the store: it stores changes, and holds back replies until they are stored.

Code that changes a persistent open reports it (``changed``, ``closed``). The changes of one request go to the store as
one batch when its handler returns. The store puts the batches of many requests into one transaction.

Memory is changed first, then the store, and the reply is sent last. Batches are stored in the order of the changes. So
a crash leaves the state of some moment in the past, and never loses a change that was acknowledged to a client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from smb3server.persistence.records import key_of, snapshot
from smb3server.persistence.store import (
    MAX_BATCH,
    Condition,
    ConditionFailed,
    Delete,
    Operation,
    Put,
    Store,
    StoreError,
)
from smb3server.process.turns import call_apart

if TYPE_CHECKING:
    from smb3server.state.objects import Open
    from smb3server.state.share import Share

log = logging.getLogger(__name__)

RETRY_DELAY = 1.0
"""Seconds until changes that could not be stored are tried again."""


@dataclass(slots=True, eq=False)
class Domain:
    """The place where the opens of some shares are stored.

    Every write has the ``conditions``: in a cluster, that this node still owns the shares."""

    store: Store
    prefix: str
    conditions: Sequence[Condition] = ()
    on_refused: Callable[[], None] = lambda: None
    """Called when a write fails because a condition no longer holds."""
    ended: bool = False
    """Whether this node no longer owns the opens, or will own them again under another domain.

    Nothing more is written then, and the outcome of writes under way does not show who owns the opens now."""


class _Flight:
    """The changes of one ``flush``, on their way to the store."""

    __slots__ = ("closed", "entries", "error", "left", "required", "undos", "upto", "waiters")

    def __init__(self, upto: int) -> None:
        self.upto = upto
        """``Persistence.touches`` at the flush."""
        self.left = 0
        """Number of batches and syncs that are not done."""
        self.error: StoreError | None = None
        """The error of the batch or sync that failed last; None if none has failed."""
        self.entries: list[Open] = []
        self.closed: dict[int, Domain] = {}
        self.undos: list[Callable[[], None]] = []
        self.required = False
        """Whether requests depend on it: they fail if it does."""
        self.waiters: list[Callable[[], None]] = []
        """Called when it is done, successfully or not."""


@dataclass(slots=True)
class _Changes:
    entries: dict[int, Open] = field(default_factory=dict)
    closed: dict[int, Domain] = field(default_factory=dict)
    undos: list[Callable[[], None]] = field(default_factory=list)
    syncs: list[Callable[[], None]] = field(default_factory=list)


class Persistence:
    """The journal of a server. Used on its event loop only. Opens are keyed by the persistent half of their FileId."""

    def __init__(self) -> None:
        self.touches = 0
        """Number of changes reported so far."""
        self._loop = asyncio.get_running_loop()
        self._changes = _Changes()
        """Changes that have not been sent to the store."""
        # Invariant: ``upto`` never decreases from one flight to the next.
        self._flights: list[_Flight] = []
        self._flush_scheduled = False
        # Invariant: while ``_unstored`` or ``_unremoved`` has an entry, ``_retry`` is a timer.
        self._unstored: dict[int, Open] = {}
        """Opens whose last change could not be stored."""
        self._unremoved: dict[int, Domain] = {}
        """Closed opens whose records could not be removed, with their domains."""
        # Invariant: a share is in ``_domains`` if, and only if, its ``stores_opens`` is set.
        self._domains: dict[Share, Domain] = {}
        """The domains of the shares whose opens are stored now."""
        self._owed: dict[str, set[int]] = {}
        """Closed opens whose records still exist, by the prefix of a domain that has ended."""
        self._retry: asyncio.TimerHandle | None = None

    def serve(self, domain: Domain, shares: Iterable[Share]) -> None:
        """Begin to store the persistent opens of ``shares`` in ``domain``."""
        for share in shares:
            self._domains[share] = domain
            share.stores_opens = True

    def leave(self, share: Share) -> None:
        """Store nothing more for a share that is removed. The caller has closed its opens, which removes their
        records."""
        if self._domains.pop(share, None) is not None:
            share.stores_opens = False

    @property
    def dirty(self) -> bool:
        """Whether there are changes that have not been sent to the store yet."""
        return bool(self._changes.entries or self._changes.closed)

    def changed(
        self, opened: Open, undo: Callable[[], None] | None = None, sync: Callable[[], None] | None = None
    ) -> None:
        """Store ``opened`` anew. Does nothing for opens that are not persistent.

        With ``undo`` the request depends on the change: if the store fails, ``undo`` is called and the request fails.
        ``sync`` is run on a worker thread first, for instance to flush the name of a new file. Its failure counts as a
        failure of the store."""
        durable = opened.durable
        if durable is None or not durable.persistent or durable.abandoned:
            return
        if opened.tree.share not in self._domains or opened.handle is None:
            return
        self.touches += 1
        self._changes.entries[opened.file_id[0]] = opened
        if undo is not None:
            self._changes.undos.append(undo)
        if sync is not None:
            self._changes.syncs.append(sync)
        self._schedule()

    def closed(self, opened: Open) -> None:
        """Remove the record of a persistent open.

        The request does not fail if the store does: after a restart, a record that was left over only blocks others
        until its time-out."""
        domain = self._domains.get(opened.tree.share)
        if domain is None:
            return
        self.touches += 1
        number = opened.file_id[0]
        self._changes.entries.pop(number, None)
        self._unstored.pop(number, None)
        self._changes.closed[number] = domain
        self._schedule()

    def abandon(self, opened: Open) -> None:
        """Write nothing more of an open that continues elsewhere. Its record stays."""
        number = opened.file_id[0]
        self._changes.entries.pop(number, None)
        self._unstored.pop(number, None)

    def end(self, domain: Domain) -> None:
        """Store nothing more in ``domain``, because this node no longer owns its opens.

        The caller has abandoned them. The numbers of closed opens whose records could not be removed are remembered for
        ``reclaim``."""
        domain.ended = True
        for share in [share for share, other in self._domains.items() if other is domain]:
            del self._domains[share]
            share.stores_opens = False
        for waiting in (self._changes.closed, self._unremoved):
            for number in [number for number, owner in waiting.items() if owner is domain]:
                self._owe(domain, number)
                del waiting[number]

    def reclaim(self, domain: Domain) -> None:
        """Remove the records that could not be removed in earlier domains with the same prefix.

        Call it when this node owns the opens again, before the records are read."""
        owed = self._owed.pop(domain.prefix, set())
        if owed:
            self._changes.closed.update(dict.fromkeys(owed, domain))
            self.flush()

    def _owe(self, domain: Domain, number: int) -> None:
        self._owed.setdefault(domain.prefix, set()).add(number)

    def _schedule(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Send the changes to the store."""
        if not self.dirty:
            return
        changes, self._changes = self._changes, _Changes()
        flight = _Flight(self.touches)
        flight.closed, flight.undos, flight.required = changes.closed, changes.undos, bool(changes.undos)
        batches: dict[int, tuple[Domain, list[Operation]]] = {}
        for opened in changes.entries.values():
            domain = self._domains.get(opened.tree.share)
            if domain is None or opened.handle is None:
                continue
            flight.entries.append(opened)
            operation = Put(key_of(domain.prefix, opened.file_id[0]), snapshot(opened))
            batches.setdefault(id(domain), (domain, []))[1].append(operation)
        for number, domain in changes.closed.items():
            batches.setdefault(id(domain), (domain, []))[1].append(Delete(key_of(domain.prefix, number)))
        self._flights.append(flight)
        flight.left = 1
        for sync in changes.syncs:
            self._await(flight, self._loop.run_in_executor(None, sync))
        for domain, operations in batches.values():
            step = MAX_BATCH - len(domain.conditions)
            for start in range(0, len(operations), step):
                future = domain.store.submit(operations[start : start + step], domain.conditions)
                self._await(flight, future, domain)
        self._landed(flight)

    def _await(
        self, flight: _Flight, future: asyncio.Future[int] | asyncio.Future[None], domain: Domain | None = None
    ) -> None:
        """Count ``future`` for ``flight`` until it is done. ``domain``: that of a batch, None for a sync."""
        flight.left += 1

        def done(future: asyncio.Future[int] | asyncio.Future[None]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is not None:
                flight.error = error if isinstance(error, StoreError) else StoreError(str(error))
                if domain is not None and isinstance(error, ConditionFailed) and not domain.ended:
                    domain.on_refused()
            self._landed(flight)

        future.add_done_callback(done)

    def _landed(self, flight: _Flight) -> None:
        """Count one batch or sync as done, or the flush itself. After the last one, finish the flight."""
        flight.left -= 1
        if flight.left:
            return
        self._flights.remove(flight)
        if flight.error is not None:
            log.error("state of %d opens is not stored: %s", len(flight.entries) + len(flight.closed), flight.error)
            for undo in reversed(flight.undos):
                undo()
            self._unstored.update((opened.file_id[0], opened) for opened in flight.entries if opened.handle is not None)
            for number, domain in flight.closed.items():
                if domain.ended:
                    self._owe(domain, number)
                else:
                    self._unremoved[number] = domain
            if self._retry is None and (self._unstored or self._unremoved):
                self._retry = self._loop.call_later(RETRY_DELAY, self._try_again)
        for waiter in flight.waiters:
            call_apart(waiter)

    def _try_again(self) -> None:
        self._retry = None
        unstored, self._unstored = self._unstored, {}
        unremoved, self._unremoved = self._unremoved, {}
        for opened in unstored.values():
            self.changed(opened)
        self._changes.closed.update((number, domain) for number, domain in unremoved.items() if not domain.ended)
        self.flush()

    def when_stored(self, since: int, callback: Callable[[StoreError | None], None]) -> None:
        """Call ``callback`` when all changes after the ``since``-th are stored, or have failed to be.

        The argument is the error if a request that made them must fail, else None. The callback is called during this
        call only if there is nothing left to store."""
        self.flush()
        flights = [flight for flight in self._flights if flight.upto > since]
        left = len(flights)
        if not left:
            callback(None)
            return

        def landed() -> None:
            nonlocal left
            left -= 1
            if not left:
                failed = (flight.error for flight in flights if flight.required and flight.error is not None)
                callback(next(failed, None))

        for flight in flights:
            flight.waiters.append(landed)

    async def drain(self) -> None:
        """Wait until all changes are stored, or have failed to be."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.when_stored(-1, lambda _: None if future.done() else future.set_result(None))
        await future

    def close(self) -> None:
        """Stop retrying."""
        if self._retry is not None:
            self._retry.cancel()
