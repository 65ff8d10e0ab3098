"""Checks a CREATE without looking at the file. [MS-SMB2 3.3.5.9, MS-FSA 2.1.5.1 phase 1]"""

from __future__ import annotations

import functools
from typing import NamedTuple

from smb3server.access import decide, masks
from smb3server.access.caller import Caller
from smb3server.backends import names
from smb3server.backends.base import Path
from smb3server.commands.create.contexts import CreateContexts
from smb3server.commands.info.posix import path_of as posix_path
from smb3server.wire import attributes as attr
from smb3server.wire.create import Access, CreateDisposition, CreateOptions, CreateRequest
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import new_record

_DELEGATION = 3
"""The highest impersonation level. [MS-SMB2 2.2.13]"""
_VALID_ATTRIBUTES = 0x00007FB7 | attr.INTEGRITY_STREAM | attr.NO_SCRUB_DATA
"""The attributes of MS-FSCC 2.6 that a client may ask for. The last two are ReFS', and change nothing here."""
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


def check_access(impersonation: int, access: int) -> None:
    """Refuse an impersonation level that does not exist, and access that nobody can be granted, also on a pipe.
    [MS-SMB2 2.2.13, MS-FSA 2.1.5.1 phase 1]"""
    if impersonation > _DELEGATION:
        raise StatusError(NtStatus.BAD_IMPERSONATION_LEVEL)
    if access & masks.INVALID_BITS or access == 0:
        raise StatusError(NtStatus.ACCESS_DENIED)


@functools.lru_cache(maxsize=1024)
def check_fields(
    impersonation: int, access: int, attributes: int, share_access: int, disposition: int, options: int
) -> tuple[decide.Wanted, bool | None]:
    """Return what the fields ask for, and whether they require a directory (True), a file (False) or neither (None).
    Refuse values that no request may have, and values that exclude each other. Raises ``StatusError``.

    The answer depends on nothing else, and clients send few combinations again and again."""
    check_access(impersonation, access)
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


class BadNameError(StatusError):
    """A name breaks a rule below ``folder``. OBJECT_PATH_NOT_FOUND comes first if there is no such folder."""

    def __init__(self, status: NtStatus, folder: Path) -> None:
        super().__init__(status)
        self.folder = folder


class Checked(NamedTuple):
    """The request of a CREATE that has passed these checks."""

    wanted: decide.Wanted
    path: Path
    stream: str
    directory: bool | None
    """Whether options and name require a directory (True) or a file (False). None means that either is accepted."""


def check(body: CreateRequest, name: str, asked: CreateContexts, caller: Caller, streams: bool) -> Checked:
    """Check the fields, split the name, and refuse requests that the share allows for no file.

    ``caller``: who asks, and what its tree connect allows. ``streams``: whether the share has alternate streams. Raises
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
    path = names.split_plain(name) if asked.eas is None and asked.posix is None else None
    if path is None:
        path, stream, directory = _parse_name(body, name, asked, streams)
    if wanted.access & _SYSTEM_SECURITY:
        decide.check_system_security(caller.token.privileges, caller.for_backup)
    decide.check_share(wanted, caller.share)
    checked: Checked = new_record(Checked, (wanted, path, stream, directory))
    return checked


def check_name(body: CreateRequest, name: str, posix: bool = False) -> Checked:
    """Check the part of a CREATE that matters when a client reconnects to a durable open. Raises ``StatusError``."""
    if posix:
        return Checked(decide.wanted(0, body.create_disposition, body.create_options), posix_path(name), "", None)
    try:
        path, stream, _ = names.split_path(_without_dots(name))
    except names.InvalidName:
        raise StatusError(NtStatus.OBJECT_NAME_INVALID) from None
    return Checked(decide.wanted(0, body.create_disposition, body.create_options), path, stream, None)


def _parse_name(body: CreateRequest, name: str, asked: CreateContexts, streams: bool) -> tuple[Path, str, bool | None]:
    """Return path, stream and ``Checked.directory``. Refuse contexts that no file can satisfy."""
    if name.startswith("\\") and asked.posix is None:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if asked.eas is not None and body.create_options & CreateOptions.NO_EA_KNOWLEDGE:
        raise StatusError(NtStatus.ACCESS_DENIED)
    if asked.posix is not None:
        return posix_path(name), "", _directory(body.create_options, False, None, "")
    if ":" in name and not streams:
        raise StatusError(NtStatus.OBJECT_NAME_INVALID)
    # A POSIX name cannot contain a slash. Like Samba, treat it as the separator that the client means.
    name = _without_dots(name.replace("/", "\\"))
    trailing = name.endswith("\\")
    try:
        path, stream, said = names.split_path(name[:-1] if trailing else name)
    except names.InvalidName as error:
        status = NtStatus.INVALID_PARAMETER if error.wrong_type else NtStatus.OBJECT_NAME_INVALID
        raise BadNameError(status, error.folder) from None
    return path, stream, _directory(body.create_options, trailing, said, stream)


def _without_dots(name: str) -> str:
    """Return the name without the dot directory names "." and "..", which stand for the folder that leads to them, and
    the one above it. Nothing is looked up for that.

    Raises OBJECT_PATH_SYNTAX_BAD for what lies above the share, and INVALID_PARAMETER for a name that begins like
    ``x\\..\\``, as Windows does. [MS-SMB2 3.3.5.9, MS-FSCC 2.1.5.1]"""
    parts = name.split("\\")
    if "." not in parts and ".." not in parts:
        return name
    if len(parts) > 2 and parts[1] == ".." and parts[0] not in (".", ".."):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    kept: list[str] = []
    for part in parts:
        if part == "..":
            if not kept:
                raise StatusError(NtStatus.OBJECT_PATH_SYNTAX_BAD)
            kept.pop()
        elif part != ".":
            kept.append(part)
    return "\\".join(kept)


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
