"""Reports changes that other programs make below a local directory, by means of inotify(7).

Each backend has one inotify instance, which the event loop reads. A recursive watch sets one inotify watch on every
directory below, a few per turn of the loop and up to a limit. Changes in directories beyond the limit are not noticed.
When the kernel has lost events, subscribers get a change with action 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator

from smb3server.backends import names
from smb3server.backends.base import Change, FileKey
from smb3server.backends.local import syscalls
from smb3server.backends.local.own_changes import SECONDS, Maker, OwnChanges
from smb3server.backends.local.resolve import Resolver

ACTION_LOST = 0
ACTION_ADDED = 1
ACTION_REMOVED = 2
ACTION_MODIFIED = 3
ACTION_RENAMED_OLD_NAME = 4
ACTION_RENAMED_NEW_NAME = 5

NOTIFY_FILE_NAME = 0x001
NOTIFY_DIR_NAME = 0x002
NOTIFY_DATA = 0x008 | 0x010
"""SIZE and LAST_WRITE."""
NOTIFY_METADATA = 0x004 | 0x010 | 0x020 | 0x040 | 0x080 | 0x100
"""ATTRIBUTES, LAST_WRITE, LAST_ACCESS, CREATION, EA, SECURITY: the kernel does not report which of them changed."""
NOTIFY_ANY = 0xFFF

MAX_WATCHES = 16384
"""inotify watches of one backend."""
_PER_TURN = 64
_READ_BYTES = 65536
_EVENT = struct.Struct("@iIII")
_LONGEST_EVENT = _EVENT.size + 256

_MODIFY, _ATTRIB = 0x2, 0x4
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
_NAMES = MOVED_FROM | MOVED_TO | CREATE | DELETE
_MOVED = MOVED_FROM | MOVED_TO
_OVERFLOW, _IGNORED, _ISDIR = 0x4000, 0x8000, 0x40000000
_ONLYDIR, _EXCL_UNLINK = 0x01000000, 0x04000000
_MASK = _MODIFY | _ATTRIB | _NAMES | _ONLYDIR | _EXCL_UNLINK

_log = logging.getLogger(__name__)


class _Node:
    """A watched directory of one subscription."""

    __slots__ = ("children", "name", "parent", "subscription", "watch")

    def __init__(self, subscription: _Subscription, parent: _Node | None, name: str) -> None:
        self.subscription = subscription
        self.parent = parent
        self.name = name
        self.children: dict[str, _Node] = {}
        # The inotify watch descriptor; -1 means that there is no watch.
        self.watch = -1

    def below(self) -> list[str]:
        """Return the on-disk components from the subscription's directory down to this one."""
        found: list[str] = []
        node = self
        while node.parent is not None:
            found.append(node.name)
            node = node.parent
        found.reverse()
        return found

    def subtree(self) -> Iterator[_Node]:
        """Yield this directory and all watched ones below it."""
        todo = [self]
        while todo:
            node = todo.pop()
            todo.extend(node.children.values())
            yield node


class _Subscription:
    """One call of ``Watcher.subscribe``."""

    def __init__(self, base: Callable[[], list[str]], recursive: bool, on_change: Callable[[Change], None]) -> None:
        self.base = base
        self.recursive = recursive
        self.on_change = on_change
        self.root = _Node(self, None, "")
        self.active = True


