"""The short forms of commands: the part of ``fast_lane`` that differs between them. They lie beside the commands'
handlers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from smb3server.dispatch.checks import CREDIT_SIZE, PAYLOAD_OFFSETS, STRUCTURE_SIZE, check_body, pays_for
from smb3server.dispatch.data_channel import (
    ADDRESS_SPACE,
    RDMA_V1,
    RDMA_V1_INVALIDATE,
    SMB_3_0,
    SMB_3_0_2,
    RemoteMemory,
    described,
)
from smb3server.dispatch.request import Handler, Pending, Response, TreeRequest
from smb3server.wire.header import HEADER_SIZE
from smb3server.wire.read_write import BUFFER_DESCRIPTOR, TAIL
from smb3server.wire.status import StatusError
from smbdirect.codec import Buffer, new_record
from smbdirect.errors import DecodeError
from smbdirect.message_transport import RemoteBuffer

if TYPE_CHECKING:
    from smb3server.dispatch.fetch import Fetch
    from smb3server.state.objects import Connection, Open, Session, TreeConnect
    from smbdirect.message_transport import Payload

_CHARGE = struct.Struct("<H")
_DESCRIPTOR_SIZE = BUFFER_DESCRIPTOR.size
_descriptor = BUFFER_DESCRIPTOR.fields_from
LARGEST_DATA = 65536
"""Bytes of data of an ordinary READ or WRITE in the message. One credit pays for them, and they do not count in
``Usage.lent``."""

Body = tuple[bytes, Buffer | None]
"""The fixed part of a response, and the data behind it or None."""
Begin = Callable[[Any], Response | Pending]
"""Does or begins what the request asks for, as a handler. It is called with the request."""
Answer = Callable[[], Body | Begin | None]
"""Does what the request asks for and returns the response, or returns what does or begins it. None: nothing was done,
and the general path has to do it. An exception becomes the status of the response, as in a handler."""
AnswerAtLength = Callable[[bool, bool], Response | None]
"""As ``Answer``, for more than ``LARGEST_DATA``. It takes whether the reply is encrypted, and whether it is signed:
that decides where the data lies, in a file or in a frame."""


class Long(NamedTuple):
    """What answers a request of an open for more than ``LARGEST_DATA``."""

    answer: AnswerAtLength


Found = tuple["Open | None", "Answer | Long | Fetch", RemoteMemory | None]
"""The open that a request works on or None, what answers the request, and the client's memory if the data goes by RDMA.
A ``Fetch`` gets the data out of that memory first."""


class ShortForm(NamedTuple):
    """The part of the lane that belongs to one command."""

    handler: Handler
    """The handler that it replaces. It is not used on a connection that has another handler for the command."""
    look: Callable[[Connection, Session, TreeConnect | None, int, memoryview], Found | None]
    """Takes connection, session, tree connect or None, ChannelSequence and message. Returns None if anything in the
    body is not ordinary. Changes nothing, as the signature is not verified yet."""
    ends_with_payload: Callable[[memoryview, int], bool] = lambda head, length: False
    """Takes the head and the length of a message. Returns whether everything behind the head is data that the command
    can take from the transport."""
    look_at_payload: Callable[[Connection, Session, TreeConnect | None, int, memoryview, Payload], Found | None] = (
        lambda *_: None
    )
    """As ``look``. The message ends with its head, and its data is in the payload."""
    writes: bool = False
    """Whether ``Answer`` writes to a descriptor as the user whose space that takes, and does nothing else to files."""
    ends_row: bool = False
    """Whether ``Answer`` does more to files than reading and writing descriptors, which no row of writes may see."""


SHORT_FORMS: dict[int, ShortForm] = {}
"""By command."""


def whole(command: int, handler: Handler) -> ShortForm:
    """Return the short form of a command of a tree connect whose handler is called as in the general path. The checks
    and the objects of messages with several commands are saved."""
    size = STRUCTURE_SIZE[command]
    shortest = HEADER_SIZE + (size & ~1)

    def checked(request: TreeRequest) -> Response | Pending:
        check_body(request)
        result: Response | Pending = handler(request)
        return result

    begin = checked if command in PAYLOAD_OFFSETS else handler
    found: Found = (None, lambda: begin, None)

    def look(
        connection: Connection, session: Session, tree: TreeConnect | None, sequence: int, message: memoryview
    ) -> Found | None:
        if (
            len(message) < shortest
            or message[HEADER_SIZE] | message[HEADER_SIZE + 1] << 8 != size
            or tree is None
            # Refusals are recorded, and changes are stored before the answer: the general path does both.
            or tree.share.audit is not None
            or connection.host.opens.persistence is not None
        ):
            return None
        return found

    return ShortForm(handler, look, ends_row=True)


def ordinary_open(
    session: Session, tree: TreeConnect | None, sequence: int, persistent: int, volatile: int
) -> Open | None:
    """Return the open that a request names. Return None if ``lookup.find_open`` would fail or change anything."""
    found = session.open_table.get(volatile)
    if (
        found is None
        or found.file_id[0] != persistent
        or found.tree is not tree
        or found.replayable is not None
        or found.channel_sequence != sequence
    ):
        return None
    return found


def is_paid(connection: Connection, message: memoryview, length: int) -> bool:
    """Return whether the credits of a READ or WRITE pay for ``length`` bytes. [MS-SMB2 3.3.5.2.5]"""
    return (
        length <= CREDIT_SIZE
        or not connection.supports_multi_credit
        or pays_for(_CHARGE.unpack_from(message, 6)[0], length)
    )


def ordinary_remote(
    connection: Connection, message: memoryview, channel: int, info_offset: int, info_length: int, length: int
) -> RemoteMemory | None:
    """Return the client's memory for ``length`` bytes. Return None if the general path would refuse the request."""
    if length > CREDIT_SIZE and not is_paid(connection, message, length):
        return None
    if info_length == _DESCRIPTOR_SIZE and TAIL <= info_offset <= len(message) - info_length:
        # One, as nearly all requests have: what ``described`` returns, without its calls.
        address, token, size_there = fields = _descriptor(message, info_offset)
        rdma, dialect = connection.transport.rdma, connection.dialect
        invalidate = channel == RDMA_V1_INVALIDATE and dialect >= SMB_3_0_2
        if (
            0 < length <= size_there
            and address + size_there <= ADDRESS_SPACE
            and rdma is not None
            and (invalidate or (channel == RDMA_V1 and dialect >= SMB_3_0))
        ):
            buffer = new_record(RemoteBuffer, fields)
            return new_record(RemoteMemory, (rdma, (buffer,), token if invalidate else None, None))
    try:
        return described(connection, message, channel, info_offset, info_length, length)
    except (StatusError, DecodeError):
        return None
