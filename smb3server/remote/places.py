"""Two kinds of folders that files are copied between: of this machine and of a share, with the same operations.

Paths within a place are relative and clean (``names.clean``), so nothing that a place lists leads out of it. Symbolic
links are listed as such, and never followed by an operation that changes something.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import os
import shutil
import stat
from pathlib import Path
from typing import NamedTuple, Protocol

from smb3server.remote import names
from smb3server.remote.share import Share
from smb3server.wire import attributes as attr

MAX_DEPTH = 64
"""Folders within folders from which a link of a share is taken for a circle."""


class Kind(enum.Enum):
    """What an entry is."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"
    """A device, a socket, a pipe."""


class Item(NamedTuple):
    """An entry of a place."""

    path: str
    kind: Kind
    size: int
    modified_ns: int
    attributes: int = 0
    """FILE_ATTRIBUTE_*."""


class Place(Protocol):
    """A folder and what is below it."""

    @property
    def name(self) -> str:
        """The place for people."""

    def show(self, path: str) -> str:
        """Return a path of the place for people."""

    async def look(self, path: str) -> Item | None:
        """Return the entry of a path; None if there is none."""

    async def entries(self, path: str) -> list[Item]:
        """Return the entries of a folder, sorted by name."""

    async def follow(self, path: str) -> Item | None:
        """Return what a symbolic link leads to; None if it leads nowhere, or round in a circle."""

    async def make_folder(self, path: str) -> None:
        """Make a folder, and those above it; do nothing if it is there."""

    async def remove(self, item: Item) -> None:
        """Remove an entry: a folder with everything below it, of a link the link alone."""

    async def set_time(self, path: str, modified_ns: int) -> None:
        """Set the time of a folder's last change."""


class LocalPlace:
    """A folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def name(self) -> str:
        """The folder's path."""
        return str(self.root)

    def show(self, path: str) -> str:
        """Return the local path."""
        return str(self.at(path))

    def at(self, path: str) -> Path:
        """Return the local path."""
        return self.root / path if path else self.root

    async def look(self, path: str) -> Item | None:
        """Return the entry of a path; the place itself may be a symbolic link to a folder."""
        try:
            status = self.at(path).lstat() if path else self.at(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _item(path, status)

    async def entries(self, path: str) -> list[Item]:
        """Return the entries of a folder, sorted by name."""
        return await asyncio.to_thread(self._entries, path)

    def _entries(self, path: str) -> list[Item]:
        with os.scandir(self.at(path)) as found:
            items = [_item(names.join(path, entry.name), entry.stat(follow_symlinks=False)) for entry in found]
        return sorted(items)

    async def follow(self, path: str) -> Item | None:
        """Return what a symbolic link leads to."""
        place = self.at(path)
        try:
            real = place.resolve(strict=True)
            status = real.stat()
        except (OSError, RuntimeError):
            return None
        # A folder above the link would be copied into itself for ever.
        circle = any(folder.exists() and folder.samefile(real) for folder in place.parents)
        return None if circle else _item(path, status)

    async def make_folder(self, path: str) -> None:
        """Make a folder. A symbolic link is not taken for one: it might lead out of the place."""
        place = self.at(path)
        if path and place.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "a symbolic link, and not a folder", str(place))
        place.mkdir(parents=True, exist_ok=True)

    async def remove(self, item: Item) -> None:
        """Remove an entry."""
        place = self.at(item.path)
        if item.kind is Kind.FOLDER:
            # It does not follow symbolic links, not even those that are made meanwhile.
            await asyncio.to_thread(shutil.rmtree, place)
        else:
            place.unlink()

    async def set_time(self, path: str, modified_ns: int) -> None:
        """Set the time of a folder's last change."""
        os.utime(self.at(path), ns=(modified_ns, modified_ns), follow_symlinks=not path)


def _item(path: str, status: os.stat_result) -> Item:
    mode = status.st_mode
    kind = (
        Kind.FILE
        if stat.S_ISREG(mode)
        else Kind.FOLDER
        if stat.S_ISDIR(mode)
        else Kind.LINK
        if stat.S_ISLNK(mode)
        else Kind.OTHER
    )
    # Only what its owner may not write has an attribute on the other side.
    read_only = attr.READONLY if kind is Kind.FILE and not mode & stat.S_IWUSR else 0
    return Item(path, kind, status.st_size if kind is Kind.FILE else 0, status.st_mtime_ns, read_only)


class SharePlace:
    """A folder of a share."""

    def __init__(self, share: Share, base: str = "") -> None:
        self.share = share
        self.base = base

    @property
    def name(self) -> str:
        """The folder's address."""
        return self.show("")

    def show(self, path: str) -> str:
        """Return the address of a path."""
        return names.join(str(self.share.address), self.at(path))

    def at(self, path: str) -> str:
        """Return the path in the share."""
        return names.join(self.base, path)

    async def look(self, path: str) -> Item | None:
        """Return the entry of a path."""
        try:
            found = await self.share.stat(self.at(path))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            return None
        kind = Kind.LINK if found.is_symlink() else Kind.FOLDER if found.is_dir() else Kind.FILE
        return Item(path, kind, found.size, found.modified_ns, found.attributes)

    async def entries(self, path: str) -> list[Item]:
        """Return the entries of a folder, sorted by name."""
        found: list[Item] = []
        async for entry in self.share.scandir(self.at(path)):
            kind = Kind.LINK if entry.is_symlink() else Kind.FOLDER if entry.is_dir() else Kind.FILE
            size = entry.size if kind is Kind.FILE else 0
            below = names.join(path, entry.name)
            found.append(Item(below, kind, size, entry.modified_ns, entry.attributes))
        return sorted(found)

    async def follow(self, path: str) -> Item | None:
        """Return what a symbolic link leads to, if the server follows it. It names no files of other shares."""
        found = await self.look(path) if path.count("/") < MAX_DEPTH else None
        return found if found is not None and found.kind is not Kind.LINK else None

    async def make_folder(self, path: str) -> None:
        """Make a folder, and those above it; do nothing if it is there."""
        if self.at(path):
            await self.share.mkdir(self.at(path), parents=True, exist_ok=True)

    async def remove(self, item: Item) -> None:
        """Remove an entry."""
        place = self.at(item.path)
        if item.kind is Kind.FOLDER:
            await self.share.rmtree(place)
        elif item.attributes & attr.DIRECTORY:
            await self.share.rmdir(place)
        else:
            await self.share.remove(place)

    async def set_time(self, path: str, modified_ns: int) -> None:
        """Set the time of a folder's last change."""
        await self.share.utime(self.at(path), modified_ns)
