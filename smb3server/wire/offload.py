"""Offloaded data transfers (ODX): what clients ask for, and tokens. [MS-FSCC 2.1.11, 2.3.41 to 2.3.44]"""

from typing import Annotated, NamedTuple

from smbdirect.codec import Codec
from smbdirect.fields import Bytes, Int16ub, Int32ub, Int32ul, Int64ul

TOKEN_ID_LENGTH = 504
ZERO_DATA = 0xFFFF0001
"""STORAGE_OFFLOAD_TOKEN_TYPE_ZERO_DATA: the token stands for zeros, whatever its TokenId is. [MS-FSCC 2.1.11]"""
ALL_ZERO_BEYOND_CURRENT_RANGE = 0x00000001
"""OFFLOAD_READ_FLAG_ALL_ZERO_BEYOND_CURRENT_RANGE. [MS-FSCC 2.3.42]"""


class Token(NamedTuple):
    """STORAGE_OFFLOAD_TOKEN. Its numbers are big-endian. [MS-FSCC 2.1.11]"""

    token_type: Annotated[int, Int32ub] = ZERO_DATA
    reserved: Annotated[int, Int16ub] = 0
    token_id_length: Annotated[int, Int16ub] = TOKEN_ID_LENGTH
    token_id: Annotated[bytes, Bytes(TOKEN_ID_LENGTH)] = bytes(TOKEN_ID_LENGTH)


TOKEN = Codec(Token)
ZERO_TOKEN = TOKEN.pack(Token())


class OffloadReadInput(NamedTuple):
    """FSCTL_OFFLOAD_READ_INPUT. Lengths and offsets are in bytes. [MS-FSCC 2.3.41]"""

    size: Annotated[int, Int32ul] = 32
    flags: Annotated[int, Int32ul] = 0
    token_time_to_live: Annotated[int, Int32ul] = 0
    """Milliseconds. 0 means that the server chooses."""
    reserved: Annotated[int, Int32ul] = 0
    file_offset: Annotated[int, Int64ul] = 0
    copy_length: Annotated[int, Int64ul] = 0


class OffloadReadOutput(NamedTuple):
    """FSCTL_OFFLOAD_READ_OUTPUT. [MS-FSCC 2.3.42]"""

    size: Annotated[int, Int32ul] = 528
    flags: Annotated[int, Int32ul] = 0
    transfer_length: Annotated[int, Int64ul] = 0
    token: Annotated[bytes, Bytes(TOKEN.size)] = ZERO_TOKEN


class OffloadWriteInput(NamedTuple):
    """FSCTL_OFFLOAD_WRITE_INPUT. [MS-FSCC 2.3.43]"""

    size: Annotated[int, Int32ul] = 544
    flags: Annotated[int, Int32ul] = 0
    file_offset: Annotated[int, Int64ul] = 0
    copy_length: Annotated[int, Int64ul] = 0
    transfer_offset: Annotated[int, Int64ul] = 0
    """Where to begin in the data that the token stands for."""
    token: Annotated[bytes, Bytes(TOKEN.size)] = ZERO_TOKEN


class OffloadWriteOutput(NamedTuple):
    """FSCTL_OFFLOAD_WRITE_OUTPUT. [MS-FSCC 2.3.44]"""

    size: Annotated[int, Int32ul] = 16
    flags: Annotated[int, Int32ul] = 0
    length_written: Annotated[int, Int64ul] = 0


READ_INPUT = Codec(OffloadReadInput)
READ_OUTPUT = Codec(OffloadReadOutput)
WRITE_INPUT = Codec(OffloadWriteInput)
WRITE_OUTPUT = Codec(OffloadWriteOutput)
