"""Copy files and folders between places, several files at a time; make one folder the mirror of another.

Errors of single files are reported, and the others go on. Nothing is removed until everything is copied, and nothing at
all if anything failed: what could not be read might be missing in the target otherwise. What is in the way of something
of another kind is renamed aside until then. Only what was listed is removed, and what was copied in this run never: a
server may list a file under another name than it was given.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fnmatch
import os
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from smb3server.client import errors, names, transfers
from smb3server.client.options import CopyOptions, Progress
from smb3server.client.places import KEPT, Item, Kind, Place, Writing
from smb3server.client.sameness import same_content, same_time
from smb3server.client.small_files import SMALL
from smb3server.client.transfers import Transfer
from smb3server.wire import attributes as attr

SMALL_PER_JOB = 8
"""Small files that are copied at a time for each larger one."""
WAITING = 256
"""Files at most that wait for being copied."""
MAX_AT_ONCE = 64
"""Files that are copied at a time at most."""


@dataclass(frozen=True, slots=True)
class MirrorOptions(CopyOptions):
    """How to copy files and folders."""

    recursive: bool = False
    only_changed: bool = False
    """Leave out files whose copy has their size and time."""
    checksum: bool = False
    """With ``only_changed``: compare the content of files of one size, whatever their times are."""
    window_ns: int = 0
    """With ``only_changed``: nanoseconds by which the times of a file and of its copy may differ."""
    mirror: bool = False
    """Make the target what the source is: replace READONLY files and symbolic links. Otherwise both are as for cp(1): a
    READONLY file is an error, and what a link of this machine leads to is written.
    """
    delete: bool = False
    """With ``mirror``: remove what the source does not have."""
    dry_run: bool = False
    exclude: tuple[str, ...] = ()
    """Patterns of names, or of paths if they contain a slash; at the end a slash stands for folders only."""
    follow_links: bool = False
    attributes: bool = False
    """Keep READONLY, HIDDEN, SYSTEM and ARCHIVE."""
    jobs: int = 4
    """Files at a time; of small ones (``small_files.SMALL``) ``SMALL_PER_JOB`` times as many, unless it is 1."""


class Event(NamedTuple):
    """Something that was done, or would be with ``dry_run``."""

    action: str
    """copy, same, folder, remove, skip, stay or error."""
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
    replaces: bool
    """Whether the target may have a file of this name."""
    read_only: int = 0
    """The attributes of a READONLY file that is replaced."""


class _Aside(NamedTuple):
    """Something that was in the way of an entry of another kind."""

    place: Place
    item: Item
    path: str
    """Its name for the time being."""


@dataclass(slots=True)
class Copier:
    """Copies between places. Use it once, in ``async with``: leaving it waits for the copies."""

    options: MirrorOptions
    observer: Observer
    several: bool = False
    """Whether ``copy`` is called more than once."""
    totals: Totals = field(default_factory=Totals)
    _queue: asyncio.Queue[_Job] = field(default_factory=lambda: asyncio.Queue(WAITING))
    _has_room: asyncio.Future[None] | None = None
    """Is there while the queue was full and has not been half empty since: somebody waits for that."""
    _workers: list[asyncio.Task[None]] = field(default_factory=list)
    _large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """For files that are not small: each of them has several pieces in flight."""
    _times: list[tuple[Place, str, int]] = field(default_factory=list)
    _extras: list[tuple[Place, Item]] = field(default_factory=list)
    _asides: list[_Aside] = field(default_factory=list)
    _granularity: dict[int, int] = field(default_factory=dict)
    _made: set[tuple[int, str]] = field(default_factory=set)
    """Files that this run has written, or is to write: place and key of the path."""
    _used: set[int] = field(default_factory=set)
    """Numbers of folders of the target that are in use, though they were not listed under their names."""

    async def __aenter__(self) -> Copier:
        jobs = max(1, self.options.jobs)
        self._large = asyncio.Semaphore(jobs)
        count = min(jobs * SMALL_PER_JOB, MAX_AT_ONCE) if jobs > 1 else 1
        self._workers = [asyncio.ensure_future(self._work()) for _ in range(count)]
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
            await self._put_back()

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
        if not self.totals.failed:
            await self._remove_extras()
        elif self._extras:
            why = "nothing was removed, because something could not be copied"
            self.observer.event(Event("stay", self._extras[0][0].name, text=why))
        for place, path, modified in reversed(self._times):
            with contextlib.suppress(FileNotFoundError):
                await self._quietly(place.show(path), place.set_time(path, modified))

    async def _remove_extras(self) -> None:
        for place, item in self._extras:
            if self._keeps(item):
                why = "the server has another name for it than it was copied as"
                self.observer.event(Event("stay", place.show(item.path), text=why))
            else:
                await self._remove(place, item, place.show(item.path))
        while self._asides:
            place, item, path = self._asides[-1]
            there = item if self.options.dry_run else item._replace(path=path)
            await self._remove(place, there, place.show(item.path))
            self._asides.pop()

    async def _remove(self, place: Place, item: Item, shown: str) -> None:
        """Remove an entry; of a folder that has what ``_keeps`` names, the rest."""

        async def remove() -> None:
            try:
                whole = not (self.options.exclude or self._used) or await place.remove(item, self._keeps, dry_run=True)
                gone = whole and await place.remove(item, self._keeps, self.options.dry_run)
            except FileNotFoundError:
                # The part of a copy that was broken off, which this run has completed: it has its own name now.
                gone = True
            if gone:
                self.totals.removed += 1
                self.observer.event(Event("remove", shown))
                return
            self.observer.event(Event("stay", shown, text="it has what --exclude leaves out"))
            for below in await place.entries(item.path):
                if below.kind is not Kind.UNUSABLE and not self._keeps(below):
                    await self._remove(place, below, place.show(below.path))

        await self._quietly(shown, remove())

    def _keeps(self, item: Item) -> bool:
        return self._excluded(item) or (item.file_id != 0 and item.file_id in self._used)

    async def _put_back(self) -> None:
        """Give what was renamed aside its own name, unless something else has it."""
        while self._asides:
            place, item, path = self._asides.pop()
            if self.options.dry_run:
                continue
            try:
                await place.rename(path, item.path)
            except OSError:
                why = f"it is {place.show(path)} now, because something could not be copied"
                self.observer.event(Event("stay", place.show(item.path), text=why))

    async def _work(self) -> None:
        while True:
            job = await self._queue.get()
            room = self._has_room
            if room is not None and not room.done() and self._queue.qsize() <= WAITING // 2:
                room.set_result(None)
            if job.item.size <= SMALL:
                await self._copy_file(job)
            else:
                async with self._large:
                    await self._copy_file(job)
            self._queue.task_done()

    # What happened

    def _failed(self, path: str, error: BaseException) -> None:
        self.totals.failed += 1
        self.observer.event(Event("error", path, text=str(error)))

    async def _quietly(self, path: str, work: Awaitable[None]) -> bool:
        """Do something; report its error. Raises errors after which nothing else can work."""
        try:
            await work
        except OSError as error:
            if is_fatal(error):
                raise
            self._failed(path, error)
            return False
        return True

    def _unusable(self, place: Place, folder: str, item: Item) -> None:
        reason = f"the server lists {item.path!a}, which cannot be the name of an entry"
        self._failed(place.show(folder), errors.make(errno.EPROTO, place.show(folder), reason=reason))

    def _skip(self, place: Place, item: Item, why: str, named: bool) -> None:
        if named:
            # Somebody asked for this very file.
            self._failed(place.show(item.path), errors.make(errno.EINVAL, item.name, reason=why))
            return
        self.totals.skipped += 1
        self.observer.event(Event("skip", place.show(item.path), text=why))

    # Copying

    async def copy(self, source: Place, item: Item, target: Place, path: str) -> None:
        """Copy an entry of ``source`` to ``path`` of ``target``: at once a folder's structure, later on its files."""
        found = await self._followed(source, item, named=True)
        if found is None:
            return
        if is_within(source, found.path, target, path, self.options.mirror):
            reason = "a folder cannot be copied into itself" if found.kind is Kind.FOLDER else "they are the same file"
            to = target.show(path)
            self._failed(to, errors.make(errno.EINVAL, source.show(item.path), reason=reason, to=to))
            return
        await self._copy(source, found, target, path, None, known=False)

    async def _followed(self, source: Place, item: Item, *, named: bool = False) -> Item | None:
        """Return what is to be copied for an entry; None, when that was told, if nothing is."""
        if item.kind is Kind.LINK:
            # Like cp(1): without -r, a link that was named stands for its file.
            follows = self.options.follow_links or (named and not self.options.recursive)
            found = await source.follow(item.path) if follows else None
            if found is None:
                why = "it leads nowhere, or in a circle" if follows else "follow it with --links=follow"
                self._skip(source, item, f"a symbolic link; {why}", named)
                return None
            item = found
        if item.kind is Kind.OTHER:
            self._skip(source, item, "not a regular file", named)
            return None
        return item

    async def _copy(
        self, source: Place, item: Item, target: Place, path: str, old: Item | None, *, known: bool
    ) -> None:
        """Copy a file or folder. ``old`` is what the target has; if nothing, ``known`` says that it was looked for."""
        if item.kind is Kind.FOLDER:
            if self.options.recursive:
                await self._copy_folder(source, item, target, path, old)
            else:
                self._failed(source.show(item.path), errors.make(errno.EISDIR, None, reason="copy folders with -r"))
            return
        if self.several and not self._is_first(target, path):
            reason = "another file of this run gets the same name"
            to = target.show(path)
            self._failed(to, errors.make(errno.EEXIST, source.show(item.path), reason=reason, to=to))
            return
        if old is not None and not await self._makes_way(old, target, Kind.FILE):
            return
        same_kind = old is not None and old.kind is Kind.FILE
        read_only = old.attributes if old is not None and same_kind and old.attributes & attr.READONLY else 0
        await self._queue_job(_Job(source, item, target, path, same_kind or not known, read_only))

    def _is_first(self, target: Place, path: str) -> bool:
        """Return whether this run has no other file for the target."""
        key = (id(target), target.key(path))
        first = key not in self._made
        self._made.add(key)
        return first

    async def _queue_job(self, job: _Job) -> None:
        if self._queue.full():
            # To wait for each file would cost more than to copy it.
            self._has_room = room = asyncio.get_running_loop().create_future()
            await asyncio.wait([room, *self._workers], return_when=asyncio.FIRST_COMPLETED)
            self._has_room = None
            if not room.done():
                await self._finish()
        self._queue.put_nowait(job)

    async def _copy_folder(self, source: Place, folder: Item, target: Place, path: str, old: Item | None) -> None:
        try:
            found = await source.entries(folder.path)
            if old is not None and not await self._makes_way(old, target, Kind.FOLDER):
                return
            there = await self._prepare(target, path, old)
        except OSError as error:
            if is_fatal(error):
                raise
            self._failed(source.show(folder.path), error)
            return
        known: dict[str, Item] = {}
        for item in there:
            if item.kind is Kind.UNUSABLE:
                self._unusable(target, path, item)
            else:
                known[target.key(item.name)] = item
        taken: dict[str, str] = {}
        for item in found:
            key = target.key(item.name)
            if item.kind is Kind.UNUSABLE:
                self._unusable(source, folder.path, item)
                continue
            old = known.pop(key, None)
            if self._excluded(item):
                # What is left out is left alone in the target, too.
                continue
            if not names.is_unicode(item.name):
                reason = "its name is not UTF-8, which SMB needs; rename it, or leave it out with --exclude"
                self._failed(source.show(item.path), errors.make(errno.EILSEQ, source.show(item.path), reason=reason))
                continue
            if key in taken:
                reason = f"{taken[key]} has the same name in another case"
                self._failed(source.show(item.path), errors.make(errno.EEXIST, item.path, reason=reason))
                continue
            taken[key] = item.name
            followed = await self._followed(source, item)
            if followed is None:
                continue
            below = names.join(path, item.name)
            if old is not None and old.kind is Kind.LINK and not self.options.mirror:
                old = await target.follow(old.path) or old
            if old is not None and await self._is_same(source, followed, target, old):
                self.totals.same += 1
                self.observer.event(Event("same", target.show(below), followed.size))
                continue
            await self._copy(source, followed, target, below, old, known=self._lists)
        if self.options.delete:
            self._extras += [(target, item) for item in known.values() if not self._excluded(item)]
        if not self.options.dry_run:
            self._times.append((target, path, folder.modified_ns))

    @property
    def _lists(self) -> bool:
        """Whether folders of the target are listed."""
        return self.options.only_changed or self.options.mirror

    async def _prepare(self, target: Place, path: str, listed: Item | None) -> list[Item]:
        """Make a folder of the target, and return what it has already, as far as that matters."""
        old = None if listed is not None and listed.kind is not Kind.FOLDER else await target.look(path)
        if old is not None and old.kind is not Kind.FOLDER:
            raise errors.make(errno.ENOTDIR, target.show(path))
        if old is None:
            if not self.options.dry_run:
                await target.make_folder(path)
            self.observer.event(Event("folder", target.show(path)))
            return []
        if listed is None and self.options.delete and (number := await target.number(path)):
            self._used.add(number)
        return await target.entries(path) if self._lists else []

    async def _makes_way(self, old: Item, target: Place, wanted: Kind) -> bool:
        """Rename an entry of the target that is of another kind aside; return False if it has to stay."""
        if old.kind is wanted:
            return True
        shown = target.show(old.path)
        aside = _Aside(target, old, names.aside_of(old.path, os.urandom(4).hex()))
        remedy = "" if self.options.delete else "sync --delete removes it" if self.options.mirror else "remove it first"
        try:
            if not remedy and not await target.remove(old, self._keeps, dry_run=True):
                remedy = "it has what --exclude leaves out"
            if not remedy and not self.options.dry_run:
                await target.rename(old.path, aside.path)
        except OSError as error:
            if is_fatal(error):
                raise
            self._failed(shown, error)
            return False
        if remedy:
            reason = f"a {old.kind.value} has the name of a {wanted.value}; {remedy}"
            self._failed(shown, errors.make(errno.EEXIST, old.path, reason=reason))
            return False
        self._asides.append(aside)
        return True

    async def _is_same(self, source: Place, item: Item, target: Place, old: Item) -> bool:
        if not self.options.only_changed or (item.kind, old.kind) != (Kind.FILE, Kind.FILE) or item.size != old.size:
            return False
        try:
            if self.options.checksum:
                return await same_content(source, item.path, target, old.path, item.size)
            if id(target) not in self._granularity:
                self._granularity[id(target)] = await target.granularity()
        except OSError as error:
            if is_fatal(error):
                raise
            return False
        window = self.options.window_ns
        return same_time(item.modified_ns, old.modified_ns, self._granularity[id(target)], window)

    def _excluded(self, item: Item) -> bool:
        for pattern in self.options.exclude:
            bare = pattern.rstrip("/")
            if pattern.endswith("/") and item.kind is not Kind.FOLDER:
                continue
            if fnmatch.fnmatchcase(item.path if "/" in bare else item.name, bare.lstrip("/")):
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
        how = self.options
        writing = Writing(
            job.path,
            {**how.keywords, "progress": progress, "expected": job.item.size},
            job.item.attributes & KEPT if how.attributes else 0,
            job.replaces,
            job.read_only & KEPT if how.mirror else 0,
            through_links=not how.mirror,
        )
        return await job.source.copy(job.item.path, job.target, writing)


