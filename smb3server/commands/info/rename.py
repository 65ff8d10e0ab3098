"""Rename and hard link (MS-FSA 2.1.5.15.11, 2.1.5.15.7).

Both may have to wait until another client gives up a handle it only caches: every attempt either does the work or
raises what to wait for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from smb3server.access import decide
from smb3server.access.caller import Caller
from smb3server.backends.names import split_path, upcase
from smb3server.dispatch.lookup import handle_of
from smb3server.dispatch.waiting import MustWait, retry
from smb3server.files import share_modes
from smb3server.state import change_reports
from smb3server.state.caller import caller_of
from smb3server.wire.change_notify import Action, NotifyFilter
from smb3server.wire.create import Access, ShareAccess
from smb3server.wire.file_info import RenameFlags, RenameInformation
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.backends.base import Backend, FileInfo, FileKey, Path
    from smb3server.dispatch.request import Pending, Response, TreeRequest
    from smb3server.files.file import File
    from smb3server.state.objects import Open

OPENS_AT_ONCE = 128
"""Opens whose path is asked for before others get their turn."""
_PARENT_ACCESS = int(Access.WRITE_DATA)
_PARENT_SHARE = int(ShareAccess.READ | ShareAccess.WRITE)


def same(one: Path, other: Path) -> bool:
    return len(one) == len(other) and all(upcase(a) == upcase(b) for a, b in zip(one, other, strict=True))


class _NameChange:
    """One request to give a file another name, or one more."""

    def __init__(self, request: TreeRequest, opened: Open, info: RenameInformation) -> None:
        self.request = request
        self.opened = opened
        self.info = info
        self.replace = bool(info.flags & RenameFlags.REPLACE_IF_EXISTS)
        self.handle = handle_of(opened)
        self.caller: Caller = caller_of(opened.session, opened.tree, request.server.accounts)
        self.elsewhere: set[Open] = set()
        """Opens that are known not to be below it."""
        if info.root_directory:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        if not info.name:
            raise StatusError(NtStatus.INVALID_PARAMETER)

    def start(self, done: Callable[[], Response]) -> Response | Pending:
        """Do it now, or once the handles in the way are closed."""

        def attempt() -> Response | Awaitable[None]:
            before = self.prepare()
            if before is not None:
                return before
            self._try()
            return done()

        return retry(self.request, attempt)

    def prepare(self) -> Awaitable[None] | None:
        """What is to be done before the attempt, in several turns."""
        return None

    def _try(self) -> None:
        if self.request.server.has_lost(self.opened.tree.share):
            raise StatusError(NtStatus.NETWORK_NAME_DELETED)
        if self.opened.handle is None:
            raise StatusError(NtStatus.FILE_CLOSED)
        backend = self.backend
        backend.defer_reading = True
        try:
            self.attempt()
        finally:
            backend.defer_reading = False

    def attempt(self) -> None:
        """Do it. Raises ``MustWait`` while handles are in the way that are only cached."""
        raise NotImplementedError

    def target_path(self) -> Path:
        """The new name, from the share's root; a full path as MS-FSCC 2.4.42.2 wants it for SMB2. It may begin with a
        backslash (MS-FSA 2.1.5.15.6, 2.1.5.15.12): smbclient's hardlink sends one."""
        try:
            path, stream, _ = split_path(self.info.name.removeprefix("\\"))
        except OSError:
            raise StatusError(NtStatus.OBJECT_NAME_INVALID) from None
        if stream:
            raise StatusError(NtStatus.OBJECT_NAME_INVALID)
        if not path:
            raise StatusError(NtStatus.OBJECT_NAME_INVALID)
        return path

    @property
    def backend(self) -> Backend:
        backend = self.opened.tree.share.backend
        if backend is None:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        return backend

    def check_folder(self, target: Path) -> None:
        """May the user give names in the target's folder? DestinationDirectory is opened for FILE_ADD_FILE or
        FILE_ADD_SUBDIRECTORY (MS-FSA 2.1.5.15.6, 2.1.5.15.12). A name in another case is a new name, too."""
        try:
            rights = self.caller.rights_in_folder(self.backend, target[:-1])
        except (FileNotFoundError, NotADirectoryError):
            raise StatusError(NtStatus.OBJECT_PATH_NOT_FOUND) from None
        decide.check_addition(rights, self.opened.is_directory)

    def existing(self, target: Path) -> FileInfo | None:
        try:
            return self.backend.stat(target, self.caller.user)
        except FileNotFoundError:
            return None

    def check_replaceable(self, target: Path, info: FileInfo) -> None:
        """The target exists: may it go? Raises ``MustWait`` if others have it open, maybe only for caching."""
        if not self.replace:
            raise StatusError(NtStatus.OBJECT_NAME_COLLISION)
        rights, found = self.caller.rights_by_name(self.backend, target)
        decide.check_replacement(rights, found.attributes | info.attributes)
        file = self._open_file(info.key)
        if file is None:
            return
        self.break_handles(file)
        if file.opens:
            raise StatusError(NtStatus.ACCESS_DENIED)

    def break_handles(self, file: File[Open]) -> None:
        """Ask others to close what they hold open only for caching. Raises ``MustWait`` if they have to."""
        if file.caching.break_handles(self.opened.caching):
            raise MustWait(file.caching)

    def _open_file(self, key: FileKey) -> File[Open] | None:
        file = self.opened.file
        return file.table.find(key) if file is not None else None

    def check_parent(self, target: Path) -> None:
        """The target's directory is opened for the change, sharing reads and writes but no deletion. Only the client's
        own opens count: an application that watches a folder does not keep other clients from renaming in it."""
        backend, file = self.opened.tree.share.backend, self.opened.file
        if backend is None or file is None:
            return
        parent = file.table.find(backend.stat(target[:-1], self.caller.user).key)
        if parent is None:
            return
        own = [entry for entry in parent.opens if entry.session is self.opened.session]
        if share_modes.conflicts(own, _PARENT_ACCESS, _PARENT_SHARE):
            raise StatusError(NtStatus.SHARING_VIOLATION)


