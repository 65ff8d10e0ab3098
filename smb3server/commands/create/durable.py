"""Makes opens durable, reconnects clients to them, and knows a CREATE that is sent again. [MS-SMB2 3.3.5.9.6,
3.3.5.9.7, 3.3.5.9.10, 3.3.5.9.12, 3.3.5.15.9]

``state`` keeps the state of durable opens, also while their client is disconnected.
"""

from __future__ import annotations

import logging

from smb3server.backends.base import Path
from smb3server.backends.name_rules import WINDOWS
from smb3server.commands.create import sharing
from smb3server.commands.create.contexts import CreateContexts, Opener
from smb3server.files.caching import HANDLE, LEVEL_STATES, NONE, READ, WRITE, Lease, Oplock
from smb3server.state.durable import Durability, Key, covers, owner_of
from smb3server.state.objects import Open
from smb3server.state.opens import OpenTable
from smb3server.wire import create_contexts as wire
from smb3server.wire.create import Access, CreateOptions, CreateRequest
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.status import NtStatus, StatusError

log = logging.getLogger(__name__)

_CHANGEABLE_OPTIONS = int(
    CreateOptions.WRITE_THROUGH
    | CreateOptions.SEQUENTIAL_ONLY
    | CreateOptions.SYNCHRONOUS_IO_ALERT
    | CreateOptions.SYNCHRONOUS_IO_NONALERT
)
"""Options that clients set anew by FileModeInformation. [MS-FSCC 2.4.31]"""

DEFAULT_TIMEOUT = 60.0
"""Seconds for which a durable open waits for its client if the client requests no time."""
MAX_TIMEOUT = 300.0
"""Seconds. A longer time that a client requests is reduced to this."""
VERSION_1_TIMEOUT = 300.0
"""Seconds for a durable open of version 1, whose request has no time."""
RESILIENCY_TIMEOUT = 120.0
"""Seconds for a resilient open whose client requests no time."""
MAX_RESILIENCY_TIMEOUT = 300.0
"""The most seconds for which a client can request resiliency."""


def grant(opened: Open, asked: CreateContexts, opener: Opener, opens: OpenTable) -> wire.RawContext | None:
    """Make a new open durable if that was requested and is possible. Return the response context, or None."""
    wanted = asked.durable_v2
    if not (asked.durable or wanted is not None):
        return None
    if opened.store is not None and opened.store.is_snapshot:
        # Nothing is lost with it, and a stored one would be restored as an open of the share's present file.
        return None
    persistent = wanted is not None and bool(wanted.flags & wire.PERSISTENT) and opener.may_persist
    if opened.is_directory:
        # By the letter no open of a directory is durable. Windows makes it persistent. So does this server, unless it
        # has a lease: Linux 6.12 keeps directories open for its cache, asks for persistence, and does not come back to
        # them, so that others would wait for it.
        persistent = persistent and (opened.caching is None or not opened.caching.state)
        if not persistent:
            return None
    if not persistent and not covers(opened.caching):
        return None
    owner = owner_of(opened.session.identity)
    if wanted is None:
        opened.durable = Durability(owner, opener.client_guid, None, VERSION_1_TIMEOUT)
        return wire.RawContext(wire.DURABLE_REQUEST, wire.DURABLE_RESPONSE_CODEC.pack(wire.DurableResponse()))
    timeout = min(wanted.timeout / 1000, MAX_TIMEOUT) if wanted.timeout else DEFAULT_TIMEOUT
    opened.durable = Durability(owner, opener.client_guid, wanted.create_guid, timeout)
    if persistent:
        opens.persist(opened)
    return response_v2(opened.durable)


def response_v2(durable: Durability) -> wire.RawContext:
    """Return the response context of a durable open of version 2."""
    flags = wire.PERSISTENT if durable.persistent else 0
    answer = wire.DurableResponseV2(timeout=int(durable.timeout * 1000), flags=flags)
    return wire.RawContext(wire.DURABLE_REQUEST_V2, wire.DURABLE_RESPONSE_V2_CODEC.pack(answer))


def make_resilient(opened: Open, client_guid: bytes, timeout: float) -> None:
    """Make an open resilient: while its client is disconnected, requests of others do not end it. [MS-SMB2 3.3.5.15.9]

    A persistent open stays persistent. ``timeout``: seconds; 0 means the default."""
    durable = opened.durable
    if durable is None:
        create_guid = opened.replayable.key[1] if opened.replayable is not None else None
        durable = opened.durable = Durability(owner_of(opened.session.identity), client_guid, create_guid, timeout)
    durable.resilient = True
    if not durable.persistent:
        durable.timeout = timeout or RESILIENCY_TIMEOUT


