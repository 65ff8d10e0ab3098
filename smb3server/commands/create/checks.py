"""Checks a CREATE without looking at the file. [MS-SMB2 3.3.5.9, MS-FSA 2.1.5.1 phase 1]"""

from __future__ import annotations

import functools
from typing import NamedTuple

from smb3server.access import decide, masks
from smb3server.backends import names
from smb3server.backends.base import Path
from smb3server.commands.create.contexts import CreateContexts
from smb3server.wire import attributes as attr
from smb3server.wire.create import Access, CreateDisposition, CreateOptions, CreateRequest
from smb3server.wire.status import NtStatus, StatusError

_DELEGATION = 3
"""The highest impersonation level. [MS-SMB2 2.2.13]"""
_VALID_ATTRIBUTES = 0x00007FB7
_UNSUPPORTED_OPTIONS = int(
    CreateOptions.CREATE_TREE_CONNECTION | CreateOptions.OPEN_BY_FILE_ID | CreateOptions.RESERVE_OPFILTER
)
_INVALID_OPTIONS = 0xFF000000
_DIRECTORY, _NO_DIRECTORY = int(CreateOptions.DIRECTORY_FILE), int(CreateOptions.NON_DIRECTORY_FILE)
_UNBUFFERED, _DELETES = int(CreateOptions.NO_INTERMEDIATE_BUFFERING), int(CreateOptions.DELETE_ON_CLOSE)
_APPEND, _WRITE = int(Access.APPEND_DATA), int(Access.WRITE_DATA)
_SYSTEM_SECURITY = int(Access.ACCESS_SYSTEM_SECURITY)
_MAY_DELETE = int(Access.DELETE | Access.GENERIC_ALL | Access.MAXIMUM_ALLOWED)
_REPLACES = frozenset([CreateDisposition.SUPERSEDE, CreateDisposition.OVERWRITE, CreateDisposition.OVERWRITE_IF])


def check_impersonation(level: int) -> None:
    """Refuse an impersonation level that does not exist. [MS-SMB2 2.2.13]"""
    if level > _DELEGATION:
        raise StatusError(NtStatus.BAD_IMPERSONATION_LEVEL)


@functools.lru_cache(maxsize=1024)
def check_fields(
    impersonation: int, access: int, attributes: int, share_access: int, disposition: int, options: int
) -> tuple[decide.Wanted, bool | None]:
    """Return what the fields ask for, and whether they require a directory (True), a file (False) or neither (None).
    Refuse values that no request may have, and values that exclude each other. Raises ``StatusError``.

    The answer depends on nothing else, and clients send few combinations again and again."""
    check_impersonation(impersonation)
    if access & masks.INVALID_BITS or access == 0:
        raise StatusError(NtStatus.ACCESS_DENIED)
    if options & _INVALID_OPTIONS:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if options & _UNSUPPORTED_OPTIONS:
        raise StatusError(NtStatus.NOT_SUPPORTED)
    if share_access & ~7 or disposition > CreateDisposition.OVERWRITE_IF or attributes & ~_VALID_ATTRIBUTES:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if options & _DIRECTORY:
        if options & _NO_DIRECTORY or attributes & attr.TEMPORARY:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        if disposition in _REPLACES:
            raise StatusError(NtStatus.INVALID_PARAMETER)
    if options & _UNBUFFERED and access & (_APPEND | _WRITE) == _APPEND:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if options & _DELETES and not access & _MAY_DELETE:
        raise StatusError(NtStatus.ACCESS_DENIED)
    directory = True if options & _DIRECTORY else False if options & _NO_DIRECTORY else None
    return decide.wanted(masks.map_generic(access), disposition, options, attributes), directory


class Checked(NamedTuple):
    """The request of a CREATE that has passed these checks."""

    wanted: decide.Wanted
    path: Path
    stream: str
    directory: bool | None
    """Whether options and name require a directory (True) or a file (False). None means that either is accepted."""


def check(body: CreateRequest, name: str, asked: CreateContexts, share: int, streams: bool) -> Checked:
    """Check the fields, split the name, and refuse requests that the share allows for no file.

    ``share``: the tree connect's MaximalAccess. ``streams``: whether the share has alternate streams. Raises
    ``StatusError``."""
    wanted, directory = check_fields(
        body.impersonation_level,
        body.desired_access,
        body.file_attributes,
        body.share_access,
        body.create_disposition,
        body.create_options,
    )
    stream = ""
    path = names.split_plain(name) if not asked.timewarp and asked.eas is None else None
    if path is None:
        path, stream, directory = _parse_name(body, name, asked, streams)
    if wanted.access & _SYSTEM_SECURITY:
        # This takes SeSecurityPrivilege, which no user of this server has.
        raise StatusError(NtStatus.PRIVILEGE_NOT_HELD)
    decide.check_share(wanted, share)
    return Checked(wanted, path, stream, directory)


def check_name(body: CreateRequest, name: str) -> Checked:
    """Check the part of a CREATE that matters when a client reconnects to a durable open. Raises ``StatusError``."""
    try:
        path, stream, _ = names.split_path(name)
    except names.InvalidName:
        raise StatusError(NtStatus.OBJECT_NAME_INVALID) from None
    return Checked(decide.wanted(0, body.create_disposition, body.create_options), path, stream, None)


def _parse_name(body: CreateRequest, name: str, asked: CreateContexts, streams: bool) -> tuple[Path, str, bool | None]:
    """Return path, stream and ``Checked.directory``. Refuse contexts that no file can satisfy."""
    if name.startswith("\\"):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if asked.timewarp:
        # There are no snapshots, so no file existed at that time.
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    if asked.eas is not None and body.create_options & CreateOptions.NO_EA_KNOWLEDGE:
        raise StatusError(NtStatus.ACCESS_DENIED)
    if ":" in name and not streams:
        raise StatusError(NtStatus.OBJECT_NAME_INVALID)
    trailing = name.endswith("\\")
    # A POSIX name cannot contain a slash. Like Samba, treat it as the separator that the client means.
    name = name.replace("/", "\\")
    try:
        path, stream, said = names.split_path(name[:-1] if trailing else name)
    except names.InvalidName:
        above = ".." in name.split("\\")
        raise StatusError(NtStatus.OBJECT_PATH_SYNTAX_BAD if above else NtStatus.OBJECT_NAME_INVALID) from None
    return path, stream, _directory(body.create_options, trailing, said, stream)


def _directory(options: int, trailing: bool, said: bool | None, stream: str) -> bool | None:
    """Return whether the file must be a directory (True), must not be one (False) or may be either (None). ``said``:
    the same, as far as the type at the end of the name says it."""
    if options & _DIRECTORY:
        if stream or said is False:
            raise StatusError(NtStatus.NOT_A_DIRECTORY)
        return True
    if options & _NO_DIRECTORY:
        if trailing:
            raise StatusError(NtStatus.OBJECT_NAME_INVALID)
        if said is True:
            raise StatusError(NtStatus.FILE_IS_A_DIRECTORY)
        return None if stream else False
    if trailing and said is None:
        return True
    return said
