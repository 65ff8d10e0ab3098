"""Persistent opens of an earlier run, or of another node: from their records back into the server's tables.

They come back disconnected (3.3.7.1): with access, share modes, locks, caching rights and delete-on-close as their
clients were told, waiting for those clients as long as the clients were promised.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

from smb3server import access, collector, host_locks
from smb3server.backends.base import Disposition, Handle, Kind, OpenRequest, Remembered
from smb3server.backends.deferred import DeferredHandle
from smb3server.durable import Durability
from smb3server.ha.records import CachingRecord, OpenRecord, opens_prefix, parse
from smb3server.ha.store import Delete, Entry, StoreError
from smb3server.leases import Lease, Oplock
from smb3server.locks import Lock
from smb3server.open import Open
from smb3server.session import Session, SessionState
from smb3server.tree import TreeConnect
from smb3server.wire.create import Access, CreateOptions

if TYPE_CHECKING:
    from smb3server.backends.base import Backend
    from smb3server.connection import Connection
    from smb3server.files import File
    from smb3server.ha.persistence import Domain
    from smb3server.server import Server
    from smb3server.tree import Share

log = logging.getLogger(__name__)

T = TypeVar("T")

_EXHAUSTED = frozenset([errno.EMFILE, errno.ENFILE, errno.ENOMEM])
_TURN = 0.05
"""Seconds of restoring before others (the renewal of a cluster lease) get their turn. Theirs may be long, where clients
are already at the door; so there are not too many."""


async def restore(server: Server, domain: Domain, shares: Iterable[Share]) -> int:
    """Restore all opens of a domain, on these shares; how many came back. Records of what cannot come back (the file is
    gone: it was closed for good as the server died) are removed; those not understood stay. Raises ``StoreError``, also
    when there is no room for all of them."""
    records = await domain.store.scan(opens_prefix(domain.prefix))
    with collector.paused():
        return await _restore_all(server, domain, shares, records)


async def _restore_all(server: Server, domain: Domain, shares: Iterable[Share], records: Sequence[Entry]) -> int:
    by_name = {share.name.casefold(): share for share in shares}
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
            restored += restore_open(server, share, share.backend, record)
        except (FileNotFoundError, NotADirectoryError) as error:
            log.info("open of %s does not come back: %s", "/".join(record.path), error)
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


def restore_open(server: Server, share: Share, backend: Backend, record: OpenRecord) -> bool:
    """False if it is there already. Raises ``OSError``, ``FileNotFoundError`` also where another file has the name."""
    if record.persistent_id in server.global_open_table:
        return False
    handle = _handle_of(backend, share, record)
    if handle.key.inode != record.inode:
        handle.close()
        raise FileNotFoundError("another file has the name now")
    # A session that is no more: it only says whose the open is.
    session = Session(server, 0, cast("Connection", None))
    session.identity = record.identity
    session.state = SessionState.EXPIRED
    entry = Open((record.persistent_id, 0), session, TreeConnect(0, session, share))
    file = server.file_table.get(handle.key, record.stream)
    entry.granted_access = record.granted_access
    entry.maximal_access = record.maximal_access
    entry.share_access = record.share_access
    entry.create_options = record.create_options
    entry.create_action = record.create_action
    entry.path = record.path
    entry.is_directory = record.is_directory
    entry.handle = handle
    deferred: object = handle
    if isinstance(deferred, DeferredHandle):
        server.dormant_opens += 1
    else:
        entry.descriptor = None if entry.is_directory else handle.fileno()
    entry.file = file
    entry.delete_on_close = record.delete_on_close
    entry.lock_sequences = dict(record.lock_sequences)
    if record.app_instance_id is not None:
        entry.join_app_instance(record.app_instance_id)
    entry.app_instance_version = record.app_instance_version
    file.opens.append(entry)
    file.delete_pending = file.delete_pending or record.delete_pending
    for lock in record.locks:
        file.locks.add(Lock(entry, *lock))
        if not host_locks.take(entry, *lock):
            log.warning("%s: a program of the host has a lock that a client holds", "/".join(record.path))
    if record.caching is not None:
        _restore_caching(file, entry, record.caching)
    server.global_open_table[record.persistent_id] = entry
    durable = entry.durable = Durability(entry, record.client_guid, record.create_guid, record.timeout)
    durable.persist()
    durable.disconnect()
    server.handles.restored += 1
    return True


def _handle_of(backend: Backend, share: Share, record: OpenRecord) -> Handle:
    """With the access it was granted: rights on the file that changed since do not take it back. Not opened before
    somebody needs it, which may be never; but locks that programs of the host shall see need a descriptor."""
    data = record.granted_access
    wanted = OpenRequest(
        record.path,
        record.stream,
        Disposition.OPEN,
        read=bool(data & (Access.READ_DATA | Access.EXECUTE)) and not record.is_directory,
        write=bool(data & access.WRITES_DATA) and not share.read_only,
        directory=True if record.is_directory else None,
        open_reparse_point=bool(record.create_options & CreateOptions.OPEN_REPARSE_POINT),
        user=share.user or record.identity.user,
    )
    if not (share.posix_locks and record.locks):
        remembered = _as_either(wanted, backend.remember)
        if remembered is not None:
            _check_kind(remembered.kind, record)

            def open_now(found: Remembered) -> Handle:
                return _as_either(wanted, found.open)

            return cast("Handle", DeferredHandle(remembered, open_now))
    handle = _as_either(wanted, backend.open)
    try:
        _check_kind(handle.kind, record)
    except FileNotFoundError:
        handle.close()
        raise
    return handle


def _as_either(wanted: OpenRequest, action: Callable[[OpenRequest], T]) -> T:
    """As the user, or as the server itself."""
    try:
        return action(wanted)
    except PermissionError:
        return action(replace(wanted, user=None))


def _check_kind(kind: Kind, record: OpenRecord) -> None:
    if kind == Kind.DIRECTORY and not record.is_directory and not record.stream:
        raise FileNotFoundError("a directory has the name now")


def _restore_caching(file: File, entry: Open, record: CachingRecord) -> None:
    """A break that was under way begins again when the client is back."""
    holder: Lease | Oplock
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
