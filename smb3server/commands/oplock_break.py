"""OPLOCK_BREAK acknowledgments (MS-SMB2 3.3.5.22)."""

from __future__ import annotations

from smb3server.leases import LEVEL_STATES, Oplock
from smb3server.open import find_open
from smb3server.request import Request, Response, handles
from smb3server.status import NtStatus, StatusError
from smb3server.wire.header import Command
from smb3server.wire.oplock_break import (
    LEASE_BREAK,
    OPLOCK_BREAK,
    LeaseBreak,
    OplockBreak,
    OplockLevel,
    parse_acknowledgment,
)


@handles(Command.OPLOCK_BREAK)
def acknowledge(request: Request) -> Response:
    record = parse_acknowledgment(request.message)
    if isinstance(record, LeaseBreak):
        return _acknowledge_lease(request, record)
    return _acknowledge_oplock(request, record)


def _acknowledge_oplock(request: Request, record: OplockBreak) -> Response:
    """3.3.5.22.1."""
    if record.oplock_level == OplockLevel.LEASE:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    found = find_open(request, (record.persistent, record.volatile))
    oplock = found.caching
    if not isinstance(oplock, Oplock) or not oplock.breaking:
        raise StatusError(NtStatus.INVALID_OPLOCK_PROTOCOL)
    if record.oplock_level not in (OplockLevel.NONE, OplockLevel.II):
        # Neither II nor none: everything is lost.
        oplock.end_break(0)
        raise StatusError(NtStatus.INVALID_OPLOCK_PROTOCOL)
    if not oplock.acknowledge(LEVEL_STATES[record.oplock_level]):
        oplock.end_break(0)
        raise StatusError(NtStatus.INVALID_OPLOCK_PROTOCOL)
    answer = OplockBreak(oplock_level=record.oplock_level, persistent=found.file_id[0], volatile=found.file_id[1])
    return Response([OPLOCK_BREAK.pack(answer)])


def _acknowledge_lease(request: Request, record: LeaseBreak) -> Response:
    """3.3.5.22.2."""
    connection = request.connection
    lease = connection.server.file_table.leases.find(connection.client_guid, record.lease_key)
    if lease is None:
        raise StatusError(NtStatus.OBJECT_NAME_NOT_FOUND)
    if not lease.breaking:
        raise StatusError(NtStatus.UNSUCCESSFUL)
    if not lease.acknowledge(record.lease_state):
        raise StatusError(NtStatus.REQUEST_NOT_ACCEPTED)
    return Response([LEASE_BREAK.pack(LeaseBreak(lease_key=lease.key, lease_state=record.lease_state))])
