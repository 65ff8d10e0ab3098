"""Opens (MS-SMB2 3.3.1.10): one per successful CREATE, in the server's and the session's table."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from smb3server.backends.deferred import DeferredHandle
from smb3server.files import write_times
from smb3server.files.caching import Lease, Oplock
from smb3server.state.replay import Replayable

if TYPE_CHECKING:
    from smb3server.backends.base import Handle, Path
    from smb3server.commands.query_directory import Enumeration
    from smb3server.files.file import File
    from smb3server.files.notify import Watcher
    from smb3server.state.ceilings import Usage
    from smb3server.state.durable import Durability
    from smb3server.state.session import Session
    from smb3server.state.tree import TreeConnect
    from smb3server.wire.file_id import FileId

log = logging.getLogger(__name__)


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
        "__dict__",
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
        self.max_offset = (1 << 63) - 1
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
        self.file: File | None = None
        """None for pipes only."""
        self.caching: Oplock | Lease | None = None
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
            file.close_open(self)
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


def client_guid_of(entry: Open) -> bytes:
    """Open.ClientGuid: of the connection it was made on."""
    return entry.durable.client_guid if entry.durable is not None else entry.session.connection.client_guid