def is_persistent(asked: CreateContexts) -> bool:
    """Return whether the client comes back to an open that it knows as persistent."""
    wanted = asked.reconnect
    return isinstance(wanted, wire.DurableReconnectV2) and bool(wanted.flags & wire.PERSISTENT)


def reconnect(opener: Opener, asked: CreateContexts, opens: OpenTable, path: Path, leased: bool) -> Open:
    """Return the open to which the client reconnects, moved to its new session and tree connect.

    ``leased``: whether the OplockLevel of the request is that of a lease. Raises OBJECT_NAME_NOT_FOUND for almost every
    mismatch, INVALID_PARAMETER for some, and ACCESS_DENIED for another user's open."""
    wanted = asked.reconnect
    if wanted is None:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    session, tree = opener.session, opener.tree
    persistent = is_persistent(asked)
    opened = opens.by_id.get(wanted.persistent)
    if opened is None and isinstance(wanted, wire.DurableReconnectV2) and persistent and opener.may_persist:
        # A client that did not receive the response to its CREATE knows only the open's CreateGuid.
        opened = opens.persistent.get((opener.client_guid, wanted.create_guid))
    durable = opened.durable if opened is not None else None
    if opened is None or durable is None or not durable.disconnected:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    # Open.CreateGuid is zero for a version 1 open, and a version 1 reconnect does not contain one.
    if isinstance(wanted, wire.DurableReconnectV2) and wanted.create_guid != (durable.create_guid or bytes(16)):
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    if durable.persistent and not persistent:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    _check_lease(opened, asked.lease, opener.client_guid, leased)
    if persistent and not durable.persistent:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if durable.owner != owner_of(session.identity):
        raise StatusError(NtStatus.ACCESS_DENIED)
    if tree.share is not opened.tree.share:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    _wake(opened, opens)
    rules = opened.store.name_rules if opened.store is not None else WINDOWS
    if isinstance(opened.caching, Lease) and not rules.same(path, _current_path(opened)):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    _attach(opened, opener, opens)
    if durable.persistent:
        _renew_lease(opened, asked.lease)
    opens.counts.reconnected += 1
    return opened


def persistent_of(opener: Opener, asked: CreateContexts, key: Key, replayed: bool, opens: OpenTable) -> Open | None:
    """Return the persistent open of a CREATE that is not eligible for replay, if its client is away. [MS-SMB2 3.3.5.9]

    It was used, or an earlier run of the server made it. None means that there is no such open. ``replayed``: whether
    the client marked the CREATE as a replay; if not, DUPLICATE_OBJECTID is raised. Raises FILE_NOT_AVAILABLE if the
    client is not away, ACCESS_DENIED if user or lease differ."""
    wanted = asked.durable_v2
    opened = opens.persistent.get(key)
    durable = opened.durable if opened is not None else None
    if opened is None or durable is None:
        return None
    if not durable.disconnected:
        if replayed and opener.may_persist and wanted is not None and wanted.flags & wire.PERSISTENT:
            raise StatusError(NtStatus.FILE_NOT_AVAILABLE)
        return None
    if not replayed:
        raise StatusError(NtStatus.DUPLICATE_OBJECTID)
    lease = opened.caching if isinstance(opened.caching, Lease) else None
    if durable.owner != owner_of(opener.session.identity) or asked.lease_key != (
        lease.key if lease is not None else None
    ):
        raise StatusError(NtStatus.ACCESS_DENIED)
    return opened


def revive(opened: Open, opener: Opener, body: CreateRequest, opens: OpenTable) -> None:
    """Move an open, whose client was away and has repeated its CREATE, to the client's new session. [MS-SMB2 3.3.5.9]

    Raises ACCESS_DENIED for another share, CONTEXT_MISMATCH if a persistent open was requested otherwise."""
    if opener.tree.share is not opened.tree.share:
        raise StatusError(NtStatus.ACCESS_DENIED)
    if opened.durable is not None and opened.durable.persistent and not _is_same_request(opened, body):
        raise StatusError(NtStatus.CONTEXT_MISMATCH)
    _wake(opened, opens)
    _attach(opened, opener, opens)
    opens.counts.replayed += 1


