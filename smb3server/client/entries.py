"""What is known of a file or folder of a share."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from smb3server.wire import attributes as attr
from smb3server.wire.create import CreateResponse
from smb3server.wire.directory_info import ListedEntry
from smb3server.wire.filetime import from_ns, to_ns

_LETTERS = {attr.READONLY: "R", attr.HIDDEN: "H", attr.SYSTEM: "S", attr.ARCHIVE: "A", attr.REPARSE_POINT: "L"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder. Times are nanoseconds since 1970, as in ``os.stat_result``; sizes are bytes."""

    name: str
    path: str
    """From the folder that was connected to, with slashes."""
    size: int
    allocated: int
    """Bytes on the server's disk."""
    attributes: int
    """FILE_ATTRIBUTE_*. [MS-FSCC 2.6]"""
    created_ns: int
    accessed_ns: int
    modified_ns: int
    changed_ns: int
    reparse_tag: int = 0
    file_id: int = 0
    """The file's number on its volume, as a listing tells it; 0 if it is not known."""

    def is_dir(self) -> bool:
        """Return whether it is a folder, and not a symbolic link to one. A link of a namespace (DFS) is a folder."""
        return bool(self.attributes & attr.DIRECTORY) and not self.is_symlink()

    def is_file(self) -> bool:
        """Return whether it is a file, and not a symbolic link to one."""
        return not self.attributes & attr.DIRECTORY and not self.is_symlink()

    def is_symlink(self) -> bool:
        """Return whether it is a symbolic link, or another reparse point that leads elsewhere. [MS-FSCC 2.1.2.1]"""
        return bool(self.attributes & attr.REPARSE_POINT) and self.reparse_tag != attr.TAG_DFS

    @property
    def is_link(self) -> bool:
        """Whether it leads elsewhere: a symbolic link, or a link of a namespace (DFS)."""
        return bool(self.attributes & attr.REPARSE_POINT)

    @property
    def read_only(self) -> bool:
        """Whether the file has the attribute READONLY."""
        return bool(self.attributes & attr.READONLY)

    @property
    def modified(self) -> datetime:
        """When the content was changed last."""
        return _datetime(self.modified_ns)

    @property
    def created(self) -> datetime:
        """When the file was made."""
        return _datetime(self.created_ns)

    @property
    def letters(self) -> str:
        """The attributes as letters: D (folder), L (link), R, H, S, A."""
        folder = "D" if self.attributes & attr.DIRECTORY else ""
        return folder + "".join(letter for bit, letter in _LETTERS.items() if self.attributes & bit)

    # The names of os.stat_result, for code that is written for local files.

    @property
    def st_size(self) -> int:
        """The size."""
        return self.size

    @property
    def st_mtime_ns(self) -> int:
        """``modified_ns``."""
        return self.modified_ns

    @property
    def st_mtime(self) -> float:
        """``modified_ns`` in seconds."""
        return self.modified_ns / 1e9

    @property
    def st_mode(self) -> int:
        """The kind of the file. SMB has no permission bits: these only tell READONLY."""
        kind = stat.S_IFLNK if self.is_symlink() else stat.S_IFDIR if self.is_dir() else stat.S_IFREG
        return kind | (0o555 if kind == stat.S_IFDIR else 0o444) | (0 if self.read_only else 0o200)


def _datetime(nanoseconds: int) -> datetime:
    """Return a time; the first or last one that Python can tell if a server names another."""
    try:
        return _EPOCH + timedelta(microseconds=nanoseconds // 1000)
    except OverflowError:
        return (datetime.min if nanoseconds < 0 else datetime.max).replace(tzinfo=UTC)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def known_id(number: int) -> int:
    """Return a FileId, or 0 for what it is where the server has none. [MS-FSCC 2.1.9]"""
    return 0 if number == (1 << 64) - 1 else number


def filetime_of(nanoseconds: int) -> int:
    """Return a time that is to be set as a FILETIME. 0 and less would mean other things. [MS-FSCC 2.4.7]"""
    return min(max(from_ns(nanoseconds), 1), (1 << 63) - 1)


def of_listing(listed: ListedEntry, name: str, path: str) -> Entry:
    """Return the entry of a listing."""
    return Entry(
        name,
        path,
        listed.end_of_file,
        listed.allocation_size,
        listed.attributes,
        to_ns(listed.creation_time),
        to_ns(listed.last_access_time),
        to_ns(listed.last_write_time),
        to_ns(listed.change_time),
        listed.reparse_tag,
        known_id(listed.file_id),
    )


def of_open(response: CreateResponse, name: str, path: str) -> Entry:
    """Return what a CREATE response says. [MS-SMB2 2.2.14]"""
    return Entry(
        name,
        path,
        response.end_of_file,
        response.allocation_size,
        response.file_attributes,
        to_ns(response.creation_time),
        to_ns(response.last_access_time),
        to_ns(response.last_write_time),
        to_ns(response.change_time),
    )
