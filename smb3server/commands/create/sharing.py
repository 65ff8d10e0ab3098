"""Decides whether an open can exist beside the present ones (share modes, and caching rights to be broken first), and
grants it an oplock or a lease. [MS-SMB2 3.3.5.9, 3.3.5.9.8, 3.3.5.9.11]"""

from __future__ import annotations

from typing import NamedTuple

from smb3server.dispatch.waiting import MustWait
from smb3server.files.caching import WRITE, Lease
from smb3server.files.file import LEASE_STAT_ACCESS, STAT_ACCESS, File, Opened, end_of_data
from smb3server.state.objects import Open
from smb3server.state.server_state import ServerState
from smb3server.wire import create_contexts as wire
from smb3server.wire.create import Access
from smb3server.wire.negotiate import Dialect
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.status import NtStatus, StatusError

_NO_OPLOCK = int(OplockLevel.NONE)
_LEVELS = frozenset([int(OplockLevel.II), int(OplockLevel.EXCLUSIVE), int(OplockLevel.BATCH)])


def grant_oplock(opened: Open, level: int) -> int:
    """Give a new open the best oplock that can be granted, up to ``level``. Return the OplockLevel of the response."""
    file = opened.file
    if file is None or level not in _LEVELS or opened.is_directory:
        return OplockLevel.NONE
    rules = opened.tree.share.rules
    if rules.force_level2_oplocks:
        level = OplockLevel.II
    oplock = file.caching.grant_oplock(
        opened, level, file.other_opens(opened, None), is_locked(opened, file), rules.level2_oplocks
    )
    opened.caching = oplock
    return oplock.level if oplock is not None else OplockLevel.NONE


def grant(
    server: ServerState,
    opened: Open,
    client_guid: bytes,
    dialect: int,
    level: int,
    lease: wire.Lease | wire.LeaseV2 | None,
) -> tuple[int, wire.RawContext | None]:
    """Grant a new open the oplock or the lease that its CREATE asks for. Return the OplockLevel of the response, and
    its lease context if there is one.

    ``level``: the requested one. ``lease``: the requested lease, if ``level`` is that of a lease."""
    context = None
    if lease is None:
        if level != _NO_OPLOCK:
            level = grant_oplock(opened, level)
    elif opened.is_directory and not may_lease_directories(lease, dialect, server.settings.directory_leases):
        level = OplockLevel.NONE
    else:
        level = OplockLevel.LEASE
        context = grant_lease(opened, client_guid, lease)
    if opened.caching is not None and opened.caching.state:
        server.host_changes.cover(opened)
    return level, context


def is_locked(opened: Open, file: File[Open]) -> bool:
    """Return whether a byte-range lock, of whatever open, keeps read caching from being granted. [MS-FSA 2.1.5.18]"""
    handle = opened.handle
    return bool(file.locks.locks) and handle is not None and file.locks.any_below(end_of_data(handle.info()))


def may_lease_directories(wanted: wire.Lease | wire.LeaseV2, dialect: int, enabled: bool) -> bool:
    """Return whether directories may be leased: from dialect 3.0 on, with version 2 contexts, if ``enabled``, which the
    server announces in its capabilities."""
    return enabled and dialect >= Dialect.SMB_3_0 and isinstance(wanted, wire.LeaseV2)


def grant_lease(opened: Open, client_guid: bytes, wanted: wire.Lease | wire.LeaseV2) -> wire.RawContext | None:
    """Add a new open to the lease that it names, new or not. Return the response's context; None for a pipe."""
    file = opened.file
    if file is None:
        return None
    lease = _lease(file, opened.is_directory, client_guid, wanted)
    lease.opens.append(opened)
    opened.caching = lease
    state = wanted.lease_state
    if opened.tree.share.rules.force_level2_oplocks:
        state &= ~WRITE
    file.caching.grant_lease(
        lease, state, file.other_opens(opened, lease), is_locked(opened, file), opened.is_directory
    )
    return lease_context(lease)


def _lease(file: File[Open], directory: bool, client_guid: bytes, wanted: wire.Lease | wire.LeaseV2) -> Lease[Open]:
    """Return the lease that a request names, made if it is new."""
    leases = file.table.leases
    lease = leases.find(client_guid, wanted.lease_key)
    if lease is None:
        lease = Lease(file.caching, client_guid, wanted.lease_key, 2 if isinstance(wanted, wire.LeaseV2) else 1)
        if isinstance(wanted, wire.LeaseV2):
            lease.epoch = wanted.epoch
            if wanted.flags & wire.LeaseFlags.PARENT_LEASE_KEY_SET:
                lease.parent_key = wanted.parent_lease_key
        lease.directory = directory
        leases.add(lease)
    return lease


def lease_context(lease: Lease[Open]) -> wire.RawContext:
    """Return the response context of a lease."""
    flags = int(wire.LeaseFlags.BREAK_IN_PROGRESS) if lease.breaking else 0
    if lease.version == 1:
        data = wire.LEASE_CODEC.pack(wire.Lease(lease.key, lease.state, flags))
    else:
        if lease.parent_key is not None:
            flags |= wire.LeaseFlags.PARENT_LEASE_KEY_SET
        data = wire.LEASE_V2_CODEC.pack(
            wire.LeaseV2(lease.key, lease.state, flags, 0, lease.parent_key or bytes(16), lease.epoch)
        )
    return wire.RawContext(wire.REQUEST_LEASE, data)


_WRITE_DATA = int(Access.WRITE_DATA)


class NewOpen(NamedTuple):
    """An open that is about to be made."""

    access: int
    """The granted access."""
    share_access: int
    overwrites: bool


def admit(file: File[Opened], new: NewOpen, own: Lease[Opened] | None, first: bool) -> None:
    """Break the caching rights of others as far as the new open demands, and refuse it if share modes conflict. [MS-FSA
    2.1.5.1.2.2, 2.1.4.12]

    ``own``: the lease that the new open names, which is not broken. ``first``: the request has not waited yet. Raises
    ``MustWait`` while a break is under way, SHARING_VIOLATION."""
    access = new.access | _WRITE_DATA if new.overwrites else new.access
    violation = file.share_conflict(access, new.share_access)
    if file.caching.holders:
        # A lease is also not broken for READ_CONTROL.
        seen = violation or new.overwrites or new.access & ~STAT_ACCESS
        spare = not (violation or new.overwrites or new.access & ~LEASE_STAT_ACCESS)
        if seen and file.caching.break_for_open(own, new.overwrites, violation, first, spare):
            raise MustWait(file.caching)
        # A break may have closed the open that was in the way.
        violation = violation and file.share_conflict(access, new.share_access)
    if violation:
        raise StatusError(NtStatus.SHARING_VIOLATION)


def wait_for_deletion(file: File[Opened], own: Lease[Opened] | None) -> None:
    """Raise ``MustWait`` while a break asks clients to close a file that they keep open for their caches, and that is
    about to be deleted.

    Windows answers DELETE_PENDING, which reaches an application that has just removed the file and creates it again."""
    if any(holder.breaking for holder in file.caching.others(own)):
        raise MustWait(file.caching)
