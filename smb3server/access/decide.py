"""The rules of who may do what to a file, as functions of access masks (MS-FSA 2.1.5.1, 2.1.5.15, 2.1.5.17).

A *maximal* access is everything a user may do with one object: what its descriptor gives him, what its folder's adds,
within what the share allows at all. ``caller`` finds it out; nothing here looks at a file. Each function returns what
is granted or raises ``StatusError`` with the status that the section names.
"""

from __future__ import annotations

from typing import NamedTuple

from smb3server.access import masks
from smb3server.access.check import Token
from smb3server.access.descriptor import Sid
from smb3server.access.posix import gid_of
from smb3server.wire import attributes as attr
from smb3server.wire.create import Access, CreateDisposition, CreateOptions
from smb3server.wire.status import NtStatus, StatusError

_ADD_FILE = int(Access.WRITE_DATA)
_ADD_SUBDIRECTORY = int(Access.APPEND_DATA)
_DELETE = int(Access.DELETE)
_MAXIMUM_ALLOWED = int(Access.MAXIMUM_ALLOWED)
_BY_PARENT = int(Access.DELETE | Access.READ_ATTRIBUTES)
_OVERWRITES = frozenset([CreateDisposition.SUPERSEDE, CreateDisposition.OVERWRITE, CreateDisposition.OVERWRITE_IF])


class Wanted(NamedTuple):
    """What a CREATE asks for."""

    access: int
    """DesiredAccess with generic rights mapped, MAXIMUM_ALLOWED still in it."""
    disposition: int
    options: int
    attributes: int = 0
    """FileAttributes of the request."""

    @property
    def overwrites(self) -> bool:
        return self.disposition in _OVERWRITES

    @property
    def deletes(self) -> bool:
        return bool(self.options & CreateOptions.DELETE_ON_CLOSE)


# The object itself


def depends_on_parent(own: int) -> bool:
    """Say whether the folder's descriptor can add anything to ``own``, what the file's gives."""
    return own & _BY_PARENT != _BY_PARENT


def with_parent(own: int, parent: int) -> int:
    """Add what the folder's descriptor gives: DELETE to who may delete children, READ_ATTRIBUTES to who may list
    (MS-FSA 2.1.5.1.2.1)."""
    if parent & Access.DELETE_CHILD:
        own |= _DELETE
    if parent & Access.READ_DATA:
        own |= int(Access.READ_ATTRIBUTES)
    return own


# CREATE


def check_share(wanted: Wanted, share: int) -> None:
    """Refuse what the tree connect's MaximalAccess rules out for every file (MS-SMB2 3.3.5.9)."""
    needed = wanted.access & ~_MAXIMUM_ALLOWED
    if wanted.deletes:
        needed |= _DELETE
    if wanted.disposition != CreateDisposition.OPEN_IF:
        needed |= masks.implied_by(wanted.disposition)
    if wanted.disposition == CreateDisposition.CREATE:
        needed |= _ADD_FILE
    if needed & ~share:
        raise StatusError(NtStatus.ACCESS_DENIED)


def check_addition(parent: int, directory: bool) -> None:
    """Refuse a new name in a folder without the right to add one (MS-FSA 2.1.5.1.1).

    ``parent`` is the maximal access to the folder; a stream of a missing file is a new file."""
    if not parent & (_ADD_SUBDIRECTORY if directory else _ADD_FILE):
        raise StatusError(NtStatus.ACCESS_DENIED)


def check_attributes(wanted: Wanted, attributes: int) -> None:
    """Refuse what the DOS attributes of an existing file rule out (MS-FSA 2.1.5.1.2, 2.1.5.1.2.1).

    ``attributes`` are 0 for a folder: they rule out nothing there."""
    if wanted.overwrites and attributes & (attr.READONLY | (attr.HIDDEN | attr.SYSTEM) & ~wanted.attributes):
        raise StatusError(NtStatus.ACCESS_DENIED)
    if attributes & attr.READONLY:
        if wanted.access & masks.WRITES_DATA:
            raise StatusError(NtStatus.ACCESS_DENIED)
        if wanted.deletes:
            raise StatusError(NtStatus.CANNOT_DELETE)


