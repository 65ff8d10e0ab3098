"""Convert security descriptors between self-relative bytes and principals. [MS-DTYP 2.4.6]

This is not the server's own code: a judge that shares the codec with the server would not see its errors.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from tools.access_differential.steps import Ace, Who

WELL_KNOWN = {
    Who.EVERYONE: "S-1-1-0",
    Who.AUTHENTICATED: "S-1-5-11",
    Who.CREATOR_OWNER: "S-1-3-0",
    Who.OWNER_RIGHTS: "S-1-3-4",
    Who.STRANGER: "S-1-5-21-11-22-33-4444",
    Who.ADMINISTRATORS: "S-1-5-32-544",
}
_HEADER = struct.Struct("<BBHIIII")
_ACL_HEADER = struct.Struct("<BBHHH")
_ACE_HEADER = struct.Struct("<BBHI")
_SELF_RELATIVE, _DACL_PRESENT = 0x8000, 0x0004
_ALLOWED, _DENIED = 0, 1
_INHERITED = 0x10


def pack_sid(text: str) -> bytes:
    """Return a SID's bytes. [MS-DTYP 2.4.2.2]"""
    _, revision, authority, *rest = text.split("-")
    numbers = struct.pack(f"<{len(rest)}I", *map(int, rest))
    return bytes((int(revision), len(rest))) + int(authority).to_bytes(6, "big") + numbers


def unpack_sid(data: bytes, at: int) -> str:
    """Return the SID at ``at`` as text."""
    count = data[at + 1]
    authority = int.from_bytes(data[at + 2 : at + 8], "big")
    rest = struct.unpack_from(f"<{count}I", data, at + 8)
    return "-".join(map(str, ("S", data[at], authority, *rest)))


def pack(
    owner: str = "", group: str = "", dacl: Sequence[Ace] | None = None, sids: Mapping[Who, str] | None = None
) -> bytes:
    """Return a descriptor with the given parts."""
    body, offsets = b"", [0, 0, 0, 0]
    control = _SELF_RELATIVE
    for index, sid in enumerate((owner, group)):
        if sid:
            offsets[index] = _HEADER.size + len(body)
            body += pack_sid(sid)
    if dacl is not None:
        control |= _DACL_PRESENT
        offsets[3] = _HEADER.size + len(body)
        entries = b"".join(_pack_ace(ace, sids or {}) for ace in dacl)
        body += _ACL_HEADER.pack(2, 0, _ACL_HEADER.size + len(entries), len(dacl), 0) + entries
    return _HEADER.pack(1, 0, control, *offsets) + body


def _pack_ace(ace: Ace, sids: Mapping[Who, str]) -> bytes:
    sid = pack_sid(sids[ace.who])
    return _ACE_HEADER.pack(_DENIED if ace.deny else _ALLOWED, ace.flags, _ACE_HEADER.size + len(sid), ace.mask) + sid


def owner_and_group(data: bytes) -> tuple[str, str]:
    """Return owner and group of a descriptor that has both."""
    offsets = _HEADER.unpack_from(data)[3:]
    return unpack_sid(data, offsets[0]), unpack_sid(data, offsets[1])


def describe(data: bytes, sids: Mapping[Who, str]) -> tuple[str, ...]:
    """Return a descriptor's parts, with principals' names in place of SIDs.

    Whether an entry was inherited is omitted.
    """
    names = {sid: str(who) for who, sid in sids.items()}

    def name(at: int) -> str:
        sid = unpack_sid(data, at)
        return names.get(sid, sid)

    _, _, control, owner, group, sacl, dacl = _HEADER.unpack_from(data)
    parts = []
    parts += [f"owner {name(owner)}"] if owner else []
    parts += [f"group {name(group)}"] if group else []
    parts += ["sacl"] if sacl else []
    if control & _DACL_PRESENT and dacl:
        at = dacl + _ACL_HEADER.size
        for _ in range(_ACL_HEADER.unpack_from(data, dacl)[3]):
            kind, flags, size, mask = _ACE_HEADER.unpack_from(data, at)
            who = name(at + _ACE_HEADER.size)
            parts.append(f"{kind} {who} {mask:#x} flags {flags & ~_INHERITED:#x}")
            at += size
    return tuple(parts)
