"""QUERY_DIRECTORY. [MS-SMB2 3.3.5.18, MS-FSA 2.1.5.6.3]"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from smb3server.access import tokens
from smb3server.access.masks import FILE_GENERIC_READ
from smb3server.access.past import rights_now
from smb3server.backends.base import DirectoryEntry, FolderNotRead, Handle, OpenRequest
from smb3server.backends.names import has_wildcards, short_name, to_wire
from smb3server.commands.apple import for_macs
from smb3server.commands.info.posix import PosixPacker, type_in
from smb3server.commands.info.presentation import NameTest, hidden
from smb3server.dispatch import waiting
from smb3server.dispatch.lookup import find_open
from smb3server.dispatch.request import Pending, Response, TreeRequest, handles
from smb3server.files.searches import Enumeration
from smb3server.state.caller import caller_of
from smb3server.state.objects import Open
from smb3server.state.share import ShareFlags
from smb3server.wire.apple import ServerCaps
from smb3server.wire.create import Access
from smb3server.wire.directory_info import LEVELS, ForMacs, Packer
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command
from smb3server.wire.posix import LEVEL as POSIX_LEVEL
from smb3server.wire.posix import POSIX_INFORMATION, PosixType
from smb3server.wire.query_directory import QueryDirectoryFlags, parse_query_directory_request
from smb3server.wire.query_info import build_output_response
from smb3server.wire.status import NtStatus, StatusError

_REWIND = int(QueryDirectoryFlags.RESTART_SCANS | QueryDirectoryFlags.REOPEN)
_REOPEN = int(QueryDirectoryFlags.REOPEN)
_ONE = int(QueryDirectoryFlags.RETURN_SINGLE_ENTRY)
_DOCUMENTED = frozenset(FileInfoClass)
_READ_DIR_ATTR, _ID_BOTH = int(ServerCaps.READ_DIR_ATTR), int(FileInfoClass.ID_BOTH_DIRECTORY)
_FORBIDDEN = frozenset("\\/:|") | frozenset(map(chr, range(32)))
"""Characters that are in no component of a path, nor wildcards. [MS-FSCC 2.1.5, MS-FSA 2.1.4.3]"""
TURN = 0.01
"""Seconds of listing before other requests get their turn: in a large directory a pattern may match no entry."""
_ENTRIES_PER_LOOK = 64
"""Number of entries that are looked at between two readings of the clock."""
_OPENED_PER_LOOK = 16
"""The same if each of them is opened, too."""
_USUAL_SIZE = 160
"""Bytes of an entry with a name of some 25 characters."""


@handles(Command.QUERY_DIRECTORY, TreeRequest)
def query_directory(request: TreeRequest) -> Response | Pending:
    """List a directory. Continue in later turns if it takes long. [MS-SMB2 3.3.5.18]"""
    body, pattern = parse_query_directory_request(request.message)
    opened = find_open(request, body.file_id)
    if not opened.is_directory or opened.handle is None:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    posix = body.info_class == POSIX_LEVEL and opened.posix
    if body.info_class not in LEVELS and not posix:
        known = body.info_class in _DOCUMENTED
        raise StatusError(NtStatus.NOT_SUPPORTED if known else NtStatus.INVALID_INFO_CLASS)
    if body.output_buffer_length > request.connection.max_transact_size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if not opened.granted_access & Access.READ_DATA:
        raise StatusError(NtStatus.ACCESS_DENIED)
    # An entry has a name of at least one character.
    fixed = POSIX_INFORMATION.size if posix else LEVELS[body.info_class].layout.size
    if body.output_buffer_length < fixed + 2:
        raise StatusError(NtStatus.INFO_LENGTH_MISMATCH)
    if opened.posix and not has_wildcards(pattern):
        pattern = to_wire(pattern) if pattern else pattern
    enumeration = _enumeration(opened, opened.handle, body.flags, pattern)
    for_mac = None
    if opened.tree.apple and opened.tree.apple & _READ_DIR_ATTR and body.info_class == _ID_BOTH:
        for_mac = for_macs.describing(request, opened)
    packer: Packer | PosixPacker
    if posix:
        packer = PosixPacker(body.output_buffer_length, not opened.handle.path, partial(_posix_type, opened))
    else:
        packer = Packer(body.info_class, body.output_buffer_length, short_name, for_mac is not None)
    listing = _Listing(
        packer, enumeration, bool(body.flags & _ONE), _visible(request, opened), opened.tree.share.hides, for_mac
    )
    if not enumeration.unfinished and listing.go_on():
        return listing.response()
    enumeration.unfinished += 1
    return waiting.run(request, listing.finish(request))


def _posix_type(opened: Open, name: str) -> PosixType:
    """Return the type of an entry of a folder, from its reparse data. That of a plain file if it is gone."""
    handle, store = opened.handle, opened.store
    if handle is None or store is None:
        return PosixType.FILE
    try:
        entry = store.open(OpenRequest((*handle.path, name), open_reparse_point=True, user=opened.tree.user))
    except OSError:
        return PosixType.FILE
    try:
        return type_in(entry.reparse_point())
    finally:
        entry.close()


def _enumeration(opened: Open, handle: Handle, flags: int, pattern: str) -> Enumeration:
    """Return the search of the open, and begin or restart it if needed.

    The first query begins the search. A new pattern is used only if the request restarts it. Indexes are not supported:
    as on NTFS, INDEX_SPECIFIED continues at the present position. Raises OBJECT_NAME_INVALID for a pattern that no name
    could match. [MS-FSA 2.1.5.6.3]"""
    current: Enumeration | None = opened.enumeration
    if current is not None and not flags & _REWIND:
        return current
    if not _FORBIDDEN.isdisjoint(pattern):
        raise StatusError(NtStatus.OBJECT_NAME_INVALID)
    if current is None:
        opened.on_close.append(lambda: _close(opened))
    else:
        current.close()
        pattern = pattern or current.pattern
    opened.enumeration = started = Enumeration(handle, pattern or "*", opened.store)
    if current is not None and not flags & _REOPEN and current.pattern == started.pattern:
        started.started = current.started
    return started


def _close(opened: Open) -> None:
    if opened.enumeration is not None:
        opened.enumeration.close()


def _visible(request: TreeRequest, opened: Open) -> Callable[[str], bool] | None:
    """Return the filter of access-based enumeration, or None to list all entries. [MS-SMB2 3.3.5.18]

    The filter returns whether the user may read the entry with a name. The entries "." and ".." are always listed."""
    share, session, folder = opened.tree.share, request.session, opened.handle
    backend = opened.store
    if not share.flags & ShareFlags.ACCESS_BASED_DIRECTORY_ENUM or folder is None or backend is None:
        return None
    caller = caller_of(session, opened.tree, request.server.accounts)
    user = caller.user
    path = folder.path
    present = share.backend if backend.is_snapshot else None

    def visible(name: str) -> bool:
        if name in (".", ".."):
            return True
        try:
            handle = backend.open(OpenRequest((*path, name), open_reparse_point=True, user=user))
        except OSError:
            return False
        try:
            if FILE_GENERIC_READ & ~tokens.maximal_access(handle.describe(), caller.token, user):
                return False
        finally:
            handle.close()
        return present is None or not FILE_GENERIC_READ & ~rights_now(caller, present, (*path, name))

    return visible


@dataclass(slots=True, eq=False)
class _Listing:
    """The part of an enumeration that one request lists."""

    packer: Packer | PosixPacker
    enumeration: Enumeration
    single: bool
    visible: Callable[[str], bool] | None
    hides: NameTest | None
    for_mac: Callable[[DirectoryEntry], tuple[str, ForMacs]] | None = None
    """Makes what a Mac gets for an entry. None: the client gets it as it is."""
    overflows: bool = False
    """Whether the next entry is larger than the whole buffer."""
    unread: FolderNotRead | None = None
    """The directory that has to be read before a search for one name can continue."""

    def go_on(self) -> bool:
        """List entries. Return True when the buffer is full or the search ends, False to continue in a later turn."""
        end = time.monotonic() + TURN
        while True:
            try:
                entries = self.enumeration.read(self._most())
            except FolderNotRead as unread:
                self.unread = unread
                return False
            if entries is None:
                return True
            visible = self.visible
            seen = entries if visible is None else [entry for entry in entries if visible(entry.name)]
            shown = seen if self.hides is None else self._with_hidden(seen, self.hides)
            added = self.packer.add(shown if self.for_mac is None else map(self.for_mac, shown))
            if added < len(seen):
                first = next(index for index, entry in enumerate(entries) if entry is seen[added])
                self.enumeration.unread(len(entries) - first)
                self.overflows = not self.packer.count
                return True
            if self.single and added:
                return True
            if time.monotonic() > end:
                return False

    def _most(self) -> int:
        """Return for how many entries to ask. Those that do not fit are looked at again for the next response."""
        if self.single:
            return 1
        if self.visible is not None or self.for_mac is not None:
            return _OPENED_PER_LOOK
        packer = self.packer
        return max(1, min(_ENTRIES_PER_LOOK, (packer.limit - len(packer.buffer)) // _USUAL_SIZE))

    @staticmethod
    def _with_hidden(entries: Sequence[DirectoryEntry], hides: NameTest) -> Sequence[DirectoryEntry]:
        return [DirectoryEntry(name, hidden(info) if hides(name) else info) for name, info in entries]

    def response(self) -> Response:
        """Return the response with the entries so far. Raises ``StatusError``, e.g. FILE_CLOSED if the open was closed
        meanwhile."""
        packer, enumeration = self.packer, self.enumeration
        if not packer.count:
            if enumeration.closed:
                raise StatusError(NtStatus.FILE_CLOSED)
            if self.overflows:
                # The entry is kept for a request with a larger buffer.
                raise StatusError(NtStatus.BUFFER_OVERFLOW)
            first, enumeration.started = not enumeration.started, True
            raise StatusError(NtStatus.NO_SUCH_FILE if first else NtStatus.NO_MORE_FILES)
        enumeration.started = True
        return Response([build_output_response(len(packer.buffer)), packer.buffer])

    async def finish(self, request: TreeRequest) -> Response:
        """List in several turns of the event loop, after earlier requests, and return the response."""
        enumeration = self.enumeration
        try:
            async with enumeration.turn:
                while not self.go_on():
                    unread, self.unread = self.unread, None
                    if unread is not None:
                        await waiting.over(partial(waiting.when_read, request, unread))
                    else:
                        await asyncio.sleep(0)
                return self.response()
        finally:
            enumeration.unfinished -= 1
