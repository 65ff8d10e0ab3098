"""Renames and hard links. [MS-FSA 2.1.5.15.11, 2.1.5.15.7]

Both may have to wait until another client closes a handle that it only caches. Every attempt either does the work or
raises ``MustWait``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from smb3server.access import decide
from smb3server.access.caller import Caller
from smb3server.backends.base import Backend, FileInfo, OpenRequest, Path
from smb3server.backends.name_rules import same_stream
from smb3server.backends.names import split_path
from smb3server.commands.info import waits
from smb3server.commands.info.posix import path_of as posix_path
from smb3server.dispatch.lookup import handle_of
from smb3server.dispatch.request import Pending, Response, TreeRequest
from smb3server.files import write_times
from smb3server.files.file import File, FileTable, conflicts
from smb3server.state import change_reports, file_events
from smb3server.state.caller import caller_of
from smb3server.state.objects import Open
from smb3server.wire import attributes as attr
from smb3server.wire.change_notify import Action, NotifyFilter
from smb3server.wire.create import Access, ShareAccess
from smb3server.wire.file_info import RenameFlags, RenameInformation
from smb3server.wire.header import HeaderFlags
from smb3server.wire.status import NtStatus, StatusError

OPENS_AT_ONCE = 128
"""Number of opens of which the path is read before other requests get their turn."""
_ADD_FILE = int(Access.WRITE_DATA)
"""For share modes FILE_ADD_SUBDIRECTORY is the same: both write."""
_SHARE_DATA = int(ShareAccess.READ | ShareAccess.WRITE)
_SHARE_ALL = int(ShareAccess.READ | ShareAccess.WRITE | ShareAccess.DELETE)


class _NameChange:
    """A request to rename a file or to link it."""

    def __init__(self, request: TreeRequest, opened: Open, info: RenameInformation) -> None:
        self.request = request
        self.opened = opened
        self.info = info
        self.replace = bool(info.flags & RenameFlags.REPLACE_IF_EXISTS)
        self.handle = handle_of(opened)
        self.caller: Caller = caller_of(opened.session, opened.tree, request.server.accounts)
        self.elsewhere: set[Open] = set()
        """Opens known not to be below the directory to rename."""
        if info.root_directory:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        if not info.name:
            raise StatusError(NtStatus.INVALID_PARAMETER)

    def start(self, done: Callable[[], Response]) -> Response | Pending:
        """Make the change now, or when handles that prevent it are closed. Answer with the result of ``done``."""

        def attempt() -> Response | Awaitable[None]:
            before = self.prepare()
            if before is not None:
                return before
            self._try()
            return done()

        return waits.change(self.request, self.opened, attempt)

    def prepare(self) -> Awaitable[None] | None:
        """Return work to be done before the attempt, in several turns, or None."""
        return None

    def _try(self) -> None:
        backend = self.backend
        backend.defer_reading = True
        try:
            self.attempt()
        finally:
            backend.defer_reading = False

    def attempt(self) -> None:
        """Make the change. Raises ``MustWait`` while handles prevent it that are only cached."""
        raise NotImplementedError

    def target_path(self) -> Path:
        """Return the new path from the root of the share. For SMB2 it is a full path (MS-FSCC 2.4.42.2).

        It may begin with a backslash (MS-FSA 2.1.5.15.6, 2.1.5.15.12): the command ``hardlink`` of smbclient sends
        one. Raises ``StatusError``."""
        if self.opened.posix:
            if path := posix_path(self.info.name):
                return path
            raise StatusError(NtStatus.OBJECT_NAME_INVALID)
        name = self.info.name.removeprefix("\\")
        if self.request.header.flags & HeaderFlags.DFS_OPERATIONS:
            name = self.opened.tree.share.below(name)
        try:
            path, stream, _ = split_path(name)
        except OSError:
            raise StatusError(NtStatus.OBJECT_NAME_INVALID) from None
        if stream:
            raise StatusError(NtStatus.OBJECT_NAME_INVALID)
        if not path:
            raise StatusError(NtStatus.OBJECT_NAME_INVALID)
        return path

    @property
    def backend(self) -> Backend:
        """The store of the file. Raises ``StatusError`` if there is none."""
        backend = self.opened.store
        if backend is None:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        return backend

    def check_folder(self, target: Path) -> None:
        """Open the target's folder for FILE_ADD_FILE or FILE_ADD_SUBDIRECTORY, as far as rights and share modes are
        concerned. A name in a different case is a new name, too. [MS-FSA 2.1.5.15.7, 2.1.5.15.12]

        Raises ``StatusError``, SHARING_VIOLATION and DELETE_PENDING, and ``MustWait`` if the opens in the way may be
        kept for caching only."""
        try:
            rights = self.caller.rights_in_folder(self.backend, target[:-1])
        except (FileNotFoundError, NotADirectoryError):
            raise StatusError(NtStatus.OBJECT_PATH_NOT_FOUND) from None
        decide.check_addition(rights, self.opened.is_directory)
        folder = self.files.find(self.backend.stat(target[:-1], self.caller.user).key)
        if folder is None:
            return
        if folder.delete_pending:
            raise StatusError(NtStatus.DELETE_PENDING)
        if any(map(self._is_in_the_way, folder.opens)):
            self.break_handles(folder)
            raise StatusError(NtStatus.SHARING_VIOLATION)

    def _is_in_the_way(self, opened: Open) -> bool:
        """Return whether an open of the target's folder excludes the one for the change.

        All opens of all clients count, and deletion is not shared, as on Windows up to Windows 11 and Server 2022
        (MS-FSA notes 183, 185; smb2.oplock.batch20, smb2.dirlease.rename_dst_parent). There is one exception: another
        client that watches the folder would otherwise keep everybody from renaming in it."""
        watches = opened.watcher is not None and opened.session is not self.opened.session
        return conflicts((opened,), _ADD_FILE, _SHARE_ALL if watches else _SHARE_DATA)

    def existing(self, target: Path) -> FileInfo | None:
        """Return information about the target, or None if it does not exist."""
        try:
            return self.backend.stat(target, self.caller.user)
        except FileNotFoundError:
            return None

    def check_replaceable(self, target: Path, info: FileInfo) -> None:
        """Check that the existing target may be replaced. Raises ``StatusError``, and ``MustWait`` if others have it
        open, possibly only for caching.

        Each open stream of it counts, and handle caching alone is broken, as on Windows
        (smb2.lease.v2_rename_target_overwrite). MS-FSA 2.1.5.15.12 would break it as for a new end of file. With
        POSIX_SEMANTICS opens that share deletion keep what is replaced. [MS-FSCC 2.4.43] Between POSIX opens this is
        always so."""
        if not self.replace:
            raise StatusError(NtStatus.OBJECT_NAME_COLLISION)
        rights, present = self.caller.rights_by_name(self.backend, target)
        attributes = present.attributes | info.attributes
        if self.opened.posix or self.info.flags & RenameFlags.IGNORE_READONLY_ATTRIBUTE:
            attributes &= ~attr.READONLY
        decide.check_replacement(rights, attributes)
        if self.opened.is_directory:
            # MS-FSA lets a directory replace a file. POSIX does not: the status is that of a directory as the target.
            raise StatusError(NtStatus.ACCESS_DENIED)
        if info.key == self.handle.key:
            # Another name of the same file: its opens keep the file.
            return
        streams = self.files.streams(info.key)
        self.break_handles(*streams)
        posix = self.info.flags & RenameFlags.POSIX_SEMANTICS
        opens = [other for file in streams for other in file.opens if not (self.opened.posix and other.posix)]
        if any(not (posix and other.share_access & ShareAccess.DELETE) for other in opens):
            raise StatusError(NtStatus.ACCESS_DENIED)

    @property
    def files(self) -> FileTable[Open]:
        """The open files of the server."""
        return self.request.server.file_table

    def break_handles(self, *files: File[Open]) -> None:
        """Break the handle caching of others. Raises ``MustWait`` if this needs an acknowledgment."""
        waits.break_handles(self.opened, files)


class Rename(_NameChange):
    """A request to rename a file, a directory or a stream."""

    _looked = False

    def prepare(self) -> Awaitable[None] | None:
        """Look for opens below a directory in several turns, once, if the server has many opens."""
        if self._looked or not self.opened.is_directory:
            return None
        self._looked = True
        if len(self.request.server.opens.by_id) <= OPENS_AT_ONCE:
            return None
        return self._look_around()

    async def _look_around(self) -> None:
        """Note, in several turns, the opens that are not below the directory. New opens are checked by the attempt."""
        prefix = self.handle.path
        for index, other in enumerate(list(self.request.server.opens.by_id.values())):
            if not self._is_below(other, prefix):
                self.elsewhere.add(other)
            if index % OPENS_AT_ONCE == OPENS_AT_ONCE - 1:
                await asyncio.sleep(0)

    def attempt(self) -> None:
        """Rename the file. [MS-FSA 2.1.5.15.11]"""
        opened, handle = self.opened, self.handle
        if self.info.name.startswith(":") and not opened.posix:
            self._rename_stream()
            return
        if handle.stream:
            # The new name of a stream begins with a colon. With a path the file itself is opened for the change.
            raise StatusError(NtStatus.SHARING_VIOLATION)
        target = self.target_path()
        old = handle.path
        if not old:
            raise StatusError(NtStatus.ACCESS_DENIED)
        file = opened.file
        if old == target:
            # Windows breaks handle caching before it compares the names (smb2.compound_async.rename_same_srcdst).
            if file is not None:
                self.break_handles(file)
            return
        if opened.file is not None and opened.file.delete_pending:
            raise StatusError(NtStatus.ACCESS_DENIED)
        recycling = opened.tree.share.recycling
        if recycling is not None and recycling.holds(old, self.backend.name_rules):
            raise StatusError(NtStatus.ACCESS_DENIED)
        self.check_folder(target)
        if file is not None:
            self.break_handles(file)
        moving = self._check_below() if opened.is_directory else []
        info = self.existing(target)
        if info is not None and not (info.key == handle.key and self.backend.name_rules.same(old, target)):
            self.check_replaceable(target, info)
            if info.key == handle.key and opened.posix:
                # Both are names of the same file, and both stay. [rename(2)]
                return
            if info.key == handle.key:
                # A rename onto another name of the same file would do nothing. [rename(2)]
                self._remove_name(target)
        handle.rename(target, self.replace, self.caller.user)
        write_times.set_archive(opened)
        self.request.server.opens.store_all(opened, sync=handle.flush)
        for other in moving:
            self.request.server.opens.store_all(other)
        if info is not None and self.replace and info.key != handle.key:
            change_reports.notify(opened, target, Action.REMOVED, NotifyFilter.FILE_NAME)
            if opened.tree.share.audit is not None:
                file_events.deleted(opened, target)
        change_reports.report_rename(opened, old, target, opened.is_directory)

    def _remove_name(self, target: Path) -> None:
        """Remove another name of the file."""
        other = self.backend.open(OpenRequest(target, open_reparse_point=True, user=self.caller.user))
        try:
            other.unlink()
        finally:
            other.close()

    def _check_below(self) -> list[Open]:
        """Check that there are no opens below the directory, and break the handle caching of those that there are.
        Return those that are moved along: by the share's ``rename_open_folders``, or a Mac's own. [MS-FSA 2.1.4.2]

        POSIX opens do not need the name of what they are of, and are in the way of no other POSIX open.
        All of them are asked at once. Raises ``StatusError``, and ``MustWait`` if this needs an acknowledgment."""
        table = self.request.server.opens.by_id
        prefix = self.handle.path
        below = [other for other in table.values() if other not in self.elsewhere and self._is_below(other, prefix)]
        posix = self.opened.posix
        in_the_way = [other for other in below if not (posix and other.posix)]
        if self.opened.tree.apple:
            # Programs of a Mac expect that a folder can be renamed while they use files in it.
            in_the_way = [other for other in below if other.session is not self.opened.session]
        if in_the_way:
            self.break_handles(*{other.file for other in in_the_way if other.file is not None})
            if not self.opened.tree.share.rules.rename_open_folders:
                raise StatusError(NtStatus.ACCESS_DENIED)
        return below

    def _is_below(self, other: Open, prefix: Path) -> bool:
        if other.store is None or other.handle is None or other.file is None:
            return False
        if other.store.whole is not self.backend.whole:
            return False
        try:
            path = other.handle.path
        except FileNotFoundError:
            return False
        return len(path) > len(prefix) and self.backend.name_rules.same(path[: len(prefix)], prefix)

    def _rename_stream(self) -> None:
        """Rename the stream of this open within its file. The new name is ``:name[:$DATA]``."""
        try:
            _, stream, _ = split_path("x" + self.info.name)
        except OSError:
            raise StatusError(NtStatus.OBJECT_NAME_INVALID) from None
        handle = self.handle
        if self.opened.is_directory and not handle.stream:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        if stream == handle.stream:
            return
        file = self.opened.file
        if file is not None and not same_stream(stream, handle.stream):
            other = file.table.find(handle.key, stream)
            if other is not None and other.opens:
                raise StatusError(NtStatus.ACCESS_DENIED if self.replace else NtStatus.OBJECT_NAME_COLLISION)
        old = handle.stream
        handle.rename_stream(stream, self.replace)
        self.request.server.opens.store_all(self.opened)
        change_reports.notify(self.opened, handle.path, Action.REMOVED_STREAM, NotifyFilter.STREAM_NAME, old)
        change_reports.notify(self.opened, handle.path, Action.ADDED_STREAM, NotifyFilter.STREAM_NAME, stream)


class Link(_NameChange):
    """A request for a hard link."""

    def attempt(self) -> None:
        """Link the file. [MS-FSA 2.1.5.15.7]"""
        opened, handle = self.opened, self.handle
        if not opened.tree.maximal_access & Access.WRITE_DATA:
            raise StatusError(NtStatus.ACCESS_DENIED)
        if opened.is_directory:
            raise StatusError(NtStatus.FILE_IS_A_DIRECTORY)
        if handle.stream:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        target = self.target_path()
        self.check_folder(target)
        rights = self.caller.rights_on(self.backend, handle.path, handle.describe())
        decide.check_link(rights)
        info = self.existing(target)
        if info is not None:
            if info.key == handle.key and self.replace:
                return
            self.check_replaceable(target, info)
        handle.link(target, self.replace, self.caller.user)
        if opened.tree.share.audit is not None:
            file_events.renamed(opened, handle.path, target, link=True)
        change_reports.report(opened, target, Action.ADDED, NotifyFilter.FILE_NAME)
