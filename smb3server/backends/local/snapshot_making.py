"""Makes and removes the snapshots of a share that lies on btrfs, and says which of many are to be kept."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterable, Mapping

from smb3server.backends.local import btrfs
from smb3server.backends.local.snapshot_folders import SnapshotFolders, open_folder
from smb3server.backends.snapshot_names import PatternError, SnapshotPattern

_MODE = 0o755
"""Of a new folder for snapshots. What is in a snapshot has its own permissions."""


class CannotError(Exception):
    """Snapshots cannot be made, found or removed. The text says why, and what to do."""


class TakenError(CannotError):
    """There is a snapshot of this second already."""


class SnapshotMaker:
    """Makes and removes the snapshots that a pattern describes. Its methods block, and raise ``CannotError``."""

    def __init__(self, pattern: SnapshotPattern, share: str) -> None:
        """``share``: the share's folder."""
        self._pattern = pattern
        self._share = share

    def volume(self) -> str:
        """Return what tells apart the subvolumes that snapshots are made of, if they can be made and have all that is
        in the share, as far as this shows without making one."""
        self._name(int(time.time()))
        descriptor = self._source()
        try:
            found = os.fstat(descriptor)
            below = _mounted_below(os.readlink(f"/proc/self/fd/{descriptor}"))
        finally:
            os.close(descriptor)
        if below:
            raise CannotError(f"another file system is mounted on {below}, which no snapshot would have")
        return f"{found.st_dev}:{found.st_ino}"

    def make(self) -> tuple[int, str]:
        """Make a snapshot of now. Return its time in seconds since 1970, and its name."""
        seconds = int(time.time())
        name = self._name(seconds)
        source = self._source()
        try:
            folder = self._folder(make=True)
            try:
                btrfs.make_snapshot(source, folder, name)
            finally:
                os.close(folder)
        except FileExistsError:
            raise TakenError(f"{name} is there already; remedy: wait a second") from None
        except OSError as error:
            raise self._cannot("make", name, error) from error
        finally:
            os.close(source)
        return seconds, name

    def names(self) -> dict[int, str]:
        """Return the names of the snapshots by their times in seconds since 1970."""
        try:
            return SnapshotFolders(self._pattern).names()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise CannotError(f"{self._pattern.folder}: {error.strerror}") from error

    def remove(self, name: str) -> None:
        """Remove a snapshot."""
        if name not in self.names().values():
            raise CannotError(f"{self._pattern.folder} has no snapshot {name}; remedy: smb3server snapshot list")
        try:
            folder = self._folder()
            try:
                btrfs.remove_snapshot(folder, name)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._cannot("remove", name, error) from error

    def _name(self, seconds: int) -> str:
        try:
            return self._pattern.name_for(seconds)
        except PatternError as error:
            raise CannotError(f"{error}; remedy: a pattern as .snapshots/@GMT-%Y.%m.%d-%H.%M.%S") from error

    def _folder(self, make: bool = False) -> int:
        """Open the folder of the snapshots. ``make``: make it if it does not exist."""
        try:
            return open_folder(self._pattern.folder)
        except FileNotFoundError:
            if not make:
                raise
        above, name = os.path.split(self._pattern.folder)
        parent = open_folder(above)
        try:
            os.mkdir(name, _MODE, dir_fd=parent)
        finally:
            os.close(parent)
        return open_folder(self._pattern.folder)

    def _source(self) -> int:
        """Open the root of the subvolume that has the share's folder, as far above it as in a snapshot."""
        place, rest = self._share.rstrip("/"), self._pattern.rest
        if rest:
            ending = "/" + "/".join(rest)
            if not place.endswith(ending):
                raise CannotError(
                    f"{place} does not end in {ending}, as the pattern does: what to make snapshots of is not clear; "
                    "remedy: make them by the file system's own tools"
                )
            place = place[: -len(ending)] or "/"
        try:
            descriptor = open_folder(place)
        except OSError as error:
            raise CannotError(f"{place}: {error.strerror}") from error
        try:
            found = btrfs.is_subvolume(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise CannotError(f"{place}: {error.strerror}") from error
        if not found:
            os.close(descriptor)
            raise CannotError(
                f"{place} is no subvolume of btrfs; remedy: make the snapshots by your file system's own tools "
                "(zfs snapshot, lvcreate), or move the share's files into a subvolume"
            )
        return descriptor

    def _cannot(self, what: str, name: str, error: OSError) -> CannotError:
        text = f"cannot {what} {os.path.join(self._pattern.folder, name)}: {error.strerror}"
        if error.errno in (errno.EPERM, errno.EACCES):
            rights = "CAP_SYS_ADMIN" if what == "remove" else "the right to write there, and to be the owner or root"
            text += f" (this takes {rights}); remedy: run it as root"
        elif error.errno == errno.EXDEV:
            text += "; remedy: a folder for the snapshots on the same file system"
        return CannotError(text)


def _mounted_below(folder: str) -> str:
    """Return a mount point below a folder, or "". [proc_pid_mountinfo(5)]"""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            point = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), line.split(" ")[4])
            if point.startswith(folder.rstrip("/") + "/"):
                return point
    return ""


PERIODS: Mapping[str, str] = {"hourly": "%Y-%m-%d %H", "daily": "%Y-%m-%d", "weekly": "%G-%V", "monthly": "%Y-%m"}
"""What tells the periods of a kind apart, for strftime."""


def to_keep(times: Iterable[int], counts: Mapping[str, int]) -> set[int]:
    """Return which snapshots are to be kept: for each kind of period the last one of each of the latest periods that
    have any, and always the latest snapshot.

    ``times``: seconds since 1970. ``counts``: the number of periods, by the keys of ``PERIODS``."""
    newest_first = sorted(times, reverse=True)
    kept = set(newest_first[:1])
    for kind, count in counts.items():
        last: dict[str, int] = {}
        for seconds in newest_first:
            last.setdefault(time.strftime(PERIODS[kind], time.gmtime(seconds)), seconds)
        kept.update(list(last.values())[:count])
    return kept
