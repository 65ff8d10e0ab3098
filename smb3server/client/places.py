"""Two kinds of folders that files are copied between: of this machine and of a share, with the same operations.

Paths within a place are relative and clean (``names.clean``), so nothing that a place lists leads out of it. Symbolic
links are listed as such, and never followed by an operation that changes something.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from smb3server.client import names
from smb3server.client.entries import Entry
from smb3server.client.options import CopyKeywords
from smb3server.client.share import AT_ONCE, REPLACED, Share, together
from smb3server.client.share import MAX_DEPTH as MAX_FOLDERS
from smb3server.client.transfers import Transfer
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
    UNUSABLE = "unusable"
    """A name that a server lists, and that no entry can have: its ``path`` leads nowhere."""


class Item(NamedTuple):
    """An entry of a place."""

    path: str
    kind: Kind
    size: int
    modified_ns: int
    attributes: int = 0
    """FILE_ATTRIBUTE_*."""
    file_id: int = 0
    """Its number on the volume; 0 if it is not known."""

    @property
    def name(self) -> str:
        """The last component of the path."""
        return names.split(self.path)[1]


Keeps = Callable[[Item], bool]
"""Says what is not to be removed."""
KEPT = attr.READONLY | attr.HIDDEN | attr.SYSTEM | attr.ARCHIVE
"""Attributes that a copy can keep."""


class Writing(NamedTuple):
    """A file that a place is to get."""

    path: str
    how: CopyKeywords
    attributes: int = 0
    """Those of ``KEPT`` that the file gets."""
    replaces: bool = True
    """Whether there may be a file of this name."""
    read_only: int = 0
    """The attributes of a READONLY file that is replaced all the same; 0 if there is none."""
    through_links: bool = True
    """Whether a symbolic link of this machine is written through."""


class Place(Protocol):
    """A folder and what is below it."""

    @property
    def name(self) -> str:
        """The place for people."""

    def show(self, path: str) -> str:
        """Return a path of the place for people."""

    def key(self, path: str) -> str:
        """Return the form in which the place compares paths."""

    async def granularity(self) -> int:
        """Return the nanoseconds in which the place counts times."""

    async def look(self, path: str) -> Item | None:
        """Return the entry of a path, as of a listing; None if there is none."""

    async def number(self, path: str) -> int:
        """Return an entry's number on the volume, as listings tell it; 0 if it has none."""

    async def entries(self, path: str) -> list[Item]:
        """Return the entries of a folder, sorted by name."""

    async def follow(self, path: str) -> Item | None:
        """Return what a symbolic link leads to; None if it leads nowhere, or round in a circle."""

    def location(self, path: str) -> tuple[object, str]:
        """Return what contains the place, and the path in it: paths of one container can lie within each other."""

    async def copy(self, path: str, target: Place, writing: Writing) -> Transfer:
        """Copy a file to another place."""

    async def take_local(self, file: str, writing: Writing) -> Transfer:
        """Write a file of this machine to the place."""

    async def take_remote(self, share: Share, path: str, writing: Writing) -> Transfer:
        """Write a file of a share to the place."""

    async def make_folder(self, path: str) -> None:
        """Make a folder, and those above it; do nothing if it is there."""

    async def remove(self, item: Item, keeps: Keeps, dry_run: bool = False) -> bool:
        """Remove an entry: a folder with everything below it, of a link the link alone. ``dry_run`` only looks.

        What another file has replaced since it was listed stays (ESTALE). So does what ``keeps`` names, and the folders
        that have it: return False then.
        """

    async def rename(self, path: str, target: str) -> None:
        """Rename an entry; fail if the new name is taken."""

    async def set_time(self, path: str, modified_ns: int) -> None:
        """Set the time of a folder's last change."""


