"""Durable, resilient and persistent opens: they outlive their connection, so that a client may come back to them.

MS-SMB2 3.3.5.9.6 and 3.3.5.9.10 (request), 3.3.5.15.9 (resiliency), 3.3.5.9.7 and 3.3.5.9.12 (reconnect), 3.3.7.1 (loss
of the connection), 3.3.2.2 to 3.3.2.4 (time-outs). Durable ones give way to other openers while their client is away,
resilient and persistent ones do not; persistent ones also outlive the server (``ha.persistence``).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smb3server.files.caching import HANDLE, Lease, Oplock, Timer
from smb3server.state import replay
from smb3server.wire import create_contexts as contexts
from smb3server.wire.header import HeaderFlags
from smb3server.wire.negotiate import Capability
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.commands.create.opening import Opening
    from smb3server.dispatch.request import Request
    from smb3server.state.objects import Open, Session, TreeConnect

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 60.0
MAX_TIMEOUT = 300.0
"""Seconds; what a client asks for is cut to it."""
VERSION_1_TIMEOUT = 300.0
RESILIENCY_TIMEOUT = 120.0
MAX_RESILIENCY_TIMEOUT = 300.0

_REQUESTS = (contexts.DURABLE_REQUEST, contexts.DURABLE_REQUEST_V2)
_RECONNECTS = (contexts.DURABLE_RECONNECT, contexts.DURABLE_RECONNECT_V2)


@dataclass(slots=True)
class HandleCounts:
    """Of a server since its start: what became of opens whose client was away. Not in spec."""

    restored: int = 0
    """Came back from the store, after a restart or from another node."""
    reconnected: int = 0
    """Their client came back with a reconnect context."""
    replayed: int = 0
    """Their client repeated the CREATE that it had no answer to."""
    expired: int = 0
    """Nobody came in time."""


class Durability:
    """What makes one open durable (Open.IsDurable, DurableOpenTimeout, CreateGuid, DurableOwner)."""

    __slots__ = (
        "abandoned",
        "client_guid",
        "create_guid",
        "disconnected",
        "owner",
        "persistent",
        "resilient",
        "timeout",
        "timer",
    )

    def __init__(self, owner: str, client_guid: bytes, create_guid: bytes | None, timeout: float) -> None:
        """``owner``: ``Identity.owner`` of the user. ``timeout``: seconds that it waits for its client."""
        self.client_guid = client_guid
        self.create_guid = create_guid
        """None for version 1."""
        self.timeout = timeout
        self.owner = owner
        self.disconnected = False
        self.persistent = False
        self.abandoned = False
        """What is stored of it stays, for the next who serves it."""
        self.resilient = False
        self.timer: Timer | None = None

    @property
    def kind(self) -> str:
        """For reports."""
        return "persistent" if self.persistent else "resilient" if self.resilient else "durable"

    def stop_timer(self) -> None:
        """Stop the clock that runs while the client is away."""
        timer, self.timer = self.timer, None
        if timer is not None:
            timer.cancel()


def owner_of(session: Session) -> str:
    return session.identity.owner if session.identity is not None else ""


def covers(holder: Oplock[Open] | Lease[Open] | None) -> bool:
    """A batch oplock or handle caching: without it nobody would be told to let go of the open."""
    return holder is not None and not holder.breaking and bool(holder.state & HANDLE)


def may_come_back(entry: Open) -> bool:
    """Its client is away, and nobody takes the open from it until it comes back or its time is up."""
    durable = entry.durable
    return durable is not None and durable.disconnected and (durable.persistent or durable.resilient)


def held_for_owner(entry: Open) -> bool:
    """3.3.5.9: a persistent open whose client is away, with no right that could be taken back from it."""
    durable = entry.durable
    if durable is None or not durable.persistent or not durable.disconnected:
        return False
    return entry.caching is None or not entry.caching.state & HANDLE


def check_contexts(found: dict[bytes, Any], dialect: int) -> None:
    """Which contexts may come together. Version 2 ones are unknown before dialect 3.0."""
    if dialect < 0x0300:
        for name in (contexts.DURABLE_REQUEST_V2, contexts.DURABLE_RECONNECT_V2):
            found.pop(name, None)
    if contexts.DURABLE_RECONNECT in found:
        # 3.3.5.9.7: a version 1 request beside it is ignored.
        found.pop(contexts.DURABLE_REQUEST, None)
    present = [name for name in (*_REQUESTS, *_RECONNECTS) if name in found]
    if len(present) > 1:
        raise StatusError(NtStatus.INVALID_PARAMETER)


def grant(opening: Opening, entry: Open) -> contexts.RawContext | None:
    """Make a new open durable if it was asked for and may be; the response's context."""
    found = opening.asked
    entry.create_action = opening.action
    if entry.is_directory:
        return None
    wanted: contexts.DurableRequestV2 | None = found.get(contexts.DURABLE_REQUEST_V2)
    persistent = wanted is not None and may_be_persistent(opening.request, wanted.flags)
    if not persistent and not covers(entry.caching):
        return None
    client_guid = opening.request.connection.client_guid
    if contexts.DURABLE_REQUEST in found:
        entry.durable = Durability(owner_of(entry.session), client_guid, None, VERSION_1_TIMEOUT)
        data = contexts.DURABLE_RESPONSE_CODEC.pack(contexts.DurableResponse())
        return contexts.RawContext(contexts.DURABLE_REQUEST, data)
    if wanted is None:
        return None
    timeout = min(wanted.timeout / 1000, MAX_TIMEOUT) if wanted.timeout else DEFAULT_TIMEOUT
    entry.durable = Durability(owner_of(entry.session), client_guid, wanted.create_guid, timeout)
    if persistent:
        opening.request.server.opens.persist(entry)
    return response_v2(entry.durable)


