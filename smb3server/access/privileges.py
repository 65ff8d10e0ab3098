"""Privileges of users: what they may do irrespective of descriptors. [MS-LSAD 3.1.1.2.1, MS-FSA 2.1.5.1]

The configuration gives them: ``security_operators``, ``backup_operators`` and ``admins`` of ``[server]``.
"""

from __future__ import annotations

import enum

from smb3server.access.masks import FILE_GENERIC_READ, FILE_GENERIC_WRITE
from smb3server.wire.create import Access


class Privilege(enum.IntFlag):
    """The privileges that this server knows."""

    SECURITY = 1
    """Read and change SACLs: an open may have ACCESS_SYSTEM_SECURITY."""
    BACKUP = 2
    """Read every file that is opened with FILE_OPEN_FOR_BACKUP_INTENT."""
    RESTORE = 4
    """Write and make every file that is opened with FILE_OPEN_FOR_BACKUP_INTENT. Name any owner of a file."""
    MANAGE_VOLUME = 8
    """Set the valid data length of a file."""


NO_PRIVILEGE = Privilege(0)

BACKUP_ACCESS = int(
    Access.READ_CONTROL | Access.ACCESS_SYSTEM_SECURITY | FILE_GENERIC_READ | Access.EXECUTE  # FILE_TRAVERSE
)
"""The access that ``BACKUP`` gives. [MS-FSA 2.1.5.1.2.1]"""
RESTORE_ACCESS = int(
    Access.WRITE_DAC
    | Access.WRITE_OWNER
    | Access.ACCESS_SYSTEM_SECURITY
    | FILE_GENERIC_WRITE  # FILE_ADD_FILE and FILE_ADD_SUBDIRECTORY are in it.
    | Access.DELETE
)
"""The access that ``RESTORE`` gives. [MS-FSA 2.1.5.1.2.1]"""


def access_for_backup(privileges: int) -> int:
    """Return the access that privileges give to any file that is opened for backup or restoring."""
    given = BACKUP_ACCESS if privileges & Privilege.BACKUP else 0
    return given | RESTORE_ACCESS if privileges & Privilege.RESTORE else given
