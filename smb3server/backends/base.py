"""The contract between a share and the store behind it.

It uses no SMB message types. File attributes and times are MS-FSCC values (``wire.attributes``, ``wire.filetime``);
times are FILETIMEs: units of 100 ns since 1601-01-01 UTC.

All methods are short blocking calls on the server's thread, except where another thread is mentioned. They raise
``OSError``, whose errno the server maps to a status. Paths are already split into components and checked against the
naming rules of Windows (MS-FSCC 2.1.5). A backend must nevertheless keep every path below its root.
"""

from __future__ import annotations

import enum
import errno
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Protocol

from smb3server.backends.name_rules import WINDOWS, NameRules
from smb3server.process.storage_queue import StorageQueue
from smb3server.wire.attributes import MAX_OFFSET
from smb3server.wire.file_info import EaEntry
from smbdirect.codec import Buffer
from smbdirect.message_transport import FileRange, Payload

MAX_DESCRIPTOR_BYTES = 65536
"""Bytes of the largest security descriptor that a store keeps."""
FILE_MODE_BITS, FOLDER_MODE_BITS = 0o1777, 0o3777
"""The permission bits that clients may set. No client makes programs that run as another user."""
Path = tuple[str, ...]
"""Components below the share's root, in any case; () is the root itself."""


class FileKey(NamedTuple):
    """The identity of a file, independent of its names."""

    volume: int
    inode: int


class Kind(enum.IntEnum):
    """The kind of a file."""

    FILE = 0
    DIRECTORY = 1
    SYMLINK = 2
    OTHER = 3
    """A FIFO, socket or device. It is listed, and opened for metadata (to delete it), but never for data."""


class Beyond(enum.IntFlag):
    """What a user may do to files of the host beyond the rights that the host gives it."""

    NOTHING = 0
    READ = 1
    """Read and search every file and folder."""
    WRITE = 2
    """Write every file and folder, and change the owner, the mode and the times of every file."""


class User(NamedTuple):
    """POSIX credentials to act with. None in place of a ``User`` means the server's own."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    shared: bool = False
    """Whether several users act with them. The kernel cannot distinguish these users."""
    beyond: Beyond = Beyond.NOTHING
    """For opens that back up or restore. A store gives it as far as the server itself may do that."""


class FileInfo(NamedTuple):
    """The metadata of a file, or of a file and one of its streams, at one moment. Sizes are in bytes."""

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
    """The data of a file that access checks need, at one moment."""

    info: FileInfo
    descriptor: bytes | None
    """The security descriptor that is stored with the file. None means that there is none."""


class StreamInfo(NamedTuple):
    """A stream of a file. Sizes are in bytes."""

    name: str
    """'' means the unnamed data stream."""
    size: int
    allocation_size: int


class FinderData(NamedTuple):
    """What Macs show of a file besides its metadata."""

    resource_size: int
    """Bytes of the resource fork. 0: there is none."""
    finder_info: bytes
    """32 bytes. All of them are 0 if there is none."""


NO_FINDER_DATA = FinderData(0, bytes(32))


class DataVersion(NamedTuple):
    """What differs when the data of a file or stream was changed, by whomever."""

    changed: int
    """When the file or stream was changed last, in ns since 1970. Clients cannot set it."""
    size: int
    """Bytes."""


class VolumeInfo(NamedTuple):
    """Sizes and free space of the volume that has the share, in bytes."""

    total_bytes: int
    free_bytes: int
    available_bytes: int
    block_size: int
    sector_size: int
    file_nodes: int | None = None
    """Number of files that it has room for. None means that nobody knows."""
    free_file_nodes: int | None = None


class DirectoryEntry(NamedTuple):
    """A name in a directory, as clients see it, and its file's metadata."""

    name: str
    info: FileInfo