def response_v2(durable: Durability) -> contexts.RawContext:
    """What a response says about a durable open of version 2."""
    flags = contexts.PERSISTENT if durable.persistent else 0
    answer = contexts.DurableResponseV2(timeout=int(durable.timeout * 1000), flags=flags)
    return contexts.RawContext(contexts.DURABLE_REQUEST_V2, contexts.DURABLE_RESPONSE_V2_CODEC.pack(answer))


def may_be_persistent(request: Request, flags: int) -> bool:
    """3.3.5.9.10: asked for, on such a share, by a client that knows what it is."""
    return bool(
        flags & contexts.PERSISTENT
        and request.tree is not None
        and request.tree.share.stores_opens
        and request.connection.server_capabilities & Capability.PERSISTENT_HANDLES
    )


def make_resilient(entry: Open, client_guid: bytes, timeout: float) -> None:
    """3.3.5.15.9. ``timeout`` 0: the default. A persistent open stays one."""
    durable = entry.durable
    if durable is None:
        create_guid = entry.replayable.key[1] if entry.replayable is not None else None
        durable = entry.durable = Durability(owner_of(entry.session), client_guid, create_guid, timeout)
    durable.resilient = True
    if not durable.persistent:
        durable.timeout = timeout or RESILIENCY_TIMEOUT


def wants_reconnect(found: dict[bytes, Any]) -> bool:
    return any(name in found for name in _RECONNECTS)


