"""Connections (MS-SMB2 3.3.1.7): their state."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from smb3server.settings.server import Settings
from smb3server.state.message_window import CommandSequenceWindow
from smb3server.wire.header import Command
from smbdirect.codec import Buffer

if TYPE_CHECKING:
    from smb3server.auth.acceptor import Acceptor
    from smb3server.state.ceilings import Usage
    from smb3server.state.objects import Session
    from smbdirect.message_transport import MessageTransport
    from smbdirect.unauthenticated import UnauthenticatedPeer

log = logging.getLogger(__name__)


class ConnectionHost(Protocol):
    """Runs a connection's requests: what the server's state needs of it."""

    @property
    def pending_requests(self) -> int:
        """Asynchronous requests that are not answered yet (Connection.RequestList)."""
        ...

    def notify(self, session: Session, segments: Sequence[Buffer], command: int = Command.OPLOCK_BREAK) -> None:
        """Send a message that no request asked for, encrypted if the session's traffic is. [MS-SMB2 3.3.4.6]"""
        ...

    def cancel_requests(self, session: Session, tree_id: int | None = None) -> None:
        """Cancel the asynchronous requests of a session, or of one of its tree connects, that goes away."""
        ...

    def cancel_waiting(self) -> None:
        """Cancel every request whose client was sent STATUS_PENDING. The others may finish."""
        ...


class Connection:
    """One connection of a client. Before the negotiation its fields have the values given here. [MS-SMB2 3.3.1.7]"""

    def __init__(self, transport: MessageTransport, settings: Settings, host: ConnectionHost) -> None:
        """``settings``: for the limits on credits. ``host``: who runs the connection's requests."""
        self.transport = transport
        self.host = host
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
        self.credit_limit = settings.credits_before_authentication
        self._max_credits = settings.max_credits
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

    def is_stalled(self) -> bool:
        """Whether the network has lost the peer, as far as the transport can tell."""
        return self.forced_stall or self.transport.is_stalled()

    def hold_credits(self, sealed: int) -> None:
        """Let the client hold at most ``sealed`` credits while it may encrypt (3.3.1.2); ``limit_credits`` ends it."""
        self.sealed_credits = sealed
        self.credit_limit = min(self.credit_limit, sealed)

    def limit_credits(self) -> None:
        """Settle how many credits the client, which is authenticated, may hold. Call it when its sessions and tree
        connects have changed: they show whether it encrypts."""
        limit = self._max_credits
        if self.sealed_credits is not None and not self._sends_clear_data():
            limit = min(limit, self.sealed_credits)
        self.credit_limit = limit

    def _sends_clear_data(self) -> bool:
        """Whether some session here has a disk share, and none has ever encrypted: a client that encrypts does so from
        TREE_CONNECT on. A channel of a session counts with what the session did on others."""
        sessions = self.session_table.values()
        return any(session.uses_disks for session in sessions) and not any(session.encrypts for session in sessions)

    def drop_deadlines(self) -> None:
        """Cancel the timers of ``deadlines``."""
        for timer in self.deadlines:
            timer.cancel()
        self.deadlines.clear()

    def disconnect(self, reason: str) -> None:
        """Abort the transport: the peer broke the protocol, or the connection is not wanted any more."""
        if not self.closed:
            self.ended_by = reason
            log.info("%s: disconnecting: %s", self.client_name, reason)
        self.transport.abort(reason)
