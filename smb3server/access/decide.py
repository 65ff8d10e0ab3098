"""The rules of who may do what to a file, as functions of access masks. [MS-FSA 2.1.5.1, 2.1.5.15, 2.1.5.17]

A *maximal* access is everything a user may do with one object: the rights that its descriptor gives, those that its
folder's descriptor adds, limited by what the share allows. ``caller`` computes it from real files. Nothing here
accesses a file. Each function returns the granted access, or raises ``StatusError`` with the status that the section
names.
"""

from __future__ import annotations

from typing import NamedTuple

from smb3server.access import masks
from smb3server.access.check import Token
from smb3server.access.descriptor import Sid
from smb3server.access.posix import gid_of
from smb3server.access.privileges import Privilege
from smb3server.backends.base import Retained
from smb3server.wire import attributes as attr
from smb3server.wire.create import Access, CreateDisposition, CreateOptions
from smb3server.wire.status import NtStatus, StatusError

_ADD_FILE = int(Access.WRITE_DATA)
_ADD_SUBDIRECTORY = int(Access.APPEND_DATA)
_DELETE = int(Access.DELETE)
_DELETE_CHILD = int(Access.DELETE_CHILD)
_MAXIMUM_ALLOWED = int(Access.MAXIMUM_ALLOWED)
_SYSTEM_SECURITY = int(Access.ACCESS_SYSTEM_SECURITY)
_SECURITY, _RESTORE = int(Privilege.SECURITY), int(Privilege.RESTORE)
_DELETE_ON_CLOSE = int(CreateOptions.DELETE_ON_CLOSE)
_BY_PARENT = int(Access.DELETE | Access.READ_ATTRIBUTES)
_OVERWRITES = frozenset([CreateDisposition.SUPERSEDE, CreateDisposition.OVERWRITE, CreateDisposition.OVERWRITE_IF])


class Wanted(NamedTuple):
    """The parts of a CREATE request that its access checks need, made by ``wanted``."""

    access: int
    """DesiredAccess with generic rights mapped. It may still contain MAXIMUM_ALLOWED."""
    attributes: int
    """FileAttributes of the request."""
    overwrites: bool
    """The request replaces the data of an existing file."""
    deletes: bool
    """The request asks for deletion when the open is closed."""
    implied: int
    """Rights that overwriting needs beyond ``access``. They are checked, not granted."""
    of_share: int
    """Rights that the share must allow, whatever file it is."""


def wanted(access: int, disposition: int, options: int, attributes: int = 0) -> Wanted:
    """Return what a CREATE with these fields wants. ``access`` has generic rights mapped."""
    deletes = bool(options & _DELETE_ON_CLOSE)
    implied = masks.implied_by(disposition)
    # A SACL may be read on a read-only share. Nobody changes it there: ``required.check_set_security``.
    of_share = access & ~(_MAXIMUM_ALLOWED | _SYSTEM_SECURITY)
    if deletes:
        of_share |= _DELETE
    if disposition != CreateDisposition.OPEN_IF:
        of_share |= implied
    if disposition == CreateDisposition.CREATE:
        of_share |= _ADD_FILE
    return Wanted(access, attributes, disposition in _OVERWRITES, deletes, implied, of_share)


# The object itself


def depends_on_parent(own: int) -> bool:
    """Return whether the folder's descriptor can add anything to ``own``, the access that the file's descriptor
    gives."""
    return own & _BY_PARENT != _BY_PARENT


def with_parent(own: int, parent: int) -> int:
    """Add the rights that the folder's descriptor gives to its entries. [MS-FSA 2.1.5.1.2.1]

    FILE_DELETE_CHILD on the folder gives DELETE, FILE_LIST_DIRECTORY gives FILE_READ_ATTRIBUTES.
    """
    if parent & Access.DELETE_CHILD:
        own |= _DELETE
    if parent & Access.READ_DATA:
        own |= int(Access.READ_ATTRIBUTES)
    return own


