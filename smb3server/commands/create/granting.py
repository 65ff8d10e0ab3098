"""Which oplock or lease a new open gets (MS-SMB2 3.3.5.9, 3.3.5.9.8, 3.3.5.9.11)."""

from __future__ import annotations

from smb3server.commands.create.opening import Opening
from smb3server.files.caching import Lease
from smb3server.files.file import File
from smb3server.state.objects import Open
from smb3server.wire import create_contexts as contexts
from smb3server.wire.negotiate import Dialect
from smb3server.wire.oplock_break import OplockLevel


def grant(opening: Opening, opened: Open) -> tuple[int, contexts.RawContext | None]:
    """OplockLevel of the response, and its lease context."""
    file = opened.file
    if file is None:
        return OplockLevel.NONE, None
    if opening.wanted_lease is not None:
        if opened.is_directory and not may_lease_directories(opening):
            return OplockLevel.NONE, None
        return OplockLevel.LEASE, _grant_lease(opening, opened, file, opening.wanted_lease)
    level = opening.record.requested_oplock_level
    if level not in (OplockLevel.II, OplockLevel.EXCLUSIVE, OplockLevel.BATCH) or opened.is_directory:
        return OplockLevel.NONE, None
    oplock = file.caching.grant_oplock(
        opened, level, file.other_opens(opened, None), bool(file.locks.locks), opened.tree.share.level2_oplocks
    )
    opened.caching = oplock
    if oplock is not None:
        opening.request.server.host_changes.cover(opened)
    return (oplock.level if oplock is not None else OplockLevel.NONE), None


def may_lease_directories(opening: Opening) -> bool:
    """From dialect 3.0 on, with version 2 contexts, where the server says so in its capabilities."""
    connection = opening.request.connection
    return (
        connection.dialect >= Dialect.SMB_3_0
        and opening.request.server.settings.directory_leases
        and isinstance(opening.wanted_lease, contexts.LeaseV2)
    )


def _grant_lease(
    opening: Opening, opened: Open, file: File[Open], wanted: contexts.Lease | contexts.LeaseV2
) -> contexts.RawContext:
    table = file.table
    client_guid = opening.request.connection.client_guid
    lease = table.leases.find(client_guid, wanted.lease_key)
    if lease is None:
        lease = Lease(file.caching, client_guid, wanted.lease_key, 2 if isinstance(wanted, contexts.LeaseV2) else 1)
        if isinstance(wanted, contexts.LeaseV2):
            lease.epoch = wanted.epoch
            if wanted.flags & contexts.LeaseFlags.PARENT_LEASE_KEY_SET:
                lease.parent_key = wanted.parent_lease_key
        lease.directory = opened.is_directory
        table.leases.add(lease)
    lease.opens.append(opened)
    opened.caching = lease
    file.caching.grant_lease(
        lease, wanted.lease_state, file.other_opens(opened, lease), bool(file.locks.locks), opened.is_directory
    )
    if lease.state:
        opening.request.server.host_changes.cover(opened)
    return lease_context(lease)


def lease_context(lease: Lease[Open]) -> contexts.RawContext:
    """What a response says about a lease."""
    flags = int(contexts.LeaseFlags.BREAK_IN_PROGRESS) if lease.breaking else 0
    if lease.version == 1:
        data = contexts.LEASE_CODEC.pack(contexts.Lease(lease.key, lease.state, flags))
    else:
        if lease.parent_key is not None:
            flags |= contexts.LeaseFlags.PARENT_LEASE_KEY_SET
        data = contexts.LEASE_V2_CODEC.pack(
            contexts.LeaseV2(lease.key, lease.state, flags, 0, lease.parent_key or bytes(16), lease.epoch)
        )
    return contexts.RawContext(contexts.REQUEST_LEASE, data)
