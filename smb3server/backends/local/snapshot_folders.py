"""Finds the snapshots of a share among the folders of the host, by a pattern of their names."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping

from smb3server.backends.local import btrfs
from smb3server.backends.snapshot_names import SnapshotPattern
from smb3server.process import folder_ways

log = logging.getLogger(__name__)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class SnapshotFolders:
    """The snapshots that a pattern finds. It implements ``backends.snapshots.SnapshotSource``."""

    def __init__(self, pattern: SnapshotPattern) -> None:
        self.pattern = pattern

    def names(self) -> dict[int, str]:
        """Return the names of the snapshots' folders by their times. Raises ``OSError``."""
        pattern = self.pattern
        folder = open_folder(pattern.folder)
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            if pattern.by_subvolume:
                found = [(_made_at(folder, name, pattern.rest), name) for name in names]
            else:
                found = [(pattern.time_of(name), name) for name in names]
        finally:
            os.close(folder)
        return {seconds: name for seconds, name in found if seconds is not None}

    def find(self) -> Mapping[int, str]:
        """See ``SnapshotSource``. The folder of the snapshots need not exist."""
        try:
            names = self.names()
        except FileNotFoundError:
            return {}
        place = self.pattern
        return {seconds: os.path.join(place.folder, name, *place.rest) for seconds, name in names.items()}


def open_folder(path: str) -> int:
    """Return a descriptor of a folder for reading, which the caller closes. No symbolic link on the way to it may be a
    stranger's. Raises ``OSError``."""
    way = folder_ways.follow(path)
    try:
        return os.open(".", _FOLDER, dir_fd=way.descriptor)
    finally:
        way.close()


def _made_at(folder: int, name: str, rest: tuple[str, ...]) -> int | None:
    """Return when the subvolume that has a folder was made. None: it is not on btrfs, or not there."""
    descriptor = os.dup(folder)
    try:
        for part in (name, *rest):
            below = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        return btrfs.made_at(descriptor)
    except OSError as error:
        if error.errno != errno.ENOENT:
            log.info("%s is no snapshot of btrfs: %s", name, error.strerror)
        return None
    finally:
        os.close(descriptor)
