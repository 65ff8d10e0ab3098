"""READ and WRITE, and the buffer descriptors they carry. [MS-SMB2 2.2.19 to 2.2.22, MS-SMBD 2.2.3.1]"""

import enum
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from smb3server.wire.fields import Message
from smb3server.wire.header import HEADER_SIZE
from smbdirect.codec import Codec, new_record
from smbdirect.errors import DecodeError
from smbdirect.fields import Int8ul, Int16ul, Int32ul, Int64ul
from smbdirect.message_transport import RemoteBuffer


class Channel(enum.IntEnum):
    """Kinds of channel data of a request. [MS-SMB2 2.2.19, 2.2.21]"""

    NONE = 0
    RDMA_V1 = 1
    RDMA_V1_INVALIDATE = 2
    RDMA_TRANSFORM = 3


class ReadFlags(enum.IntFlag):
    """Flags of a READ request. [MS-SMB2 2.2.19]"""

    UNBUFFERED = 0x01
    REQUEST_COMPRESSED = 0x02
    """The response may be compressed, in dialect 3.1.1."""


class WriteFlags(enum.IntFlag):
    """Flags of a WRITE request. [MS-SMB2 2.2.21]"""

    WRITE_THROUGH = 0x01
    UNBUFFERED = 0x02


class ReadResponseFlags(enum.IntFlag):
    """Flags of a READ response, in dialect 3.1.1. [MS-SMB2 2.2.20]"""

    RDMA_TRANSFORM = 0x01
    """The variable part says how data that moved by RDMA is protected."""


class ReadRequest(NamedTuple):
    """The fixed part of a READ request. [MS-SMB2 2.2.19]"""

    structure_size: Annotated[int, Int16ul] = 49
    padding: Annotated[int, Int8ul] = 0
    """DataOffset that the client requests for the response."""
    flags: Annotated[int, Int8ul] = 0
    length: Annotated[int, Int32ul] = 0
    offset: Annotated[int, Int64ul] = 0
    persistent: Annotated[int, Int64ul] = 0
    volatile: Annotated[int, Int64ul] = 0
    minimum_count: Annotated[int, Int32ul] = 0
    channel: Annotated[int, Int32ul] = 0
    remaining_bytes: Annotated[int, Int32ul] = 0
    channel_info_offset: Annotated[int, Int16ul] = 0
    channel_info_length: Annotated[int, Int16ul] = 0


class ReadResponse(NamedTuple):
    """The fixed part of a READ response. [MS-SMB2 2.2.20]"""

    structure_size: Annotated[int, Int16ul] = 17
    data_offset: Annotated[int, Int8ul] = 0
    reserved: Annotated[int, Int8ul] = 0
    data_length: Annotated[int, Int32ul] = 0
    data_remaining: Annotated[int, Int32ul] = 0
    """Bytes sent by RDMA Write. [MS-SMB2 3.3.5.12]"""
    flags: Annotated[int, Int32ul] = 0


class WriteRequest(NamedTuple):
    """The fixed part of a WRITE request. [MS-SMB2 2.2.21]"""

    structure_size: Annotated[int, Int16ul] = 49
    data_offset: Annotated[int, Int16ul] = 0
    length: Annotated[int, Int32ul] = 0
    offset: Annotated[int, Int64ul] = 0
    persistent: Annotated[int, Int64ul] = 0
    volatile: Annotated[int, Int64ul] = 0
    channel: Annotated[int, Int32ul] = 0
    remaining_bytes: Annotated[int, Int32ul] = 0
    """Bytes to fetch by RDMA Read if the request has descriptors."""
    channel_info_offset: Annotated[int, Int16ul] = 0
    channel_info_length: Annotated[int, Int16ul] = 0
    flags: Annotated[int, Int32ul] = 0


class WriteResponse(NamedTuple):
    """A WRITE response. [MS-SMB2 2.2.22]"""

    structure_size: Annotated[int, Int16ul] = 17
    reserved: Annotated[int, Int16ul] = 0
    byte_count: Annotated[int, Int32ul] = 0
    remaining: Annotated[int, Int32ul] = 0
    channel_info_offset: Annotated[int, Int16ul] = 0
    channel_info_length: Annotated[int, Int16ul] = 0


class BufferDescriptor(NamedTuple):
    """SMB_DIRECT_BUFFER_DESCRIPTOR_V1. [MS-SMBD 2.2.3.1]"""

    offset: Annotated[int, Int64ul] = 0
    token: Annotated[int, Int32ul] = 0
    length: Annotated[int, Int32ul] = 0


READ_REQUEST = Message(ReadRequest)
READ_RESPONSE = Message(ReadResponse, ("data_offset", "data_length"))
WRITE_REQUEST = Message(WriteRequest)
WRITE_RESPONSE = Message(WriteResponse)
BUFFER_DESCRIPTOR = Codec(BufferDescriptor)

TAIL = HEADER_SIZE + 48
"""Offset in the message at which the variable part of both requests begins."""
READ_DATA_OFFSET = HEADER_SIZE + 16
"""Offset in the message at which the data of a READ response begins."""
parse_read_request = READ_REQUEST.parse
parse_read_response = READ_RESPONSE.parse_both
parse_write_request = WRITE_REQUEST.parse
parse_write_response = WRITE_RESPONSE.parse


def descriptors(message: memoryview, offset: int, length: int) -> list[RemoteBuffer]:
    """Decode the descriptor array at ``offset``.

    Raises ``DecodeError`` if it is empty, has an incomplete descriptor, or is not within the variable part of the
    message.
    """
    end = offset + length
    if length == 0 or length % BUFFER_DESCRIPTOR.size or offset < TAIL or end > len(message):
        raise DecodeError(f"{length} bytes of buffer descriptors at {offset} in a message of {len(message)}")
    if length == BUFFER_DESCRIPTOR.size:
        # One is what nearly all requests have: made without a call of Python code.
        return [new_record(RemoteBuffer, BUFFER_DESCRIPTOR.fields_from(message, offset))]
    return list(map(RemoteBuffer._make, BUFFER_DESCRIPTOR.iter_fields(message[offset:end])))


def pack_descriptors(remote: Sequence[RemoteBuffer]) -> bytes:
    """Encode a descriptor array."""
    return b"".join(BUFFER_DESCRIPTOR.pack(BufferDescriptor._make(item)) for item in remote)
