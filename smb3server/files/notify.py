"""Change notification (MS-SMB2 3.3.5.19, MS-FSA 2.1.5.11): who watches what, and what they have yet to be told.

Each share has a ``NotifyHub``, which is told of changes; CHANGE_NOTIFY requests wait in a ``Watcher``, one per open
directory, made by the first of them. All on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from smb3server.files.echo_filter import EchoFilter
from smb3server.process.turns import call_apart
from smb3server.wire.change_notify import (
    Action,
    Notification,
    NotifyFilter,
    encode_notifications,
    encoded_notification_size,
)
from smb3server.wire.status import NtStatus

if TYPE_CHECKING:
    from smb3server.backends.base import Change, Path

Key = tuple[str, ...]
AT_ONCE = 32
"""Watchers that are told of a change before others get their turn."""
MAX_LATER = 16384
"""Notifications that wait to be told."""
LOST = 0
"""Action of a store's ``Change`` that stands for any number of others."""


_MODIFICATIONS = (Action.MODIFIED, Action.MODIFIED_STREAM)


def fold(path: Path) -> Key:
    return tuple(part.casefold() for part in path)


Answer = Callable[[int, bytes], None]
"""Called once, with the status (NtStatus) and the output buffer of the answer."""


class Waiting:
    """A request that has no answer yet."""

    __slots__ = ("answer", "limit")

    def __init__(self, answer: Answer, limit: int) -> None:
        self.answer = answer
        self.limit = limit
        """Bytes of output that it takes."""


