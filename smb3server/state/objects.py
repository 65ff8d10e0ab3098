"""Sessions (MS-SMB2 3.3.1.8), tree connects (3.3.1.9), opens (3.3.1.10) and channels (3.3.1.14).

Each knows the others, as the specification has it. Here are their fields and what follows from these alone.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from smb3server.backends.deferred import DeferredHandle
from smb3server.dispatch.request import FileId
from smb3server.files import write_times
from smb3server.files.caching import Lease, Oplock
from smb3server.state import last_close
from smb3server.state.replay import Replayable
from smb3server.wire.attributes import MAX_OFFSET

if TYPE_CHECKING:
    from smb3server.access.check import Token
    from smb3server.access.identity import Identity
    from smb3server.backends.base import Handle, Path, User
    from smb3server.crypto.encryption import SessionCipher
    from smb3server.crypto.signing import Signer
    from smb3server.files.enumeration import Enumeration
    from smb3server.files.file import File
    from smb3server.files.notify import Watcher
    from smb3server.server.server import Server
    from smb3server.state.ceilings import Usage
    from smb3server.state.connection import Connection
    from smb3server.state.durable import Durability
    from smb3server.state.share import Share

log = logging.getLogger(__name__)


class SessionState(enum.Enum):
    IN_PROGRESS = "in progress"
    VALID = "valid"
    EXPIRED = "expired"


CHANNEL_SILENCE = 15.0
"""Seconds after which a channel is given up whose client neither acknowledges nor answers, while the session has
others: it costs the client nothing, and what waits for the dead channel (breaks, 3.3.4.6) goes on."""


class Channel:
    """One session on one connection (3.3.1.14)."""

    __slots__ = ("connection", "signer", "signing_key")

    def __init__(self, connection: Connection, signing_key: bytes, signer: Signer | None) -> None:
        self.connection = connection
        self.signing_key = signing_key
        self.signer = signer
        """None for guest and anonymous sessions, which have no key to sign with."""


class Session:
    """3.3.1.8. ``open_table`` is keyed by the volatile half of the FileId, ``tree_connect_table`` by TreeId."""

    def __init__(self, server: Server, session_id: int, connection: Connection) -> None:
        self.server = server
        self.session_id = session_id
        self.state = SessionState.IN_PROGRESS
        self.connection = connection
        """The connection it was made on; commands come on any of ``channel_list``."""
        self.identity: Identity | None = None
        self.token: tuple[Identity, User | None, Token] | None = None
        """The latest of ``tokens.token_of``, with what it was made of."""
        self.session_key = b""
        self.full_session_key = b""
        """The authentication protocol's whole key: 256-bit ciphers derive from it."""
        self.signing_required = False
        self.encrypt_data = False
        self.cipher: SessionCipher | None = None
        """None where the dialect, the client or a missing key rule encryption out."""
        self.open_table: dict[int, Open] = {}
        self.tree_connect_table: dict[int, TreeConnect] = {}
        self.channel_list: dict[Connection, Channel] = {}
        self.application_key = b""
        self.signer: Signer | None = None
        """Session.SigningKey's; channels bound later have their own."""
        self.signing_algorithm_id = 0
        """``signer``'s; a channel bound later may use another."""
        self.expiration_time: float | None = None
        """When the credentials expire, monotonic seconds; None: never."""
        self.deadline: asyncio.TimerHandle | None = None
        """By which it must be authenticated."""
        self.usage: Usage | None = None
        """What its user has; None before the logon."""
        self.watchers = 0
        """Opens with a CHANGE_NOTIFY watcher."""
        self.creation_time = time.time()
        self.idle_time = time.time()
        self._next_tree_id = 0

    @property
    def is_guest(self) -> bool:
        return self.identity is not None and self.identity.guest

    @property
    def is_anonymous(self) -> bool:
        return self.identity is not None and self.identity.anonymous

    @property
    def uses_disks(self) -> bool:
        """Whether it has a tree connect to a share with files."""
        return any(tree.share.backend is not None for tree in self.tree_connect_table.values())

    @property
    def encrypts(self) -> bool:
        """Whether its data is encrypted, or was."""
        if self.encrypt_data or (self.cipher is not None and self.cipher.used):
            return True
        return any(tree.encrypt_data for tree in self.tree_connect_table.values())

    def limit_credits(self) -> None:
        """See ``Connection.limit_credits``; on all channels."""
        for connection in self.channel_list:
            connection.limit_credits()

    @property
    def user(self) -> User | None:
        """POSIX credentials for backends."""
        return self.identity.user if self.identity is not None else None

    def channels_changed(self) -> None:
        """Connections that others stand in for are given up soon, and a lone one may lose its network for long."""
        for connection in self.channel_list:
            shared = any(len(session.channel_list) > 1 for session in connection.session_table.values())
            connection.transport.limit_silence(CHANNEL_SILENCE if shared else None)

    def new_tree_id(self) -> int:
        """An unused TreeId, never 0 or 0xFFFFFFFF."""
        while True:
            self._next_tree_id = self._next_tree_id % 0xFFFFFFFE + 1
            if self._next_tree_id not in self.tree_connect_table:
                return self._next_tree_id


