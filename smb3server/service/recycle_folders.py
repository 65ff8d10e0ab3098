"""Empties the recycle folders of the shares by age and size, while clients use them.

A worker thread looks at the folders, and the event loop removes what it has found, a few files at a time: only there it
is known what clients have open. To clients this looks as if a program of the host had removed the files.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from smb3server.backends.base import Backend, FileKey, Kept, Path
from smb3server.files.recycling import Emptied, Recycling, problem
from smb3server.process.words import amount
from smb3server.server.server import Server
from smb3server.state import file_events
from smb3server.state.share import Share

log = logging.getLogger(__name__)

EVERY = 900.0
"""Seconds between two looks."""
_AT_ONCE = 16
"""Files that are removed in one turn of the event loop."""
_PAUSE = 0.01
"""Seconds that the event loop has for clients after that, and the thread after each step."""
MOST = 20_000
"""Files that one look takes note of, as their paths take memory. If there are more, the folder is looked at again."""
_EMPTY_FOR = 86400 * 10**9
"""Nanoseconds after which an empty folder is removed."""
_OWNER = "recycle folders"
"""Whose turn the thread takes (``LongWork``)."""


@dataclass(slots=True)
class _Look:
    """What one look at a recycle folder has found. A thread fills it."""

    rules: Recycling
    now: int
    """Nanoseconds since 1970."""
    over: dict[Path, int] = field(default_factory=dict)
    """Bytes that are to be freed in the folders of users who have too much."""
    files: int = 0
    sizes: Counter[Path] = field(default_factory=Counter)
    """Bytes of each user."""
    old: list[Kept] = field(default_factory=list)
    """Old files, and empty folders."""
    more: bool = False
    """Whether something was left out, as there was too much."""
    _oldest: dict[Path, list[tuple[int, int, Kept]]] = field(default_factory=dict)
    """Files of users who have too much, as heaps with the youngest first."""
    _bytes: Counter[Path] = field(default_factory=Counter)
    """Bytes of the files in ``_oldest``."""
    _noted: int = 0

    def add(self, kept: Kept) -> None:
        user = self.rules.user_of(kept.path)
        if user is None:
            return
        if kept.is_folder:
            if self.now - kept.since >= _EMPTY_FOR:
                self._note_old(kept)
            return
        self.files += 1
        self.sizes[user] += kept.size
        if user in self.over:
            self._note_oldest(user, kept)
        elif not self.over and self.rules.is_old(kept.since, self.now):
            self._note_old(kept)

    def _note_old(self, kept: Kept) -> None:
        if len(self.old) < MOST:
            self.old.append(kept)
        else:
            self.more = True

    def _note_oldest(self, user: Path, kept: Kept) -> None:
        """Keep the oldest files of a user whose bytes are enough."""
        heap = self._oldest.setdefault(user, [])
        heapq.heappush(heap, (-kept.since, self.files, kept))
        self._bytes[user] += kept.size
        self._noted += 1
        while heap and self._bytes[user] - heap[0][2].size >= self.over[user]:
            self._drop(user)
        if self._noted > MOST:
            self.more = True
            self._drop(max(self._oldest, key=lambda entry: len(self._oldest[entry])))

    def _drop(self, user: Path) -> None:
        self._bytes[user] -= heapq.heappop(self._oldest[user])[2].size
        self._noted -= 1

    def oldest(self) -> list[Kept]:
        """Return what is to be removed for room, the oldest first."""
        found = [entry for heap in self._oldest.values() for entry in heap]
        return [kept for _, _, kept in sorted(found, key=lambda entry: (-entry[0], entry[1]))]


def excess(sizes: Counter[Path], most: int) -> dict[Path, int]:
    """Return how many bytes each user has too much, if all together may have ``most``.

    Those who have most give first: so nobody's files go because another user deletes many."""
    too_much = sum(sizes.values()) - most
    if too_much <= 0:
        return {}
    ordered = sorted(sizes.values(), reverse=True)
    level, above = 0, 0
    for count, size in enumerate(ordered, 1):
        above += size
        next_size = ordered[count] if count < len(ordered) else 0
        level = (above - too_much) // count
        if level >= next_size:
            break
    return {user: size - level for user, size in sizes.items() if size > level}


