"""Referral requests and responses of DFS. [MS-DFSC 2.2.2 to 2.2.5]

Paths have one leading backslash, as in ``\\server\\namespace\\folder``. Versions 1 to 4 are written and read. Lists of
domains and of domain controllers (NameListReferral) are not: only domain controllers send them.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

from smb3server.wire.fields import decode_name, encode_name
from smbdirect.codec import Buffer
from smbdirect.errors import DecodeError

HIGHEST_VERSION = 4
_LEVEL = struct.Struct("<H")
_EXTENDED = struct.Struct("<HHI")
"""MaxReferralLevel, RequestFlags, RequestDataLength. [MS-DFSC 2.2.3]"""
_SITE_NAME = 0x0001
_LENGTH = struct.Struct("<H")
_HEADER = struct.Struct("<HHI")
"""PathConsumed, NumberOfReferrals, ReferralHeaderFlags. [MS-DFSC 2.2.4]"""
_ENTRY = struct.Struct("<HHHH")
"""VersionNumber, Size, ServerType, ReferralEntryFlags. [MS-DFSC 2.2.5.1]"""
_V2 = struct.Struct("<HHHHIIHHH")
"""The same, Proximity, TimeToLive, and the offsets of three strings. [MS-DFSC 2.2.5.2]"""
_V3 = struct.Struct("<HHHHIHHH16x")
"""The same without Proximity, and ServiceSiteGuid. [MS-DFSC 2.2.5.3.1]"""
_NAME_LIST = 0x0002
_SET_BOUNDARY = 0x0004
_MOST = 0xFFFF
"""Bytes of the largest response: offsets have 16 bits."""


class ReferralFlags(enum.IntFlag):
    """ReferralHeaderFlags. [MS-DFSC 2.2.4]"""

    REFERRAL_SERVERS = 0x1
    STORAGE_SERVERS = 0x2
    TARGET_FAILBACK = 0x4


class ReferralRequest(NamedTuple):
    """What a client asks."""

    max_level: int
    """The highest version of referrals that it understands."""
    path: str
    site: str = ""
    """The site that the client says it is in. Empty if it does not say."""


class ReferralTarget(NamedTuple):
    """One entry of a response."""

    address: str
    """The target: server, share and folders in it."""
    begins_set: bool = False
    """Whether it is the first target of a target set. Only version 4 says so."""


class Referral(NamedTuple):
    """A response."""

    path_consumed: int
    """The bytes of the requested path that the targets stand for."""
    flags: int
    """ReferralFlags."""
    root: bool
    """Whether the targets are those of a root."""
    ttl: int
    """Seconds that the response is valid. Version 1 does not say."""
    path: str
    """The root or link that was matched. Version 1 does not say."""
    targets: Sequence[ReferralTarget]


def pack_request(request: ReferralRequest) -> bytes:
    """Encode REQ_GET_DFS_REFERRAL; the site is not in it. [MS-DFSC 2.2.2]"""
    return _LEVEL.pack(request.max_level) + encode_name(request.path) + b"\0\0"


def parse_request(data: Buffer) -> ReferralRequest:
    """Decode REQ_GET_DFS_REFERRAL. Raises ``DecodeError``. [MS-DFSC 2.2.2]"""
    if len(data) < _LEVEL.size:
        raise DecodeError(f"REQ_GET_DFS_REFERRAL of {len(data)} bytes")
    (level,) = _LEVEL.unpack_from(data)
    return ReferralRequest(level, _text(memoryview(data)[_LEVEL.size :]))


def parse_extended_request(data: Buffer) -> ReferralRequest:
    """Decode REQ_GET_DFS_REFERRAL_EX. Raises ``DecodeError``. [MS-DFSC 2.2.3]"""
    view = memoryview(data)
    if len(view) < _EXTENDED.size:
        raise DecodeError(f"REQ_GET_DFS_REFERRAL_EX of {len(view)} bytes")
    level, flags, length = _EXTENDED.unpack_from(view)
    if length > len(view) - _EXTENDED.size:
        raise DecodeError(f"RequestData of {length} bytes in {len(view)}")
    name, rest = _counted(view[_EXTENDED.size : _EXTENDED.size + length])
    site = _counted(rest)[0] if flags & _SITE_NAME else ""
    return ReferralRequest(level, name, site)


def _counted(view: memoryview) -> tuple[str, memoryview]:
    """Return a text whose length in bytes is before it, and what follows."""
    if len(view) < _LENGTH.size:
        raise DecodeError("no length of a name")
    (length,) = _LENGTH.unpack_from(view)
    end = _LENGTH.size + length
    if end > len(view):
        raise DecodeError(f"a name of {length} bytes in {len(view)}")
    return _text(view[_LENGTH.size : end]), view[end:]


def _text(view: memoryview) -> str:
    """Return a text, up to its null character."""
    return decode_name(view).partition("\0")[0]


def pack_referral(version: int, referral: Referral, limit: int) -> bytes | None:
    """Encode a response of at most ``limit`` bytes, with as many targets as fit. None means that not even one fits.

    ``version``: 1 to 4. [MS-DFSC 2.2.4, 3.2.5.5]
    """
    limit = min(limit, _MOST)
    for count in range(len(referral.targets), 0, -1):
        packed = _pack(version, referral._replace(targets=referral.targets[:count]))
        if len(packed) <= limit:
            return packed
    return _pack(version, referral) if not referral.targets and limit >= _HEADER.size else None


def _pack(version: int, referral: Referral) -> bytes:
    flags = referral.flags if version >= 4 else referral.flags & ~ReferralFlags.TARGET_FAILBACK
    if version == 1:
        # 3.2.5.5: both bits are set.
        flags = ReferralFlags.REFERRAL_SERVERS | ReferralFlags.STORAGE_SERVERS
    header = _HEADER.pack(referral.path_consumed, len(referral.targets), flags)
    kind = int(referral.root)
    if version == 1:
        entries = [encode_name(target.address) + b"\0\0" for target in referral.targets]
        return header + b"".join(_ENTRY.pack(1, _ENTRY.size + len(text), kind, 0) + text for text in entries)
    size = _V2.size if version == 2 else _V3.size
    path = encode_name(referral.path) + b"\0\0"
    # The alternate path is a copy, as Windows has it: some clients read one string after the other.
    strings, fixed = bytearray(path + path), bytearray()
    for number, target in enumerate(referral.targets):
        # Offsets count from the entry. The strings follow the last entry, the path first: all entries have it.
        to_strings = (len(referral.targets) - number) * size
        offsets = (to_strings, to_strings + len(path), to_strings + len(strings))
        if max(offsets) > _MOST:
            return bytes(_MOST + 1)
        if version == 2:
            fixed += _V2.pack(2, size, kind, 0, 0, referral.ttl, *offsets)
        else:
            boundary = _SET_BOUNDARY if version == 4 and target.begins_set else 0
            fixed += _V3.pack(version, size, kind, boundary, referral.ttl, *offsets)
        strings += encode_name(target.address) + b"\0\0"
    return header + bytes(fixed) + bytes(strings)


def parse_referral(data: Buffer) -> Referral:
    """Decode a response. Raises ``DecodeError``. [MS-DFSC 2.2.4, 3.1.5.4]"""
    view = memoryview(data)
    if len(view) < _HEADER.size:
        raise DecodeError(f"RESP_GET_DFS_REFERRAL of {len(view)} bytes")
    consumed, count, flags = _HEADER.unpack_from(view)
    at, first_version, root, ttl, path = _HEADER.size, 0, False, 0, ""
    targets = []
    for _ in range(count):
        if at + _ENTRY.size > len(view):
            raise DecodeError("a referral entry lies outside the response")
        version, size, kind, entry_flags = _ENTRY.unpack_from(view, at)
        first_version = first_version or version
        layout = {1: _ENTRY, 2: _V2, 3: _V3, 4: _V3}.get(version)
        if layout is None or version != first_version:
            raise DecodeError(f"a referral entry of version {version}")
        if size < layout.size or at + size > len(view):
            raise DecodeError(f"a referral entry of {size} bytes")
        root = kind == 1
        if version == 1:
            address = _text(_whole(view[at + _ENTRY.size : at + size]))
        else:
            if version > 2 and entry_flags & _NAME_LIST:
                raise DecodeError("a list of names in a referral of a root or link")
            fields = layout.unpack_from(view, at)
            ttl, path_offset, _, address_offset = fields[-4:]
            path, address = _string(view, at + path_offset), _string(view, at + address_offset)
        targets.append(ReferralTarget(address, version == 4 and bool(entry_flags & _SET_BOUNDARY)))
        at += size
    return Referral(consumed, flags, root, ttl, path, targets)


def _string(view: memoryview, offset: int) -> str:
    if offset > len(view):
        raise DecodeError("a string of a referral lies outside the response")
    text = decode_name(_whole(view[offset:]))
    found, end, _ = text.partition("\0")
    if not end:
        raise DecodeError("a string of a referral has no end")
    return found


def _whole(view: memoryview) -> memoryview:
    """Return the whole characters: the last byte may be padding."""
    return view[: len(view) & ~1]