class Search(ABC):
    """A search of one directory, which has the entries "." and ".." and then the others in the store's own order.

    It reads the directory lazily, in bounded memory. An entry that vanishes before it is looked at is left out."""

    @abstractmethod
    def read(self, most: int) -> Sequence[DirectoryEntry] | None:
        """Return the next entries, as they are now, and at most ``most``. None means that there are no more.

        There may be none for now: each call looks at a bounded number of names, so that a search in a large directory
        can be interrupted. A call that raises ``FolderNotRead`` can be repeated."""

    @abstractmethod
    def unread(self, count: int) -> None:
        """Take back the last ``count`` (at least one) of the entries that the last call of ``read`` returned.

        The next call looks at them again."""

    @abstractmethod
    def close(self) -> None:
        """End the search. From now on ``read`` returns None."""


class ListedSearch(Search):
    """A search of entries that an iterator gives."""

    def __init__(self, entries: Iterator[DirectoryEntry], matches: Callable[[str], bool]) -> None:
        self._entries = entries
        self._matches = matches
        self._last: list[DirectoryEntry] = []
        self._again: list[DirectoryEntry] = []

    def read(self, most: int) -> Sequence[DirectoryEntry] | None:
        if self._again:
            self._last, self._again = self._again[:most], self._again[most:]
            return self._last
        found = list(itertools.islice(self._entries, most))
        self._last = [entry for entry in found if self._matches(entry.name)]
        return self._last if found else None

    def unread(self, count: int) -> None:
        self._again[:0] = self._last[-count:]

    def close(self) -> None:
        self._entries = iter(())
        self._again = []


_A_FEW = 16
"""Entries that ``Handle.scan`` reads at a time: some callers want to know whether there is any."""


def _each(search: Search) -> Iterator[DirectoryEntry]:
    try:
        while (found := search.read(_A_FEW)) is not None:
            yield from found
    finally:
        search.close()


class Disposition(enum.IntEnum):
    """Whether a file is opened, created, or either.

    Overwriting is not a disposition: the server truncates the open file when its checks have passed. If a stream is
    named the disposition applies to the stream. Except for OPEN a missing file is created with it."""

    OPEN = 0
    CREATE = 1
    OPEN_IF = 2


@dataclass(slots=True)
class OpenRequest:
    """A file to open or create, and how."""

    path: Path
    stream: str = ""
    """The name of an alternate data stream without '$DATA'. '' means the file itself."""
    disposition: Disposition = Disposition.OPEN
    read: bool = False
    write: bool = False
    """Requested access to data. Without ``read`` and ``write`` the handle is for metadata only."""
    directory: bool | None = None
    """True: the file must be a directory (else ENOTDIR), or a directory is created. False: it must not be one (else
    EISDIR). None: it may be either; a file is created. If a stream is named, True applies to the file it belongs to,
    and False has no effect."""
    open_reparse_point: bool = False
    attributes: int = 0
    """FILE_ATTRIBUTE_* of a new file. 0 means the default (ARCHIVE for files)."""
    security_descriptor: bytes | None = None
    """A self-relative descriptor for a new file. It is stored before another request can open the file."""
    ea: Sequence[EaEntry] = ()
    user: User | None = None
    or_folder: bool = False
    """Only for ``Backend.open_described``: open the folder of the file if the file does not exist. The store need not
    look for the name in another case."""
    direct: bool = False
    """FILE_NO_INTERMEDIATE_BUFFERING or a write-through hint. A backend may ignore it."""
    by_mac: bool = False
    """Whether the client is a Mac. A store for Macs then has no named streams without data."""
    mode: int | None = None
    """The permission bits of a new file on the host, whatever the umask is. None means those of the store."""


