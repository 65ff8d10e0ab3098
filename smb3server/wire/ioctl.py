"""IOCTL and the FSCTL numbers. [MS-SMB2 2.2.31, 2.2.32, MS-FSCC 2.3]"""

import enum
from typing import Annotated, NamedTuple

from smb3server.wire.fields import Message
from smbdirect.fields import Int16ul, Int32ul, Int64ul

IOCTL_IS_FSCTL = 0x00000001


class Fsctl(enum.IntEnum):
    """Control codes. [MS-FSCC 2.3, MS-SMB2 2.2.31]"""

    DFS_GET_REFERRALS = 0x00060194
    DFS_GET_REFERRALS_EX = 0x000601B0
    REQUEST_OPLOCK = 0x00090240
    SET_REPARSE_POINT = 0x000900A4
    GET_REPARSE_POINT = 0x000900A8
    DELETE_REPARSE_POINT = 0x000900AC
    GET_COMPRESSION = 0x0009003C
    SET_COMPRESSION = 0x0009C040
    FILESYSTEM_GET_STATISTICS = 0x00090060
    IS_PATHNAME_VALID = 0x0009002C
    IS_VOLUME_DIRTY = 0x00090078
    GET_NTFS_VOLUME_DATA = 0x00090064
    GET_RETRIEVAL_POINTERS = 0x00090073
    SET_OBJECT_ID = 0x00090098
    GET_OBJECT_ID = 0x0009009C
    DELETE_OBJECT_ID = 0x000900A0
    CREATE_OR_GET_OBJECT_ID = 0x000900C0
    SET_SPARSE = 0x000900C4
    SET_ZERO_DATA = 0x000980C8
    QUERY_ALLOCATED_RANGES = 0x000940CF
    SET_ENCRYPTION = 0x000900D7
    READ_FILE_USN_DATA = 0x000900EB
    WRITE_USN_CLOSE_RECORD = 0x000900EF
    QUERY_FILE_REGIONS = 0x00090284
    GET_INTEGRITY_INFORMATION = 0x0009027C
    SET_INTEGRITY_INFORMATION = 0x0009C280
    DUPLICATE_EXTENTS_TO_FILE = 0x00098344
    DUPLICATE_EXTENTS_TO_FILE_EX = 0x000983E8
    OFFLOAD_READ = 0x00094264
    OFFLOAD_WRITE = 0x00098268
    FILE_LEVEL_TRIM = 0x00098208
    SET_ZERO_ON_DEALLOCATION = 0x00090194
    PIPE_PEEK = 0x0011400C
    PIPE_WAIT = 0x00110018
    PIPE_TRANSCEIVE = 0x0011C017
    SRV_COPYCHUNK = 0x001440F2
    SRV_COPYCHUNK_WRITE = 0x001480F2
    SRV_ENUMERATE_SNAPSHOTS = 0x00144064
    SRV_REQUEST_RESUME_KEY = 0x00140078
    SRV_READ_HASH = 0x001441BB
    LMR_REQUEST_RESILIENCY = 0x001401D4
    QUERY_NETWORK_INTERFACE_INFO = 0x001401FC
    VALIDATE_NEGOTIATE_INFO = 0x00140204
    ONE_SIDED_TICKET = 0x00142340
    """Private: see ``wire.one_sided``. The function codes 0x800 to 0xFFF are for vendors. [MS-FSCC 2.3]"""
    ONE_SIDED_LEND = 0x00142344
    SVHDX_SYNC_TUNNEL_REQUEST = 0x00090304
    SVHDX_ASYNC_TUNNEL_REQUEST = 0x00090364
    QUERY_SHARED_VIRTUAL_DISK_SUPPORT = 0x00090300
    STORAGE_QOS_CONTROL = 0x00090350


class IoctlRequest(NamedTuple):
    """The fixed part of an IOCTL request. [MS-SMB2 2.2.31]"""

    structure_size: Annotated[int, Int16ul] = 57
    reserved: Annotated[int, Int16ul] = 0
    ctl_code: Annotated[int, Int32ul] = 0
    persistent: Annotated[int, Int64ul] = 0
    volatile: Annotated[int, Int64ul] = 0
    input_offset: Annotated[int, Int32ul] = 0
    input_count: Annotated[int, Int32ul] = 0
    max_input_response: Annotated[int, Int32ul] = 0
    output_offset: Annotated[int, Int32ul] = 0
    output_count: Annotated[int, Int32ul] = 0
    max_output_response: Annotated[int, Int32ul] = 0
    flags: Annotated[int, Int32ul] = 0
    reserved2: Annotated[int, Int32ul] = 0

    @property
    def file_id(self) -> tuple[int, int]:
        """The open as (persistent, volatile)."""
        return self.persistent, self.volatile


IOCTL_REQUEST = Message(IoctlRequest, ("input_offset", "input_count"), "InputBuffer")
"""OutputOffset and OutputCount are ignored: they are 0. [MS-SMB2 2.2.31]"""
parse_ioctl_request = IOCTL_REQUEST.parse_both
build_ioctl_request = IOCTL_REQUEST.build


class IoctlResponse(NamedTuple):
    """The fixed part of an IOCTL response. [MS-SMB2 2.2.32]"""

    structure_size: Annotated[int, Int16ul] = 49
    reserved: Annotated[int, Int16ul] = 0
    ctl_code: Annotated[int, Int32ul] = 0
    persistent: Annotated[int, Int64ul] = 0
    volatile: Annotated[int, Int64ul] = 0
    input_offset: Annotated[int, Int32ul] = 0
    input_count: Annotated[int, Int32ul] = 0
    output_offset: Annotated[int, Int32ul] = 0
    output_count: Annotated[int, Int32ul] = 0
    flags: Annotated[int, Int32ul] = 0
    reserved2: Annotated[int, Int32ul] = 0

    @property
    def file_id(self) -> tuple[int, int]:
        """The open as (persistent, volatile)."""
        return self.persistent, self.volatile


IOCTL_RESPONSE = Message(IoctlResponse, ("output_offset", "output_count"), "OutputBuffer")
parse_ioctl_response = IOCTL_RESPONSE.parse_both


def build_ioctl_response(ctl_code: int, file_id: tuple[int, int], length: int) -> bytes:
    """Encode the fixed part of a response. The caller appends ``length`` bytes of output."""
    offset = IOCTL_RESPONSE.end
    return IOCTL_RESPONSE.pack(
        IoctlResponse(
            ctl_code=ctl_code,
            persistent=file_id[0],
            volatile=file_id[1],
            input_offset=offset,
            output_offset=offset,
            output_count=length,
        )
    )
