"""The structures of a VHDX file, as they are on the disk. [MS-VHDX 2]"""

from __future__ import annotations

import enum
import uuid
from typing import Annotated, NamedTuple

from smbdirect.codec import Codec
from smbdirect.fields import Bytes, Int16ul, Int32ul, Int64ul

KIB, MIB = 1 << 10, 1 << 20
FILE_SIGNATURE = b"vhdxfile"
HEADER_OFFSETS = (64 * KIB, 128 * KIB)
HEADER_SIZE = 4096
REGION_TABLE_OFFSETS = (192 * KIB, 256 * KIB)
REGION_TABLE_SIZE = 64 * KIB
LOG_SECTOR = 4096
"""Bytes of a sector of the log, and of what one data descriptor updates."""
METADATA_TABLE_SIZE = 64 * KIB
MAX_ENTRIES = 2047
"""The most entries of a region table or a metadata table. [MS-VHDX 2.2.3.1, 2.6.1.1]"""
MAX_VIRTUAL_SIZE = 64 << 40
MIN_BLOCK, MAX_BLOCK = MIB, 256 * MIB
CHUNK_SECTORS = 1 << 23
MAX_LOCATOR = 64 * KIB
"""Bytes of the largest parent locator that is read."""


def _guid(text: str) -> bytes:
    return uuid.UUID(text).bytes_le


BAT_REGION = _guid("2DC27766-F623-4200-9D64-115E9BFD4A08")
METADATA_REGION = _guid("8B7CA206-4790-4B9A-B8FE-575F050F886E")
FILE_PARAMETERS = _guid("CAA16737-FA36-4D43-B3B6-33F0AA44E76B")
VIRTUAL_DISK_SIZE = _guid("2FA54224-CD1B-4876-B211-5DBED83BF4B8")
PAGE_83_DATA = _guid("BECA12AB-B2E6-4523-93EF-C309E000C746")
LOGICAL_SECTOR_SIZE = _guid("8141BF1D-A96F-4709-BA47-F233A8FAAB5F")
PHYSICAL_SECTOR_SIZE = _guid("CDA348C7-445D-4471-9CC9-E9885251C556")
PARENT_LOCATOR = _guid("A8D35F2D-B30B-454D-ABF7-D3D84834AB0C")
VHDX_PARENT = _guid("B04AEFB7-D19E-4A81-B789-25B8E9445913")
"""LocatorType of a parent that is a VHDX file."""


class BlockState(enum.IntEnum):
    """States of blocks in the block allocation table. [MS-VHDX 2.5.1.1]"""

    NOT_PRESENT = 0
    UNDEFINED = 1
    ZERO = 2
    UNMAPPED = 3
    FULLY_PRESENT = 6
    PARTIALLY_PRESENT = 7


class Header(NamedTuple):
    """[MS-VHDX 2.2.2]"""

    signature: Annotated[bytes, Bytes(4)] = b"head"
    checksum: Annotated[int, Int32ul] = 0
    sequence_number: Annotated[int, Int64ul] = 0
    file_write_guid: Annotated[bytes, Bytes(16)] = bytes(16)
    data_write_guid: Annotated[bytes, Bytes(16)] = bytes(16)
    log_guid: Annotated[bytes, Bytes(16)] = bytes(16)
    log_version: Annotated[int, Int16ul] = 0
    version: Annotated[int, Int16ul] = 1
    log_length: Annotated[int, Int32ul] = 0
    log_offset: Annotated[int, Int64ul] = 0


class RegionTableHeader(NamedTuple):
    """[MS-VHDX 2.2.3.1]"""

    signature: Annotated[bytes, Bytes(4)] = b"regi"
    checksum: Annotated[int, Int32ul] = 0
    entry_count: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int32ul] = 0


class RegionEntry(NamedTuple):
    """[MS-VHDX 2.2.3.2]"""

    guid: Annotated[bytes, Bytes(16)] = bytes(16)
    file_offset: Annotated[int, Int64ul] = 0
    length: Annotated[int, Int32ul] = 0
    required: Annotated[int, Int32ul] = 1


