"""The claims in a PAC, of the user and of its device, and the groups of the device. [MS-PAC 2.11 to 2.13]"""

from __future__ import annotations

from collections.abc import Iterator

from smb3server.access.claims import Claim, ClaimType, ClaimValue
from smb3server.access.descriptor import Sid
from smb3server.compression.codecs import decompress
from smb3server.domain.serialized import Serialized
from smb3server.domain.validation import ENABLED, MAX_GROUPS, of_a_domain
from smb3server.wire.compression import CompressionAlgorithm

MAX_CLAIMS = 128 << 10
"""Bytes of a CLAIMS_SET that is not compressed. A whole token has at most half as many."""
_NOT_COMPRESSED = 0
_COMPRESSED = {2: CompressionAlgorithm.LZNT1, 3: CompressionAlgorithm.LZ77, 4: CompressionAlgorithm.LZ77_HUFFMAN}
"""Algorithms by CLAIMS_COMPRESSION_FORMAT. [MS-ADTS 2.2.18.4]"""
_NUMBERS = frozenset(map(int, (ClaimType.INT64, ClaimType.UINT64, ClaimType.BOOLEAN)))
_TYPES = _NUMBERS | {int(ClaimType.STRING)}
"""Types of claims, which have the numbers of those of tokens. [MS-ADTS 2.2.18.2]"""


def claims_of(packed: bytes) -> tuple[Claim, ...]:
    """Return the claims of a PAC_CLIENT_CLAIMS_INFO or PAC_DEVICE_CLAIMS_INFO. [MS-PAC 2.11, 2.13, MS-ADTS 2.2.18.8]

    One without content has none. Raises ``ValueError`` for a malformed one."""
    if not packed:
        return ()
    metadata = Serialized(packed)
    if not metadata.pointer():
        return ()
    size, is_there, form, plain = metadata.u32(), metadata.pointer(), metadata.u16(), metadata.u32()
    _skip_reserved(metadata)
    if not is_there:
        return ()
    return tuple(_claims(Serialized(_plain(metadata.octets(size), form, plain))))


def _skip_reserved(structure: Serialized) -> None:
    """Read usReservedType, ulReservedFieldSize and ReservedField, which end CLAIMS_SET and CLAIMS_SET_METADATA."""
    structure.u16()
    structure.u32()
    structure.pointer()


def _plain(data: bytes, form: int, size: int) -> bytes | bytearray:
    """Return a CLAIMS_SET that is not compressed. [MS-ADTS 3.1.1.11.2.5]"""
    if form == _NOT_COMPRESSED:
        return data
    algorithm = _COMPRESSED.get(form)
    if algorithm is None or size > MAX_CLAIMS:
        raise ValueError(f"claims of {size} bytes in format {form}")
    found = bytearray(size)
    if not decompress(algorithm, data, memoryview(found)):
        raise ValueError("claims are compressed wrongly")
    return found


def _claims(claims_set: Serialized) -> Iterator[Claim]:
    """Iterate over the claims of a CLAIMS_SET, from all sources. [MS-ADTS 2.2.18.5 to 2.2.18.7]"""
    if not claims_set.pointer():
        return
    count, are_there = claims_set.u32(), claims_set.pointer()
    _skip_reserved(claims_set)
    if not are_there:
        return
    arrays = []
    for _ in range(claims_set.counted(count, 12)):
        # usClaimsSourceType
        claims_set.u16()
        arrays.append((claims_set.u32(), claims_set.pointer()))
    for size, is_there in arrays:
        if not is_there:
            continue
        # The array's entries come first, then the names and values of them all.
        entries = [_entry(claims_set) for _ in range(claims_set.counted(size, 8))]
        for has_name, kind, values, have_values in entries:
            name = claims_set.text() if has_name else ""
            found = _values(claims_set, kind, values) if have_values else ()
            if name and found:
                yield Claim(name, kind, found)


def _entry(claims_set: Serialized) -> tuple[bool, int, int, bool]:
    """Read a CLAIM_ENTRY: whether it has a name, its type, the number of its values, and whether they are there."""
    has_name, kind, tag = claims_set.pointer(), claims_set.u16(), claims_set.u16()
    if kind != tag:
        raise ValueError("a claim has two types")
    if kind not in _TYPES:
        # The union's default: it is empty.
        return has_name, kind, 0, False
    return has_name, kind, claims_set.u32(), claims_set.pointer()


def _values(claims_set: Serialized, kind: int, count: int) -> tuple[ClaimValue, ...]:
    if kind in _NUMBERS:
        numbers = claims_set.integers(count, signed=kind == ClaimType.INT64)
        return tuple(int(bool(number)) for number in numbers) if kind == ClaimType.BOOLEAN else numbers
    return tuple(claims_set.text() for is_there in claims_set.pointers(count) if is_there)


def device_groups(packed: bytes) -> frozenset[Sid]:
    """Return the SIDs of the device and of its groups, of a PAC_DEVICE_INFO. [MS-PAC 2.12]

    Raises ``ValueError`` for a malformed one, or one with more than ``MAX_GROUPS`` groups."""
    info = Serialized(packed)
    if not info.pointer():
        raise ValueError("no device")
    number, primary, has_domain = info.u32(), info.u32(), info.pointer()
    (account_count, accounts), (extra_count, extra), (domain_count, domains) = (
        (info.u32(), info.pointer()) for _ in range(3)
    )
    if not has_domain:
        raise ValueError("the device has no domain")
    if account_count + extra_count + domain_count > MAX_GROUPS:
        raise ValueError("too many groups of the device")
    domain = info.sid()
    # Without a RID of its own, the device is the first of the groups.
    found = {_below(domain, rid) for rid in (number, primary) if rid}
    if accounts:
        found |= _members(info, account_count, domain)
    if extra:
        entries = [(info.pointer(), info.u32()) for _ in range(info.counted(extra_count, 8))]
        sids = [(info.sid(), attributes) for is_there, attributes in entries if is_there]
        found |= {sid for sid, attributes in sids if attributes & ENABLED}
    if domains:
        groups = [(info.pointer(), info.u32(), info.pointer()) for _ in range(info.counted(domain_count, 12))]
        for has_sid, size, has_groups in groups:
            if not has_sid:
                raise ValueError("groups of the device without a domain")
            above = info.sid()
            found |= _members(info, size, above) if has_groups else set()
    if len(found) > MAX_GROUPS:
        raise ValueError("too many groups of the device")
    return frozenset(sid for sid in found if of_a_domain(sid))


def _members(info: Serialized, count: int, domain: Sid) -> set[Sid]:
    """Read an array of GROUP_MEMBERSHIP. [MS-PAC 2.2.2]"""
    entries = [(info.u32(), info.u32()) for _ in range(info.counted(count, 8))]
    return {_below(domain, rid) for rid, attributes in entries if attributes & ENABLED}


def _below(domain: Sid, number: int) -> Sid:
    return domain._replace(sub_authorities=(*domain.sub_authorities, number))
