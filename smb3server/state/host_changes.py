"""Breaking caching rights when programs of the host change files, as far as the store reports such changes.

A directory is watched while a client caches a file in it, or has a lease on the directory itself. There is one watch
per directory. An unused watch is kept for a while, because setting one up for every open would be slow.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from smb3server.backends.base import Backend, Change, FileKey, Handle, OpenRequest, Path
from smb3server.backends.name_rules import NameRules
from smb3server.files.file import File, FileTable
from smb3server.files.notify import LOST
from smb3server.state.objects import Open
from smb3server.wire.change_notify import Action

log = logging.getLogger(__name__)

MAX_IDLE = 32
"""Unused watches that are kept."""


@dataclass(slots=True, eq=False)
class _Watch:
    """The watch of one directory. ``files``: those in it that clients cache, and the directory if it has a lease."""

    backend: Backend
    key: FileKey
    handle: Handle
    files: set[File[Open]] = field(default_factory=set)
    stop: Callable[[], None] | None = None

    def close(self) -> None:
        if self.stop is not None:
            self.stop()
        try:
            self.handle.close()
        except OSError as error:
            log.info("watched directory: %s", error)


class HostChanges:
    """The watches of a server, and the breaks that follow from the changes they report."""

    def __init__(self, table: FileTable[Open]) -> None:
        self._table = table
        self._watches: OrderedDict[FileKey, _Watch] = OrderedDict()
        """By directory, the least recently used first."""

    def cover(self, opened: Open) -> None:
        """Break the caching rights of the file of ``opened``, which has just been granted some, on host changes."""
        file, backend, handle = opened.file, opened.store, opened.handle
        if file is None or backend is None or handle is None or file.stream or file.unwatch is not None:
            return
        if backend.is_snapshot:
            return
        try:
            path = handle.path
            watch = self._watch(backend, path if opened.is_directory else path[:-1])
        except OSError as error:
            log.info("host changes to %s are not noticed: %s", "/".join(opened.path), error)
            return
        if watch.stop is not None:
            watch.files.add(file)
            file.unwatch = lambda: self._unwatch(watch, file)

    def close(self) -> None:
        """End all watches."""
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    def leave(self, backend: Backend) -> None:
        """End all watches in a store that is no longer used."""
        for watch in [watch for watch in self._watches.values() if watch.backend is backend]:
            del self._watches[watch.key]
            watch.close()

    def __len__(self) -> int:
        return len(self._watches)

    def _watch(self, backend: Backend, path: Path) -> _Watch:
        found = self._watches.get(backend.stat(path).key)
        if found is not None:
            self._watches.move_to_end(found.key)
            return found
        handle = backend.open(OpenRequest(path, directory=True))
        watch = _Watch(backend, handle.key, handle)
        watch.stop = backend.watch(handle, False, lambda change: self._changed(watch, change))
        if watch.stop is None:
            watch.close()
        else:
            self._watches[watch.key] = watch
        return watch

    def _unwatch(self, watch: _Watch, file: File[Open]) -> None:
        file.unwatch = None
        watch.files.discard(file)
        idle = [entry for entry in self._watches.values() if not entry.files]
        for entry in idle[: max(0, len(idle) - MAX_IDLE)]:
            del self._watches[entry.key]
            entry.close()

    def _changed(self, watch: _Watch, change: Change) -> None:
        if change.by_server:
            # The request that made it has broken what it breaks.
            return
        directory = self._table.find(watch.key)
        if directory is not None:
            directory.break_directory_leases()
        rules, name = watch.backend.name_rules, change.path[-1:]
        for file in tuple(watch.files):
            if file is not directory and (change.action == LOST or _is_at(file, rules, name)):
                # If the file was removed or replaced, cached handles refer to the wrong file. Otherwise only cached
                # data is stale.
                file.data_changes(None)
                if change.action != Action.MODIFIED:
                    file.caching.break_handles(None)


def _is_at(file: File[Open], rules: NameRules, name: Path) -> bool:
    for opened in file.opens:
        if opened.handle is not None:
            try:
                return rules.same(opened.handle.path[-1:], name)
            except OSError:
                return True
    return False
