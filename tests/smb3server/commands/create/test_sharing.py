"""Share modes and caching rights against a new open: no server, no store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from smb3server.backends.base import FileKey, Handle
from smb3server.commands.create.sharing import NewOpen, admit, wait_for_deletion
from smb3server.dispatch.waiting import MustWait
from smb3server.files.caching import HANDLE, NONE, READ, WRITE, Holder, Lease, Oplock
from smb3server.files.file import File, FileTable
from smb3server.wire.create import Access, ShareAccess
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.status import NtStatus, StatusError

READS, WRITES, DELETES = int(Access.READ_DATA), int(Access.WRITE_DATA), int(Access.DELETE)
ATTRIBUTES = int(Access.READ_ATTRIBUTES)
NOTHING, ALL = 0, int(ShareAccess.READ | ShareAccess.WRITE | ShareAccess.DELETE)


class FakeOpen:
    """An open as a file sees it."""

    handle: Handle | None = None
    usage = None
    parent_lease_key: bytes | None = None

    def __init__(self, file: File[FakeOpen], access: int, share: int) -> None:
        self.granted_access = access
        self.share_access = share
        self.caching: Holder[FakeOpen] | None = None
        file.opens.append(self)

    def begin_io(self) -> None: ...

    def end_io(self) -> None: ...


class Clients:
    """``Breaks`` that notes what is sent; nobody acknowledges."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        class Timer:
            def cancel(self) -> None: ...

        return Timer()

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()

    def notify_lease(self, lease: Lease[FakeOpen], current: int, new: int, ack_required: bool) -> bool:
        self.told.append(new)
        return True

    def notify_oplock(self, oplock: Oplock[FakeOpen], level: int) -> bool:
        self.told.append(level)
        return True

    def changed(self, holder: Holder[FakeOpen]) -> None: ...


@pytest.fixture
def clients() -> Clients:
    return Clients()


@pytest.fixture
def file(clients: Clients) -> File[FakeOpen]:
    table: FileTable[FakeOpen] = FileTable(clients)
    return table.get(FileKey(1, 2))


def hold_oplock(file: File[FakeOpen], opened: FakeOpen, level: int = OplockLevel.BATCH) -> Oplock[FakeOpen]:
    oplock = file.caching.grant_oplock(opened, level, other_opens=False, locked=False)
    assert oplock is not None
    opened.caching = oplock
    return oplock


def hold_lease(file: File[FakeOpen], opened: FakeOpen, state: int) -> Lease[FakeOpen]:
    lease = Lease(file.caching, b"client", b"key", 2)
    lease.opens.append(opened)
    opened.caching = lease
    file.caching.grant_lease(lease, state, other_opens=False, locked=False, directory=False)
    assert lease.state == state
    return lease


def test_opens_that_share_need_nothing(file: File[FakeOpen], clients: Clients) -> None:
    FakeOpen(file, READS | WRITES, ALL)
    admit(file, NewOpen(READS | WRITES, ALL, False), None, True)
    assert clients.told == []


@pytest.mark.parametrize(
    ("access", "share", "overwrites"),
    [(READS, NOTHING, False), (READS, NOTHING, True), (DELETES, ALL & ~int(ShareAccess.DELETE), False)],
)
def test_a_violation_with_nothing_to_break(file: File[FakeOpen], access: int, share: int, overwrites: bool) -> None:
    FakeOpen(file, READS | WRITES | DELETES, int(ShareAccess.READ))
    with pytest.raises(StatusError) as refused:
        admit(file, NewOpen(access, share, overwrites), None, True)
    assert refused.value.status == NtStatus.SHARING_VIOLATION


def test_overwriting_counts_as_writing(file: File[FakeOpen]) -> None:
    FakeOpen(file, READS, int(ShareAccess.READ))
    admit(file, NewOpen(READS, ALL, False), None, True)
    with pytest.raises(StatusError):
        admit(file, NewOpen(READS, ALL, True), None, True)


def test_write_caching_is_waited_for_once(file: File[FakeOpen], clients: Clients) -> None:
    oplock = hold_oplock(file, FakeOpen(file, READS | WRITES, ALL))
    new = NewOpen(READS, ALL, False)
    with pytest.raises(MustWait) as waits:
        admit(file, new, None, True)
    assert waits.value.breaking is file.caching
    assert clients.told == [OplockLevel.II]
    assert oplock.acknowledge(READ)
    admit(file, new, None, False)
    assert clients.told == [OplockLevel.II]


def test_a_violation_takes_handle_caching(file: File[FakeOpen], clients: Clients) -> None:
    """Who only caches the handle lets go of it, and is no longer in the way."""
    holder = FakeOpen(file, READS, NOTHING)
    lease = hold_lease(file, holder, READ | HANDLE)
    with pytest.raises(MustWait):
        admit(file, NewOpen(READS, ALL, False), None, True)
    assert clients.told == [READ]
    file.opens.remove(holder)
    file.caching.drop(lease)
    admit(file, NewOpen(READS, ALL, False), None, False)


def test_the_own_lease_is_spared(file: File[FakeOpen], clients: Clients) -> None:
    lease = hold_lease(file, FakeOpen(file, READS | WRITES, ALL), READ | WRITE | HANDLE)
    admit(file, NewOpen(READS | WRITES, ALL, False), lease, True)
    assert clients.told == []


def test_attributes_alone_break_nothing(file: File[FakeOpen], clients: Clients) -> None:
    hold_oplock(file, FakeOpen(file, READS | WRITES, ALL))
    admit(file, NewOpen(ATTRIBUTES, NOTHING, False), None, True)
    assert clients.told == []


def test_a_deleted_file_that_is_only_cached_is_waited_for(file: File[FakeOpen]) -> None:
    lease = hold_lease(file, FakeOpen(file, READS, ALL), READ | HANDLE)
    wait_for_deletion(file, None)
    lease.lower(READ)
    with pytest.raises(MustWait):
        wait_for_deletion(file, None)
    wait_for_deletion(file, lease)
    assert lease.acknowledge(NONE)
    wait_for_deletion(file, None)
