"""The levels of QUERY_INFO for the volume of a share. [MS-FSA 2.1.5.13]"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from smb3server.backends.base import Backend, User, VolumeInfo
from smb3server.commands.info import posix
from smb3server.state.share import Share
from smb3server.wire import fs_info as wire
from smb3server.wire.fs_info import FsAttributes, FsInfoClass
from smb3server.wire.posix import LEVEL, POSIX_VOLUME_INFORMATION
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Codec

FILE_DEVICE_DISK = 7
FILE_READ_ONLY_DEVICE = 0x02
FILE_DEVICE_IS_MOUNTED = 0x20
NO_LIMIT = 0xFFFFFFFFFFFFFFFF
R = TypeVar("R", bound=tuple[Any, ...])


class FsLevel(NamedTuple):
    """An information level of volumes."""

    encode: Callable[[Share, Backend, User | None], bytes]
    """Is called with the user of the host that the caller acts as."""
    minimum_size: int


def _volume(share: Share, backend: Backend, user: User | None) -> bytes:
    return wire.encode_volume(backend.volume_created, backend.volume_serial & 0xFFFFFFFF, share.name)


_LIMITED_UNIT = 1024
"""Bytes of an allocation unit where the administrator limits the size."""


def _limited(backend: Backend, volume: VolumeInfo, limit: int) -> VolumeInfo:
    """Return the sizes of a volume that has ``limit`` bytes for backups of Macs."""
    left = max(limit - backend.backups_size(), 0)
    total, free, available = volume.total_bytes, volume.free_bytes, volume.available_bytes
    return VolumeInfo(min(total, limit), min(free, left), min(available, left), _LIMITED_UNIT, volume.sector_size)


def full_size(share: Share, backend: Backend) -> wire.FullSizeInformation:
    """Return the sizes of the volume, in allocation units."""
    return _in_units(_volume_of(share, backend))


def _volume_of(share: Share, backend: Backend) -> VolumeInfo:
    volume = backend.volume()
    if share.rules.time_machine_max_size and share.rules.time_machine:
        volume = _limited(backend, volume, share.rules.time_machine_max_size)
    return volume


def _in_units(volume: VolumeInfo) -> wire.FullSizeInformation:
    sector = max(volume.sector_size, 1)
    unit = max(volume.block_size, sector)
    total, available, free = (size // unit for size in (volume.total_bytes, volume.available_bytes, volume.free_bytes))
    return wire.FullSizeInformation(total, available, free, unit // sector, sector)


def _for_user(share: Share, backend: Backend, user: User | None) -> VolumeInfo:
    """Return the sizes of the volume, as far as the quota of ``user`` makes them available. [MS-FSCC 2.5.4]"""
    volume = _volume_of(share, backend)
    quota = backend.quotas.of_user(user) if backend.quotas is not None else None
    if quota is not None and quota.hard:
        volume = volume._replace(
            total_bytes=min(volume.total_bytes, quota.hard),
            available_bytes=min(volume.available_bytes, max(quota.hard - quota.used, 0)),
        )
    return volume


def _available(share: Share, backend: Backend, user: User | None) -> wire.FullSizeInformation:
    return _in_units(_for_user(share, backend, user))


def _size(share: Share, backend: Backend, user: User | None) -> wire.SizeInformation:
    total, available, _, sectors, sector = _available(share, backend, user)
    return wire.SizeInformation(total, available, sectors, sector)


def _device(share: Share, backend: Backend, user: User | None) -> wire.DeviceInformation:
    read_only = FILE_READ_ONLY_DEVICE if share.read_only or backend.read_only else 0
    return wire.DeviceInformation(FILE_DEVICE_DISK, FILE_DEVICE_IS_MOUNTED | read_only)


def volume_attributes(share: Share, backend: Backend) -> int:
    """Return FileSystemAttributes of the volume. [MS-FSCC 2.5.1]"""
    attributes = (
        FsAttributes.CASE_SENSITIVE_SEARCH
        | FsAttributes.CASE_PRESERVED_NAMES
        | FsAttributes.UNICODE_ON_DISK
        | FsAttributes.PERSISTENT_ACLS
        | FsAttributes.SUPPORTS_SPARSE_FILES
        | FsAttributes.SUPPORTS_REPARSE_POINTS
        | FsAttributes.SUPPORTS_POSIX_UNLINK_RENAME
        | FsAttributes.SUPPORTS_OBJECT_IDS
        | FsAttributes.SUPPORTS_HARD_LINKS
        | FsAttributes.SUPPORTS_EXTENDED_ATTRIBUTES
    )
    if backend.supports_streams and share.rules.streams:
        attributes |= FsAttributes.NAMED_STREAMS
    if backend.supports_reflink:
        attributes |= FsAttributes.SUPPORTS_BLOCK_REFCOUNTING
    if backend.supports_compression:
        attributes |= FsAttributes.FILE_COMPRESSION
    if backend.quotas is not None:
        attributes |= FsAttributes.VOLUME_QUOTAS
    if share.read_only or backend.read_only:
        attributes |= FsAttributes.READ_ONLY_VOLUME
    return int(attributes)


def _attribute(share: Share, backend: Backend, user: User | None) -> bytes:
    return wire.encode_attribute(volume_attributes(share, backend), 255, backend.file_system_name)


def volume_object_id(backend: Backend) -> bytes:
    """Return the object id of the volume, 16 bytes that never change."""
    return hashlib.blake2b(backend.volume_serial.to_bytes(16, "little"), digest_size=16, person=b"volume").digest()


def _sector_size(share: Share, backend: Backend, user: User | None) -> wire.SectorSizeInformation:
    volume = backend.volume()
    physical = max(volume.block_size, volume.sector_size)
    # FSCTL_FILE_LEVEL_TRIM gives blocks back to the file system.
    flags = (
        wire.SectorFlags.ALIGNED_DEVICE | wire.SectorFlags.PARTITION_ALIGNED_ON_DEVICE | wire.SectorFlags.TRIM_ENABLED
    )
    return wire.SectorSizeInformation(volume.sector_size, physical, physical, physical, int(flags), 0, 0)


def _control(share: Share, backend: Backend, user: User | None) -> wire.ControlInformation:
    """Return whether quotas are kept, and whether they hold. Users without a quota of their own have no limit."""
    flags = wire.QuotaFlags(0)
    if backend.quotas is not None:
        flags = wire.QuotaFlags.ENFORCE if backend.quotas.enforced else wire.QuotaFlags.TRACK
    return wire.ControlInformation(default_quota_threshold=NO_LIMIT, default_quota_limit=NO_LIMIT, flags=int(flags))


def _fixed(layout: Codec[R], record: Callable[[Share, Backend, User | None], R]) -> FsLevel:
    """Return a level of fixed size."""
    return FsLevel(lambda share, backend, user: layout.pack(record(share, backend, user)), layout.size)


def _posix(share: Share, backend: Backend, user: User | None) -> bytes:
    """Return FileFsPosixInformation. Raises INVALID_INFO_CLASS unless a POSIX open asks for it. [POSIX-FSCC 2.3.2.1]"""
    if not backend.posix:
        raise StatusError(NtStatus.INVALID_INFO_CLASS)
    return posix.volume(_for_user(share, backend, user), backend.volume_serial)


FS_LEVELS: dict[int, FsLevel] = {
    # The fixed parts with names are counted with the padding of their C structures.
    FsInfoClass.VOLUME: FsLevel(_volume, 24),
    FsInfoClass.SIZE: _fixed(wire.SIZE, _size),
    FsInfoClass.DEVICE: _fixed(wire.DEVICE, _device),
    FsInfoClass.ATTRIBUTE: FsLevel(_attribute, 16),
    FsInfoClass.CONTROL: _fixed(wire.CONTROL, _control),
    FsInfoClass.FULL_SIZE: _fixed(wire.FULL_SIZE, _available),
    FsInfoClass.OBJECT_ID: _fixed(
        wire.OBJECT_ID, lambda _, backend, user: wire.ObjectIdInformation(volume_object_id(backend))
    ),
    FsInfoClass.SECTOR_SIZE: _fixed(wire.SECTOR_SIZE, _sector_size),
    LEVEL: FsLevel(_posix, POSIX_VOLUME_INFORMATION.size),
}
