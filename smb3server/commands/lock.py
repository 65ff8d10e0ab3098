"""LOCK (MS-SMB2 3.3.5.14, MS-FSA 2.1.5.7, 2.1.5.8)."""

from __future__ import annotations

from smb3server.dispatch.lookup import find_open
from smb3server.dispatch.request import Interim, Pending, Response, TreeRequest, handles
from smb3server.dispatch.waiting import answer
from smb3server.files import host_locks
from smb3server.files.file import File
from smb3server.files.locks import Lock, Waiter, valid_range
from smb3server.state.objects import Open
from smb3server.wire.create import Access
from smb3server.wire.header import Command
from smb3server.wire.lock import LOCK_RESPONSE, LockElement, LockFlags, LockRequest, LockResponse, parse_request
from smb3server.wire.negotiate import Dialect
from smb3server.wire.status import NtStatus, StatusError

_SHARED, _EXCLUSIVE, _UNLOCK, _FAIL = (
    int(LockFlags.SHARED_LOCK),
    int(LockFlags.EXCLUSIVE_LOCK),
    int(LockFlags.UNLOCK),
    int(LockFlags.FAIL_IMMEDIATELY),
)
_VALID_LOCKS = frozenset([_SHARED, _EXCLUSIVE, _SHARED | _FAIL, _EXCLUSIVE | _FAIL])
_DATA_ACCESS = int(Access.READ_DATA | Access.WRITE_DATA | Access.APPEND_DATA | Access.EXECUTE)
_DONE = LOCK_RESPONSE.pack(LockResponse())
_MULTI_CHANNEL = 0x00000008
"""SMB2_GLOBAL_CAP_MULTI_CHANNEL."""
_HOST_POLL = 0.1
"""Seconds between attempts at a range that a program of the host has locked."""
MAX_SEQUENCE_INDEX = 64
MAX_ELEMENTS = 256
"""Ranges of one request: they are taken all or none, so in one turn. Linux's client sends up to 168."""


@handles(Command.LOCK, TreeRequest)
def lock(request: TreeRequest) -> Response | Pending:
    """The first element tells whether this is an unlock request (3.3.5.14.1) or a lock request (3.3.5.14.2)."""
    record, elements = parse_request(request.message)
    found = find_open(request, (record.persistent, record.volatile))
    if found.is_directory or found.file is None:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST if found.file is None else NtStatus.INVALID_PARAMETER)
    if not found.granted_access & _DATA_ACCESS:
        raise StatusError(NtStatus.ACCESS_DENIED)
    if len(elements) > MAX_ELEMENTS:
        raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)
    if _is_replay(request, found, record):
        return Response([_DONE])
    if elements[0].flags == _UNLOCK:
        released: list[Lock[Open]] = []
        try:
            _unlock(found, found.file, elements, released)
        finally:
            _store(request, found, record, [], released)
    else:
        pending = _lock(request, record, found, found.file, elements)
        if pending is not None:
            return pending
        _store(request, found, record, elements, [])
    _remember(request, found, record)
    return Response([_DONE])


def _store(
    request: TreeRequest, found: Open, record: LockRequest, taken: list[LockElement], released: list[Lock[Open]]
) -> None:
    """Locks of a persistent open are stored before the client hears of them. Where that fails they are as before."""
    persistence = request.server.opens.persistence
    if persistence is None or found.durable is None or not found.durable.persistent:
        return

    def undo() -> None:
        if found.file is None or found.handle is None:
            return
        found.lock_sequences.pop(_sequence_index(request, found, record), None)
        for element in taken:
            _give_back(found, found.file, element)
        for lock in released:
            # Somebody else may have it by now: then the client lost it with this failure.
            kind = _EXCLUSIVE if lock.exclusive else _SHARED
            _take(found, found.file, LockElement(lock.offset, lock.length, kind))

    persistence.changed(found, undo)


def _sequence_index(request: TreeRequest, found: Open, record: LockRequest) -> int:
    """The LockSequenceArray's index to use; 0 where sequences do not count (3.3.5.14): dialect 2.0.2, or 2.1 without a
    resilient handle."""
    index = record.lock_sequence >> 4
    resilient = found.durable is not None and found.durable.resilient
    if request.connection.dialect < (Dialect.SMB_2_1 if resilient else Dialect.SMB_3_0) or index > MAX_SEQUENCE_INDEX:
        return 0
    if found.durable is None and not request.connection.server_capabilities & _MULTI_CHANNEL:
        return 0
    return index


def _is_replay(request: TreeRequest, found: Open, record: LockRequest) -> bool:
    """The same number again under one index: the lock was done, its response got lost. Another number makes the entry
    invalid until this request succeeds."""
    index = _sequence_index(request, found, record)
    if not index:
        return False
    if found.lock_sequences.get(index) == record.lock_sequence & 0xF:
        return True
    found.lock_sequences.pop(index, None)
    return False


def _remember(request: TreeRequest, found: Open, record: LockRequest) -> None:
    index = _sequence_index(request, found, record)
    if index:
        found.lock_sequences[index] = record.lock_sequence & 0xF


