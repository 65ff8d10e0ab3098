"""The place of a command in the sequence of the client's channels (MS-SMB2 3.3.5.2.10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smb3server.wire.header import Command, HeaderFlags
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.dispatch.request import Request
    from smb3server.state.objects import Open

_REPLAY = int(HeaderFlags.REPLAY_OPERATION)
_ORDERED = frozenset([int(Command.WRITE), int(Command.SET_INFO), int(Command.IOCTL)])
_HALF = 0x7FFF
"""A channel sequence that is ahead by no more is newer (16-bit arithmetic)."""


def check_sequence(request: Request, entry: Open) -> None:
    """Called when the request's sequence is not the open's, or when it is a replay. WRITE, SET_INFO and IOCTL with an
    old sequence come from a channel that the client has given up: FILE_NOT_AVAILABLE."""
    header = request.header
    if request.connection.dialect < 0x0300:
        return
    sequence = header.status & 0xFFFF
    ahead = sequence - entry.channel_sequence & 0xFFFF
    if ahead > _HALF:
        if header.command in _ORDERED:
            raise StatusError(NtStatus.FILE_NOT_AVAILABLE)
        return
    if ahead:
        entry.outstanding_pre_requests += entry.outstanding_requests
        entry.outstanding_requests = 0
        entry.channel_sequence = sequence
    if header.flags & _REPLAY and entry.outstanding_pre_requests and header.command in _ORDERED:
        raise StatusError(NtStatus.FILE_NOT_AVAILABLE)


def begin(request: Request) -> None:
    """Count a request that pends in Open.OutstandingRequestCount: no other is outstanding when the next one comes.

    A request with an old sequence is served if it changes nothing, but not counted (3.3.5.2.10). It remembers whether
    it was counted, so that ``end`` takes off exactly what was added."""
    entry = request.open
    if entry is not None and request.header.status & 0xFFFF == entry.channel_sequence:
        entry.outstanding_requests += 1
        request.counted = entry.sequence_epoch


def end(request: Request) -> None:
    """Take a request that is answered off the count it is in by now (3.3.4.1): that of the open's sequence, or, after a
    newer one came, that of older ones."""
    entry = request.open
    if entry is None or request.counted != entry.sequence_epoch:
        return
    request.counted = 0
    if request.header.status & 0xFFFF == entry.channel_sequence:
        entry.outstanding_requests -= 1
    else:
        entry.outstanding_pre_requests -= 1