def _met_full_disk(worker: asyncio.Task[None]) -> bool:
    error = worker.exception() if worker.done() and not worker.cancelled() else None
    return isinstance(error, OSError) and transfers.is_full(error)


def is_within(source: Place, item: str, target: Place, path: str, mirror: bool) -> bool:
    """Return whether the target lies in the source, or is it; or, for a mirror, the source in the target."""
    (first, above), (second, below) = source.location(item), target.location(path)
    if first != second:
        return False
    above, below = f"{above}/".lstrip("/"), f"{below}/".lstrip("/")
    return below.startswith(above) or (mirror and above.startswith(below))


def is_fatal(error: OSError) -> bool:
    """Return whether nothing else can work after this error: the share is out of reach, or the target's disk full."""
    if isinstance(error, errors.RemoteError) and isinstance(error, ConnectionError | TimeoutError):
        return True
    return transfers.is_full(error) or error.errno == errno.EHOSTUNREACH


async def copy_all(
    entries: Sequence[tuple[Place, Item, Place, str]], options: MirrorOptions, observer: Observer
) -> Totals:
    """Copy (source, entry of it, target, path in it), and return what was done.

    Raises ``OSError`` if nothing can work any longer.
    """
    async with Copier(options, observer, len(entries) > 1) as copier:
        for source, item, target, path in entries:
            await copier.copy(source, item, target, path)
    return copier.totals
