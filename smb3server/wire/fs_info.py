"""File system information levels. [MS-FSCC 2.5]"""

import enum
from typing import Annotated, NamedTuple

from smb3server.wire.fields import decode_name, encode_name
from smbdirect.codec import Buffer, Codec
from smbdirect.errors import DecodeError
from smbdirect.fields import Bytes, Int8ul, Int32ul, Int64sl, Int64ul


class FsInfoClass(enum.IntEnum):
    """Numbers of the levels. [MS-FSCC 2.5]"""

    VOLUME = 1
    LABEL = 2
    SIZE = 3
    DEVICE = 4
    ATTRIBUTE = 5
    CONTROL = 6
    FULL_SIZE = 7
    OBJECT_ID = 8
    DRIVER_PATH = 9
    VOLUME_FLAGS = 10
    SECTOR_SIZE = 11


class FsAttributes(enum.IntFlag):
    """FileSystemAttributes. [MS-FSCC 2.5.1]"""

    CASE_SENSITIVE_SEARCH = 0x00000001
    CASE_PRESERVED_NAMES = 0x00000002
    UNICODE_ON_DISK = 0x00000004
    PERSISTENT_ACLS = 0x00000008
    FILE_COMPRESSION = 0x00000010
    VOLUME_QUOTAS = 0x00000020
    SUPPORTS_SPARSE_FILES = 0x00000040
    SUPPORTS_REPARSE_POINTS = 0x00000080
    SUPPORTS_POSIX_UNLINK_RENAME = 0x00000400
    """In Windows' ntifs.h; MS-FSCC does not name it."""
    SUPPORTS_OBJECT_IDS = 0x00010000
    NAMED_STREAMS = 0x00040000
    READ_ONLY_VOLUME = 0x00080000
    SUPPORTS_HARD_LINKS = 0x00400000
    SUPPORTS_EXTENDED_ATTRIBUTES = 0x00800000
    SUPPORTS_OPEN_BY_FILE_ID = 0x01000000
    SUPPORTS_BLOCK_REFCOUNTING = 0x08000000
    SUPPORTS_SPARSE_VDL = 0x10000000


class QuotaFlags(enum.IntFlag):
    """FileSystemControlFlags, as far as this server knows them. [MS-FSCC 2.5.2]"""

    TRACK = 0x00000001
    ENFORCE = 0x00000002


class SectorFlags(enum.IntFlag):
    """Flags of FileFsSectorSizeInformation. [MS-FSCC 2.5.7]"""

    ALIGNED_DEVICE = 1
    PARTITION_ALIGNED_ON_DEVICE = 2
    NO_SEEK_PENALTY = 4
    TRIM_ENABLED = 8


class VolumeFixed(NamedTuple):
    """FileFsVolumeInformation up to its label. [MS-FSCC 2.5.9]"""

    creation_time: Annotated[int, Int64sl] = 0
    serial_number: Annotated[int, Int32ul] = 0
    label_length: Annotated[int, Int32ul] = 0
    supports_objects: Annotated[int, Int8ul] = 0
    reserved: Annotated[int, Int8ul] = 0


class SizeInformation(NamedTuple):
    """FileFsSizeInformation. [MS-FSCC 2.5.8]"""

    total_units: Annotated[int, Int64sl] = 0
    available_units: Annotated[int, Int64sl] = 0
    sectors_per_unit: Annotated[int, Int32ul] = 0
    bytes_per_sector: Annotated[int, Int32ul] = 0


class DeviceInformation(NamedTuple):
    """FileFsDeviceInformation. [MS-FSCC 2.5.10]"""

    device_type: Annotated[int, Int32ul] = 0
    characteristics: Annotated[int, Int32ul] = 0


class AttributeFixed(NamedTuple):
    """FileFsAttributeInformation up to the file system's name. [MS-FSCC 2.5.1]"""

    attributes: Annotated[int, Int32ul] = 0
    maximum_component_length: Annotated[int, Int32ul] = 255
    name_length: Annotated[int, Int32ul] = 0


class ControlInformation(NamedTuple):
    """FileFsControlInformation: quota settings. [MS-FSCC 2.5.2]"""

    free_space_start_filtering: Annotated[int, Int64sl] = 0
    free_space_threshold: Annotated[int, Int64sl] = 0
    free_space_stop_filtering: Annotated[int, Int64sl] = 0
    default_quota_threshold: Annotated[int, Int64ul] = 0
    default_quota_limit: Annotated[int, Int64ul] = 0
    flags: Annotated[int, Int32ul] = 0
    padding: Annotated[int, Int32ul] = 0


class FullSizeInformation(NamedTuple):
    """FileFsFullSizeInformation. [MS-FSCC 2.5.4]"""

    total_units: Annotated[int, Int64sl] = 0
    caller_available_units: Annotated[int, Int64sl] = 0
    actual_available_units: Annotated[int, Int64sl] = 0
    sectors_per_unit: Annotated[int, Int32ul] = 0
    bytes_per_sector: Annotated[int, Int32ul] = 0


class ObjectIdInformation(NamedTuple):
    """FileFsObjectIdInformation. [MS-FSCC 2.5.6]"""

    object_id: Annotated[bytes, Bytes(16)] = bytes(16)
    extended_info: Annotated[bytes, Bytes(48)] = bytes(48)


class SectorSizeInformation(NamedTuple):
    """FileFsSectorSizeInformation. [MS-FSCC 2.5.7]"""

    logical_bytes: Annotated[int, Int32ul] = 512
    physical_bytes_for_atomicity: Annotated[int, Int32ul] = 512
    physical_bytes_for_performance: Annotated[int, Int32ul] = 512
    effective_physical_bytes_for_atomicity: Annotated[int, Int32ul] = 512
    flags: Annotated[int, Int32ul] = 0
    byte_offset_for_sector_alignment: Annotated[int, Int32ul] = 0
    byte_offset_for_partition_alignment: Annotated[int, Int32ul] = 0


VOLUME_FIXED = Codec(VolumeFixed)
SIZE = Codec(SizeInformation)
DEVICE = Codec(DeviceInformation)
ATTRIBUTE_FIXED = Codec(AttributeFixed)
CONTROL = Codec(ControlInformation)
FULL_SIZE = Codec(FullSizeInformation)
OBJECT_ID = Codec(ObjectIdInformation)
SECTOR_SIZE = Codec(SectorSizeInformation)


def encode_volume(creation_time: int, serial_number: int, label: str) -> bytes:
    """Encode FileFsVolumeInformation. ``creation_time`` is a FILETIME."""
    name = encode_name(label)
    return VOLUME_FIXED.pack(VolumeFixed(creation_time, serial_number, len(name))) + name


def encode_attribute(attributes: int, maximum_component_length: int, name: str) -> bytes:
    """Encode FileFsAttributeInformation."""
    data = encode_name(name)
    return ATTRIBUTE_FIXED.pack(AttributeFixed(attributes, maximum_component_length, len(data))) + data


def decode_attribute(data: Buffer) -> str:
    """Return FileSystemName of FileFsAttributeInformation. Raises ``DecodeError``."""
    length = ATTRIBUTE_FIXED.unpack(data)[-1]
    name = memoryview(data)[ATTRIBUTE_FIXED.size :]
    if length > len(name):
        raise DecodeError("FileSystemNameLength beyond the information")
    return decode_name(name[:length])