def _is_same_request(opened: Open, body: CreateRequest) -> bool:
    """Return whether a request has the options, the access and the sharing that the open was made with.

    A client may have changed some of the options since (FileModeInformation)."""
    return (
        (opened.create_options ^ body.create_options) & ~_CHANGEABLE_OPTIONS == 0
        and opened.share_access == body.share_access
        and (opened.desired_access is None or opened.desired_access == body.desired_access)
    )


def _wake(opened: Open, opens: OpenTable) -> None:
    """Open the file of an open of an earlier run. Close the open if the file is gone or its user may not open it."""
    try:
        opens.wake(opened)
    except FileNotFoundError:
        opens.close(opened)
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND) from None
    except PermissionError as error:
        identity = str(opened.session.identity)
        log.warning("open of %r by %r is not restored: %s", "/".join(opened.path), identity, error)
        opens.close(opened)
        raise StatusError(NtStatus.ACCESS_DENIED) from None


def _attach(opened: Open, opener: Opener, opens: OpenTable) -> None:
    """Move an open to the session in which its client comes back.

    ChannelSequence counts within a session of the client (3.2.1.3), and this session is new. Requests of the old
    session that are still under way no longer count."""
    opened.channel_sequence = opener.channel_sequence
    opened.outstanding_requests = opened.outstanding_pre_requests = 0
    opened.sequence_epoch += 1
    opened.session, opened.tree = opener.session, opener.tree
    opens.reattach(opened)


def _renew_lease(opened: Open, asked: wire.Lease | wire.LeaseV2 | None) -> None:
    """Treat the lease of a persistent open whose client is back as Windows does: without handle caching it is as one
    that is granted now, with the request's epoch; without write caching byte-range locks end it.
    [MS-SMB2 3.3.5.9.12; MS-FSA 2.1.5.18; smb2.persistent-open-reconnect-contended]"""
    lease, file = opened.caching, opened.file
    if not isinstance(lease, Lease) or file is None or lease.breaking:
        return
    if any(other.durable is None or not other.durable.disconnected for other in lease.opens if other is not opened):
        return
    if not lease.state & WRITE and lease.state and sharing.is_locked(opened, file):
        lease.end_break(NONE)
    if isinstance(asked, wire.LeaseV2) and not lease.state & HANDLE:
        # Only read caching is granted once more, which counts.
        lease.epoch = asked.epoch + (lease.state == READ) & 0xFFFF
        file.caching.breaks.changed(lease)


def _current_path(opened: Open) -> Path:
    try:
        return opened.handle.path if opened.handle is not None else opened.path
    except OSError:
        return opened.path


def _check_lease(opened: Open, asked: wire.Lease | wire.LeaseV2 | None, client_guid: bytes, leased: bool) -> None:
    """Raise OBJECT_NAME_NOT_FOUND unless the request names the lease of the open, or neither has a lease."""
    lease = opened.caching
    if not isinstance(lease, Lease):
        if asked is not None and leased:
            raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
        return
    version = 2 if isinstance(asked, wire.LeaseV2) else 1
    if asked is None or asked.lease_key != lease.key or version != lease.version or client_guid != lease.client_guid:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)


def oplock_level(opened: Open) -> int:
    """Return the OplockLevel that a response reports for an open."""
    if isinstance(opened.caching, Lease):
        return OplockLevel.LEASE
    if isinstance(opened.caching, Oplock):
        return opened.caching.level
    return OplockLevel.NONE


_MAKES_ELIGIBLE = int(Access.READ_DATA | Access.EXECUTE | Access.WRITE_DATA | Access.APPEND_DATA | Access.DELETE)


def key_of(client_guid: bytes, asked: CreateContexts) -> Key | None:
    """Return the key that identifies a CREATE. None means that it cannot be replayed."""
    wanted = asked.durable_v2
    return (client_guid, wanted.create_guid) if wanted is not None else None


def is_eligible(opened: Open) -> bool:
    """Return whether the CREATE of an open of a file may be replayed (Open.IsReplayEligible)."""
    if opened.durable is not None and opened.durable.persistent:
        return True
    return not opened.is_directory and bool(opened.granted_access & _MAKES_ELIGIBLE)


def level_for(opened: Open, requested: int) -> int:
    """Return the OplockLevel for the response to a replay: the level that it requests, if the open holds as much."""
    held = opened.caching
    if held is None:
        return OplockLevel.NONE
    if isinstance(held, Lease):
        return OplockLevel.LEASE
    wanted = LEVEL_STATES.get(requested)
    if wanted is not None and not wanted & ~held.state:
        return requested
    return next((level for level, state in LEVEL_STATES.items() if state == held.state), OplockLevel.NONE)
