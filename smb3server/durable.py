"""Durable opens: they outlive their connection for a while, so that a client may come back to them.

MS-SMB2 3.3.5.9.6 and 3.3.5.9.10 (request), 3.3.5.9.7 and 3.3.5.9.12 (reconnect), 3.3.7.1 (loss of the connection),
3.3.2.4 (time-out). Within one run of the server: nothing is stored.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from smb3server.leases import HANDLE, Lease, Oplock, Timer
from smb3server.status import NtStatus, StatusError
from smb3server.wire import create_contexts as contexts
from smb3server.wire.oplock_break import OplockLevel

if TYPE_CHECKING:
    from smb3server.open import Open
    from smb3server.opening import Opening
    from smb3server.request import Request
    from smb3server.session import Identity, Session

DEFAULT_TIMEOUT = 60.0
MAX_TIMEOUT = 300.0
"""Seconds; what a client asks for is cut to it."""
VERSION_1_TIMEOUT = 300.0

_REQUESTS = (contexts.DURABLE_REQUEST, contexts.DURABLE_REQUEST_V2)
_RECONNECTS = (contexts.DURABLE_RECONNECT, contexts.DURABLE_RECONNECT_V2)


class Durability:
    """What makes one open durable (Open.IsDurable, DurableOpenTimeout, CreateGuid, DurableOwner)."""

    __slots__ = ("client_guid", "create_guid", "disconnected", "open", "owner", "timeout", "timer")

    def __init__(self, entry: Open, client_guid: bytes, create_guid: bytes | None, timeout: float) -> None:
        self.open = entry
        self.client_guid = client_guid
        self.create_guid = create_guid
        """None for version 1."""
        self.timeout = timeout
        self.owner = entry.session.identity
        self.disconnected = False
        self.timer: Timer | None = None

    def disconnect(self) -> bool:
        """The connection is lost: keep the open if its caching rights still cover it, and start the clock."""
        entry = self.open
        if entry.delete_on_close or not covers(entry.caching):
            return False
        self.disconnected = True
        self.timer = asyncio.get_running_loop().call_later(self.timeout, entry.close)
        return True

    def reconnect(self) -> None:
        self.disconnected = False
        self._stop_timer()

    def forget(self) -> None:
        """The open is closed."""
        self._stop_timer()

    def _stop_timer(self) -> None:
        timer, self.timer = self.timer, None
        if timer is not None:
            timer.cancel()


def owns(session: Session | None, owner: Identity | None) -> bool:
    """Open.DurableOwner: whether the session acts for the user who made the open."""
    return (
        session is not None
        and session.identity is not None
        and owner is not None
        and (session.identity.same_user(owner))
    )


def covers(holder: Oplock | Lease | None) -> bool:
    """A batch oplock or handle caching: without it nobody would be told to let go of the open."""
    return holder is not None and not holder.breaking and bool(holder.state & HANDLE)


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
    if entry.is_directory or not covers(entry.caching):
        return None
    client_guid = opening.request.connection.client_guid
    if contexts.DURABLE_REQUEST in found:
        entry.durable = Durability(entry, client_guid, None, VERSION_1_TIMEOUT)
        data = contexts.DURABLE_RESPONSE_CODEC.pack(contexts.DurableResponse())
        return contexts.RawContext(contexts.DURABLE_REQUEST, data)
    wanted: contexts.DurableRequestV2 | None = found.get(contexts.DURABLE_REQUEST_V2)
    if wanted is None:
        return None
    timeout = min(wanted.timeout / 1000, MAX_TIMEOUT) if wanted.timeout else DEFAULT_TIMEOUT
    entry.durable = Durability(entry, client_guid, wanted.create_guid, timeout)
    return response_v2(entry.durable)


def response_v2(durable: Durability) -> contexts.RawContext:
    """What a response says about a durable open of version 2."""
    answer = contexts.DurableResponseV2(timeout=int(durable.timeout * 1000))
    return contexts.RawContext(contexts.DURABLE_REQUEST_V2, contexts.DURABLE_RESPONSE_V2_CODEC.pack(answer))


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
    server = request.connection.server
    entry = server.global_open_table.get(wanted.persistent)
    durable = entry.durable if entry is not None else None
    if entry is None or durable is None or not durable.disconnected:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    # Open.CreateGuid is zero for a version 1 open, and version 1 reconnects do not ask for it.
    if isinstance(wanted, contexts.DurableReconnectV2) and wanted.create_guid != (durable.create_guid or bytes(16)):
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    _check_lease(request, found, entry, leased)
    if not owns(session, durable.owner):
        raise StatusError(NtStatus.ACCESS_DENIED)
    if tree.share is not entry.tree.share:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    if isinstance(entry.caching, Lease) and [part.upper() for part in path] != [
        part.upper() for part in _current_path(entry)
    ]:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    durable.reconnect()
    entry.session, entry.tree = session, tree
    entry.file_id = (entry.file_id[0], server.new_file_id()[1])
    session.open_table[entry.file_id[1]] = entry
    return entry


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


def close_if_disconnected(entry: Open) -> None:
    """3.3.4.6, 3.3.4.7: an oplock break that nobody can be told of ends what it covered."""
    if entry.durable is not None and entry.durable.disconnected:
        entry.close()


def oplock_level(entry: Open) -> int:
    """OplockLevel for a response."""
    if isinstance(entry.caching, Lease):
        return OplockLevel.LEASE
    if isinstance(entry.caching, Oplock):
        return entry.caching.level
    return OplockLevel.NONE
