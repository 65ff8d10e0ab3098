"""Connections (MS-SMB2 3.3.1.7): their state, their asynchronous requests and their end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING

from smb3server.dispatch import waiting
from smb3server.dispatch.dispatcher import Dispatcher
from smb3server.dispatch.request import HANDLERS, Buffer, Handler, Interim, Pending, Request, Response
from smb3server.process.turns import call_apart
from smb3server.state.message_window import CommandSequenceWindow
from smb3server.wire.header import Command
from smb3server.wire.status import StatusError

if TYPE_CHECKING:
    from smb3server.auth.acceptor import Acceptor
    from smb3server.server.server import Server
    from smb3server.state.ceilings import Usage
    from smb3server.state.session import Session
    from smbdirect.message_transport import MessageTransport
    from smbdirect.unauthenticated import UnauthenticatedPeer

log = logging.getLogger(__name__)


class Connection:
    """3.3.1.7. Fields that the negotiation sets have the value named here before it."""

    def __init__(self, server: Server, transport: MessageTransport) -> None:
        self.server = server
        self.transport = transport
        self.loop = asyncio.get_running_loop()
        self.client_name = transport.peer_address[0]
        self.creation_time = time.time()
        self.negotiated = False
        self.dialect = 0
        """0: not negotiated; 0x02FF: multi-protocol negotiate answered; else 0x0202 ... 0x0311."""
        self.client_guid = bytes(16)
        self.client_capabilities = 0
        self.client_security_mode = 0
        self.client_dialects: tuple[int, ...] = ()
        self.client_knows_posix = False
        """It offered the POSIX extensions: a Linux client."""
        self.server_capabilities = 0
        self.server_security_mode = 0
        self.supports_multi_credit = False
        self.max_transact_size = 65536
        self.max_read_size = 65536
        self.max_write_size = 65536
        self.command_sequence_window = CommandSequenceWindow()
        self.credit_limit = server.settings.credits_before_authentication
        self.sealed_credits: int | None = None
        """Credits that keep READs of a client that encrypts as short as its messages (``read_size``); None: nothing
        does that, or needs to."""
        self.session_table: dict[int, Session] = {}
        self.preauth_integrity_hash = b""
        """3.1.1 only: hash of the negotiation."""
        self.preauth_session_table: dict[int, bytes] = {}
        """3.1.1 only: hash per session being authenticated."""
        self.acceptors: dict[int, Acceptor] = {}
        """Authentications under way, by SessionId."""
        self.cipher_id = 0
        self.signing_algorithm_id = 0
        self.request_list: dict[int, Request] = {}
        """Asynchronous requests by MessageId."""
        self.async_command_list: dict[int, Request] = {}
        """Those whose client was told STATUS_PENDING, by AsyncId."""
        self.usage: Usage | None = None
        """Of the user that it counts for: the first who logged on."""
        self.is_authenticated = False
        """A session was valid on it once."""
        self.deadlines: list[asyncio.TimerHandle] = []
        """By which it must have negotiated and authenticated; they would keep a closed connection in memory."""
        self.place: UnauthenticatedPeer | None = None
        """Among those without a session, until it has one."""
        self.closed = False
        self.forced_stall = False
        """For tests: the peer counts as one that acknowledges nothing."""
        self.ended_by = ""
        """Why this side ended it."""
        self.interfaces_asked = False
        """The client asked for the list of interfaces (FSCTL_QUERY_NETWORK_INTERFACE_INFO)."""
        self.rdma_interfaces_told = 0
        """Interfaces flagged RDMA_CAPABLE in the answer."""
        self.largest_inline = 0
        """Bytes of the largest READ or WRITE of a file whose data was to travel in the message."""
        self.handlers: Mapping[int, Handler] = HANDLERS
        """What serves its commands, by command."""
        self.dispatcher = Dispatcher(self)

    def start(self) -> None:
        """Serve what the transport delivers."""
        self.transport.start(self.dispatcher.receive, self._transport_closed)

    def finish(self, request: Request, result: Response | StatusError) -> None:
        """An asynchronous request is done (3.3.4.4); ``Pending`` calls it, once."""
        self.dispatcher.finish(request, result)

    def run(self, request: Request, work: Awaitable[Response], interim: Interim = Interim.DELAYED) -> Pending:
        """See ``Request.run``."""
        return waiting.run(request, work, interim)

    def notify(self, session: Session, segments: Sequence[Buffer], command: int = Command.OPLOCK_BREAK) -> None:
        """Send an unsolicited message (3.3.4.6, 3.3.4.7): never signed, encrypted if the session's traffic is."""
        self.dispatcher.notify(session, segments, command)

    def is_stalled(self) -> bool:
        """Whether the network has lost the peer, as far as the transport can tell."""
        return self.forced_stall or self.transport.is_stalled()

    def authenticated(self) -> None:
        """A session is valid: trust the client with full-sized messages and credits."""
        if not self.is_authenticated:
            self.is_authenticated = True
            self._drop_deadlines()
            self.server.connection_authenticated(self)
        self.transport.trust(self.server.settings.max_message_size)
        self.limit_credits()

    def hold_credits(self, sealed: int) -> None:
        """Let the client hold at most ``sealed`` credits while it may encrypt (3.3.1.2); ``limit_credits`` ends it."""
        self.sealed_credits = sealed
        self.credit_limit = min(self.credit_limit, sealed)

    def limit_credits(self) -> None:
        """Settle how many credits the client, which is authenticated, may hold. Call it when its sessions and tree
        connects have changed: they show whether it encrypts."""
        limit = self.server.settings.max_credits
        if self.sealed_credits is not None and not self._sends_clear_data():
            limit = min(limit, self.sealed_credits)
        self.credit_limit = limit

    def _sends_clear_data(self) -> bool:
        """Whether some session here has a disk share, and none has ever encrypted: a client that encrypts does so from
        TREE_CONNECT on. A channel of a session counts with what the session did on others."""
        sessions = self.session_table.values()
        return any(session.uses_disks for session in sessions) and not any(session.encrypts for session in sessions)

    def _drop_deadlines(self) -> None:
        for timer in self.deadlines:
            timer.cancel()
        self.deadlines.clear()

    def cancel_waiting(self) -> None:
        """Cancel everything that was told to wait; what is about to finish may finish."""
        for request in list(self.async_command_list.values()):
            if request.pending is not None:
                call_apart(request.pending.cancel)

    def cancel_requests(self, session: Session, tree_id: int | None = None) -> None:
        """Cancel the asynchronous requests of a session or tree connect that goes away."""
        for request in list(self.request_list.values()):
            if request.session is not session or request.pending is None:
                continue
            if tree_id is None or (request.tree is not None and request.tree.tree_id == tree_id):
                call_apart(request.pending.cancel, closing=True)

    def disconnect(self, reason: str) -> None:
        """The peer broke the protocol, or an administrator wants it gone."""
        if not self.closed:
            self.ended_by = reason
            log.info("%s: disconnecting: %s", self.client_name, reason)
        self.transport.abort(reason)

    def _transport_closed(self, error: BaseException | None) -> None:
        """3.3.7.1: cancel what waits, leave every session, forget those that have no other channel."""
        if self.closed:
            return
        self.closed = True
        self._drop_deadlines()
        if self.transport.rdma is not None and self.negotiated:
            self.server.rdma_lost(self.client_guid, self.ended_by or str(error or "closed by the client"))
        if error is not None:
            log.info("%s: connection lost: %s", self.client_name, error)
        for request in list(self.request_list.values()):
            session = request.session
            if request.pending is None:
                continue
            if session is not None and len(session.channel_list) > 1 and self.server.replays.owns(request.pending):
                # The client sends it again on another channel (3.2.7.1).
                continue
            call_apart(request.pending.cancel)
        self.dispatcher.close()
        for session in list(self.session_table.values()):
            self.server.leave_session(session, self)
        self.session_table.clear()
        self.preauth_session_table.clear()
        self.server.connection_closed(self)
