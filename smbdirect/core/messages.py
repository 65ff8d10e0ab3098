"""The layouts of SMB Direct messages. There is no type field: the position in the conversation determines the type.
[MS-SMBD 2.2]"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from construct import Int16ul, Int32ul, Int64ul

from smbdirect.codec import Codec


class NegotiateRequest(NamedTuple):
    """The Negotiate Request, which the initiator sends once. [MS-SMBD 2.2.1]"""

    min_version: Annotated[int, Int16ul]
    max_version: Annotated[int, Int16ul]
    reserved: Annotated[int, Int16ul]
    credits_requested: Annotated[int, Int16ul]
    preferred_send_size: Annotated[int, Int32ul]
    max_receive_size: Annotated[int, Int32ul]
    max_fragmented_size: Annotated[int, Int32ul]


class NegotiateResponse(NamedTuple):
    """The Negotiate Response, which the acceptor sends once. [MS-SMBD 2.2.2]"""

    min_version: Annotated[int, Int16ul]
    max_version: Annotated[int, Int16ul]
    negotiated_version: Annotated[int, Int16ul]
    reserved: Annotated[int, Int16ul]
    credits_requested: Annotated[int, Int16ul]
    credits_granted: Annotated[int, Int16ul]
    status: Annotated[int, Int32ul]
    max_read_write_size: Annotated[int, Int32ul]
    preferred_send_size: Annotated[int, Int32ul]
    max_receive_size: Annotated[int, Int32ul]
    max_fragmented_size: Annotated[int, Int32ul]


class DataTransfer(NamedTuple):
    """The fixed part of a Data Transfer message; ``data_length`` bytes of payload start at ``data_offset``.
    [MS-SMBD 2.2.3]"""

    credits_requested: Annotated[int, Int16ul]
    credits_granted: Annotated[int, Int16ul]
    flags: Annotated[int, Int16ul]
    reserved: Annotated[int, Int16ul]
    remaining_data_length: Annotated[int, Int32ul]
    data_offset: Annotated[int, Int32ul]
    data_length: Annotated[int, Int32ul]


class DataTransferPadded(NamedTuple):
    """A Data Transfer message as we send it with a payload: the padding moves the payload to offset 24.
    [MS-SMBD 2.2.3]"""

    credits_requested: Annotated[int, Int16ul]
    credits_granted: Annotated[int, Int16ul]
    flags: Annotated[int, Int16ul]
    reserved: Annotated[int, Int16ul]
    remaining_data_length: Annotated[int, Int32ul]
    data_offset: Annotated[int, Int32ul]
    data_length: Annotated[int, Int32ul]
    padding: Annotated[int, Int32ul]


class BufferDescriptor(NamedTuple):
    """SMB_DIRECT_BUFFER_DESCRIPTOR_V1, which upper-layer messages carry. [MS-SMBD 2.2.3.1]"""

    offset: Annotated[int, Int64ul]
    token: Annotated[int, Int32ul]
    length: Annotated[int, Int32ul]


NEGOTIATE_REQUEST = Codec(NegotiateRequest)
NEGOTIATE_RESPONSE = Codec(NegotiateResponse)
DATA_TRANSFER = Codec(DataTransfer)
DATA_TRANSFER_PADDED = Codec(DataTransferPadded)
BUFFER_DESCRIPTOR = Codec(BufferDescriptor)