class LocalPlace:
    """A folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._within = "" if root == Path() else os.path.join(root, "")
        """What the names of the folder's entries follow."""

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

    def key(self, path: str) -> str:
        """Return the path."""
        return path

    async def granularity(self) -> int:
        """Return the nanoseconds in which the folder's file system counts times."""
        return _GRANULARITY.get(await asyncio.to_thread(_file_system, self.root), _FILETIME)

    async def look(self, path: str) -> Item | None:
        """Return the entry of a path; the place itself may be a symbolic link to a folder."""
        try:
            status = self.at(path).lstat() if path else self.at(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _item(path, status)

    async def number(self, path: str) -> int:
        """Return an entry's inode number."""
        return self.at(path).stat().st_ino

    async def entries(self, path: str) -> list[Item]:
        """Return the entries of a folder, sorted by name."""
        return await asyncio.to_thread(self._entries, path)

    def _entries(self, path: str) -> list[Item]:
        check_depth(path)
        with os.scandir(self.at(path)) as found:
            return sorted(_listed(path, found), key=_by_path)

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

    def location(self, path: str) -> tuple[object, str]:
        """Return the local path."""
        return "", str(self.at(path))

    async def copy(self, path: str, target: Place, writing: Writing) -> Transfer:
        """Copy a file to a share."""
        return await target.take_local(self._within + path if path else str(self.root), writing)

    async def take_local(self, file: str, writing: Writing) -> Transfer:
        """Raise ``OSError``: cp(1) copies from one local folder to another."""
        raise OSError(errno.EOPNOTSUPP, "both are of this machine; cp(1) copies those", file)

    async def take_remote(self, share: Share, path: str, writing: Writing) -> Transfer:
        """Download a file."""
        local = self.at(writing.path)
        if writing.through_links and local.is_symlink():
            local = local.resolve(strict=True)
        done = await share.download(path, local, exact=True, **writing.how)
        if writing.attributes & attr.READONLY:
            local.chmod(local.stat().st_mode & ~0o222)
        return done

    async def make_folder(self, path: str) -> None:
        """Make a folder. A symbolic link is not taken for one: it might lead out of the place."""
        place = self.at(path)
        if path and place.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, "a symbolic link, and not a folder", str(place))
        place.mkdir(parents=True, exist_ok=True)

    async def remove(self, item: Item, keeps: Keeps, dry_run: bool = False) -> bool:
        """Remove an entry."""
        return await asyncio.to_thread(self._remove, item, keeps, dry_run)

    def _remove(self, item: Item, keeps: Keeps, dry_run: bool) -> bool:
        folder = os.open(self.at(item.path).parent, _OPEN_FOLDER)
        try:
            return self._remove_in(folder, item, keeps, dry_run)
        finally:
            os.close(folder)

    def _remove_in(self, above: int, item: Item, keeps: Keeps, dry_run: bool) -> bool:
        """Remove an entry of an open folder. It follows no symbolic links, not even those that are made meanwhile."""
        now = _item(item.path, os.stat(item.name, dir_fd=above, follow_symlinks=False))
        if not is_same_entry(now, item):
            raise OSError(errno.ESTALE, REPLACED, self.show(item.path))
        if item.kind is not Kind.FOLDER:
            if not dry_run:
                os.unlink(item.name, dir_fd=above)
            return True
        check_depth(item.path)
        folder = os.open(item.name, _OPEN_FOLDER | os.O_NOFOLLOW, dir_fd=above)
        try:
            with os.scandir(folder) as found:
                listed = list(_listed(item.path, found))
            wanted = [below for below in listed if not keeps(below)]
            removed = [self._remove_in(folder, below, keeps, dry_run) for below in wanted]
            gone = len(wanted) == len(listed) and all(removed)
        finally:
            os.close(folder)
        if gone and not dry_run:
            os.rmdir(item.name, dir_fd=above)
        return gone

    async def rename(self, path: str, target: str) -> None:
        """Rename an entry; fail if the new name is taken."""
        new = self.at(target)
        if os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new))
        self.at(path).rename(new)

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
    size = status.st_size if kind is Kind.FILE else 0
    return Item(path, kind, size, status.st_mtime_ns, read_only, status.st_ino)


def _listed(path: str, found: Iterable[os.DirEntry[str]]) -> Iterator[Item]:
    for entry in found:
        # An entry that is gone already is not there.
        with contextlib.suppress(FileNotFoundError):
            yield _item(names.join(path, entry.name), entry.stat(follow_symlinks=False))


def _by_path(item: Item) -> str:
    return item.path


def is_same_entry(now: Item, listed: Item) -> bool:
    """Return whether an entry is what was listed under its name."""
    unchanged = listed.kind is not Kind.FILE or (now.size, now.modified_ns) == (listed.size, listed.modified_ns)
    return now.kind is listed.kind and now.file_id == listed.file_id and unchanged


def check_depth(path: str) -> None:
    """Raise ``OSError`` (ELOOP) for a path with too many folders."""
    if path.count("/") >= MAX_FOLDERS:
        raise OSError(errno.ELOOP, f"more than {MAX_FOLDERS} folders within each other", path)


_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILETIME = 100
_GRANULARITY = {
    **dict.fromkeys(("msdos", "vfat", "fat", "fat12", "fat16", "fat32"), 2_000_000_000),
    "exfat": 10_000_000,
    "hfsplus": 1_000_000_000,
}
"""Nanoseconds in which file systems count times of changes, if not in those of SMB. Their names in Linux, and in
FileFsAttributeInformation [MS-FSCC 2.5.1].
"""


