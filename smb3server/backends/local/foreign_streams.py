"""Moves into a file's streams what Samba, netatalk and Macs have kept of it elsewhere.

- ``._NAME`` beside the file NAME: AppleDouble, by macOS, netatalk and Samba (``fruit:resource = file``).
- ``user.org.netatalk.Metadata``: AppleDouble in an attribute, by netatalk and Samba (``fruit:metadata = netatalk``).
- ``user.org.netatalk.ResourceFork``: a resource fork (``fruit:resource = xattr``).
- ``user.DosStream.NAME:$DATA``: a stream, by Samba's streams_xattr.

A file's own stream counts, unless ``._NAME`` was written after it. What was moved is removed when all of it is on the
disk. What cannot be read, or does not belong to the file's owner, stays where it is: a user could otherwise write into
the files of others.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat as stat_module
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from smb3server.backends import names
from smb3server.backends.base import FileKey
from smb3server.backends.local import apple_double, file_io, syscalls
from smb3server.backends.local.metadata import Blob, MetadataStore
from smb3server.backends.local.own_changes import OwnChanges
from smb3server.backends.local.resolve import Resolver
from smb3server.backends.local.streams import StreamStore
from smb3server.backends.local.syscalls import Statx
from smb3server.wire import apple
from smbdirect.errors import DecodeError

log = logging.getLogger(__name__)

UNFINISHED = names.PRIVATE_NAME
"""The name of a stream that is not complete. It is never listed."""
_PREFIX = "._"
_NETATALK = "user.org.netatalk.Metadata"
_NETATALK_FORK = "user.org.netatalk.ResourceFork"
_DOS_STREAM, _DOS_TYPE = "user.DosStream.", ":$DATA"
_PIECE = 1 << 20
_MAX_COMPLAINTS = 1024
_NONE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EACCES)
"""Errors of files that have no such attributes, or whose attributes this server may not read."""


class Host(Protocol):
    """The part of the store that this module uses."""

    resolver: Resolver
    store: MetadataStore
    own: OwnChanges
    open_streams: dict[FileKey, int]
    """How many handles a stream's item has."""
    complaints: set[FileKey]
    """Files of which the log says why nothing was moved."""

    @property
    def streams(self) -> StreamStore:
        """Its streams."""


@dataclass(slots=True)
class _Found:
    """What was found of one file."""

    streams: dict[str, bytes] = field(default_factory=dict)
    """Contents of streams, by name."""
    fork: tuple[int, int] = (0, 0)
    """Where in ``beside`` the resource fork begins, and its size."""
    attributes: list[str] = field(default_factory=list)
    """Those that are removed afterwards."""
    beside: int | None = None
    """A descriptor of ``._NAME``."""
    parent: int | None = None
    """A descriptor of its folder."""
    name: str = ""

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in (self.beside, self.parent):
            if descriptor is not None:
                os.close(descriptor)


def take_over(host: Host, descriptor: int, stat: Statx) -> bool:
    """Move what is kept of a file elsewhere into its streams. Return whether there was something.

    ``descriptor``: of the file, which may be O_PATH. An error is logged, and leaves everything where it is."""
    if stat.mode & 0o170000 not in (stat_module.S_IFREG, stat_module.S_IFDIR):
        return False
    found = _Found()
    try:
        reference = f"/proc/self/fd/{descriptor}"
        _look_at_attributes(reference, found)
        _look_beside(host, descriptor, stat, found)
        if not found.attributes and found.beside is None:
            return False
        _keep(host, descriptor, reference, stat, found)
        _remove(host, reference, found)
    except (OSError, DecodeError) as error:
        _complain(host, FileKey(stat.dev, stat.ino), _path(descriptor), error)
        return False
    finally:
        found.close()
    log.info("%s: what other servers have kept of it is in its streams now", _path(descriptor))
    return True


def _complain(host: Host, key: FileKey, path: str, error: Exception) -> None:
    """Say why nothing was moved, once for a file: somebody may look at it often."""
    if key not in host.complaints:
        if len(host.complaints) >= _MAX_COMPLAINTS:
            host.complaints.clear()
        host.complaints.add(key)
        log.warning("%s: what other servers have kept of it stays as it is: %s", path, error)


