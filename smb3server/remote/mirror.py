"""Copy files and folders between places, several files at a time; make one folder the mirror of another.

Errors of single files are reported, and the others go on. Nothing is removed until everything is copied, and nothing at
all if anything failed: what could not be read might be missing in the target otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fnmatch
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from smb3server.remote import errors, names, transfers
from smb3server.remote.places import Item, Kind, LocalPlace, Place, SharePlace
from smb3server.remote.transfers import Progress, Transfer
from smb3server.wire import attributes as attr

_KEPT = attr.READONLY | attr.HIDDEN | attr.SYSTEM | attr.ARCHIVE
WHOLE_SECONDS, EXACT = 2_000_000_000, 1_000
"""Nanoseconds by which the times of a file and of its copy may differ: if one has whole seconds only (FAT counts in two
of them), and otherwise.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """How to copy."""

    recursive: bool = False
    only_changed: bool = False
    """Leave out files whose copy has their size and time."""
    checksum: bool = False
    """With ``only_changed``: compare the content of files of one size, whatever their times are."""
    delete: bool = False
    """Remove what the source does not have."""
    dry_run: bool = False
    exclude: tuple[str, ...] = ()
    """Patterns of names, or of paths if they contain a slash; at the end a slash stands for folders only."""
    follow_links: bool = False
    resume: bool = False
    sparse: bool = True
    verify: bool = False
    attributes: bool = False
    """Keep READONLY, HIDDEN, SYSTEM and ARCHIVE."""
    jobs: int = 4
    """Files at a time."""


class Event(NamedTuple):
    """Something that was done, or would be with ``dry_run``."""

    action: str
    """copy, same, folder, remove, skip or error."""
    path: str
    """For people."""
    size: int = 0
    text: str = ""
    """Why it was left out, or the error."""
    transfer: Transfer | None = None


class Observer(Protocol):
    """Who is told of the progress."""

    def begin(self, path: str, size: int) -> Progress:
        """A file is being copied; return what is called with its progress."""

    def event(self, event: Event) -> None:
        """Something was done."""


@dataclass(slots=True)
class Totals:
    """What was done."""

    files: int = 0
    bytes: int = 0
    same: int = 0
    removed: int = 0
    skipped: int = 0
    failed: int = 0


@dataclass(slots=True)
class _Job:
    source: Place
    item: Item
    target: Place
    path: str