class TreeConnect:
    """3.3.1.9. ``open_count`` counts the entries of the session's open table that belong to it."""

    __slots__ = ("creation_time", "encrypt_data", "maximal_access", "session", "share", "tree_id")

    def __init__(self, tree_id: int, session: Session, share: Share) -> None:
        self.tree_id = tree_id
        self.session = session
        self.share = share
        self.maximal_access = share.maximal_access(session.identity)
        self.encrypt_data = share.encrypt_data
        self.creation_time = time.time()

    @property
    def user(self) -> User | None:
        """POSIX credentials that the session's user acts with here; None: the server process's own."""
        return self.share.acting_user(self.session.user)

    @property
    def open_count(self) -> int:
        return sum(1 for entry in self.session.open_table.values() if entry.tree is self)


class Pipe(Protocol):
    """A named pipe instance in message mode (MS-FSA 2.1.1.x has none of it; see MS-SMB2 3.3.5.12-15 and 3.3.5.10)."""

    turn: asyncio.Lock
    """Held while a worker writes to it."""

    def is_slow(self, size: int) -> bool:
        """Whether writing ``size`` bytes more may take long."""
        ...

    def begin(self) -> bool:
        """A worker is going to write; it stays open until ``end``. False: it is closed."""
        ...

    def end(self) -> None: ...

    def write(self, data: bytes) -> int: ...

    def read(self, size: int) -> tuple[bytes, bool]:
        """Data and whether more of the same message is left (STATUS_BUFFER_OVERFLOW). Raises PIPE_EMPTY."""
        ...

    def close(self) -> None: ...


