"""Quotas on the wire: what is well formed, and what is not."""

from __future__ import annotations

import struct

import pytest

from smb3server.wire.quota import QuotaEntry, decode_entries, decode_query, encode_entries
from smbdirect.errors import DecodeError

SID = bytes.fromhex("010200000000001601000000e8030000")
ENTRIES = [QuotaEntry(SID, 1 << 40, -1, 5), QuotaEntry(SID[:8] + SID[8:12] * 2, 0, 7, -1), QuotaEntry(b"", 0, 0, 0)]


def query(sids: bytes = b"", start: bytes = b"", *, length: int = 0, at: int = 0, flags: bytes = b"\0\1") -> bytes:
    fixed = struct.pack("<2sHIII", flags, 0, len(sids), length or len(start), at)
    return fixed + sids + start


def listed(*sids: bytes) -> bytes:
    output = b""
    for number, sid in enumerate(sids, 1):
        entry = struct.pack("<II", 0, len(sid)) + sid
        size = -(-len(entry) // 4) * 4
        output += struct.pack("<I", 0 if number == len(sids) else size) + entry[4:].ljust(size - 4, b"\0")
    return output


def test_entries_come_back() -> None:
    packed, count = encode_entries(ENTRIES, 4096)
    assert count == 3
    assert decode_entries(packed) == ENTRIES
    offsets = [struct.unpack_from("<I", packed)[0]]
    assert offsets[0] % 8 == 0


@pytest.mark.parametrize(("room", "count"), [(0, 0), (55, 0), (56, 1), (111, 1), (112, 2), (151, 2), (152, 3)])
def test_only_whole_entries_are_sent(room: int, count: int) -> None:
    packed, found = encode_entries(ENTRIES, room)
    assert (found, len(packed) <= room) == (count, True)
    if found:
        assert decode_entries(packed) == ENTRIES[:found]


def test_queries() -> None:
    assert decode_query(query()) == (False, True, [], b"")
    assert decode_query(query(flags=b"\1\0")) == (True, False, [], b"")
    assert decode_query(query(listed(SID, SID))) == (False, True, [SID, SID], b"")
    assert decode_query(query(start=b"\0\0\0\0" + SID, length=len(SID), at=4)) == (False, True, [], SID)
    both = query(listed(SID), SID)
    assert decode_query(both) == (False, True, [SID], b""), "SidList counts, and StartSid is ignored"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        query()[:-1],
        query(listed(SID))[:-1],
        query(start=SID)[:-1],
        query(start=SID, at=1),
        query(start=bytes(80)),
        struct.pack("<HHIII", 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF),
        struct.pack("<HHIII", 0, 0, 0xFFFFFFFF, 0, 0),
        query(struct.pack("<II", 0, 0xFFFFFFFF)),
        query(struct.pack("<II", 4, len(SID)) + SID),
        query(struct.pack("<II", 0xFFFFFFF0, len(SID)) + SID),
        query(b"\0\0\0"),
    ],
)
def test_malformed_queries(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_query(data)


@pytest.mark.parametrize("cut", [0, 1, 39, 40, 55])
def test_malformed_entries(cut: int) -> None:
    packed, _ = encode_entries(ENTRIES[:1], 4096)
    with pytest.raises(DecodeError):
        decode_entries(packed[:cut])
