"""Opening a file or directory for CREATE (MS-FSA 2.1.5.1): existence, access, sharing, oplock breaks, overwriting.

``Opening.attempt`` runs from the start each time: when somebody's oplock has to be broken first, nothing is kept but
the request, and once the break is over the next attempt sees the world as it is then.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from smb3server.access import decide, masks, tokens
from smb3server.access import of_handle as security_info
from smb3server.access.caller import Caller
from smb3server.access.decide import Wanted
from smb3server.access.descriptor import unpack
from smb3server.backends.base import (
    Described,
    Disposition,
    FileInfo,
    FolderNotRead,
    Handle,
    Kind,
    OpenRequest,
    Path,
    PathNotFound,
    User,
)
from smb3server.dispatch.reserving import reserve
from smb3server.dispatch.waiting import MustWait
from smb3server.files import symlinks
from smb3server.files.caching import Lease
from smb3server.files.file import LEASE_STAT_ACCESS, STAT_ACCESS, File, FileTable
from smb3server.process.long_work import Steps
from smb3server.state import change_reports
from smb3server.state.caller import caller_of
from smb3server.state.durable import held_for_owner
from smb3server.state.objects import Open
from smb3server.wire import attributes as attr
from smb3server.wire import create_contexts as contexts
from smb3server.wire.change_notify import Action, NotifyFilter
from smb3server.wire.create import Access, CreateAction, CreateDisposition, CreateOptions, CreateRequest
from smb3server.wire.negotiate import Dialect
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.query_info import SecurityInformation
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.backends.base import Backend
    from smb3server.dispatch.request import TreeRequest

_SETTABLE = attr.SETTABLE & ~attr.SPARSE
"""A file is made sparse by an FSCTL, never by CREATE."""

_DISPOSITIONS = {
    CreateDisposition.SUPERSEDE: Disposition.OPEN_IF,
    CreateDisposition.OPEN: Disposition.OPEN,
    CreateDisposition.CREATE: Disposition.CREATE,
    CreateDisposition.OPEN_IF: Disposition.OPEN_IF,
    CreateDisposition.OVERWRITE: Disposition.OPEN,
    CreateDisposition.OVERWRITE_IF: Disposition.OPEN_IF,
}


class _DeletedMeanwhileError(Exception):
    """A disconnected open has given way to this one, and its end deleted the file: look for the name again."""


@dataclass(slots=True)
class Opening:
    """One CREATE on a disk share, its request checked as far as it can be without the file."""

    request: TreeRequest
    record: CreateRequest
    backend: Backend
    path: Path
    stream: str
    directory: bool | None
    """What options and name demand it to be."""
    user: User | None
    asked: dict[bytes, Any]
    """Decoded create contexts by name."""
    desired: int
    """Access with generic rights mapped, MAXIMUM_ALLOWED still in it."""
    first: bool = True
    info: FileInfo | None = None
    action: CreateAction = CreateAction.OPENED
    lease: Lease[Open] | None = None
    maximal: int = 0
    free: Callable[[], None] | None = field(default=None, init=False)
    """What is left to do of an overwriting, on a worker."""
    _descriptor: bytes | None = field(default=None, init=False)
    """Security descriptor for the case that the file is created."""
    _may_add: bool = field(default=False, init=False)
    """Its folder was asked, in this attempt."""
    _caller: Caller | None = field(default=None, init=False)

    wanted: Wanted = field(init=False)
    overwrites: bool = field(init=False)

    def __post_init__(self) -> None:
        record = self.record
        self.wanted = Wanted(self.desired, record.create_disposition, record.create_options, record.file_attributes)
        self.overwrites = self.wanted.overwrites

    def attempt(self) -> Open:
        """Return the open. Raises what ``waiting.Attempt`` may raise, ``StatusError`` and ``OSError``; nothing stays
        behind then."""
        if self.request.server.has_lost(self.request.tree.share):
            raise StatusError(NtStatus.NETWORK_NAME_DELETED)
        self.backend.defer_reading = True
        try:
            while True:
                try:
                    return self._attempt()
                except _DeletedMeanwhileError:
                    continue
        finally:
            self.backend.defer_reading = False

    def _attempt(self) -> Open:
        self._may_add = False
        try:
            handle = self._open_handle()
        except (FileNotFoundError, NotADirectoryError):
            link = symlinks.on_the_way(self.backend, self.path, self.user)
            if link is not None:
                raise link from None
            raise
        opened: Open | None = None
        try:
            opened = self._open(handle)
        finally:
            self.first = False
            if opened is None:
                try:
                    self.undo_creation(handle)
                finally:
                    handle.close()
        return opened

    def undo_creation(self, handle: Handle) -> None:
        """Remove what ``handle`` created: a file that was made for its stream, too. Raises ``OSError``."""
        if handle.created:
            handle.unlink()
        if not (handle.stream and handle.file_created):
            return
        base = self.backend.open(OpenRequest(handle.path, open_reparse_point=True, user=self.user))
        try:
            if base.key == handle.key:
                base.unlink()
        finally:
            base.close()

    # Finding or creating it

    def _backend_request(self, disposition: Disposition, read: bool, write: bool) -> OpenRequest:
        attributes = self.record.file_attributes & _SETTABLE
        if self.directory is not True:
            attributes |= attr.ARCHIVE
        return OpenRequest(
            self.path,
            self.stream,
            disposition,
            read,
            write,
            self.directory,
            bool(self.record.create_options & CreateOptions.OPEN_REPARSE_POINT),
            attributes,
            self._descriptor,
            [(name, value) for name, value, _ in self.asked.get(contexts.EA_BUFFER, ())],
            self.user,
            bool(self.record.create_options & CreateOptions.NO_INTERMEDIATE_BUFFERING),
        )

    def _open_handle(self) -> Handle:
        record = self.record
        write = bool(self.desired & masks.WRITES_DATA) or self.overwrites
        read = bool(self.desired & (Access.READ_DATA | Access.EXECUTE))
        if self.directory is True:
            read = write = False
        disposition = _DISPOSITIONS[CreateDisposition(record.create_disposition)]
        if disposition == Disposition.OPEN_IF:
            # The parent matters only if the file has to be created.
            try:
                return self._open_by(Disposition.OPEN, read, write)
            except PathNotFound:
                raise
            except FileNotFoundError:
                pass
        if disposition != Disposition.OPEN and not (self.stream and self._may_add_stream()):
            handle = self._create_in_parent(read, write)
            if handle is not None:
                return handle
        try:
            return self._open_by(disposition, read, write)
        except FileExistsError:
            raise StatusError(self._collision()) from None
        except (NotADirectoryError, IsADirectoryError):
            # It exists and is of the other kind.
            if disposition == Disposition.CREATE and self._exists():
                raise StatusError(self._collision()) from None
            raise

    def _open_by(self, disposition: Disposition, read: bool, write: bool) -> Handle:
        try:
            if self.desired & Access.MAXIMUM_ALLOWED and self.directory is not True:
                return self._open_as_much_as_possible(disposition)
            return self.backend.open(self._backend_request(disposition, read, write))
        except IsADirectoryError:
            # Data access asked of what turns out to be a directory, where the options allow one.
            if self.directory is False:
                raise
            return self.backend.open(self._backend_request(disposition, False, False))

    def _create_in_parent(self, read: bool, write: bool) -> Handle | None:
        """Create what is not there, in the very folder that allows it. None: something has the name by now, or a stream
        is to be created with its file."""
        if not self.path:
            return None
        try:
            parent = self.backend.open(OpenRequest(self.path[:-1], directory=True, user=self.user))
        except FileNotFoundError as error:
            raise PathNotFound(*error.args) from None
        except NotADirectoryError:
            raise StatusError(NtStatus.OBJECT_PATH_NOT_FOUND) from None
        try:
            found = parent.describe()
            if found.info.reparse_tag == attr.TAG_SYMLINK:
                raise symlinks.stopped(parent, self.path[-1:])
            directory = self.directory is True and not self.stream
            caller = self.caller
            try:
                decide.check_addition(caller.rights_in(found), directory)
            except StatusError:
                if self._exists():
                    raise StatusError(self._collision()) from None
                raise
            above = self._table.find(parent.key)
            if above is not None and above.delete_pending:
                raise StatusError(NtStatus.DELETE_PENDING)
            self._descriptor = self._new_descriptor(found.descriptor, directory)
            self._may_add = True
            if self.stream:
                return None
            if self.desired & Access.MAXIMUM_ALLOWED and not directory:
                read = write = True
            return self.backend.create_in(parent, self._backend_request(Disposition.CREATE, read, write))
        except FileExistsError:
            return None
        finally:
            parent.close()

    def _new_descriptor(self, parent: bytes | None, directory: bool) -> bytes | None:
        """Return the security descriptor of a new file in a folder with the descriptor ``parent``."""
        given, token = self.asked.get(contexts.SD_BUFFER), self.caller.token
        try:
            if given is not None:
                creator = unpack(given)
                decide.check_creator(token, creator.owner, creator.group, creator.sacl is not None)
            return tokens.new_descriptor(parent, given, directory, token, self.user)
        except ValueError:
            raise StatusError(NtStatus.INVALID_SECURITY_DESCR) from None

    def _may_add_stream(self) -> bool:
        """The stream's file is there, and lets the caller add one. False: it is not there."""
        follow = not self.record.create_options & CreateOptions.OPEN_REPARSE_POINT
        whole = OpenRequest(self.path, directory=self.directory, open_reparse_point=not follow, user=self.user)
        try:
            base = self.backend.open(whole)
        except PathNotFound:
            raise
        except FileNotFoundError:
            return False
        try:
            found = base.describe()
            info = found.info
            if info.reparse_tag == attr.TAG_SYMLINK and follow:
                raise symlinks.stopped(base, ())
            if self._base_pending(base):
                raise StatusError(NtStatus.DELETE_PENDING)
            decide.grant_new_stream(self.wanted, self._maximal_access(found), self._attributes_of(base, info))
        except StatusError as error:
            # Where the stream is there already (CREATE, or by now) none is added.
            if error.status != NtStatus.ACCESS_DENIED or not self._stream_exists(whole):
                raise
        finally:
            base.close()
        return True

    def _stream_exists(self, whole: OpenRequest) -> bool:
        try:
            self.backend.open(replace(whole, stream=self.stream)).close()
        except FileNotFoundError:
            return False
        return True

    @staticmethod
    def _attributes_of(handle: Handle, info: FileInfo) -> int:
        """Those that forbid something: a folder's do not."""
        return 0 if handle.kind == Kind.DIRECTORY else info.attributes

    def _exists(self) -> bool:
        try:
            self.backend.stat(self.path, self.user)
        except FolderNotRead:
            raise
        except OSError:
            return False
        return True

    @property
    def caller(self) -> Caller:
        if self._caller is None:
            session, tree = self.request.session, self.request.tree
            self._caller = caller_of(session, tree, self.request.server.accounts)
        return self._caller

    def _open_as_much_as_possible(self, disposition: Disposition) -> Handle:
        for read, write in ((True, True), (True, False)):
            try:
                return self.backend.open(self._backend_request(disposition, read, write))
            except (PermissionError, IsADirectoryError):
                continue
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
        return self.backend.open(self._backend_request(disposition, False, False))

    def _collision(self) -> NtStatus:
        """CREATE on what exists; what is about to be deleted says so."""
        try:
            file = self._table.find(self.backend.stat(self.path, self.user).key, self.stream)
        except FolderNotRead:
            raise
        except OSError:
            file = None
        if file is None or not file.delete_pending:
            return NtStatus.OBJECT_NAME_COLLISION
        self._wait_for_deletion(file)
        return NtStatus.DELETE_PENDING

    def _wait_for_deletion(self, file: File[Open]) -> None:
        """Raises ``MustWait`` while clients that keep a deleted file open for caching are asked to let go. Windows
        answers DELETE_PENDING, which reaches an application that has just removed the file and makes it anew."""
        if file.delete_pending and any(holder.breaking for holder in file.caching.others(self.own_lease())):
            raise MustWait(file.caching)

    @property
    def _table(self) -> FileTable[Open]:
        return self.request.server.file_table

    # Opening it

    def _open(self, handle: Handle) -> Open:
        found = handle.describe()
        self.info = info = found.info
        follow = not self.record.create_options & CreateOptions.OPEN_REPARSE_POINT
        if info.reparse_tag == attr.TAG_SYMLINK and follow and not handle.created:
            raise symlinks.stopped(handle, ())
        if self.request.server.opens.dormant:
            self.request.server.opens.close_gone(self._table.find(handle.key, self.stream))
        file = self._table.get(handle.key, self.stream)
        try:
            own = self.own_lease()
            if own is not None and own.caching is not file.caching:
                # One key names one file per client (3.3.5.9.8).
                raise StatusError(NtStatus.INVALID_PARAMETER)
            if handle.created:
                granted = self._grant_new(handle, found)
                self.action = CreateAction.CREATED
                if self._descriptor is not None and tokens.has_dacl(self._descriptor) and handle.file_created:
                    dacl = int(SecurityInformation.DACL)
                    accounts = self.request.server.accounts
                    security_info.to_host(handle, security_info.current_descriptor(handle), dacl, self.caller, accounts)
                if self.record.create_options & CreateOptions.NO_COMPRESSION and info.attributes & attr.COMPRESSED:
                    # Inherited from the directory.
                    handle.set_compressed(False)
                    self.info = handle.info()
            else:
                granted = self._check_existing(handle, found, file)
                self.action = CreateAction.OPENED
                if self.overwrites:
                    self._overwrite(handle)
            return self._register(handle, file, granted)
        finally:
            self._table.release(file)

    def may_read(self, handle: Handle) -> bool:
        """Does the user's maximal access to an open file include GENERIC_READ?"""
        wanted = masks.GENERIC_MAPPING[int(Access.GENERIC_READ)]
        caller = self.caller
        return not wanted & ~tokens.maximal_access(handle.describe(), caller.token, caller.user)

    def _maximal_access(self, found: Described) -> int:
        return self.caller.rights_on(self.backend, self.path, found)

    def _grant_new(self, handle: Handle, found: Described) -> int:
        """What is granted on what this CREATE made."""
        info = found.info
        self.maximal = self._maximal_access(found)
        if handle.file_created:
            if not self._may_add:
                # It was there when its folder would have been asked.
                raise _DeletedMeanwhileError
            return decide.grant_new_file(self.wanted, self.maximal, info.attributes)
        if self._base_pending(handle):
            raise StatusError(NtStatus.DELETE_PENDING)
        return decide.grant_new_stream(self.wanted, self.maximal, self._attributes_of(handle, info))

    def _check_existing(self, handle: Handle, found: Described, file: File[Open]) -> int:
        """MS-FSA 2.1.5.1.2; the granted access."""
        info = found.info
        if file.delete_pending or self._base_pending(handle):
            self._wait_for_deletion(file)
            raise StatusError(NtStatus.DELETE_PENDING)
        is_directory = handle.kind == Kind.DIRECTORY and not self.stream
        if is_directory and self.overwrites:
            raise StatusError(
                NtStatus.OBJECT_NAME_COLLISION if self.directory is True else NtStatus.FILE_IS_A_DIRECTORY
            )
        wanted = self.wanted
        attributes = 0 if is_directory else info.attributes
        decide.check_attributes(wanted, attributes)
        self.maximal = self._maximal_access(found)
        granted = decide.grant_existing(wanted, self.maximal, attributes)
        if wanted.deletes:
            handle.check_unlink()
        self._share(file, granted)
        if file.delete_pending or self._base_pending(handle):
            raise _DeletedMeanwhileError
        return granted

    def _base_pending(self, handle: Handle) -> bool:
        if not self.stream:
            return False
        base = self._table.find(handle.key)
        return base is not None and base.delete_pending

    def own_lease(self) -> Lease[Open] | None:
        wanted = self.wanted_lease
        if wanted is None:
            return None
        return self._table.leases.find(self.request.connection.client_guid, wanted.lease_key)

    @property
    def wanted_lease(self) -> contexts.Lease | contexts.LeaseV2 | None:
        """The lease asked for, if the oplock level says so and the dialect has leases (3.3.5.9.8, 3.3.5.9.11)."""
        if self.record.requested_oplock_level != OplockLevel.LEASE:
            return None
        wanted: contexts.Lease | contexts.LeaseV2 | None = self.asked.get(contexts.REQUEST_LEASE)
        return wanted

    def _parent_lease(self) -> tuple[bytes, bytes] | None:
        wanted = self.wanted_lease
        if not isinstance(wanted, contexts.LeaseV2) or not wanted.flags & contexts.LeaseFlags.PARENT_LEASE_KEY_SET:
            return None
        return self.request.connection.client_guid, wanted.parent_lease_key

    def _share(self, file: File[Open], granted: int) -> None:
        """Sharing violations and oplock breaks: MS-FSA 2.1.5.1.2.2, 2.1.4.12."""
        sharing = granted | (int(Access.WRITE_DATA) if self.overwrites else 0)
        if self.request.connection.dialect >= Dialect.SMB_3_0 and any(held_for_owner(entry) for entry in file.opens):
            # 3.3.5.9: nobody could be asked to let go of it.
            raise StatusError(NtStatus.FILE_NOT_AVAILABLE)
        violation = file.share_conflict(sharing, self.record.share_access)
        own = self.own_lease()
        if file.caching.holders:
            # Leases do not mind READ_CONTROL either.
            seen = violation or self.overwrites or granted & ~STAT_ACCESS
            spare = not (violation or self.overwrites or granted & ~LEASE_STAT_ACCESS)
            if seen and file.caching.break_for_open(own, self.overwrites, violation, self.first, spare):
                raise MustWait(file.caching)
            violation = violation and file.share_conflict(sharing, self.record.share_access)
        if violation:
            raise StatusError(NtStatus.SHARING_VIOLATION)

    def _overwrite(self, handle: Handle) -> None:
        """MS-FSA 2.1.5.1.2.1: contents and extended attributes go, attributes are set; other streams stay. Of a
        file that takes its time to cut all that is left to ``finish_overwriting``."""
        superseded = self.record.create_disposition == CreateDisposition.SUPERSEDE
        self.action = CreateAction.SUPERSEDED if superseded else CreateAction.OVERWRITTEN
        self.free = handle.shrinking(0)
        if self.free is None:
            self._overwrite_now(handle)

    def _overwrite_now(self, handle: Handle) -> None:
        handle.truncate(0)
        if not self.stream:
            attributes = self.record.file_attributes & _SETTABLE | attr.ARCHIVE
            handle.set_attributes(attributes)
            given = [(name, value) for name, value, _ in self.asked.get(contexts.EA_BUFFER, ())]
            if given or handle.info().ea_size:
                handle.set_eas(given, replace=True)
        self.info = handle.info()

    def finish_overwriting(self, opened: Open) -> None:
        """``free`` is done, on a worker. The open was registered before that: nobody who is refused for its sake sees
        the content go, and nobody else opens the file in between."""
        if opened.handle is None:
            raise StatusError(NtStatus.FILE_CLOSED)
        self._overwrite_now(opened.handle)
        self._report(opened)

    def reservation(self, opened: Open) -> Steps | None:
        """Reserve what AllocationSize asks for, of a new or overwritten file; None: that is done, if there is anything
        to do."""
        wanted = self.asked.get(contexts.ALLOCATION_SIZE)
        handle = opened.handle
        if wanted is None or self.action == CreateAction.OPENED or handle is None or handle.kind != Kind.FILE:
            return None
        if wanted.allocation_size <= handle.info().end_of_file:
            return None
        return reserve(self.request, opened, wanted.allocation_size)

    def _register(self, handle: Handle, file: File[Open], granted: int) -> Open:
        request, record = self.request, self.record
        session, tree = request.session, request.tree
        server = request.server
        opened = Open(
            server.opens.new_file_id(),
            session,
            tree,
            self.path,
            granted_access=granted,
            maximal_access=self.maximal,
            share_access=record.share_access,
            create_options=record.create_options,
            is_directory=handle.kind == Kind.DIRECTORY and not self.stream,
            delete_on_close=bool(record.create_options & CreateOptions.DELETE_ON_CLOSE),
        )
        opened.max_offset = self.backend.max_file_size
        opened.channel_sequence = request.header.status & 0xFFFF
        opened.use_handle(handle)
        opened.file = file
        opened.parent_lease = self._parent_lease()
        file.opens.append(opened)
        server.opens.add(opened)
        if self.free is None:
            self._report(opened)
        return opened

    def _report(self, opened: Open) -> None:
        """Change notification, and what leases on the directory promise (MS-FSA 2.1.4.1)."""
        if self.action == CreateAction.OPENED or not change_reports.somebody_listens(opened):
            return
        if self.stream:
            created = self.action == CreateAction.CREATED
            change_reports.report(
                opened,
                self.path,
                Action.ADDED_STREAM if created else Action.MODIFIED_STREAM,
                NotifyFilter.STREAM_NAME if created else NotifyFilter.STREAM_SIZE,
                self.stream,
            )
        elif self.action == CreateAction.CREATED:
            kind = NotifyFilter.DIR_NAME if opened.is_directory else NotifyFilter.FILE_NAME
            change_reports.report(opened, self.path, Action.ADDED, kind)
        else:
            changed = NotifyFilter.ATTRIBUTES | NotifyFilter.SIZE | NotifyFilter.LAST_WRITE
            change_reports.report(opened, self.path, Action.MODIFIED, changed)
