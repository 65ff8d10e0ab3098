"""The table of all sessions: how they begin, gain and lose connections, and end. [MS-SMB2 3.3.1.5, 3.3.1.8]"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection

from smb3server.access.identity import Identity
from smb3server.settings.server import Settings
from smb3server.state.ceilings import Ceilings
from smb3server.state.events import Events
from smb3server.state.objects import Connection, Session, SessionState
from smb3server.state.opens import OpenTable
from smb3server.wire.negotiate import Dialect
from smb3server.wire.status import NtStatus, Reason, StatusError


class Sessions:
    """GlobalSessionTable.

    Invariant: a session is in ``by_id`` and in the table of each of its connections from ``begin`` to ``remove``.
    """

    def __init__(
        self,
        settings: Settings,
        ceilings: Ceilings,
        opens: OpenTable,
        connections: Collection[Connection],
        events: Events,
    ) -> None:
        """``connections``: the server's live set."""
        self.on_remove: Callable[[Session], None] = lambda session: None
        """Called before anything of a session ends."""
        self._events = events
        self._settings = settings
        self._ceilings = ceilings
        self._opens = opens
        self._connections = connections
        self.by_id: dict[int, Session] = {}
        self._clients: dict[bytes, set[Connection]] = {}
        """GlobalClientTable: by ClientGuid the connections of dialects 3.x that have had a session."""
        # Invariant: no set is empty, and the connections of one have the same dialect.

    def begin(self, connection: Connection) -> Session:
        """Make a session that is to be authenticated. [MS-SMB2 3.3.5.5.1]

        Raises INSUFFICIENT_RESOURCES if the connection has too many sessions, or too many that are being
        authenticated."""
        table = connection.session_table
        settings = self._settings
        in_progress = len(connection.acceptors)
        if in_progress >= settings.max_sessions_in_progress or len(table) >= settings.max_sessions:
            why = Reason("too_many", "the connection has too many sessions")
            raise StatusError(NtStatus.INSUFFICIENT_RESOURCES, reason=why)
        while True:
            # Unpredictable, so that a client cannot guess the id of another session to bind to it or to supersede it.
            # 32 bits: smbtorture's session-id test keeps no more.
            session_id = secrets.randbits(32) or 1
            if session_id not in self.by_id:
                break
        session = Session(session_id, connection)
        self.by_id[session_id] = table[session_id] = session
        session.deadline = connection.loop.call_later(settings.authentication_timeout, self._expire_unfinished, session)
        return session

    def _expire_unfinished(self, session: Session) -> None:
        if session.state is SessionState.IN_PROGRESS and session.session_id in self.by_id:
            session.connection.acceptors.pop(session.session_id, None)
            self.remove(session)

    def remove(self, session: Session) -> None:
        """End a session: cancel its requests, and close its opens and tree connects, on all channels.
        [MS-SMB2 3.3.4.5, 3.3.5.6]

        The channels' keys stay with the object, because the reply that ends a session is still signed with them."""
        if self.by_id.pop(session.session_id, None) is None:
            return
        self.on_remove(session)
        if session.usage is not None:
            session.usage.sessions -= 1
        if session.deadline is not None:
            session.deadline.cancel()
        for connection in list(session.connections):
            connection.session_table.pop(session.session_id, None)
            connection.preauth_session_table.pop(session.session_id, None)
            connection.host.cancel_requests(session)
        self._opens.replays.end_session(session)
        for opened in list(session.open_table.values()):
            self._opens.disconnect(opened)
        session.tree_connect_table.clear()
        session.state = SessionState.EXPIRED

    def leave(self, session: Session, connection: Connection) -> None:
        """Take a lost connection off a session. End the session if that was its last one. [MS-SMB2 3.3.7.1]"""
        session.channel_list.pop(connection, None)
        if not session.channel_list:
            self.remove(session)
            return
        if session.connection is connection:
            session.connection = next(iter(session.channel_list))
        session.channels_changed()

    def close_previous(self, session_id: int, identity: Identity) -> None:
        """End the session that a client names as its previous one, if the user is the same. [MS-SMB2 3.3.5.5.3]"""
        previous = self.by_id.get(session_id)
        if previous is None or previous.identity is None or previous.state is SessionState.IN_PROGRESS:
            return
        if previous.identity.same_user(identity):
            self._events.session_ended(previous, previous.connection, "superseded by a new session of its client")
            self.remove(previous)

    # Clients

    def enter_client(self, connection: Connection) -> None:
        """Enter the client of a connection that is about to have a session. [MS-SMB2 3.3.5.5.3, 3.3.1.16]

        Raises USER_SESSION_DELETED if the client has a connection of another dialect. A client that sends no GUID is
        not known."""
        if connection.dialect < Dialect.SMB_3_0 or not any(connection.client_guid):
            return
        known = self._clients.setdefault(connection.client_guid, set())
        if any(other.dialect != connection.dialect for other in known):
            why = Reason("other_dialect", "the client has another connection, of another dialect")
            raise StatusError(NtStatus.USER_SESSION_DELETED, reason=why)
        known.add(connection)

    def leave_client(self, connection: Connection) -> None:
        """Forget a lost connection, and its client with the last one. [MS-SMB2 3.3.7.1]"""
        known = self._clients.get(connection.client_guid)
        if known is not None:
            known.discard(connection)
            if not known:
                del self._clients[connection.client_guid]

    # Ceilings

    def count(self, session: Session, connection: Connection, identity: Identity) -> None:
        """Count a session, and its connection, for the user who logs on.

        Raises REQUEST_NOT_ACCEPTED if that is one session or connection too many for the user."""
        usage = self._ceilings.of(identity)
        self._ceilings.check_session(usage, len(self._connections), connection.usage is not None)
        session.usage = usage
        usage.sessions += 1
        if connection.usage is None:
            connection.usage = usage
            usage.connections += 1

    def count_channel(self, session: Session, connection: Connection) -> None:
        """Count one more connection of a session for its user. Raises REQUEST_NOT_ACCEPTED if it is one too many."""
        if session.usage is None or connection.usage is not None:
            return
        self._ceilings.check_session(session.usage, len(self._connections), False)
        connection.usage = session.usage
        session.usage.connections += 1
