"""Claims about users and devices, and attributes of files: what conditions of ACEs compare. [MS-DTYP 2.4.10.1]"""

from __future__ import annotations

import enum
from typing import NamedTuple

from smb3server.access.descriptor import Sid

ClaimValue = int | str | bytes | Sid
"""An int of INT64, UINT64 and BOOLEAN (0 or 1), a str of STRING, bytes of OCTET_STRING."""


class ClaimType(enum.IntEnum):
    """Types of the values of a claim. [MS-DTYP 2.4.10.1]"""

    INT64 = 0x0001
    UINT64 = 0x0002
    STRING = 0x0003
    SID = 0x0005
    BOOLEAN = 0x0006
    OCTET_STRING = 0x0010


class ClaimFlag(enum.IntFlag):
    """Flags of a claim. [MS-DTYP 2.4.10.1]"""

    NON_INHERITABLE = 0x0001
    VALUE_CASE_SENSITIVE = 0x0002
    USE_FOR_DENY_ONLY = 0x0004
    DISABLED_BY_DEFAULT = 0x0008
    DISABLED = 0x0010
    MANDATORY = 0x0020


class Claim(NamedTuple):
    """A claim of a token, or a resource attribute of a file. Names are compared without regard to case."""

    name: str
    type: int
    values: tuple[ClaimValue, ...]
    """All are of ``type``."""
    flags: int = 0


class Claims(NamedTuple):
    """What a token has besides SIDs and privileges. A token without any of it has None instead. [MS-DTYP 2.5.2]"""

    user: tuple[Claim, ...] = ()
    """UserClaims."""
    device: tuple[Claim, ...] = ()
    """DeviceClaims."""
    device_groups: frozenset[Sid] = frozenset()
    """DeviceSids: the SIDs of the device and of its groups."""
