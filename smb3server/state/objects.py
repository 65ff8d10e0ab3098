"""Connections, sessions, tree connects, opens and channels: their fields, and rules that need only these.

The objects refer to each other, as in the specification. [MS-SMB2 3.3.1.7 to 3.3.1.10, 3.3.1.14]
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

from smb3server.access.caller import Caller
from smb3server.access.check import Token
from smb3server.access.identity import Identity
from smb3server.auth.acceptor import Acceptor
from smb3server.backends.base import Backend, Handle, Path, User
from smb3server.compression.benefit import Benefit, Counts
from smb3server.compression.transform import Agreement
from smb3server.crypto.encryption import SessionCipher
from smb3server.crypto.signing import Signer
from smb3server.files.caching import HANDLE, WRITE, Lease, Oplock
from smb3server.files.file import File
from smb3server.files.notify import Watcher
from smb3server.files.searches import Enumeration
from smb3server.qos.flows import Flow
from smb3server.settings.server import Settings
from smb3server.state.ceilings import Usage
from smb3server.state.durable import Durability, Replayable
from smb3server.state.life import ConnectionLife, change
from smb3server.state.message_window import CommandSequenceWindow
from smb3server.state.share import Share
from smb3server.virtual_disks.device import DeviceOpen
from smb3server.wire.attributes import MAX_OFFSET
from smb3server.wire.header import Command, FileId
from smb3server.wire.status import Disconnect
from smbdirect.codec import Buffer
from smbdirect.message_transport import MessageTransport, TransportKind
from smbdirect.unauthenticated import UnauthenticatedPeer

log = logging.getLogger(__name__)


QUIC_CREDITS = 256
"""Most credits of a client over QUIC. What it may send for them fits into the window of its connection
(``net.quic.connection.TRUSTED_WINDOW``)."""
MAX_USERS = 8
"""Most names of users that a connection remembers for the log. A terminal server's connection has one for each user."""


class Opens(Protocol):
    """The table of all opens (``opens.OpenTable``)."""

    @property
    def persistence(self) -> object | None:
        """Stores persistent opens; None if no share has any."""

    def close(self, opened: Open) -> None:
        """Free everything of an open."""


class ConnectionHost(Protocol):
    """Runs a connection's requests: what the server's state needs of it."""

    @property
    def opens(self) -> Opens:
        """The table of all opens."""

    @property
    def pending_requests(self) -> int:
        """Asynchronous requests that are not answered yet (Connection.RequestList)."""

    def notify(self, session: Session, segments: Sequence[Buffer], command: int = Command.OPLOCK_BREAK) -> None:
        """Send a message that no request asked for, encrypted if the session's traffic is. [MS-SMB2 3.3.4.6]"""

    def cancel_requests(self, session: Session, tree_id: int | None = None) -> None:
        """Cancel the asynchronous requests of a session that ends, or of one of its tree connects that does."""

    def cancel_waiting(self) -> None:
        """Cancel every request whose client was sent STATUS_PENDING. The others may finish."""


