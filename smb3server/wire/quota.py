"""Quotas of users. [MS-SMB2 2.2.37.1, MS-FSCC 2.4.41]"""

from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple, TypeVar

from smbdirect.codec import Buffer, Codec
from smbdirect.errors import DecodeError
from smbdirect.fields import Int8ul, Int16ul, Int32ul, Int64sl

NO_LIMIT = -1
"""A threshold or limit that is none."""
DELETE = -2
"""A limit that asks for the deletion of the entry."""
_ALIGNMENT = 8
_MAX_SID = 68
"""Bytes of the longest SID. [MS-DTYP 2.4.2.2]"""


class QueryQuotaInfo(NamedTuple):
    """The fixed part of SMB2_QUERY_QUOTA_INFO. [MS-SMB2 2.2.37.1]"""

    return_single: Annotated[int, Int8ul] = 0
    restart_scan: Annotated[int, Int8ul] = 0
    reserved: Annotated[int, Int16ul] = 0
    sid_list_length: Annotated[int, Int32ul] = 0
    start_sid_length: Annotated[int, Int32ul] = 0
    start_sid_offset: Annotated[int, Int32ul] = 0


class GetQuotaFixed(NamedTuple):
    """FILE_GET_QUOTA_INFORMATION up to its SID. [MS-FSCC 2.4.41.1]"""

    next_entry_offset: Annotated[int, Int32ul] = 0
    sid_length: Annotated[int, Int32ul] = 0


class QuotaFixed(NamedTuple):
    """FILE_QUOTA_INFORMATION up to its SID. Sizes are in bytes. [MS-FSCC 2.4.41]"""

    next_entry_offset: Annotated[int, Int32ul] = 0
    sid_length: Annotated[int, Int32ul] = 0
    change_time: Annotated[int, Int64sl] = 0
    used: Annotated[int, Int64sl] = 0
    threshold: Annotated[int, Int64sl] = NO_LIMIT
    limit: Annotated[int, Int64sl] = NO_LIMIT


_Fixed = TypeVar("_Fixed", GetQuotaFixed, QuotaFixed)


class QuotaEntry(NamedTuple):
    """The quota of one user. Sizes are in bytes."""

    sid: bytes
    used: int
    threshold: int
    limit: int


class QuotaQuery(NamedTuple):
    """What a client asks for."""

    single: bool
    restart: bool
    sids: list[bytes]
    """The users. Empty: all of them, in turn."""
    start: bytes
    """Where to begin. Empty: at the first, or where the last query ended."""


QUERY_QUOTA = Codec(QueryQuotaInfo)
GET_QUOTA = Codec(GetQuotaFixed)
QUOTA = Codec(QuotaFixed)


def decode_query(data: Buffer) -> QuotaQuery:
    """Decode SMB2_QUERY_QUOTA_INFO. Raises ``DecodeError``."""
    view = memoryview(data)
    if len(view) < QUERY_QUOTA.size:
        raise DecodeError("SMB2_QUERY_QUOTA_INFO cut short")
    fixed = QUERY_QUOTA.unpack(view[: QUERY_QUOTA.size])
    buffer = view[QUERY_QUOTA.size :]
    single, restart = bool(fixed.return_single), bool(fixed.restart_scan)
    if fixed.sid_list_length:
        if fixed.sid_list_length > len(buffer):
            raise DecodeError("SidListLength beyond the buffer")
        listed = buffer[: fixed.sid_list_length]
        return QuotaQuery(single, restart, [bytes(sid) for _, sid in _entries(listed, GET_QUOTA)], b"")
    if not fixed.start_sid_length:
        return QuotaQuery(single, restart, [], b"")
    end = fixed.start_sid_offset + fixed.start_sid_length
    if end > len(buffer) or fixed.start_sid_length > _MAX_SID:
        raise DecodeError("StartSid beyond the buffer")
    return QuotaQuery(single, restart, [], bytes(buffer[fixed.start_sid_offset : end]))


def decode_entries(data: Buffer) -> list[QuotaEntry]:
    """Decode FILE_QUOTA_INFORMATION entries, at least one. Raises ``DecodeError``."""
    return [
        QuotaEntry(bytes(sid), fixed.used, fixed.threshold, fixed.limit)
        for fixed, sid in _entries(memoryview(data), QUOTA)
    ]


def _entries(data: memoryview, layout: Codec[_Fixed]) -> Iterator[tuple[_Fixed, memoryview]]:
    at = 0
    while True:
        if len(data) - at < layout.size:
            raise DecodeError("entry cut short")
        fixed = layout.unpack(data[at : at + layout.size])
        following, length = fixed.next_entry_offset, fixed.sid_length
        end = at + layout.size + length
        if length > _MAX_SID or end > len(data):
            raise DecodeError("SidLength beyond the entry")
        yield fixed, data[at + layout.size : end]
        if not following:
            return
        if following < layout.size + length:
            raise DecodeError("NextEntryOffset inside the entry")
        at += following


def encode_entries(entries: Iterable[QuotaEntry], room: int) -> tuple[bytes, int]:
    """Encode as many entries as ``room`` bytes take. Return them, and how many they are."""
    output = bytearray()
    last, count = 0, 0
    for entry in entries:
        start = -(-len(output) // _ALIGNMENT) * _ALIGNMENT
        size = QUOTA.size + len(entry.sid)
        if start + size > room:
            break
        output += bytes(start - len(output))
        if count:
            output[last : last + 4] = (start - last).to_bytes(4, "little")
        output += QUOTA.pack(QuotaFixed(0, len(entry.sid), 0, entry.used, entry.threshold, entry.limit)) + entry.sid
        last, count = start, count + 1
    return bytes(output), count
