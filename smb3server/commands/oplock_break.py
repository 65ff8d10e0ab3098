"""OPLOCK_BREAK acknowledgments. [MS-SMB2 3.3.5.22]

Data written before an acknowledgment must be visible to the requests that wait for the acknowledgment, even if the
server has yet to fetch the data by RDMA Read. Linux 6.12: acknowledges when its WRITEs have been sent, not when they
have been answered. Over TCP the data arrives before the acknowledgment, over SMB Direct it does not.
"""

from __future__ import annotations

from collections.abc import Callable

from smb3server.dispatch.lookup import find_open
from smb3server.dispatch.request import Interim, Pending, Response, TreeRequest, handles
from smb3server.dispatch.waiting import answer
from smb3server.files.caching import LEVEL_STATES, Caching, Lease, Oplock
from smb3server.state.objects import Open
from smb3server.wire.header import Command
from smb3server.wire.oplock_break import (
    LEASE_BREAK,
    OPLOCK_BREAK,
    LeaseBreak,
    OplockBreak,
    OplockLevel,
    parse_acknowledgment,
)
from smb3server.wire.status import NtStatus, StatusError

_ACKNOWLEDGED = (OplockLevel.NONE, OplockLevel.II)
"""The levels that an acknowledgment may have."""


@handles(Command.OPLOCK_BREAK, TreeRequest)
def acknowledge(request: TreeRequest) -> Response | Pending:
    """Take the acknowledgment of an oplock or lease break. [MS-SMB2 3.3.5.22]"""
    body = parse_acknowledgment(request.message)
    if isinstance(body, LeaseBreak):
        return _acknowledge_lease(request, body)
    return _acknowledge_oplock(request, body)


def _after_writes(request: TreeRequest, caching: Caching[Open], act: Callable[[], Response]) -> Response | Pending:
    """Answer with the result of ``act``, which is called when the writes received so far are stored."""
    if not caching.after_arrivals(lambda: answer(pending, act)):
        return act()
    pending = request.pend(Interim.NEVER)
    return pending


def _acknowledge_oplock(request: TreeRequest, body: OplockBreak) -> Response | Pending:
    """Take the acknowledgment of an oplock break. [MS-SMB2 3.3.5.22.1]"""
    opened = find_open(request, (body.persistent, body.volatile))
    oplock = opened.caching
    if not isinstance(oplock, Oplock) or not oplock.breaking:
        raise StatusError(_status_without_break(oplock, body.oplock_level))
    return _after_writes(request, oplock.caching, lambda: _end_oplock_break(opened, oplock, body))


def _status_without_break(holder: Oplock[Open] | Lease[Open] | None, level: int) -> NtStatus:
    """Return the error for an acknowledgment of an oplock that is not breaking. An oplock whose break needed none is
    answered as Windows does (smb2.oplock.levelii501), and so are levels that no acknowledgment may have.
    [MS-SMB2 3.3.5.22.1]"""
    if level == OplockLevel.LEASE:
        return NtStatus.INVALID_PARAMETER
    broken = isinstance(holder, Oplock) and not holder.state
    if broken or level not in _ACKNOWLEDGED:
        return NtStatus.INVALID_OPLOCK_PROTOCOL
    return NtStatus.INVALID_DEVICE_STATE


def _end_oplock_break(opened: Open, oplock: Oplock[Open], body: OplockBreak) -> Response:
    if not oplock.breaking:
        raise StatusError(_status_without_break(oplock, body.oplock_level))
    if body.oplock_level not in _ACKNOWLEDGED:
        # Other levels cannot be acknowledged: the client loses its oplock.
        oplock.end_break(0)
        leased = body.oplock_level == OplockLevel.LEASE
        raise StatusError(NtStatus.INVALID_PARAMETER if leased else NtStatus.INVALID_OPLOCK_PROTOCOL)
    if not oplock.acknowledge(LEVEL_STATES[body.oplock_level]):
        oplock.end_break(0)
        raise StatusError(NtStatus.INVALID_OPLOCK_PROTOCOL)
    answer = OplockBreak(oplock_level=body.oplock_level, persistent=opened.file_id[0], volatile=opened.file_id[1])
    return Response([OPLOCK_BREAK.pack(answer)])


def _acknowledge_lease(request: TreeRequest, body: LeaseBreak) -> Response | Pending:
    """Take the acknowledgment of a lease break. [MS-SMB2 3.3.5.22.2]"""
    connection = request.connection
    lease = request.server.file_table.leases.find(connection.client_guid, body.lease_key)
    if lease is None:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    for opened in lease.opens:
        # A persistent open is found by its CreateGuid even so.
        if opened.replayable is not None:
            request.server.opens.replays.forget(opened)
    return _after_writes(request, lease.caching, lambda: _end_lease_break(lease, body))


def _end_lease_break(lease: Lease[Open], body: LeaseBreak) -> Response:
    if not lease.breaking:
        raise StatusError(NtStatus.UNSUCCESSFUL)
    if not lease.acknowledge(body.lease_state):
        raise StatusError(NtStatus.REQUEST_NOT_ACCEPTED)
    return Response([LEASE_BREAK.pack(LeaseBreak(lease_key=lease.key, lease_state=body.lease_state))])
