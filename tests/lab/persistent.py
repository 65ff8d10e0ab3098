"""Opens that survive a failure of their server. [MS-SMB2 3.2.4.3.5, 3.2.4.4]

``PersistentShare`` is one tree connect over successive connections; ``PersistentFile`` is an open on it. They
reconnect, reclaim the open, and repeat each request that was not answered. Every operation returns once a server has
acknowledged it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from smb3server.client.protocol import Client
from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.tree import READ_WRITE, SHARE_ALL, RemoteFile, Tree
from smb3server.wire import create_contexts as contexts
from smb3server.wire.create import CreateDisposition
from smb3server.wire.lock import LockElement, LockFlags
from smb3server.wire.oplock_break import LeaseBreakNotification, OplockLevel
from smb3server.wire.status import NtStatus
from smbdirect.errors import ConnectionLost, ProtocolError
from smbdirect.message_transport import MessageTransport

if TYPE_CHECKING:
    from smb3server.client.protocol.messages import Break

T = TypeVar("T")

_TRANSIENT = frozenset(
    [
        NtStatus.SERVER_UNAVAILABLE,
        NtStatus.FILE_NOT_AVAILABLE,
        NtStatus.USER_SESSION_DELETED,
        NtStatus.NETWORK_SESSION_EXPIRED,
        NtStatus.NETWORK_NAME_DELETED,
        NtStatus.FILE_CLOSED,
    ]
)
"""Statuses of a server in transition; the request is repeated on a new connection."""
_RETRY_DELAY = 0.05
_MAX_DELAY = 0.5
_SETUP_TIMEOUT, _MAX_SETUP_TIMEOUT = 3.0, 24.0
"""Seconds without progress in connecting, logging on and connecting to the tree, at first and at most. A machine may
accept connections and never answer. A server that many clients return to at once does answer, step by step; giving up
on it early would make it repeat the same work.
"""
_MAX_SEQUENCE_INDEX = 64


class OpenLost(Exception):
    """The server no longer knows the open."""


class PersistentShare:
    """A tree connect to a share that may move between servers.

    ``connect`` opens a transport to the current server of the share. An operation fails with its last error after
    ``patience`` seconds without success.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[MessageTransport]],
        share: str,
        user: str,
        password: str,
        patience: float = 60.0,
    ) -> None:
        self.client_guid = os.urandom(16)
        self.patience = patience
        self.on_reconnected: Callable[[], None] = lambda: None
        self.tree: Tree | None = None
        self.generation = 0
        """Number of connections so far. An open attached to an earlier connection must be reclaimed."""
        self.files: dict[bytes, PersistentFile] = {}
        """Open files by lease key."""
        self._connect = connect
        self._share, self._user, self._password = share, user, password
        self._session_id = 0
        self._setup_timeout = _SETUP_TIMEOUT
        self._lock = asyncio.Lock()

    async def connected(self) -> Tree:
        """Return the tree connect of a connection that is not known to be lost. Try once to make one if
        there is none.
        """
        async with self._lock:
            if self.tree is not None and self.tree.client.closed is None:
                return self.tree
            self.tree = None
            try:
                async with asyncio.timeout(self._setup_timeout) as limit:
                    tree = await self._set_up(limit)
            except TimeoutError:
                # If all clients of a recovering server gave up early, it could complete the set-up of none.
                self._setup_timeout = min(2 * self._setup_timeout, _MAX_SETUP_TIMEOUT)
                raise
            self._setup_timeout = _SETUP_TIMEOUT
            self._session_id = tree.session.session_id
            self.generation += 1
            self.tree = tree
            if self.generation > 1:
                self.on_reconnected()
            return tree

    async def _set_up(self, limit: asyncio.Timeout) -> Tree:
        def progress() -> None:
            limit.reschedule(asyncio.get_running_loop().time() + self._setup_timeout)

        transport = await self._connect()
        try:
            progress()
            client = await Client.connect(transport, client_guid=self.client_guid)
            client.on_break = self._on_break
            progress()
            session = await client.log_on(self._user, self._password, previous_session_id=self._session_id)
            progress()
            return await session.tree_connect(self._share)
        except BaseException:
            transport.abort("set-up failed")
            raise

    def drop(self) -> None:
        """Abort the connection; the next operation makes a new one."""
        tree, self.tree = self.tree, None
        if tree is not None and tree.client.closed is None:
            tree.client.transport.abort("connecting anew")

    async def until_done(self, attempt: Callable[[Tree], Awaitable[T]]) -> T:
        """Repeat ``attempt`` on fresh connections as long as it fails with a transient error."""
        loop = asyncio.get_running_loop()
        give_up, delay = loop.time() + self.patience, _RETRY_DELAY
        while True:
            try:
                return await attempt(await self.connected())
            except ServerError as error:
                # A node that does not serve the share says so. That may change: the share may be moving.
                elsewhere = error.status == NtStatus.BAD_NETWORK_NAME and self.patience > 0
                if (error.status not in _TRANSIENT and not elsewhere) or loop.time() > give_up:
                    raise
                if error.status not in (NtStatus.SERVER_UNAVAILABLE, NtStatus.FILE_NOT_AVAILABLE):
                    self.drop()
            except (ConnectionLost, ProtocolError, OSError) as error:
                if loop.time() > give_up:
                    raise
                del error
                self.drop()
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MAX_DELAY)

    def _on_break(self, notification: Break) -> None:
        if isinstance(notification, LeaseBreakNotification):
            file = self.files.get(notification.lease_key)
            if file is not None:
                file.broken(notification)

    async def open(
        self,
        name: str,
        access: int = READ_WRITE,
        disposition: int = CreateDisposition.OPEN_IF,
        *,
        options: int = 0,
        share: int = SHARE_ALL,
        lease_state: int = 0,
        timeout: float = 0.0,
        more: Sequence[contexts.RawContext] = (),
    ) -> PersistentFile:
        """Open a file with a persistent handle.

        ``more``: create contexts of the first CREATE. ``lease_state`` 0 requests no lease. ``timeout`` is the number of
        seconds that the server keeps the open without a client; 0 leaves it to the server. Raises ``OpenLost`` if the
        server does not grant a persistent handle.
        """
        file = PersistentFile(self, name, access, disposition, options, share, lease_state, timeout, more)
        await file._open()
        return file

    async def close(self) -> None:
        """Close the connection; opens stay on the server."""
        tree, self.tree = self.tree, None
        if tree is not None:
            await tree.client.close()