def _file_system(folder: Path) -> str:
    """Return the name of the file system that a folder, or the folder above that it is made in, lies on."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields = line.split()
        if fields[2] == number:
            return fields[fields.index("-") + 1].lower()
    return ""


class SharePlace:
    """A folder of a share."""

    def __init__(self, share: Share, base: str = "") -> None:
        self.share = share
        self.base = base
        self._address = str(share.address)

    @property
    def name(self) -> str:
        """The folder's address."""
        return self.show("")

    def show(self, path: str) -> str:
        """Return the address of a path."""
        return names.join(self._address, self.at(path))

    def at(self, path: str) -> str:
        """Return the path in the share."""
        return names.join(self.base, path)

    def key(self, path: str) -> str:
        """Return the path in upper case, by Windows' rule."""
        return names.key(path)

    async def granularity(self) -> int:
        """Return the nanoseconds in which the server's file system counts times."""
        return _GRANULARITY.get((await self.share.file_system()).lower(), _FILETIME)

    async def look(self, path: str) -> Item | None:
        """Return the entry of a path."""
        try:
            return _of_share(path, await self.share.stat(self.at(path)))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise
            return None

    async def number(self, path: str) -> int:
        """Return an entry's number on the volume."""
        return await self.share.file_id(self.at(path))

    async def entries(self, path: str) -> list[Item]:
        """Return the entries of a folder, sorted by name."""
        found = await self.share.listing(self.at(path))
        items = [_of_share(names.join(path, entry.name), entry) for entry in found.entries]
        items += [Item(names.join(path, name), Kind.UNUSABLE, 0, 0) for name in found.unusable]
        return sorted(items, key=_by_path)

    async def follow(self, path: str) -> Item | None:
        """Return what a symbolic link leads to, if the server follows it. It names no files of other shares."""
        found = await self.look(path) if path.count("/") < MAX_DEPTH else None
        return found if found is not None and found.kind is not Kind.LINK else None

    def location(self, path: str) -> tuple[object, str]:
        """Return the share, and the path in it in upper case."""
        address = self.share.address
        return address.place[:3], names.key(names.join(address.path, self.at(path)))

    async def copy(self, path: str, target: Place, writing: Writing) -> Transfer:
        """Copy a file to a share or to this machine."""
        return await target.take_remote(self.share, self.at(path), writing)

    async def take_local(self, file: str, writing: Writing) -> Transfer:
        """Upload a file."""
        path, attributes, replace = self.at(writing.path), writing.attributes, writing.replaces
        upload = partial(
            self.share.upload, file, path, exact=True, attributes=attributes, replace=replace, **writing.how
        )
        if not writing.read_only:
            return await upload()
        async with self._writable(path, writing.read_only):
            return await upload()

    async def take_remote(self, share: Share, path: str, writing: Writing) -> Transfer:
        """Copy a file of this share, or of another one."""
        target = self.at(writing.path)
        async with self._writable(target, writing.read_only):
            return await share.copy(path, target, to=self.share, exact=True, replace=writing.replaces, **writing.how)

    @contextlib.asynccontextmanager
    async def _writable(self, path: str, attributes: int) -> AsyncIterator[None]:
        """Take READONLY away from a file while it is replaced. It gets its ``attributes`` again if it stays."""
        if attributes:
            await self.share.set_attributes(path, attributes & ~attr.READONLY)
        try:
            yield
        except OSError:
            if attributes:
                with contextlib.suppress(OSError):
                    await self.share.set_attributes(path, attributes)
            raise

    async def make_folder(self, path: str) -> None:
        """Make a folder, and those above it; do nothing if it is there."""
        if self.at(path):
            await self.share.mkdir(self.at(path), parents=True, exist_ok=True)

    async def remove(self, item: Item, keeps: Keeps, dry_run: bool = False) -> bool:
        """Remove an entry. READONLY files are removed, too, as a local folder's are."""
        gone = True
        # Of a link of a namespace the files beyond it are not removed. The server refuses to remove the link.
        if item.kind is Kind.FOLDER and not item.attributes & attr.REPARSE_POINT:
            listed = await self.share.listing(self.at(item.path), item.file_id)
            below = [_of_share(names.join(item.path, entry.name), entry) for entry in listed.entries]
            wanted = [one for one in below if not keeps(one)]
            gone = len(wanted) == len(below)
            for at in range(0, len(wanted), AT_ONCE):
                batch = (self.remove(one, keeps, dry_run) for one in wanted[at : at + AT_ONCE])
                gone = all(await together(batch)) and gone
        if gone and not dry_run:
            path, when = self.at(item.path), item.modified_ns
            entry = Entry(item.name, path, item.size, 0, item.attributes, 0, 0, when, 0, file_id=item.file_id)
            await self.share.remove_listed(entry, force=True)
        return gone

    async def rename(self, path: str, target: str) -> None:
        """Rename an entry; fail if the new name is taken."""
        await self.share.rename(self.at(path), self.at(target))

    async def set_time(self, path: str, modified_ns: int) -> None:
        """Set the time of a folder's last change."""
        await self.share.utime(self.at(path), modified_ns)


def _of_share(path: str, entry: Entry) -> Item:
    kind = Kind.LINK if entry.is_symlink() else Kind.FOLDER if entry.is_dir() else Kind.FILE
    size = entry.size if kind is Kind.FILE else 0
    return Item(path, kind, size, entry.modified_ns, entry.attributes, entry.file_id)