class Connection:
    """One connection of a client. Before the negotiation its fields have the values given here. [MS-SMB2 3.3.1.7]"""

    def __init__(self, transport: MessageTransport, settings: Settings, host: ConnectionHost) -> None:
        """``settings``: for the limits on credits. ``host``: runs the connection's requests."""
        self.transport = transport
        self.host = host
        self.loop = asyncio.get_running_loop()
        self.client_name = transport.peer_address[0]
        self.creation_time = time.time()
        self.life = ConnectionLife.NEW
        """Changed by ``enter`` only."""
        self.dialect = 0
        """0: not negotiated; 0x02FF: multi-protocol negotiate answered; else 0x0202 ... 0x0311."""
        self.client_guid = bytes(16)
        self.client_capabilities = 0
        self.client_security_mode = 0
        self.client_dialects: tuple[int, ...] = ()
        self.client_knows_posix = False
        """It offered the POSIX extensions, whether or not they are used: a Linux client, or Samba's."""
        self.posix_extensions = False
        """The POSIX extensions were agreed upon: its CREATEs may ask for POSIX opens. [POSIX-SMB2]"""
        self.server_capabilities = 0
        self.server_security_mode = 0
        self.supports_multi_credit = False
        self.max_transact_size = 65536
        self.max_read_size = 65536
        self.max_write_size = 65536
        self.command_sequence_window = CommandSequenceWindow()
        self.credit_limit = settings.credits_before_authentication
        self._max_credits = settings.max_credits
        if transport.kind is TransportKind.QUIC:
            self._max_credits = min(self._max_credits, QUIC_CREDITS)
        self.sealed_credits: int | None = None
        """Most credits of a client that may encrypt. They keep its READs as short as its messages (``read_size``).

        None means that there is no such limit."""
        self.session_table: dict[int, Session] = {}
        self.constrained = True
        """Nobody but anonymous users has logged on (Connection.ConstrainedConnection)."""
        self.preauth_integrity_hash = b""
        """3.1.1 only: hash of the negotiation."""
        self.preauth_session_table: dict[int, bytes] = {}
        """3.1.1 only: hash per session being authenticated."""
        self.acceptors: dict[int, Acceptor] = {}
        """Authentications under way, by SessionId."""
        self.cipher_id = 0
        self.signing_algorithm_id = 0
        self.usage: Usage | None = None
        """Usage of the user that it counts for: the first who logged on."""
        self.deadlines: list[asyncio.TimerHandle] = []
        """Timers by which it must have negotiated and authenticated. They would keep a closed connection in memory."""
        # Invariant: None once the connection is authenticated, and only then.
        self.place: UnauthenticatedPeer | None = None
        """Its entry in the table of unauthenticated peers."""
        self.forced_stall = False
        """For tests: treat the peer as one that acknowledges nothing."""
        self.ended_by = ""
        """Why this side ended it; empty if it did not."""
        self.ended_case = ""
        """What ended it, in a word (``wire.status.Disconnect.case``)."""
        self.broke_protocol = False
        """This side ended it because the peer violated the protocol."""
        self.users: list[str] = []
        """The users who have logged on over it, for the log; at most ``MAX_USERS``."""
        self.interfaces_asked = False
        """The client asked for the list of interfaces (FSCTL_QUERY_NETWORK_INTERFACE_INFO)."""
        self.rdma_interfaces_told = 0
        """Interfaces flagged RDMA_CAPABLE in the answer."""
        self.accepts_transport_security = False
        """Whether messages need no encryption of SMB, since QUIC encrypts them. [MS-SMB2 3.3.1.7]"""
        self.rdma_transform_ids: tuple[int, ...] = ()
        """How data that moves by RDMA may be protected."""
        self.compression: Agreement | None = None
        """How messages may be compressed. None: not at all. (Connection.CompressionIds, SupportsChainedCompression.)"""
        self.compressed = Counts()
        self.rdma_bytes_encrypted = 0
        """Bytes that moved by RDMA encrypted, in either direction. The transport counts them among all that did."""
        self.rdma_bytes_signed = 0
        self.largest_inline = 0
        """Bytes of the largest READ or WRITE of a file whose data was to travel in the message."""

    def enter(self, life: ConnectionLife) -> None:
        """Move the connection to the state ``life``. Raises ``IllegalChange`` if it may not follow the present one."""
        self.life = change(self.life, life)

    @property
    def negotiated(self) -> bool:
        """Whether the dialect is agreed upon, and the connection in use."""
        return self.life is ConnectionLife.AUTHENTICATED or self.life is ConnectionLife.NEGOTIATED

    @property
    def is_authenticated(self) -> bool:
        """Whether a session was valid on it once, and the connection is in use."""
        return self.life is ConnectionLife.AUTHENTICATED

    @property
    def is_smb_direct(self) -> bool:
        """Whether its messages travel by SMB Direct."""
        return self.transport.kind is TransportKind.SMB_DIRECT

    @property
    def closed(self) -> bool:
        """Whether the transport has ended."""
        return self.life is ConnectionLife.CLOSED

    def is_stalled(self) -> bool:
        """Return whether the network has lost the peer, as far as the transport can detect it."""
        return self.forced_stall or self.transport.is_stalled()

    def hold_credits(self, sealed: int) -> None:
        """Let a client that may encrypt hold at most ``sealed`` credits, until ``limit_credits``. [MS-SMB2 3.3.1.2]"""
        self.sealed_credits = sealed
        self.credit_limit = min(self.credit_limit, sealed)

    def limit_credits(self) -> None:
        """Set how many credits an authenticated client may hold.

        Call it when the client's sessions and tree connects have changed: they show whether it encrypts."""
        limit = self._max_credits
        if self.sealed_credits is not None and not self._sends_clear_data():
            limit = min(limit, self.sealed_credits)
        self.credit_limit = limit

    def _sends_clear_data(self) -> bool:
        """Return whether some session here uses a disk share, and none has ever encrypted.

        A client that encrypts does so from TREE_CONNECT on. What a session did on its other channels counts as well."""
        sessions = self.session_table.values()
        return any(session.uses_disks for session in sessions) and not any(session.encrypts for session in sessions)

    def drop_deadlines(self) -> None:
        """Cancel the timers of ``deadlines``."""
        for timer in self.deadlines:
            timer.cancel()
        self.deadlines.clear()

    def note_user(self, name: str) -> None:
        """Note for the log that a user has logged on over it."""
        if name not in self.users and len(self.users) < MAX_USERS:
            self.users.append(name)

    def violated(self, error: Disconnect) -> None:
        """Abort the transport, because the peer has violated the protocol."""
        self.ended_case = self.ended_case or error.case
        self.disconnect(str(error), broke_protocol=True)

    def disconnect(self, reason: str, broke_protocol: bool = False) -> None:
        """Abort the transport, because the peer broke the protocol or the connection is no longer needed.

        ``reason``: for the log and for reports."""
        if self.life is not ConnectionLife.CLOSING and self.life is not ConnectionLife.CLOSED:
            self.enter(ConnectionLife.CLOSING)
            self.ended_by = reason
            self.broke_protocol = broke_protocol
        self.transport.abort(reason)


