"""A server's connections: accepting and limiting them, their logon deadlines, and the shutdown. [MS-SMB2 3.3.5.1]"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from smb3server.auth.users import UserDatabase
from smb3server.dispatch.dispatcher import Dispatcher
from smb3server.dispatch.measuring import Measuring
from smb3server.dispatch.watchdog import Watchdog
from smb3server.server.idle import IdleSweep
from smb3server.settings.server import Settings
from smb3server.state.objects import Connection
from smb3server.state.server_state import ServerState
from smbdirect.unauthenticated import UnauthenticatedPeers

if TYPE_CHECKING:
    from smbdirect.message_transport import MessageTransport

log = logging.getLogger(__name__)


class ConnectionWatcher(Protocol):
    """Looks at connections from their beginning to their end."""

    def accepted(self, connection: Connection) -> None:
        """See a connection whose messages will be served."""
        ...

    def ended(self, connection: Connection) -> None:
        """See a connection for the last time."""
        ...


class Server(ServerState):
    """A server: the state that requests see, and the connections that it accepts and ends.

    Register the command handlers (``commands.load``) before it accepts connections."""

    def __init__(self, settings: Settings | None = None, users: UserDatabase | None = None) -> None:
        super().__init__(settings, users)
        self.silent_peers = UnauthenticatedPeers(1)
        """Connections of all listeners that have sent nothing yet. After a failover all clients may be among them."""
        self.unauthenticated = UnauthenticatedPeers(1)
        """Connections of all listeners, those of RPC included, that have sent something but have no session."""
        self.connection_changed: Callable[[Connection, bool], None] = lambda connection, there: None
        """Cluster only: called with True when a user has logged on over a connection, with False when any ends."""
        self.watcher: ConnectionWatcher | None = None
        """Is told of connections; None if nobody wants to be."""
        self.measuring = Measuring(Watchdog(self.settings.watchdog) if self.settings.watchdog else None)
        """What is measured of requests: nothing, unless somebody asks for it."""
        self.idle = IdleSweep(self.sessions, self.connection_list, self.settings.idle_session_timeout, self.events)
        self._limit_peers()

    def settings_changed(self) -> None:
        """Take over the limits of unauthenticated peers, and the timeout of idle sessions, too."""
        super().settings_changed()
        self._limit_peers()
        self.idle.set_timeout(self.settings.idle_session_timeout)

    def _limit_peers(self) -> None:
        """Set the sizes of the tables of peers that have not logged on."""
        settings = self.settings
        self.silent_peers.limit = max(settings.max_unauthenticated, settings.max_connections)
        self.unauthenticated.limit = settings.max_unauthenticated
        self.unauthenticated.per_source = settings.max_unauthenticated_per_address

    def accept(self, transport: MessageTransport) -> None:
        """Serve a new connection, or abort it if there are too many. [MS-SMB2 3.3.5.1]"""
        address = transport.peer_address[0]
        settings = self.settings
        place = None
        if self.logged_on < settings.max_connections:
            place = self.unauthenticated.enter(address, lambda: connection.disconnect("too many without a session"))
        if place is None:
            self.events.connection_refused(transport.peer_address, "too many connections")
            transport.start(lambda message: message.release(), lambda error: None)
            transport.abort("too many connections")
            return
        transport.max_message_size = settings.max_message_before_authentication
        dispatcher = Dispatcher(self, transport, self, self.measuring)
        connection = dispatcher.connection
        connection.place = place
        self.connection_list.add(connection)
        self.idle.wake()
        self.events.connection_accepted(connection)
        call_later = connection.loop.call_later
        connection.deadlines = [
            call_later(settings.negotiate_timeout, self._check_progress, connection, False),
            call_later(settings.authentication_timeout, self._check_progress, connection, True),
        ]
        dispatcher.start()
        if self.watcher is not None:
            self.watcher.accepted(connection)

    def _check_progress(self, connection: Connection, authenticated: bool) -> None:
        """Disconnect a client that has not negotiated, or not logged on (``authenticated``), before its deadline."""
        if connection.closed or connection.is_authenticated:
            return
        if not connection.negotiated:
            connection.disconnect("no negotiation in time")
        elif authenticated:
            connection.disconnect("no logon in time")

    def connection_authenticated(self, connection: Connection) -> None:
        """Count a connection whose first session has become valid."""
        self.logged_on += 1
        _leave_unauthenticated(connection)
        self.connection_changed(connection, True)

    def connection_closed(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self.connection_list.discard(connection)
        if connection.usage is not None:
            connection.usage.connections -= 1
            connection.usage = None
        self.connection_changed(connection, False)
        if self.watcher is not None:
            self.watcher.ended(connection)
        if connection.place is None:
            self.logged_on -= 1
        _leave_unauthenticated(connection)

    # End

    async def shutdown(self, grace: float = 10.0) -> None:
        """Stop the server: cancel waiting requests, let the others finish, close every open and then every connection.

        ``grace`` limits the wait for requests and connections, in seconds."""
        deadline = asyncio.get_running_loop().time() + grace
        self.idle.stop()
        self.stopping = True
        for connection in list(self.connection_list):
            connection.transport.pause_reading()
            connection.host.cancel_waiting()
        while any(c.host.pending_requests or c.transport.pending_send_bytes for c in self.connection_list):
            if asyncio.get_running_loop().time() > deadline:
                log.warning("requests still in flight after %.0f s", grace)
                break
            await asyncio.sleep(0.01)
        for session in list(self.sessions.by_id.values()):
            self.sessions.remove(session)
        await self.one_sided.close()
        for opened in list(self.opens.by_id.values()):
            if opened.durable is not None and opened.durable.persistent:
                # The next run of the server, or the next owner of the share, continues it.
                self.opens.abandon(opened)
            else:
                self.opens.close(opened)
        self.host_changes.close()
        queues = {share.queue for share in self.share_list.values() if share.queue is not None}
        silent = {queue for queue in queues if not await queue.drained(deadline)}
        await self.long_work.close()
        for connection in list(self.connection_list):
            connection.ended_by = connection.ended_by or "server shutdown"
            connection.transport.close("server shutdown")
        while self.connection_list and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        for share in self.share_list.values():
            if share.snapshots is not None:
                share.snapshots.close()
            if share.backend is not None and share.queue not in silent:
                share.backend.close()
        for queue in queues:
            queue.close()


def _leave_unauthenticated(connection: Connection) -> None:
    """Give back the place of the connection among those without a session."""
    if connection.place is not None:
        connection.place.leave()
        connection.place = None
