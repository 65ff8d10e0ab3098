"""Create contexts: the list, and the data of each kind, in both directions. [MS-SMB2 2.2.13.2, 2.2.14.2]

``REQUESTS`` and ``RESPONSES`` map the names of contexts to decoders of their data. The server ignores contexts with
other names (3.3.5.9).
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from smb3server.wire.fields import record_at
from smb3server.wire.file_info import NEED_EA, EaEntry, TooManyEntriesError, decode_eas
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer, Codec
from smbdirect.errors import DecodeError
from smbdirect.fields import Bytes, Int16ul, Int32ul, Int64ul

EA_BUFFER = b"ExtA"
SD_BUFFER = b"SecD"
DURABLE_REQUEST = b"DHnQ"
DURABLE_RECONNECT = b"DHnC"
ALLOCATION_SIZE = b"AlSi"
MAXIMAL_ACCESS = b"MxAc"
TIMEWARP = b"TWrp"
QUERY_ON_DISK_ID = b"QFid"
REQUEST_LEASE = b"RqLs"
DURABLE_REQUEST_V2 = b"DH2Q"
DURABLE_RECONNECT_V2 = b"DH2C"
APP_INSTANCE_ID = bytes.fromhex("45BCA66AEFA7F74A9008FA462E144D74")
APP_INSTANCE_VERSION = bytes.fromhex("B982D0B73B56074FA07B524A8116A010")

PERSISTENT = 0x00000002
"""SMB2_DHANDLE_FLAG_PERSISTENT."""


class LeaseFlags(enum.IntFlag):
    """Flags of lease contexts. [MS-SMB2 2.2.13.2.10, 2.2.14.2.11]"""

    BREAK_IN_PROGRESS = 0x02
    PARENT_LEASE_KEY_SET = 0x04


class RawContext(NamedTuple):
    """A context whose data is not decoded."""

    name: bytes
    data: bytes


class ContextHeader(NamedTuple):
    """SMB2_CREATE_CONTEXT up to its buffer. [MS-SMB2 2.2.13.2]"""

    next: Annotated[int, Int32ul] = 0
    name_offset: Annotated[int, Int16ul] = 0
    name_length: Annotated[int, Int16ul] = 0
    reserved: Annotated[int, Int16ul] = 0
    data_offset: Annotated[int, Int16ul] = 0
    data_length: Annotated[int, Int32ul] = 0


class DurableRequest(NamedTuple):
    """SMB2_CREATE_DURABLE_HANDLE_REQUEST. [MS-SMB2 2.2.13.2.3]"""

    reserved: Annotated[bytes, Bytes(16)] = bytes(16)


class DurableResponse(NamedTuple):
    """SMB2_CREATE_DURABLE_HANDLE_RESPONSE. [MS-SMB2 2.2.14.2.3]"""

    reserved: Annotated[bytes, Bytes(8)] = bytes(8)


class DurableReconnect(NamedTuple):
    """SMB2_CREATE_DURABLE_HANDLE_RECONNECT. [MS-SMB2 2.2.13.2.4]"""

    persistent: Annotated[int, Int64ul] = 0
    volatile: Annotated[int, Int64ul] = 0


class DurableRequestV2(NamedTuple):
    """SMB2_CREATE_DURABLE_HANDLE_REQUEST_V2. The timeout is in milliseconds. [MS-SMB2 2.2.13.2.11]"""

    timeout: Annotated[int, Int32ul] = 0
    flags: Annotated[int, Int32ul] = 0
    reserved: Annotated[int, Int64ul] = 0
    create_guid: Annotated[bytes, Bytes(16)] = bytes(16)


class DurableResponseV2(NamedTuple):
    """SMB2_CREATE_DURABLE_HANDLE_RESPONSE_V2. The timeout is in milliseconds. [MS-SMB2 2.2.14.2.12]"""

    timeout: Annotated[int, Int32ul] = 0
    flags: Annotated[int, Int32ul] = 0


class DurableReconnectV2(NamedTuple):
    """SMB2_CREATE_DURABLE_HANDLE_RECONNECT_V2. [MS-SMB2 2.2.13.2.12]"""

    persistent: Annotated[int, Int64ul] = 0
    volatile: Annotated[int, Int64ul] = 0
    create_guid: Annotated[bytes, Bytes(16)] = bytes(16)
    flags: Annotated[int, Int32ul] = 0


class AllocationSize(NamedTuple):
    """SMB2_CREATE_ALLOCATION_SIZE, in bytes. [MS-SMB2 2.2.13.2.6]"""

    allocation_size: Annotated[int, Int64ul] = 0


class Timewarp(NamedTuple):
    """SMB2_CREATE_TIMEWARP_TOKEN, and the optional data of MxAc (2.2.13.2.5). A FILETIME. [MS-SMB2 2.2.13.2.7]"""

    timestamp: Annotated[int, Int64ul] = 0


class MaximalAccessResponse(NamedTuple):
    """SMB2_CREATE_QUERY_MAXIMAL_ACCESS_RESPONSE. [MS-SMB2 2.2.14.2.5]"""

    query_status: Annotated[int, Int32ul] = 0
    maximal_access: Annotated[int, Int32ul] = 0


class OnDiskIdResponse(NamedTuple):
    """SMB2_CREATE_QUERY_ON_DISK_ID. [MS-SMB2 2.2.14.2.9]"""

    disk_file_id: Annotated[int, Int64ul] = 0
    volume_id: Annotated[int, Int64ul] = 0
    reserved: Annotated[bytes, Bytes(16)] = bytes(16)


class Lease(NamedTuple):
    """SMB2_CREATE_REQUEST_LEASE and SMB2_CREATE_RESPONSE_LEASE. [MS-SMB2 2.2.13.2.8, 2.2.14.2.10]"""

    lease_key: Annotated[bytes, Bytes(16)] = bytes(16)
    lease_state: Annotated[int, Int32ul] = 0
    flags: Annotated[int, Int32ul] = 0
    duration: Annotated[int, Int64ul] = 0


class LeaseV2(NamedTuple):
    """SMB2_CREATE_REQUEST_LEASE_V2 and SMB2_CREATE_RESPONSE_LEASE_V2. [MS-SMB2 2.2.13.2.10, 2.2.14.2.11]"""

    lease_key: Annotated[bytes, Bytes(16)] = bytes(16)
    lease_state: Annotated[int, Int32ul] = 0
    flags: Annotated[int, Int32ul] = 0
    duration: Annotated[int, Int64ul] = 0
    parent_lease_key: Annotated[bytes, Bytes(16)] = bytes(16)
    epoch: Annotated[int, Int16ul] = 0
    reserved: Annotated[int, Int16ul] = 0


class AppInstanceId(NamedTuple):
    """SMB2_CREATE_APP_INSTANCE_ID. [MS-SMB2 2.2.13.2.13]"""

    structure_size: Annotated[int, Int16ul] = 20
    reserved: Annotated[int, Int16ul] = 0
    app_instance_id: Annotated[bytes, Bytes(16)] = bytes(16)


class AppInstanceVersion(NamedTuple):
    """SMB2_CREATE_APP_INSTANCE_VERSION. [MS-SMB2 2.2.13.2.15]"""

    structure_size: Annotated[int, Int16ul] = 24
    reserved: Annotated[int, Int16ul] = 0
    padding: Annotated[int, Int32ul] = 0
    version_high: Annotated[int, Int64ul] = 0
    version_low: Annotated[int, Int64ul] = 0


CONTEXT_HEADER = Codec(ContextHeader)
DURABLE_REQUEST_CODEC = Codec(DurableRequest)
DURABLE_RESPONSE_CODEC = Codec(DurableResponse)
DURABLE_RECONNECT_CODEC = Codec(DurableReconnect)
DURABLE_REQUEST_V2_CODEC = Codec(DurableRequestV2)
DURABLE_RESPONSE_V2_CODEC = Codec(DurableResponseV2)
DURABLE_RECONNECT_V2_CODEC = Codec(DurableReconnectV2)
ALLOCATION_SIZE_CODEC = Codec(AllocationSize)
TIMEWARP_CODEC = Codec(Timewarp)
MAXIMAL_ACCESS_RESPONSE_CODEC = Codec(MaximalAccessResponse)
ON_DISK_ID_RESPONSE_CODEC = Codec(OnDiskIdResponse)
LEASE_CODEC = Codec(Lease)
LEASE_V2_CODEC = Codec(LeaseV2)
APP_INSTANCE_ID_CODEC = Codec(AppInstanceId)
APP_INSTANCE_VERSION_CODEC = Codec(AppInstanceVersion)
MAX_CONTEXTS = 64
"""Maximum number of create contexts in one request. There are fewer than twenty kinds (2.2.13.2)."""


def _record(codec: Codec[Any]) -> Callable[[bytes], Any]:
    return lambda data: record_at(codec, data)


def _lease(data: bytes) -> Lease | LeaseV2:
    """Decode a lease. DataLength shows the version: 32 is v1, 52 is v2, anything else is invalid. [MS-SMB2 3.3.5.9]"""
    if len(data) == LEASE_CODEC.size:
        return LEASE_CODEC.unpack(data)
    if len(data) == LEASE_V2_CODEC.size:
        return LEASE_V2_CODEC.unpack(data)
    raise DecodeError(f"lease context of {len(data)} bytes")


def _maximal_access(data: bytes) -> Timewarp | None:
    """Decode a timestamp, or None if there is no data. [MS-SMB2 2.2.13.2.5]"""
    if not data:
        return None
    if len(data) != TIMEWARP_CODEC.size:
        raise DecodeError(f"timewarp context of {len(data)} bytes")
    return TIMEWARP_CODEC.unpack(data)


def _empty(data: bytes) -> bool:
    if data:
        raise DecodeError("data in a context that has none")
    return True


_EA_NAME_FORBIDDEN = frozenset(b'"*+,/:;<=>?[\\]|') | frozenset(range(0x20))


def parse_eas(data: Buffer) -> list[EaEntry]:
    """Decode a FILE_FULL_EA_INFORMATION list. Raises ``StatusError``: EA_TOO_LARGE, EA_LIST_INCONSISTENT, or
    INVALID_EA_NAME, for flags as well. [MS-FSCC 2.4.16, MS-FSA 2.1.5.15.6]"""
    try:
        entries = decode_eas(data)
    except TooManyEntriesError:
        raise StatusError(NtStatus.EA_TOO_LARGE) from None
    except DecodeError:
        raise StatusError(NtStatus.EA_LIST_INCONSISTENT) from None
    for name, _, flags in entries:
        if not name or not _EA_NAME_FORBIDDEN.isdisjoint(name) or flags & ~NEED_EA:
            raise StatusError(NtStatus.INVALID_EA_NAME)
    return entries


REQUESTS: dict[bytes, Callable[[bytes], Any]] = {
    EA_BUFFER: parse_eas,
    SD_BUFFER: bytes,
    DURABLE_REQUEST: _record(DURABLE_REQUEST_CODEC),
    DURABLE_RECONNECT: _record(DURABLE_RECONNECT_CODEC),
    ALLOCATION_SIZE: _record(ALLOCATION_SIZE_CODEC),
    MAXIMAL_ACCESS: _maximal_access,
    TIMEWARP: _record(TIMEWARP_CODEC),
    QUERY_ON_DISK_ID: _empty,
    REQUEST_LEASE: _lease,
    DURABLE_REQUEST_V2: _record(DURABLE_REQUEST_V2_CODEC),
    DURABLE_RECONNECT_V2: _record(DURABLE_RECONNECT_V2_CODEC),
    APP_INSTANCE_ID: _record(APP_INSTANCE_ID_CODEC),
    APP_INSTANCE_VERSION: _record(APP_INSTANCE_VERSION_CODEC),
}
"""Decoders of request data by context name."""

RESPONSES: dict[bytes, Callable[[bytes], Any]] = {
    DURABLE_REQUEST: _record(DURABLE_RESPONSE_CODEC),
    MAXIMAL_ACCESS: _record(MAXIMAL_ACCESS_RESPONSE_CODEC),
    QUERY_ON_DISK_ID: _record(ON_DISK_ID_RESPONSE_CODEC),
    REQUEST_LEASE: _lease,
    DURABLE_REQUEST_V2: _record(DURABLE_RESPONSE_V2_CODEC),
}
"""Decoders of response data by context name."""


def parse_contexts(area: memoryview) -> list[RawContext]:
    """Decode the chained list. Raises ``DecodeError`` for a name shorter than 4 bytes or data outside ``area``.
    [MS-SMB2 2.2.13.2]"""
    found: list[RawContext] = []
    raw, size, fixed = bytes(area), len(area), CONTEXT_HEADER.size
    position = 0
    while True:
        if len(found) == MAX_CONTEXTS:
            raise DecodeError("too many create contexts")
        if size - position < fixed:
            raise DecodeError("create context cut short")
        step, name_offset, name_length, _, data_offset, data_length = CONTEXT_HEADER.fields_from(raw, position)
        end = position + step if step else size
        if step % 8 or end > size or (step and step < fixed):
            raise DecodeError("bad Next in the create contexts")
        name_start = position + name_offset
        name_end = name_start + name_length
        if name_length < 4 or name_offset < fixed or name_end > end:
            raise DecodeError("create context outside its entry")
        data = b""
        if data_length:
            data_start = position + data_offset
            if data_start < name_end or data_offset % 8 or data_start + data_length > end:
                raise DecodeError("create context outside its entry")
            data = raw[data_start : data_start + data_length]
        found.append(RawContext(raw[name_start:name_end], data))
        if step == 0:
            return found
        position += step


def pack_contexts(contexts: Sequence[RawContext]) -> bytes:
    """Encode a chained list, each entry but the last padded to 8 bytes."""
    out = bytearray()
    for index, (name, data) in enumerate(contexts):
        name_end = CONTEXT_HEADER.size + len(name)
        data_offset = name_end + -name_end % 8
        size = data_offset + len(data) if data else name_end
        padding = -size % 8 if index + 1 < len(contexts) else 0
        following = size + padding if index + 1 < len(contexts) else 0
        offset = data_offset if data else 0
        out += CONTEXT_HEADER.pack_fields(following, CONTEXT_HEADER.size, len(name), 0, offset, len(data)) + name
        if data:
            out += bytes(data_offset - name_end) + data
        out += bytes(padding)
    return bytes(out)


def decode_requests(
    contexts: Sequence[RawContext], more: Mapping[bytes, Callable[[bytes], Any]] = MappingProxyType({})
) -> dict[bytes, Any]:
    """Decode the data of the contexts in a request, by name. ``more``: decoders beside ``REQUESTS``.

    Unknown names are ignored. If a name occurs several times, the first counts. Raises ``DecodeError`` or
    ``StatusError``.
    """
    found: dict[bytes, Any] = {}
    for name, data in contexts:
        decode = REQUESTS.get(name) or more.get(name)
        if decode is not None and name not in found:
            found[name] = decode(data)
    return found