class Watcher:
    """The inotify instance of one backend. It belongs to the event loop in which ``subscribe`` is first called."""

    def __init__(self, resolver: Resolver, own: OwnChanges, max_watches: int = MAX_WATCHES) -> None:
        self._resolver = resolver
        self._own = own
        # Invariant: ``_places`` and ``_nodes`` have the same inotify watches as keys while the instance is open.
        self._places: dict[int, FileKey] = {}
        self._max_watches = max_watches
        self._descriptor = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        # Subscriptions to one directory share its watch. Invariant: no list is empty.
        self._nodes: dict[int, list[_Node]] = {}
        # Directories whose subdirectories are still to be watched, and whether their entries are reported as new.
        self._todo: deque[tuple[_Node, bool]] = deque()
        # Whether ``_walk`` is scheduled.
        self._walking = False
        # Whether a failed watch was logged. It is logged once.
        self._full = False

    def subscribe(
        self, base: Callable[[], list[str]], recursive: bool, on_change: Callable[[Change], None]
    ) -> Callable[[], None] | None:
        """Report changes below a directory by calling ``on_change``. Return the function that ends this.

        ``base`` returns the directory's present on-disk components, or raises ``FileNotFoundError`` if it is gone.
        ``recursive``: also report changes in directories below. None is returned outside an event loop, and if the
        kernel refuses a watch.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return None
        if self._descriptor < 0:
            try:
                self._descriptor = syscalls.inotify_init()
            except OSError as error:
                _log.warning("changes by other programs are not noticed: %s", error)
                return None
            self._loop = loop
            self._own.notice(self._settle_later)
            loop.add_reader(self._descriptor, self._on_readable)
        subscription = _Subscription(base, recursive, on_change)
        if not self._add(subscription.root):
            return None
        if recursive:
            self._walk_later(subscription.root, False)
        return lambda: self._unsubscribe(subscription)

    def close(self) -> None:
        """End all subscriptions and close the inotify instance."""
        self._todo.clear()
        self._nodes.clear()
        self._own.notice(None)
        if self._descriptor >= 0:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _unsubscribe(self, subscription: _Subscription) -> None:
        subscription.active = False
        self._drop(subscription.root)

    # -- watches

    def _open(self, node: _Node) -> int:
        return self._resolver.open_exact(node.subscription.base() + node.below())

    def _add(self, node: _Node) -> bool:
        if len(self._nodes) >= self._max_watches:
            self._complain("limit of this server")
            return False
        try:
            descriptor = self._open(node)
        except OSError:
            return False
        try:
            stat = syscalls.statx(descriptor)
            watch = syscalls.inotify_add(self._descriptor, b"/proc/self/fd/%d" % descriptor, _MASK)
        except OSError as error:
            self._complain(str(error))
            return False
        finally:
            os.close(descriptor)
        node.watch = watch
        self._places[watch] = FileKey(stat.dev, stat.ino)
        self._nodes.setdefault(watch, []).append(node)
        return True

    def _complain(self, reason: str) -> None:
        if not self._full:
            self._full = True
            _log.warning("changes by other programs in some directories are not noticed: %s", reason)

    def _drop(self, top: _Node) -> None:
        if top.parent is not None:
            top.parent.children.pop(top.name, None)
        for node in top.subtree():
            nodes = self._nodes.get(node.watch)
            if nodes is None or node not in nodes:
                continue
            nodes.remove(node)
            if not nodes:
                del self._nodes[node.watch]
                self._places.pop(node.watch, None)
                # The kernel may have removed the watch with its directory.
                with contextlib.suppress(OSError):
                    syscalls.inotify_remove(self._descriptor, node.watch)
            node.watch = -1

    def _walk_later(self, node: _Node, report: bool) -> None:
        self._todo.append((node, report))
        if not self._walking and self._loop is not None:
            self._walking = True
            self._loop.call_soon(self._walk)

    def _walk(self) -> None:
        """Watch the subdirectories of a few directories. Leave the rest to the next turn of the loop."""
        self._walking = False
        for _ in range(min(_PER_TURN, len(self._todo))):
            node, report = self._todo.popleft()
            if node.subscription.active and node.watch >= 0:
                self._watch_children(node, report)
        if self._todo and self._loop is not None and not self._walking:
            self._walking = True
            self._loop.call_soon(self._walk)

    def _watch_children(self, node: _Node, report: bool) -> None:
        try:
            path = self._open(node)
        except OSError:
            return
        try:
            directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=path)
        except OSError:
            return
        finally:
            os.close(path)
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if self._resolver.excludes(entry.name):
                        continue
                    if report:
                        self._report(node, ACTION_ADDED, entry.name, is_directory)
                    if is_directory:
                        self._watch_child(node, entry.name, report)
        finally:
            os.close(directory)

    def _watch_child(self, node: _Node, name: str, report: bool) -> None:
        if not node.subscription.recursive or name in node.children:
            return
        child = _Node(node.subscription, node, name)
        node.children[name] = child
        if self._add(child):
            self._walk_later(child, report)
        else:
            del node.children[name]

    # -- events

    def _settle_later(self) -> None:
        # A worker thread may have made the change.
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.call_later, SECONDS, self._settle)

    def _settle(self) -> None:
        """Let the server's own changes of a while ago be forgotten, after reading the events that they have caused.

        These may still be unread if the loop was held up."""
        if self._descriptor < 0:
            return
        now = time.monotonic()
        while self._on_readable():
            pass
        self._own.settle(now)

    def _on_readable(self) -> bool:
        """Handle a batch of events. Return whether there may be more by now."""
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        events = list(_events(data))
        places = {(cookie, mask & _MOVED): watch for watch, mask, cookie, _ in events if mask & _MOVED}
        for watch, mask, cookie, name in events:
            if mask & _OVERFLOW:
                self._lost()
            elif mask & _IGNORED:
                self._places.pop(watch, None)
                for node in self._nodes.pop(watch, ()):
                    node.watch = -1
            elif name and not self._resolver.excludes(name):
                # The kernel reports a rename as two adjacent events. If both are in one directory it is a rename,
                # otherwise a removal and an addition.
                within = bool(mask & _MOVED) and places.get((cookie, mask & _MOVED ^ _MOVED)) == watch
                nodes = list(self._nodes.get(watch, ()))
                if nodes:
                    maker = self._maker(nodes[0], watch, mask, name)
                    for node in nodes:
                        self._handle(node, mask, name, within, maker)
        return len(data) > _READ_BYTES - _LONGEST_EVENT

    def _maker(self, node: _Node, watch: int, mask: int, name: str) -> Maker:
        if mask & _NAMES:
            return self._own.maker_of_name(self._places[watch], name, mask & _NAMES)
        try:
            directory = self._open(node)
        except OSError:
            return Maker.HOST
        try:
            stat = syscalls.statx_at(directory, os.fsencode(name))
        except OSError:
            # The file is gone. Its removal is an event of its own.
            return Maker.BACKEND
        finally:
            os.close(directory)
        return self._own.maker_of_data(FileKey(stat.dev, stat.ino))

    def _handle(self, node: _Node, mask: int, name: str, within: bool, maker: Maker) -> None:
        if maker is Maker.BACKEND:
            # There is nothing to report, but the tree of watches has to follow the change.
            if mask & (DELETE | MOVED_FROM) and name in node.children:
                self._drop(node.children[name])
            elif mask & _ISDIR and mask & (CREATE | MOVED_TO):
                self._watch_child(node, name, False)
            return
        is_directory = bool(mask & _ISDIR)
        if mask & CREATE:
            self._report(node, ACTION_ADDED, name, is_directory, maker)
            if is_directory:
                self._watch_child(node, name, True)
        elif mask & (DELETE | MOVED_FROM):
            self._report(node, ACTION_RENAMED_OLD_NAME if within else ACTION_REMOVED, name, is_directory, maker)
            child = node.children.get(name)
            if child is not None:
                self._drop(child)
        elif mask & MOVED_TO:
            self._report(node, ACTION_RENAMED_NEW_NAME if within else ACTION_ADDED, name, is_directory, maker)
            if is_directory:
                self._watch_child(node, name, False)
        elif mask & _MODIFY:
            self._emit(node, ACTION_MODIFIED, name, NOTIFY_DATA, maker)
        elif mask & _ATTRIB:
            self._emit(node, ACTION_MODIFIED, name, NOTIFY_METADATA, maker)

    def _report(self, node: _Node, action: int, name: str, is_directory: bool, maker: Maker = Maker.HOST) -> None:
        self._emit(node, action, name, NOTIFY_DIR_NAME if is_directory else NOTIFY_FILE_NAME, maker)

    def _emit(self, node: _Node, action: int, name: str | None, which: int, maker: Maker = Maker.HOST) -> None:
        subscription = node.subscription
        if not subscription.active:
            return
        try:
            components = subscription.base() + node.below()
        except OSError:
            return
        if name is not None:
            components.append(name)
        subscription.on_change(Change(action, tuple(map(names.to_wire, components)), which, maker is Maker.SERVER))

    def _lost(self) -> None:
        for subscription in {node.subscription for nodes in self._nodes.values() for node in nodes}:
            self._emit(subscription.root, ACTION_LOST, None, NOTIFY_ANY)


def _events(data: bytes) -> Iterator[tuple[int, int, int, str]]:
    """Yield (watch, mask, cookie, on-disk name) of each event in ``data``."""
    offset = 0
    while offset + _EVENT.size <= len(data):
        watch, mask, cookie, length = _EVENT.unpack_from(data, offset)
        offset += _EVENT.size
        yield watch, mask, cookie, os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
        offset += length