@dataclass(slots=True)
class Copier:
    """Copies between places. Use it once, in ``async with``: leaving it waits for the copies."""

    options: Options
    observer: Observer
    totals: Totals = field(default_factory=Totals)
    _queue: asyncio.Queue[_Job] = field(default_factory=lambda: asyncio.Queue(64))
    _workers: list[asyncio.Task[None]] = field(default_factory=list)
    _times: list[tuple[Place, str, int]] = field(default_factory=list)
    _extras: list[tuple[Place, Item]] = field(default_factory=list)

    async def __aenter__(self) -> Copier:
        self._workers = [asyncio.ensure_future(self._work()) for _ in range(max(1, self.options.jobs))]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self._finish()
        finally:
            full = any(map(_met_full_disk, self._workers))
            for worker in self._workers:
                worker.cancel(transfers.NO_ROOM if full else None)
            await asyncio.gather(*self._workers, return_exceptions=True)

    async def _finish(self) -> None:
        idle = asyncio.ensure_future(self._queue.join())
        try:
            await asyncio.wait([idle, *self._workers], return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
        for worker in self._workers:
            # A worker ends only by an error after which nothing else can work either.
            if worker.done():
                worker.result()
        if self._extras and self.totals.failed:
            self.observer.event(
                Event(
                    "skip", self._extras[0][0].name, text="nothing was removed, because something could not be copied"
                )
            )
        else:
            for place, item in self._extras:
                await self._do("remove", place, item, partial(place.remove, item))
        for place, path, modified in reversed(self._times):
            with contextlib.suppress(FileNotFoundError):
                await self._quietly(place.show(path), partial(place.set_time, path, modified))

    async def _work(self) -> None:
        while True:
            job = await self._queue.get()
            await self._copy_file(job)
            self._queue.task_done()

    # What happened

    def _failed(self, path: str, error: BaseException) -> None:
        self.totals.failed += 1
        self.observer.event(Event("error", path, text=str(error)))

    async def _quietly(self, path: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Do something; report its error. Raises errors after which nothing else can work."""
        try:
            await work()
        except OSError as error:
            if is_fatal(error):
                raise
            self._failed(path, error)
            return False
        return True

    async def _do(self, action: str, place: Place, item: Item, work: Callable[[], Awaitable[None]]) -> bool:
        path = place.show(item.path)
        if not self.options.dry_run and not await self._quietly(path, work):
            return False
        if action == "remove":
            self.totals.removed += 1
        self.observer.event(Event(action, path))
        return True

    def _skip(self, place: Place, item: Item, why: str) -> None:
        self.totals.skipped += 1
        self.observer.event(Event("skip", place.show(item.path), text=why))

    # Copying

    async def copy(self, source: Place, item: Item, target: Place, path: str) -> None:
        """Copy an entry of ``source`` to ``path`` of ``target``: at once a folder's structure, later on its files."""
        if item.kind is Kind.LINK:
            followed = await source.follow(item.path) if self.options.follow_links else None
            if followed is None:
                why = (
                    "it leads nowhere, or in a circle" if self.options.follow_links else "follow it with --links=follow"
                )
                self._skip(source, item, f"a symbolic link; {why}")
                return
            item = followed
        if item.kind is Kind.OTHER:
            self._skip(source, item, "not a regular file")
        elif item.kind is Kind.FILE:
            await self._queue_job(_Job(source, item, target, path))
        elif not self.options.recursive:
            self._failed(source.show(item.path), errors.make(errno.EISDIR, None, reason="copy folders with -r"))
        else:
            await self._copy_folder(source, item, target, path)

    async def _queue_job(self, job: _Job) -> None:
        putting = asyncio.ensure_future(self._queue.put(job))
        await asyncio.wait([putting, *self._workers], return_when=asyncio.FIRST_COMPLETED)
        if not putting.done():
            putting.cancel()
            await self._finish()

    async def _copy_folder(self, source: Place, folder: Item, target: Place, path: str) -> None:
        try:
            found = await source.entries(folder.path)
            there = await self._prepare(target, path)
        except OSError as error:
            if is_fatal(error):
                raise
            self._failed(source.show(folder.path), error)
            return
        key = str.casefold if isinstance(target, SharePlace) else str
        known = {key(names.split(item.path)[1]): item for item in there}
        taken: dict[str, str] = {}
        for item in found:
            name = names.split(item.path)[1]
            if self._excluded(item):
                # What is left out is left alone in the target, too.
                known.pop(key(name), None)
                continue
            if key(name) in taken:
                reason = f"{taken[key(name)]} has the same name in another case"
                self._failed(source.show(item.path), errors.make(errno.EEXIST, item.path, reason=reason))
                continue
            taken[key(name)] = name
            old = known.pop(key(name), None)
            below = names.join(path, name)
            if old is not None and not await self._makes_way(item, old, target):
                continue
            if old is not None and await self._is_same(source, item, target, old):
                self.totals.same += 1
                self.observer.event(Event("same", target.show(below), item.size))
                continue
            await self.copy(source, item, target, below)
        if self.options.delete:
            self._extras += [(target, item) for item in known.values() if not self._excluded(item)]
        if not self.options.dry_run:
            self._times.append((target, path, folder.modified_ns))

    async def _prepare(self, target: Place, path: str) -> list[Item]:
        """Make a folder of the target, and return what it has already, as far as that matters."""
        old = await target.look(path)
        if old is not None and old.kind is not Kind.FOLDER:
            raise errors.make(errno.ENOTDIR, target.show(path))
        if old is None:
            if not self.options.dry_run:
                await target.make_folder(path)
            self.observer.event(Event("folder", target.show(path)))
            return []
        return await target.entries(path) if self.options.only_changed or self.options.delete else []

    async def _makes_way(self, item: Item, old: Item, target: Place) -> bool:
        """Remove an entry of the target that is of another kind; return False if it has to stay."""
        wanted = Kind.FOLDER if item.kind is Kind.FOLDER else Kind.FILE
        if old.kind is wanted or item.kind is Kind.LINK:
            return True
        if not self.options.delete:
            reason = f"a {old.kind.value} has the name of a {wanted.value}; --delete removes it"
            self._failed(target.show(old.path), errors.make(errno.EEXIST, item.path, reason=reason))
            return False
        return await self._do("remove", target, old, partial(target.remove, old))

    async def _is_same(self, source: Place, item: Item, target: Place, old: Item) -> bool:
        if not self.options.only_changed or (item.kind, old.kind) != (Kind.FILE, Kind.FILE) or item.size != old.size:
            return False
        if not self.options.checksum:
            return same_time(item.modified_ns, old.modified_ns)
        try:
            return await same_content(source, item.path, target, old.path, item.size)
        except OSError as error:
            if is_fatal(error):
                raise
            return False

    def _excluded(self, item: Item) -> bool:
        name = names.split(item.path)[1]
        for pattern in self.options.exclude:
            bare = pattern.rstrip("/")
            if pattern.endswith("/") and item.kind is not Kind.FOLDER:
                continue
            if fnmatch.fnmatchcase(item.path if "/" in bare else name, bare.lstrip("/")):
                return True
        return False

    async def _copy_file(self, job: _Job) -> None:
        shown = job.target.show(job.path)
        if self.options.dry_run:
            self._copied(Event("copy", shown, job.item.size))
            return
        try:
            transfer = await self._transfer(job, self.observer.begin(shown, job.item.size))
        except OSError as error:
            self._failed(job.source.show(job.item.path), error)
            if is_fatal(error):
                raise
            return
        self._copied(Event("copy", shown, transfer.size, transfer=transfer))

    def _copied(self, event: Event) -> None:
        self.totals.files += 1
        self.totals.bytes += event.size
        self.observer.event(event)

    async def _transfer(self, job: _Job, progress: Progress) -> Transfer:
        source, target, how = job.source, job.target, self.options
        kept = job.item.attributes & _KEPT if how.attributes else 0
        if isinstance(source, SharePlace) and isinstance(target, LocalPlace):
            local = target.at(job.path)
            done = await source.share.download(
                source.at(job.item.path),
                local,
                progress=progress,
                resume=how.resume,
                sparse=how.sparse,
                verify=how.verify,
                exact=True,
            )
            if kept & attr.READONLY:
                local.chmod(local.stat().st_mode & ~0o222)
            return done
        if isinstance(source, LocalPlace) and isinstance(target, SharePlace):
            return await target.share.upload(
                source.at(job.item.path),
                target.at(job.path),
                progress=progress,
                resume=how.resume,
                sparse=how.sparse,
                verify=how.verify,
                exact=True,
                attributes=kept,
            )
        assert isinstance(source, SharePlace) and isinstance(target, SharePlace)
        return await source.share.copy(
            source.at(job.item.path),
            target.at(job.path),
            to=target.share,
            progress=progress,
            resume=how.resume,
            verify=how.verify,
            exact=True,
        )


def _met_full_disk(worker: asyncio.Task[None]) -> bool:
    error = worker.exception() if worker.done() and not worker.cancelled() else None
    return isinstance(error, OSError) and transfers.is_full(error)


def is_fatal(error: OSError) -> bool:
    """Return whether nothing else can work after this error: the share is out of reach, or the target's disk full."""
    if isinstance(error, errors.RemoteError) and isinstance(error, ConnectionError | TimeoutError):
        return True
    return transfers.is_full(error) or error.errno == errno.EHOSTUNREACH


def same_time(first: int, second: int) -> bool:
    """Return whether two times in nanoseconds are those of a file and its copy."""
    coarse = not first % 1_000_000_000 or not second % 1_000_000_000
    return abs(first - second) < (WHOLE_SECONDS if coarse else EXACT)


async def same_content(source: Place, path: str, target: Place, other: str, size: int) -> bool:
    """Return whether two files of one size have the same content."""
    first, second = _reader(source, path), _reader(target, other)
    async with contextlib.AsyncExitStack() as stack:
        read_first, read_second = await stack.enter_async_context(first), await stack.enter_async_context(second)
        for at in range(0, size, _BLOCK):
            one, two = await asyncio.gather(read_first(at), read_second(at))
            if one != two:
                return False
    return True


_BLOCK = 8 << 20
_Read = Callable[[int], Awaitable[bytes]]


@contextlib.asynccontextmanager
async def _reader(place: Place, path: str) -> AsyncIterator[_Read]:
    """Open a file, and yield what reads a block of it."""
    if isinstance(place, SharePlace):
        async with await place.share.open(place.at(path)) as file:
            yield lambda at: file.read_at(at, _BLOCK)
        return
    assert isinstance(place, LocalPlace)
    descriptor = os.open(place.at(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield lambda at: asyncio.to_thread(os.pread, descriptor, _BLOCK, at)
    finally:
        os.close(descriptor)


async def copy_all(entries: Sequence[tuple[Place, Item, Place, str]], options: Options, observer: Observer) -> Totals:
    """Copy (source, entry of it, target, path in it), and return what was done.

    Raises ``OSError`` if nothing can work any longer.
    """
    async with Copier(options, observer) as copier:
        for source, item, target, path in entries:
            await copier.copy(source, item, target, path)
    return copier.totals
