"""The share redirect error context: the addresses at which a share is available instead. [MS-SMB2 2.2.2.2.2]"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence

from smb3server.wire.address import Address
from smb3server.wire.status import NtStatus, StatusError

SHARE_REDIRECT = 0x72645253
"""SMB2_ERROR_ID_SHARE_REDIRECT. [MS-SMB2 2.2.2.1]"""
_FIXED = struct.Struct("<IIIIHHI")
_ENTRY = struct.Struct("<II16s")
_STRUCTURE_SIZE = 48
"""The size with one address, however many there are."""
_SHARE_MOVE = 3
_TYPE_IPV4, _TYPE_IPV6 = 1, 2


def pack(addresses: Sequence[Address], name: str) -> bytes:
    """Encode the error context. ``name`` is the resource name."""
    encoded = name.encode("utf-16-le")
    entries = b"".join(
        _ENTRY.pack(_TYPE_IPV4 if address.version == 4 else _TYPE_IPV6, 0, address.packed.ljust(16, b"\0"))
        for address in addresses
    )
    offset = _FIXED.size + len(entries)
    return _FIXED.pack(_STRUCTURE_SIZE, _SHARE_MOVE, offset, len(encoded), 0, 0, len(addresses)) + entries + encoded


def parse(data: bytes) -> tuple[list[Address], str]:
    """Decode addresses and resource name. Raises ``ValueError``."""
    if len(data) < _FIXED.size:
        raise ValueError("share redirect too short")
    _, kind, offset, length, _, _, count = _FIXED.unpack_from(data)
    if kind != _SHARE_MOVE or count > (len(data) - _FIXED.size) // _ENTRY.size or offset + length > len(data):
        raise ValueError("bad share redirect")
    found: list[Address] = []
    for index in range(count):
        family, _, packed = _ENTRY.unpack_from(data, _FIXED.size + index * _ENTRY.size)
        found.append(ipaddress.IPv4Address(packed[:4]) if family == _TYPE_IPV4 else ipaddress.IPv6Address(packed))
    return found, data[offset : offset + length].decode("utf-16-le", "replace")


def share_redirect(addresses: Sequence[Address], name: str) -> StatusError:
    """Return the error to raise for a tree connect that is redirected to ``addresses``."""
    return StatusError(NtStatus.BAD_NETWORK_NAME, pack(addresses, name), SHARE_REDIRECT)