def reconnect(request: Request, found: dict[bytes, Any], path: tuple[str, ...], leased: bool) -> Open:
    """The open to come back to, now of this session and tree connect. OBJECT_NAME_NOT_FOUND for nearly everything that
    does not fit, ACCESS_DENIED for somebody else's."""
    session, tree = request.session, request.tree
    if session is None or tree is None:
        raise StatusError(NtStatus.USER_SESSION_DELETED)
    wanted: contexts.DurableReconnect | contexts.DurableReconnectV2
    wanted = found.get(contexts.DURABLE_RECONNECT) or found[contexts.DURABLE_RECONNECT_V2]
    server = request.server
    flags = wanted.flags if isinstance(wanted, contexts.DurableReconnectV2) else 0
    entry = server.opens.by_id.get(wanted.persistent)
    if entry is None and isinstance(wanted, contexts.DurableReconnectV2) and may_be_persistent(request, flags):
        # A client that never saw the response to its CREATE knows the open by its CreateGuid only.
        entry = server.opens.persistent.get((request.connection.client_guid, wanted.create_guid))
    durable = entry.durable if entry is not None else None
    if entry is None or durable is None or not durable.disconnected:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    # Open.CreateGuid is zero for a version 1 open, and version 1 reconnects do not ask for it.
    if isinstance(wanted, contexts.DurableReconnectV2) and wanted.create_guid != (durable.create_guid or bytes(16)):
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    if durable.persistent and not flags & contexts.PERSISTENT:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    _check_lease(request, found, entry, leased)
    if flags & contexts.PERSISTENT and not durable.persistent:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if durable.owner != owner_of(session):
        raise StatusError(NtStatus.ACCESS_DENIED)
    if tree.share is not entry.tree.share:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    _wake(request, entry)
    if isinstance(entry.caching, Lease) and [part.upper() for part in path] != [
        part.upper() for part in _current_path(entry)
    ]:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    _attach(entry, request, session, tree)
    server.opens.counts.reconnected += 1
    return entry


def _wake(request: Request, entry: Open) -> None:
    """The file was there when the server began; if it is not any more, neither is the open. Nor is it if its user may
    not open the file any more."""
    opens = request.server.opens
    try:
        opens.wake(entry)
    except FileNotFoundError:
        opens.close(entry)
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND) from None
    except PermissionError as error:
        log.warning("open of %r by %r is not restored: %s", "/".join(entry.path), str(entry.session.identity), error)
        opens.close(entry)
        raise StatusError(NtStatus.ACCESS_DENIED) from None


def _attach(entry: Open, request: Request, session: Session, tree: TreeConnect) -> None:
    replay.restart(entry, request)
    entry.session, entry.tree = session, tree
    request.server.opens.reattach(entry)


def _current_path(entry: Open) -> tuple[str, ...]:
    try:
        return entry.handle.path if entry.handle is not None else entry.path
    except OSError:
        return entry.path


def _check_lease(request: Request, found: dict[bytes, Any], entry: Open, leased: bool) -> None:
    """The lease must be the same, or none in both."""
    lease = entry.caching
    if not isinstance(lease, Lease):
        if contexts.REQUEST_LEASE in found and leased:
            raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
        return
    asked = found.get(contexts.REQUEST_LEASE)
    version = 2 if isinstance(asked, contexts.LeaseV2) else 1
    if (
        asked is None
        or asked.lease_key != lease.key
        or version != lease.version
        or request.connection.client_guid != lease.client_guid
    ):
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)


def revived(request: Request, found: dict[bytes, Any]) -> Open | None:
    """3.3.5.9.10: a CREATE comes again whose response got lost, with its connection or with the server; the persistent
    open that it made, now of this session."""
    key = replay.key_of(request, found)
    entry = request.server.opens.persistent.get(key) if key is not None else None
    if entry is None or entry.durable is None or not entry.durable.disconnected:
        return None
    if not request.header.flags & HeaderFlags.REPLAY_OPERATION:
        raise StatusError(NtStatus.DUPLICATE_OBJECTID)
    session, tree = request.session, request.tree
    asked = found.get(contexts.REQUEST_LEASE)
    lease = entry.caching if isinstance(entry.caching, Lease) else None
    if (
        session is None
        or tree is None
        or tree.share is not entry.tree.share
        or entry.durable.owner != owner_of(session)
        or (asked.lease_key if asked is not None else None) != (lease.key if lease is not None else None)
    ):
        raise StatusError(NtStatus.ACCESS_DENIED)
    _wake(request, entry)
    _attach(entry, request, session, tree)
    request.server.opens.counts.replayed += 1
    return entry


def oplock_level(entry: Open) -> int:
    """OplockLevel for a response."""
    if isinstance(entry.caching, Lease):
        return OplockLevel.LEASE
    if isinstance(entry.caching, Oplock):
        return entry.caching.level
    return OplockLevel.NONE
