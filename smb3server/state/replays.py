"""The table of CREATEs that may be sent again. [MS-SMB2 3.3.5.9.10]"""

from __future__ import annotations

from typing import Protocol

from smb3server.files.caching import Lease
from smb3server.state.durable import Key, Replayable
from smb3server.state.objects import Open, Session
from smb3server.wire.status import NtStatus, StatusError


class Waiting(Protocol):
    """A CREATE that has no answer yet."""

    def cancel(self, closing: bool = False) -> None:
        """Cancel it. ``closing``: whether its session ends."""


class Replays:
    """The CREATEs of a server that clients may send again."""

    def __init__(self) -> None:
        # Invariant: ``_opens[key]`` is an open whose ``replayable.key`` is ``key``.
        self._opens: dict[Key, Open] = {}
        self._waiting: dict[Key, tuple[Waiting, Session]] = {}

    def find(self, key: Key, replayed: bool, session: Session, lease_key: bytes | None) -> Open | None:
        """Return the open that an earlier sending of the same CREATE made, or None if this is the first sending.

        ``replayed``: whether the client marked the request as a replay. ``lease_key``: the lease key that the request
        has. The open's client may be away: then it has lost its connection together with the answer.

        Raises FILE_NOT_AVAILABLE while the first sending still waits (Windows: ACCESS_DENIED, and clients give up),
        DUPLICATE_OBJECTID if a CreateGuid comes again in a request that is no replay, or in another session while that
        of the open lives, ACCESS_DENIED if it cannot be the same request. [MS-SMB2 3.3.5.9]"""
        if key in self._waiting:
            raise StatusError(NtStatus.FILE_NOT_AVAILABLE if replayed else NtStatus.DUPLICATE_OBJECTID)
        opened = self._opens.get(key)
        if opened is None:
            return None
        if not replayed:
            raise StatusError(NtStatus.DUPLICATE_OBJECTID)
        identity, owner = session.identity, opened.session.identity
        if identity is None or owner is None or not identity.same_user(owner):
            raise StatusError(NtStatus.ACCESS_DENIED)
        lease = opened.caching if isinstance(opened.caching, Lease) else None
        if lease_key != (lease.key if lease is not None else None):
            raise StatusError(NtStatus.ACCESS_DENIED)
        away = opened.durable is not None and opened.durable.disconnected
        if not away and opened.session is not session:
            raise StatusError(NtStatus.DUPLICATE_OBJECTID)
        return opened

    def wait(self, key: Key, waiting: Waiting, session: Session) -> None:
        """Enter a CREATE of ``session`` that has to wait. Call ``done`` when it no longer waits."""
        self._waiting[key] = waiting, session

    def done(self, key: Key) -> None:
        """Forget a CREATE that waited."""
        self._waiting.pop(key, None)

    def owns(self, waiting: Waiting) -> bool:
        """Return whether a client may send ``waiting`` again. It then outlives its connection."""
        return any(other is waiting for other, _ in self._waiting.values())

    def end_session(self, session: Session) -> None:
        """Cancel the CREATEs of ``session`` that still wait although their connection is lost."""
        for waiting in [waiting for waiting, owner in self._waiting.values() if owner is session]:
            waiting.cancel(closing=True)

    def remember(self, opened: Open, replayable: Replayable) -> None:
        """Enter the open that a successful CREATE made, with the answer for replays."""
        opened.replayable = replayable
        self._opens[replayable.key] = opened

    def forget(self, opened: Open) -> None:
        """Remove an open that was used, or is closed."""
        replayable, opened.replayable = opened.replayable, None
        if replayable is not None and self._opens.get(replayable.key) is opened:
            del self._opens[replayable.key]
