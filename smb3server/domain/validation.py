"""What a controller says about a user: in a ticket, or in its answer to NETLOGON. [MS-PAC 2.5, MS-NRPC 2.2.1.4.13]

Both structures have the same fields. impacket decodes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from smb3server.access.descriptor import Sid
from smb3server.domain.user import DomainUser

_GUEST, _HAS_EXTRA_SIDS, _HAS_RESOURCE_GROUPS = 0x1, 0x20, 0x200
"""Bits of UserFlags."""
ENABLED, _RESOURCE = 0x4, 0x20000000
"""SE_GROUP_ENABLED and SE_GROUP_RESOURCE. [MS-PAC 2.2.1]"""
MAX_GROUPS = 4096
"""Groups of a user. A token of Windows has 1024."""
_NT, _IDENTITY = 5, 18


def user_of(info: Any, realm: str, session_key: bytes = b"") -> DomainUser:
    """Return the user that a decoded KERB_VALIDATION_INFO or NETLOGON_VALIDATION_SAM_INFO4 is about.

    Raises ``ValueError`` for one that says who the user is in no way, or has more than ``MAX_GROUPS`` groups."""
    counts = [int(info["GroupCount"]), int(info["SidCount"])]
    flags = int(info["UserFlags"])
    domain = _sid(info["LogonDomainId"])
    found = set(_relative(domain, info["GroupIds"]))
    local: set[Sid] = set()
    # In a PAC local groups are apart: the KDC that makes the service ticket drops what was there, and fills them.
    compressed = "ResourceGroupIds" in info.fields
    if flags & _HAS_EXTRA_SIDS:
        for entry in _entries(info["ExtraSids"]):
            if int(entry["Attributes"]) & ENABLED:
                is_local = int(entry["Attributes"]) & _RESOURCE and not compressed
                (local if is_local else found).add(_sid(entry["Sid"]))
    if flags & _HAS_RESOURCE_GROUPS and compressed and _entries(info["ResourceGroupIds"]):
        counts.append(int(info["ResourceGroupCount"]))
        local |= set(_relative(_sid(info["ResourceGroupDomainSid"]), info["ResourceGroupIds"]))
    if sum(counts) > MAX_GROUPS:
        raise ValueError(f"{sum(counts)} groups")
    number = int(info["UserId"])
    if not number:
        raise ValueError("the user has no RID")
    primary = _below(domain, int(info["PrimaryGroupId"]))
    return DomainUser(
        _text(info["EffectiveName"]),
        _text(info["LogonDomainName"]),
        realm,
        _below(domain, number),
        primary,
        frozenset(sid for sid in found | local | {primary} if of_a_domain(sid)),
        bool(flags & _GUEST),
        session_key,
        frozenset(local),
    )


def of_a_domain(sid: Sid) -> bool:
    """Return whether a controller may say that a user has this SID.

    These are the SIDs of domains, and those that tell how the user has proved its identity (S-1-18). Who is in the
    groups of this server, as BUILTIN\\Administrators, no controller says. [MS-PAC 4.1.2.2]"""
    if sid.authority == _IDENTITY:
        return True
    return sid.authority == _NT and len(sid.sub_authorities) == 5 and sid.sub_authorities[0] == 21


def _entries(array: Any) -> Any:
    """Return the elements behind a pointer. impacket decodes NULL to bytes."""
    return () if isinstance(array, bytes) else array


def _relative(domain: Sid, groups: Any) -> Iterator[Sid]:
    """Iterate over the groups of a list of RIDs."""
    for entry in _entries(groups):
        if int(entry["Attributes"]) & ENABLED:
            yield _below(domain, int(entry["RelativeId"]))


def _below(domain: Sid, number: int) -> Sid:
    return domain._replace(sub_authorities=(*domain.sub_authorities, number))


def _sid(decoded: Any) -> Sid:
    if isinstance(decoded, bytes):
        raise ValueError("a SID is missing")
    return Sid.parse(decoded.formatCanonical())


def _text(decoded: Any) -> str:
    """Return an RPC_UNICODE_STRING. impacket decodes one without characters to bytes."""
    return decoded if isinstance(decoded, str) else ""
