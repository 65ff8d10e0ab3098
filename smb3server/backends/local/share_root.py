"""The directory of the host at which a share begins, and the features of its file system."""

from __future__ import annotations

import enum
import errno
import logging
import os

from smb3server.backends.local import file_io, kept_attributes, syscalls
from smb3server.backends.local.storage_mark import read_mark
from smb3server.process import folder_ways

log = logging.getLogger(__name__)


class _NotFollowedError(OSError):
    """The path leads to another folder than before, by a way that is not followed."""


class Found(enum.Enum):
    """The directory that a share's path leads to, compared with the one that is open."""

    SAME = enum.auto()
    ANOTHER = enum.auto()
    """Another directory has the path now: it was created anew, or a file system was mounted there."""
    NOTHING = enum.auto()


class ShareRoot:
    """The root directory of a share. Nobody but root and this server may have led the path to it by a symbolic link.

    ``descriptor`` (O_PATH) keeps its number when another directory replaces the root, so that other objects may store
    the number."""

    def __init__(self, path: str | os.PathLike[str], require_mount: bool = False) -> None:
        """Open the directory. ``require_mount``: whether it counts as missing if it is no mount point."""
        self.path = os.path.abspath(os.fspath(path))
        self._require_mount = require_mount
        self.descriptor = folder_ways.follow(self.path).descriptor
        self.identity = self._identify()
        """Device and inode number."""
        # Whether the missing directory was logged. It is logged once.
        self._gone = False
        self.mark: str | None = None
        """The mark of its file system (``storage_mark``). A directory without it does not replace the root. None: any
        directory does."""

    def _identify(self) -> tuple[int, int]:
        stat = os.fstat(self.descriptor)
        return stat.st_dev, stat.st_ino

    def look(self) -> Found:
        """Return what the path leads to now. ``ANOTHER`` is returned once: then ``descriptor`` is the new directory."""
        try:
            stat = os.stat(self.path)
            if self._require_mount and not os.path.ismount(self.path):
                raise FileNotFoundError(errno.ENOENT, "nothing is mounted there")
            found = Found.SAME if (stat.st_dev, stat.st_ino) == self.identity else Found.ANOTHER
            if found is Found.ANOTHER and not self._go_along():
                return Found.NOTHING
        except (FileNotFoundError, NotADirectoryError, _NotFollowedError) as error:
            if not self._gone:
                log.warning(
                    "share's directory %s: %s; no client can connect until it is back", self.path, error.strerror
                )
            self._gone = True
            return Found.NOTHING
        except OSError as error:
            # This server may have no access to a directory above. The open directory is still usable.
            log.debug("share's directory %s: %s", self.path, error.strerror)
            return Found.SAME
        self._gone = False
        return found

    def _go_along(self) -> bool:
        """Replace the root by the directory that has its path now. Return False if that lacks the mark."""
        try:
            way = folder_ways.follow(self.path)
        except OSError as error:
            raise _NotFollowedError(error.errno, error.strerror) from error
        try:
            if self.mark is not None and read_mark(way.descriptor) != self.mark:
                if not self._gone:
                    log.error(
                        "share's directory %s was replaced by one without the share's storage mark: no client can "
                        "connect; remedy: mount the share's file system there",
                        self.path,
                    )
                self._gone = True
                return False
            os.dup2(way.descriptor, self.descriptor, inheritable=False)
        finally:
            way.close()
        self.identity = self._identify()
        log.warning("share's directory %s was replaced by another one: new opens go to that one", self.path)
        return True

    def close(self) -> None:
        """Close the descriptor. Calling it again does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    # -- its file system

    def _temporary(self) -> int:
        return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=self.descriptor)

    def has_small_files(self) -> bool:
        """Return whether files are limited to less than 16 TiB, as on ext4. Then NTFS' own limit is reported."""
        try:
            descriptor = self._temporary()
        except OSError:
            return False
        try:
            os.ftruncate(descriptor, 1 << 44)
        except OSError as error:
            return error.errno == errno.EFBIG
        finally:
            os.close(descriptor)
        return False

    def attribute_block(self, namespace: str | None) -> int:
        """Return the bytes that count as allocated once a file has attributes as large as ours usually are: those of
        one block, or 0. It is tried, because inodes of ext4 may be made larger. ``namespace``: of the attributes."""
        if namespace is None:
            return 0
        try:
            descriptor = self._temporary()
        except OSError:
            return 0
        try:
            for item, size in (("meta", 44), ("sd", 64)):
                os.setxattr(descriptor, f"{namespace}.smb3.{item}", bytes(size))
            taken = os.fstat(descriptor).st_blocks * 512
            return taken if taken == os.fstatvfs(descriptor).f_frsize else 0
        except OSError:
            return 0
        finally:
            os.close(descriptor)

    def clones_ranges(self) -> bool:
        """Return whether the file system can clone ranges. It is tried, because XFS may have been made without that."""
        descriptors = []
        try:
            for _ in range(2):
                descriptors.append(self._temporary())
            file_io.write_from(descriptors[0], [bytes(4096)], 0)
            file_io.clone_range(descriptors[0], 0, descriptors[1], 0, 4096)
        except OSError:
            return False
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def keeps_change_times(self) -> bool:
        """Return whether every change of an extended attribute shows in st_ctime at once."""
        return syscalls.file_system_type(self.descriptor) in kept_attributes.RELIABLE

    def compresses(self) -> bool:
        """Return whether the file system compresses files. ext4 stores the flag as well, but compresses nothing."""
        return syscalls.file_system_type(self.descriptor) == syscalls.BTRFS_SUPER_MAGIC
