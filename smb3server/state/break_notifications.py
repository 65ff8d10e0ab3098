"""Oplock and lease break notifications on their way to the client (MS-SMB2 3.3.4.6, 3.3.4.7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from smb3server.files.caching import Holder, Lease, Oplock, Timer
from smb3server.process.turns import call_in_own_turn
from smb3server.state.durable import may_come_back
from smb3server.state.opens import OpenTable
from smb3server.wire.oplock_break import (
    ACK_REQUIRED,
    LEASE_BREAK_NOTIFICATION,
    OPLOCK_BREAK,
    LeaseBreakNotification,
    OplockBreak,
)

if TYPE_CHECKING:
    from smb3server.state.objects import Connection, Open, Session


RETRY_DELAY = 1.0
"""Seconds, again and again until the client has answered, after which a connection that has lost its peer is given up
for another channel (3.3.4.6: the server tries the session's other connections)."""


def live_connection(session: Session) -> Connection | None:
    """A connection of the session that still works: the one it was made on, or another channel."""
    return _best(connection for connection in session.connections if not connection.closed)


def _best(candidates: Iterable[Connection]) -> Connection | None:
    """The first that works; failing that, the first that has stalled."""
    stalled = None
    for connection in candidates:
        if not (connection.ended_by or connection.transport.is_stalled()):
            return connection
        stalled = stalled or connection
    return stalled


def oldest_connection(session: Session, client_guid: bytes, connections: Iterable[Connection]) -> Connection | None:
    """Return the client's oldest one of ``connections`` that has a session."""
    own = [
        connection
        for connection in connections
        if connection.client_guid == client_guid and connection.session_table and not connection.closed
    ]
    if client_guid == bytes(16) or not own:
        return live_connection(session)
    return _best(sorted(own, key=lambda connection: connection.creation_time))


class BreakNotifications:
    """Notifies the clients of a server: its ``caching.Breaks``."""

    def __init__(self, sessions: Mapping[int, Session], connections: Collection[Connection], opens: OpenTable) -> None:
        """``sessions``, by SessionId, and ``connections``: all of the server's, as they are at any time."""
        self._sessions = sessions
        self._connections = connections
        self._opens = opens

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        call_in_own_turn(callback)

    def notify_lease(self, lease: Lease[Open], current: int, new: int, ack_required: bool) -> bool | None:
        """The client knows the lease by its key alone, so any of its connections will do; Windows takes the oldest."""
        body = LEASE_BREAK_NOTIFICATION.pack(
            LeaseBreakNotification(
                new_epoch=lease.epoch if lease.version == 2 else 0,
                flags=ACK_REQUIRED if ack_required else 0,
                lease_key=lease.key,
                current_lease_state=current,
                new_lease_state=new,
            )
        )
        for entry in lease.opens:
            session = entry.session
            if session.session_id not in self._sessions:
                continue
            choose = partial(oldest_connection, session, lease.client_guid, self._connections)
            connection = choose()
            if connection is not None:
                own = connection.session_table.get(session.session_id) or next(iter(connection.session_table.values()))
                connection.host.notify(own, [body])
                again = partial(self.notify_lease, lease, current, new, ack_required)
                self._watch(connection, choose, again, lease, new)
                return True
        opens = tuple(lease.opens)
        for opened in opens:
            self._opens.close_if_disconnected(opened)
        return None if any(may_come_back(opened) for opened in opens) else False

    def notify_oplock(self, oplock: Oplock[Open], level: int) -> bool | None:
        entry = oplock.open
        body = OPLOCK_BREAK.pack(
            OplockBreak(oplock_level=level, persistent=entry.file_id[0], volatile=entry.file_id[1])
        )
        choose = partial(live_connection, entry.session)
        connection = choose()
        if connection is not None:
            connection.host.notify(entry.session, [body])
            self._watch(connection, choose, partial(self.notify_oplock, oplock, level), oplock, oplock.requested)
            return True
        self._opens.close_if_disconnected(entry)
        return None if may_come_back(entry) else False

    def changed(self, holder: Holder[Open]) -> None:
        """Persistent opens are stored with their caching rights."""
        opens = holder.opens if isinstance(holder, Lease) else [holder.open] if isinstance(holder, Oplock) else []
        for opened in opens:
            if self._opens.persistence is not None:
                self._opens.persistence.changed(opened)

    def _watch(
        self,
        connection: Connection,
        choose: Callable[[], Connection | None],
        again: Callable[[], object],
        holder: Holder[Open],
        requested: int,
    ) -> None:
        """Say it again on another channel if this connection turns out to have lost its peer."""
        if not connection.forced_stall and not any(
            len(session.channel_list) > 1 for session in connection.session_table.values()
        ):
            return

        def check() -> None:
            if holder.requested != requested or not (holder.breaking or holder.state == requested):
                return
            lost = connection.closed or connection.is_stalled()
            if lost and not connection.closed and connection.forced_stall:
                connection.disconnect("peer does not acknowledge")
            other = choose() if lost else connection
            if other is not connection and (connection.closed or other is None or not other.is_stalled()):
                again()
            elif holder.breaking:
                # Nothing better there, or nothing known yet: the network may have lost the notification just before it
                # lost the peer.
                self.call_later(RETRY_DELAY, check)

        self.call_later(RETRY_DELAY, check)
