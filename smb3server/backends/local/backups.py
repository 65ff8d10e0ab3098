"""Counts what the backups of Macs take: Time Machine keeps each in a sparse bundle, a folder of equally large bands.

A backup has as many bands as its folder has entries, and each counts as full. So nothing is opened but folders, and
those with many bands are read again only if they have changed, and not in every query.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

_SUFFIXES = (".sparsebundle", ".backupbundle")
_BAND_SIZE = re.compile(rb"<key>band-size</key>\s*<integer>(\d{1,12})</integer>")
_PLIST, _BANDS = "Info.plist", "bands"
_MAX_PLIST = 65536
_MANY = 4096
"""Bands that are counted in every query. More are counted on another thread."""
_MANY_BYTES = 65536
"""A folder of this size may have more bands than that."""
_PATIENCE = 10.0
"""Seconds for which the count of more bands is good enough."""
_STEP = 4096
"""Entries of a folder that are counted in one step."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Counted(NamedTuple):
    """What was counted of one bundle."""

    folder: tuple[int, int]
    """Inode number and last change of the folder of its bands."""
    bands: int
    until: float
    """When the count is too old (of ``time.monotonic``)."""


class Backups:
    """The backups in one share."""

    def __init__(self) -> None:
        self._counted: dict[str, _Counted] = {}

    def size(self, root: int) -> int:
        """Return the bytes that all bundles in a folder take. ``root``: an O_PATH descriptor of the folder.

        Of bundles with many bands it is what ``counting`` has found. Bundles that are not complete, or cannot be read,
        count as nothing. Raises ``OSError`` for the folder."""
        total = 0
        names = _bundles(root)
        for name in names:
            with contextlib.suppress(OSError):
                total += self._bundle(root, name)
        for gone in self._counted.keys() - set(names):
            self._counted.pop(gone, None)
        return total

    def counting(self, root: int) -> Iterator[None] | None:
        """Return steps that count the bundles with many bands, to be taken on another thread before ``size``. None if
        what is known of them is good enough. Raises ``OSError`` for the folder."""
        due = [name for name in _bundles(root) if self._is_due(root, name)]
        return self._count(root, due) if due else None

    def _is_due(self, root: int, name: str) -> bool:
        try:
            folder = _open_bands(root, name)
        except OSError:
            return False
        try:
            stat = os.fstat(folder)
        finally:
            os.close(folder)
        known = self._counted.get(name)
        if known is None or known.folder[0] != stat.st_ino:
            return stat.st_size > _MANY_BYTES
        return (
            known.bands > _MANY and known.folder != (stat.st_ino, stat.st_mtime_ns) and time.monotonic() >= known.until
        )

    def _count(self, root: int, names: list[str]) -> Iterator[None]:
        for name in names:
            with contextlib.suppress(OSError):
                yield from self._count_bands(root, name)

    def _count_bands(self, root: int, name: str) -> Iterator[None]:
        folder = _open_bands(root, name)
        try:
            # What is added meanwhile changes the folder again, so that it is counted in the next query.
            stat, bands = os.fstat(folder), 0
            with os.scandir(folder) as entries:
                while found := sum(1 for _ in itertools.islice(entries, _STEP)):
                    bands += found
                    yield
        finally:
            os.close(folder)
        self._counted[name] = _Counted((stat.st_ino, stat.st_mtime_ns), bands, time.monotonic() + _PATIENCE)

    def _bundle(self, root: int, name: str) -> int:
        bundle = _open_bundle(root, name)
        try:
            size = _band_size(bundle)
        finally:
            os.close(bundle)
        folder = _open_bands(root, name)
        try:
            return size * self._bands(name, folder)
        finally:
            os.close(folder)

    def _bands(self, name: str, folder: int) -> int:
        stat = os.fstat(folder)
        place = stat.st_ino, stat.st_mtime_ns
        known = self._counted.get(name)
        if known is None or known.folder[0] != stat.st_ino or (known.folder != place and known.bands <= _MANY):
            bands = len(os.listdir(folder))
            known = self._counted[name] = _Counted(place, bands, time.monotonic() + _PATIENCE)
        return known.bands


def _bundles(root: int) -> list[str]:
    folder = os.open(".", _FOLDER, dir_fd=root)
    try:
        return [name for name in os.listdir(folder) if name.lower().endswith(_SUFFIXES)]
    finally:
        os.close(folder)


def _open_bundle(root: int, name: str) -> int:
    return os.open(name, _FOLDER, dir_fd=root)


def _open_bands(root: int, name: str) -> int:
    bundle = _open_bundle(root, name)
    try:
        return os.open(_BANDS, _FOLDER, dir_fd=bundle)
    finally:
        os.close(bundle)


def _band_size(bundle: int) -> int:
    """Return the bytes of a band. 0: the property list does not say."""
    descriptor = os.open(_PLIST, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=bundle)
    try:
        found = _BAND_SIZE.search(os.pread(descriptor, _MAX_PLIST, 0))
    finally:
        os.close(descriptor)
    return int(found[1]) if found is not None else 0
