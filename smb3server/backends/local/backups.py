"""Counts what the backups of Macs take: Time Machine keeps each in a sparse bundle, a folder of equally large bands.

A backup has as many bands as its folder has entries, and each counts as full. So nothing is opened but folders, and
those with many bands are read again only if they have changed, and not in every query.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import NamedTuple

_SUFFIXES = (".sparsebundle", ".backupbundle")
_BAND_SIZE = re.compile(rb"<key>band-size</key>\s*<integer>(\d{1,12})</integer>")
_PLIST, _BANDS = "Info.plist", "bands"
_MAX_PLIST = 65536
_MANY = 4096
"""Bands that are counted in every query."""
_PATIENCE = 10.0
"""Seconds for which the count of more bands is good enough."""
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

        Bundles that are not complete, or cannot be read, count as nothing. Raises ``OSError`` for the folder."""
        total = 0
        folder = os.open(".", _FOLDER, dir_fd=root)
        try:
            names = [name for name in os.listdir(folder) if name.lower().endswith(_SUFFIXES)]
            for name in names:
                with contextlib.suppress(OSError):
                    total += self._bundle(folder, name)
        finally:
            os.close(folder)
        for gone in self._counted.keys() - set(names):
            del self._counted[gone]
        return total

    def _bundle(self, folder: int, name: str) -> int:
        bundle = os.open(name, _FOLDER, dir_fd=folder)
        try:
            size = _band_size(bundle)
            bands = os.open(_BANDS, _FOLDER, dir_fd=bundle)
        finally:
            os.close(bundle)
        try:
            return size * self._bands(name, bands)
        finally:
            os.close(bands)

    def _bands(self, name: str, folder: int) -> int:
        stat, now = os.fstat(folder), time.monotonic()
        place = stat.st_ino, stat.st_mtime_ns
        known = self._counted.get(name)
        if known is None or known.folder[0] != stat.st_ino or (known.folder != place and now >= known.until):
            count = len(os.listdir(folder))
            known = self._counted[name] = _Counted(place, count, now + _PATIENCE if count > _MANY else now)
        return known.bands


def _band_size(bundle: int) -> int:
    """Return the bytes of a band. 0: the property list does not say."""
    descriptor = os.open(_PLIST, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=bundle)
    try:
        found = _BAND_SIZE.search(os.pread(descriptor, _MAX_PLIST, 0))
    finally:
        os.close(descriptor)
    return int(found[1]) if found is not None else 0
