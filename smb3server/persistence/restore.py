"""Persistent opens of an earlier run, or of another node: from their records back into the server's tables.

They come back disconnected (3.3.7.1): with access, share modes, locks, caching rights and delete-on-close as their
clients were told, waiting for those clients as long as the clients were promised.

A record says who has an open and what was granted. It does not say what that user may do now: credentials come from the
accounts of this server, files are opened with them, and what was granted is checked against the file's descriptor.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from smb3server.access import masks
from smb3server.access.identity import Identity
from smb3server.backends.base import Disposition, Handle, Kind, OpenRequest
from smb3server.backends.deferred import DeferredHandle
from smb3server.files import host_locks
from smb3server.files.caching import Lease, Oplock
from smb3server.files.locks import Lock
from smb3server.persistence.records import CachingRecord, OpenRecord, opens_prefix, parse
from smb3server.persistence.store import Delete, Entry, StoreError
from smb3server.process import garbage as collector
from smb3server.state.caller import caller_of
from smb3server.state.durable import Durability, owner_of
from smb3server.state.objects import Open, Session, SessionState, TreeConnect
from smb3server.wire.create import Access, CreateAction, CreateOptions

if TYPE_CHECKING:
    from smb3server.auth.accounts import Accounts
    from smb3server.backends.base import Backend
    from smb3server.files.file import File
    from smb3server.persistence.journal import Domain
    from smb3server.state.server_state import ServerState
    from smb3server.state.share import Share

log = logging.getLogger(__name__)

_DATA = int(Access.READ_DATA) | masks.WRITES_DATA
_EXHAUSTED = frozenset([errno.EMFILE, errno.ENFILE, errno.ENOMEM])
_TURN = 0.05
"""Seconds of restoring before others (the renewal of a cluster lease) get their turn. Theirs may be long, where clients
are already at the door; so there are not too many."""


async def restore(server: ServerState, domain: Domain, shares: Iterable[Share]) -> int:
    """Restore all opens of a domain, on these shares; how many came back. Records of what cannot come back (the file is
    gone: it was closed for good as the server died) are removed; those not understood stay. Raises ``StoreError``, also
    when there is no room for all of them."""
    records = await domain.store.scan(opens_prefix(domain.prefix))
    with collector.paused():
        return await _restore_all(server, domain, shares, records)


async def _restore_all(server: ServerState, domain: Domain, shares: Iterable[Share], records: Sequence[Entry]) -> int:
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
            log.warning("%s: share %s is not served here", entry.key, record.share)
            continue
        try:
            restored += restore_open(server, owners, share, share.backend, record)
        except (FileNotFoundError, NotADirectoryError) as error:
            log.info("open of %s does not come back: %s", "/".join(record.path), error)
            await _remove(domain, entry.key)
        except PermissionError as error:
            log.warning("open of %r by %r is not restored: %s", "/".join(record.path), str(record.identity), error)
            await _remove(domain, entry.key)
        except OSError as error:
            if error.errno in _EXHAUSTED:
                # Serving without the rest would let others at files that their owners count on.
                raise StoreError(f"opens cannot be restored: {error}") from error
            log.error("open of %s does not come back, but stays stored: %s", "/".join(record.path), error)
    return restored


async def _remove(domain: Domain, key: str) -> None:
    try:
        await domain.store.commit([Delete(key)], domain.conditions)
    except StoreError as error:
        log.warning("%s: %s", key, error)


class _Owners:
    """Sessions that are over, and tree connects of them: they only say whose the restored opens are."""

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._known: dict[tuple[Identity, Share], tuple[Session, TreeConnect]] = {}

    def of(self, stored: Identity, share: Share) -> tuple[Session, TreeConnect]:
        """Return those of a user; all opens of one user in one share have the same. Raises ``PermissionError`` as
        ``identity_here`` does."""
        known = self._known.get((stored, share))
        if known is None:
            session = Session(0, None)
            session.identity = identity_here(self._server, share, stored)
            session.state = SessionState.EXPIRED
            known = self._known[stored, share] = session, TreeConnect(0, session, share)
        return known


def restore_open(server: ServerState, owners: _Owners, share: Share, backend: Backend, record: OpenRecord) -> bool:
    """Restore one open of a share. Return False if it is there already.

    Raises ``OSError``, ``FileNotFoundError`` also where another file has the name, ``PermissionError`` where its user
    has no right to it any more."""
    if record.persistent_id in server.opens.by_id:
        return False
    entry = Open(
        (record.persistent_id, 0),
        *owners.of(record.identity, share),
        record.path,
        granted_access=record.granted_access,
        maximal_access=record.maximal_access,
        share_access=record.share_access,
        create_options=record.create_options,
        create_action=record.create_action,
        is_directory=record.is_directory,
        delete_on_close=record.delete_on_close,
    )
    handle = _handle_of(server.accounts, backend, entry, record)
    if handle.key.inode != record.inode:
        handle.close()
        raise FileNotFoundError("another file has the name now")
    file = server.file_table.get(handle.key, record.stream)
    entry.use_handle(handle)
    entry.file = file
    entry.lock_sequences = dict(record.lock_sequences)
    if record.app_instance_id is not None:
        server.opens.join_application(entry, record.app_instance_id)
    entry.app_instance_version = record.app_instance_version
    file.opens.append(entry)
    file.delete_pending = file.delete_pending or record.delete_pending
    for lock in record.locks:
        file.locks.add(Lock(entry, *lock))
        if not host_locks.take(entry.descriptor if entry.tree.share.posix_locks else None, *lock):
            log.warning("%s: a program of the host has a lock that a client holds", "/".join(record.path))
    if record.caching is not None:
        _restore_caching(file, entry, record.caching)
    entry.durable = Durability(owner_of(entry.session.identity), record.client_guid, record.create_guid, record.timeout)
    server.opens.restore(entry)
    return True


def identity_here(server: ServerState, share: Share, given: Identity) -> Identity:
    """Who a stored identity is on this server, with the credentials of its account here. Raises ``PermissionError`` for
    somebody who could not log on, or connect to the share, now."""
    if not share.admits_user(given):
        raise PermissionError(errno.EACCES, f"share {share.name} is not for this user")
    if given.guest or given.anonymous:
        return replace(given, user=None)
    if given.domain:
        if server.principals is None:
            raise PermissionError(errno.EACCES, "there is no Kerberos here")
        try:
            return server.principals.identity_of(f"{given.name}@{given.domain}")
        except ValueError as error:
            raise PermissionError(errno.EACCES, str(error)) from error
    account = server.users.find(given.name)
    if account is None:
        raise PermissionError(errno.EACCES, "there is no such user")
    return replace(given, user=account.user)


def _handle_of(accounts: Accounts, backend: Backend, entry: Open, record: OpenRecord) -> Handle:
    """Return the file, opened as the user when it is first needed, which may be never. Only where locks have to be seen
    by programs of the host, which takes a descriptor, it is opened at once.

    Raises ``OSError``, ``PermissionError`` if the user has no right to it any more. A file that is opened later raises
    them then."""
    data = record.granted_access
    share = entry.tree.share
    user = share.acting_user(entry.session.user)
    wanted = OpenRequest(
        record.path,
        record.stream,
        Disposition.OPEN,
        read=bool(data & (Access.READ_DATA | Access.EXECUTE)) and not record.is_directory,
        write=bool(data & masks.WRITES_DATA) and not share.read_only,
        directory=True if record.is_directory else None,
        open_reparse_point=bool(record.create_options & CreateOptions.OPEN_REPARSE_POINT),
        user=user,
    )
    # What is opened later keeps the open, not the record: there may be tens of thousands.
    checked = partial(_checked, accounts, backend, entry, wanted)
    if not (share.posix_locks and record.locks):
        remembered = backend.remember(wanted)
        if remembered is not None:
            _check_kind(remembered.kind, wanted)
            return DeferredHandle(remembered, checked)
    return checked(backend)


class _Opens(Protocol):
    """A store, or one of its files that is remembered."""

    def open(self, request: OpenRequest) -> Handle: ...


def _checked(accounts: Accounts, backend: Backend, entry: Open, wanted: OpenRequest, source: _Opens) -> Handle:
    """Open the file and check that its user may have it."""
    handle = source.open(wanted)
    try:
        _check_kind(handle.kind, wanted)
        _check_rights(accounts, backend, handle, entry)
    except BaseException:
        handle.close()
        raise
    return handle


def _check_rights(accounts: Accounts, backend: Backend, handle: Handle, entry: Open) -> None:
    """Whether the user would be granted now what was granted then (MS-FSA 2.1.5.1.2.1). Who created a file was granted
    what they asked for, whatever its descriptor gives: of that they keep what it gives, if access to the data is in it.
    Raises ``PermissionError``."""
    held = caller_of(entry.session, entry.tree, accounts).rights_on(backend, handle.path, handle.describe())
    missing = entry.granted_access & ~held
    if missing & (_DATA if entry.create_action == CreateAction.CREATED else ~0):
        raise PermissionError(errno.EACCES, f"its user no longer has access {missing:#x} to the file")
    entry.granted_access &= ~missing


def _check_kind(kind: Kind, wanted: OpenRequest) -> None:
    if kind == Kind.DIRECTORY and not wanted.directory and not wanted.stream:
        raise FileNotFoundError("a directory has the name now")


def _restore_caching(file: File[Open], entry: Open, record: CachingRecord) -> None:
    """A break that was under way begins again when the client is back."""
    holder: Lease[Open] | Oplock[Open]
    if record.key:
        key, client_guid = bytes.fromhex(record.key), bytes.fromhex(record.client_guid)
        lease = file.table.leases.find(client_guid, key)
        if lease is None or lease.caching is not file.caching:
            lease = Lease(file.caching, client_guid, key, record.version)
            lease.epoch = record.epoch
            lease.parent_key = bytes.fromhex(record.parent_key) if record.parent_key else None
            file.table.leases.add(lease)
        lease.opens.append(entry)
        holder = lease
    else:
        holder = Oplock(file.caching, entry, record.level)
    holder.state, holder.breaking = record.state, record.breaking
    holder.requested, holder.required = record.requested, record.required
    entry.caching = holder
    file.caching.add(holder)
