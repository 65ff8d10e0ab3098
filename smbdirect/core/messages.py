"""The layouts of SMB Direct messages, and the output of the core: events about received messages, and Sends to be
posted. A message has no type field: its position in the conversation determines the type. [MS-SMBD 2.2]"""

from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

from smbdirect.codec import Buffer, Codec
from smbdirect.fields import Int16ul, Int32ul, Int64ul
from smbdirect.message_transport import PooledBuffer


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


class WholeTransfer(NamedTuple):
    """The fixed part of a Data Transfer message as an ordinary one has it. ``rest`` is 0 then: no flags, and nothing
    that follows in other messages. [MS-SMBD 2.2.3]"""

    credits_requested: Annotated[int, Int16ul]
    credits_granted: Annotated[int, Int16ul]
    rest: Annotated[int, Int64ul]
    """Flags, Reserved and RemainingDataLength."""
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
WHOLE_TRANSFER = Codec(WholeTransfer)
DATA_TRANSFER_PADDED = Codec(DataTransferPadded)
BUFFER_DESCRIPTOR = Codec(BufferDescriptor)


class Established(NamedTuple):
    """Negotiation succeeded: messages may be sent and received."""


class NegotiationFailed(NamedTuple):
    """The acceptor refused with ``status``. Its response is among the pending Sends; end the connection gracefully once
    it is sent. [MS-SMBD 3.1.5.3]"""

    status: int
    detail: str


class MessageReceived(NamedTuple):
    """One complete upper-layer message.

    ``buffer`` is the pooled buffer that holds it, or None if ``view`` lies in the receive buffer that was passed in.
    ``invalidated`` is the local token that the peer invalidated with it, if any.
    """

    view: memoryview
    buffer: PooledBuffer | None
    invalidated: int | None


Event = Established | NegotiationFailed | MessageReceived


class OutgoingSend(NamedTuple):
    """One Send, whose ``segments`` start with our header. Only the last fragment of an upper-layer message has its
    ``context`` and ``invalidate``."""

    segments: Sequence[Buffer]
    invalidate: int | None
    context: object


Allocate = Callable[[int], PooledBuffer]
"""Returns a reassembly buffer of exactly the requested number of bytes."""
