"""Restoring persistent opens of an earlier run, or of another node, from their records into the server's tables.

Restored opens are disconnected. They have the access, share modes, locks, caching rights and delete-on-close that their
clients were granted, and wait for those clients for the granted time. [MS-SMB2 3.3.7.1]

A record names the user of an open and the access that was granted. It does not decide what that user may do now: the
credentials come from the accounts of this server, files are opened with them, and the granted access is checked against
the file's security descriptor.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from smb3server.access import masks
from smb3server.access.identity import Identity
from smb3server.access.privileges import Privilege
from smb3server.backends.base import Disposition, Handle, Kind, OpenRequest
from smb3server.backends.deferred import DeferredHandle
from smb3server.files import host_locks
from smb3server.files.caching import Lease, Oplock
from smb3server.files.locks import Lock
from smb3server.persistence.records import CachingRecord, OpenRecord, opens_prefix, parse
from smb3server.persistence.store import Delete, Entry, StoreError
from smb3server.process import garbage as collector
from smb3server.state import disk_opens
from smb3server.state.caller import caller_of, maximal_access_of
from smb3server.state.durable import Durability, owner_of
from smb3server.state.objects import Open, Session, SessionState, TreeConnect
from smb3server.virtual_disks import stored
from smb3server.wire.create import Access, CreateAction, CreateOptions
from smb3server.wire.status import StatusError

if TYPE_CHECKING:
    from smb3server.access.caller import Caller
    from smb3server.auth.directory import Directory
    from smb3server.backends.base import Backend
    from smb3server.files.file import File
    from smb3server.persistence.journal import Domain
    from smb3server.state.server_state import ServerState
    from smb3server.state.share import Share

log = logging.getLogger(__name__)

_DATA = int(Access.READ_DATA) | masks.WRITES_DATA
_EXHAUSTED = frozenset([errno.EMFILE, errno.ENFILE, errno.ENOMEM])
_TURN = 0.05
"""Seconds of restoring in one turn of the event loop. In between, other tasks run, such as the renewal of a cluster
lease. Their turns may be long if clients connect already, so the number of turns is kept small."""


IsThere = Callable[["Share"], Awaitable[bool]]
"""Returns whether the file system of a share is the one on which its opens were made, so that a file which is missing
there was deleted. Raises ``OSError`` if it is not there at all."""


async def restore(
    server: ServerState, domain: Domain, shares: Iterable[Share], all_shares: bool = True, *, is_there: IsThere
) -> int:
    """Restore all opens of a domain that are on ``shares``. Return how many were restored.

    ``shares`` have no opens yet. ``all_shares``: whether the domain has no others, so that records of others are worth
    a warning.

    Remove the records of opens that cannot be restored: those of users who no longer have the right, and those of files
    that no longer exist, but the latter only if ``is_there`` says so after they were not found. Records that are not
    understood stay. Raises ``StoreError``, also if there are not enough resources for all opens, and what ``is_there``
    raises."""
    records = await domain.store.scan(opens_prefix(domain.prefix))
    missing: dict[Share, list[str]] = {}
    with collector.paused():
        restored = await _restore_all(server, domain, shares, records, all_shares, missing)
    for disk in server.virtual_disks.by_key.values():
        disk.settle()
    for share, keys in missing.items():
        if await is_there(share):
            for key in keys:
                await _remove(domain, key)
        else:
            log.warning("share %s: %d opens whose files are missing are not forgotten", share.name, len(keys))
    return restored


async def _restore_all(
    server: ServerState,
    domain: Domain,
    shares: Iterable[Share],
    records: Sequence[Entry],
    all_shares: bool,
    missing: dict[Share, list[str]],
) -> int:
    """Restore the opens of ``records``. Add the keys of those whose files are missing to ``missing``."""
    by_name = {share.name.casefold(): share for share in shares}
    owners = _Owners(server)
    restored = 0
    turn_ends = time.monotonic() + _TURN
    for entry in records:
        if time.monotonic() > turn_ends:
            await asyncio.sleep(0)
            turn_ends = time.monotonic() + _TURN
        try:
            record = parse(entry.value)
        except ValueError as error:
            log.error("%s: %s", entry.key, error)
            continue
        share = by_name.get(record.share.casefold())
        if share is None or share.backend is None:
            if not all_shares:
                continue
            log.warning("%s: share %s is not served here", entry.key, record.share)
            continue
        try:
            restored += restore_open(server, owners, share, share.backend, record)
        except (FileNotFoundError, NotADirectoryError) as error:
            log.info("open of %s is not restored: %s", "/".join(record.path), error)
            missing.setdefault(share, []).append(entry.key)
        except PermissionError as error:
            log.warning("open of %r by %r is not restored: %s", "/".join(record.path), str(record.identity), error)
            await _remove(domain, entry.key)
        except OSError as error:
            if error.errno in _EXHAUSTED:
                # Serving without the rest would give others access to files whose owners rely on their opens.
                raise StoreError(f"opens cannot be restored: {error}") from error
            log.error("open of %s is not restored, but its record stays: %s", "/".join(record.path), error)
    return restored


async def _remove(domain: Domain, key: str) -> None:
    try:
        await domain.store.commit([Delete(key)], domain.conditions)
    except StoreError as error:
        log.warning("%s: %s", key, error)


class _Owners:
    """Expired sessions with tree connects. They only record the owners of the restored opens."""

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._known: dict[tuple[Identity, Share], tuple[Session, TreeConnect]] = {}

    def of(self, stored: Identity, share: Share) -> tuple[Session, TreeConnect]:
        """Return the session and tree connect of a user. All opens of one user in one share have the same ones.

        Raises ``PermissionError`` as ``identity_here`` does."""
        known = self._known.get((stored, share))
        if known is None:
            session = Session(0, None)
            session.identity = identity_here(self._server, share, stored)
            session.state = SessionState.EXPIRED
            known = self._known[stored, share] = session, TreeConnect(0, session, share)
            known[1].maximal_access = maximal_access_of(session, share, self._server.accounts)
        return known


def restore_open(server: ServerState, owners: _Owners, share: Share, backend: Backend, record: OpenRecord) -> bool:
    """Restore one open of a share. Return False if the server has it already.

    Raises ``OSError``, in particular ``FileNotFoundError`` if the file is gone or another file has its name, and
    ``PermissionError`` if its user no longer has the right to it."""
    if record.persistent_id in server.opens.by_id:
        return False
    if record.virtual_disk == b"":
        # As an open of the file it would write between the disk's data.
        raise PermissionError(errno.EACCES, "an older version has not stored how it opened the virtual disk")
    if record.posix:
        backend = backend.as_posix() or backend
    opened = Open(
        (record.persistent_id, 0),
        *owners.of(record.identity, share),
        record.path,
        store=backend,
        granted_access=record.granted_access,
        maximal_access=record.maximal_access,
        share_access=record.share_access,
        create_options=record.create_options,
        desired_access=record.desired_access,
        create_action=record.create_action,
        is_directory=record.is_directory,
        delete_on_close=record.delete_on_close,
        lock_sequences=dict(record.lock_sequences),
        parent_lease_key=record.parent_lease_key,
        app_instance_version=record.app_instance_version,
    )
    handle = _handle_of(server.accounts, backend, opened, record)
    if handle.key.inode != record.inode:
        handle.close()
        raise FileNotFoundError("another file has the name now")
    opened.use_handle(handle)
    if record.virtual_disk is not None:
        _enter_disk(server, backend, opened, handle, record.virtual_disk)
    file = server.file_table.get(handle.key, record.stream)
    opened.file = file
    if record.app_instance_id is not None:
        server.opens.join_application(opened, record.app_instance_id)
    file.opens.append(opened)
    if record.name_deleted:
        # The open that asked for it may be gone. This one has the same name.
        file.mark_link(opened, posix=False)
    elif record.delete_pending:
        file.delete_pending = True
    for lock in record.locks:
        file.locks.add(Lock(opened, *lock))
        if not host_locks.take(opened.descriptor if opened.tree.share.rules.posix_locks else None, *lock):
            log.warning("%s: a program of the host has locked a range that a client has locked", "/".join(record.path))
    if record.caching is not None:
        _restore_caching(file, opened, record.caching)
    opened.durable = Durability(
        owner_of(opened.session.identity), record.client_guid, record.create_guid, record.timeout
    )
    server.opens.restore(opened)
    return True


def _enter_disk(server: ServerState, backend: Backend, opened: Open, handle: Handle, data: bytes) -> None:
    """Make an open that of a virtual disk again, with the reservations of the disk. Raises ``OSError``. The handle is
    closed then."""
    try:
        found = stored.unpack(data)
        caller = _caller_of(server.accounts, opened)
        files = disk_opens.ShareFolder(server, backend, handle.path[:-1], caller, opened.tree.share)
        device = disk_opens.enter(server, opened, handle, files, found.context, found.specifier)
    except (StatusError, ValueError) as error:
        handle.close()
        raise PermissionError(errno.EACCES, f"its virtual disk cannot be opened: {error}") from error
    except BaseException:
        handle.close()
        raise
    device.disk.continue_with(found.reservations)


def identity_here(server: ServerState, share: Share, given: Identity) -> Identity:
    """Return a stored identity with the credentials of its account on this server.

    Raises ``PermissionError`` if the user could not log on, or connect to the share, now."""
    identity = _account_here(server, given)
    if not share.admits_user(identity):
        raise PermissionError(errno.EACCES, f"share {share.name} is not for this user")
    return identity


def _account_here(server: ServerState, given: Identity) -> Identity:
    """Return a stored identity with the credentials of its account. Raises ``PermissionError`` if it could not log on
    now."""
    if given.guest or given.anonymous:
        return replace(given, user=None)
    try:
        return server.accounts.today(given)
    except ValueError as error:
        raise PermissionError(errno.EACCES, str(error)) from error


def _caller_of(accounts: Directory, opened: Open) -> Caller:
    """Return the user of an open, with the rights that CREATE gave it."""
    caller = caller_of(opened.session, opened.tree, accounts)
    for_backup = opened.create_options & CreateOptions.OPEN_FOR_BACKUP_INTENT
    return caller.opening_for_backup() if for_backup else caller


def _handle_of(accounts: Directory, backend: Backend, opened: Open, record: OpenRecord) -> Handle:
    """Return a handle that opens the file as the user when it is first used, which may be never.

    Open the file now only if programs of the host have to see the locks, because that takes a descriptor. Raises
    ``OSError``, in particular ``PermissionError`` if the user no longer has the right to it. A handle that opens the
    file later raises them then."""
    data = record.granted_access
    share = opened.tree.share
    user = _caller_of(accounts, opened).user
    wanted = OpenRequest(
        record.path,
        record.stream,
        Disposition.OPEN,
        read=bool(data & (Access.READ_DATA | Access.EXECUTE)) and not record.is_directory,
        write=bool(data & masks.WRITES_DATA) and not (share.read_only or record.is_directory),
        directory=True if record.is_directory else None,
        open_reparse_point=bool(record.create_options & CreateOptions.OPEN_REPARSE_POINT),
        user=user,
    )
    # A handle that opens the file later keeps the open in memory, not the record: there may be tens of thousands.
    checked = partial(_checked, accounts, backend, opened, wanted)
    if record.virtual_disk is None and not (share.rules.posix_locks and record.locks):
        remembered = backend.remember(wanted)
        if remembered is not None:
            _check_kind(remembered.kind, wanted)
            return DeferredHandle(remembered, checked)
    return checked(backend)


class _Opens(Protocol):
    """A backend, or a file that it remembers."""

    def open(self, request: OpenRequest) -> Handle: ...


def _checked(accounts: Directory, backend: Backend, opened: Open, wanted: OpenRequest, source: _Opens) -> Handle:
    """Open the file, and check that its user may open it now. Raises ``OSError`` and its subclasses."""
    handle = source.open(wanted)
    try:
        _check_kind(handle.kind, wanted)
        _check_rights(accounts, backend, handle, opened)
    except BaseException:
        handle.close()
        raise
    return handle


def _check_rights(accounts: Directory, backend: Backend, handle: Handle, opened: Open) -> None:
    """Raise ``PermissionError`` unless the user would be granted the same access now. [MS-FSA 2.1.5.1.2.1]

    A user who created the file was granted the requested access, regardless of the file's descriptor. If the descriptor
    still grants all access to data in it, reduce the granted access to what the descriptor grants."""
    caller = _caller_of(accounts, opened)
    held = caller.rights_on(backend, handle.path, handle.describe())
    if caller.token.privileges & Privilege.SECURITY:
        held |= Access.ACCESS_SYSTEM_SECURITY
    missing = opened.granted_access & ~held
    if missing & (_DATA if opened.create_action == CreateAction.CREATED else ~0):
        raise PermissionError(errno.EACCES, f"its user no longer has access {missing:#x} to the file")
    opened.granted_access &= ~missing


def _check_kind(kind: Kind, wanted: OpenRequest) -> None:
    if kind == Kind.DIRECTORY and not wanted.directory and not wanted.stream:
        raise FileNotFoundError("a directory has the name now")


def _restore_caching(file: File[Open], opened: Open, record: CachingRecord) -> None:
    """Give an open its oplock, or its share of a lease. A break under way begins again when the client is back."""
    holder: Lease[Open] | Oplock[Open]
    if record.key:
        key, client_guid = bytes.fromhex(record.key), bytes.fromhex(record.client_guid)
        lease = file.table.leases.find(client_guid, key)
        if lease is None or lease.caching is not file.caching:
            lease = Lease(file.caching, client_guid, key, record.version)
            lease.epoch = record.epoch
            lease.directory = opened.is_directory
            lease.parent_key = bytes.fromhex(record.parent_key) if record.parent_key else None
            file.table.leases.add(lease)
        lease.opens.append(opened)
        holder = lease
    else:
        holder = Oplock(file.caching, opened, record.level)
    holder.state, holder.breaking = record.state, record.breaking
    holder.requested, holder.required = record.requested, record.required
    opened.caching = holder
    file.caching.add(holder)