class Open:
    """Names are the specification's; file state shared by all opens of one file hangs on ``file``."""

    __slots__ = (
        "_closing",
        "app_instance_id",
        "app_instance_version",
        "caching",
        "channel_sequence",
        "create_action",
        "create_options",
        "delete_on_close",
        "descriptor",
        "durable",
        "enumeration",
        "file",
        "file_id",
        "granted_access",
        "handle",
        "in_flight",
        "is_directory",
        "lock_sequences",
        "max_offset",
        "maximal_access",
        "may_block",
        "next_ea",
        "parent_lease",
        "on_close",
        "outstanding_pre_requests",
        "outstanding_requests",
        "path",
        "pipe",
        "position",
        "replayable",
        "resume_key",
        "session",
        "share_access",
        "reserved",
        "sequence_epoch",
        "tree",
        "usage",
        "watcher",
        "write_through",
        "wrote",
    )

    def __init__(self, file_id: FileId, session: Session, tree: TreeConnect) -> None:
        self.file_id = file_id
        self.session = session
        self.tree = tree
        self.granted_access = 0
        self.maximal_access = 0
        self.share_access = 0
        self.create_options = 0
        self.create_action = 0
        self.path: Path = ()
        """As it was opened; ``handle.path`` knows about renames."""
        self.is_directory = False
        self.handle: Handle | None = None
        self.descriptor: int | None = None
        """``handle.fileno()``, for the data path."""
        self.max_offset = MAX_OFFSET
        """Where writes have to end."""
        self.may_block = True
        """Reads may have to wait for a disk."""
        self.wrote = False
        """Whether data was written through it (change notification)."""
        self.position = 0
        """CurrentByteOffset: behind the last byte read or written, or where the client set it (MS-FSCC 2.4.39).

        That section lets reads and writes move it for synchronous opens only. SMB2 opens do not say what they are, as
        2.2.13 of MS-SMB2 has those options ignored: they count as synchronous, as in Samba. Windows lets only the
        client move it."""
        self.in_flight = 0
        """Worker threads and RDMA transfers that use the handle: it stays open for them."""
        self.pipe: Pipe | None = None
        self.file: File[Open] | None = None
        """None for pipes only."""
        self.caching: Oplock[Open] | Lease[Open] | None = None
        self.parent_lease: tuple[bytes, bytes] | None = None
        """(ClientGuid, ParentLeaseKey): the directory lease whose holder knows what this open does."""
        self.delete_on_close = False
        self._closing: Handle | None = None
        self.lock_sequences: dict[int, int] = {}
        """LockSequenceArray: index to number, valid entries only."""
        self.durable: Durability | None = None
        self.replayable: Replayable | None = None
        """What a replayed CREATE gets; None: not eligible (Open.IsReplayEligible)."""
        self.channel_sequence = 0
        self.outstanding_requests = 0
        """Pending ones with the current channel sequence, and those with older ones."""
        self.outstanding_pre_requests = 0
        self.sequence_epoch = 1
        """Which of its client's sessions the two counts belong to. Not in spec."""
        self.app_instance_id: bytes | None = None
        self.app_instance_version: tuple[int, int] | None = None
        """ApplicationInstanceVersionHigh and -Low."""
        self.write_through = False
        """Acknowledged data must outlive the machine: persistent opens."""
        self.on_close: list[Callable[[], None]] = []
        """Called before the handle is closed (change notification, directory scans)."""
        self.enumeration: Enumeration | None = None
        """QUERY_DIRECTORY under way."""
        self.watcher: Watcher | None = None
        """CHANGE_NOTIFY, from its first request on."""
        self.next_ea = 0
        """Index of the EA at which a scan of them goes on."""
        self.usage: Usage | None = None
        """Of the user whom it counts for."""
        self.reserved = 0
        """Bytes reserved behind the file's end."""
        self.resume_key: bytes | None = None
        """Open.ResumeKey, once asked for."""

    def close(self) -> None:
        """Free everything (MS-FSA 2.1.5.4) and delete the file if this was to be its last close. Idempotent; never
        fails: what the store refuses now is logged."""
        self.session.open_table.pop(self.file_id[1], None)
        server = self.session.server
        if server.global_open_table.pop(self.file_id[0], None) is None:
            return
        if self.app_instance_id is not None:
            self.leave_app_instance()
        if self.usage is not None:
            self.usage.opens -= 1
            self.usage.reserved -= self.reserved
            self.usage.away.pop(self, None)
        lost = server.has_lost(self.tree.share)
        if lost:
            self._leave_it_to_others()
        if self.durable is not None:
            self.durable.forget()
        if self.replayable is not None:
            server.replays.forget(self)
        on_close, self.on_close = self.on_close, []
        for callback in on_close:
            callback()
        if self.pipe is not None:
            self.pipe.close()
        file, handle = self.file, self.handle
        if file is not None and handle is not None:
            if not lost:
                self.settle_write_time()
            last_close.leave(file, self)
            self.handle = self.descriptor = None
            deferred: object = handle
            if isinstance(deferred, DeferredHandle):
                server.dormant_opens -= 1
            self._closing = handle
            self._close_handle()

    def join_app_instance(self, app_instance_id: bytes) -> None:
        """Open.AppInstanceId, and the server's index by it."""
        self.leave_app_instance()
        self.app_instance_id = app_instance_id
        self.session.server.app_instances.setdefault(app_instance_id, {})[self] = None

    def leave_app_instance(self) -> None:
        known = self.app_instance_id
        others = self.session.server.app_instances.get(known) if known is not None else None
        if known is None or others is None:
            return
        others.pop(self, None)
        if not others:
            del self.session.server.app_instances[known]

    def settle_write_time(self) -> None:
        """The last write time as this open leaves it."""
        try:
            write_times.closing(self)
        except OSError as error:
            log.warning("last write time of %s: %s", "/".join(self.path), error)

    def disconnect(self) -> None:
        """The connection is lost (3.3.7.1): a durable open stays for its client to come back to, others are closed."""
        if self.durable is not None and self.durable.disconnect():
            self.session.open_table.pop(self.file_id[1], None)
        else:
            self.close()

    def abandon(self) -> None:
        """The open lives on, elsewhere or in the next run of the server: let go of the file without closing it in the
        sense of the protocol. Nothing is deleted, neither the file nor what is stored of the open."""
        self._leave_it_to_others()
        self.close()

    def _leave_it_to_others(self) -> None:
        durable, persistence = self.durable, self.session.server.persistence
        if durable is not None and persistence is not None:
            persistence.abandon(self)
            durable.abandoned = True
        self.delete_on_close = False
        if self.file is not None:
            self.file.keep()

    def wake(self) -> None:
        """Its client comes back: open what so far was only remembered of the file. ``OSError``, ``FileNotFoundError``
        if that is gone."""
        deferred: object = self.handle
        if isinstance(deferred, DeferredHandle):
            self.handle = handle = deferred.open()
            self.session.server.dormant_opens -= 1
            self.descriptor = None if self.is_directory else handle.fileno()

    def begin_io(self) -> None:
        """Keep the handle's descriptor from being closed (and its number reused) until ``end_io``."""
        self.in_flight += 1

    def end_io(self) -> None:
        self.in_flight -= 1
        self._close_handle()

    def _close_handle(self) -> None:
        if self._closing is None or self.in_flight:
            return
        handle, self._closing = self._closing, None
        try:
            handle.close()
        except OSError as error:
            log.warning("close of %s: %s", "/".join(self.path), error)
