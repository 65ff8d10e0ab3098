"""The levels of QUERY_INFO for the volume of a share. [MS-FSA 2.1.5.13]"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

from smb3server.backends.base import Backend
from smb3server.state.share import Share
from smb3server.wire import fs_info as wire
from smb3server.wire.fs_info import FsAttributes, FsInfoClass

FILE_DEVICE_DISK = 7
FILE_READ_ONLY_DEVICE = 0x02
FILE_DEVICE_IS_MOUNTED = 0x20
NO_LIMIT = 0xFFFFFFFFFFFFFFFF


class FsLevel(NamedTuple):
    """An information level of volumes."""

    encode: Callable[[Share, Backend], bytes]
    minimum_size: int


def _volume(share: Share, backend: Backend) -> bytes:
    return wire.encode_volume(backend.volume_created, backend.volume_serial & 0xFFFFFFFF, share.name)


def _sizes(backend: Backend) -> tuple[int, int, int, int, int]:
    """Return the total, available and free allocation units, the sectors per unit and the bytes per sector."""
    volume = backend.volume()
    unit = max(volume.block_size, volume.sector_size, 1)
    sector = max(volume.sector_size, 1)
    return (
        volume.total_bytes // unit,
        volume.available_bytes // unit,
        volume.free_bytes // unit,
        unit // sector,
        sector,
    )


def _size(share: Share, backend: Backend) -> bytes:
    total, available, _, sectors, sector = _sizes(backend)
    return wire.SIZE.pack(wire.SizeInformation(total, available, sectors, sector))


def _full_size(share: Share, backend: Backend) -> bytes:
    total, available, free, sectors, sector = _sizes(backend)
    return wire.FULL_SIZE.pack(wire.FullSizeInformation(total, available, free, sectors, sector))


def _device(share: Share, backend: Backend) -> bytes:
    characteristics = FILE_DEVICE_IS_MOUNTED
    if share.read_only or backend.read_only:
        characteristics |= FILE_READ_ONLY_DEVICE
    return wire.DEVICE.pack(wire.DeviceInformation(FILE_DEVICE_DISK, characteristics))


def volume_attributes(share: Share, backend: Backend) -> int:
    """Return FileSystemAttributes of the volume. [MS-FSCC 2.5.1]"""
    attributes = (
        FsAttributes.CASE_SENSITIVE_SEARCH
        | FsAttributes.CASE_PRESERVED_NAMES
        | FsAttributes.UNICODE_ON_DISK
        | FsAttributes.PERSISTENT_ACLS
        | FsAttributes.SUPPORTS_SPARSE_FILES
        | FsAttributes.SUPPORTS_REPARSE_POINTS
        | FsAttributes.SUPPORTS_OBJECT_IDS
        | FsAttributes.SUPPORTS_HARD_LINKS
        | FsAttributes.SUPPORTS_EXTENDED_ATTRIBUTES
    )
    if backend.supports_streams and share.streams:
        attributes |= FsAttributes.NAMED_STREAMS
    if backend.supports_reflink:
        attributes |= FsAttributes.SUPPORTS_BLOCK_REFCOUNTING
    if backend.supports_compression:
        attributes |= FsAttributes.FILE_COMPRESSION
    if share.read_only or backend.read_only:
        attributes |= FsAttributes.READ_ONLY_VOLUME
    return int(attributes)


def _attribute(share: Share, backend: Backend) -> bytes:
    return wire.encode_attribute(volume_attributes(share, backend), 255, backend.file_system_name)


def _control(share: Share, backend: Backend) -> bytes:
    """Report no limits, as quotas are neither tracked nor enforced."""
    return wire.CONTROL.pack(
        wire.ControlInformation(default_quota_threshold=NO_LIMIT, default_quota_limit=NO_LIMIT, flags=0)
    )


def volume_object_id(backend: Backend) -> bytes:
    """Return the object id of the volume, 16 bytes that never change."""
    return hashlib.blake2b(backend.volume_serial.to_bytes(16, "little"), digest_size=16, person=b"volume").digest()


def _object_id(share: Share, backend: Backend) -> bytes:
    return wire.OBJECT_ID.pack(wire.ObjectIdInformation(volume_object_id(backend)))


def _sector_size(share: Share, backend: Backend) -> bytes:
    volume = backend.volume()
    physical = max(volume.block_size, volume.sector_size)
    # FSCTL_FILE_LEVEL_TRIM gives blocks back to the file system.
    flags = (
        wire.SectorFlags.ALIGNED_DEVICE | wire.SectorFlags.PARTITION_ALIGNED_ON_DEVICE | wire.SectorFlags.TRIM_ENABLED
    )
    return wire.SECTOR_SIZE.pack(
        wire.SectorSizeInformation(volume.sector_size, physical, physical, physical, int(flags), 0, 0)
    )


FS_LEVELS: dict[int, FsLevel] = {
    # The fixed parts with names are counted with the padding of their C structures.
    FsInfoClass.VOLUME: FsLevel(_volume, 24),
    FsInfoClass.SIZE: FsLevel(_size, wire.SIZE.size),
    FsInfoClass.DEVICE: FsLevel(_device, wire.DEVICE.size),
    FsInfoClass.ATTRIBUTE: FsLevel(_attribute, 16),
    FsInfoClass.CONTROL: FsLevel(_control, wire.CONTROL.size),
    FsInfoClass.FULL_SIZE: FsLevel(_full_size, wire.FULL_SIZE.size),
    FsInfoClass.OBJECT_ID: FsLevel(_object_id, wire.OBJECT_ID.size),
    FsInfoClass.SECTOR_SIZE: FsLevel(_sector_size, wire.SECTOR_SIZE.size),
}
