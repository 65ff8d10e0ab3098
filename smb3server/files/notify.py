"""Change notification: the watchers of directories and the changes they have not reported yet. [MS-SMB2 3.3.5.19,
MS-FSA 2.1.5.11]

Changes are reported to the ``NotifyHub`` of the share. CHANGE_NOTIFY requests wait in the ``Watcher`` of their open
directory, which the first of them creates. Everything runs on the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from smb3server.backends.name_rules import WINDOWS, Key
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
    from smb3server.backends.base import Backend, Change, Path

AT_ONCE = 32
"""Number of watchers notified in one turn of the event loop."""
MAX_LATER = 16384
"""Limit of the notifications that wait for a later turn."""
LOST = 0
"""Action of a store's ``Change`` that stands for any number of lost changes."""


_MODIFICATIONS = (Action.MODIFIED, Action.MODIFIED_STREAM)


Answer = Callable[[int, bytes], None]
"""Called once, with the status (NtStatus) and the output buffer of the response."""


class Waiting:
    """A CHANGE_NOTIFY request that is not answered yet."""

    __slots__ = ("answer", "limit")

    def __init__(self, answer: Answer, limit: int) -> None:
        self.answer = answer
        self.limit = limit
        """Maximum output in bytes."""


class Watcher:
    """The watch of one open on its directory. Filter, depth and buffer size are those of its first request; later
    requests cannot change them. [MS-FSA 2.1.5.11]"""

    def __init__(self, hub: NotifyHub, path: Path, completion_filter: int, recursive: bool, limit: int) -> None:
        self.hub = hub
        self.path = path
        self.key = hub.key(path)
        self.completion_filter = completion_filter
        self.recursive = recursive
        self.limit = limit
        """Bytes of changes kept between requests; more is an overflow. The specification leaves the value to the
        server."""
        self.stop_backend: Callable[[], None] | None = None
        """Ends the reports of the store. None if the store does not report."""
        self.echoes = EchoFilter(time.monotonic)
        # Invariant: _size is the encoded size of _queue in bytes, and at most limit after each call.
        # Invariant: while _overflow is true, _queue is empty.
        self._queue: list[Notification] = []
        self._size = 0
        self._overflow = False
        """Changes were dropped: the next answer is NOTIFY_ENUM_DIR."""
        self._waiting: deque[Waiting] = deque()
        self._final: int | None = None
        """The status of all further requests, once the watcher has ended."""

    def wait(self, answer: Answer, limit: int) -> Waiting:
        """Queue a request that takes up to ``limit`` bytes. If changes are queued, answer it immediately."""
        waiting = Waiting(answer, limit)
        if self._final is not None:
            answer(self._final, b"")
        else:
            self._waiting.append(waiting)
            self._flush()
        return waiting

    def forget(self, waiting: Waiting) -> None:
        """Remove a request that was cancelled, without an answer. Later changes are kept for the next request."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)

    def add(self, notifications: Sequence[Notification]) -> None:
        """Queue a group of notifications, which is sent in one answer if it fits.

        A modification equal to the last queued notification is not repeated."""
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
        """Note a change by the server, so that the store's report of it is ignored."""
        if self.stop_backend is not None:
            self.echoes.own(key, action)

    def end(self, status: int) -> None:
        """End the watch and answer its waiting requests with ``status``. Do nothing if it has ended before.

        ``status`` is NOTIFY_CLEANUP for a close and DELETE_PENDING for a deletion of the directory."""
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
        """Report that changes were lost, so that the client must list the directory again."""
        if self._final is None:
            self._overflow = True
            self._queue.clear()
            self._size = 0
            self._flush()

    def _flush(self) -> None:
        while self._waiting and (self._queue or self._overflow):
            waiting = self._waiting.popleft()
            # The padding of the last entry is not sent.
            output = b"" if self._overflow else encode_notifications(self._queue)
            self._queue.clear()
            self._size = 0
            if self._overflow or len(output) > waiting.limit:
                self._overflow = False
                waiting.answer(NtStatus.NOTIFY_ENUM_DIR, b"")
            else:
                waiting.answer(NtStatus.SUCCESS, output)


