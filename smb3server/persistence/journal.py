"""Keeps the stored state of persistent opens up to date, and holds back replies until what they speak of is stored.

Whoever changes a persistent open says so (``changed``, ``closed``). Changes made by one request go to the store as one
batch when its handler returns; the store puts the batches of many requests into one transaction. Memory comes first,
the store second, the reply last; batches are stored in the order they were made, so a crash leaves a state that some
moment in the past had, and never loses what a client was told.
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
"""Seconds until what could not be stored is tried again."""


@dataclass(slots=True, eq=False)
class Domain:
    """Where the opens of some shares are stored. ``conditions`` hold for every write: in a cluster, that this node is
    still their owner."""

    store: Store
    prefix: str
    conditions: Sequence[Condition] = ()
    on_refused: Callable[[], None] = lambda: None
    """A condition does not hold any more."""
    ended: bool = False
    """The opens are somebody else's, or will be this node's again under another domain: nothing is written for them,
    and nothing that was under way says anything about who owns them now."""


class _Flight:
    """One batch per domain on its way to the store."""

    __slots__ = ("closed", "entries", "error", "left", "required", "undos", "upto", "waiters")

    def __init__(self, upto: int) -> None:
        self.upto = upto
        self.left = 0
        self.error: StoreError | None = None
        self.entries: list[Open] = []
        self.closed: dict[int, Domain] = {}
        self.undos: list[Callable[[], None]] = []
        self.required = False
        self.waiters: list[Callable[[], None]] = []


@dataclass(slots=True)
class _Changes:
    entries: dict[int, Open] = field(default_factory=dict)
    closed: dict[int, Domain] = field(default_factory=dict)
    undos: list[Callable[[], None]] = field(default_factory=list)
    syncs: list[Callable[[], None]] = field(default_factory=list)


class Persistence:
    """A server's. All on its event loop."""

    def __init__(self) -> None:
        self.touches = 0
        """Changes reported so far."""
        self._loop = asyncio.get_running_loop()
        self._changes = _Changes()
        self._flights: list[_Flight] = []
        self._flush_scheduled = False
        self._unstored: dict[int, Open] = {}
        """Opens whose last change could not be stored, and (below) closed ones that could not be removed."""
        self._unremoved: dict[int, Domain] = {}
        self._domains: dict[Share, Domain] = {}
        """Of the shares whose opens are stored now."""
        self._owed: dict[str, set[int]] = {}
        """Closed opens whose records are still there, by the prefix of a domain that has ended."""
        self._retry: asyncio.TimerHandle | None = None

    def serve(self, domain: Domain, shares: Iterable[Share]) -> None:
        """Store the persistent opens of ``shares`` in ``domain`` from now on."""
        for share in shares:
            self._domains[share] = domain
            share.stores_opens = True

    @property
    def dirty(self) -> bool:
        """Something changed that is not on its way yet."""
        return bool(self._changes.entries or self._changes.closed)

    def changed(
        self, entry: Open, undo: Callable[[], None] | None = None, sync: Callable[[], None] | None = None
    ) -> None:
        """Store ``entry`` anew; a no-op for opens that are not persistent. With ``undo`` the request depends on it: if
        the store fails, ``undo`` is called and the request fails. ``sync`` is run on a worker thread first (flush a
        new file's name); its failure is the store's."""
        durable = entry.durable
        if durable is None or not durable.persistent or durable.abandoned:
            return
        if entry.tree.share not in self._domains or entry.handle is None:
            return
        self.touches += 1
        self._changes.entries[entry.file_id[0]] = entry
        if undo is not None:
            self._changes.undos.append(undo)
        if sync is not None:
            self._changes.syncs.append(sync)
        self._schedule()

    def closed(self, entry: Open) -> None:
        """Forget a persistent open. If the store fails the request does not: a forgotten record costs others no more
        than its time-out after a restart."""
        domain = self._domains.get(entry.tree.share)
        if domain is None:
            return
        self.touches += 1
        number = entry.file_id[0]
        self._changes.entries.pop(number, None)
        self._unstored.pop(number, None)
        self._changes.closed[number] = domain
        self._schedule()

    def abandon(self, entry: Open) -> None:
        """The open goes on elsewhere: nothing of it is written from here any more."""
        number = entry.file_id[0]
        self._changes.entries.pop(number, None)
        self._unstored.pop(number, None)

    def end(self, domain: Domain) -> None:
        """Store nothing more in ``domain``: this node does not own its opens any more. They have been abandoned; of
        closed ones whose records could not be removed the numbers are remembered (``reclaim``)."""
        domain.ended = True
        for share in [share for share, other in self._domains.items() if other is domain]:
            del self._domains[share]
            share.stores_opens = False
        for waiting in (self._changes.closed, self._unremoved):
            for number in [number for number, owner in waiting.items() if owner is domain]:
                self._owe(domain, number)
                del waiting[number]

    def reclaim(self, domain: Domain) -> None:
        """This node owns opens with this prefix once more: what was closed while their store could not be reached is
        removed, before anybody reads it."""
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
        """Send what has changed on its way."""
        if not self.dirty:
            return
        changes, self._changes = self._changes, _Changes()
        flight = _Flight(self.touches)
        flight.closed, flight.undos, flight.required = changes.closed, changes.undos, bool(changes.undos)
        batches: dict[int, tuple[Domain, list[Operation]]] = {}
        for entry in changes.entries.values():
            domain = self._domains.get(entry.tree.share)
            if domain is None or entry.handle is None:
                continue
            flight.entries.append(entry)
            operation = Put(key_of(domain.prefix, entry.file_id[0]), snapshot(entry))
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
        flight.left -= 1
        if flight.left:
            return
        self._flights.remove(flight)
        if flight.error is not None:
            log.error("state of %d opens is not stored: %s", len(flight.entries) + len(flight.closed), flight.error)
            for undo in reversed(flight.undos):
                undo()
            self._unstored.update((entry.file_id[0], entry) for entry in flight.entries if entry.handle is not None)
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
        for entry in unstored.values():
            self.changed(entry)
        self._changes.closed.update((number, domain) for number, domain in unremoved.items() if not domain.ended)
        self.flush()

    def when_stored(self, since: int, callback: Callable[[StoreError | None], None]) -> None:
        """Call once all changes later than the ``since``-th are stored, or could not be: with the error if a request
        that made them must fail for it. Never at once unless nothing is left to store."""
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
        """Until everything is stored, or could not be."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.when_stored(-1, lambda _: None if future.done() else future.set_result(None))
        await future

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
