"""Keeps extended attributes of files in memory while st_ctime shows that they have not changed.

On the file systems in ``RELIABLE`` every change of an attribute, by any program, sets st_ctime to the kernel's time.
That time moves in steps. An attribute is therefore kept only if st_ctime was older than a step when the file was looked
at (``change_times``): a later change then shows.
"""

from __future__ import annotations

from collections import OrderedDict

from smb3server.backends.base import Described
from smb3server.backends.local.syscalls import Statx
from smb3server.process.change_times import may_hide_a_change

RELIABLE = frozenset((0xEF53, 0x58465342, 0x9123683E, 0x01021994))
"""File systems of one machine: ext2 to ext4, XFS, Btrfs and tmpfs (linux/magic.h). A file system of the network may
show an old st_ctime."""
MAX_FILES = 8192
MAX_BYTES = 1024
"""Bytes of the longest value that is kept."""


class KeptFile:
    """The attributes of one file, as of the times of a stat."""

    __slots__ = ("btime", "ctime", "described", "values")

    def __init__(self, stat: Statx) -> None:
        self.ctime = stat.ctime
        self.btime = stat.btime
        self.values: dict[bytes, bytes | None] = {}
        """By name. None is the value of one that the file does not have."""
        self.described: tuple[Statx, int, Described] | None = None
        """What follows from a stat, ``MetadataStore.attribute_block`` and ``values`` alone."""


class KeptAttributes:
    """Attributes by file."""

    def __init__(self) -> None:
        self.device: int | None = None
        """The file system (st_dev) whose attributes are kept. None means that nothing is kept."""
        # Invariant: at most MAX_FILES entries, the oldest first.
        self._files: OrderedDict[tuple[int, int], KeptFile] = OrderedDict()

    def of(self, stat: Statx) -> KeptFile | None:
        """Return what is known of a file. The caller adds the attributes that it reads after ``stat`` was taken, except
        for values longer than ``MAX_BYTES``.

        None means that none may be kept."""
        if stat.dev != self.device:
            return None
        key = stat.dev, stat.ino
        file = self._files.get(key)
        if file is not None and file.ctime == stat.ctime and file.btime == stat.btime:
            return file
        if may_hide_a_change(stat.ctime):
            return None
        file = KeptFile(stat)
        self._files.pop(key, None)
        self._files[key] = file
        if len(self._files) > MAX_FILES:
            self._files.popitem(last=False)
        return file

    def has(self, found: Described) -> bool:
        """Return whether this very object is kept for its file."""
        key = found.info.key
        file = self._files.get((key.volume, key.inode))
        return file is not None and file.described is not None and file.described[2] is found
