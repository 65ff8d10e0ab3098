"""LOCK. [MS-SMB2 3.3.5.14, MS-FSA 2.1.5.7, 2.1.5.8]"""

from __future__ import annotations

from collections.abc import Sequence

from smb3server.dispatch.lookup import find_open, handle_of
from smb3server.dispatch.request import Interim, Pending, Response, TreeRequest, handles
from smb3server.dispatch.waiting import answer
from smb3server.files import host_locks
from smb3server.files.file import File, end_of_data
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
"""Limit of the ranges of one request, as all or none are taken in one turn. Linux sends up to 168."""


@handles(Command.LOCK, TreeRequest)
def lock(request: TreeRequest) -> Response | Pending:
    """Lock or unlock ranges of a file. The first element decides between the two. [MS-SMB2 3.3.5.14.1, 3.3.5.14.2]"""
    body, elements = parse_request(request.message)
    opened = find_open(request, (body.persistent, body.volatile))
    if opened.is_directory or opened.file is None:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST if opened.file is None else NtStatus.INVALID_PARAMETER)
    if opened.virtual_disk is not None:
        # MS-RSVD 3.2.4: initiators reserve the disk instead.
        raise StatusError(NtStatus.LOCK_NOT_GRANTED)
    if not opened.granted_access & _DATA_ACCESS:
        raise StatusError(NtStatus.ACCESS_DENIED)
    if len(elements) > MAX_ELEMENTS:
        raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)
    if _is_replay(request, opened, body):
        return Response([_DONE])
    if elements[0].flags == _UNLOCK:
        released: list[Lock[Open]] = []
        try:
            _unlock(opened, opened.file, elements, released)
        finally:
            _store(request, opened, body, [], released)
    else:
        pending = _lock(request, body, opened, opened.file, elements)
        if pending is not None:
            return pending
        _store(request, opened, body, elements, [])
    _remember(request, opened, body)
    return Response([_DONE])


def _store(
    request: TreeRequest, opened: Open, body: LockRequest, taken: list[LockElement], released: list[Lock[Open]]
) -> None:
    """Store the locks of a persistent open before the reply is sent. If that fails, restore the previous locks."""
    persistence = request.server.opens.persistence
    if persistence is None or opened.durable is None or not opened.durable.persistent:
        return

    def undo() -> None:
        if opened.file is None or opened.handle is None:
            return
        opened.lock_sequences.pop(_sequence_index(request, opened, body), None)
        _give_back(opened, opened.file, taken)
        for lock in released:
            # Another open may hold the range by now: then the client has lost its lock by this failure.
            kind = _EXCLUSIVE if lock.exclusive else _SHARED
            _take(opened, opened.file, LockElement(lock.offset, lock.length, kind))

    persistence.changed(opened, undo)


def _sequence_index(request: TreeRequest, opened: Open, body: LockRequest) -> int:
    """Return the index in LockSequenceArray. It is 0 if sequences are not used: in dialect 2.0.2, in 2.1 without a
    resilient handle, and in 3.x without a durable one on a server without Multichannel. [MS-SMB2 3.3.5.14]"""
    index = body.lock_sequence >> 4
    resilient = opened.durable is not None and opened.durable.resilient
    if request.connection.dialect < (Dialect.SMB_2_1 if resilient else Dialect.SMB_3_0) or index > MAX_SEQUENCE_INDEX:
        return 0
    if opened.durable is None and not request.connection.server_capabilities & _MULTI_CHANNEL:
        return 0
    return index


def _is_replay(request: TreeRequest, opened: Open, body: LockRequest) -> bool:
    """Return whether the request repeats the last number of its index: it succeeded, but its response was lost.

    Another number invalidates the entry until this request succeeds."""
    index = _sequence_index(request, opened, body)
    if not index:
        return False
    if opened.lock_sequences.get(index) == body.lock_sequence & 0xF:
        return True
    opened.lock_sequences.pop(index, None)
    return False


def _remember(request: TreeRequest, opened: Open, body: LockRequest) -> None:
    """Note the sequence number of a request that has succeeded."""
    index = _sequence_index(request, opened, body)
    if index:
        opened.lock_sequences[index] = body.lock_sequence & 0xF


def _unlock(opened: Open, file: File[Open], elements: list[LockElement], released: list[Lock[Open]]) -> None:
    """Unlock ranges. If one fails, those before it stay unlocked. Append the removed locks to ``released``."""
    try:
        for element in elements:
            if element.flags != _UNLOCK:
                raise StatusError(NtStatus.INVALID_PARAMETER)
            if not valid_range(element.offset, element.length):
                raise StatusError(NtStatus.INVALID_LOCK_RANGE)
            lock = file.locks.release(opened, element.offset, element.length, grant=False)
            if lock is None:
                raise StatusError(NtStatus.RANGE_NOT_LOCKED)
            released.append(lock)
    finally:
        if released:
            _release_on_host(opened, file, released)
            file.locks.grant_waiters()