class PersistentFile:
    """A persistent open; ``PersistentShare.open`` makes one. Operations may overlap."""

    def __init__(
        self,
        owner: PersistentShare,
        name: str,
        access: int,
        disposition: int,
        options: int,
        share: int,
        lease_state: int,
        timeout: float,
        more: Sequence[contexts.RawContext] = (),
    ) -> None:
        self.owner = owner
        self.name = name
        self.create_guid = os.urandom(16)
        self.lease_key = os.urandom(16)
        self.lease_state = lease_state
        self._leased = lease_state != 0
        self.on_broken: Callable[[int], None] = lambda state: None
        """Called with the new lease state after a break. The file acknowledges the break itself."""
        self._create = (access, disposition, options, share)
        self._timeout = timeout
        self._more = more
        # Invariant: ``_file`` is an open on the owner's connection number ``_generation``; None if there is no open.
        self._file: RemoteFile | None = None
        self._generation = 0
        self._attaching = asyncio.Lock()
        self._sent = False
        self._index = 0
        # LockSequenceIndex of the last request, and the last LockSequenceNumber of each index (3.2.4.19).
        self._numbers = [0] * (_MAX_SEQUENCE_INDEX + 1)
        self._acknowledging: set[asyncio.Task[None]] = set()

    def _contexts(self, name: bytes, data: bytes) -> list[contexts.RawContext]:
        found = [contexts.RawContext(name, data)]
        if self._leased:
            lease = contexts.LEASE_V2_CODEC.pack(contexts.LeaseV2(self.lease_key, self.lease_state))
            found.append(contexts.RawContext(contexts.REQUEST_LEASE, lease))
        return found

    async def _open(self) -> None:
        self.owner.files[self.lease_key] = self
        try:
            await self.owner.until_done(self._send_create)
        except BaseException:
            self.owner.files.pop(self.lease_key, None)
            raise

    async def _send_create(self, tree: Tree) -> None:
        """Send CREATE. If it is repeated, the server finds the open that the first one made. [MS-SMB2 3.2.5.7]"""
        access, disposition, options, share = self._create
        wanted = contexts.DurableRequestV2(int(self._timeout * 1000), contexts.PERSISTENT, 0, self.create_guid)
        asked = self._contexts(contexts.DURABLE_REQUEST_V2, contexts.DURABLE_REQUEST_V2_CODEC.pack(wanted))
        asked += self._more
        replay, self._sent = self._sent, True
        generation = self.owner.generation
        file = await tree.create(
            self.name, access, disposition, options, share, contexts=asked, oplock=self._oplock, replay=replay
        )
        granted = next((data for name, data in file.contexts if name == contexts.DURABLE_REQUEST_V2), None)
        if granted is None or not contexts.RESPONSES[contexts.DURABLE_REQUEST_V2](granted).flags & contexts.PERSISTENT:
            await tree.close(file)
            raise OpenLost(f"{self.name}: no persistent handle granted")
        self._file, self._generation = file, generation

    @property
    def _oplock(self) -> int:
        return OplockLevel.LEASE if self._leased else OplockLevel.NONE

    async def _attached(self, tree: Tree) -> RemoteFile:
        """Return the open on this connection, reclaimed if it was made on another one. [MS-SMB2 3.2.4.4]"""
        async with self._attaching:
            generation = self.owner.generation
            if self._file is None:
                raise OpenLost(f"{self.name} is closed")
            if self._generation == generation:
                return self._file
            data = contexts.DURABLE_RECONNECT_V2_CODEC.pack(
                contexts.DurableReconnectV2(*self._file.file_id, self.create_guid, contexts.PERSISTENT)
            )
            asked = self._contexts(contexts.DURABLE_RECONNECT_V2, data)
            access, disposition, options, share = self._create
            try:
                self._file = await tree.create(
                    self.name, access, disposition, options, share, contexts=asked, oplock=self._oplock
                )
            except ServerError as error:
                if error.status == NtStatus.OBJECT_NAME_NOT_FOUND:
                    raise OpenLost(f"{self.name}: the server no longer knows it") from error
                raise
            self._generation = generation
            return self._file

    async def write(self, offset: int, data: bytes) -> int:
        """Write ``data``. Repeating a WRITE does no harm, so it is sent again as it is."""

        async def attempt(tree: Tree) -> int:
            return await tree.write(await self._attached(tree), offset, data)

        return await self.owner.until_done(attempt)

    async def read(self, offset: int, length: int) -> bytes:
        """Read up to ``length`` bytes from ``offset``; fewer at the end of the file."""

        async def attempt(tree: Tree) -> bytes:
            return await tree.read(await self._attached(tree), offset, length)

        return await self.owner.until_done(attempt)

    async def ioctl(self, code: int, data: bytes, max_output: int = 65536) -> bytes:
        """Send an FSCTL, and return its output. It may be done twice if the server dies."""

        async def attempt(tree: Tree) -> bytes:
            return await tree.ioctl(code, data, await self._attached(tree), max_output=max_output)

        return await self.owner.until_done(attempt)

    async def lock(self, offset: int, length: int, exclusive: bool = True) -> None:
        """Lock a byte range. Fail immediately with LOCK_NOT_GRANTED if it is taken."""
        kind = LockFlags.EXCLUSIVE_LOCK if exclusive else LockFlags.SHARED_LOCK
        await self._locks([LockElement(offset, length, int(kind | LockFlags.FAIL_IMMEDIATELY))])

    async def unlock(self, offset: int, length: int) -> None:
        """Unlock a byte range."""
        await self._locks([LockElement(offset, length, int(LockFlags.UNLOCK))])

    async def _locks(self, elements: Sequence[LockElement]) -> None:
        """Lock or unlock with a sequence number, by which the server recognizes a repeated request.
        [MS-SMB2 3.2.4.19]
        """
        self._index = self._index % _MAX_SEQUENCE_INDEX + 1
        number = self._numbers[self._index] = (self._numbers[self._index] + 1) & 0xF
        sequence = self._index << 4 | number

        async def attempt(tree: Tree) -> None:
            await tree.lock(await self._attached(tree), elements, sequence)

        await self.owner.until_done(attempt)

    async def close(self) -> None:
        """Close the open; do nothing if the server no longer knows it."""

        async def attempt(tree: Tree) -> None:
            await tree.close(await self._attached(tree))

        try:
            await self.owner.until_done(attempt)
        except OpenLost:
            if self._generation == 0:
                raise
            # The server closed the open for an earlier request whose response was lost.
        self._file = None
        self.owner.files.pop(self.lease_key, None)

    def broken(self, notification: LeaseBreakNotification) -> None:
        """Accept a lease break, and acknowledge it if the server asks for that."""
        self.lease_state = notification.new_lease_state
        if notification.flags & 1:
            task = asyncio.ensure_future(self._acknowledge(notification.new_lease_state))
            self._acknowledging.add(task)
            task.add_done_callback(self._acknowledging.discard)
        self.on_broken(self.lease_state)

    async def _acknowledge(self, state: int) -> None:
        tree = self.owner.tree
        if tree is None:
            return
        try:
            await tree.acknowledge_lease_break(self.lease_key, state)
        except (ServerError, ConnectionLost):
            # The server sends the break again on the next connection.
            return
