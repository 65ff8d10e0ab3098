"""Stores metadata that Windows files have and POSIX files lack, in extended attributes or the side-car store.

One small attribute, ``<namespace>.smb3.meta``, is read whenever the metadata of a file is needed. It says what else is
stored. Security descriptor, EAs and reparse data are in attributes of their own (``smb3.sd``, ``smb3.ea``,
``smb3.reparse``), or in the side-car store if the file system has no room for them. Alternate data streams are always
in the side-car store.

The namespace is ``trusted`` if the server may use it (as root). Then ordinary users of the host can neither see nor
change the attributes, which matters most for security descriptors. Otherwise the namespace is ``user``, and every user
who may write the file can change them.

A file's key in the side-car store is random and stored in the small attribute. So it survives renames, and a new file
with the same inode number does not get it. The inode number is stored beside the key, so that a copy made with its
attributes does not share streams with the original. Without extended attributes the key is derived from device, inode
and birth time.
"""

from __future__ import annotations

import enum
import errno
import hashlib
import os
import secrets
import stat as stat_module
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smb3server.backends.base import MAX_DESCRIPTOR_BYTES, Described, FileInfo, FileKey, Kind
from smb3server.backends.local import kept_attributes, syscalls
from smb3server.backends.local.kept_attributes import KeptAttributes, KeptFile
from smb3server.backends.local.sidecar import SideCar
from smb3server.backends.local.syscalls import Statx
from smb3server.process import capabilities
from smb3server.process.capabilities import Capability
from smb3server.wire import attributes as attr
from smb3server.wire import filetime

# version, flags, blobs present, blobs in the side-car, attributes, EaSize, reparse tag, creation time, inode
_LAYOUT = struct.Struct("<BBHHxxIIIqQ")
_CHANGE = struct.Struct("<qq")
"""Change time, and how long it is valid. The key and this are stored only if they are set: the rest fits into an inode
of ext4's usual size. A larger attribute would take a block for each file, which counts as allocated."""
_VERSION = 3
_HAS_ATTRIBUTES, _HAS_KEY, _HAS_CHANGE = 1, 2, 4
_TIME = struct.Struct("<q")
"""Nanoseconds since 1970."""
_NO_KEY = bytes(16)
_MAX_BLOB = 1 << 17
_UNSUPPORTED = frozenset((errno.EOPNOTSUPP, errno.ENOSYS))
_NO_ROOM = frozenset((errno.ENOSPC, errno.E2BIG, errno.ERANGE, errno.EFBIG, errno.EDQUOT))


class Blob(enum.IntEnum):
    """Larger items that are stored with a file, as bits of ``Metadata.present``."""

    DESCRIPTOR = 1
    EA = 2
    REPARSE = 4
    STREAMS = 8
    """The file has alternate data streams. They are never in an extended attribute."""
    DELETED = 16
    """When the file was deleted, and so moved to the recycle folder."""


_ITEM = {Blob.DESCRIPTOR: "sd", Blob.EA: "ea", Blob.REPARSE: "reparse", Blob.DELETED: "deleted"}
_IN_ATTRIBUTES = int(Blob.DESCRIPTOR | Blob.EA | Blob.REPARSE)

Reference = int | str
"""A file whose attributes are accessed: a descriptor, or the path /proc/self/fd/N for an O_PATH descriptor."""


@dataclass(slots=True)
class Metadata:
    """The content of a file's small attribute."""

    attributes: int | None = None
    """FILE_ATTRIBUTE_*. None means that they were never set, so the defaults apply."""
    creation: int = 0
    """FILETIME. 0 means that the birth time applies."""
    ea_size: int = 0
    reparse_tag: int = 0
    present: int = 0
    """The blobs that the file has."""
    beside: int = 0
    """Those of ``present`` that are in the side-car store instead of an extended attribute."""
    key: bytes = _NO_KEY
    """The key in the side-car store, if it is not derived from the inode."""
    change: int = 0
    """FILETIME that a client set as the change time, which POSIX cannot set. It is valid while st_ctime is not after
    ``change_until`` (nanoseconds)."""
    change_until: int = 0

    def pack(self, inode: int) -> bytes:
        """Return the value of the small attribute for a file with this inode number."""
        flags = 0 if self.attributes is None else _HAS_ATTRIBUTES
        tail = b""
        if self.key != _NO_KEY:
            flags |= _HAS_KEY
            tail = self.key
        if self.change:
            flags |= _HAS_CHANGE
            tail += _CHANGE.pack(self.change, self.change_until)
        fixed = _LAYOUT.pack(
            _VERSION,
            flags,
            self.present,
            self.beside,
            self.attributes or 0,
            self.ea_size,
            self.reparse_tag,
            self.creation,
            inode,
        )
        return fixed + tail