class Rename(_NameChange):
    _looked = False

    def prepare(self) -> Awaitable[None] | None:
        if self._looked or not self.opened.is_directory:
            return None
        self._looked = True
        if len(self.request.server.opens.by_id) <= OPENS_AT_ONCE:
            return None
        return self._look_around()

    async def _look_around(self) -> None:
        """Look for opens below the directory in several turns. Those that come meanwhile are looked at in the end."""
        prefix = self.handle.path
        for index, other in enumerate(list(self.request.server.opens.by_id.values())):
            if not self._is_below(other, prefix):
                self.elsewhere.add(other)
            if index % OPENS_AT_ONCE == OPENS_AT_ONCE - 1:
                await asyncio.sleep(0)

    def attempt(self) -> None:
        """MS-FSA 2.1.5.15.11."""
        opened, handle = self.opened, self.handle
        if self.info.name.startswith(":"):
            self._rename_stream()
            return
        if handle.stream:
            # A stream's new name has a colon in front; with a path, the file itself is opened for the change.
            raise StatusError(NtStatus.SHARING_VIOLATION)
        target = self.target_path()
        old = handle.path
        if not old:
            raise StatusError(NtStatus.ACCESS_DENIED)
        if old == target:
            return
        if opened.is_directory:
            self._check_below()
        self.check_folder(target)
        file = opened.file
        if file is not None:
            self.break_handles(file)
        info = self.existing(target)
        if info is not None and not (info.key == handle.key and same(old, target)):
            self.check_replaceable(target, info)
        self.check_parent(target)
        handle.rename(target, self.replace, self.caller.user)
        self.request.server.opens.store_all(opened, sync=handle.flush)
        if info is not None and self.replace and info.key != handle.key:
            change_reports.report(opened, target, Action.REMOVED, NotifyFilter.FILE_NAME)
        change_reports.report_rename(opened, old, target, opened.is_directory)

    def _check_below(self) -> None:
        """A directory with anything open below it keeps its name; handles only cached are asked for first."""
        table = self.request.server.opens.by_id
        prefix = self.handle.path
        for other in [entry for entry in table.values() if entry not in self.elsewhere]:
            if not self._is_below(other, prefix):
                continue
            if other.file is not None:
                self.break_handles(other.file)
            raise StatusError(NtStatus.ACCESS_DENIED)

    def _is_below(self, other: Open, prefix: Path) -> bool:
        if other.tree.share is not self.opened.tree.share or other.handle is None or other.file is None:
            return False
        try:
            path = other.handle.path
        except FileNotFoundError:
            return False
        return len(path) > len(prefix) and same(path[: len(prefix)], prefix)

    def _rename_stream(self) -> None:
        """``:name[:$DATA]``: of the stream this open has, within its file."""
        try:
            _, stream, _ = split_path("x" + self.info.name)
        except OSError:
            raise StatusError(NtStatus.OBJECT_NAME_INVALID) from None
        handle = self.handle
        if self.opened.is_directory and not handle.stream:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        if upcase(stream) == upcase(handle.stream) and stream == handle.stream:
            return
        file = self.opened.file
        if file is not None and upcase(stream) != upcase(handle.stream):
            other = file.table.find(handle.key, stream)
            if other is not None and other.opens:
                raise StatusError(NtStatus.ACCESS_DENIED if self.replace else NtStatus.OBJECT_NAME_COLLISION)
        old = handle.stream
        handle.rename_stream(stream, self.replace)
        self.request.server.opens.store_all(self.opened)
        change_reports.report(self.opened, handle.path, Action.REMOVED_STREAM, NotifyFilter.STREAM_NAME, old)
        change_reports.report(self.opened, handle.path, Action.ADDED_STREAM, NotifyFilter.STREAM_NAME, stream)


class Link(_NameChange):
    def attempt(self) -> None:
        """MS-FSA 2.1.5.15.7."""
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
        change_reports.report(opened, target, Action.ADDED, NotifyFilter.FILE_NAME)
