"""What a share needs of the store behind it. No SMB message types; file attributes and times are MS-FSCC values
(``wire.attributes``, ``wire.filetime``).

All methods are short blocking calls on the server's thread unless said otherwise; they raise ``OSError`` (its errno is
what the server maps to a status). Names arrive already split into components and checked against the naming rules of
Windows (MS-FSCC 2.1.5); a backend still keeps every path below its root whatever they are.

Times are FILETIMEs: 100 ns units since 1601-01-01 UTC.
"""

from __future__ import annotations

import enum
import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from smb3server.wire.attributes import MAX_OFFSET
from smbdirect.codec import Buffer

MAX_DESCRIPTOR_BYTES = 65536
"""Bytes of the largest security descriptor that a store keeps."""
Path = tuple[str, ...]
"""Components below the share's root, in any case; () is the root itself."""


class FileKey(NamedTuple):
    """Identity of a file, whatever its names are."""

    volume: int
    inode: int


class Kind(enum.IntEnum):
    FILE = 0
    DIRECTORY = 1
    SYMLINK = 2
    OTHER = 3
    """FIFO, socket, device: listed, opened for metadata (to delete it) but never for data."""


class User(NamedTuple):
    """POSIX credentials to act with; None in their place means the server's own."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    shared: bool = False
    """Several users act with them, whom the kernel cannot tell apart."""


class FileInfo(NamedTuple):
    key: FileKey
    kind: Kind
    attributes: int
    """FILE_ATTRIBUTE_* (MS-FSCC 2.6), never 0 (NORMAL, DIRECTORY, ...)."""
    creation_time: int
    last_access_time: int
    last_write_time: int
    change_time: int
    end_of_file: int
    allocation_size: int
    link_count: int
    ea_size: int
    reparse_tag: int
    mode: int
    uid: int
    gid: int


class Described(NamedTuple):
    """What decides who may do what with a file, as of one moment."""

    info: FileInfo
    descriptor: bytes | None
    """The security descriptor that is stored with it; None: none."""


class StreamInfo(NamedTuple):
    name: str
    """'' is the unnamed data stream."""
    size: int
    allocation_size: int


class VolumeInfo(NamedTuple):
    total_bytes: int
    free_bytes: int
    available_bytes: int
    block_size: int
    sector_size: int


class DirectoryEntry(NamedTuple):
    name: str
    info: FileInfo


class Disposition(enum.IntEnum):
    """Whether a file is opened, created or either. The server overwrites afterwards (``truncate``), when its checks
    have passed.

    With a stream named it is about the stream; except for OPEN the file is created with it."""

    OPEN = 0
    CREATE = 1
    OPEN_IF = 2


@dataclass(slots=True)
class OpenRequest:
    path: Path
    stream: str = ""
    """Alternate data stream's name without '$DATA'; '' is the file itself."""
    disposition: Disposition = Disposition.OPEN
    read: bool = False
    write: bool = False
    """Data access wanted; with neither the handle is for metadata only."""
    directory: bool | None = None
    """True: must be a directory (ENOTDIR), or create one; False: must not be one (EISDIR); None: either (creates a
    file). With a stream, True is about the file it belongs to and False says nothing."""
    open_reparse_point: bool = False
    attributes: int = 0
    """For a new file; 0 leaves the default (ARCHIVE for files)."""
    security_descriptor: bytes | None = None
    """For a new file: self-relative, stored with it before anybody else can open it."""
    ea: Sequence[tuple[bytes, bytes]] = ()
    user: User | None = None
    or_folder: bool = False
    """For ``Backend.open_described`` of a file that need not exist: open its folder if nothing has the name. The name
    may still be there in another case: a store need not look for it."""
    direct: bool = False
    """FILE_NO_INTERMEDIATE_BUFFERING or a write-through hint; a backend may ignore it."""


