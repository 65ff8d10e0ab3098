"""Access masks: generic rights, and which access an open is granted. [MS-SMB2 3.3.5.9, MS-FSA 2.1.5.1.2.1]"""

from __future__ import annotations

from smb3server.wire.create import Access, CreateDisposition
from smb3server.wire.status import NtStatus, StatusError

FILE_GENERIC_READ = 0x00120089
FILE_GENERIC_WRITE = 0x00120116
FILE_GENERIC_EXECUTE = 0x001200A0
FILE_ALL_ACCESS = 0x001F01FF

_GENERIC: dict[int, int] = {
    int(Access.GENERIC_READ): FILE_GENERIC_READ,
    int(Access.GENERIC_WRITE): FILE_GENERIC_WRITE,
    int(Access.GENERIC_EXECUTE): FILE_GENERIC_EXECUTE,
    int(Access.GENERIC_ALL): FILE_ALL_ACCESS,
}
_GENERIC_BITS = sum(_GENERIC)
INVALID_BITS = 0x0CE0FE00
"""Reserved bits of an access mask."""
WRITES_DATA = int(Access.WRITE_DATA | Access.APPEND_DATA)
_MAXIMUM_ALLOWED = int(Access.MAXIMUM_ALLOWED)
_SYSTEM_SECURITY = int(Access.ACCESS_SYSTEM_SECURITY)


def map_generic(access: int) -> int:
    """Replace generic rights by the file rights they stand for. MAXIMUM_ALLOWED stays. [MS-DTYP 2.5.3.4.7]"""
    if access & _GENERIC_BITS:
        for generic, specific in _GENERIC.items():
            if access & generic:
                access |= specific
        access &= ~_GENERIC_BITS
    return access


def implied_by(disposition: int) -> int:
    """Return the rights that overwriting needs beyond DesiredAccess. They are checked, not granted.
    [MS-FSA 2.1.5.1.2.1]"""
    if disposition == CreateDisposition.SUPERSEDE:
        return int(Access.DELETE | Access.WRITE_DATA)
    if disposition in (CreateDisposition.OVERWRITE, CreateDisposition.OVERWRITE_IF):
        return int(Access.WRITE_DATA | Access.WRITE_EA | Access.WRITE_ATTRIBUTES)
    return 0


def grant(desired: int, maximal: int, implied: int = 0) -> int:
    """Return the granted access.

    ``desired`` has generic rights mapped. Raises ``StatusError`` (ACCESS_DENIED) if a right in ``desired`` or
    ``implied`` is not in ``maximal``. ACCESS_SYSTEM_SECURITY is granted: ``decide.check_system_security`` refuses it.
    """
    wanted = desired & ~_MAXIMUM_ALLOWED
    if (wanted | implied) & ~(maximal | _SYSTEM_SECURITY):
        raise StatusError(NtStatus.ACCESS_DENIED)
    return maximal | wanted if desired & _MAXIMUM_ALLOWED else wanted