_CHANGES = int(
    Access.WRITE_DATA
    | Access.APPEND_DATA
    | Access.WRITE_EA
    | Access.WRITE_ATTRIBUTES
    | Access.WRITE_DAC
    | Access.WRITE_OWNER
)


def refused_on(retained: Retained | None) -> int:
    """Return the rights that nobody is granted on a file that may not be changed any more. None: it may."""
    if retained is None:
        return 0
    return _CHANGES if retained.may_be_deleted else _CHANGES | _DELETE


# CREATE


def check_share(wanted: Wanted, share: int) -> None:
    """Refuse access that the tree connect's MaximalAccess (``share``) rules out for every file. [MS-SMB2 3.3.5.9]"""
    if wanted.of_share & ~share:
        raise StatusError(NtStatus.ACCESS_DENIED)


def check_system_security(privileges: int, for_backup: int) -> None:
    """Refuse ACCESS_SYSTEM_SECURITY to a user without the privilege for it. [MS-DTYP 2.5.3.2, MS-FSA 2.1.5.1]

    ``privileges`` are those of the user, ``for_backup`` is the access that ``privileges.access_for_backup`` gives to
    this open.
    """
    if not privileges & _SECURITY and not for_backup & _SYSTEM_SECURITY:
        raise StatusError(NtStatus.PRIVILEGE_NOT_HELD)


def check_addition(parent: int, directory: bool) -> None:
    """Refuse a new name in a folder without the right to add one. [MS-FSA 2.1.5.1.1]

    ``parent`` is the maximal access to the folder. A stream of a file that does not exist counts as a new file.
    """
    if not parent & (_ADD_SUBDIRECTORY if directory else _ADD_FILE):
        raise StatusError(NtStatus.ACCESS_DENIED)


def check_attributes(wanted: Wanted, attributes: int) -> None:
    """Refuse access that the DOS attributes of an existing file rule out. [MS-FSA 2.1.5.1.2, 2.1.5.1.2.1]

    ``attributes`` must be 0 for a folder: the attributes of a folder rule out nothing.
    """
    if wanted.overwrites and attributes & (attr.READONLY | (attr.HIDDEN | attr.SYSTEM) & ~wanted.attributes):
        raise StatusError(NtStatus.ACCESS_DENIED)
    if attributes & attr.READONLY:
        if wanted.access & masks.WRITES_DATA:
            raise StatusError(NtStatus.ACCESS_DENIED)
        if wanted.deletes:
            raise StatusError(NtStatus.CANNOT_DELETE)


def grant_existing(wanted: Wanted, maximal: int, attributes: int) -> int:
    """Grant access to an existing file, or to an existing stream of one. [MS-FSA 2.1.5.1.2.1]"""
    if wanted.overwrites or attributes & attr.READONLY:
        check_attributes(wanted, attributes)
    if attributes & attr.READONLY:
        # A right to delete entries, which a file has none of, is taken away as well if nobody asked for it by name.
        maximal &= ~(masks.WRITES_DATA | _DELETE_CHILD if wanted.access & _MAXIMUM_ALLOWED else masks.WRITES_DATA)
    granted = masks.grant(wanted.access, maximal, wanted.implied)
    return _deletable(wanted, granted) if wanted.deletes else granted


def grant_new_stream(wanted: Wanted, maximal: int, attributes: int) -> int:
    """Grant access to a new stream of an existing file. ``maximal`` and ``attributes`` are those of the file.

    The file gets new data. This needs FILE_WRITE_DATA (FILE_ADD_FILE on a folder), whatever the new handle is for.
    MS-FSA names no right. A host requires the same for adding an extended attribute.
    """
    check_attributes(wanted, attributes)
    if attributes & attr.READONLY or not maximal & Access.WRITE_DATA:
        raise StatusError(NtStatus.ACCESS_DENIED)
    return _deletable(wanted, masks.grant(wanted.access, maximal))