def grant_existing(wanted: Wanted, maximal: int, attributes: int) -> int:
    """Grant access to an existing file, or to an existing stream of one (MS-FSA 2.1.5.1.2.1)."""
    check_attributes(wanted, attributes)
    if attributes & attr.READONLY:
        maximal &= ~masks.WRITES_DATA
    granted = masks.grant(wanted.access, maximal, masks.implied_by(wanted.disposition))
    return _deletable(wanted, granted)


def grant_new_stream(wanted: Wanted, maximal: int, attributes: int) -> int:
    """Grant access to a new stream of an existing file, whose ``maximal`` access and attributes count.

    The file gets data that it did not have, which takes FILE_WRITE_DATA (FILE_ADD_FILE of a folder) whatever the new
    handle is for. MS-FSA names no right; a host asks the same of who adds an extended attribute."""
    check_attributes(wanted, attributes)
    if attributes & attr.READONLY or not maximal & Access.WRITE_DATA:
        raise StatusError(NtStatus.ACCESS_DENIED)
    return _deletable(wanted, masks.grant(wanted.access, maximal))


def grant_new_file(wanted: Wanted, maximal: int, attributes: int) -> int:
    """Grant access to a file that this CREATE made: whoever may make it may do with this first handle what he asked
    for, whatever the new file's descriptor says (MS-FSA 2.1.5.1.1)."""
    if attributes & attr.READONLY and wanted.deletes:
        raise StatusError(NtStatus.CANNOT_DELETE)
    granted = wanted.access & ~_MAXIMUM_ALLOWED
    if wanted.access & _MAXIMUM_ALLOWED:
        granted |= maximal
    return _deletable(wanted, granted)


def _deletable(wanted: Wanted, granted: int) -> int:
    """MAXIMUM_ALLOWED is no promise of DELETE: only who was granted it has the file deleted (MS-FSA 2.1.5.1.2)."""
    if wanted.deletes and not granted & _DELETE:
        raise StatusError(NtStatus.ACCESS_DENIED)
    return granted


# Names


def check_replacement(target: int, attributes: int) -> None:
    """Refuse to replace a file by a rename or a link (MS-FSA 2.1.5.15.6, 2.1.5.15.12): it takes DELETE, of its own or
    by FILE_DELETE_CHILD, and neither folders nor read-only files are replaced."""
    if attributes & (attr.DIRECTORY | attr.READONLY) or not target & _DELETE:
        raise StatusError(NtStatus.ACCESS_DENIED)


def check_link(source: int) -> None:
    """Refuse another name for a file whose attributes the user may not write.

    MS-FSA 2.1.5.15.6 asks nothing of the source. A link keeps a file alive, and in the user's own folder, against its
    owner's will, so Windows asks FILE_WRITE_ATTRIBUTES. What counts is what the user may do, not what the handle was
    opened for: Linux opens the source with FILE_READ_ATTRIBUTES alone."""
    if not source & Access.WRITE_ATTRIBUTES:
        raise StatusError(NtStatus.ACCESS_DENIED)


# Owner and group


def check_owner(token: Token, owner: Sid | None, present: Sid | None = None) -> None:
    """Refuse an owner that the user's token does not have: INVALID_OWNER (MS-FSA 2.1.5.17).

    What a user gives to a group of his is as if he gave its members WRITE_DAC. Naming the ``present`` owner changes
    nothing."""
    if owner is None or (owner not in token.sids and owner != present):
        raise StatusError(NtStatus.INVALID_OWNER)


def check_group(token: Token, group: Sid | None, present: Sid | None = None) -> None:
    """Refuse a group of the host that the user is no member of: INVALID_PRIMARY_GROUP.

    Windows lets everybody with WRITE_OWNER name any group. One that the host does not know gives nobody anything
    here; one that it knows becomes the file's group, with rights and set-id bits of the host."""
    if group is None:
        raise StatusError(NtStatus.INVALID_PRIMARY_GROUP)
    if group not in token.sids and group != present and gid_of(group) is not None:
        raise StatusError(NtStatus.INVALID_PRIMARY_GROUP)


def check_creator(token: Token, owner: Sid | None, group: Sid | None, has_sacl: bool) -> None:
    """Refuse a descriptor for a new file that the user may not give it (MS-DTYP 2.5.3.4.1). None: the default.

    A SACL takes SeSecurityPrivilege, which nobody has here."""
    if owner is not None:
        check_owner(token, owner)
    if group is not None:
        check_group(token, group)
    if has_sacl:
        raise StatusError(NtStatus.PRIVILEGE_NOT_HELD)
