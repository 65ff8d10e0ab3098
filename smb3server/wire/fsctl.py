"""Inputs and outputs of FSCTLs on files; the numbers are ``ioctl.Fsctl``. [MS-SMB2 2.2.31.1, 2.2.32.1, MS-FSCC 2.3]"""

import enum
from typing import Annotated, Any, NamedTuple

from smbdirect.codec import Buffer, Codec
from smbdirect.errors import DecodeError
from smbdirect.fields import Bytes, Int16ul, Int32ul, Int64sl, Int64ul


class CopyChunkHeader(NamedTuple):
    """SRV_COPYCHUNK_COPY up to its chunks. [MS-SMB2 2.2.31.1]"""

    source_key: Annotated[bytes, Bytes(24)] = bytes(24)
    chunk_count: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int32ul] = 0


class CopyChunk(NamedTuple):
    """SRV_COPYCHUNK. Offsets and length are in bytes. [MS-SMB2 2.2.31.1.1]"""

    source_offset: Annotated[int, Int64ul] = 0
    target_offset: Annotated[int, Int64ul] = 0
    length: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int32ul] = 0


class CopyChunkResponse(NamedTuple):
    """SRV_COPYCHUNK_RESPONSE. With INVALID_PARAMETER it contains the server's limits instead. [MS-SMB2 2.2.32.1]"""

    chunks_written: Annotated[int, Int32ul] = 0
    chunk_bytes_written: Annotated[int, Int32ul] = 0
    total_bytes_written: Annotated[int, Int32ul] = 0


class ResumeKeyResponse(NamedTuple):
    """SRV_REQUEST_RESUME_KEY Response. [MS-SMB2 2.2.32.3]"""

    resume_key: Annotated[bytes, Bytes(24)] = bytes(24)
    context_length: Annotated[int, Int32ul] = 0
    context: Annotated[bytes, Bytes(4)] = bytes(4)


class ZeroData(NamedTuple):
    """FSCTL_SET_ZERO_DATA Request. [MS-FSCC 2.3.71]"""

    file_offset: Annotated[int, Int64sl] = 0
    beyond_final_zero: Annotated[int, Int64sl] = 0


class FileRange(NamedTuple):
    """FILE_ALLOCATED_RANGE_BUFFER. The extents of FSCTL_FILE_LEVEL_TRIM have the same layout. [MS-FSCC 2.3.53]"""

    file_offset: Annotated[int, Int64sl] = 0
    length: Annotated[int, Int64sl] = 0


class TrimHeader(NamedTuple):
    """FILE_LEVEL_TRIM up to its extents. [MS-FSCC 2.3.13]"""

    key: Annotated[int, Int32ul] = 0
    num_ranges: Annotated[int, Int32ul] = 0


class CompressionFormat(enum.IntEnum):
    """CompressionState. [MS-FSCC 2.3.20, 2.3.67]"""

    NONE = 0
    DEFAULT = 1
    LZNT1 = 2


class DuplicateExtents(NamedTuple):
    """SMB2_DUPLICATE_EXTENTS_DATA. [MS-FSCC 2.3.8]"""

    source_persistent: Annotated[int, Int64ul] = 0
    source_volatile: Annotated[int, Int64ul] = 0
    source_offset: Annotated[int, Int64sl] = 0
    target_offset: Annotated[int, Int64sl] = 0
    byte_count: Annotated[int, Int64sl] = 0


class DuplicateExtentsEx(NamedTuple):
    """SMB2_DUPLICATE_EXTENTS_DATA_EX. [MS-FSCC 2.3.10]"""

    structure_size: Annotated[int, Int64ul] = 48
    source_persistent: Annotated[int, Int64ul] = 0
    source_volatile: Annotated[int, Int64ul] = 0
    source_offset: Annotated[int, Int64sl] = 0
    target_offset: Annotated[int, Int64sl] = 0
    byte_count: Annotated[int, Int64sl] = 0
    flags: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int32ul] = 0


class ReparseHeader(NamedTuple):
    """REPARSE_DATA_BUFFER. In buffers with a non-Microsoft tag a GUID follows (2.1.2.3). [MS-FSCC 2.1.2.2]"""

    tag: Annotated[int, Int32ul] = 0
    data_length: Annotated[int, Int16ul] = 0
    reserved: Annotated[int, Int16ul] = 0


class ObjectIdBuffer(NamedTuple):
    """FILE_OBJECTID_BUFFER type 1. [MS-FSCC 2.1.3.1]"""

    object_id: Annotated[bytes, Bytes(16)] = bytes(16)
    birth_volume_id: Annotated[bytes, Bytes(16)] = bytes(16)
    birth_object_id: Annotated[bytes, Bytes(16)] = bytes(16)
    domain_id: Annotated[bytes, Bytes(16)] = bytes(16)


class RegionQuery(NamedTuple):
    """FSCTL_QUERY_FILE_REGIONS Request. [MS-FSCC 2.3.55]"""

    file_offset: Annotated[int, Int64sl] = 0
    length: Annotated[int, Int64sl] = 0
    desired_usage: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int32ul] = 0


class RegionHeader(NamedTuple):
    """FSCTL_QUERY_FILE_REGIONS Reply up to its regions. [MS-FSCC 2.3.56]"""

    flags: Annotated[int, Int32ul] = 0
    total_count: Annotated[int, Int32ul] = 0
    entry_count: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int32ul] = 0


class Region(NamedTuple):
    """FILE_REGION_INFO. [MS-FSCC 2.3.56.1]"""

    file_offset: Annotated[int, Int64sl] = 0
    length: Annotated[int, Int64sl] = 0
    usage: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int32ul] = 0