def unpack(raw: bytes | None, inode: int) -> Metadata:
    """Unpack the small attribute. Anything malformed counts as empty: users of the host may have written it."""
    if raw is None or len(raw) < _LAYOUT.size:
        return Metadata()
    version, flags, present, beside, attributes, ea_size, tag, creation, owner = _LAYOUT.unpack_from(raw)
    at, size = _LAYOUT.size, len(raw)
    if version != _VERSION or size != at + (flags & _HAS_KEY and 16) + (flags & _HAS_CHANGE and _CHANGE.size):
        return Metadata()
    key = raw[at : at + 16] if flags & _HAS_KEY else _NO_KEY
    change, until = _CHANGE.unpack_from(raw, size - _CHANGE.size) if flags & _HAS_CHANGE else (0, 0)
    if owner != inode:
        present &= ~(beside | Blob.STREAMS)
        beside, key = 0, _NO_KEY
    return Metadata(
        attributes & attr.SETTABLE if flags & _HAS_ATTRIBUTES else None,
        max(creation, 0),
        ea_size if present & Blob.EA else 0,
        tag if present & Blob.REPARSE else 0,
        present,
        beside,
        key,
        max(change, 0),
        until,
    )


def may_use_trusted() -> bool:
    """Return whether the process has CAP_SYS_ADMIN in the initial user namespace, as trusted.* attributes require."""
    with open("/proc/self/uid_map") as uid_map:
        first = uid_map.read().split() == ["0", "0", "4294967295"]
    return first and bool(capabilities.get().effective & Capability.SYS_ADMIN)


def _set_on_unwritable(reference: Reference, name: str, value: bytes) -> None:
    """Set a user.* attribute, which requires the right to write. The owner of a file without that right gets it for a
    moment."""
    mode = os.stat(reference).st_mode & 0o7777
    if mode & 0o200:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    os.chmod(reference, mode | 0o200)
    try:
        os.setxattr(reference, name, value)
    finally:
        os.chmod(reference, mode)


def inode_key(stat: Statx) -> str:
    """Return the key into the side-car store of a file that stores none."""
    identity = b"%d %d %d" % (stat.dev, stat.ino, stat.btime)
    return hashlib.blake2b(identity, digest_size=16).hexdigest()


