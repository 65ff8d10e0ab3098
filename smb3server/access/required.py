"""The access that each command needs its open to have been granted. [MS-SMB2 3.3.5, MS-FSA 2.1.5]"""

from __future__ import annotations

from smb3server.wire.create import Access
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.query_info import SecurityInformation
from smb3server.wire.status import NtStatus, StatusError

NOTHING = 0
_READ_DATA = int(Access.READ_DATA)
_WRITE_DATA = int(Access.WRITE_DATA)
_APPEND_DATA = int(Access.APPEND_DATA)
_WRITE_ATTRIBUTES = int(Access.WRITE_ATTRIBUTES)
_DELETE = int(Access.DELETE)

READ = int(Access.READ_DATA | Access.EXECUTE)
"""READ, and the source of SRV_COPYCHUNK, need any of these rights. [MS-SMB2 3.3.5.12, 3.3.5.15.6]"""
WRITE = int(Access.WRITE_DATA | Access.APPEND_DATA)
"""WRITE, and the target of SRV_COPYCHUNK, need any of these rights. [MS-SMB2 3.3.5.13, 3.3.5.15.6]

Each allows any offset, as on Windows (smb2.rw.append). That existing bytes need FILE_WRITE_DATA, and new ones
FILE_APPEND_DATA, is a SHOULD of 3.3.5.13."""

SET_FILE: dict[int, int] = {
    FileInfoClass.BASIC: _WRITE_ATTRIBUTES,
    FileInfoClass.RENAME: _DELETE,
    FileInfoClass.RENAME_EX: _DELETE,
    FileInfoClass.LINK: NOTHING,
    FileInfoClass.LINK_EX: NOTHING,
    FileInfoClass.DISPOSITION: _DELETE,
    FileInfoClass.DISPOSITION_EX: _DELETE,
    FileInfoClass.POSITION: NOTHING,
    FileInfoClass.FULL_EA: int(Access.WRITE_EA),
    FileInfoClass.MODE: NOTHING,
    FileInfoClass.ALLOCATION: _WRITE_DATA,
    FileInfoClass.END_OF_FILE: _WRITE_DATA,
    FileInfoClass.VALID_DATA_LENGTH: _WRITE_DATA,
    FileInfoClass.SHORT_NAME: _WRITE_DATA | _WRITE_ATTRIBUTES,
    FileInfoClass.PIPE: _WRITE_ATTRIBUTES,
}
"""Rights by SET_INFO level: any of them is enough. The rights on other objects that rename and link need are in
``decide``. [MS-SMB2 3.3.5.21.1]"""

FSCTL: dict[int, int] = {
    Fsctl.SET_SPARSE: _WRITE_DATA | _WRITE_ATTRIBUTES | _APPEND_DATA,
    Fsctl.SET_ZERO_DATA: _WRITE_DATA,
    Fsctl.QUERY_ALLOCATED_RANGES: _READ_DATA,
    Fsctl.FILE_LEVEL_TRIM: _WRITE_DATA,
    Fsctl.QUERY_FILE_REGIONS: _READ_DATA,
    Fsctl.SET_REPARSE_POINT: _WRITE_DATA | _WRITE_ATTRIBUTES,
    Fsctl.DELETE_REPARSE_POINT: _WRITE_DATA | _WRITE_ATTRIBUTES,
    Fsctl.SET_COMPRESSION: _WRITE_DATA,
    Fsctl.DUPLICATE_EXTENTS_TO_FILE: _WRITE_DATA,
    Fsctl.DUPLICATE_EXTENTS_TO_FILE_EX: _WRITE_DATA,
    Fsctl.OFFLOAD_READ: _READ_DATA,
    Fsctl.OFFLOAD_WRITE: _WRITE_DATA,
}
"""Rights by control code: any of them is enough. Codes that are not listed need no right. [MS-FSA 2.1.5.10]"""

_READ_CONTROL_PARTS = int(
    SecurityInformation.OWNER
    | SecurityInformation.GROUP
    | SecurityInformation.DACL
    | SecurityInformation.LABEL
    | SecurityInformation.ATTRIBUTE
    | SecurityInformation.SCOPE
)
_AUDIT_PARTS = int(SecurityInformation.SACL)
_WRITE_OWNER_PARTS = int(SecurityInformation.OWNER | SecurityInformation.GROUP | SecurityInformation.LABEL)
_WRITE_DAC_PARTS = int(SecurityInformation.DACL | SecurityInformation.ATTRIBUTE)
_PRIVILEGED_PARTS = int(SecurityInformation.SACL | SecurityInformation.SCOPE)


ALL_PARTS = _READ_CONTROL_PARTS | _AUDIT_PARTS


def parts_of(which: int) -> int:
    """Return ``which`` (SecurityInformation) with all parts if it has BACKUP, which means the whole descriptor.
    [MS-DTYP 2.4.7]"""
    return which | ALL_PARTS if which & SecurityInformation.BACKUP else which


def check(granted: int, any_of: int) -> None:
    """Raise ``StatusError`` (ACCESS_DENIED) if the open was granted none of the rights in ``any_of``. 0 needs no
    right."""
    if any_of and not granted & any_of:
        raise StatusError(NtStatus.ACCESS_DENIED)


def check_query_security(granted: int, parts: int) -> None:
    """Refuse to return parts of a descriptor (SecurityInformation) without the rights they need.
    [MS-SMB2 3.3.5.20.3]"""
    if parts & _READ_CONTROL_PARTS:
        check(granted, int(Access.READ_CONTROL))
    if parts & _AUDIT_PARTS:
        check(granted, int(Access.ACCESS_SYSTEM_SECURITY))


def check_set_security(granted: int, parts: int, share: int) -> None:
    """Refuse to replace parts of a descriptor (SecurityInformation) without the rights they need.
    [MS-SMB2 3.3.5.21.3]

    ``share``: the tree connect's MaximalAccess. ACCESS_SYSTEM_SECURITY, which also reads, is no right of a share: where
    the share lets nobody change a DACL, nobody changes a SACL."""
    if parts & _WRITE_OWNER_PARTS:
        check(granted, int(Access.WRITE_OWNER))
    if parts & _WRITE_DAC_PARTS:
        check(granted, int(Access.WRITE_DAC))
    if parts & _PRIVILEGED_PARTS:
        check(granted, int(Access.ACCESS_SYSTEM_SECURITY))
        check(share, int(Access.WRITE_DAC))