def _unlock(found: Open, file: File[Open], elements: list[LockElement], released: list[Lock[Open]]) -> None:
    """What was unlocked before a failing element stays so."""
    try:
        for element in elements:
            if element.flags != _UNLOCK:
                raise StatusError(NtStatus.INVALID_PARAMETER)
            if not valid_range(element.offset, element.length):
                raise StatusError(NtStatus.INVALID_LOCK_RANGE)
            lock = file.locks.release(found, element.offset, element.length, grant=False)
            if lock is None:
                raise StatusError(NtStatus.RANGE_NOT_LOCKED)
            _release_on_host(found, file, element)
            released.append(lock)
    finally:
        if released:
            file.locks.grant_waiters()


def _lock(
    request: TreeRequest, record: LockRequest, found: Open, file: File[Open], elements: list[LockElement]
) -> Pending | None:
    """All or nothing. Only a single element may wait."""
    for element in elements:
        if element.flags not in _VALID_LOCKS or (len(elements) > 1 and not element.flags & _FAIL):
            raise StatusError(NtStatus.INVALID_PARAMETER)
    limit = request.server.settings.max_locks - len(elements)
    # The open's own locks are counted only where they can be too many.
    if len(file.locks.locks) + len(file.locks.waiters) > limit and file.locks.count_of(found) > limit:
        raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)
    if found.usage is not None:
        request.server.ceilings.check_locks(found.usage, len(elements))
    file.data_changes(found.caching)
    taken: list[LockElement] = []
    try:
        for element in elements:
            if not valid_range(element.offset, element.length):
                raise StatusError(NtStatus.INVALID_LOCK_RANGE)
            if _take(found, file, element):
                taken.append(element)
            elif element.flags & _FAIL:
                raise StatusError(NtStatus.LOCK_NOT_GRANTED)
            else:
                return _wait(request, record, found, file, element)
    except (StatusError, OSError):
        for element in reversed(taken):
            _give_back(found, file, element)
        raise
    return None


def _take(found: Open, file: File[Open], element: LockElement) -> bool:
    """From the server's own table, then from the host."""
    exclusive = bool(element.flags & _EXCLUSIVE)
    if not file.locks.acquire(found, element.offset, element.length, exclusive):
        return False
    return _take_from_host(found, file, element)


def _take_from_host(found: Open, file: File[Open], element: LockElement) -> bool:
    """The server's own table has granted it; if the host does not, that gets it back."""
    try:
        taken = host_locks.take(_on_host(found), element.offset, element.length, bool(element.flags & _EXCLUSIVE))
    except OSError:
        _give_back(found, file, element)
        raise
    if not taken:
        _give_back(found, file, element)
    return taken


def _on_host(found: Open) -> int | None:
    """The descriptor for locks that programs of the host see; None: the share has none."""
    return found.descriptor if found.tree.share.posix_locks else None


def _release_on_host(found: Open, file: File[Open], element: LockElement) -> None:
    descriptor = _on_host(found)
    if descriptor is not None:
        host_locks.release(descriptor, file.locks.locks_of(found), element.offset, element.length)


def _give_back(found: Open, file: File[Open], element: LockElement) -> None:
    file.locks.release_newest(found, element.offset, element.length, bool(element.flags & _EXCLUSIVE))
    _release_on_host(found, file, element)


def _wait(request: TreeRequest, record: LockRequest, found: Open, file: File[Open], element: LockElement) -> Pending:
    """Pending until the range is free, at once visible to the client; CANCEL ends it with CANCELLED, CLOSE with
    RANGE_NOT_LOCKED."""

    def granted() -> Response | None:
        if not _take_from_host(found, file, element):
            request.connection.loop.call_later(_HOST_POLL, again)
            return None
        _remember(request, found, record)
        _store(request, found, record, [element], [])
        return Response([_DONE])

    def queue() -> None:
        exclusive = bool(element.flags & _EXCLUSIVE)
        waiting[:] = [
            file.locks.wait(found, element.offset, element.length, exclusive, lambda: answer(pending, granted), closed)
        ]

    def again() -> None:
        """Nobody tells when a program of the host lets go."""
        if found.handle is None:
            closed()
        elif not pending.done:
            queue()
            file.locks.grant_waiters()

    def closed() -> None:
        pending.fail(StatusError(NtStatus.RANGE_NOT_LOCKED))

    def cancelled() -> None:
        for waiter in waiting:
            file.locks.cancel(waiter)
        if pending.closing:
            # Windows answers a lock whose session or tree connect ends as if it had been granted.
            pending.complete(Response([_DONE]))
        else:
            pending.fail(StatusError(NtStatus.CANCELLED))

    pending = request.pend(Interim.AT_ONCE, cancelled)
    waiting: list[Waiter[Open]] = []
    queue()
    if found.tree.share.posix_locks:
        request.connection.loop.call_later(_HOST_POLL, file.locks.grant_waiters)
    return pending