class _News(NamedTuple):
    """A change that the server made, as one watcher sees it."""

    watcher: Watcher
    own: Sequence[tuple[Key, int]]
    """Paths and actions of the change."""
    notifications: Sequence[Notification]
    """Empty if the watcher's filter excludes them."""

    def notify(self) -> None:
        for key, action in self.own:
            self.watcher.own_change(key, action)
        if self.notifications:
            self.watcher.add(self.notifications)


class NotifyHub:
    """The watchers of one share, by directory."""

    def __init__(self) -> None:
        self.store: Backend | None = None
        """The store whose names they watch."""
        self._rules = WINDOWS
        # Invariant: the keys are those of _rules.
        self._watchers: dict[Key, list[Watcher]] = {}
        self._later: deque[_News] = deque()
        """Notifications for later turns, oldest first, as very many opens may watch one directory."""
        # Invariant: while _later is not empty, a call of _notify_later is scheduled.

    def _notify(self, news: list[_News]) -> None:
        """Notify ``AT_ONCE`` watchers now, and the others in later turns of the event loop."""
        if not self._later:
            for entry in news[:AT_ONCE]:
                call_apart(entry.notify)
            news = news[AT_ONCE:]
            if not news:
                return
            asyncio.get_running_loop().call_soon(self._notify_later)
        self._later.extend(news)
        if len(self._later) > MAX_LATER:
            # Too many changes to report one by one: the clients have to list their directories again.
            behind = {entry.watcher: None for entry in self._later}
            self._later.clear()
            for watcher in behind:
                call_apart(watcher.lost)

    def _notify_later(self) -> None:
        for _ in range(min(AT_ONCE, len(self._later))):
            call_apart(self._later.popleft().notify)
        if self._later:
            asyncio.get_running_loop().call_soon(self._notify_later)

    def key(self, path: Path) -> Key:
        """Return the key of a path by the rules that the store has now."""
        if self.store is not None and self.store.name_rules is not self._rules:
            self._rules = self.store.name_rules
            watchers = [watcher for found in self._watchers.values() for watcher in found]
            self._watchers.clear()
            for watcher in watchers:
                watcher.key = self._rules.path_key(watcher.path)
                self._watchers.setdefault(watcher.key, []).append(watcher)
        return self._rules.path_key(path)

    def __len__(self) -> int:
        return sum(len(watchers) for watchers in self._watchers.values())

    def __bool__(self) -> bool:
        return bool(self._watchers)

    def watch(self, path: Path, completion_filter: int, recursive: bool, limit: int) -> Watcher:
        """Return a new watcher of the directory ``path``. ``limit``: bytes of changes that it keeps."""
        watcher = Watcher(self, path, completion_filter, recursive, limit)
        self._watchers.setdefault(watcher.key, []).append(watcher)
        return watcher

    def remove(self, watcher: Watcher) -> None:
        """Remove a watcher. Do nothing if it is not there."""
        watchers = self._watchers.get(watcher.key)
        if watchers is not None and watcher in watchers:
            watchers.remove(watcher)
            if not watchers:
                del self._watchers[watcher.key]

    def _interested(self, path: Path) -> Iterator[tuple[Watcher, int]]:
        """Yield the watchers of the parent directory and the recursive ones of its ancestors, with their depth."""
        key = self.key(path)
        last = len(key) - 1
        for depth in range(len(key)):
            for watcher in tuple(self._watchers.get(key[:depth], ())):
                if depth == last or watcher.recursive:
                    yield watcher, depth

    def report(self, path: Path, action: int, completion_filter: int, stream: str = "") -> None:
        """Report a change of ``path`` by the server to its watchers.

        Watchers whose filter has a bit in common with ``completion_filter`` are notified. ``stream`` is the name of a
        stream of the file, if one was changed."""
        if not self._watchers:
            return
        own = ((self.key(path), action),)
        by_depth: dict[int, list[Notification]] = {}
        news: list[_News] = []
        for watcher, depth in self._interested(path):
            if depth not in by_depth:
                by_depth[depth] = [Notification(action, relative_name(path, depth, stream))]
            matching = watcher.completion_filter & completion_filter
            news.append(_News(watcher, own, by_depth[depth] if matching else ()))
        if news:
            self._notify(news)

    def report_rename(self, old: Path, new: Path, directory: bool) -> None:
        """Report a rename by the server. [MS-FSA 2.1.5.14.11]

        If the entry stays in its directory, both names are in one answer. Otherwise the old parent gets REMOVED and the
        new one ADDED. Watchers at or below a renamed directory follow it."""
        if not self._watchers:
            return
        kind = NotifyFilter.DIR_NAME if directory else NotifyFilter.FILE_NAME
        if self.key(old[:-1]) == self.key(new[:-1]):
            own = ((self.key(old), Action.RENAMED_OLD_NAME), (self.key(new), Action.RENAMED_NEW_NAME))
            news = []
            for watcher, depth in self._interested(old):
                both = [
                    Notification(Action.RENAMED_OLD_NAME, relative_name(old, depth)),
                    Notification(Action.RENAMED_NEW_NAME, relative_name(new, depth)),
                ]
                news.append(_News(watcher, own, both if watcher.completion_filter & kind else ()))
            if news:
                self._notify(news)
        else:
            self.report(old, Action.REMOVED, kind)
            self.report(new, Action.ADDED, kind)
        if directory:
            self._follow(old, new)
        else:
            # A rename sets FILE_ATTRIBUTE_ARCHIVE: watchers of attributes that do not watch names see this change.
            seen = kind | NotifyFilter.ATTRIBUTES
            modified = [
                _News(watcher, (), [Notification(Action.MODIFIED, relative_name(new, depth))])
                for watcher, depth in self._interested(new)
                if watcher.completion_filter & seen == NotifyFilter.ATTRIBUTES
            ]
            if modified:
                self._notify(modified)

    def _follow(self, old: Path, new: Path) -> None:
        prefix = self.key(old)
        moved = [key for key in self._watchers if key[: len(prefix)] == prefix]
        for watchers in [self._watchers.pop(key) for key in moved]:
            for watcher in watchers:
                watcher.path = new + watcher.path[len(old) :]
                watcher.key = self.key(watcher.path)
                self._watchers.setdefault(watcher.key, []).append(watcher)

    def directory_deleted(self, path: Path) -> None:
        """End the watchers of a directory that is deleted, or is to be, with DELETE_PENDING."""
        for watcher in tuple(self._watchers.get(self.key(path), ())):
            call_apart(watcher.end, NtStatus.DELETE_PENDING)


def relative_name(path: Path, depth: int, stream: str = "") -> str:
    """Return the name of ``path`` relative to its ancestor at ``depth``."""
    name = "\\".join(path[depth:])
    return f"{name}:{stream}" if stream else name


def from_backend(watcher: Watcher, open_here: Callable[[Path], bool]) -> Callable[[Change], None]:
    """Return a callback for ``Backend.watch`` that reports changes by programs of the host to ``watcher``.

    ``open_here`` returns whether a client of this server may be writing to a file. Then the server reports its
    modifications itself."""

    def on_change(change: Change) -> None:
        if change.action == LOST:
            watcher.lost()
            return
        if not watcher.completion_filter & change.filter:
            return
        depth = len(watcher.path)
        if len(change.path) <= depth or watcher.echoes.is_echo(watcher.hub.key(change.path), change.action):
            return
        if change.action == Action.MODIFIED and open_here(change.path):
            return
        watcher.add([Notification(change.action, relative_name(change.path, depth))])

    return on_change