class MetadataStore:
    """Reads and writes what is stored with files. ``namespace``: 'trusted', 'user', or None for the side-car store
    alone."""

    def __init__(self, sidecar: SideCar, namespace: str | None) -> None:
        self._sidecar = sidecar
        self.namespace = namespace
        self._meta = f"{namespace}.smb3.meta".encode() if namespace else None
        self._names = {kind: f"{namespace}.smb3.{item}".encode() for kind, item in _ITEM.items()}
        self._retained = f"{namespace}.smb3.retained".encode()
        self.kept = KeptAttributes()
        self.attribute_block = 0
        """Bytes of the block that a file's larger items take, if the file system counts it as the file's, as ext4 does,
        whose inodes have no room for them. It is no space of the data."""

    # -- the small attribute

    def load(self, reference: Reference, stat: Statx, kept: KeptFile | None = None) -> Metadata:
        """Return the small attribute of a file. ``kept``: as for ``_attribute``. Raises ``OSError``."""
        if self._meta is not None:
            try:
                return unpack(self._attribute(reference, stat, self._meta, kept), stat.ino)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
        return self._load_beside(stat)

    def _attribute(self, reference: Reference, stat: Statx, name: bytes, kept: KeptFile | None = None) -> bytes | None:
        """Return an extended attribute of a file; None if it is not set. ``kept``: what is known of the file, if the
        caller has found that. Raises ``OSError``."""
        if kept is None and not isinstance(reference, int):
            # By way of /proc a look costs much more than memory does.
            kept = self.kept.of(stat)
        if kept is not None and name in kept.values:
            return kept.values[name]
        if isinstance(reference, int):
            value = syscalls.fgetxattr(reference, name)
        else:
            value = syscalls.getxattr(reference, name)
        if kept is not None and (value is None or len(value) <= kept_attributes.MAX_BYTES):
            kept.values[name] = value
        return value

    def describe(self, reference: Reference, stat: Statx, data: Statx | None = None) -> Described:
        """Return metadata and security descriptor of a file. ``stat``: its own. ``data``: as in ``file_info``."""
        kept = self.kept.of(stat) if data is None else None
        known = kept.described if kept is not None else None
        block = self.attribute_block
        if known is not None and known[0] == stat and known[1] == block:
            return known[2]
        metadata = self.load(reference, stat, kept)
        present = metadata.present & Blob.DESCRIPTOR
        descriptor = self.blob_of(reference, stat, metadata, Blob.DESCRIPTOR, kept) if present else None
        described = Described(self.info(stat, metadata, data), descriptor)
        if (
            kept is not None
            and self._meta in kept.values
            and (not present or self._names[Blob.DESCRIPTOR] in kept.values)
            and not metadata.beside
        ):
            # The side-car store changes without the file's change time.
            kept.described = stat, block, described
        return described

    def begin(
        self, file: int, reference: Reference, stat: Statx, attributes: int, descriptor: bytes | None
    ) -> Described:
        """Store the initial metadata of a new file, and describe the file.

        ``file``: a descriptor of it, which may be O_PATH. ``attributes``: 0 means the default. ``descriptor``: the
        security descriptor. None means that none is stored."""
        metadata = Metadata()
        if attributes:
            is_directory = stat.mode & KIND_BITS == stat_module.S_IFDIR
            metadata.attributes = attributes & (attr.DIRECTORY_SETTABLE if is_directory else attr.SETTABLE)
        if descriptor is not None:
            self.set_blob(reference, stat, Blob.DESCRIPTOR, descriptor, metadata=metadata)
        elif attributes:
            self.save(reference, stat, metadata)
        # Storing has changed st_ctime, and may have allocated blocks.
        return Described(self.info(syscalls.statx(file), metadata), descriptor)

    def info(self, stat: Statx, metadata: Metadata, data: Statx | None = None) -> FileInfo:
        """Return the metadata that clients see. ``data``: the stat of an alternate stream, if one is open."""
        return file_info(stat, metadata, data, self.attribute_block)

    def ordinary_entries(self, directory: int, names: Sequence[str]) -> list[FileInfo | None]:
        """Return the metadata of a directory's entries. None means that ``load_entry`` and ``file_info`` have to make
        it."""
        if self._meta is None:
            return [None] * len(names)
        return syscalls.ordinary_entries(directory, names, self._meta, self.attribute_block)

    def load_entry(self, directory: int, name: bytes, stat: Statx) -> Metadata:
        """Return the small attribute of a directory's entry, without opening the entry."""
        if self._meta is not None:
            try:
                raw = syscalls.getxattr_at(directory, name, self._meta)
                return _EMPTY if raw is None else unpack(raw, stat.ino)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
        return self._load_beside(stat)

    def _load_beside(self, stat: Statx) -> Metadata:
        return unpack(self._sidecar.read(inode_key(stat), "meta", _LAYOUT.size + 1), stat.ino)

    def save(self, reference: Reference, stat: Statx, metadata: Metadata) -> None:
        """Write the small attribute, or its replacement in the side-car store. Raises ``OSError``."""
        packed = metadata.pack(stat.ino)
        if not self._set(reference, "meta", packed):
            self._sidecar.write(inode_key(stat), "meta", packed)

    def change(
        self, reference: Reference, stat: Statx, change: Callable[[Metadata], None], metadata: Metadata | None = None
    ) -> None:
        """Apply ``change`` to the small attribute. ``metadata``: its present content, if it was read."""
        if metadata is None:
            metadata = self.load(reference, stat)
        change(metadata)
        self.save(reference, stat, metadata)

    def _set(self, reference: Reference, item: str, value: bytes) -> bool:
        """Set an extended attribute. False if the file system has none."""
        if self.namespace is None:
            return False
        name = f"{self.namespace}.smb3.{item}"
        try:
            os.setxattr(reference, name, value)
        except PermissionError:
            _set_on_unwritable(reference, name, value)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return False
            raise
        return True

    # -- side-car keys

    def key(self, stat: Statx, metadata: Metadata) -> str:
        """Return the key of the file's items in the side-car store."""
        return inode_key(stat) if metadata.key == _NO_KEY else metadata.key.hex()

    def ensure_key(self, reference: Reference, stat: Statx, metadata: Metadata) -> str:
        """Return ``key``, after storing a random one if the file has none."""
        if metadata.key == _NO_KEY:
            metadata.key = secrets.token_bytes(16)
            try:
                if self._set(reference, "meta", metadata.pack(stat.ino)):
                    return metadata.key.hex()
            except OSError:
                metadata.key = _NO_KEY
                raise
            metadata.key = _NO_KEY
        return self.key(stat, metadata)

    def forget(self, stat: Statx, metadata: Metadata) -> None:
        """Remove everything of a file from the side-car store, as the file is gone."""
        if metadata.key != _NO_KEY or metadata != _EMPTY:
            self._sidecar.remove_all(self.key(stat, metadata))

    # -- the larger ones

    def blob(self, reference: Reference, stat: Statx, kind: Blob) -> bytes | None:
        """Return an item that is stored with a file. None means that there is none. Raises ``OSError``."""
        return self.blob_of(reference, stat, self.load(reference, stat), kind)

    def blob_of(
        self, reference: Reference, stat: Statx, metadata: Metadata, kind: Blob, kept: KeptFile | None = None
    ) -> bytes | None:
        """Return a blob of a file whose small attribute holds ``metadata``. ``kept``: as for ``_attribute``."""
        if not metadata.present & kind:
            return None
        if metadata.beside & kind:
            return self._sidecar.read(self.key(stat, metadata), _ITEM[kind], _MAX_BLOB)
        return self._attribute(reference, stat, self._names[kind], kept)

    def note_deletion(self, reference: Reference, stat: Statx, now: int) -> None:
        """Store when a file was deleted. ``now``: nanoseconds since 1970. Raises ``OSError``."""
        self.set_blob(reference, stat, Blob.DELETED, _TIME.pack(now))

    def deletion(self, directory: int, name: bytes, stat: Statx) -> int:
        """Return when a directory's entry was deleted. If that is not stored, it is when it was changed last.

        Raises ``OSError``."""
        metadata = self.load_entry(directory, name, stat)
        raw = None
        if metadata.beside & Blob.DELETED:
            raw = self._sidecar.read(self.key(stat, metadata), _ITEM[Blob.DELETED], _TIME.size)
        elif metadata.present & Blob.DELETED:
            raw = syscalls.getxattr_at(directory, name, self._names[Blob.DELETED])
        return _TIME.unpack(raw)[0] if raw is not None and len(raw) == _TIME.size else stat.ctime

    # -- what says that a file is retained

    # It does not go by ``Metadata.present``: one call alone makes it count.

    def has_attributes(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a file can have extended attributes of this server. Raises ``OSError``."""
        if self.namespace is None:
            return False
        try:
            syscalls.getxattr(os.fspath(path), self._retained)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            return False
        return True

    def retention(self, reference: Reference, stat: Statx) -> bytes | None:
        """Return what ``retain`` has stored. Raises ``OSError``."""
        return self._attribute(reference, stat, self._retained)

    def retention_of_entry(self, directory: int, name: bytes) -> bytes | None:
        """Return ``retention`` of a directory's entry."""
        return syscalls.getxattr_at(directory, name, self._retained)

    def retain(self, reference: Reference, stamp: bytes) -> None:
        """Store that a file is retained. Raises ``OSError``, also if the file system has no extended attributes."""
        if not self._set(reference, "retained", stamp):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    def touch(self, reference: Reference, stat: Statx) -> None:
        """Set the change time of a file, and nothing else. Raises ``OSError``."""
        os.utime(reference, ns=(stat.atime, stat.mtime))

    def set_blob(
        self,
        reference: Reference,
        stat: Statx,
        kind: Blob,
        value: bytes | None,
        change: Callable[[Metadata], None] | None = None,
        metadata: Metadata | None = None,
    ) -> None:
        """Store an item (None removes it), and apply ``change`` to the small attribute. Raises ``OSError``.

        ``metadata``: the present content of the small attribute, if it was read."""
        if kind == Blob.DESCRIPTOR and value is not None and len(value) > MAX_DESCRIPTOR_BYTES:
            raise OSError(errno.E2BIG, "security descriptor larger than 64 KiB")
        if metadata is None:
            metadata = self.load(reference, stat)
        was_beside = metadata.beside & kind
        if value is not None:
            try:
                stored = self._set(reference, _ITEM[kind], value)
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                stored = False
            metadata.beside &= ~kind
            if not stored:
                self._sidecar.write(self.ensure_key(reference, stat, metadata), _ITEM[kind], value)
                metadata.beside |= kind
            metadata.present |= kind
        else:
            metadata.present &= ~kind
            metadata.beside &= ~kind
        if change is not None:
            change(metadata)
        self.save(reference, stat, metadata)
        if was_beside and not metadata.beside & kind:
            self._sidecar.remove(self.key(stat, metadata), _ITEM[kind])
        elif not was_beside and (value is None or metadata.beside & kind) and self.namespace is not None:
            try:
                os.removexattr(reference, f"{self.namespace}.smb3.{_ITEM[kind]}")
            except OSError as error:
                if error.errno not in (*_UNSUPPORTED, errno.ENODATA):
                    raise


_EMPTY = Metadata()


KIND_BITS = 0o170000
"""S_IFMT."""
KINDS = {0o100000: Kind.FILE, 0o040000: Kind.DIRECTORY, 0o120000: Kind.SYMLINK}
"""Kinds of files by the bits ``KIND_BITS`` of their mode. All others are ``Kind.OTHER``."""


def _default_attributes(mode: int) -> int:
    return attr.ARCHIVE if mode & 0o222 else attr.ARCHIVE | attr.READONLY


def file_info(stat: Statx, metadata: Metadata, data: Statx | None = None, block: int = 0) -> FileInfo:
    """Return the metadata that clients see. ``data``: the stat of an alternate stream, if one is open. ``block``:
    ``MetadataStore.attribute_block``."""
    mode = stat.mode
    kind = KINDS.get(mode & KIND_BITS, Kind.OTHER)
    stored = metadata.attributes
    tag = metadata.reparse_tag
    size = allocation = 0
    if kind == Kind.DIRECTORY:
        attributes = attr.DIRECTORY | (stored or 0)
    else:
        attributes = stored if stored is not None else _default_attributes(mode)
        if kind == Kind.FILE:
            size = stat.size
            allocation = stat.blocks * 512
            if block and metadata.present & ~metadata.beside & _IN_ATTRIBUTES:
                allocation = max(allocation - block, 0)
        elif kind == Kind.SYMLINK:
            tag = attr.TAG_SYMLINK
            attributes &= ~attr.READONLY
    if data is not None:
        size = data.size
        allocation = data.blocks * 512
    if size > allocation and not attributes & attr.SPARSE:
        # Because of holes or delayed allocation. For a file that is not marked sparse Windows never shows less than its
        # size.
        allocation = -(-size // 4096) * 4096
    if tag:
        attributes |= attr.REPARSE_POINT
    if stat.compressed:
        attributes |= attr.COMPRESSED
    born = stat.btime if stat.btime >= 0 else min(stat.mtime, stat.ctime)
    creation = metadata.creation or filetime.EPOCH + born // 100
    info: FileInfo = tuple.__new__(
        FileInfo,
        (
            tuple.__new__(FileKey, (stat.dev, stat.ino)),
            kind,
            attributes or attr.NORMAL,
            creation,
            filetime.EPOCH + stat.atime // 100,
            filetime.EPOCH + stat.mtime // 100,
            metadata.change if 0 < stat.ctime <= metadata.change_until else filetime.EPOCH + stat.ctime // 100,
            size,
            allocation,
            stat.nlink,
            metadata.ea_size,
            tag,
            mode,
            stat.uid,
            stat.gid,
        ),
    )
    return info
