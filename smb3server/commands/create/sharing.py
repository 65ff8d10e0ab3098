"""Decides whether an open can exist beside the present ones: share modes, and caching rights to be broken first."""

from __future__ import annotations

from typing import NamedTuple

from smb3server.dispatch.waiting import MustWait
from smb3server.files.caching import Lease
from smb3server.files.file import LEASE_STAT_ACCESS, STAT_ACCESS, File, Opened
from smb3server.wire.create import Access
from smb3server.wire.status import NtStatus, StatusError

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
