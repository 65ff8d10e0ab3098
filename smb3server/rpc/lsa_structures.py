"""SIDs and strings as the NDR structures of MS-LSAD, MS-LSAT and MS-SAMR have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from impacket.dcerpc.v5.dtypes import RPC_SID, ULONG

from smb3server.access.descriptor import Sid

_SOME_NOT_MAPPED, _NONE_MAPPED = 0x00000107, 0xC0000073


def rpc_sid(sid: Sid) -> RPC_SID:
    """Return a SID as an NDR structure."""
    made = RPC_SID()
    made["Revision"] = 1
    made["SubAuthorityCount"] = len(sid.sub_authorities)
    made["IdentifierAuthority"] = sid.authority.to_bytes(6, "big")
    for sub in sid.sub_authorities:
        made["SubAuthority"].append(sub)
    return made


def sid_of(decoded: Any) -> Sid:
    """Return the SID in an NDR structure. Raises ``ValueError`` for a NULL pointer, which impacket decodes to bytes."""
    if isinstance(decoded, bytes):
        raise ValueError("no SID")
    authority = int.from_bytes(bytes(decoded["IdentifierAuthority"]), "big")
    return Sid(authority, tuple(int(sub) for sub in decoded["SubAuthority"]))


def string_of(decoded: Any) -> str:
    """Return the text of an RPC_UNICODE_STRING. impacket returns either the text or a structure."""
    value = decoded if isinstance(decoded, str | bytes) else decoded["Data"]
    return str(value) if isinstance(value, str) else ""


def numbers(values: Iterable[int]) -> list[ULONG]:
    """Return numbers as the elements of an NDR array."""
    made = []
    for value in values:
        number = ULONG()
        number["Data"] = int(value)
        made.append(number)
    return made


def outcome(found: Sequence[object | None]) -> int:
    """Return the status of a lookup that has found these, None for what it has not found."""
    mapped = sum(entry is not None for entry in found)
    if mapped == len(found):
        return 0
    return _SOME_NOT_MAPPED if mapped else _NONE_MAPPED
