"""Opens or creates a file or directory for CREATE: existence, access, sharing, oplock breaks, overwriting.

``Opening.attempt`` begins anew each time. If an oplock must be broken first, only the request is kept. The attempt
after the break sees the state of that moment. [MS-FSA 2.1.5.1]
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from smb3server.access import decide, masks, of_handle, posix_security, tokens
from smb3server.access.decide import Wanted
from smb3server.access.descriptor import unpack
from smb3server.backends.base import (
    FILE_MODE_BITS,
    FOLDER_MODE_BITS,
    Backend,
    Described,
    Disposition,
    FileInfo,
    FileKey,
    FolderNotRead,
    Handle,
    Kind,
    OpenedFile,
    OpenRequest,
    Path,
    PathNotFound,
)
from smb3server.backends.name_rules import stream_key
from smb3server.commands.create import sharing
from smb3server.commands.create.contexts import CreateContexts, Opener
from smb3server.files import symlinks
from smb3server.files.caching import Lease
from smb3server.files.file import File
from smb3server.files.write_times import DelayedWriteTime, changing
from smb3server.state import audit, change_reports, deletions, file_events
from smb3server.state.objects import Open
from smb3server.state.server_state import ServerState
from smb3server.wire import attributes as attr
from smb3server.wire import create_contexts as wire
from smb3server.wire.change_notify import Action, NotifyFilter
from smb3server.wire.create import Access, CreateAction, CreateDisposition, CreateOptions, CreateRequest
from smb3server.wire.file_info import NEED_EA
from smb3server.wire.negotiate import Dialect
from smb3server.wire.posix import NO_MODE
from smb3server.wire.query_info import SecurityInformation
from smb3server.wire.status import NtStatus, StatusError

_DISPOSITIONS: dict[int, Disposition] = {
    CreateDisposition.SUPERSEDE: Disposition.OPEN_IF,
    CreateDisposition.OPEN: Disposition.OPEN,
    CreateDisposition.CREATE: Disposition.CREATE,
    CreateDisposition.OPEN_IF: Disposition.OPEN_IF,
    CreateDisposition.OVERWRITE: Disposition.OPEN,
    CreateDisposition.OVERWRITE_IF: Disposition.OPEN_IF,
}
# A name of a module costs less to look up than a member of an enumeration.
_OPEN, _CREATE, _OPEN_IF = Disposition.OPEN, Disposition.CREATE, Disposition.OPEN_IF
_OPENED, _CREATED = CreateAction.OPENED, CreateAction.CREATED
_FOLDER = Kind.DIRECTORY
_SMB_3_0 = int(Dialect.SMB_3_0)
_REPARSE_POINT, _UNBUFFERED = int(CreateOptions.OPEN_REPARSE_POINT), int(CreateOptions.NO_INTERMEDIATE_BUFFERING)
_MAXIMUM_ALLOWED, _READS = int(Access.MAXIMUM_ALLOWED), int(Access.READ_DATA | Access.EXECUTE)
_DACL = int(SecurityInformation.DACL)
_ARCHIVE_OR_FOLDER = attr.ARCHIVE | attr.DIRECTORY
_DELETE = int(Access.DELETE)
_DELETE_ON_CLOSE = int(CreateOptions.DELETE_ON_CLOSE)
_SETTABLE = attr.SETTABLE & ~attr.SPARSE
"""The attributes that a CREATE may set."""


def _finish(shrink: Callable[[], None] | None, removing: Iterator[None] | None) -> None:
    """Do what is left of an overwriting."""
    if shrink is not None:
        shrink()
    for _ in removing or ():
        pass


class _DeletedMeanwhileError(Exception):
    """A disconnected open has given way to this one, and closing it deleted the file. Look the name up again."""


@dataclass(slots=True)
class Opening:
    """One CREATE on a disk share. Its request has passed the checks that need no file (``checks``)."""

    opener: Opener
    body: CreateRequest
    contexts: CreateContexts
    wanted: Wanted
    path: Path
    stream: str
    directory: bool | None
    """As ``checks.Checked.directory``."""
    backend: Backend
    server: ServerState
    lease: wire.Lease | wire.LeaseV2 | None
    """The requested lease, if the requested oplock level is that of a lease. [MS-SMB2 3.3.5.9.8, 3.3.5.9.11]"""

    first: bool = field(default=True, init=False)
    """Whether the request has not waited yet."""
    info: FileInfo | None = field(default=None, init=False)
    """The metadata of the file for the response."""
    path_on_disk: Path | None = field(default=None, init=False)
    """None if opening the file has not shown it."""
    settled: bool = field(default=False, init=False)
    """Whether the host's rights to the file were set after ``info`` was found, which has changed its change time."""
    action: CreateAction = field(default=_OPENED, init=False)
    free: Callable[[], None] | None = field(default=None, init=False)
    """The rest of an overwriting, to be called on a worker thread; None if there is none."""
    removed: list[str] = field(default_factory=list, init=False)
    """The streams that overwriting has removed."""
    _stored: bytes | None = field(default=None, init=False)
    """The stored security descriptor of the file."""
    _maximal: int = field(default=0, init=False)
    _descriptor: bytes | None = field(default=None, init=False)
    """The security descriptor for a new file."""
    _has_dacl: bool = field(default=False, init=False)
    """Whether ``_descriptor`` has a DACL."""
    _numbers: int = field(default=0, init=False)
    """The parts of the request's security descriptor, if they are the numbers of a POSIX open (``posix_security``)."""
    _may_add: bool = field(default=False, init=False)
    """Whether this attempt has checked the rights on the file's folder."""

    @property
    def _follow(self) -> bool:
        return not self.body.create_options & _REPARSE_POINT

    def attempt(self) -> Open:
        """Return the open, or leave nothing behind. Raises as ``waiting.Attempt``, and ``StatusError``, ``OSError``."""
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
            handle, found, _, self.path_on_disk = self._find_or_create()
        except PermissionError:
            self._audit_refusal_of_host()
            raise
        except OSError as error:
            if not (isinstance(error, (FileNotFoundError, NotADirectoryError)) or self._met_link(error)):
                raise
            link = symlinks.on_the_way(self.backend, self.path, self.opener.caller.user)
            if link is not None:
                raise link from None
            raise
        opened: Open | None = None
        try:
            opened = self._open(handle, found)
        finally:
            self.first = False
            if opened is None:
                try:
                    self.undo_creation(handle)
                finally:
                    handle.close()
        return opened

    def _met_link(self, error: OSError) -> bool:
        """Return whether an error says that a symlink of the host is on the way of a POSIX open."""
        return self.backend.posix and error.errno == errno.ELOOP

    @property
    def _mode(self) -> int | None:
        """The permission bits for a new file that a POSIX open asks for. None means those of the share."""
        mode = self.contexts.posix
        if mode is None or mode == NO_MODE:
            return None
        return mode & (FOLDER_MODE_BITS if self.directory is True else FILE_MODE_BITS)

    def undo_creation(self, handle: Handle) -> None:
        """Remove what ``handle`` created, including a file that was made for its stream. Raises ``OSError``.

        Do nothing if another node may be serving the share by now: its clients may have opened and written the file."""
        if self.server.opens.has_lost(self.opener.tree.share):
            return
        if handle.created:
            handle.unlink()
        if not (handle.stream and handle.file_created):
            return
        base = self.backend.open(OpenRequest(handle.path, open_reparse_point=True, user=self.opener.caller.user))
        try:
            if base.key == handle.key:
                base.unlink()
        finally:
            base.close()

    # What SACLs ask for

    def audit_success(self, opened: Open) -> None:
        """Record the access that was granted, if the file's SACL asks for it."""
        operation = "create" if self.action is _CREATED else "open"
        name, token = (self.path, self.stream), self.opener.caller.token
        file_events.by_sacl(self.opener.tree, name, self._stored, token, opened.granted_access, 0, operation)

    def _audit_refusal(self, path: Path, stream: str, descriptor: bytes | None, access: int, status: int) -> None:
        """Record the access that was refused, if the SACL of the file or folder asks for it."""
        file_events.by_sacl(self.opener.tree, (path, stream), descriptor, self.opener.caller.token, access, status)

    def _audit_refusal_of_host(self) -> None:
        """Record what the host refuses to the user. The server reads the SACL with its own rights."""
        share = self.opener.tree.share.audit
        if share is None or audit.SACL not in share.kinds:
            return
        try:
            handle = self.backend.open(OpenRequest(self.path, open_reparse_point=True))
        except FolderNotRead:
            # The attempt is repeated, and the host refuses again.
            raise
        except OSError:
            # There is no such file: the host has refused to make it.
            return
        try:
            descriptor = handle.security_descriptor()
        finally:
            handle.close()
        access = self.wanted.access | self.wanted.implied
        self._audit_refusal(self.path, self.stream, descriptor, access, NtStatus.ACCESS_DENIED)

    # Finding or creating it

    def _backend_request(
        self, disposition: Disposition, read: bool, write: bool, or_folder: bool = False
    ) -> OpenRequest:
        attributes = self.body.file_attributes & _SETTABLE
        if self.directory is not True:
            attributes |= attr.ARCHIVE
        options = self.body.create_options
        return OpenRequest(
            self.path,
            self.stream,
            disposition,
            read,
            write,
            self.directory,
            bool(options & _REPARSE_POINT),
            attributes,
            self._descriptor,
            self.contexts.eas or (),
            self.opener.caller.user,
            or_folder,
            bool(options & _UNBUFFERED),
            self.opener.tree.apple != 0,
            self._mode if self.contexts.posix is not None else None,
        )

    def _find_or_create(self) -> OpenedFile:
        """Open the file as the disposition demands. Raises ``StatusError``, ``OSError``."""
        access = self.wanted.access
        write = bool(access & masks.WRITES_DATA) or self.wanted.overwrites
        read = bool(access & _READS)
        if self.directory is True:
            read = write = False
        disposition = _DISPOSITIONS[self.body.create_disposition]
        seen: OpenedFile | None = None
        if disposition is _OPEN_IF:
            # The folder matters only if the file has to be created.
            seen = self._open_present(read, write, or_folder=not self.stream)
            if seen is not None and not seen.is_folder:
                return seen
        if disposition is not _OPEN and not (self.stream and self._may_add_stream()):
            try:
                seen = self._create_in_folder(seen, read, write)
            except StatusError:
                # The caller may not add a file, but may still open an existing one whose name differs in case.
                seen = None
                if disposition is _OPEN_IF and not self.stream:
                    seen = self._open_present(read, write)
                if seen is None:
                    raise
            if seen is not None:
                return seen
        try:
            return self._open_by(disposition, read, write)
        except FileExistsError:
            raise StatusError(self._collision()) from None
        except (NotADirectoryError, IsADirectoryError):
            # The file exists, and is a directory instead of a file or the other way round.
            if disposition is _CREATE and self._key() is not None:
                raise StatusError(self._collision()) from None
            raise

    def _open_present(self, read: bool, write: bool, or_folder: bool = False) -> OpenedFile | None:
        """Open an existing file. None means that it does not exist.

        With ``or_folder`` its folder is opened in that case, and a name that differs in case need not be found."""
        try:
            return self._open_by(_OPEN, read, write, or_folder)
        except PathNotFound:
            raise
        except FileNotFoundError:
            return None

    def _open_by(self, disposition: Disposition, read: bool, write: bool, or_folder: bool = False) -> OpenedFile:
        """Open the file with the requested access to its data, or without any if it turns out to be a directory."""
        try:
            if self.wanted.access & _MAXIMUM_ALLOWED and self.directory is not True:
                return self._open_as_much_as_possible(disposition, or_folder)
            return self.backend.open_described(self._backend_request(disposition, read, write, or_folder))
        except IsADirectoryError:
            # Access to data was requested, but the name leads to a directory, which the options allow.
            if self.directory is False:
                raise
            return self.backend.open_described(self._backend_request(disposition, False, False))

    def _open_as_much_as_possible(self, disposition: Disposition, or_folder: bool) -> OpenedFile:
        """Open the file for reading and writing, else for reading, else for its metadata (MAXIMUM_ALLOWED)."""
        for read, write in ((True, True), (True, False)):
            try:
                return self.backend.open_described(self._backend_request(disposition, read, write, or_folder))
            except (PermissionError, IsADirectoryError):
                continue
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
        return self.backend.open_described(self._backend_request(disposition, False, False, or_folder))

    def _create_in_folder(self, seen: OpenedFile | None, read: bool, write: bool) -> OpenedFile | None:
        """Create the file in the same folder whose rights are checked for it.

        None means that the name was taken meanwhile, or that a stream is to be created together with its file.
        ``seen``: the folder, if it is open already. This method closes it."""
        if not self.path:
            return None
        folder, found, _, _ = seen or self._open_folder()
        try:
            if found.info.reparse_tag == attr.TAG_SYMLINK:
                raise symlinks.stopped(folder, self.path[-1:], self.backend.posix)
            return self._add_to(folder, found, read, write)
        except FileExistsError:
            return None
        finally:
            folder.close()

    def _open_folder(self) -> OpenedFile:
        """Open the folder of the file. Raises ``PathNotFound``, and OBJECT_PATH_NOT_FOUND if it is no directory."""
        request = OpenRequest(self.path[:-1], directory=True, user=self.opener.caller.user)
        try:
            return self.backend.open_described(request)
        except FileNotFoundError as error:
            raise PathNotFound(*error.args) from None
        except NotADirectoryError:
            link = symlinks.on_the_way(self.backend, self.path, self.opener.caller.user)
            raise link or StatusError(NtStatus.OBJECT_PATH_NOT_FOUND) from None

    def _add_to(self, folder: Handle, found: Described, read: bool, write: bool) -> OpenedFile | None:
        """Check the rights on the folder, and create the file there. [MS-FSA 2.1.5.1.1]

        None means that only the rights were checked: a stream is to be created together with its file."""
        caller = self.opener.caller
        directory = self.directory is True and not self.stream
        if self.wanted.access & _MAXIMUM_ALLOWED and not directory:
            read = write = True
        request = self._backend_request(_CREATE, read, write)
        try:
            decide.check_addition(caller.rights_in(found), directory)
        except StatusError as error:
            added = Access.APPEND_DATA if directory else Access.WRITE_DATA
            self._audit_refusal(self.path[:-1], "", found.descriptor, added, error.status)
            if self.body.create_disposition == CreateDisposition.CREATE and self._key() is not None:
                raise StatusError(self._collision()) from None
            raise
        above = self.server.file_table.find(folder.key)
        if above is not None and above.delete_pending:
            raise StatusError(NtStatus.DELETE_PENDING)
        given = self.contexts.security_descriptor
        try:
            if given is not None and self.backend.posix:
                self._numbers = posix_security.numbers_in(given)
                given = given if not self._numbers else None
            if given is not None:
                self._check_creator(given)
            # The mode of a POSIX open says what a folder's descriptor would pass on otherwise.
            passed_on = found.descriptor if request.mode is None else None
            descriptor = tokens.new_descriptor(passed_on, given, directory, caller.token, caller.user)
        except ValueError:
            raise StatusError(NtStatus.INVALID_SECURITY_DESCR) from None
        request.security_descriptor = self._descriptor = descriptor
        self._has_dacl = descriptor is not None and tokens.has_dacl(descriptor)
        self._may_add = True
        return None if self.stream else self.backend.create_in(folder, request)

    def _check_creator(self, given: bytes) -> None:
        """Refuse a security descriptor that the caller may not give to a new file. Raises ``StatusError``, or
        ``ValueError`` for a malformed one."""
        creator = unpack(given)
        decide.check_creator(self.opener.caller.token, creator.owner, creator.group, creator.sacl is not None)

    def _may_add_stream(self) -> bool:
        """Check whether the caller may add a stream. Raises ``StatusError`` if not. False: the file does not exist."""
        whole = OpenRequest(
            self.path, directory=self.directory, open_reparse_point=not self._follow, user=self.opener.caller.user
        )
        try:
            base, found, _, _ = self.backend.open_described(whole)
        except PathNotFound:
            raise
        except FileNotFoundError:
            return False
        try:
            if found.info.reparse_tag == attr.TAG_SYMLINK and self._follow:
                raise symlinks.stopped(base, (), self.backend.posix)
            if self._base_pending(base):
                raise StatusError(NtStatus.DELETE_PENDING)
            decide.grant_new_stream(self.wanted, self._rights_on(found), self._attributes_of(base, found.info))
        except StatusError as error:
            # If the stream exists already (for CREATE, or because it was created meanwhile), no right to add one is
            # needed.
            if error.status != NtStatus.ACCESS_DENIED or not self._stream_exists(whole):
                raise
        finally:
            base.close()
        return True

    def _stream_exists(self, whole: OpenRequest) -> bool:
        """Return whether the stream exists. ``whole``: the request that opens its file."""
        try:
            self.backend.open(replace(whole, stream=self.stream)).close()
        except FileNotFoundError:
            return False
        return True

    @staticmethod
    def _attributes_of(handle: Handle, info: FileInfo) -> int:
        """Return the attributes that restrict access. Those of a folder do not."""
        return 0 if handle.kind is _FOLDER else info.attributes

    def _key(self) -> FileKey | None:
        """Return the key of what has the name. None means that nothing has it."""
        try:
            return self.backend.stat(self.path, self.opener.caller.user).key
        except FolderNotRead:
            raise
        except OSError:
            return None

    def _collision(self) -> NtStatus:
        """Return the status for creating what exists: DELETE_PENDING if it is about to be deleted.

        Raises ``StatusError`` for a symbolic link that the request does not open itself. [MS-SMB2 3.3.5.9]"""
        self._check_link()
        key = self._key()
        file = self.server.file_table.find(key, self.stream) if key is not None else None
        if file is None or not deletions.is_pending(file, self.backend, self.path):
            return NtStatus.OBJECT_NAME_COLLISION
        sharing.wait_for_deletion(file, self._own_lease())
        return NtStatus.DELETE_PENDING

    def _check_link(self) -> None:
        """Stop at a symbolic link that has the name, if links are to be followed."""
        if not self._follow or self.stream:
            return
        try:
            handle = self.backend.open(OpenRequest(self.path, open_reparse_point=True, user=self.opener.caller.user))
        except FolderNotRead:
            raise
        except OSError:
            return
        try:
            if handle.info().reparse_tag == attr.TAG_SYMLINK:
                raise symlinks.stopped(handle, (), self.backend.posix)
        finally:
            handle.close()

    # Opening it

    def _open(self, handle: Handle, found: Described) -> Open:
        """Make an open of a handle. ``found``: the file as it was when the handle was made."""
        self.info = info = found.info
        self._stored = found.descriptor
        if info.reparse_tag == attr.TAG_SYMLINK and self._follow and not handle.created:
            raise symlinks.stopped(handle, (), self.backend.posix)
        if self.server.opens.dormant:
            self.server.opens.close_gone(self.server.file_table.find(handle.key, self.stream))
        file = self.server.file_table.get(handle.key, self.stream)
        try:
            own = self._own_lease() if self.lease is not None else None
            if own is not None and own.caching is not file.caching:
                # One key names one file per client (3.3.5.9.8).
                raise StatusError(NtStatus.INVALID_PARAMETER)
            if handle.created:
                granted = self._grant_new(handle, found)
                if self.stream and file.share_conflict(granted, self.body.share_access):
                    raise StatusError(NtStatus.SHARING_VIOLATION)
                self.action = _CREATED
                self._settle_new(handle, info)
            else:
                granted = self._check_existing(handle, found, file, own)
                self.action = _OPENED
                if self.wanted.overwrites:
                    self._overwrite(handle)
            return self._register(handle, file, granted)
        finally:
            if not file.opens:
                self.server.file_table.release(file)

    def may_read(self, handle: Handle) -> bool:
        """Return whether the user's maximal access to an open file includes GENERIC_READ."""
        wanted = masks.FILE_GENERIC_READ
        caller = self.opener.caller
        return not wanted & ~tokens.maximal_access(handle.describe(), caller.token, caller.user)

    def _rights_on(self, found: Described) -> int:
        """Return the user's maximal access to the file."""
        return self.opener.caller.rights_on(self.backend, self.path, found)

    def _grant_new(self, handle: Handle, found: Described) -> int:
        """Return the access granted to a file or stream that this CREATE made."""
        self._maximal = self._rights_on(found)
        if handle.file_created:
            if not self._may_add:
                # It existed at the moment when the rights of its folder would have been checked.
                raise _DeletedMeanwhileError
            granted = decide.grant_new_file(self.wanted, self._maximal, found.info.attributes)
            if self.wanted.deletes:
                deletions.prepare_to_keep(self.opener.tree, handle, self.opener.caller)
            return granted
        if self._base_pending(handle):
            raise StatusError(NtStatus.DELETE_PENDING)
        return decide.grant_new_stream(self.wanted, self._maximal, self._attributes_of(handle, found.info))

    def _settle_new(self, handle: Handle, info: FileInfo) -> None:
        """Apply the descriptor of a new file to the host's rights, and remove inherited compression if requested."""
        given = self.contexts.security_descriptor
        if self._numbers and given is not None:
            posix_security.change(handle, self._numbers, memoryview(given), self.opener.caller)
            self.info, self.settled = handle.info(), True
        if self._has_dacl and handle.file_created:
            descriptor = of_handle.current_descriptor(handle)
            of_handle.to_host(handle, descriptor, _DACL, self.opener.caller, self.server.accounts)
            self.settled = True
        if self.body.create_options & CreateOptions.NO_COMPRESSION and info.attributes & attr.COMPRESSED:
            # The file has inherited it from the directory.
            handle.set_compressed(False)
            self.info = handle.info()

    def _check_existing(self, handle: Handle, found: Described, file: File[Open], own: Lease[Open] | None) -> int:
        """Check rights, share modes and caching rights of others. Return the granted access. [MS-FSA 2.1.5.1.2]"""
        if (file.delete_pending or file.link_deletions or self.stream) and self._is_pending(file, handle):
            sharing.wait_for_deletion(file, own)
            raise StatusError(NtStatus.DELETE_PENDING)
        wanted = self.wanted
        overwrites = wanted.overwrites
        is_directory = handle.kind is _FOLDER and not self.stream
        if is_directory and overwrites:
            raise StatusError(
                NtStatus.OBJECT_NAME_COLLISION if self.directory is True else NtStatus.FILE_IS_A_DIRECTORY
            )
        # To POSIX the attribute READONLY is no obstacle: it has the mode.
        attributes = 0 if is_directory or self.backend.posix else found.info.attributes
        self._maximal = self.opener.caller.rights_on(self.backend, self.path, found)
        if self.backend.retains:
            self._maximal &= ~decide.refused_on(handle.retained())
        try:
            granted = decide.grant_existing(wanted, self._maximal, attributes)
        except StatusError as error:
            self._audit_refusal(self.path, self.stream, found.descriptor, wanted.access | wanted.implied, error.status)
            raise
        if found.info.ea_size and self.body.create_options & CreateOptions.NO_EA_KNOWLEDGE:
            self._check_needed_eas(handle)
        if wanted.deletes:
            handle.check_unlink()
            deletions.prepare_to_keep(self.opener.tree, handle, self.opener.caller)
        if file.opens and self.opener.dialect >= _SMB_3_0 and any(opened.is_held_for_owner for opened in file.opens):
            # 3.3.5.9: no client could be asked to release it.
            raise StatusError(NtStatus.FILE_NOT_AVAILABLE)
        opens = len(file.opens)
        if opens or file.caching.holders or self.stream or granted & _DELETE:
            # Otherwise nobody has it open. Who may delete it has to look at its streams.
            sharing.admit(file, sharing.NewOpen(granted, self.body.share_access, overwrites), own, self.first)
            if len(file.opens) != opens and self._is_gone(file, handle):
                raise _DeletedMeanwhileError
        return granted

    def _check_needed_eas(self, handle: Handle) -> None:
        """Raise ACCESS_DENIED if the file has an EA that whoever opens it must know. [MS-FSA 2.1.5.1.2]"""
        if any(ea.flags & NEED_EA for ea in handle.eas()):
            raise StatusError(NtStatus.ACCESS_DENIED)

    def _base_pending(self, handle: Handle) -> bool:
        """Return whether the file of this stream is about to be deleted."""
        return self._is_doomed(self.server.file_table.find(handle.key), handle)

    def _is_pending(self, file: File[Open], handle: Handle) -> bool:
        """Return whether the file, or the stream, is about to be deleted."""
        return self._is_doomed(file, handle) or bool(self.stream and self._base_pending(handle))

    def _is_doomed(self, file: File[Open] | None, handle: Handle) -> bool:
        if file is None or not (file.delete_pending or file.link_deletions):
            return False
        return file.delete_pending or deletions.is_pending(file, self.backend, handle.path)

    def _is_gone(self, file: File[Open], handle: Handle) -> bool:
        """Return whether the file, the stream or the name was deleted with an open that has given way to this one."""
        try:
            _ = handle.path
        except FileNotFoundError:
            return True
        return self._is_pending(file, handle)

    def _own_lease(self) -> Lease[Open] | None:
        """Return the existing lease with the key that the request names."""
        if self.lease is None:
            return None
        return self.server.file_table.leases.find(self.opener.client_guid, self.lease.lease_key)

    def _overwrite(self, handle: Handle) -> None:
        """Overwrite the file. If cutting it takes long, ``free`` and ``finish_overwriting`` are left to do."""
        superseded = self.body.create_disposition == CreateDisposition.SUPERSEDE
        self.action = CreateAction.SUPERSEDED if superseded else CreateAction.OVERWRITTEN
        file = self.server.file_table.find(handle.key, handle.stream)
        if file is not None:
            file.caching.end_loans("the file is overwritten")
        shrink = handle.shrinking(0)
        steps = None
        if not handle.stream:
            # Streams that somebody has open stay, as their file does.
            opened = {stream_key(file.stream) for file in self.server.file_table.streams(handle.key) if file.opens}
            steps = handle.removing_streams(opened, self.removed)
        if shrink is None and steps is None:
            self._replace(handle)
        else:
            self.free = partial(_finish, shrink, steps)

    def finish_overwriting(self, opened: Open) -> None:
        """Complete an overwriting after a worker thread has called ``free``. The open was registered before that: a
        request that fails a check does not destroy the content, and no other open comes in between."""
        if opened.handle is None:
            raise StatusError(NtStatus.FILE_CLOSED)
        self._replace(opened.handle)
        if change_reports.somebody_listens(opened):
            self._report(opened)

    def _replace(self, handle: Handle) -> None:
        """Truncate the file or stream to 0 bytes, and add the attributes of the request. A superseded file has no
        others. Raises ``OSError``. [MS-FSA 2.1.5.1.2.1]"""
        handle.truncate(0)
        # A stream has no attributes of its own.
        if not handle.stream:
            before = handle.info()
            kept = 0 if self.action is CreateAction.SUPERSEDED else before.attributes & attr.SETTABLE
            handle.set_attributes(self.body.file_attributes & _SETTABLE | attr.ARCHIVE | kept)
            eas = self.contexts.eas or ()
            if eas or before.ea_size:
                handle.set_eas(eas, replace=True)
        self.info = handle.info()

    def _register(self, handle: Handle, file: File[Open], granted: int) -> Open:
        """Make the open, enter it into the tables and report what was created or overwritten."""
        body, opener = self.body, self.opener
        opened = Open(
            self.server.opens.new_file_id(),
            opener.session,
            opener.tree,
            self.path,
            store=self.backend,
            granted_access=granted,
            maximal_access=self._maximal,
            share_access=body.share_access,
            create_options=body.create_options,
            create_action=self.action,
            is_directory=handle.kind is _FOLDER and not self.stream,
            delete_on_close=bool(body.create_options & _DELETE_ON_CLOSE),
            desired_access=body.desired_access,
            max_offset=self.backend.max_file_size,
            channel_sequence=opener.channel_sequence,
            file=file,
            lacks_archive=self.info is not None and not self.info.attributes & _ARCHIVE_OR_FOLDER,
        )
        opened.use_handle(handle)
        lease = self.lease
        if isinstance(lease, wire.LeaseV2) and lease.flags & wire.LeaseFlags.PARENT_LEASE_KEY_SET:
            opened.parent_lease_key = lease.parent_lease_key
        file.opens.append(opened)
        self.server.opens.add(opened)
        if file.stream:
            if self.action not in (_OPENED, _CREATED):
                changing(opened)
        elif file.write_time is not None:
            if self.action is not _OPENED:
                file.write_time.changing(opened)
        elif opener.tree.share.rules.delayed_write_times:
            file.write_time = DelayedWriteTime(file)
        if self.action is not _OPENED and self.free is None and change_reports.somebody_listens(opened):
            self._report(opened)
        return opened

    def _report(self, opened: Open) -> None:
        """Report the change to watchers, and to clients that cache the directory. [MS-FSA 2.1.4.1]"""
        created = self.action is _CREATED
        if created and opened.handle is not None and opened.handle.file_created:
            kind = NotifyFilter.DIR_NAME if opened.is_directory else NotifyFilter.FILE_NAME
            change_reports.report(opened, self.path, Action.ADDED, kind)
        if self.stream and created:
            change_reports.notify(opened, self.path, Action.ADDED_STREAM, NotifyFilter.STREAM_NAME, self.stream)
        elif self.stream:
            which = NotifyFilter.STREAM_SIZE
            change_reports.report(opened, self.path, Action.MODIFIED_STREAM, which, self.stream)
        elif not created:
            for name in self.removed:
                change_reports.notify(opened, self.path, Action.REMOVED_STREAM, NotifyFilter.STREAM_NAME, name)
            changed = NotifyFilter.ATTRIBUTES | NotifyFilter.SIZE | NotifyFilter.LAST_WRITE
            change_reports.report(opened, self.path, Action.MODIFIED, changed)