class Handle(ABC):
    """An open file, stream or directory. It continues to work when the file is renamed."""

    __slots__ = ()

    key: FileKey
    stream: str
    kind: Kind
    created: bool
    """True if this very open created it."""
    file_created: bool
    """True if this very open created the file itself; False for a new stream of a file that was there."""

    @property
    @abstractmethod
    def path(self) -> Path:
        """The current components in the case they have on disk, with renames of the file and its ancestors. Raises
        FileNotFoundError if the file has no name."""

    @abstractmethod
    def fileno(self) -> int | None:
        """Return the descriptor for preadv, pwritev, sendfile or mmap by the caller; None if there is none."""

    @abstractmethod
    def info(self) -> FileInfo:
        """Return the metadata. Sizes are the stream's, everything else is the file's."""

    def describe(self) -> Described:
        """Return ``info`` and ``security_descriptor``. This costs less than both."""
        return Described(self.info(), self.security_descriptor())

    @abstractmethod
    def read_into(self, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill the buffers from ``offset`` on, and return the number of bytes: less than they hold only at the end of
        file."""

    @abstractmethod
    def write_from(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write everything or raise (ENOSPC, EDQUOT, EFBIG)."""

    @abstractmethod
    def flush(self) -> None:
        """Write everything to stable storage. This may take long: it is called on a worker thread."""

    def shrinking(self, size: int) -> Callable[[], None] | None:
        """Return a function that does most of cutting the file to ``size`` bytes, if that may take long. It may run on
        any thread while the handle is open. None: cutting is quick."""
        return None

    def allocating(self, size: int) -> Iterator[None] | None:
        """Return ``allocate(size)`` in steps, if that may take long. They may run on any one thread while the handle is
        open. None: it is quick."""
        return None

    def zeroing(self, offset: int, length: int) -> Iterator[None] | None:
        """Return ``zero_range`` in steps, as ``allocating`` does."""
        return None

    @abstractmethod
    def truncate(self, size: int) -> None:
        """Set end of file."""

    @abstractmethod
    def allocate(self, size: int) -> None:
        """Set the allocation size in bytes; a size smaller than the end of file truncates. [MS-FSCC 2.4.4]"""

    @abstractmethod
    def zero_range(self, offset: int, length: int) -> None:
        """Make a range read as zeros, and deallocate it if possible. The file is not extended."""

    @abstractmethod
    def allocated_ranges(self, offset: int, length: int, limit: int = 65536) -> list[tuple[int, int]]:
        """Return (offset, length) of the data in the range; the last of ``limit`` ranges may contain holes."""

    @abstractmethod
    def copy_range(self, source: Handle, source_offset: int, offset: int, length: int) -> int:
        """Copy on the server, and return the number of bytes: fewer at the source's end. Raises EXDEV if the source is
        in another kind of store; then copy by reading and writing."""

    @abstractmethod
    def clone_range(self, source: Handle, source_offset: int, offset: int, length: int) -> None:
        """Share extents (reflink). Raises EOPNOTSUPP if the file system cannot."""

    @abstractmethod
    def set_times(
        self,
        creation: int | None = None,
        last_access: int | None = None,
        last_write: int | None = None,
        change: int | None = None,
    ) -> None:
        """Set FILETIMEs; None leaves a time as it is. A store that cannot set ``change`` ignores it."""

    @abstractmethod
    def set_attributes(self, attributes: int) -> None:
        """Set the settable FILE_ATTRIBUTE_* (readonly, hidden, system, archive, temporary, offline, not-indexed,
        sparse). Other bits are ignored."""

    @abstractmethod
    def set_compressed(self, compressed: bool) -> None:
        """Set whether the file system compresses what is written from now on; new entries of a directory inherit it.
        Raises EOPNOTSUPP if it cannot."""

    @abstractmethod
    def eas(self) -> list[tuple[bytes, bytes]]: ...

    def set_ea(self, name: bytes, value: bytes) -> None:
        """Set one EA; an empty value removes it. Names are case-insensitive."""
        self.set_eas([(name, value)])

    @abstractmethod
    def set_eas(self, changes: Sequence[tuple[bytes, bytes]], replace: bool = False) -> None:
        """Set several EAs at once: all or none. The last of equal names counts. ``replace``: remove all other EAs."""

    @abstractmethod
    def security_descriptor(self) -> bytes | None:
        """Return the stored self-relative descriptor; None if there is none (the server derives one from mode and
        owner)."""

    @abstractmethod
    def set_security_descriptor(self, descriptor: bytes) -> None: ...

    def set_permissions(  # noqa: B027
        self, uid: int | None, gid: int | None, mode: int | None = None, acl: bytes | None = None
    ) -> None:
        """Set what the host checks: owner, group, the nine bits of ``mode`` and the POSIX ACL. ``acl`` counts only with
        ``mode``; None removes it.

        This acts with the rights of the user whose handle it is: PermissionError if the host refuses it to the user.
        Set-id bits of a file are removed. A store without such things does nothing."""

    @abstractmethod
    def streams(self) -> list[StreamInfo]:
        """Return the unnamed stream first (files only), then alternate data streams."""

    @abstractmethod
    def rename(self, target: Path, replace: bool, user: User | None = None) -> None:
        """Rename atomically. Raises FileExistsError if the target exists and not ``replace``; EISDIR or ENOTDIR for
        replacing a directory. A change of case only is a rename, too. Use ``rename_stream`` for an alternate stream."""

    @abstractmethod
    def rename_stream(self, name: str, replace: bool) -> None: ...

    @abstractmethod
    def link(self, target: Path, replace: bool, user: User | None = None) -> None: ...

    def check_unlink(self) -> None:  # noqa: B027
        """Raise PermissionError if the host would refuse ``unlink`` to the user whose handle it is: the deletion itself
        happens when no request can report the error. A store without a host does nothing."""

    @abstractmethod
    def unlink(self) -> None:
        """Remove the name by which this handle was opened (as it is now), or the stream. Raises ENOTEMPTY for a
        directory with entries. The handle stays usable until it is closed."""

    @abstractmethod
    def reparse_point(self) -> bytes | None:
        """Return the REPARSE_DATA_BUFFER; None if the file is no reparse point. [MS-FSCC 2.1.2]"""

    @abstractmethod
    def set_reparse_point(self, data: bytes | None) -> None: ...

    @abstractmethod
    def scan(self) -> Iterator[DirectoryEntry]:
        """Return the entries of this directory lazily, in bounded memory, "." and ".." first. Files of the store itself
        never appear."""

    def search(self, matches: Callable[[str], bool], only: str | None = None) -> Iterator[DirectoryEntry | None]:
        """Return the entries whose names match, in the order of ``scan``, and None for each other entry: so a search
        without matches can be interrupted. ``only``: the one name that matches, in any case."""
        return (entry if matches(entry.name) else None for entry in self.scan())

    @abstractmethod
    def close(self) -> None:
        """Close the handle. It may be called again."""


class OpenedFile(NamedTuple):
    """An open file, with its metadata as of that moment."""

    handle: Handle
    found: Described
    is_folder: bool = False
    """The file does not exist, and this is its folder: see ``OpenRequest.or_folder``."""


class Change(NamedTuple):
    """A change that did not come through this backend's handles."""

    action: int
    """FILE_ACTION_* (MS-FSCC 2.7.1); 0: changes were lost, anything below ``path`` may have changed."""
    path: Path
    """Below the share's root, like all paths."""
    filter: int
    """FILE_NOTIFY_CHANGE_* it counts as (MS-SMB2 2.2.35)."""


class Remembered(ABC):
    """A file that is known, but not open. It stays the same file when its names change."""

    key: FileKey
    kind: Kind
    path: Path
    """What it was found by, in the case it has on disk."""

    @abstractmethod
    def is_there(self) -> bool:
        """Return whether ``path`` still leads to it."""

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the file exists under any name, or is open."""

    @abstractmethod
    def open(self, request: OpenRequest) -> Handle:
        """Open the file as ``Backend.open`` would by its name. Raises ``FileNotFoundError`` if it is gone."""


class Backend(ABC):
    """The store of one share."""

    read_only: bool
    """Every change raises EROFS."""
    file_system_name: str
    """Reported to clients; 'NTFS' keeps some of them from losing features."""
    case_sensitive: bool
    supports_streams: bool
    supports_reflink: bool
    supports_compression: bool
    max_file_size: int = MAX_OFFSET
    """Bytes; writes beyond are INVALID_PARAMETER rather than what the store says."""
    volume_serial: int
    volume_created: int
    opens: int = 0
    """Handles made so far."""
    defer_reading: bool = False
    """While set, look-ups that have to read a large directory raise ``FolderNotRead``: their caller can wait."""
    path_lookups: int = 0
    """Paths resolved so far. Neither grows while clients read and write what they opened."""

    def is_available(self) -> bool:
        """Return whether the store exists. If its directory is gone, no client can connect."""
        return True

    @abstractmethod
    def open(self, request: OpenRequest) -> Handle:
        """Open or create a file, stream or directory.

        Raises FileNotFoundError if the last component (or the stream) is missing; PathNotFound if an ancestor is
        missing or no directory; NotADirectoryError or IsADirectoryError against ``directory``; FileExistsError for
        CREATE of an existing one; PermissionError; EILSEQ for an impossible name; EROFS; ELOOP for a symlink that leads
        outside or is not allowed."""

    def open_described(self, request: OpenRequest) -> OpenedFile:
        """Open and describe a file, which costs less than both. Raises the errors of ``open``; PathNotFound also if the
        folder was to be opened and does not exist."""
        is_folder = False
        try:
            handle = self.open(request)
        except PathNotFound:
            raise
        except FileNotFoundError as error:
            if not request.or_folder:
                raise
            is_folder = True
            try:
                handle = self.open(OpenRequest(request.path[:-1], directory=True, user=request.user))
            except (FileNotFoundError, NotADirectoryError):
                raise PathNotFound(*error.args) from None
        try:
            return OpenedFile(handle, handle.describe(), is_folder)
        except BaseException:
            handle.close()
            raise

    def create_in(self, folder: Handle, request: OpenRequest) -> OpenedFile:
        """Create a file or directory in an open folder, to which ``request.path`` leads.

        Only the last component of the path counts. No stream can be named. Raises FileExistsError if the name is taken,
        in any case, and the other errors of ``open``."""
        return self.open_described(replace(request, disposition=Disposition.CREATE))

    def remember(self, request: OpenRequest) -> Remembered | None:
        """Return what opening an existing file would find, without keeping a descriptor. Raises the errors of ``open``
        except for rights on the file itself. None: only an open handle can identify this file reliably."""
        return None

    @abstractmethod
    def stat(self, path: Path, user: User | None = None) -> FileInfo:
        """Return the metadata of a file without opening it. Raises the errors of ``open``."""

    def find_reparse_point(self, path: Path, tag: int, user: User | None = None) -> int | None:
        """Return how many components of ``path`` lead to its first ancestor, from the top, that is a reparse point with
        this tag; None: there is none before the first that is missing."""
        for depth in range(1, len(path)):
            try:
                if self.stat(path[:depth], user).reparse_tag == tag:
                    return depth
            except OSError:
                return None
        return None

    @abstractmethod
    def volume(self) -> VolumeInfo: ...

    @abstractmethod
    def watch(self, handle: Handle, recursive: bool, on_change: Callable[[Change], None]) -> Callable[[], None] | None:
        """Report changes below ``handle`` that other programs make. Return the function that stops it; None if the
        store cannot notice them."""

    @abstractmethod
    def close(self) -> None: ...


def check_times(*filetimes: int | None) -> None:
    """Refuse values that are no FILETIME, which is below 2^63. Raises ``OSError`` (EINVAL). [MS-FSCC 2.1.1]"""
    for filetime in filetimes:
        if filetime is not None and not 0 <= filetime < 1 << 63:
            raise OSError(errno.EINVAL, "time out of range")


class PathNotFound(FileNotFoundError):
    """An ancestor directory does not exist (STATUS_OBJECT_PATH_NOT_FOUND, against OBJECT_NAME_NOT_FOUND)."""


class Reading(Protocol):
    """A directory that has to be read before a name can be found in it."""

    steps: Iterator[None]
    """What reads it, in steps, on any one thread. Whoever sets ``started`` takes them all."""
    started: bool
    waiting: list[Callable[[Exception | None], None]]
    """To be called when that is over, with what went wrong."""


class FolderNotRead(BlockingIOError):
    """A name in a large directory is looked up ignoring case, and the directory is not known yet: try again when it is
    read. Only where ``Backend.defer_reading`` is set."""

    def __init__(self, reading: Reading) -> None:
        super().__init__(errno.EAGAIN, "directory is being read")
        self.reading = reading