class RecycleFolders:
    """The job of one server. Call ``run`` as a task, and cancel it at the end."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def run(self) -> None:
        """Empty the folders of all shares again and again."""
        while True:
            for share in list(self._server.share_list.values()):
                if self._concerns(share):
                    try:
                        await self.empty(share)
                    except OSError as error:
                        log.warning("share %s: not emptied: %s", share.name, problem(error))
                    except Exception:
                        # A defect must not end the job for all shares.
                        log.exception("share %s: its recycle folder is not emptied", share.name)
            await asyncio.sleep(EVERY)

    def _concerns(self, share: Share) -> bool:
        """Return whether the share's recycle folder is to be emptied, and by this node."""
        rules = share.recycling
        if rules is None or not rules.is_emptied or share.backend is None or share.read_only:
            return False
        if self._server.share_list.get(share.name.casefold()) is not share or self._server.has_lost(share):
            return False
        return share.placement is None or share.placement.owned

    async def empty(self, share: Share) -> None:
        """Remove from a share's recycle folder what is too old or too much. Raises ``OSError``."""
        totals = {"age": Emptied(), "room": Emptied()}
        try:
            while await self._empty_once(share, totals):
                pass
        finally:
            removed = [
                f"{found.removed_files} files ({amount(found.removed_bytes)}) {why}"
                for found, why in ((totals["age"], "by age"), (totals["room"], "for room"))
                if found.removed_files
            ]
            if removed:
                log.info("share %s: recycle folder: removed %s", share.name, ", ".join(removed))

    async def _empty_once(self, share: Share, totals: dict[str, Emptied]) -> bool:
        """Look at the folder and remove what was found. Return whether to do so again."""
        rules, backend = share.recycling, share.backend
        if rules is None or backend is None or not self._concerns(share):
            return False
        look = await self._look(share, rules, backend, {})
        removed = await self._remove(share, rules, backend, look.old, "age", totals)
        more = look.more
        over = excess(look.sizes - removed, rules.max_total) if rules.max_total else {}
        if over and self._concerns(share):
            again = await self._look(share, rules, backend, over)
            freed = await self._remove(share, rules, backend, again.oldest(), "room", totals)
            removed += freed
            more = more or (again.more and bool(freed))
        kept = share.emptied = share.emptied or Emptied()
        kept.files = look.files - sum(found.files for found in totals.values())
        kept.bytes = (look.sizes - removed).total()
        for found in totals.values():
            found.files = 0
        # Files that clients have open stay, and must not make this go on for ever.
        return more and removed.total() > 0

    async def _look(self, share: Share, rules: Recycling, backend: Backend, over: dict[Path, int]) -> _Look:
        look = _Look(rules, time.time_ns(), over)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finish(error: Exception | None) -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        steps = _gently(backend.list_kept(rules.fixed, look.add))
        job = self._server.long_work.add(_OWNER, steps, finish, self._server.loss_of(share))
        try:
            await done
        except asyncio.CancelledError:
            job.stop()
            raise
        return look

    async def _remove(
        self, share: Share, rules: Recycling, backend: Backend, found: list[Kept], why: str, totals: dict[str, Emptied]
    ) -> Counter[Path]:
        """Remove files and empty folders. Return the bytes of files that were removed, by user."""
        removed: Counter[Path] = Counter()
        for start in range(0, len(found), _AT_ONCE):
            if share.recycling is not rules or share.backend is not backend or not self._concerns(share):
                # The configuration has changed, or another node serves the share.
                break
            emptied: dict[Path, None] = {}
            for kept in found[start : start + _AT_ONCE]:
                if not backend.remove_kept(kept.path, self._is_open, kept.key):
                    continue
                emptied[kept.path[:-1]] = None
                if not kept.is_folder:
                    removed[rules.user_of(kept.path) or ()] += kept.size
                    self._count(share, kept, why, totals[why])
            for folder in emptied:
                self._remove_empty(rules, backend, folder)
            await asyncio.sleep(_PAUSE)
        return removed

    @staticmethod
    def _count(share: Share, kept: Kept, why: str, total: Emptied) -> None:
        all_time = share.emptied = share.emptied or Emptied()
        for entry in (all_time, total):
            entry.removed_files += 1
            entry.removed_bytes += kept.size
        total.files += 1
        file_events.emptied(share, kept.path, why, kept.size)

    def _remove_empty(self, rules: Recycling, backend: Backend, folder: Path) -> None:
        """Remove a folder that may be empty now, and those above it, but not the user's own."""
        while rules.user_of(folder) is not None and backend.remove_kept(folder, self._is_open):
            folder = folder[:-1]

    def _is_open(self, key: FileKey) -> bool:
        """Return whether a client has the file, or one of its streams, open. Disconnected opens count."""
        return bool(self._server.file_table.streams(key))


def _gently(steps: Iterator[None]) -> Iterator[None]:
    """Rest after each step: the thread holds the interpreter while it looks at the entries."""
    for _ in steps:
        yield
        time.sleep(_PAUSE)
