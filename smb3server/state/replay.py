"""Requests sent again: CREATE by its CreateGuid (MS-SMB2 3.3.5.9.10), others by channel sequence (3.3.5.2.10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smb3server.files.caching import LEVEL_STATES, Lease
from smb3server.wire import create_contexts as contexts
from smb3server.wire.header import HeaderFlags
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.status import NtStatus, StatusError

if TYPE_CHECKING:
    from smb3server.dispatch.request import Pending, Request
    from smb3server.state.objects import Open, Session
    from smb3server.wire.create import CreateResponse

Key = tuple[bytes, bytes]
"""(ClientGuid, CreateGuid)."""

_REPLAY = int(HeaderFlags.REPLAY_OPERATION)


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


def restart(entry: Open, request: Request) -> None:
    """Take the sequence of the request by which a client comes back to an open. ChannelSequence counts within a session
    of the client (3.2.1.3), and this one is new. What is still under way for the old one does not count any more."""
    entry.channel_sequence = request.header.status & 0xFFFF
    entry.outstanding_requests = entry.outstanding_pre_requests = 0
    entry.sequence_epoch += 1