def grant_new_file(wanted: Wanted, maximal: int, attributes: int) -> int:
    """Grant access to a file that this CREATE made. [MS-FSA 2.1.5.1.1]

    A user who may create the file gets all requested access with this first handle, whatever the new file's descriptor
    says.
    """
    if attributes & attr.READONLY and wanted.deletes:
        raise StatusError(NtStatus.CANNOT_DELETE)
    granted = wanted.access & ~_MAXIMUM_ALLOWED
    if wanted.access & _MAXIMUM_ALLOWED:
        granted |= maximal
    return _deletable(wanted, granted)


def _deletable(wanted: Wanted, granted: int) -> int:
    """Refuse DELETE_ON_CLOSE if DELETE was not granted. MAXIMUM_ALLOWED does not imply DELETE. [MS-FSA 2.1.5.1.2]"""
    if wanted.deletes and not granted & _DELETE:
        raise StatusError(NtStatus.ACCESS_DENIED)
    return granted


# Names


def check_replacement(target: int, attributes: int) -> None:
    """Refuse to replace a file by a rename or a link. [MS-FSA 2.1.5.15.6, 2.1.5.15.12]

    ``target`` is the maximal access to the file, ``attributes`` its DOS attributes. Replacing needs DELETE, from the
    file's own descriptor or by FILE_DELETE_CHILD on its folder. Folders and read-only files are never replaced.
    """
    if attributes & (attr.DIRECTORY | attr.READONLY) or not target & _DELETE:
        raise StatusError(NtStatus.ACCESS_DENIED)


def check_link(source: int) -> None:
    """Refuse another name for a file whose attributes the user may not write. ``source`` is the maximal access to the
    file.

    MS-FSA 2.1.5.15.6 requires no right on the source. But a link keeps a file alive in the user's own folder against
    its owner's will, so Windows requires FILE_WRITE_ATTRIBUTES. The check is made against the user's maximal access,
    not against the access of the handle: Linux opens the source with FILE_READ_ATTRIBUTES alone.
    """
    if not source & Access.WRITE_ATTRIBUTES:
        raise StatusError(NtStatus.ACCESS_DENIED)


# Owner and group


def check_owner(token: Token, owner: Sid | None, present: Sid | None = None) -> None:
    """Refuse an owner that is not in the user's token: INVALID_OWNER. [MS-FSA 2.1.5.17]

    A user may name one of its own groups as owner: this only gives the group's members an implied WRITE_DAC. Naming the
    ``present`` owner changes nothing. A user with SeRestorePrivilege may name any owner.
    """
    if owner is None or (owner not in token.sids and owner != present and not token.privileges & _RESTORE):
        raise StatusError(NtStatus.INVALID_OWNER)


def check_group(token: Token, group: Sid | None, present: Sid | None = None) -> None:
    """Refuse a group of the host that the user is not a member of: INVALID_PRIMARY_GROUP.

    Windows lets every user with WRITE_OWNER name any group. A group that the host does not know gives no rights here. A
    group of the host becomes the file's group, with its rights and set-id bits on the host: that takes
    SeRestorePrivilege.
    """
    if group is None:
        raise StatusError(NtStatus.INVALID_PRIMARY_GROUP)
    if group in token.sids or group == present or token.privileges & _RESTORE:
        return
    if gid_of(group) is not None:
        raise StatusError(NtStatus.INVALID_PRIMARY_GROUP)


def check_creator(token: Token, owner: Sid | None, group: Sid | None, has_sacl: bool) -> None:
    """Refuse a descriptor for a new file that the user may not give it. None means the default. [MS-DTYP 2.5.3.4.1]

    A SACL needs SeSecurityPrivilege.
    """
    if owner is not None:
        check_owner(token, owner)
    if group is not None:
        check_group(token, group)
    if has_sacl and not token.privileges & _SECURITY:
        raise StatusError(NtStatus.PRIVILEGE_NOT_HELD)
