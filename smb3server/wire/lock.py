"""LOCK. [MS-SMB2 2.2.26, 2.2.27]"""

import enum
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from smb3server.wire.fields import Message
from smbdirect.codec import Codec
from smbdirect.errors import DecodeError
from smbdirect.fields import Int16ul, Int32ul, Int64ul


class LockFlags(enum.IntFlag):
    """Flags of one element. [MS-SMB2 2.2.26.1]"""

    SHARED_LOCK = 0x01
    EXCLUSIVE_LOCK = 0x02
    UNLOCK = 0x04
    FAIL_IMMEDIATELY = 0x10


class LockRequest(NamedTuple):
    """The fixed part of a LOCK request. Elements follow. [MS-SMB2 2.2.26]"""

    structure_size: Annotated[int, Int16ul] = 48
    lock_count: Annotated[int, Int16ul] = 0
    lock_sequence: Annotated[int, Int32ul] = 0
    """LockSequenceNumber is in the low 4 bits, LockSequenceIndex in the others."""
    persistent: Annotated[int, Int64ul] = 0
    volatile: Annotated[int, Int64ul] = 0


class LockElement(NamedTuple):
    """SMB2_LOCK_ELEMENT: one byte range. [MS-SMB2 2.2.26.1]"""

    offset: Annotated[int, Int64ul] = 0
    length: Annotated[int, Int64ul] = 0
    flags: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int32ul] = 0


class LockResponse(NamedTuple):
    """A LOCK response. [MS-SMB2 2.2.27]"""

    structure_size: Annotated[int, Int16ul] = 4
    reserved: Annotated[int, Int16ul] = 0


LOCK_REQUEST = Message(LockRequest)
LOCK_ELEMENT = Codec(LockElement)
LOCK_RESPONSE = Message(LockResponse)
parse_response = LOCK_RESPONSE.parse


def parse_request(message: memoryview) -> tuple[LockRequest, list[LockElement]]:
    """Decode a request and its elements. Raises ``DecodeError`` if there are none or they exceed the message.
    [MS-SMB2 3.3.5.14]"""
    record = LOCK_REQUEST.parse(message)
    start = LOCK_REQUEST.end
    if record.lock_count == 0 or start + record.lock_count * LOCK_ELEMENT.size > len(message):
        raise DecodeError(f"{record.lock_count} locks in a message of {len(message)}")
    return record, [LOCK_ELEMENT.unpack(message, start + i * LOCK_ELEMENT.size) for i in range(record.lock_count)]


def pack_request(record: LockRequest, elements: Sequence[LockElement]) -> bytes:
    """Encode a request with its elements."""
    return LOCK_REQUEST.pack(record._replace(lock_count=len(elements))) + b"".join(map(LOCK_ELEMENT.pack, elements))
