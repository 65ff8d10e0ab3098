"""What a SACL says of a file besides what to record: its attributes and its central access policy.
[MS-DTYP 2.4.4.15, 2.4.4.16]

Decoding raises ``ValueError`` for malformed input, and nothing else.
"""

from __future__ import annotations

import struct

from smb3server.access.claims import Claim, ClaimType, ClaimValue
from smb3server.access.descriptor import EVERYONE, Ace, AceFlag, AceType, SecurityDescriptor, Sid

MAX_VALUES = 256
"""Values of one attribute."""

_HEAD = struct.Struct("<IHHII")
_U32 = struct.Struct("<I")
_NUMBERS = {
    ClaimType.INT64: struct.Struct("<q"),
    ClaimType.UINT64: struct.Struct("<Q"),
    ClaimType.BOOLEAN: struct.Struct("<Q"),
}


def attributes_of(descriptor: SecurityDescriptor) -> tuple[Claim, ...]:
    """Return the resource attributes in a SACL. Malformed ones do not count: the file does not have them.
    [MS-DTYP 2.4.4.15]"""
    found = []
    for ace in descriptor.sacl.aces if descriptor.sacl is not None else ():
        if ace.type == AceType.RESOURCE_ATTRIBUTE and not ace.flags & AceFlag.INHERIT_ONLY:
            try:
                found.append(unpack_claim(ace.data))
            except ValueError:
                continue
    return tuple(found)


def policy_of(descriptor: SecurityDescriptor) -> Sid | None:
    """Return the SID of the central access policy that a SACL names. The first one counts. [MS-DTYP 2.4.4.16]"""
    for ace in descriptor.sacl.aces if descriptor.sacl is not None else ():
        if ace.type == AceType.SCOPED_POLICY_ID and not ace.flags & AceFlag.INHERIT_ONLY:
            return ace.sid
    return None


def attribute_ace(claim: Claim, flags: int = 0) -> Ace:
    """Return the ACE that gives a file an attribute. [MS-DTYP 2.4.4.15]"""
    return Ace(AceType.RESOURCE_ATTRIBUTE, flags, 0, EVERYONE, pack_claim(claim))


def unpack_claim(data: bytes) -> Claim:
    """Decode a CLAIM_SECURITY_ATTRIBUTE_RELATIVE_V1. Raises ``ValueError``. [MS-DTYP 2.4.10.1]"""
    if len(data) < _HEAD.size:
        raise ValueError("claim cut short")
    name, kind, _, flags, count = _HEAD.unpack_from(data)
    if not 0 < count <= MAX_VALUES or len(data) < _HEAD.size + _U32.size * count:
        raise ValueError("claim of an impossible number of values")
    offsets = struct.unpack_from(f"<{count}I", data, _HEAD.size)
    text = _string(data, name)
    if not text:
        raise ValueError("claim without a name")
    values, room = [], len(data)
    for offset in offsets:
        value, size = _value(data, ClaimType(kind), offset)
        room -= size
        if room < 0:
            # Many long values would be as many copies of the same bytes.
            raise ValueError("values overlap")
        values.append(value)
    return Claim(text, ClaimType(kind), tuple(values), flags)


def _value(data: bytes, kind: ClaimType, offset: int) -> tuple[ClaimValue, int]:
    """Return the value at ``offset``, and its size."""
    number = _NUMBERS.get(kind)
    if number is not None:
        if offset + number.size > len(data):
            raise ValueError("value cut short")
        (value,) = number.unpack_from(data, offset)
        if kind == ClaimType.BOOLEAN and value > 1:
            raise ValueError("neither true nor false")
        return int(value), number.size
    if kind == ClaimType.STRING:
        text = _string(data, offset)
        return text, 2 * len(text) + 2
    if offset + _U32.size > len(data):
        raise ValueError("value cut short")
    (size,) = _U32.unpack_from(data, offset)
    start = offset + _U32.size
    if size > len(data) - start:
        raise ValueError("value cut short")
    octets = data[start : start + size]
    return (_sid(octets) if kind == ClaimType.SID else octets), _U32.size + size


def _sid(octets: bytes) -> Sid:
    """Decode a SID. MS-DTYP 2.4.10.1 says that it is text. The structures of Windows for claims have it as bytes."""
    if octets[:1] == b"S":
        return Sid.parse(octets.rstrip(b"\0").decode("ascii"))
    found = Sid.unpack(octets)
    if found.size != len(octets):
        raise ValueError("SID of another length")
    return found


def _string(data: bytes, offset: int) -> str:
    """Decode the text at ``offset``, which ends with a null character."""
    end = offset
    while (end := data.find(b"\0\0", end)) >= 0:
        if (end - offset) % 2 == 0:
            return data[offset:end].decode("utf-16-le")
        end += 1
    raise ValueError("string without an end")


def pack_claim(claim: Claim) -> bytes:
    """Return a claim as CLAIM_SECURITY_ATTRIBUTE_RELATIVE_V1. [MS-DTYP 2.4.10.1]"""
    count = len(claim.values)
    start = _HEAD.size + _U32.size * count
    body = _aligned(_encoded(claim.name))
    offsets = []
    for value in claim.values:
        offsets.append(start + len(body))
        body += _aligned(_packed_value(claim.type, value))
    return _HEAD.pack(start, claim.type, 0, claim.flags, count) + struct.pack(f"<{count}I", *offsets) + body


def _packed_value(kind: int, value: ClaimValue) -> bytes:
    if isinstance(value, int):
        return _NUMBERS[ClaimType(kind)].pack(value)
    if isinstance(value, str):
        return _encoded(value)
    octets = str(value).encode("ascii") if isinstance(value, Sid) else value
    return _U32.pack(len(octets)) + octets


def _encoded(text: str) -> bytes:
    return text.encode("utf-16-le") + b"\0\0"


def _aligned(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
