"""Snapshots of a share: which there are, and a read-only store for each that is in use.

Where they come from is behind ``SnapshotSource``. A store is opened when the first file in it is opened, and closed a
while after the last one was closed, so that a snapshot that nobody uses can be removed or unmounted.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from smb3server.backends.base import Backend

log = logging.getLogger(__name__)

IDLE = 5.0
"""Seconds for which the store of a snapshot stays open after its last use."""
MAX_STORES = 32
"""Most snapshots of one share in use at a time. Each takes a few descriptors."""


class SnapshotSource(Protocol):
    """Knows the snapshots of one share."""

    def find(self) -> Mapping[int, str]:
        """Return the folders that are the share's in its snapshots, by the snapshots' times in seconds since 1970.

        A folder need not exist: a snapshot may be older than it. Raises ``OSError``."""
        ...


@dataclass(slots=True, eq=False)
class _Kept:
    """The store of a snapshot."""

    store: Backend
    path: str
    identity: tuple[int, int]
    """Device and inode number of its root."""
    users: int = 0
    idle_since: float = 0.0


class Snapshots:
    """The snapshots of one share."""

    def __init__(self, source: SnapshotSource, make: Callable[[str], Backend]) -> None:
        """``make`` opens the store of a folder, for reading alone. It may raise ``OSError``."""
        self._source = source
        self._make = make
        self._known: Mapping[int, str] = {}
        # Invariant: a store is here from its opening to its closing, unless its snapshot was replaced meanwhile.
        self._kept: dict[str, _Kept] = {}
        self._gone: list[_Kept] = []
        """Stores in use whose snapshots do not exist any longer."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._kept) + len(self._gone)

    def times(self) -> list[int]:
        """Return the times of the snapshots that there are now, the newest first, in seconds since 1970."""
        self._refresh()
        return sorted(self._known, reverse=True)

    def _refresh(self) -> None:
        try:
            self._known = self._source.find()
        except OSError as error:
            log.warning("snapshots are not found: %s: %s", error.filename, error.strerror)
            self._known = {}

    def hold(self, seconds: int) -> Backend:
        """Return the store of a snapshot, to be given back by ``release``.

        Raises ``FileNotFoundError`` if there is no such snapshot or the share had no folder then, other ``OSError``s,
        and ENFILE if too many snapshots are in use."""
        if seconds not in self._known:
            self._refresh()
        path = self._known.get(seconds)
        if path is None or self._closed:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        kept = self._present(path)
        if kept is None:
            kept = self._open(path)
        kept.users += 1
        return kept.store

    def _present(self, path: str) -> _Kept | None:
        """Return the open store of a folder, if it is still the folder of this path."""
        kept = self._kept.get(path)
        if kept is None:
            return None
        try:
            found = os.stat(path, follow_symlinks=False)
        except OSError:
            found = None
        if found is not None and (found.st_dev, found.st_ino) == kept.identity:
            return kept
        del self._kept[path]
        if kept.users:
            self._gone.append(kept)
        else:
            kept.store.close()
        return None

    def _open(self, path: str) -> _Kept:
        if len(self) >= MAX_STORES:
            self._close_idle(0.0)
        if len(self) >= MAX_STORES:
            raise OSError(errno.ENFILE, "too many snapshots are in use")
        store = self._make(path)
        try:
            found = os.stat(path, follow_symlinks=False)
        except OSError:
            store.close()
            raise
        kept = self._kept[path] = _Kept(store, path, (found.st_dev, found.st_ino))
        log.debug("snapshot %s opened", path)
        return kept

    def release(self, store: Backend) -> None:
        """Give back a store."""
        kept = next(entry for entry in (*self._kept.values(), *self._gone) if entry.store is store)
        kept.users -= 1
        if kept.users:
            return
        kept.idle_since = time.monotonic()
        if self._closed or kept in self._gone:
            self._close(kept)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        self._close_idle(IDLE)
        idle = [kept.idle_since for kept in self._kept.values() if not kept.users]
        if idle:
            left = min(idle) + IDLE - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(left, 0.0), self._sweep)

    def _close_idle(self, seconds: float) -> None:
        now = time.monotonic()
        for kept in list(self._kept.values()):
            if not kept.users and now - kept.idle_since >= seconds:
                self._close(kept)

    def _close(self, kept: _Kept) -> None:
        if kept in self._gone:
            self._gone.remove(kept)
        elif self._kept.get(kept.path) is kept:
            del self._kept[kept.path]
        kept.store.close()
        log.debug("snapshot %s closed", kept.path)

    def close(self) -> None:
        """Close all stores, those in use when they are given back. There are no snapshots from now on."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._close_idle(0.0)
