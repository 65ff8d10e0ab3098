"""Requests sent again: CREATE by its CreateGuid (MS-SMB2 3.3.5.9.10), others by channel sequence (3.3.5.2.10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smb3server.files.caching import LEVEL_STATES, Lease
from smb3server.wire import create_contexts as contexts
from smb3server.wire.header import Command, HeaderFlags
from smb3server.wire.negotiate import Dialect
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.dispatch.request import Pending, Request
    from smb3server.state.objects import Open, Session
    from smb3server.wire.create import CreateResponse

Key = tuple[bytes, bytes]
"""(ClientGuid, CreateGuid)."""

_REPLAY = int(HeaderFlags.REPLAY_OPERATION)
_ORDERED = frozenset([int(Command.WRITE), int(Command.SET_INFO), int(Command.IOCTL)])
_HALF = 0x7FFF
"""A channel sequence that is ahead by no more is newer (16-bit arithmetic)."""


class Replayable:
    """What a replayed CREATE is answered with. An open has one until it is used (Open.IsReplayEligible)."""

    __slots__ = ("answers", "key", "response")

    def __init__(self, key: Key, response: CreateResponse, answers: list[contexts.RawContext]) -> None:
        self.key = key
        self.response = response
        self.answers = answers
        """Contexts that do not change with time."""


class Replays:
    """A server's CREATEs that may come again."""

    def __init__(self) -> None:
        self._opens: dict[Key, Open] = {}
        self._pending: dict[Key, Pending] = {}

    def find(self, request: Request, found: dict[bytes, Any]) -> Open | None:
        """The open that an earlier sending of this very CREATE made, None if this is the first. FILE_NOT_AVAILABLE
        while the first still waits (Windows: ACCESS_DENIED, and clients give up), DUPLICATE_OBJECTID when a CreateGuid
        comes again without being a replay, ACCESS_DENIED when it cannot be the same request."""
        key = key_of(request, found)
        if key is None:
            return None
        replay = request.header.flags & _REPLAY
        if key in self._pending:
            raise StatusError(NtStatus.FILE_NOT_AVAILABLE if replay else NtStatus.DUPLICATE_OBJECTID)
        entry = self._opens.get(key)
        if entry is None:
            return None
        if not replay:
            raise StatusError(NtStatus.DUPLICATE_OBJECTID)
        identity = request.session.identity if request.session is not None else None
        owner = entry.session.identity
        if identity is None or owner is None or not identity.same_user(owner):
            raise StatusError(NtStatus.ACCESS_DENIED)
        asked = found.get(contexts.REQUEST_LEASE)
        lease = entry.caching if isinstance(entry.caching, Lease) else None
        if (asked.lease_key if asked is not None else None) != (lease.key if lease is not None else None):
            raise StatusError(NtStatus.ACCESS_DENIED)
        disconnected = entry.durable is not None and entry.durable.disconnected
        if disconnected or entry.session is not request.session:
            raise StatusError(NtStatus.FILE_NOT_AVAILABLE)
        return entry

    def wait(self, key: Key, pending: Pending) -> None:
        """The CREATE has to wait."""
        self._pending[key] = pending

    def done(self, key: Key) -> None:
        self._pending.pop(key, None)

    def owns(self, pending: Pending) -> bool:
        """Whether ``pending`` may come again, and so outlives its connection."""
        return pending in self._pending.values()

    def end_session(self, session: Session) -> None:
        """Cancel what still waits although its connection is gone."""
        for pending in [entry for entry in self._pending.values() if entry.request.session is session]:
            pending.cancel(closing=True)

    def remember(self, entry: Open, replayable: Replayable) -> None:
        """CREATE was successful."""
        entry.replayable = replayable
        self._opens[replayable.key] = entry

    def forget(self, entry: Open) -> None:
        """The open was used, or is closed."""
        replayable, entry.replayable = entry.replayable, None
        if replayable is not None and self._opens.get(replayable.key) is entry:
            del self._opens[replayable.key]


def key_of(request: Request, found: dict[bytes, Any]) -> Key | None:
    """None: nothing tells whether this CREATE comes again."""
    wanted: contexts.DurableRequestV2 | None = found.get(contexts.DURABLE_REQUEST_V2)
    return (request.connection.client_guid, wanted.create_guid) if wanted is not None else None


def level_for(entry: Open, requested: int) -> int:
    """The oplock level that a replayed CREATE is told: what it asks for this time, if the open holds as much."""
    held = entry.caching
    if held is None:
        return OplockLevel.NONE
    if isinstance(held, Lease):
        return OplockLevel.LEASE
    wanted = LEVEL_STATES.get(requested)
    if wanted is not None and not wanted & ~held.state:
        return requested
    return next((level for level, state in LEVEL_STATES.items() if state == held.state), OplockLevel.NONE)


def check_sequence(request: Request, entry: Open) -> None:
    """Called when the request's sequence is not the open's, or when it is a replay. WRITE, SET_INFO and IOCTL with an
    old sequence come from a channel that the client has given up: FILE_NOT_AVAILABLE."""
    header = request.header
    if request.connection.dialect < Dialect.SMB_3_0:
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


def restart(entry: Open, request: Request) -> None:
    """Take the sequence of the request by which a client comes back to an open. ChannelSequence counts within a session
    of the client (3.2.1.3), and this one is new. What is still under way for the old one does not count any more."""
    entry.channel_sequence = request.header.status & 0xFFFF
    entry.outstanding_requests = entry.outstanding_pre_requests = 0
    entry.sequence_epoch += 1


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