def _path(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _look_at_attributes(reference: str, found: _Found) -> None:
    """Add what extended attributes hold. Raises ``DecodeError`` and ``OSError``."""
    try:
        present = os.listxattr(reference)
    except OSError as error:
        if error.errno in _NONE:
            return
        raise
    for name in present:
        if name == _NETATALK:
            value = os.getxattr(reference, name)
            _add(found, apple_double.parse(value, len(value)))
        elif name == _NETATALK_FORK:
            found.streams[apple.AFP_RESOURCE] = os.getxattr(reference, name)
        elif name.startswith(_DOS_STREAM) and name.endswith(_DOS_TYPE):
            # Samba adds a NUL, so that a stream without data has a value.
            value = os.getxattr(reference, name)
            found.streams[_stream_name(name[len(_DOS_STREAM) : -len(_DOS_TYPE)])] = value[:-1]
        else:
            continue
        found.attributes.append(name)


def _stream_name(name: str) -> str:
    """Return the name that clients see. Raises ``OSError`` if there is none."""
    shown = names.to_wire(name)
    names.check_stream_name(shown)
    return shown


def _add(found: _Found, double: apple_double.AppleDouble) -> None:
    """Add what AppleDouble holds, but for the resource fork."""
    if any(double.finder_info):
        found.streams[apple.AFP_INFO] = apple.AFP_INFO_LAYOUT.pack(apple.AfpInfo(finder_info=double.finder_info))
    for name, value in double.attributes:
        found.streams[_stream_name(name)] = value


def _look_beside(host: Host, descriptor: int, stat: Statx, found: _Found) -> None:
    """Add what ``._NAME`` holds. Raises ``DecodeError`` and ``OSError``."""
    try:
        components = host.resolver.disk_path(descriptor)
    except FileNotFoundError:
        return
    if not components or components[-1].startswith(_PREFIX):
        return
    name = _PREFIX + components[-1]
    parent = host.resolver.open_exact(components[:-1])
    try:
        beside = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    except OSError as error:
        os.close(parent)
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG, errno.EACCES):
            return
        raise
    found.parent, found.name = parent, name
    other = syscalls.statx(beside)
    ours = stat_module.S_ISREG(other.mode) and other.uid == stat.uid and other.nlink == 1
    if not ours or host.own.is_written(FileKey(other.dev, other.ino)):
        os.close(beside)
        return
    head = os.pread(beside, apple_double.HEAD_SIZE, 0)
    try:
        double = apple_double.parse(head, other.size)
    except DecodeError:
        # It is some other file, or is not written yet.
        os.close(beside)
        return
    found.beside = beside
    _add(found, double)
    if double.fork_size and not (
        double.fork_size <= len(head)
        and apple_double.is_blank_fork(os.pread(beside, double.fork_size, double.fork_offset))
    ):
        found.fork = double.fork_offset, double.fork_size
        found.streams[apple.AFP_RESOURCE] = b""


def _keep(host: Host, descriptor: int, reference: str, stat: Statx, found: _Found) -> None:
    """Make the streams, and wait until they are on the disk. Raises ``OSError``."""
    metadata = host.store.load(reference, stat)
    owner = (stat.uid, stat.gid)
    written = os.fstat(found.beside).st_mtime_ns if found.beside is not None else None
    key = host.store.ensure_key(reference, stat, metadata)
    wanted = [name for name in found.streams if not _is_kept(host, key, name, written)]
    for name in wanted:
        item = _unfinished(host.streams, key, owner)
        try:
            size = 0
            for piece in _pieces(found, name, found.streams[name]):
                size += file_io.write_from(item, [piece], size)
            os.fsync(item)
        finally:
            os.close(item)
        host.streams.rename(key, UNFINISHED, name, replace=True)
    if not metadata.present & Blob.STREAMS and host.streams.has_any(key):
        metadata.present |= Blob.STREAMS
        host.store.save(reference, syscalls.statx(descriptor), metadata)


def _is_kept(host: Host, key: str, name: str, written: int | None) -> bool:
    """Return whether the stream is there, and not older than ``._NAME`` (in nanoseconds). Raises ``OSError`` (EBUSY)
    if it is older, and open: what is written by the handle would be lost."""
    try:
        present, _ = host.streams.open(key, name, os.O_RDONLY | os.O_CLOEXEC, (0, 0))
    except FileNotFoundError:
        return False
    try:
        stat = os.fstat(present)
    finally:
        os.close(present)
    if written is None or stat.st_mtime_ns >= written:
        return True
    if FileKey(stat.st_dev, stat.st_ino) in host.open_streams:
        raise OSError(errno.EBUSY, "somebody has the stream open", name)
    return False


def _unfinished(streams: StreamStore, key: str, owner: tuple[int, int]) -> int:
    """Return a descriptor of an empty stream to be renamed."""
    with contextlib.suppress(FileNotFoundError):
        # The server ended before it was renamed.
        streams.remove(key, UNFINISHED)
    return streams.create(key, UNFINISHED, owner)


def _pieces(found: _Found, name: str, content: bytes) -> Iterable[bytes]:
    if name != apple.AFP_RESOURCE or found.beside is None or not found.fork[1]:
        yield content
        return
    offset, left = found.fork
    while left:
        piece = os.pread(found.beside, min(left, _PIECE), offset)
        if not piece:
            raise OSError(errno.EIO, "the resource fork was cut while it was read")
        yield piece
        offset += len(piece)
        left -= len(piece)


def _remove(host: Host, reference: str, found: _Found) -> None:
    """Remove what is in streams now. Raises ``OSError``."""
    for name in found.attributes:
        os.removexattr(reference, name)
    if found.beside is not None and found.parent is not None:
        stat = syscalls.statx(found.beside)
        metadata = host.store.load(found.beside, stat)
        named = os.stat(found.name, dir_fd=found.parent, follow_symlinks=False)
        if (named.st_ino, named.st_mtime_ns) != (stat.ino, stat.mtime):
            raise OSError(errno.EBUSY, "it was written while it was read", found.name)
        # Watchers and the clients that cache the folder hear of it as of a change by another program.
        os.unlink(found.name, dir_fd=found.parent)
        host.store.forget(stat, metadata)