class NtfsVolumeData(NamedTuple):
    """NTFS_VOLUME_DATA_BUFFER. The master file table is that of NTFS alone. [MS-FSCC 2.3.26]"""

    volume_serial_number: Annotated[int, Int64ul] = 0
    number_sectors: Annotated[int, Int64sl] = 0
    total_clusters: Annotated[int, Int64sl] = 0
    free_clusters: Annotated[int, Int64sl] = 0
    total_reserved: Annotated[int, Int64sl] = 0
    bytes_per_sector: Annotated[int, Int32ul] = 0
    bytes_per_cluster: Annotated[int, Int32ul] = 0
    bytes_per_file_record_segment: Annotated[int, Int32ul] = 1024
    clusters_per_file_record_segment: Annotated[int, Int32ul] = 0
    mft_valid_data_length: Annotated[int, Int64sl] = 0
    mft_start_lcn: Annotated[int, Int64sl] = 0
    mft2_start_lcn: Annotated[int, Int64sl] = 0
    mft_zone_start: Annotated[int, Int64sl] = 0
    mft_zone_end: Annotated[int, Int64sl] = 0


class ReadFileUsnData(NamedTuple):
    """READ_FILE_USN_DATA: the versions of USN records that the client knows. [MS-FSCC 2.3.60]"""

    min_major_version: Annotated[int, Int16ul] = 2
    max_major_version: Annotated[int, Int16ul] = 2


class UsnRecord(NamedTuple):
    """USN_RECORD_V3 up to its name. That of version 2 has numbers of 8 bytes. [MS-FSCC 2.3.61]"""

    record_length: Annotated[int, Int32ul] = 0
    major_version: Annotated[int, Int16ul] = 3
    minor_version: Annotated[int, Int16ul] = 0
    file_reference_number: Annotated[bytes, Bytes(16)] = bytes(16)
    parent_file_reference_number: Annotated[bytes, Bytes(16)] = bytes(16)
    usn: Annotated[int, Int64sl] = 0
    time_stamp: Annotated[int, Int64sl] = 0
    reason: Annotated[int, Int32ul] = 0
    source_info: Annotated[int, Int32ul] = 0
    security_id: Annotated[int, Int32ul] = 0
    file_attributes: Annotated[int, Int32ul] = 0
    file_name_length: Annotated[int, Int16ul] = 0
    file_name_offset: Annotated[int, Int16ul] = 0


class UsnRecordV2(NamedTuple):
    """USN_RECORD_V2 up to its name. [MS-FSCC 2.3.61]"""

    record_length: Annotated[int, Int32ul] = 0
    major_version: Annotated[int, Int16ul] = 2
    minor_version: Annotated[int, Int16ul] = 0
    file_reference_number: Annotated[bytes, Bytes(8)] = bytes(8)
    parent_file_reference_number: Annotated[bytes, Bytes(8)] = bytes(8)
    usn: Annotated[int, Int64sl] = 0
    time_stamp: Annotated[int, Int64sl] = 0
    reason: Annotated[int, Int32ul] = 0
    source_info: Annotated[int, Int32ul] = 0
    security_id: Annotated[int, Int32ul] = 0
    file_attributes: Annotated[int, Int32ul] = 0
    file_name_length: Annotated[int, Int16ul] = 0
    file_name_offset: Annotated[int, Int16ul] = 0


class SnapshotArray(NamedTuple):
    """SRV_SNAPSHOT_ARRAY up to its names. [MS-SMB2 2.2.32.2]"""

    number: Annotated[int, Int32ul] = 0
    returned: Annotated[int, Int32ul] = 0
    array_size: Annotated[int, Int32ul] = 0


COPY_CHUNK_HEADER = Codec(CopyChunkHeader)
COPY_CHUNK = Codec(CopyChunk)
COPY_CHUNK_RESPONSE = Codec(CopyChunkResponse)
RESUME_KEY_RESPONSE = Codec(ResumeKeyResponse)
ZERO_DATA = Codec(ZeroData)
FILE_RANGE = Codec(FileRange)
TRIM_HEADER = Codec(TrimHeader)
DUPLICATE_EXTENTS = Codec(DuplicateExtents)
DUPLICATE_EXTENTS_EX = Codec(DuplicateExtentsEx)
REPARSE_HEADER = Codec(ReparseHeader)
OBJECT_ID_BUFFER = Codec(ObjectIdBuffer)
REGION_QUERY = Codec(RegionQuery)
REGION_HEADER = Codec(RegionHeader)
REGION = Codec(Region)
SNAPSHOT_ARRAY = Codec(SnapshotArray)
NTFS_VOLUME_DATA = Codec(NtfsVolumeData)
READ_FILE_USN_DATA = Codec(ReadFileUsnData)
USN_RECORDS: dict[int, Codec[Any]] = {2: Codec(UsnRecordV2), 3: Codec(UsnRecord)}
"""By major version."""


def decode_copy_chunks(data: Buffer, most: int) -> tuple[CopyChunkHeader, list[CopyChunk]]:
    """Decode header and chunks. Decodes no chunks if there are more than ``most``. Raises ``DecodeError``."""
    header = COPY_CHUNK_HEADER.unpack(data)
    if header.chunk_count > most:
        return header, []
    if len(data) < COPY_CHUNK_HEADER.size + header.chunk_count * COPY_CHUNK.size:
        raise DecodeError("fewer chunks than ChunkCount says")
    start = COPY_CHUNK_HEADER.size
    return header, [COPY_CHUNK.unpack(data, start + index * COPY_CHUNK.size) for index in range(header.chunk_count)]
