"""Claims and devices of a PAC, which a ticket's key has signed: anybody may have made a ticket whose key is known.
[MS-PAC 2.11 to 2.13]"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from smb3server.access.claims import ClaimType
from smb3server.access.descriptor import Sid
from smb3server.compression import codecs
from smb3server.domain.claim_sets import MAX_CLAIMS, claims_of, device_groups
from smb3server.domain.validation import MAX_GROUPS
from smb3server.wire.compression import CompressionAlgorithm
from tools.fuzz.target import Target, Wrong, choice


def _claims(data: memoryview) -> None:
    found = claims_of(bytes(data))
    if sum(len(claim.values) for claim in found) * 4 > MAX_CLAIMS or not all(claim.values for claim in found):
        raise Wrong("more values than there is room for, or none")


def _device(data: memoryview) -> None:
    if len(device_groups(bytes(data))) > MAX_GROUPS:
        raise Wrong("more groups than allowed")


def _serialized(body: bytes) -> bytes:
    body = b"\0\0\2\0" + body
    body += bytes(-len(body) % 8)
    return struct.pack("<BBHIII", 1, 0x10, 8, 0xCCCCCCCC, len(body), 0) + body


def _text(text: str) -> bytes:
    data = f"{text}\0".encode("utf-16-le")
    count = len(data) // 2
    return struct.pack("<III", count, 0, count) + data + bytes(-len(data) % 4)


def _set() -> bytes:
    """A CLAIMS_SET with a claim of strings and one of numbers."""
    entries = struct.pack("<IHHII", 1, ClaimType.STRING, ClaimType.STRING, 1, 1)
    entries += struct.pack("<IHHII", 1, ClaimType.UINT64, ClaimType.UINT64, 2, 1)
    strings = _text("claim") + struct.pack("<II", 1, 1) + _text("value")
    numbers = _text("count") + struct.pack("<I", 2)
    body = struct.pack("<IIHxxIIIHxxIII", 1, 1, 0, 0, 0, 1, 1, 2, 1, 2) + entries + strings + numbers
    # Numbers are aligned to 8 bytes. The headers and the first pointer take 20.
    return _serialized(body + bytes(-(len(body) + 20) % 8) + struct.pack("<QQ", 1, 1 << 63))


def _metadata(data: bytes, form: int, size: int) -> bytes:
    return _serialized(struct.pack("<IIHxxIHxxIII", len(data), 1, form, size, 0, 0, 0, len(data)) + data)


def _seeds() -> Iterator[bytes]:
    claims = _set()
    assert len(claims_of(_metadata(claims, 0, len(claims)))) == 2
    yield b"\0" + _metadata(claims, 0, len(claims))
    packed = codecs.compress(CompressionAlgorithm.LZ77_HUFFMAN, claims * 4, 4 * len(claims))
    assert packed is not None
    yield b"\0" + _metadata(packed, 4, 4 * len(claims))
    sid = Sid.parse("S-1-5-21-1-2-3").pack()
    domain = struct.pack("<I", 4) + sid
    device = struct.pack("<IIIIIIIII", 1200, 515, 1, 1, 1, 1, 1, 1, 1) + domain
    device += struct.pack("<III", 1, 515, 7) + struct.pack("<III", 1, 1, 7) + domain
    device += struct.pack("<IIII", 1, 1, 1, 1) + domain + struct.pack("<III", 1, 1400, 7)
    assert len(device_groups(_serialized(device))) == 3
    yield b"\1" + _serialized(device)


TARGET = Target(choice((_claims, _device)), _seeds, declared=(ValueError,), max_input=2048)