class Watcher:
    """What one open has asked to be told. Filter, depth and buffer size are those of its first request: later ones
    cannot change them (MS-FSA 2.1.5.11)."""

    def __init__(self, hub: NotifyHub, path: Path, completion_filter: int, recursive: bool, limit: int) -> None:
        self.hub = hub
        self.path = path
        self.key = fold(path)
        self.completion_filter = completion_filter
        self.recursive = recursive
        self.limit = limit
        """Bytes of changes kept between requests; more is an overflow (not in spec: its value is up to the server)."""
        self.stop_backend: Callable[[], None] | None = None
        """Set while the store tells of changes, too."""
        self.echoes = EchoFilter(time.monotonic)
        self._queue: list[Notification] = []
        self._size = 0
        self._overflow = False
        self._waiting: deque[Waiting] = deque()
        self._final: int | None = None

    def wait(self, answer: Answer, limit: int) -> Waiting:
        """Queue a request that takes ``limit`` bytes. It is answered at once if something has happened before."""
        waiting = Waiting(answer, limit)
        if self._final is not None:
            answer(self._final, b"")
        else:
            self._waiting.append(waiting)
            self._flush()
        return waiting

    def forget(self, waiting: Waiting) -> None:
        """Keep what happens from now on for the next request: this one was cancelled, and is not answered."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)

    def add(self, notifications: Sequence[Notification]) -> None:
        """Something happened; the group is told in one answer where it fits. A file that is said to be modified and has
        not been looked at since is not said to be modified again."""
        if self._final is not None or self._overflow:
            return
        for notification in notifications:
            if self._queue and notification == self._queue[-1] and notification.action in _MODIFICATIONS:
                continue
            self._size += encoded_notification_size(notification.name)
            self._queue.append(notification)
        if self._size > self.limit:
            self._overflow = True
            self._queue.clear()
            self._size = 0
        self._flush()

    def own_change(self, key: Key, action: int) -> None:
        """The server did it: what the store will tell of it is no news."""
        if self.stop_backend is not None:
            self.echoes.own(key, action)

    def end(self, status: int) -> None:
        """No more to come: close (NOTIFY_CLEANUP) or deletion (DELETE_PENDING). Answers what waits. Idempotent."""
        if self._final is not None:
            return
        self._final = status
        self.hub.remove(self)
        if self.stop_backend is not None:
            self.stop_backend()
            self.stop_backend = None
        self._queue.clear()
        while self._waiting:
            self._waiting.popleft().answer(status, b"")

    def lost(self) -> None:
        """Something happened that nobody can tell: the client must look for itself."""
        if self._final is None:
            self._overflow = True
            self._queue.clear()
            self._size = 0
            self._flush()

    def _flush(self) -> None:
        while self._waiting and (self._queue or self._overflow):
            waiting = self._waiting.popleft()
            # The last entry's padding is not sent.
            output = b"" if self._overflow else encode_notifications(self._queue)
            self._queue.clear()
            self._size = 0
            if self._overflow or len(output) > waiting.limit:
                self._overflow = False
                waiting.answer(NtStatus.NOTIFY_ENUM_DIR, b"")
            else:
                waiting.answer(NtStatus.SUCCESS, output)


class _News(NamedTuple):
    """What one watcher is told of a change that the server made."""

    watcher: Watcher
    own: Sequence[tuple[Key, int]]
    """Paths and actions."""
    notifications: Sequence[Notification]
    """Empty if it did not ask for such."""

    def tell(self) -> None:
        for key, action in self.own:
            self.watcher.own_change(key, action)
        if self.notifications:
            self.watcher.add(self.notifications)


class NotifyHub:
    """The watchers of one share, by directory."""

    def __init__(self) -> None:
        self._watchers: dict[Key, list[Watcher]] = {}
        self._later: deque[_News] = deque()
        """What is still to be told, in its order: very many may watch one directory."""

    def _tell(self, news: list[_News]) -> None:
        """``AT_ONCE`` watchers now, the others in the turns of the event loop to come."""
        if not self._later:
            for entry in news[:AT_ONCE]:
                call_apart(entry.tell)
            news = news[AT_ONCE:]
            if not news:
                return
            asyncio.get_running_loop().call_soon(self._tell_on)
        self._later.extend(news)
        if len(self._later) > MAX_LATER:
            # More happens than can be told: whoever is behind has to look for itself.
            behind = {entry.watcher: None for entry in self._later}
            self._later.clear()
            for watcher in behind:
                call_apart(watcher.lost)

    def _tell_on(self) -> None:
        for _ in range(min(AT_ONCE, len(self._later))):
            call_apart(self._later.popleft().tell)
        if self._later:
            asyncio.get_running_loop().call_soon(self._tell_on)

    def __len__(self) -> int:
        return sum(len(watchers) for watchers in self._watchers.values())

    def __bool__(self) -> bool:
        return bool(self._watchers)

    def watch(self, path: Path, completion_filter: int, recursive: bool, limit: int) -> Watcher:
        watcher = Watcher(self, path, completion_filter, recursive, limit)
        self._watchers.setdefault(watcher.key, []).append(watcher)
        return watcher

    def remove(self, watcher: Watcher) -> None:
        watchers = self._watchers.get(watcher.key)
        if watchers is not None and watcher in watchers:
            watchers.remove(watcher)
            if not watchers:
                del self._watchers[watcher.key]

    def _interested(self, path: Path) -> Iterator[tuple[Watcher, int]]:
        """Watchers of the parent and, recursive ones, of ancestors; with their depth."""
        key = fold(path)
        last = len(key) - 1
        for depth in range(len(key)):
            for watcher in tuple(self._watchers.get(key[:depth], ())):
                if depth == last or watcher.recursive:
                    yield watcher, depth

    def report(self, path: Path, action: int, completion_filter: int, stream: str = "") -> None:
        """``action`` happened to ``path``; it counts as ``completion_filter`` (any bit in common)."""
        if not self._watchers:
            return
        own = ((fold(path), action),)
        by_depth: dict[int, list[Notification]] = {}
        news: list[_News] = []
        for watcher, depth in self._interested(path):
            if depth not in by_depth:
                by_depth[depth] = [Notification(action, relative_name(path, depth, stream))]
            wanted = watcher.completion_filter & completion_filter
            news.append(_News(watcher, own, by_depth[depth] if wanted else ()))
        if news:
            self._tell(news)

    def report_rename(self, old: Path, new: Path, directory: bool) -> None:
        """Both names in one answer where the entry stays in its directory; else REMOVED here and ADDED there
        (MS-FSA 2.1.5.14.11). Watchers at or below a renamed directory follow it."""
        if not self._watchers:
            return
        kind = NotifyFilter.DIR_NAME if directory else NotifyFilter.FILE_NAME
        if fold(old[:-1]) == fold(new[:-1]):
            own = ((fold(old), Action.RENAMED_OLD_NAME), (fold(new), Action.RENAMED_NEW_NAME))
            news = []
            for watcher, depth in self._interested(old):
                both = [
                    Notification(Action.RENAMED_OLD_NAME, relative_name(old, depth)),
                    Notification(Action.RENAMED_NEW_NAME, relative_name(new, depth)),
                ]
                news.append(_News(watcher, own, both if watcher.completion_filter & kind else ()))
            if news:
                self._tell(news)
        else:
            self.report(old, Action.REMOVED, kind)
            self.report(new, Action.ADDED, kind)
        if directory:
            self._follow(old, new)
        else:
            # A rename sets FILE_ATTRIBUTE_ARCHIVE: that is what those see who do not ask for names.
            seen = kind | NotifyFilter.ATTRIBUTES
            modified = [
                _News(watcher, (), [Notification(Action.MODIFIED, relative_name(new, depth))])
                for watcher, depth in self._interested(new)
                if watcher.completion_filter & seen == NotifyFilter.ATTRIBUTES
            ]
            if modified:
                self._tell(modified)

    def _follow(self, old: Path, new: Path) -> None:
        prefix = fold(old)
        moved = [key for key in self._watchers if key[: len(prefix)] == prefix]
        for watchers in [self._watchers.pop(key) for key in moved]:
            for watcher in watchers:
                watcher.path = new + watcher.path[len(old) :]
                watcher.key = fold(watcher.path)
                self._watchers.setdefault(watcher.key, []).append(watcher)

    def directory_deleted(self, path: Path) -> None:
        """The directory is gone or going (delete pending): its watchers end with DELETE_PENDING."""
        for watcher in tuple(self._watchers.get(fold(path), ())):
            call_apart(watcher.end, NtStatus.DELETE_PENDING)


def relative_name(path: Path, depth: int, stream: str = "") -> str:
    name = "\\".join(path[depth:])
    return f"{name}:{stream}" if stream else name


def from_backend(watcher: Watcher, open_here: Callable[[Path], bool]) -> Callable[[Change], None]:
    """Callback for ``Backend.watch``: what happened behind the server, told to this watcher alone. ``open_here``: may a
    client of this server be writing to that file? Then its changes are the server's to report."""

    def on_change(change: Change) -> None:
        if change.action == LOST:
            watcher.lost()
            return
        if not watcher.completion_filter & change.filter:
            return
        depth = len(watcher.path)
        if len(change.path) <= depth or watcher.echoes.is_echo(fold(change.path), change.action):
            return
        if change.action == Action.MODIFIED and open_here(change.path):
            return
        watcher.add([Notification(change.action, relative_name(change.path, depth))])

    return on_change