def _lock(
    request: TreeRequest, body: LockRequest, opened: Open, file: File[Open], elements: list[LockElement]
) -> Pending | None:
    """Take all locks or none. Return None, or the pending request, which must be for a single lock, if it waits."""
    for element in elements:
        if element.flags not in _VALID_LOCKS or (len(elements) > 1 and not element.flags & _FAIL):
            raise StatusError(NtStatus.INVALID_PARAMETER)
    limit = request.server.settings.max_locks - len(elements)
    # The open's own locks are counted only where they can be too many.
    if len(file.locks.locks) + len(file.locks.waiters) > limit and file.locks.count_of(opened) > limit:
        raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)
    if opened.usage is not None:
        request.server.ceilings.check_locks(opened.usage, len(elements))
    _break_caching(opened, file, elements)
    if file.caching.loans:
        file.caching.end_loans("a byte-range lock")
    taken: list[LockElement] = []
    try:
        for element in elements:
            if not valid_range(element.offset, element.length):
                raise StatusError(NtStatus.INVALID_LOCK_RANGE)
            if _take(opened, file, element):
                taken.append(element)
            elif element.flags & _FAIL:
                raise StatusError(NtStatus.LOCK_NOT_GRANTED)
            else:
                return _wait(request, body, opened, file, element)
    except (StatusError, OSError):
        _give_back(opened, file, taken)
        raise
    return None


def _break_caching(opened: Open, file: File[Open], elements: list[LockElement]) -> None:
    """Break the caching rights of others, unless all locks begin behind the stream's data. [MS-FSA 2.1.5.8]

    By the letter no lock of an empty file breaks anything. smbtorture (smb2.lease.lock1) wants all of them to."""
    if not file.caching.is_broken_by_write(opened.caching):
        return
    end = end_of_data(handle_of(opened).info())
    if not end or any(element.offset < end for element in elements):
        file.data_changes(opened.caching)


def _take(opened: Open, file: File[Open], element: LockElement) -> bool:
    """Take a lock from the server's own table, then from the host. Return whether both have granted it."""
    exclusive = bool(element.flags & _EXCLUSIVE)
    if not file.locks.acquire(opened, element.offset, element.length, exclusive):
        return False
    return _take_from_host(opened, file, element)


def _take_from_host(opened: Open, file: File[Open], element: LockElement) -> bool:
    """Take a lock, which the server's own table has granted, from the host. If the host refuses it, give it back."""
    try:
        taken = host_locks.take(_on_host(opened), element.offset, element.length, bool(element.flags & _EXCLUSIVE))
    except OSError:
        _give_back(opened, file, [element])
        raise
    if not taken:
        _give_back(opened, file, [element])
    return taken


def _on_host(opened: Open) -> int | None:
    """Return the descriptor for locks that programs of the host see, or None if the share has none."""
    return opened.descriptor if opened.tree.share.rules.posix_locks else None


def _release_on_host(opened: Open, file: File[Open], ranges: Sequence[Lock[Open] | LockElement]) -> None:
    descriptor = _on_host(opened)
    if descriptor is not None:
        host_locks.release(descriptor, file.locks.locks_of(opened), [(entry.offset, entry.length) for entry in ranges])


def _give_back(opened: Open, file: File[Open], taken: Sequence[LockElement]) -> None:
    """Release what a request has taken, whose later part has failed."""
    for element in reversed(taken):
        exclusive = bool(element.flags & _EXCLUSIVE)
        file.locks.release_newest(opened, element.offset, element.length, exclusive, grant=False)
    try:
        _release_on_host(opened, file, taken)
    finally:
        file.locks.grant_waiters()


def _wait(request: TreeRequest, body: LockRequest, opened: Open, file: File[Open], element: LockElement) -> Pending:
    """Wait until the range is free, with an interim reply. CANCEL ends it as CANCELLED, CLOSE as RANGE_NOT_LOCKED."""

    def granted() -> Response | None:
        if not _take_from_host(opened, file, element):
            request.connection.loop.call_later(_HOST_POLL, again)
            return None
        _remember(request, opened, body)
        _store(request, opened, body, [element], [])
        return Response([_DONE])

    def queue() -> None:
        exclusive = bool(element.flags & _EXCLUSIVE)
        waiting[:] = [
            file.locks.wait(opened, element.offset, element.length, exclusive, lambda: answer(pending, granted), closed)
        ]

    def look() -> None:
        for waiter in waiting:
            file.locks.retry(waiter)

    def again() -> None:
        """Try again, because there is no notification when a program of the host unlocks a range."""
        if opened.handle is None:
            closed()
        elif not pending.done:
            queue()
            look()

    def closed() -> None:
        pending.fail(StatusError(NtStatus.RANGE_NOT_LOCKED))

    def cancelled() -> None:
        for waiter in waiting:
            file.locks.cancel(waiter)
        if pending.closing:
            # Windows: answers a lock whose session or tree connect ends as if it had been granted.
            pending.complete(Response([_DONE]))
        else:
            pending.fail(StatusError(NtStatus.CANCELLED))

    pending = request.pend(Interim.AT_ONCE, cancelled)
    waiting: list[Waiter[Open]] = []
    queue()
    if opened.tree.share.rules.posix_locks:
        request.connection.loop.call_later(_HOST_POLL, look)
    return pending
