"""The server's global state (MS-SMB2 3.3.1.5) and the life of its connections and sessions."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from smb3server.access.identity import Identity
from smb3server.auth.acceptor import Acceptor, hint_token
from smb3server.auth.accounts import Accounts
from smb3server.auth.guessing import Guesses
from smb3server.auth.principals import Principals
from smb3server.auth.users import UserDatabase
from smb3server.commands import load
from smb3server.dispatch.dispatcher import Dispatcher
from smb3server.dispatch.long_work import LongWork
from smb3server.dispatch.watchdog import Watchdog
from smb3server.files.file import FileTable
from smb3server.files.flushes import Flushes
from smb3server.net.interfaces import InterfaceList
from smb3server.process.turns import Turns
from smb3server.server.idle import IdleSweep
from smb3server.settings.server import Settings
from smb3server.state.break_notifications import BreakNotifications
from smb3server.state.ceilings import Ceilings
from smb3server.state.durable import HandleCounts
from smb3server.state.host_changes import HostChanges
from smb3server.state.objects import Session, SessionState
from smb3server.state.replay import Replays
from smb3server.state.share import IPC_SHARE_NAME, Share, ShareType
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.transport.pool import BufferPool
from smbdirect.unauthenticated import UnauthenticatedPeers

if TYPE_CHECKING:
    from smb3server.cluster.lease_keeper import Fence
    from smb3server.net.fabric_choice import Choice
    from smb3server.persistence.journal import Persistence
    from smb3server.state.connection import Connection
    from smb3server.state.objects import Open
    from smbdirect.message_transport import MessageTransport

log = logging.getLogger(__name__)


MAX_LOST_RDMA = 256


class Server:
    """3.3.1.5. Lives on one event loop."""

    def __init__(self, settings: Settings | None = None, users: UserDatabase | None = None) -> None:
        load()
        self.settings = settings or Settings()
        self.users = users or UserDatabase()
        self.server_guid = uuid.uuid4().bytes_le
        self.server_start_time = time.time()
        self.share_list: dict[str, Share] = {}
        """Keyed by case-folded name."""
        self.global_session_table: dict[int, Session] = {}
        self.global_open_table: dict[int, Open] = {}
        """Keyed by the persistent half of the FileId."""
        self.app_instances: dict[bytes, dict[Open, None]] = {}
        """Opens by AppInstanceId (3.3.1.10)."""
        self.max_opens = sys.maxsize
        """Of all clients: what the process has descriptors for."""
        self.dormant_opens = 0
        """Restored ones whose client is not back yet and which take no descriptor."""
        self.replays = Replays()
        self.persistent_opens: dict[tuple[bytes, bytes], Open] = {}
        """By (ClientGuid, CreateGuid)."""
        self.persistence: Persistence | None = None
        """Stores persistent opens; None: there are none."""
        self.handles = HandleCounts()
        self.fence: Fence | None = None
        """In a cluster: asked before every request and reply (``is_fenced``)."""
        self.guid_of_address: Callable[[str], bytes | None] = lambda address: None
        """ServerGuid of the server that clients see at a local address; None: this one's own."""
        self.stopping = False
        """Nothing more is read from any connection."""
        self.connection_list: set[Connection] = set()
        self.connection_changed: Callable[[Connection, bool], None] = lambda connection, there: None
        """In a cluster: told of every connection that a user has logged on to (True), and of every one that ends."""
        self.max_transact_size = self.settings.max_io_size
        self.max_read_size = self.settings.max_io_size
        self.max_write_size = self.settings.max_io_size
        self.file_table = FileTable(BreakNotifications())
        self.accounts = Accounts(
            self.users,
            self.settings.server_name,
            self.server_guid[:12],
            guests_may_ask=self.settings.guests_see_accounts,
        )
        self.host_changes = HostChanges(self.file_table)
        """What is open, by file: share modes, locks, oplocks and leases (GlobalLeaseTableList is in it)."""
        self.flushes = Flushes()
        self.long_work = LongWork()
        self.turns = Turns()
        """For chains that have worked long enough for once."""
        self.ceilings = Ceilings(self.settings)
        self.watchdog = Watchdog(self.settings.watchdog) if self.settings.watchdog else None
        """None: nobody asked for it."""
        self.buffers = BufferPool()
        self.principals: Principals | None = None
        """Who gets in with a Kerberos ticket; None: nobody."""
        if self.settings.keytab:
            os.environ["KRB5_KTNAME"] = self.settings.keytab
            self.principals = Principals(self.users, self.settings.trusted_realms, self.settings.unknown_principals)
        self.hint_token = hint_token(self.principals is not None, self.settings.ntlm)
        self.interfaces = InterfaceList()
        self.rdma_addresses: set[str] = set()
        """Local addresses on which SMB Direct is served; clients are told so (FSCTL_QUERY_NETWORK_INTERFACE_INFO)."""
        self.tcp_addresses: set[str] = {"0.0.0.0", "::"}
        """The same for direct TCP."""
        self.rdma = "off"
        """The fabrics asked for."""
        self.rdma_choices: Sequence[Choice] = ()
        """What became of them."""
        self.lost_rdma: dict[bytes, str] = {}
        """How a client's last RDMA connection failed, by ClientGuid; the latest ones only."""
        self.logged_on = 0
        """Connections with a session."""
        most = self.settings.max_unauthenticated
        self.silent_peers = UnauthenticatedPeers(max(most, self.settings.max_connections))
        """Connections that have said nothing, of all listeners: after a failover all clients may be among them."""
        self.unauthenticated = UnauthenticatedPeers(most, self.settings.max_unauthenticated_per_address)
        """Connections that have said something, without a session, of all listeners, RPC's too."""
        self.idle = IdleSweep(self, self.settings.idle_session_timeout)
        self.guesses = Guesses(
            self.settings.failed_logons_per_account,
            self.settings.failed_logons_per_address,
            self.settings.max_logon_delay,
            self.settings.lockout_failures,
            self.settings.lockout_time,
        )
        self.add_share(Share(IPC_SHARE_NAME, ShareType.PIPE, remark="Remote IPC", hidden=True))

    def add_share(self, share: Share) -> None:
        """Replaces a share of the same name."""
        self.share_list[share.name.casefold()] = share

    @property
    def has_continuous_availability(self) -> bool:
        return any(share.continuous_availability for share in self.share_list.values())

    @property
    def wants_encryption(self) -> bool:
        """Whether data is encrypted by the administrator's will, be it of one share only."""
        return self.settings.require_encryption or any(share.encrypt_data for share in self.share_list.values())

    def guid_for(self, connection: Connection) -> bytes:
        """ServerGuid, as a client on this connection sees it."""
        return self.guid_of_address(connection.transport.local_address[0]) or self.server_guid

    def is_fenced(self, connection: Connection) -> bool:
        """In a cluster: may another node be serving by now what this connection is about? Those at a node's own address
        with nothing but its own shares go on."""
        fence = self.fence
        if fence is None or not fence.expired():
            return False
        if self.guid_of_address(connection.transport.local_address[0]) is not None:
            return True
        return any(
            tree.share.placement is not None
            for session in connection.session_table.values()
            for tree in session.tree_connect_table.values()
        )

    def has_lost(self, share: Share) -> bool:
        """May another node be serving the share by now? Then nothing that waited here touches its files any more."""
        return share.placement is not None and self.fence is not None and self.fence.expired()

    def new_file_id(self) -> tuple[int, int]:
        """An unused (persistent, volatile) FileId; never all zeros or all ones."""
        while True:
            # Unpredictable: whoever guesses a persistent id could try to take over a durable open.
            persistent = secrets.randbits(63) or 1
            if persistent not in self.global_open_table:
                return persistent, secrets.randbits(63) or 1

    # Connections

    def accept(self, transport: MessageTransport) -> None:
        """3.3.5.1: serve a new connection, unless there are too many."""
        address = transport.peer_address[0]
        settings = self.settings
        place = None
        if self.logged_on < settings.max_connections:
            place = self.unauthenticated.enter(address, lambda: connection.disconnect("too many without a session"))
        if place is None:
            log.warning("%s: too many connections", address)
            transport.start(lambda message: message.release(), lambda error: None)
            transport.abort("too many connections")
            return
        transport.max_message_size = settings.max_message_before_authentication
        dispatcher = Dispatcher(self, transport)
        connection = dispatcher.connection
        connection.place = place
        self.connection_list.add(connection)
        self.idle.wake()
        call_later = connection.loop.call_later
        connection.deadlines = [
            call_later(settings.negotiate_timeout, self._check_progress, connection, False),
            call_later(settings.authentication_timeout, self._check_progress, connection, True),
        ]
        dispatcher.start()

    def _check_progress(self, connection: Connection, authenticated: bool) -> None:
        """Drop who connects and then does not negotiate, or negotiates and then does not log on."""
        if connection.closed or connection.is_authenticated:
            return
        if authenticated or not connection.negotiated:
            connection.disconnect("nothing sensible came in time")

    def has_room(self, connection: Connection) -> bool:
        """Tell whether a user may log on to the connection: not if too many are logged on to others."""
        return connection.is_authenticated or self.logged_on < self.settings.max_connections

    def connection_authenticated(self, connection: Connection) -> None:
        self.logged_on += 1
        self._forget_stranger(connection)
        self.connection_changed(connection, True)

    def connection_closed(self, connection: Connection) -> None:
        self.connection_list.discard(connection)
        if connection.usage is not None:
            connection.usage.connections -= 1
            connection.usage = None
        self.connection_changed(connection, False)
        if connection.is_authenticated:
            self.logged_on -= 1
        self._forget_stranger(connection)

    def rdma_lost(self, client_guid: bytes, reason: str) -> None:
        """Remember for the report why a client's RDMA connection is gone."""
        self.lost_rdma.pop(client_guid, None)
        if len(self.lost_rdma) >= MAX_LOST_RDMA:
            del self.lost_rdma[next(iter(self.lost_rdma))]
        self.lost_rdma[client_guid] = reason

    def _forget_stranger(self, connection: Connection) -> None:
        if connection.place is not None:
            connection.place.leave()
            connection.place = None

    # Sessions

    def new_acceptor(self, address: str = "") -> Acceptor:
        """For a session of a client at ``address``."""
        settings = self.settings
        return Acceptor(
            self.users,
            settings.server_name,
            settings.allow_guest,
            settings.allow_anonymous,
            self.principals,
            keys_only=True,
            ntlm=settings.ntlm,
            guesses=self.guesses,
            address=address,
        )

    def new_rpc_acceptor(self) -> Acceptor:
        """For RPC over TCP: no guests, who have no keys."""
        settings = self.settings
        return Acceptor(
            self.users,
            settings.server_name,
            kerberos=self.principals,
            service="host",
            ntlm=settings.ntlm,
            guesses=self.guesses,
        )

    def new_session(self, connection: Connection) -> Session:
        """3.3.5.5.1. Raises INSUFFICIENT_RESOURCES when the client has too many under way."""
        table = connection.session_table
        settings = self.settings
        in_progress = len(connection.acceptors)
        if in_progress >= settings.max_sessions_in_progress or len(table) >= settings.max_sessions:
            raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)
        while True:
            # Unpredictable, so that nobody binds to or supersedes a session that is not theirs by counting.
            # 32 bits: smbtorture's session-id test keeps no more.
            session_id = secrets.randbits(32) or 1
            if session_id not in self.global_session_table:
                break
        session = Session(self, session_id, connection)
        self.global_session_table[session_id] = table[session_id] = session
        session.deadline = connection.loop.call_later(settings.authentication_timeout, self._expire_unfinished, session)
        return session

    def _expire_unfinished(self, session: Session) -> None:
        if session.state is SessionState.IN_PROGRESS and session.session_id in self.global_session_table:
            session.connection.acceptors.pop(session.session_id, None)
            self.remove_session(session)

    def remove_session(self, session: Session) -> None:
        """3.3.4.5, 3.3.5.6: cancel its requests, close its opens and tree connects, on all channels. The channels' keys
        stay with the object: the reply that ends a session is still signed with them."""
        if self.global_session_table.pop(session.session_id, None) is None:
            return
        if session.usage is not None:
            session.usage.sessions -= 1
        if session.deadline is not None:
            session.deadline.cancel()
        for connection in {session.connection, *session.channel_list}:
            connection.session_table.pop(session.session_id, None)
            connection.preauth_session_table.pop(session.session_id, None)
            connection.host.cancel_requests(session)
        self.replays.end_session(session)
        for entry in list(session.open_table.values()):
            entry.disconnect()
        session.tree_connect_table.clear()
        session.state = SessionState.EXPIRED

    def leave_session(self, session: Session, connection: Connection) -> None:
        """3.3.7.1: a session lost a connection; without its last channel it ends."""
        session.channel_list.pop(connection, None)
        if not session.channel_list:
            self.remove_session(session)
            return
        if session.connection is connection:
            session.connection = next(iter(session.channel_list))
        session.channels_changed()

    def count_session(self, session: Session, connection: Connection, identity: Identity) -> None:
        """A user logs on: REQUEST_NOT_ACCEPTED if that is one session or connection too many for this user."""
        usage = self.ceilings.of(identity)
        self.ceilings.check_session(usage, len(self.connection_list), connection.usage is not None)
        session.usage = usage
        usage.sessions += 1
        if connection.usage is None:
            connection.usage = usage
            usage.connections += 1

    def count_channel(self, session: Session, connection: Connection) -> None:
        """The same for one more connection of a session."""
        if session.usage is None or connection.usage is not None:
            return
        self.ceilings.check_session(session.usage, len(self.connection_list), False)
        connection.usage = session.usage
        session.usage.connections += 1

    def count_open(self, entry: Open) -> None:
        """An open is in the tables now."""
        usage = entry.session.usage
        if usage is not None:
            entry.usage = usage
            usage.opens += 1

    def close_previous_session(self, session_id: int, identity: Identity) -> None:
        """3.3.5.5.3: a client that reconnects names its old session; only its own user's is closed."""
        previous = self.global_session_table.get(session_id)
        if previous is None or previous.identity is None or previous.state is SessionState.IN_PROGRESS:
            return
        if previous.identity.same_user(identity):
            log.info("session of %s superseded", previous.identity)
            self.remove_session(previous)

    # End

    async def shutdown(self, grace: float = 10.0) -> None:
        """Finish requests in flight (waiting ones are cancelled), close every open, then every connection."""
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
        for session in list(self.global_session_table.values()):
            self.remove_session(session)
        for entry in list(self.global_open_table.values()):
            if entry.durable is not None and entry.durable.persistent:
                # The next run, or the next owner, goes on with it.
                entry.abandon()
            else:
                entry.close()
        self.host_changes.close()
        await self.long_work.close()
        for connection in list(self.connection_list):
            connection.transport.close("server shutdown")
        while self.connection_list and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        for share in self.share_list.values():
            if share.backend is not None:
                share.backend.close()