class Handle(ABC):
    """An open file, stream or directory. It continues to work when the file is renamed."""

    __slots__ = ()

    dormant: ClassVar[bool] = False
    """Whether it takes no descriptor, because the file is opened when it is first needed."""
    queue: ClassVar[StorageQueue | None] = None
    """As that of its store."""
    key: FileKey
    stream: str
    kind: Kind
    created: bool
    """Whether this open created the file or stream."""
    file_created: bool
    """Whether this open created the file itself. False for a new stream of an existing file."""

    @property
    @abstractmethod
    def path(self) -> Path:
        """The current path, in the case it has on disk. It follows renames of the file and its ancestors.

        Raises FileNotFoundError if the file has no name."""

    @abstractmethod
    def fileno(self) -> int | None:
        """Return the descriptor for preadv, pwritev, sendfile or mmap by the caller; None if there is none."""

    @abstractmethod
    def info(self) -> FileInfo:
        """Return the metadata. Sizes are the stream's, everything else is the file's."""

    def describe(self) -> Described:
        """Return ``info`` and ``security_descriptor``. This costs less than two calls."""
        return Described(self.info(), self.security_descriptor())

    @abstractmethod
    def data_version(self) -> DataVersion:
        """Return what differs after the data changes. Any thread may call this while the handle is open.

        Two changes within some milliseconds may look like one, because of the clock of the host."""

    @abstractmethod
    def read_into(self, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill the buffers with the data from ``offset`` on. Return the number of bytes, which is less only at the end
        of file."""

    def cached(self, offset: int, length: int) -> FileRange | None:
        """Return the data from ``offset`` on, up to ``length`` bytes of it, if all of it is in memory.

        It is shorter only at end of file. None: there is no data at ``offset``, a disk would have to be waited for, or
        the store does not know."""
        return None

    def storage_failed(self) -> None:
        """Note that the storage could not read the data. ``cached`` returns none of this file any more: the kernel's
        readahead leaves pages in memory that it could not fill."""
        return

    @abstractmethod
    def write_from(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write all buffers at ``offset``. Return the number of bytes. Raises ENOSPC, EDQUOT, EFBIG."""

    def take_in(self, payload: Payload, offset: int) -> None:
        """Write the data of a message that was not received into memory.

        Raises ``OSError`` as ``write_from`` does, and part of the data may be written then. Stores without ``fileno``
        cannot do that."""
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    @abstractmethod
    def flush(self) -> None:
        """Write everything to stable storage. This may take long: it is called on a worker thread."""

    def shrinking(self, size: int) -> Callable[[], None] | None:
        """Return a function that does most of cutting the file to ``size`` bytes, if that may take long. It may run on
        any thread while the handle is open. None means that cutting is quick."""
        return None

    def allocating(self, size: int) -> Iterator[None] | None:
        """Return ``allocate(size)`` in steps, if that may take long. They may run on any one thread while the handle is
        open. None means that it is quick."""
        return None

    def zeroing(self, offset: int, length: int, deallocate: bool = False) -> Iterator[None] | None:
        """Return ``zero_range`` in steps, as ``allocating`` does."""
        return None

    def filling(self) -> Iterator[None] | None:
        """Return steps, as ``allocating`` does, that allocate every hole of the file. None means that it has
        none, or that the handle may not write."""
        return None

    @abstractmethod
    def truncate(self, size: int) -> None:
        """Set end of file to ``size`` bytes."""

    @abstractmethod
    def allocate(self, size: int) -> None:
        """Set the allocation size in bytes; a size smaller than the end of file truncates. [MS-FSCC 2.4.4]"""

    @abstractmethod
    def zero_range(self, offset: int, length: int, deallocate: bool = False) -> None:
        """Make a range read as zeros. The file is not extended. Sparse files, and all files with ``deallocate``, give
        the space back to the file system if the store can."""

    @abstractmethod
    def allocated_ranges(self, offset: int, length: int, limit: int = 65536) -> list[tuple[int, int]]:
        """Return (offset, length) of the data in the range; the last of ``limit`` ranges may contain holes."""

    @abstractmethod
    def copy_range(self, source: Handle, source_offset: int, offset: int, length: int) -> int:
        """Copy on the server, and return the number of bytes: fewer at the source's end. Raises EXDEV if the source is
        in another kind of store; then copy by reading and writing."""

    @abstractmethod
    def clone_range(self, source: Handle, source_offset: int, offset: int, length: int) -> None:
        """Share extents with ``source`` (reflink). Raises EOPNOTSUPP if the file system cannot."""

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
        """Set whether the file system compresses data written after this; new entries of a directory inherit it.
        Raises EOPNOTSUPP if it cannot."""

    @abstractmethod
    def eas(self) -> list[EaEntry]:
        """Return the extended attributes."""

    def set_ea(self, name: bytes, value: bytes) -> None:
        """Set one EA; an empty value removes it. Names are case-insensitive."""
        self.set_eas([EaEntry(name, value)])

    @abstractmethod
    def set_eas(self, changes: Sequence[EaEntry], replace: bool = False) -> None:
        """Set several EAs at once: all or none. The last of equal names counts. ``replace``: remove all other EAs."""

    @abstractmethod
    def security_descriptor(self) -> bytes | None:
        """Return the stored self-relative descriptor; None if there is none (the server derives one from mode and
        owner)."""

    @abstractmethod
    def set_security_descriptor(self, descriptor: bytes) -> None:
        """Store a self-relative descriptor. Raises E2BIG for more than ``MAX_DESCRIPTOR_BYTES``."""

    def set_permissions(  # noqa: B027
        self, uid: int | None, gid: int | None, mode: int | None = None, acl: bytes | None = None
    ) -> None:
        """Set what the host checks: owner, group, the nine bits of ``mode`` and the POSIX ACL. ``acl`` counts only with
        ``mode``; None removes it.

        This acts with the rights of the user whose handle it is: PermissionError if the host refuses it to the user.
        Set-id bits of a file are removed. A store without such things does nothing."""

    def set_mode(self, mode: int) -> None:
        """Set the permission bits on the host, as chmod(2) does with the rights of the user whose handle it is.

        A folder may get the set-group-ID and the sticky bit. Raises PermissionError, and EOPNOTSUPP for a store without
        such bits."""
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    @abstractmethod
    def streams(self) -> list[StreamInfo]:
        """Return the unnamed stream first (files only), then alternate data streams."""

    def listing_streams(self, found: list[StreamInfo]) -> Iterator[None] | None:
        """Return steps that add what ``streams`` returns to ``found``, to be taken on another thread. None if there are
        so few that ``streams`` is quick."""
        return None

    def finder_data(self) -> FinderData:
        """Return what Macs show of the file."""
        return NO_FINDER_DATA

    def lasting_number(self) -> int:
        """Return a number that no other file ever gets, by which ``Backend.find_number`` finds the file. 0: there is
        none."""
        return 0

    @abstractmethod
    def removing_streams(self, spared: Collection[str], removed: list[str]) -> Iterator[None] | None:
        """Remove the alternate streams but for those whose ``stream_key`` is ``spared``, and add their names to
        ``removed``. Return None if that is done, or steps to be taken on another thread if there are many."""

    @abstractmethod
    def rename(self, target: Path, replace: bool, user: User | None = None) -> None:
        """Rename atomically. Raises FileExistsError if the target exists and not ``replace``; EISDIR or ENOTDIR for
        replacing a directory. A change of case only is a rename, too. Use ``rename_stream`` for an alternate stream."""

    @abstractmethod
    def rename_stream(self, name: str, replace: bool) -> None:
        """Rename the alternate stream of this handle. Raises FileExistsError if ``name`` exists and not ``replace``."""

    @abstractmethod
    def link(self, target: Path, replace: bool, user: User | None = None) -> None:
        """Give the file another name (a hard link). Raises as ``rename`` does, and PermissionError for a directory."""

    def check_unlink(self) -> None:  # noqa: B027
        """Raise PermissionError if the host would refuse ``unlink`` to the user whose handle it is: the deletion itself
        happens when no request can report the error. A store without a host does nothing."""

    @abstractmethod
    def unlink(self) -> None:
        """Remove the name by which this handle was opened (as it is now), or the stream. Raises ENOTEMPTY for a
        directory with entries. The handle stays usable until it is closed."""

    def retained(self) -> Retained | None:
        """Return whether the file may not be changed any more: see ``Backend.retains``. None: it may. Raises
        ``OSError``."""
        return None

    def note_deletion(self) -> None:  # noqa: B027
        """Store that the file is deleted now: from this time on it is kept in a recycle folder. Raises ``OSError``. A
        store without recycle folders does nothing."""

    @abstractmethod
    def reparse_point(self) -> bytes | None:
        """Return the REPARSE_DATA_BUFFER; None if the file is no reparse point. [MS-FSCC 2.1.2]"""

    @abstractmethod
    def set_reparse_point(self, data: bytes | None) -> None:
        """Store a REPARSE_DATA_BUFFER. None removes it. Raises EINVAL if it is malformed."""

    @abstractmethod
    def search(self, matches: Callable[[str], bool], only: str | None = None) -> Search:
        """Search this directory for the entries whose names match. Files of the store itself never appear.

        ``only``: the one name that matches, in any case. It may be an entry's 8.3 name."""

    def scan(self) -> Iterator[DirectoryEntry]:
        """Return all entries of this directory, as ``search`` finds them."""
        return _each(self.search(lambda _: True))

    def has_vetoed(self) -> bool:
        """Return whether this directory has entries that exist for no client, but keep it from being deleted."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Close the handle. It may be called again."""


class OpenedFile(NamedTuple):
    """An open file, with its metadata as of that moment."""

    handle: Handle
    found: Described
    is_folder: bool = False
    """The file does not exist, and this is its folder: see ``OpenRequest.or_folder``."""
    path: Path | None = None
    """``Handle.path`` at that moment, if opening has shown it."""


class Change(NamedTuple):
    """A change that did not come through this backend's handles."""

    action: int
    """FILE_ACTION_*. 0 means that changes were lost, so anything below ``path`` may have changed. [MS-FSCC 2.7.1]"""
    path: Path
    """Relative to the share's root, like all paths."""
    filter: int
    """The FILE_NOTIFY_CHANGE_* bits that match the change. [MS-SMB2 2.2.35]"""
    by_server: bool = False
    """Whether this server made it, through another backend whose folder is the same, or holds this one, or lies in
    it."""


class Remembered(ABC):
    """A file that is known, but not open. It stays the same file when its names change."""

    key: FileKey
    kind: Kind
    path: Path
    """The path by which it was looked up."""

    @abstractmethod
    def is_there(self) -> bool:
        """Return whether ``path`` still leads to it."""

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the file exists under any name, or is open."""

    @abstractmethod
    def open(self, request: OpenRequest) -> Handle:
        """Open the file as ``Backend.open`` would by its name. Raises ``FileNotFoundError`` if it is gone."""


class KeptFolder(NamedTuple):
    """A folder that the server makes in its own name. (``Backend.keep_folder``)"""

    descriptor: bytes | None
    """The security descriptor that it gets. None: it must be there, and keeps its own."""
    mode: int
    accepts: Callable[[bytes | None], bool]
    """Returns whether the stored descriptor of a present folder shows that it was made for this purpose."""
    user: User | None = None
    """To whom it belongs on the host. None means the server."""


class Quota(NamedTuple):
    """What a user of the host stores on a file system, and may store there. Sizes are in bytes."""

    uid: int
    used: int
    soft: int
    """The size that a user is to stay below. 0 means any."""
    hard: int
    """The size that the kernel lets no user exceed. 0 means any."""


class Quotas(ABC):
    """The quotas that a file system keeps for users of the host. All methods raise ``OSError``."""

    enforced: bool
    """Whether the limits hold. Otherwise it is only known what is used."""

    @abstractmethod
    def get(self, uid: int) -> Quota:
        """Return the quota of a user."""

    @abstractmethod
    def following(self, uid: int) -> Quota | None:
        """Return the quota of the first user with this or a greater uid who has one. None: there is no such user."""

    @abstractmethod
    def set(self, uid: int, soft: int, hard: int) -> None:
        """Set the limits of a user."""

    @abstractmethod
    def of_user(self, user: User | None) -> Quota | None:
        """Return the quota that holds for what is written as ``user``. None: no limit holds."""


class Retained(NamedTuple):
    """What is still allowed on a file that may not be changed any more."""

    may_be_deleted: bool


class Kept(NamedTuple):
    """A file in a folder of the server, or a folder there that is empty. (``Backend.list_kept``)"""

    path: Path
    key: FileKey
    is_folder: bool
    size: int
    """Bytes of its data, without holes and streams."""
    since: int
    """When it was deleted (``Handle.note_deletion``), in nanoseconds since 1970. If that is not known, or for a folder,
    when it was changed last."""


class Storage(Protocol):
    """Shows whether the file system of a store is there, and works. All methods may block, and raise ``OSError``."""

    @property
    def root(self) -> str:
        """The path of the store."""
        ...

    @property
    def path(self) -> str:
        """The path of the file with the mark."""
        ...

    def read(self) -> str | None:
        """Return the random mark by which the file system is known; None if there is none."""
        ...

    def make(self) -> str:
        """Return the mark; write one to stable storage if there is none."""
        ...

    def try_writing(self, name: str) -> None:
        """Write something to stable storage, as a test. ``name`` tells apart those who do so."""
        ...


class Backend(ABC):
    """The store of one share."""

    read_only: bool
    """Every change raises EROFS."""
    retains: bool = False
    """Whether there are files that may not be changed any more. All changes of these raise EACCES, also by handles that
    were opened before."""
    is_snapshot: bool = False
    """Nothing in it ever changes. It has what a share had at an earlier time."""
    file_system_name: str
    """The name reported to clients. Some of them disable features for names other than 'NTFS'."""
    case_sensitive: bool
    supports_streams: bool
    supports_reflink: bool
    supports_compression: bool
    quotas: Quotas | None = None
    """None: its file system keeps none."""
    name_rules: NameRules = WINDOWS
    """How its names compare. They may change."""
    queue: ClassVar[StorageQueue | None] = None
    """What does the work on it, if its storage may answer late (``slow_store``). None: everybody may wait for it."""
    posix: ClassVar[bool] = False
    """Whether this is a store as the POSIX extensions see it (``as_posix``)."""
    max_file_size: int = MAX_OFFSET
    """Bytes. Writes beyond it fail with INVALID_PARAMETER instead of the store's own error."""
    volume_serial: int
    volume_created: int
    opens: int = 0
    """The number of handles made so far."""
    defer_reading: bool = False
    """While set, the caller can wait: look-ups that have to read a large directory raise ``FolderNotRead``."""
    path_lookups: int = 0
    """The number of paths resolved so far. Reading and writing open files changes neither this nor ``opens``."""

    def begin_row(self) -> None:  # noqa: B027 - most stores have no rows
        """Begin a row of writes in this thread, all through open descriptors. A store may do at its end what it does
        after a write alone."""

    def end_row(self) -> None:  # noqa: B027
        """End the row of writes."""

    def as_posix(self) -> Backend | None:
        """Return the same store for POSIX opens: case matters in all names, and no symlink is followed.

        None means that the store has no files with modes and owners."""
        return None

    @property
    def whole(self) -> Backend:
        """The store that the files are in: this one, or the one that ``as_posix`` gave this view of."""
        return self

    def keeps(self, found: Described) -> bool:
        """Return whether ``look`` finds this very object again as long as the file does not change."""
        return False

    def is_available(self) -> bool:
        """Return whether the store exists. If its directory is gone, no client can connect."""
        return True

    def storage(self) -> Storage | None:
        """Return what shows whether the store's file system is there. None: it always is."""
        return None

    def expect(self, mark: str) -> None:
        """Do not go along when another directory gets the store's path, unless that has this mark (``Storage``)."""
        return

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

    def look(self, path: Path, follow: bool, directory: bool | None, user: User | None) -> tuple[Described, Path]:
        """Describe an existing file, which costs less than opening it. Return the path that it has on disk as well.

        ``follow``: whether a symlink that has the name is followed. ``directory``, ``user``: as in ``OpenRequest``.
        Raises the errors of ``open``."""
        request = OpenRequest(path, directory=directory, open_reparse_point=not follow, user=user)
        handle, found, _, on_disk = self.open_described(request)
        try:
            return found, handle.path if on_disk is None else on_disk
        finally:
            handle.close()

    def create_in(self, folder: Handle, request: OpenRequest) -> OpenedFile:
        """Create a file or directory in an open folder, to which ``request.path`` leads.

        Only the last component of the path counts. No stream can be named. Raises FileExistsError if the name is taken,
        in any case, and the other errors of ``open``."""
        return self.open_described(replace(request, disposition=Disposition.CREATE))

    def remember(self, request: OpenRequest) -> Remembered | None:
        """Return what opening an existing file would find, without keeping a descriptor. Raises the errors of ``open``
        except for rights on the file itself. None means that only an open handle can identify this file reliably."""
        return None

    @abstractmethod
    def stat(self, path: Path, user: User | None = None) -> FileInfo:
        """Return the metadata of a file without opening it. Raises the errors of ``open``."""

    def find_reparse_point(self, path: Path, tag: int, user: User | None = None) -> int | None:
        """Return how many components of ``path`` lead to its first ancestor, from the top, that is a reparse point with
        this tag. None means that there is no such ancestor before the first missing one."""
        for depth in range(1, len(path)):
            try:
                if self.stat(path[:depth], user).reparse_tag == tag:
                    return depth
            except OSError:
                return None
        return None

    def keep_folder(self, path: Path, wanted: KeptFolder) -> bytes:
        """Make a folder in the name of the server, or take the present one. Return its security descriptor.

        A folder that is there gets mode and descriptor anew. No symlink is followed, and the last component is not
        looked up in another case. Raises ``OSError``: PermissionError for a folder that somebody else has made."""
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    def list_kept(self, folder: Path, found: Callable[[Kept], None]) -> Iterator[None]:
        """Return steps, to be taken on another thread, that call ``found`` for each file and each empty folder below a
        folder that the server has made (``keep_folder``).

        No symlink is followed, no other file system is entered. What vanishes is left out. Raises ``OSError``:
        PermissionError if others may write to the folder itself."""
        return iter(())

    def remove_kept(self, path: Path, is_spared: Callable[[FileKey], bool], key: FileKey | None = None) -> bool:
        """Remove what ``list_kept`` has found, in the name of the server. Return whether it was removed.

        It stays if ``is_spared`` returns True for its key, if it is not the file with ``key`` any more, or if it is a
        folder that is not empty. ``key`` None means an empty folder. No symlink is followed, no other file system is
        entered. Raises ``OSError``."""
        return False

    @abstractmethod
    def volume(self) -> VolumeInfo:
        """Return sizes and free space of the volume."""

    def find_number(self, number: int) -> Path:
        """Return the path of the file with a ``Handle.lasting_number``. Raises ``FileNotFoundError``."""
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def backups_size(self) -> int:
        """Return the bytes that backups of Macs take in the store."""
        return 0

    def counting_backups(self) -> Iterator[None] | None:
        """Return steps that count what ``backups_size`` returns, to be taken on another thread before it. None if it is
        quick."""
        return None

    @abstractmethod
    def watch(self, handle: Handle, recursive: bool, on_change: Callable[[Change], None]) -> Callable[[], None] | None:
        """Report changes below ``handle`` that other programs make. Return the function that stops it; None if the
        store cannot notice them."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources of the store."""


def check_times(*filetimes: int | None) -> None:
    """Refuse values that are no FILETIME, which is below 2^63. Raises ``OSError`` (EINVAL). [MS-FSCC 2.1.1]"""
    for filetime in filetimes:
        if filetime is not None and not 0 <= filetime < 1 << 63:
            raise OSError(errno.EINVAL, "time out of range")


class PathNotFound(FileNotFoundError):
    """An ancestor directory does not exist. It becomes OBJECT_PATH_NOT_FOUND instead of OBJECT_NAME_NOT_FOUND."""


class Reading(Protocol):
    """The reading of a directory, which must finish before names can be looked up in it."""

    steps: Iterator[None]
    """Reads the directory in steps, on any one thread. The caller that sets ``started`` takes all steps."""
    started: bool
    waiting: list[Callable[[Exception | None], None]]
    """Functions to call when the reading is over, with the error or None."""


class FolderNotRead(BlockingIOError):
    """A look-up that ignores case needs the names in a large directory that was not read yet. Try again when
    ``reading`` is over. It is raised only while ``Backend.defer_reading`` is set."""

    def __init__(self, reading: Reading) -> None:
        super().__init__(errno.EAGAIN, "directory is being read")
        self.reading = reading
