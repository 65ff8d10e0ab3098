"""NEGOTIATE with its contexts, and the SMB1 NEGOTIATE that leads to it. [MS-SMB2 2.2.3, 2.2.4]"""

import enum
import struct
from collections.abc import Iterable
from typing import Annotated, NamedTuple

from smb3server.wire.fields import Message
from smb3server.wire.header import HEADER_SIZE
from smbdirect.codec import Buffer
from smbdirect.errors import DecodeError
from smbdirect.fields import Bytes, Int16ul, Int32ul, Int64ul


class Dialect(enum.IntEnum):
    """Dialect revision numbers. [MS-SMB2 2.2.3]"""

    SMB_2_0_2 = 0x0202
    SMB_2_1 = 0x0210
    WILDCARD = 0x02FF
    SMB_3_0 = 0x0300
    SMB_3_0_2 = 0x0302
    SMB_3_1_1 = 0x0311


DIALECT_NAMES: dict[int, str] = {
    Dialect.SMB_2_0_2: "2.0.2",
    Dialect.SMB_2_1: "2.1",
    Dialect.SMB_3_0: "3.0",
    Dialect.SMB_3_0_2: "3.0.2",
    Dialect.SMB_3_1_1: "3.1.1",
}
"""Common names of the dialects that can be negotiated, oldest first."""


class Capability(enum.IntFlag):
    """SMB2_GLOBAL_CAP_*. [MS-SMB2 2.2.3]"""

    DFS = 0x01
    LEASING = 0x02
    LARGE_MTU = 0x04
    MULTI_CHANNEL = 0x08
    PERSISTENT_HANDLES = 0x10
    DIRECTORY_LEASING = 0x20
    ENCRYPTION = 0x40
    NOTIFICATIONS = 0x80


class SecurityMode(enum.IntFlag):
    """SMB2_NEGOTIATE_SIGNING_*. [MS-SMB2 2.2.3]"""

    SIGNING_ENABLED = 1
    SIGNING_REQUIRED = 2


class ContextType(enum.IntEnum):
    """Types of negotiate contexts. [MS-SMB2 2.2.3.1]"""

    PREAUTH_INTEGRITY = 1
    ENCRYPTION = 2
    COMPRESSION = 3
    NETNAME = 5
    TRANSPORT = 6
    RDMA_TRANSFORM = 7
    SIGNING = 8


ACCEPT_TRANSPORT_LEVEL_SECURITY = 1
"""The flag of SMB2_TRANSPORT_CAPABILITIES. [MS-SMB2 2.2.3.1.5]"""


class NegotiateRequest(NamedTuple):
    """The fixed part of a NEGOTIATE request. [MS-SMB2 2.2.3]"""

    structure_size: Annotated[int, Int16ul] = 36
    dialect_count: Annotated[int, Int16ul] = 0
    security_mode: Annotated[int, Int16ul] = 0
    reserved: Annotated[int, Int16ul] = 0
    capabilities: Annotated[int, Int32ul] = 0
    client_guid: Annotated[bytes, Bytes(16)] = bytes(16)
    context_offset: Annotated[int, Int32ul] = 0
    """In 3.1.1 only, like the next two fields. In older dialects the three are ClientStartTime."""
    context_count: Annotated[int, Int16ul] = 0
    reserved_2: Annotated[int, Int16ul] = 0


class NegotiateResponse(NamedTuple):
    """The fixed part of a NEGOTIATE response. [MS-SMB2 2.2.4]"""

    structure_size: Annotated[int, Int16ul] = 65
    security_mode: Annotated[int, Int16ul] = 0
    dialect: Annotated[int, Int16ul] = 0
    context_count: Annotated[int, Int16ul] = 0
    server_guid: Annotated[bytes, Bytes(16)] = bytes(16)
    capabilities: Annotated[int, Int32ul] = 0
    max_transact_size: Annotated[int, Int32ul] = 0
    max_read_size: Annotated[int, Int32ul] = 0
    max_write_size: Annotated[int, Int32ul] = 0
    system_time: Annotated[int, Int64ul] = 0
    server_start_time: Annotated[int, Int64ul] = 0
    security_buffer_offset: Annotated[int, Int16ul] = 0
    security_buffer_length: Annotated[int, Int16ul] = 0
    context_offset: Annotated[int, Int32ul] = 0