class SessionState(enum.Enum):
    """Session.State. [MS-SMB2 3.3.1.8]"""

    IN_PROGRESS = "in progress"
    VALID = "valid"
    EXPIRED = "expired"


CHANNEL_SILENCE = 15.0
"""Seconds without an acknowledgment or answer after which a channel is closed while its session has others.

The client loses nothing by it, and requests that wait for the dead channel (breaks, 3.3.4.6) go on."""


@dataclass(slots=True, eq=False)
class Channel:
    """One session on one connection. [MS-SMB2 3.3.1.14]"""

    connection: Connection
    signing_key: bytes
    signer: Signer | None
    """None for guests, who have no key to sign with."""


class Session:
    """What one user does on one or more connections. [MS-SMB2 3.3.1.8]

    ``open_table`` is keyed by the volatile half of the FileId, ``tree_connect_table`` by TreeId."""

    def __init__(self, session_id: int, connection: Connection | None) -> None:
        self.session_id = session_id
        self.state = SessionState.IN_PROGRESS
        self._connection = connection
        """None only for a session of an earlier run of the server, which records the owner of restored opens."""
        self.identity: Identity | None = None
        self.token: tuple[Identity, User | None, Token] | None = None
        """The latest result of ``caller.token_of``, with the identity and the user that it was made from."""
        self.session_key = b""
        self.full_session_key = b""
        """The whole key of the authentication protocol. The keys of 256-bit ciphers derive from it."""
        self.keys_are_public = False
        """Everybody can compute its keys, because it began with an anonymous logon: they prove and hide nothing."""
        self.signing_required = False
        self.encrypt_data = False
        self.transport_secured = False
        """Whether its messages need no encryption, since all its connections encrypt them (QUIC)."""
        self.cipher: SessionCipher | None = None
        """None if the dialect, the client or a missing key excludes encryption."""
        self.open_table: dict[int, Open] = {}
        self.tree_connect_table: dict[int, TreeConnect] = {}
        self.channel_list: dict[Connection, Channel] = {}
        self.application_key = b""
        self.signer: Signer | None = None
        """Signs with Session.SigningKey. Channels bound later have their own."""
        self.signing_algorithm_id = 0
        """The algorithm of ``signer``. A channel bound later may use another."""
        self.expiration_time: float | None = None
        """When the credentials expire, in monotonic seconds. None means that they never expire."""
        self.deadline: asyncio.TimerHandle | None = None
        """Timer by which it must be authenticated."""
        self.usage: Usage | None = None
        """What its user has; None before the logon."""
        self.watchers = 0
        """Number of opens with a CHANGE_NOTIFY watcher."""
        self.creation_time = time.time()
        self.idle_time = time.time()
        self._next_tree_id = 0

    @property
    def connection(self) -> Connection:
        """The connection it was made on, or another channel since that was lost. Commands come on any channel."""
        if self._connection is None:
            raise ValueError("a session of an earlier run has no connection")
        return self._connection

    @connection.setter
    def connection(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def connections(self) -> Iterator[Connection]:
        """All its connections, beginning with ``connection``."""
        if self._connection is not None:
            yield self._connection
        for connection in self.channel_list:
            if connection is not self._connection:
                yield connection

    @property
    def is_guest(self) -> bool:
        """Whether its user logged on as a guest."""
        return self.identity is not None and self.identity.guest

    @property
    def is_anonymous(self) -> bool:
        """Whether its user logged on anonymously."""
        return self.identity is not None and self.identity.anonymous

    @property
    def uses_disks(self) -> bool:
        """Whether it has a tree connect to a share with files."""
        return any(tree.share.backend is not None for tree in self.tree_connect_table.values())

    @property
    def encrypts(self) -> bool:
        """Whether its data is encrypted, or was at any time."""
        if self.encrypt_data or (self.cipher is not None and self.cipher.used):
            return True
        return any(tree.encrypt_data for tree in self.tree_connect_table.values())

    def signer_on(self, connection: Connection) -> Signer | None:
        """Return what signs and verifies its messages on a channel, None if nothing does. [MS-SMB2 3.3.4.1.1]"""
        channel = self.channel_list.get(connection)
        return channel.signer if channel is not None else None

    def limit_credits(self) -> None:
        """Call ``Connection.limit_credits`` on all channels."""
        for connection in self.channel_list:
            connection.limit_credits()

    @property
    def user(self) -> User | None:
        """POSIX credentials for backends."""
        return self.identity.user if self.identity is not None else None

    def channels_changed(self) -> None:
        """Use a short peer timeout while the session has other channels, the long default otherwise."""
        for connection in self.channel_list:
            shared = any(len(session.channel_list) > 1 for session in connection.session_table.values())
            connection.transport.set_peer_timeout(CHANNEL_SILENCE if shared else None)

    def new_tree_id(self) -> int:
        """Return an unused TreeId, never 0 or 0xFFFFFFFF."""
        while True:
            self._next_tree_id = self._next_tree_id % 0xFFFFFFFE + 1
            if self._next_tree_id not in self.tree_connect_table:
                return self._next_tree_id


class TreeConnect:
    """A session's use of a share. [MS-SMB2 3.3.1.9]"""

    __slots__ = ("apple", "caller", "creation_time", "encrypt_data", "maximal_access", "session", "share", "tree_id")

    def __init__(self, tree_id: int, session: Session, share: Share) -> None:
        self.tree_id = tree_id
        self.session = session
        self.share = share
        self.maximal_access = share.maximal_access(session.identity)
        self.encrypt_data = session.encrypt_data or (share.rules.encrypt and not session.transport_secured)
        """Whether its requests must be encrypted. Invariant: no session demands it later than its logon."""
        self.creation_time = time.time()
        self.caller: tuple[Identity | None, Caller] | None = None
        """The latest result of ``caller.caller_of``, with the identity that it was made for."""
        self.apple = 0
        """What a Mac was promised (``wire.apple.ServerCaps``). 0: the client did not ask, or the share is not for
        Macs."""

    @property
    def user(self) -> User | None:
        """POSIX credentials that the session's user acts with here. None means those of the server process."""
        return self.share.acting_user(self.session.user)

    @property
    def open_count(self) -> int:
        """Number of the session's opens that belong to it."""
        return sum(1 for opened in self.session.open_table.values() if opened.tree is self)


class Pipe(Protocol):
    """An instance of a named pipe in message mode. [MS-SMB2 3.3.5.10, 3.3.5.12 to 3.3.5.15]"""

    turn: asyncio.Lock
    """Held while a worker writes to it."""

    def is_slow(self, size: int) -> bool:
        """Return whether writing ``size`` bytes more may take long."""

    def begin(self) -> bool:
        """Keep it open until ``end``, for a worker that is going to write. Return False if it is closed."""

    def end(self) -> None:
        """Allow it to be closed again, after ``begin``."""

    def write(self, data: bytes) -> int:
        """Write data, and return the number of bytes written."""

    def read(self, size: int) -> tuple[bytes, bool]:
        """Return up to ``size`` bytes, and whether more of the same message remains (STATUS_BUFFER_OVERFLOW).

        Raises PIPE_EMPTY if there is no message."""

    @property
    def is_empty(self) -> bool:
        """Whether a read has to wait for a message."""

    @property
    def answers_later(self) -> bool:
        """Whether an answer will come to what was written."""

    def wait(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, in a turn of its own, when it has a message or is closed."""

    def unwait(self, callback: Callable[[], None]) -> None:
        """Undo ``wait``."""

    def close(self) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class Open:
    """The result of one successful CREATE. [MS-SMB2 3.3.1.10]

    Names are those of the specification. ``file`` has the state that all opens of one file share."""

    file_id: FileId
    session: Session
    tree: TreeConnect
    path: Path
    """The name that it was opened with. ``handle.path`` follows renames."""
    _: KW_ONLY
    store: Backend | None
    """The store that has the file, None for a pipe. Whoever asks about the file asks this one, not the share's."""
    granted_access: int
    maximal_access: int
    share_access: int
    desired_access: int | None = None
    """As the CREATE had it. None for an open that a server stored which did not note it."""
    create_options: int = 0
    create_action: int = 0
    is_directory: bool = False
    delete_on_close: bool = False
    handle: Handle | None = None
    descriptor: int | None = None
    """``handle.fileno()``, for the data path."""
    max_offset: int = MAX_OFFSET
    """The greatest offset in the file, in bytes, at which a write may end."""
    may_block: bool = True
    """Whether reads may have to wait for a disk."""
    lacks_archive: bool = False
    """The file's attribute ARCHIVE is to be set with the next write through it."""
    wrote: bool = False
    """Whether data was written through it (change notification)."""
    position: int = 0
    """CurrentByteOffset: the offset behind the last byte read or written, or the one that the client set.

    Reads and writes move it for synchronous opens only [MS-FSCC 2.4.39]. An SMB2 open does not say whether it is
    synchronous, because servers ignore those options [MS-SMB2 2.2.13]. All opens count as synchronous, as in Samba.
    Windows lets only the client move it."""
    bytes_read: int = 0
    """Bytes of data that READs of it returned. Reports add them up; see ``OpenTable.close``."""
    bytes_written: int = 0
    benefit: Benefit | None = None
    """Whether compressing its data pays. None until a client asks for that."""
    # Invariant: neither ``handle`` nor ``_closing`` is closed while ``in_flight`` is greater than 0.
    in_flight: int = 0
    """Number of worker threads and RDMA transfers that use the handle."""
    pipe: Pipe | None = None
    file: File[Open] | None = None
    """The file, shared with its other opens; None for pipes only."""
    caching: Oplock[Open] | Lease[Open] | None = None
    parent_lease_key: bytes | None = None
    """ParentLeaseKey of the CREATE: the key of the directory leases that changes by this open do not break."""
    _closing: Handle | None = field(default=None, init=False)
    """A handle that was taken off the open, to be closed when nothing is in flight."""
    lock_sequences: dict[int, int] = field(default_factory=dict)
    """LockSequenceArray: index to number, valid entries only."""
    durable: Durability | None = None
    replayable: Replayable | None = None
    """The answer to a replayed CREATE; None if the open is not eligible (Open.IsReplayEligible)."""
    channel_sequence: int = 0
    outstanding_requests: int = 0
    """Number of pending requests with the current channel sequence."""
    outstanding_pre_requests: int = 0
    """Number of pending requests with older channel sequences."""
    sequence_epoch: int = 1
    """Identifies the client's session that the two counts belong to. Not in spec."""
    app_instance_id: bytes | None = None
    app_instance_version: tuple[int, int] | None = None
    """ApplicationInstanceVersionHigh and -Low."""
    write_through: bool = False
    """Whether acknowledged data must survive a crash of the machine, as for persistent opens."""
    on_close: list[Callable[[], None]] = field(default_factory=list)
    """Called before the handle is closed (change notification, directory scans)."""
    enumeration: Enumeration | None = None
    """The state of a QUERY_DIRECTORY scan."""
    watcher: Watcher | None = None
    """The state of CHANGE_NOTIFY, from its first request on."""
    next_quota: int = 0
    """The uid at which the next listing of quotas goes on."""
    next_ea: int = 0
    """Index of the EA at which a scan of the EAs goes on."""
    usage: Usage | None = None
    """Usage of the user that it counts for."""
    reserved: int = 0
    """Bytes reserved behind the file's end."""
    virtual_disk: DeviceOpen | None = None
    """What it is to a shared virtual disk. None: it is an open of a file."""
    flow: Flow | None = None
    """The logical flow that its reads and writes belong to. Then it has no descriptor. [MS-SQOS 3.2.1.2]"""
    resume_key: bytes | None = None
    """Open.ResumeKey, once a client has requested it."""

    @property
    def posix(self) -> bool:
        """Whether it is a POSIX open. [POSIX-SMB2]"""
        return self.store is not None and self.store.posix

    @property
    def is_dormant(self) -> bool:
        """Whether it takes no descriptor, because its client has not come back since it was restored."""
        return self.handle is not None and self.handle.dormant

    @property
    def may_come_back(self) -> bool:
        """Whether its client is away, and it stays until the client comes back or its time is up."""
        durable = self.durable
        return durable is not None and durable.disconnected and (durable.persistent or durable.resilient)

    @property
    def is_held_for_owner(self) -> bool:
        """Whether it is persistent, its client is away, and it has no handle caching that a break could take back.
        [MS-SMB2 3.3.5.9]

        Nor could a break help if the file has byte-range locks, unless its client may cache writes
        (smb2.persistent-open-reconnect-contended)."""
        durable = self.durable
        if durable is None or not durable.persistent or not durable.disconnected:
            return False
        state = self.caching.state if self.caching is not None else 0
        if not state & HANDLE:
            return True
        return not state & WRITE and self.file is not None and bool(self.file.locks.locks)

    def use_handle(self, handle: Handle) -> None:
        """Set the handle, and its descriptor if the open has one."""
        self.handle = handle
        self.descriptor = None if self.is_directory or handle.dormant else handle.fileno()

    def close_handle(self) -> None:
        """Take the handle off the open, and close it when nothing in flight uses it any longer."""
        self._closing, self.handle, self.descriptor = self.handle, None, None
        self._close_if_unused()

    def begin_io(self) -> None:
        """Keep the handle's descriptor from being closed (and its number reused) until ``end_io``."""
        self.in_flight += 1

    def end_io(self) -> None:
        """End what ``begin_io`` began."""
        self.in_flight -= 1
        if self._closing is not None:
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._closing is None or self.in_flight:
            return
        handle, self._closing = self._closing, None
        try:
            handle.close()
        except OSError as error:
            log.warning("close of %s: %s", "/".join(self.path), error)
