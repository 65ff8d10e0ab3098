"""Which access an open is granted (MS-SMB2 3.3.5.9, MS-FSA 2.1.5.1.2.1)."""

from __future__ import annotations

from smb3server.wire.create import Access, CreateDisposition
from smb3server.wire.status import NtStatus, StatusError

GENERIC_MAPPING: dict[int, int] = {
    int(Access.GENERIC_READ): 0x00120089,
    int(Access.GENERIC_WRITE): 0x00120116,
    int(Access.GENERIC_EXECUTE): 0x001200A0,
    int(Access.GENERIC_ALL): 0x001F01FF,
}
INVALID_BITS = 0x0CE0FE00
"""Reserved bits of an access mask."""
WRITES_DATA = int(Access.WRITE_DATA | Access.APPEND_DATA)
_GENERIC = sum(GENERIC_MAPPING)
_MAXIMUM_ALLOWED = int(Access.MAXIMUM_ALLOWED)


def map_generic(access: int) -> int:
    """Generic rights replaced by a file's specific ones; MAXIMUM_ALLOWED stays."""
    if access & _GENERIC:
        for generic, specific in GENERIC_MAPPING.items():
            if access & generic:
                access |= specific
        access &= ~_GENERIC
    return access


def implied_by(disposition: int) -> int:
    """What overwriting needs beyond the access asked for; it is checked, not granted (MS-FSA 2.1.5.1.2.1)."""
    if disposition == CreateDisposition.SUPERSEDE:
        return int(Access.DELETE | Access.WRITE_DATA)
    if disposition in (CreateDisposition.OVERWRITE, CreateDisposition.OVERWRITE_IF):
        return int(Access.WRITE_DATA | Access.WRITE_EA | Access.WRITE_ATTRIBUTES)
    return 0


def grant(desired: int, maximal: int, implied: int = 0) -> int:
    """The granted access, ACCESS_DENIED if something asked for is not in ``maximal``."""
    wanted = desired & ~_MAXIMUM_ALLOWED
    if (wanted | implied) & ~maximal:
        raise StatusError(NtStatus.ACCESS_DENIED)
    return maximal if desired & _MAXIMUM_ALLOWED else wanted