class LogEntryHeader(NamedTuple):
    """[MS-VHDX 2.3.1.1]"""

    signature: Annotated[bytes, Bytes(4)] = b"loge"
    checksum: Annotated[int, Int32ul] = 0
    entry_length: Annotated[int, Int32ul] = 0
    tail: Annotated[int, Int32ul] = 0
    sequence_number: Annotated[int, Int64ul] = 0
    descriptor_count: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int32ul] = 0
    log_guid: Annotated[bytes, Bytes(16)] = bytes(16)
    flushed_file_offset: Annotated[int, Int64ul] = 0
    last_file_offset: Annotated[int, Int64ul] = 0


class LogDescriptor(NamedTuple):
    """A data descriptor, or a zero descriptor (b"zero"), whose ``leading_bytes`` are its ZeroLength.
    [MS-VHDX 2.3.1.2, 2.3.1.3]"""

    signature: Annotated[bytes, Bytes(4)] = b"desc"
    trailing_bytes: Annotated[bytes, Bytes(4)] = bytes(4)
    leading_bytes: Annotated[bytes, Bytes(8)] = bytes(8)
    file_offset: Annotated[int, Int64ul] = 0
    sequence_number: Annotated[int, Int64ul] = 0


class MetadataTableHeader(NamedTuple):
    """[MS-VHDX 2.6.1.1]"""

    signature: Annotated[bytes, Bytes(8)] = b"metadata"
    reserved: Annotated[int, Int16ul] = 0
    entry_count: Annotated[int, Int16ul] = 0
    reserved2: Annotated[bytes, Bytes(20)] = bytes(20)


class MetadataEntry(NamedTuple):
    """[MS-VHDX 2.6.1.2]"""

    item_id: Annotated[bytes, Bytes(16)] = bytes(16)
    offset: Annotated[int, Int32ul] = 0
    length: Annotated[int, Int32ul] = 0
    flags: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int32ul] = 0


class MetadataFlags(enum.IntFlag):
    """Flags of ``MetadataEntry``."""

    IS_USER = 1
    IS_VIRTUAL_DISK = 2
    IS_REQUIRED = 4


class FileParameters(NamedTuple):
    """[MS-VHDX 2.6.2.1]"""

    block_size: Annotated[int, Int32ul] = 0
    flags: Annotated[int, Int32ul] = 0


class ParameterFlags(enum.IntFlag):
    """Flags of ``FileParameters``."""

    LEAVE_BLOCKS_ALLOCATED = 1
    """The disk is fixed."""
    HAS_PARENT = 2


class LocatorHeader(NamedTuple):
    """[MS-VHDX 2.6.2.6.1]"""

    locator_type: Annotated[bytes, Bytes(16)] = VHDX_PARENT
    reserved: Annotated[int, Int16ul] = 0
    key_value_count: Annotated[int, Int16ul] = 0


class LocatorEntry(NamedTuple):
    """[MS-VHDX 2.6.2.6.2]"""

    key_offset: Annotated[int, Int32ul] = 0
    value_offset: Annotated[int, Int32ul] = 0
    key_length: Annotated[int, Int16ul] = 0
    value_length: Annotated[int, Int16ul] = 0


HEADER = Codec(Header)
REGION_TABLE_HEADER = Codec(RegionTableHeader)
REGION_ENTRY = Codec(RegionEntry)
LOG_ENTRY_HEADER = Codec(LogEntryHeader)
LOG_DESCRIPTOR = Codec(LogDescriptor)
METADATA_TABLE_HEADER = Codec(MetadataTableHeader)
METADATA_ENTRY = Codec(MetadataEntry)
PARAMETERS = Codec(FileParameters)
LOCATOR_HEADER = Codec(LocatorHeader)
LOCATOR_ENTRY = Codec(LocatorEntry)
