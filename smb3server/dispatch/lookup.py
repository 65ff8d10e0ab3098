"""Finding the open that a command works on, and verifying its channel sequence. [MS-SMB2 3.3.5.2.10]"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from smb3server.wire.header import RELATED_FILE_ID, Command, FileId, HeaderFlags
from smb3server.wire.negotiate import Dialect
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.backends.base import Backend, Handle
    from smb3server.dispatch.chain import Fresh
    from smb3server.dispatch.request import Request, TreeRequest
    from smb3server.state.objects import Open
    from smb3server.wire.header import Header

_REPLAY = int(HeaderFlags.REPLAY_OPERATION)
_RELATED = int(HeaderFlags.RELATED_OPERATIONS)
_ORDERED = frozenset([int(Command.WRITE), int(Command.SET_INFO), int(Command.IOCTL)])
_HALF = 0x7FFF
"""A channel sequence that is ahead by at most this is newer (16-bit arithmetic)."""


def find_open(request: TreeRequest, file_id: FileId) -> Open:
    """Return the open that a command names, or the one its compound works on, and note it in ``request``. [MS-SMB2
    3.3.5.2.7.2]

    Raises ``StatusError``: FILE_CLOSED if there is none, FILE_NOT_AVAILABLE for an old request of a failed channel."""
    chain = request.chain
    if chain.file_id is not None and (file_id == RELATED_FILE_ID or request.header.flags & _RELATED):
        # Whatever FileId a related command has, it works on the file of the command before it.
        file_id = chain.file_id
    session = request.session
    opened = session.open_table.get(file_id[1])
    if opened is None or opened.file_id != file_id or opened.tree is not request.tree:
        raise StatusError(NtStatus.FILE_CLOSED)
    request.open = opened
    if opened.replayable is not None:
        request.server.opens.replays.forget(opened)
    header = request.header
    if header.status != opened.channel_sequence or header.flags & _REPLAY:
        _check_sequence(request, opened)
    return opened


def fresh_of(request: TreeRequest, opened: Open) -> Fresh | None:
    """Return what the CREATE of ``opened`` has found, if this command came right behind it."""
    fresh = request.chain.fresh
    return fresh if fresh is not None and fresh.opened is opened else None


def handle_of(opened: Open) -> Handle:
    """Return the file handle of an open. Raises ``StatusError``: INVALID_DEVICE_REQUEST for a pipe, or if the open was
    closed meanwhile."""
    if opened.handle is None:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    return opened.handle


def store_of(opened: Open) -> Backend:
    """Return the store of an open. Raises ``StatusError``: INVALID_DEVICE_REQUEST for a pipe."""
    if opened.store is None:
        raise StatusError(NtStatus.INVALID_DEVICE_REQUEST)
    return opened.store


def _check_sequence(request: Request, opened: Open) -> None:
    """Note a newer channel sequence in the open. Called if the sequence differs from that of the open, or for a replay.
    [MS-SMB2 3.3.5.2.10]

    Raises ``StatusError``, FILE_NOT_AVAILABLE, for WRITE, SET_INFO and IOCTL with an older sequence, which come from a
    channel that the client has given up."""
    header = request.header
    if request.connection.dialect < Dialect.SMB_3_0:
        return
    sequence = header.status & 0xFFFF
    ahead = sequence - opened.channel_sequence & 0xFFFF
    if ahead > _HALF:
        if header.command in _ORDERED:
            raise StatusError(NtStatus.FILE_NOT_AVAILABLE)
        return
    if ahead:
        opened.outstanding_pre_requests += opened.outstanding_requests
        opened.outstanding_requests = 0
        opened.channel_sequence = sequence
    if header.flags & _REPLAY and opened.outstanding_pre_requests and header.command in _ORDERED:
        raise StatusError(NtStatus.FILE_NOT_AVAILABLE)


class Counted(Protocol):
    """What is counted: a request."""

    counted: int

    @property
    def header(self) -> Header: ...

    @property
    def open(self) -> Open | None: ...


def begin(request: Request) -> None:
    """Count a request that pends in Open.OutstandingRequestCount. Other requests are answered before the next one
    comes, so they need not be counted.

    A request with an old sequence that changes nothing is served, but not counted (3.3.5.2.10). The request remembers
    whether it was counted, so that ``end`` subtracts exactly what was added."""
    opened = request.open
    if opened is not None and request.header.status & 0xFFFF == opened.channel_sequence:
        opened.outstanding_requests += 1
        request.counted = opened.sequence_epoch


def end(request: Counted) -> None:
    """Subtract an answered request from the count it is in: that of the open's current sequence, or that of older
    sequences if a newer one came meanwhile. [MS-SMB2 3.3.4.1]"""
    opened = request.open
    if opened is None or request.counted != opened.sequence_epoch:
        return
    request.counted = 0
    if request.header.status & 0xFFFF == opened.channel_sequence:
        opened.outstanding_requests -= 1
    else:
        opened.outstanding_pre_requests -= 1