NEGOTIATE_REQUEST = Message(NegotiateRequest)
NEGOTIATE_RESPONSE = Message(NegotiateResponse, ("security_buffer_offset", "security_buffer_length"), "SecurityBuffer")
_CONTEXT = struct.Struct("<HHI")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
SMB1_HEADER_SIZE = 32
SMB1_NEGOTIATE = 0x72
MAX_SMB1_DIALECTS = 64


def dialects_of(message: memoryview, request: NegotiateRequest) -> tuple[int, ...]:
    """Return the dialects of a request. Raises ``DecodeError`` if they exceed the message."""
    end = HEADER_SIZE + NEGOTIATE_REQUEST.size + 2 * request.dialect_count
    if end > len(message):
        raise DecodeError("dialects exceed the message")
    return struct.unpack_from(f"<{request.dialect_count}H", message, HEADER_SIZE + NEGOTIATE_REQUEST.size)


def contexts_of(message: memoryview, request: NegotiateRequest) -> list[tuple[int, memoryview]]:
    """Return (type, data) of each context of a 3.1.1 request. [MS-SMB2 2.2.3.1]

    Raises ``DecodeError`` if a context is not aligned to 8 bytes or exceeds the message.
    """
    if request.context_count and request.context_offset & 7:
        raise DecodeError("bad NegotiateContextOffset")
    least = HEADER_SIZE + NEGOTIATE_REQUEST.size + 2 * request.dialect_count
    return contexts_at(message, request.context_offset, request.context_count, least)


def contexts_at(message: memoryview, offset: int, count: int, least: int) -> list[tuple[int, memoryview]]:
    """Return (type, data) of each of ``count`` contexts, which begin no earlier than at ``least``. Raises
    ``DecodeError``."""
    if count and offset < least:
        raise DecodeError("bad NegotiateContextOffset")
    found: list[tuple[int, memoryview]] = []
    end, fixed, unpack = len(message), _CONTEXT.size, _CONTEXT.unpack_from
    for _ in range(count):
        offset += -offset & 7
        if offset + fixed > end:
            raise DecodeError("negotiate contexts exceed the message")
        kind, length, _reserved = unpack(message, offset)
        offset += fixed
        if offset + length > end:
            raise DecodeError("negotiate context exceeds the message")
        found.append((kind, message[offset : offset + length]))
        offset += length
    return found


def numbers_of(data: Buffer, skip: int = 2) -> tuple[int, ...]:
    """Return the counted list of 16-bit numbers in a context. Most contexts consist of such a list.

    ``skip`` is the size of the fixed fields before the list in bytes, including the count. Raises ``DecodeError``.
    """
    if len(data) < skip:
        raise DecodeError("negotiate context too short")
    (count,) = _U16.unpack_from(data)
    if skip + 2 * count > len(data):
        raise DecodeError("negotiate context's list exceeds it")
    return struct.unpack_from(f"<{count}H", data, skip)


def pack_contexts(contexts: Iterable[tuple[int, bytes]]) -> bytes:
    """Encode contexts one after the other, each aligned to 8 bytes."""
    packed = bytearray()
    for kind, data in contexts:
        packed += bytes(-len(packed) & 7)
        packed += _CONTEXT.pack(kind, len(data), 0) + data
    return bytes(packed)


def accepts_transport_security(data: Buffer) -> bool:
    """Return whether SMB2_TRANSPORT_CAPABILITIES leaves encryption to the transport. Raises ``DecodeError``. [MS-SMB2
    2.2.3.1.5]"""
    if len(data) < _U32.size:
        raise DecodeError("transport capabilities too short")
    return bool(_U32.unpack_from(data)[0] & ACCEPT_TRANSPORT_LEVEL_SECURITY)


def smb1_dialects(message: memoryview) -> list[bytes] | None:
    """Return the dialect strings of an SMB1 NEGOTIATE, or None if the message is not one. [MS-CIFS 2.2.4.52.1]"""
    if len(message) < SMB1_HEADER_SIZE + 3 or message[4] != SMB1_NEGOTIATE or message[SMB1_HEADER_SIZE]:
        return None
    (count,) = _U16.unpack_from(message, SMB1_HEADER_SIZE + 1)
    data = bytes(message[SMB1_HEADER_SIZE + 3 : SMB1_HEADER_SIZE + 3 + count])
    if len(data) != count or not data.endswith(b"\0"):
        return None
    names = data[:-1].split(b"\0")
    if len(names) > MAX_SMB1_DIALECTS or not all(name.startswith(b"\x02") for name in names):
        return None
    return [name[1:] for name in names]
