"""Sending oplock and lease break notifications to clients. [MS-SMB2 3.3.4.6, 3.3.4.7]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from smb3server.files.caching import Holder, Lease, Oplock, Timer
from smb3server.process.turns import call_in_own_turn
from smb3server.state.objects import Connection, Open, Session
from smb3server.state.opens import OpenTable
from smb3server.wire.oplock_break import (
    ACK_REQUIRED,
    LEASE_BREAK_NOTIFICATION,
    OPLOCK_BREAK,
    LeaseBreakNotification,
    OplockBreak,
)

RETRY_DELAY = 1.0
"""Seconds between checks, until the client has answered, whether the connection used has lost its peer. The
notification then goes to another channel: the server tries the session's other connections. [MS-SMB2 3.3.4.6]"""


def live_connection(session: Session) -> Connection | None:
    """Return a working connection of the session, preferably the one that it was made on.

    Return a stalled connection if none works, None if all are closed."""
    return _best(connection for connection in session.connections if not connection.closed)


def _best(candidates: Iterable[Connection]) -> Connection | None:
    """Return the first connection that works, else the first that has stalled."""
    stalled = None
    for connection in candidates:
        if not (connection.ended_by or connection.transport.is_stalled()):
            return connection
        stalled = stalled or connection
    return stalled


def oldest_connection(session: Session, client_guid: bytes, connections: Iterable[Connection]) -> Connection | None:
    """Return the client's oldest working connection of ``connections`` that has a session.

    Return a ``live_connection`` of ``session`` if the client has no such connection or sent no ClientGuid."""
    own = [
        connection
        for connection in connections
        if connection.client_guid == client_guid and connection.session_table and not connection.closed
    ]
    if client_guid == bytes(16) or not own:
        return live_connection(session)
    return _best(sorted(own, key=lambda connection: connection.creation_time))


class BreakNotifications:
    """The ``caching.Breaks`` of a server: sends the notifications and stores the changes."""

    def __init__(self, sessions: Mapping[int, Session], connections: Collection[Connection], opens: OpenTable) -> None:
        """``sessions``: the server's live table, by SessionId. ``connections``: the server's live set."""
        self._sessions = sessions
        self._connections = connections
        self._opens = opens

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` after ``delay`` seconds. Return the timer."""
        return asyncio.get_running_loop().call_later(delay, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in its own turn of the event loop."""
        call_in_own_turn(callback)

    def notify_lease(self, lease: Lease[Open], current: int, new: int, ack_required: bool) -> bool | None:
        """Notify the client of a lease break. Return values are those of ``caching.Breaks``. [MS-SMB2 3.3.4.7]

        Use the client's oldest connection, as Windows does. Any of them would do: the client knows the lease by its
        key alone."""
        body = LEASE_BREAK_NOTIFICATION.pack(
            LeaseBreakNotification(
                new_epoch=lease.epoch if lease.version == 2 else 0,
                flags=ACK_REQUIRED if ack_required else 0,
                lease_key=lease.key,
                current_lease_state=current,
                new_lease_state=new,
            )
        )
        for opened in lease.opens:
            session = opened.session
            if session.session_id not in self._sessions:
                continue
            choose = partial(oldest_connection, session, lease.client_guid, self._connections)
            connection = choose()
            if connection is not None:
                own = connection.session_table.get(session.session_id) or next(iter(connection.session_table.values()))
                send = partial(connection.host.notify, own, [body])
                if lease.directory and not new:
                    # No change waits for the acknowledgment, and Windows answers the change first (smb2.dirlease).
                    self.call_soon(send)
                else:
                    send()
                again = partial(self.notify_lease, lease, current, new, ack_required)
                self._watch(connection, choose, again, lease, new)
                return True
        opens = tuple(lease.opens)
        for opened in opens:
            self._opens.close_if_disconnected(opened)
        return None if any(opened.may_come_back for opened in opens) else False

    def notify_oplock(self, oplock: Oplock[Open], level: int) -> bool | None:
        """Notify the client of an oplock break. Return values are those of ``caching.Breaks``. [MS-SMB2 3.3.4.6]"""
        opened = oplock.open
        body = OPLOCK_BREAK.pack(
            OplockBreak(oplock_level=level, persistent=opened.file_id[0], volatile=opened.file_id[1])
        )
        choose = partial(live_connection, opened.session)
        connection = choose()
        if connection is not None:
            connection.host.notify(opened.session, [body])
            self._watch(connection, choose, partial(self.notify_oplock, oplock, level), oplock, oplock.requested)
            return True
        self._opens.close_if_disconnected(opened)
        return None if opened.may_come_back else False

    def changed(self, holder: Holder[Open]) -> None:
        """Store the persistent opens of ``holder`` anew: their caching rights are part of their records."""
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
        """Call ``again`` on another channel if ``connection`` turns out to have lost its peer.

        ``choose`` returns the best connection at that time. ``requested``: the state that the break asks for."""
        if not connection.forced_stall and not any(
            len(session.channel_list) > 1 for session in connection.session_table.values()
        ):
            return

        acknowledged_later = holder.breaking

        def check() -> None:
            # A break ends with its acknowledgment. One without lasts as long as the state that it asks for.
            if holder.requested != requested or not (
                holder.breaking if acknowledged_later else holder.state == requested
            ):
                return
            lost = connection.closed or connection.is_stalled()
            if lost and not connection.closed and connection.forced_stall:
                connection.disconnect("peer does not acknowledge")
            other = choose() if lost else connection
            if other is not connection and (connection.closed or other is None or not other.is_stalled()):
                again()
            elif holder.breaking:
                # There is no better connection, or the loss has not shown yet: the network may have lost the
                # notification just before it lost the peer.
                self.call_later(RETRY_DELAY, check)

        self.call_later(RETRY_DELAY, check)
