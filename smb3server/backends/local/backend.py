"""Opens and creates files below a directory of this machine, as the store of a share."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat as stat_module
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from smb3server.backends import names
from smb3server.backends.base import (
    Backend,
    Change,
    Described,
    Disposition,
    FileInfo,
    FileKey,
    Handle,
    Kept,
    KeptFolder,
    Kind,
    OpenedFile,
    OpenRequest,
    Path,
    PathNotFound,
    Remembered,
    User,
    VolumeInfo,
)
from smb3server.backends.local import impersonate, kept_files, kept_folders, quotas, syscalls
from smb3server.backends.local.file_ids import FileIds
from smb3server.backends.local.handle import LocalHandle
from smb3server.backends.local.impersonate import ActAs, LookAs
from smb3server.backends.local.metadata import (
    KIND_BITS,
    KINDS,
    Blob,
    Metadata,
    MetadataStore,
    may_use_trusted,
)
from smb3server.backends.local.namespace import Namespace
from smb3server.backends.local.own_changes import OwnChanges
from smb3server.backends.local.resolve import Resolver
from smb3server.backends.local.retained_handle import RetainedHandle, refusal
from smb3server.backends.local.retention import Retention
from smb3server.backends.local.share_root import Found, ShareRoot
from smb3server.backends.local.sidecar import SideCar
from smb3server.backends.local.storage_mark import StorageMark
from smb3server.backends.local.streams import StreamStore
from smb3server.backends.local.syscalls import FileId, Statx
from smb3server.backends.local.watch import CREATE, Watcher
from smb3server.backends.name_rules import POSIX, WINDOWS
from smb3server.wire import filetime

log = logging.getLogger(__name__)

# A name of a module costs less to look up than a member of an enumeration.
_FILE, _DIRECTORY, _OTHER = Kind.FILE, Kind.DIRECTORY, Kind.OTHER
_OPEN, _CREATE = Disposition.OPEN, Disposition.CREATE
_OPEN_FLAGS = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_TRIES = 16
"""Attempts to open or create a name that other programs create and remove at the same time."""


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Settings of a ``LocalBackend``."""

    read_only: bool = False
    is_snapshot: bool = False
    """Whether the directory is a snapshot, or in one. Then it is to be ``read_only`` as well."""
    symlinks: str = "beneath"
    """'beneath': symlinks are followed while they stay below the root. 'never': they are not followed."""
    sidecar: str | None = None
    """A directory for the side-car store (one per share), used where this server may not make '.smb3server' in the
    share's root. What an earlier run has left in it is moved there."""
    xattrs: str = "auto"
    """The namespace of extended attributes: 'trusted', 'user', 'none' (only the side-car store is used) or 'auto'."""
    openat2: bool | None = None
    """Whether to use openat2(2). None means: if the kernel has it."""
    file_mode: int = 0o666
    """Mode of new files, before the umask is applied."""
    directory_mode: int = 0o777
    exact_modes: bool = False
    """Whether ``file_mode`` and ``directory_mode`` count as they are, whatever the umask is."""
    case_sensitive: bool = False
    """Whether names that differ in case only are different names."""
    vetoes: Callable[[str], bool] | None = None
    """Returns whether a name on the wire exists for no client, in any folder. None means that all do."""
    file_system_name: str = "NTFS"
    retention: Retention | None = None
    """Which files may not be changed any more. None: none. It does not change while the store is in use."""
    require_mount: bool = False
    """Whether the root has to be a mount point: an empty one counts as missing."""


NTFS_MAX_FILE_SIZE = 0xFFFFFFF0000
"""The limit of NTFS with clusters of 4 KiB, in bytes."""


