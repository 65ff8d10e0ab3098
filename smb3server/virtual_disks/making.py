"""Makes VHDX files: dynamic disks, and differencing disks whose parent is another file of the folder. [MS-VHDX 2]

A new file has the log at 1 MiB, the metadata at 2 MiB and the block allocation table at 3 MiB.
"""

from __future__ import annotations

import struct
import uuid
from typing import NamedTuple

from smb3server.backends.base import Handle
from smb3server.virtual_disks import layout
from smb3server.virtual_disks.checksum import sealed
from smb3server.virtual_disks.layout import MIB, MetadataFlags, ParameterFlags
from smb3server.virtual_disks.vhdx import chunk_ratio, entries_for

CREATOR = "smb3server"
BLOCK_SIZE = 2 * MIB
_LOG, _METADATA, _BAT = MIB, 2 * MIB, 3 * MIB
_ITEMS_AT = layout.METADATA_TABLE_SIZE
_ENTRY = 8
_OF_DISK = int(MetadataFlags.IS_VIRTUAL_DISK | MetadataFlags.IS_REQUIRED)
_OF_FILE = int(MetadataFlags.IS_REQUIRED)


class Parent(NamedTuple):
    """The parent of a differencing disk."""

    name: str
    """The file, in the same folder."""
    data_write_guid: bytes


class Shape(NamedTuple):
    """A disk to be made. Sizes are in bytes."""

    virtual_size: int
    sector_size: int = 512
    physical_sector_size: int = 4096
    disk_id: bytes | None = None
    """The GUID of page 83. None: a new one."""
    block_size: int = BLOCK_SIZE
    parent: Parent | None = None


def make(handle: Handle, shape: Shape) -> None:
    """Write an empty disk into an empty file. Raises ``OSError``."""
    ratio = chunk_ratio(shape.sector_size, shape.block_size)
    entries = entries_for(shape.virtual_size, shape.block_size, ratio, with_bitmaps=True)
    bat_length = -(-entries * _ENTRY // MIB) * MIB
    handle.truncate(_BAT + bat_length)
    creator = CREATOR.encode("utf-16-le")
    handle.write_from([layout.FILE_SIGNATURE + creator], 0)
    table = layout.RegionTableHeader(entry_count=2)
    regions = layout.REGION_TABLE_HEADER.pack(table)
    regions += layout.REGION_ENTRY.pack(layout.RegionEntry(layout.BAT_REGION, _BAT, bat_length))
    regions += layout.REGION_ENTRY.pack(layout.RegionEntry(layout.METADATA_REGION, _METADATA, MIB))
    for offset in layout.REGION_TABLE_OFFSETS:
        handle.write_from([sealed(regions.ljust(layout.REGION_TABLE_SIZE, b"\0"))], offset)
    handle.write_from([_metadata(shape)], _METADATA)
    header = layout.Header(
        file_write_guid=uuid.uuid4().bytes_le, data_write_guid=uuid.uuid4().bytes_le, log_length=MIB, log_offset=_LOG
    )
    for number, offset in enumerate(layout.HEADER_OFFSETS):
        data = layout.HEADER.pack(header._replace(sequence_number=number + 1))
        handle.write_from([sealed(data.ljust(layout.HEADER_SIZE, b"\0"))], offset)


def locator(parent: Parent) -> bytes:
    """Encode a parent locator. [MS-VHDX 2.6.2.6]"""
    pairs = {
        "parent_linkage": "{" + str(uuid.UUID(bytes_le=parent.data_write_guid)) + "}",
        "relative_path": ".\\" + parent.name,
    }
    head = layout.LOCATOR_HEADER.pack(layout.LocatorHeader(key_value_count=len(pairs)))
    strings, entries = b"", b""
    at = len(head) + len(pairs) * layout.LOCATOR_ENTRY.size
    for key, value in pairs.items():
        name, content = key.encode("utf-16-le"), value.encode("utf-16-le")
        start = at + len(strings)
        entry = layout.LocatorEntry(start, start + len(name), len(name), len(content))
        entries += layout.LOCATOR_ENTRY.pack(entry)
        strings += name + content
    return head + entries + strings


def _metadata(shape: Shape) -> bytes:
    flags = int(ParameterFlags.HAS_PARENT) if shape.parent is not None else 0
    items = [
        (layout.FILE_PARAMETERS, layout.PARAMETERS.pack(layout.FileParameters(shape.block_size, flags)), _OF_FILE),
        (layout.VIRTUAL_DISK_SIZE, struct.pack("<Q", shape.virtual_size), _OF_DISK),
        (layout.PAGE_83_DATA, shape.disk_id or uuid.uuid4().bytes_le, _OF_DISK),
        (layout.LOGICAL_SECTOR_SIZE, struct.pack("<I", shape.sector_size), _OF_DISK),
        (layout.PHYSICAL_SECTOR_SIZE, struct.pack("<I", shape.physical_sector_size), _OF_DISK),
    ]
    if shape.parent is not None:
        items.append((layout.PARENT_LOCATOR, locator(shape.parent), _OF_FILE))
    table = layout.METADATA_TABLE_HEADER.pack(layout.MetadataTableHeader(entry_count=len(items)))
    content = b""
    for item, data, kind in items:
        entry = layout.MetadataEntry(item, _ITEMS_AT + len(content), len(data), kind)
        table += layout.METADATA_ENTRY.pack(entry)
        content += data
    return table.ljust(_ITEMS_AT, b"\0") + content