class LocalBackend(Backend):
    """A directory of this machine. It needs Linux with /proc mounted."""

    case_sensitive = False
    supports_streams = True
    stream_store = StreamStore
    """The class of its streams."""
    handle_type: type[LocalHandle] = LocalHandle
    """The class of its handles, but for those of streams."""

    def __init__(self, root: str | os.PathLike[str], options: LocalOptions | None = None) -> None:
        self.options = options = options or LocalOptions()
        if options.symlinks not in ("beneath", "never"):
            raise ValueError(f"symlinks: 'beneath' or 'never', not {options.symlinks!r}")
        self.read_only = options.read_only
        self.is_snapshot = options.is_snapshot
        self.retention = options.retention
        self.retains = options.retention is not None
        if self.retention is not None:
            self.handle_type = RetainedHandle
        self.file_system_name = options.file_system_name
        self._share_root = ShareRoot(root, options.require_mount)
        self._root = self._share_root.descriptor
        self.own = OwnChanges(root)
        self.unreadable: set[FileKey] = set()
        try:
            namespace = options.xattrs
            if namespace == "auto":
                namespace = "trusted" if may_use_trusted() else "user"
            if namespace not in ("trusted", "user", "none"):
                raise ValueError(f"xattrs: 'auto', 'trusted', 'user' or 'none', not {options.xattrs!r}")
            self.name_rules = POSIX if options.case_sensitive else WINDOWS
            self.resolver = Resolver(
                self._root,
                follow_symlinks=options.symlinks == "beneath",
                openat2=options.openat2,
                patience=self,
                case_sensitive=options.case_sensitive,
                vetoes=options.vetoes,
            )
            self._sidecar, refused = self._make_sidecar(options.sidecar)
            self.store = MetadataStore(self._sidecar, None if namespace == "none" else namespace)
            self.streams = self.stream_store(self._sidecar, None if namespace == "none" else namespace)
            self.streams.refused = refused
            self._watcher = Watcher(self.resolver, self.own)
            self.namespace = Namespace(self.resolver, self.store, self.own, self.read_only)
            self._posix: PosixStore | None = None
            self._ask_root()
        except BaseException:
            self.own.close()
            self._share_root.close()
            raise

    def _ask_root(self) -> None:
        """Find out about the directory behind ``_root`` and its file system."""
        stat, root = syscalls.statx(self._root), self._share_root
        self.volume_serial = zlib.crc32(f"{stat.dev}:{stat.ino}".encode()) or 1
        self.volume_created = filetime.from_ns(stat.btime if stat.btime >= 0 else stat.mtime)
        self.file_ids = FileIds(self._root)
        self.quotas = quotas.find(self._root)
        self.store.attribute_block = 0 if self.read_only else root.attribute_block(self.store.namespace)
        self.store.kept.device = stat.dev if root.keeps_change_times() else None
        small = not self.read_only and root.has_small_files()
        self.max_file_size = NTFS_MAX_FILE_SIZE if small else Backend.max_file_size
        self.supports_reflink = not self.read_only and root.clones_ranges()
        self.supports_compression = not self.read_only and root.compresses()

    @property
    def root_key(self) -> tuple[int, int]:
        """Device and inode number of the root."""
        return self._share_root.identity

    def may_answer_late(self) -> bool:
        """Return whether the root's file system asks another machine or another program."""
        return syscalls.file_system_type(self._root) in syscalls.LATE

    begin_row, end_row = staticmethod(impersonate.begin_row), staticmethod(impersonate.end_row)

    def is_available(self) -> bool:
        """Return whether the root exists. If another directory has the share's path now, new opens go there; present
        opens stay in the old one."""
        found = self._share_root.look()
        if found is Found.ANOTHER:
            self._sidecar.close()
            self.file_ids.close()
            self._ask_root()
        return found is not Found.NOTHING

    def storage(self) -> StorageMark:
        """See ``Backend``."""
        return StorageMark(self._share_root.path)

    def expect(self, mark: str) -> None:
        """See ``Backend``."""
        self._share_root.mark = mark

    def _make_sidecar(self, directory: str | None) -> tuple[SideCar, str]:
        """Return the side-car store, and why no streams can be written there, or "".

        It is in the share's root, where it counts for the share's space and quotas. ``directory`` is another place for
        small items if this server may not write to the root: users could fill the file system of the state there."""
        if directory is None:
            return SideCar(self._open_root, names.PRIVATE_NAME, self.read_only), ""
        parent, name = os.path.split(os.path.abspath(directory))

        def open_parent() -> int:
            return os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

        if self.read_only or not self._may_keep():
            inside = SideCar(self._open_root, names.PRIVATE_NAME, self.read_only)
            refused = "" if self.read_only else f"{names.PRIVATE_NAME} cannot be made in {self._share_root.path}"
            return SideCar(open_parent, name or "files", self.read_only, inside), refused
        beside = SideCar(open_parent, name or "files")
        found = SideCar(self._open_root, names.PRIVATE_NAME, other=beside)
        try:
            moved = found.take_over()
            if moved:
                log.info(
                    "%s: streams and descriptors of %d files moved here from %s",
                    self._share_root.path,
                    moved,
                    directory,
                )
        except OSError as error:
            log.warning("%s: streams stay in %s: %s", self._share_root.path, directory, error)
        return found, ""

    def _may_keep(self) -> bool:
        """Return whether the side-car store is in the root, or this server may make it there."""
        try:
            stat = os.stat(names.PRIVATE_NAME, dir_fd=self._root, follow_symlinks=False)
        except FileNotFoundError:
            return os.access(".", os.W_OK | os.X_OK, dir_fd=self._root, effective_ids=True)
        return stat.st_uid in (0, os.geteuid())

    def _open_root(self) -> int:
        return os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)

    def close(self) -> None:
        if self._root >= 0:
            self._watcher.close()
            self.own.close()
            self.file_ids.close()
            self._share_root.close()
            self._root = -1
            self._sidecar.close()

    @property
    def path_lookups(self) -> int:  # type: ignore[override]
        return self.resolver.lookups

    def change(self, options: LocalOptions) -> None:
        """Use other options for later requests. The side-car store and the namespace of attributes stay.

        A store that was writable stays so: those who are writing may finish, and the share's rights refuse others."""
        read_only = self.read_only and options.read_only
        self.options = replace(
            options,
            read_only=read_only,
            sidecar=self.options.sidecar,
            xattrs=self.options.xattrs,
            openat2=self.options.openat2,
            retention=self.options.retention,
        )
        self.resolver.follow_symlinks = options.symlinks == "beneath"
        self.name_rules = POSIX if options.case_sensitive else WINDOWS
        views = [self] if self._posix is None else [self, self._posix]
        for view in views:
            view.resolver.set_names(options.case_sensitive, options.vetoes)
        if self.read_only and not read_only:
            self.read_only = False
            for view in views:
                view.namespace.read_only = False
            self._sidecar.make_writable()
            self.file_ids.close()
            self._ask_root()

    def as_posix(self) -> Backend:
        """See ``Backend``. There is one such view of each store."""
        if self._posix is None:
            self._posix = PosixStore(self)
        return self._posix

    def check_writable(self) -> None:
        if self.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    # -- opening

    def open(self, request: OpenRequest) -> Handle:
        self.opens += 1
        if not request.path and not self.is_available():
            # A removed directory would be listed as an empty one, and a client that mirrors it would delete its files.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        for _ in range(_TRIES):
            try:
                # Change credentials once for both calls: this costs more than opening does.
                with LookAs(request.user):
                    found, stat = self.resolver.open_path(request.path, not request.open_reparse_point)
                    descriptor, kind, data = self._open_data(request, found, stat)
            except FileNotFoundError as error:
                if request.disposition is _OPEN or error.errno != errno.ENOENT:
                    raise
                new = self._create(request)
                if new is None:
                    continue
                return self._created(request, new).handle
            if request.stream:
                try:
                    return self._open_stream(request, descriptor, stat, kind)
                except BaseException:
                    os.close(descriptor)
                    raise
            return _existing(self, request, descriptor, stat, kind, data)
        # Another program keeps creating and removing the name, or a dangling symlink has it.
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), "/".join(request.path))

    def open_described(self, request: OpenRequest) -> OpenedFile:
        """Open and describe an existing file, or its folder. The description uses the stat of the opening."""
        if request.stream or request.disposition is not _OPEN:
            return super().open_described(request)
        self.opens += 1
        path = request.path
        if len(path) <= request.or_folder and not self.is_available():
            # Check as ``open`` does, if the root is opened itself or may be opened as the folder of a file.
            missing = PathNotFound if path else FileNotFoundError
            raise missing(errno.ENOENT, os.strerror(errno.ENOENT))
        descriptor, stat, is_folder, on_disk, has_data = self.resolver.look_up(
            path,
            not request.open_reparse_point,
            request.or_folder,
            request.user,
            self._data_flags(request),
            request.read and request.directory is not False,
        )
        data: int | None = None
        if is_folder:
            kind = _DIRECTORY
        elif has_data:
            kind, data = KINDS[stat.mode & KIND_BITS], descriptor
        elif not request.read and not request.write:
            descriptor, kind, data = self._open_data(request, descriptor, stat)
        else:
            with LookAs(request.user):
                descriptor, kind, data = self._open_data(request, descriptor, stat)
        handle = self.handle_type(
            self,
            descriptor,
            stat,
            kind,
            data if kind is _FILE else None,
            request.user,
            is_path=data is None,
            writable=request.write and not is_folder,
        )
        try:
            reference = descriptor if data is not None else f"/proc/self/fd/{descriptor}"
            # As ``OpenedFile(…)``, for a third of its time.
            opened: OpenedFile = tuple.__new__(
                OpenedFile, (handle, self.store.describe(reference, stat), is_folder, on_disk)
            )
            return opened
        except BaseException:
            handle.close()
            raise

    def look(self, path: Path, follow: bool, directory: bool | None, user: User | None) -> tuple[Described, Path]:
        self.opens += 1
        if not path and not self.is_available():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        descriptor = -1
        try:
            descriptor, stat, _, on_disk, _ = self.resolver.look_up(path, follow, False, user)
            if directory is not None and directory is not (KINDS.get(stat.mode & KIND_BITS) is _DIRECTORY):
                raise _wrong_kind(path, directory)
            found = self.store.describe(f"/proc/self/fd/{descriptor}", stat)
            if on_disk is None:
                on_disk = tuple(map(names.to_wire, self.resolver.disk_path(descriptor))) if path else ()
            return found, on_disk
        finally:
            if descriptor >= 0:
                # Not by ``release``: the file had a name when it was found.
                os.close(descriptor)

    def keeps(self, found: Described) -> bool:
        return self.store.kept.has(found)

    def _data_flags(self, request: OpenRequest) -> int:
        """Return the flags of open(2) for the data of a regular file, as the request wants it; -1 if it is not to be
        opened."""
        wanted = request.write or request.read
        if not wanted or request.directory is True or (request.write and self.read_only):
            return -1
        return _data_flags(request) | _OPEN_FLAGS

    def _open_data(self, request: OpenRequest, descriptor: int, stat: Statx) -> tuple[int, Kind, int | None]:
        """Open the data of a file if that was requested, as the same user.

        Return the descriptor to keep, the kind and the descriptor for data, or None without one. This takes over
        ``descriptor`` (O_PATH), and closes it on failure. The data is opened through /proc/self/fd, because the name
        could lead to another file, such as a device, by now."""
        data = None
        try:
            kind = KINDS.get(stat.mode & KIND_BITS, _OTHER)
            self._check_kind(request, kind)
            reference = f"/proc/self/fd/{descriptor}"
            if request.stream:
                wanted = (os.R_OK if request.read else 0) | (os.W_OK if request.write else 0)
                if wanted and not os.access(reference, wanted, effective_ids=True):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/".join(request.path))
                return descriptor, kind, None
            if request.disposition is _CREATE:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), "/".join(request.path))
            if kind is _FILE and (request.read or request.write):
                data = os.open(reference, _data_flags(request) | _OPEN_FLAGS)
            elif kind is _DIRECTORY and request.read:
                data = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if data is None:
            return descriptor, kind, None
        os.close(descriptor)
        return data, kind, data

    def _check_kind(self, request: OpenRequest, kind: Kind) -> None:
        directory = request.directory
        if directory is not None and directory is not (kind is _DIRECTORY) and not (request.stream and not directory):
            raise _wrong_kind(request.path, directory)
        data = request.read or request.write
        if kind is _OTHER and (data or request.stream):
            raise PermissionError(errno.EACCES, "neither a file nor a directory", "/".join(request.path))
        if request.write and self.read_only and kind is _FILE:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/".join(request.path))

    def stream_type(self, name: str) -> type[LocalHandle]:
        """Return the class of a stream's handle."""
        return LocalHandle if self.retention is None else RetainedHandle

    def _open_stream(self, request: OpenRequest, descriptor: int, stat: Statx, kind: Kind) -> LocalHandle:
        """Open or create a stream. This takes over ``descriptor`` (O_PATH) on success only."""
        reference = f"/proc/self/fd/{descriptor}"
        metadata = self.store.load(reference, stat)
        created = False
        name = request.stream
        try:
            if not metadata.present & Blob.STREAMS:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), request.stream)
            flags = _data_flags(request) | _OPEN_FLAGS
            data, name = self.streams.open(self.store.key(stat, metadata), request.stream, flags, (stat.uid, stat.gid))
            if request.disposition is _CREATE:
                os.close(data)
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), request.stream)
        except FileNotFoundError:
            if request.disposition is _OPEN:
                raise
            data = self._create_stream(request, descriptor, stat, metadata)
            created = True
        return self.stream_type(name)(
            self,
            descriptor,
            stat,
            kind,
            data,
            request.user,
            is_path=True,
            writable=request.write or created,
            stream=name,
            created=created,
        )

    def _create_stream(self, request: OpenRequest, descriptor: int, stat: Statx, metadata: Metadata) -> int:
        self.check_writable()
        reference = f"/proc/self/fd/{descriptor}"
        with LookAs(request.user):
            if not os.access(reference, os.W_OK, effective_ids=True):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/".join(request.path))
        is_file = stat.mode & KIND_BITS == stat_module.S_IFREG
        if self.retention is not None and is_file and self.retention.look(self.store, reference, stat).retained:
            raise refusal("/".join(request.path))
        key = self.store.ensure_key(reference, stat, metadata)
        data = self.streams.create(key, request.stream, (stat.uid, stat.gid))
        if not metadata.present & Blob.STREAMS:
            metadata.present |= Blob.STREAMS
            try:
                self.store.save(reference, stat, metadata)
            except BaseException:
                os.close(data)
                self.streams.remove(key, request.stream)
                raise
        return data

    def remember(self, request: OpenRequest) -> Remembered | None:
        """Return None also for alternate streams, and where ``FileIds`` are of no use."""
        if request.stream:
            return None
        with LookAs(request.user):
            descriptor, stat = self.resolver.open_path(request.path, not request.open_reparse_point)
        try:
            kind = KINDS.get(stat.mode & KIND_BITS, _OTHER)
            self._check_kind(request, kind)
            file_id = self.file_ids.of(descriptor, stat)
        finally:
            os.close(descriptor)
        if file_id is None:
            return None
        return _RememberedFile(self, FileKey(stat.dev, stat.ino), kind, request, file_id)

    def find(self, request: OpenRequest, file_id: FileId) -> tuple[int, Statx] | None:
        """Return an O_PATH descriptor of the file and its stat, if ``request.path`` leads to it."""
        try:
            with LookAs(request.user):
                descriptor, stat = self.resolver.open_path(request.path, not request.open_reparse_point)
        except OSError:
            return None
        if self.file_ids.of(descriptor, stat) == file_id:
            return descriptor, stat
        os.close(descriptor)
        return None

    def reopen(self, request: OpenRequest, file_id: FileId) -> Handle:
        """Open a remembered file: by its name if it still has that, so that the kernel knows its path."""
        self.opens += 1
        found = self.find(request, file_id)
        if found is None:
            moved = self.file_ids.open(file_id)
            try:
                found = moved, syscalls.statx(moved)
            except BaseException:
                os.close(moved)
                raise
        with LookAs(request.user):
            descriptor, kind, data = self._open_data(request, *found)
        return _existing(self, request, descriptor, found[1], kind, data)

    # -- creating

    def _create(self, request: OpenRequest) -> int | None:
        """Make a missing file or directory, and return a descriptor. None means that the name was taken meanwhile."""
        self.check_writable()
        if not request.path:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        with LookAs(request.user):
            parent, _ = self.resolver.open_parent(request.path)
        try:
            return self._add(request, parent)
        except FileExistsError:
            return None
        finally:
            os.close(parent)

    def create_in(self, folder: Handle, request: OpenRequest) -> OpenedFile:
        """Create a file or directory in the very directory that ``folder`` has open."""
        if not isinstance(folder, LocalHandle) or request.stream or not request.path:
            return super().create_in(folder, request)
        self.opens += 1
        self.check_writable()
        return self._created(request, self._add(request, folder.place()))

    def _add(self, request: OpenRequest, parent: int) -> int:
        """Make a new file or directory in the directory ``parent``, and return a descriptor.

        Raises FileExistsError if the name is taken, in any case."""
        flags = _data_flags(request) | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | _OPEN_FLAGS
        cache = self.resolver.cache
        with ActAs(request.user):
            addition = cache.before_adding(parent, request.path[-1])
            name = addition.name
            if addition.present is not None:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), addition.present)
            self.own.expect(parent, name, CREATE)
            if request.directory is not True or request.stream:
                mode = self.options.file_mode if request.mode is None else request.mode
                descriptor = os.open(name, flags, mode, dir_fd=parent)
            else:
                mode = self.options.directory_mode if request.mode is None else request.mode
                os.mkdir(name, mode, dir_fd=parent)
                access = os.O_RDONLY if request.read else os.O_PATH
                descriptor = os.open(name, access | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            if self.options.exact_modes or request.mode is not None:
                _set_mode(descriptor, mode)
            cache.after(addition.before, parent, added=name, added_hash=addition.hash)
        return descriptor

    def _created(self, request: OpenRequest, descriptor: int) -> OpenedFile:
        """Store the initial metadata of a new file or directory, and return its handle with the metadata.

        This takes over ``descriptor``."""
        try:
            stat = syscalls.statx(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        kind = KINDS.get(stat.mode & KIND_BITS, _OTHER)
        is_path = kind is _DIRECTORY and not request.read
        handle = self.handle_type(
            self,
            descriptor,
            stat,
            kind,
            descriptor if kind is _FILE and (request.read or request.write) else None,
            request.user,
            is_path=is_path,
            writable=request.write,
            created=True,
        )
        try:
            reference = f"/proc/self/fd/{descriptor}" if is_path else descriptor
            found = self.store.begin(descriptor, reference, stat, request.attributes, request.security_descriptor)
            if request.ea:
                handle.set_eas(request.ea)
                found = handle.describe()
            if not request.stream:
                return OpenedFile(handle, found)
            opened = self._open_new_stream(request, descriptor, stat, kind)
        except BaseException:
            # Remove an incomplete file, for example one without its security descriptor.
            with contextlib.suppress(OSError):
                handle.unlink()
            handle.close()
            raise
        handle.close()
        opened.file_created = True
        return OpenedFile(opened, opened.describe())

    def _open_new_stream(self, request: OpenRequest, base: int, stat: Statx, kind: Kind) -> LocalHandle:
        descriptor = os.open(f"/proc/self/fd/{base}", os.O_PATH | os.O_CLOEXEC)
        try:
            return self._open_stream(request, descriptor, stat, kind)
        except BaseException:
            os.close(descriptor)
            raise

    # -- the rest

    def stat(self, path: Path, user: User | None = None) -> FileInfo:
        # Without a user the server asks on its own behalf, with its own rights.
        with contextlib.nullcontext() if user is None else LookAs(user):
            descriptor, stat = self.resolver.open_path(path)
        try:
            return self.store.info(stat, self.store.load(f"/proc/self/fd/{descriptor}", stat))
        finally:
            os.close(descriptor)

    def find_reparse_point(self, path: Path, tag: int, user: User | None = None) -> int | None:
        def matches(descriptor: int, stat: Statx) -> bool:
            return self.store.info(stat, self.store.load(f"/proc/self/fd/{descriptor}", stat)).reparse_tag == tag

        with LookAs(user):
            return self.resolver.find_ancestor(path, matches)

    def info_of(self, descriptor: int, reference: int | str) -> FileInfo:
        """Return the metadata of the file itself, independent of the open stream."""
        stat = syscalls.statx(descriptor)
        return self.store.info(stat, self.store.load(reference, stat))

    def parent_info(self, descriptor: int, here: FileInfo) -> FileInfo:
        """Return what '..' shows. The root is its own parent; nothing above it is shown."""
        try:
            components = self.resolver.disk_path(descriptor)
            if not components:
                return here
            parent = self.resolver.open_exact(components[:-1])
        except FileNotFoundError:
            return here
        try:
            return self.info_of(parent, f"/proc/self/fd/{parent}")
        finally:
            os.close(parent)

    def sync_parent(self, components: list[str]) -> None:
        """Make a new name durable."""
        parent = self.resolver.open_exact(components[:-1])
        try:
            descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
        finally:
            os.close(parent)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def keep_folder(self, path: Path, wanted: KeptFolder) -> bytes:
        self.check_writable()
        return kept_folders.keep(self.resolver, self.store, path, wanted)

    def list_kept(self, folder: Path, found: Callable[[Kept], None]) -> Iterator[None]:
        yield from kept_files.walk(self.resolver, self.store, folder, found)

    def remove_kept(self, path: Path, is_spared: Callable[[FileKey], bool], key: FileKey | None = None) -> bool:
        self.check_writable()
        return kept_files.remove(self.resolver, self.store, path, is_spared, key)

    def volume(self) -> VolumeInfo:
        found = os.fstatvfs(self._root)
        return VolumeInfo(
            found.f_blocks * found.f_frsize,
            found.f_bfree * found.f_frsize,
            found.f_bavail * found.f_frsize,
            found.f_frsize,
            512,
            # A file system that makes them as they are needed reports none.
            found.f_files or None,
            found.f_ffree if found.f_files else None,
        )

    def watch(self, handle: Handle, recursive: bool, on_change: Callable[[Change], None]) -> Callable[[], None] | None:
        """Report changes through inotify, in the running event loop."""
        if not isinstance(handle, LocalHandle) or handle.kind is not _DIRECTORY:
            return None
        return self._watcher.subscribe(handle.disk_path, recursive, on_change)


class PosixStore(LocalBackend):
    """A store as the POSIX extensions see it: case matters in all names, and no symlink is followed.

    It is a view: everything but the look-up of names it has in common with the store that it was made of."""

    # Descriptors of slots come before what the common ``__dict__`` has under the same names.
    __slots__ = ("_whole", "name_rules", "namespace", "resolver")
    posix = True

    def __init__(self, whole: LocalBackend) -> None:
        self.__dict__ = whole.__dict__
        self._whole = whole
        self.name_rules = POSIX
        self.resolver = whole.resolver.for_posix()
        self.namespace = Namespace(self.resolver, self.store, self.own, whole.namespace.read_only)

    @property
    def whole(self) -> Backend:
        return self._whole


class _RememberedFile(Remembered):
    """A file that is identified by its handle of the file system."""

    __slots__ = ("_backend", "_file_id", "_request", "key", "kind", "path")

    def __init__(self, backend: LocalBackend, key: FileKey, kind: Kind, request: OpenRequest, file_id: FileId) -> None:
        self._backend = backend
        self._request = request
        self._file_id = file_id
        self.key = key
        self.kind = kind
        self.path = request.path

    def is_there(self) -> bool:
        found = self._backend.find(self._request, self._file_id)
        if found is None:
            return False
        os.close(found[0])
        return True

    def exists(self) -> bool:
        if self.is_there():
            return True
        try:
            os.close(self._backend.file_ids.open(self._file_id))
        except FileNotFoundError:
            return False
        return True

    def open(self, request: OpenRequest) -> Handle:
        return self._backend.reopen(request, self._file_id)


def _wrong_kind(path: Path, directory: bool) -> OSError:
    """Return the error for a path that leads to a directory, or with ``directory`` to anything else."""
    number = errno.ENOTDIR if directory else errno.EISDIR
    return OSError(number, os.strerror(number), "/".join(path))


def _existing(
    backend: LocalBackend, request: OpenRequest, descriptor: int, stat: Statx, kind: Kind, data: int | None
) -> LocalHandle:
    """Return the handle of an existing file or directory. It takes over the descriptors."""
    return backend.handle_type(
        backend,
        descriptor,
        stat,
        kind,
        data if kind is _FILE else None,
        request.user,
        is_path=data is None,
        writable=request.write,
    )


def _data_flags(request: OpenRequest) -> int:
    if request.write:
        return os.O_RDWR if request.read else os.O_WRONLY
    return os.O_RDONLY


def _set_mode(descriptor: int, mode: int) -> None:
    """Give a new file its mode. A folder keeps the set-group-ID bit that it has from the folder above."""
    reference = f"/proc/self/fd/{descriptor}"
    os.chmod(reference, os.stat(reference).st_mode & 0o7000 | mode)
