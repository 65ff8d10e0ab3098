"""A server with a share on disk, and clients that say exactly what they send: for the rules of docs/caching.md.

Break notifications are kept apart from replies. ``Peer.told`` waits for those that were sent so far.
"""

from __future__ import annotations

import asyncio
import faulthandler
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smb3server.auth.users import Account, nt_hash
from smb3server.backends.base import User
from smb3server.config.model import Config, ShareConfig
from smb3server.process.storage_queue import StorageQueue
from smb3server.service.service import Service
from smb3server.settings.server import Settings
from smb3server.wire import create, create_contexts, lock, oplock_break, read_write
from smb3server.wire.close import CLOSE_REQUEST, CloseRequest
from smb3server.wire.create import CreateRequest, CreateResponse
from smb3server.wire.create_contexts import RawContext
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command, HeaderFlags
from smb3server.wire.oplock_break import OplockLevel
from smb3server.wire.status import NtStatus
from tests.lab.slow_shares import INTERIM_DELAY
from tests.lab.wire_client import ECHO, Client, Reply, ioctl_body
from tools.support import own_user

R, RH, RW, RWH = 1, 3, 5, 7
READ_WRITE, ALL = 0x0012019F, 0x001F01FF
REPLAY = int(HeaderFlags.REPLAY_OPERATION)
FileId = tuple[int, int]
LOCK_NOW = int(lock.LockFlags.EXCLUSIVE_LOCK | lock.LockFlags.FAIL_IMMEDIATELY)


def key(number: int) -> bytes:
    """A lease key or a GUID."""
    return number.to_bytes(16, "little")


def lease(number: int, state: int = RWH, parent: int | None = None, epoch: int = 0) -> RawContext:
    flags = int(create_contexts.LeaseFlags.PARENT_LEASE_KEY_SET) if parent is not None else 0
    record = create_contexts.LeaseV2(key(number), state, flags, parent_lease_key=key(parent or 0), epoch=epoch)
    return RawContext(create_contexts.REQUEST_LEASE, create_contexts.LEASE_V2_CODEC.pack(record))


def durable(guid: int, persistent: bool = False, timeout: int = 0) -> RawContext:
    """``timeout``: milliseconds."""
    flags = create_contexts.PERSISTENT if persistent else 0
    record = create_contexts.DurableRequestV2(timeout, flags, create_guid=key(guid))
    return RawContext(create_contexts.DURABLE_REQUEST_V2, create_contexts.DURABLE_REQUEST_V2_CODEC.pack(record))


def reconnect(file: FileId, guid: int, persistent: bool = False) -> RawContext:
    flags = create_contexts.PERSISTENT if persistent else 0
    record = create_contexts.DurableReconnectV2(*file, key(guid), flags)
    return RawContext(create_contexts.DURABLE_RECONNECT_V2, create_contexts.DURABLE_RECONNECT_V2_CODEC.pack(record))


class Made:
    """The answer to a CREATE."""

    def __init__(self, reply: Reply) -> None:
        self.status = reply.status
        self.answer = CreateResponse()
        found: dict[bytes, Any] = {}
        if not reply.status:
            self.answer, contexts = create.parse_response(memoryview(reply.message))
            found = {name: create_contexts.RESPONSES[name](data) for name, data in contexts}
        self.file: FileId = (self.answer.persistent, self.answer.volatile)
        self.lease: create_contexts.LeaseV2 | None = found.get(create_contexts.REQUEST_LEASE)
        self.durable: create_contexts.DurableResponseV2 | None = found.get(create_contexts.DURABLE_REQUEST_V2)
        self.maximal: create_contexts.MaximalAccessResponse | None = found.get(create_contexts.MAXIMAL_ACCESS)

    @property
    def state(self) -> int:
        """The lease state that was granted."""
        return self.lease.lease_state if self.lease is not None else 0


Broken = tuple[int, int, int]
"""(number of the lease key, state before, state after)."""


@dataclass
class Peer:
    """A client with one session and one tree connect."""

    client: Client
    breaks: list[Broken] = field(default_factory=list)
    notifications: list[Reply] = field(default_factory=list)
    """The notifications themselves, all that have come."""
    pending: list[Reply] = field(default_factory=list)
    """Interim replies."""
    storage: StorageQueue | None = None
    """What does the work on the share, if that is slow. An ECHO is answered before requests that wait for it."""

    async def receive(self) -> Reply:
        """The next message that is neither a notification nor an interim reply."""
        while True:
            reply = await self.client.receive()
            if reply.status == NtStatus.PENDING:
                self.pending.append(reply)
            elif not self.is_notification(reply):
                return reply

    def is_notification(self, reply: Reply) -> bool:
        if reply.header.message_id != 0xFFFFFFFFFFFFFFFF:
            return False
        self.notifications.append(reply)
        found = oplock_break.parse_notification(memoryview(reply.message))
        if isinstance(found, oplock_break.LeaseBreakNotification):
            number = int.from_bytes(found.lease_key, "little")
            self.breaks.append((number, found.current_lease_state, found.new_lease_state))
        return True

    async def call(self, command: int, body: bytes, **fields: Any) -> Reply:
        await self.client.post(command, body, **fields)
        return await self.receive()

    async def told(self) -> list[Broken]:
        """The breaks since the last call, with those that came before the reply to an ECHO."""
        assert (await self.call(Command.ECHO, ECHO)).status == 0
        if self.storage is not None:
            await self._turns_taken(self.storage)
            assert (await self.call(Command.ECHO, ECHO)).status == 0
        breaks, self.breaks = self.breaks, []
        return breaks

    async def waits(self) -> bool:
        """Return whether the request that was posted last has no final answer yet."""
        waits = (await self.call(Command.ECHO, ECHO)).header.command == Command.ECHO
        if waits and self.storage is not None:
            await self._turns_taken(self.storage)
            waits = (await self.call(Command.ECHO, ECHO)).header.command == Command.ECHO
        return waits

    @staticmethod
    async def _turns_taken(storage: StorageQueue) -> None:
        """Wait until all that has come so far has had its turn."""
        while not storage.is_idle:
            await asyncio.sleep(0.001)

    @staticmethod
    def request(name: str, *contexts: RawContext, **fields: Any) -> bytes:
        values: dict[str, Any] = {"desired_access": READ_WRITE, "share_access": 7, "create_disposition": 3}
        leased = any(context.name == create_contexts.REQUEST_LEASE for context in contexts)
        values["requested_oplock_level"] = int(OplockLevel.LEASE) if leased else 0
        return create.pack_request(CreateRequest(**{**values, **fields}), name, list(contexts))

    async def create(self, name: str, *contexts: RawContext, flags: int = 0, **fields: Any) -> Made:
        return Made(await self.call(Command.CREATE, self.request(name, *contexts, **fields), flags=flags))

    async def make(self, name: str, *contexts: RawContext, flags: int = 0, **fields: Any) -> Made:
        """``create``, which must succeed."""
        made = await self.create(name, *contexts, flags=flags, **fields)
        assert made.status == 0, hex(made.status)
        return made

    async def write(self, file: FileId, data: bytes = b"x", offset: int = 0) -> int:
        record = read_write.WriteRequest(
            data_offset=112, length=len(data), offset=offset, persistent=file[0], volatile=file[1]
        )
        return (await self.call(Command.WRITE, read_write.WRITE_REQUEST.pack(record) + data)).status

    async def lock(self, file: FileId, offset: int = 0, length: int = 1, flags: int = LOCK_NOW) -> int:
        request = lock.LockRequest(persistent=file[0], volatile=file[1])
        body = lock.pack_request(request, [lock.LockElement(offset, length, flags)])
        return (await self.call(Command.LOCK, body)).status

    async def unlock(self, file: FileId, offset: int = 0, length: int = 1) -> int:
        return await self.lock(file, offset, length, int(lock.LockFlags.UNLOCK))

    async def flush(self, file: FileId) -> int:
        return (await self.call(Command.FLUSH, struct.pack("<HHIQQ", 24, 0, 0, *file))).status

    async def close(self, file: FileId) -> int:
        return (await self.call(Command.CLOSE, close_body(file))).status

    async def set_info(self, file: FileId, level: int, data: bytes, kind: int = 1, additional: int = 0) -> int:
        return (await self.call(Command.SET_INFO, set_info_body(file, level, data, kind, additional))).status

    async def fsctl(self, file: FileId, code: int, data: bytes = b"") -> Reply:
        return await self.call(Command.IOCTL, ioctl_body(code, data, struct.pack("<QQ", *file)))

    async def query_info(self, file: FileId, level: int, size: int = 1024) -> Reply:
        return await self.call(Command.QUERY_INFO, query_info_body(file, level, size))

    async def acknowledge(self, number: int, state: int) -> int:
        body = oplock_break.LEASE_BREAK.pack(oplock_break.LeaseBreak(lease_key=key(number), lease_state=state))
        return (await self.call(Command.OPLOCK_BREAK, body)).status


def close_body(file: FileId) -> bytes:
    return CLOSE_REQUEST.pack(CloseRequest(24, 0, 0, *file))


def set_info_body(file: FileId, level: int, data: bytes, kind: int = 1, additional: int = 0) -> bytes:
    return struct.pack("<HBBIHHI2Q", 33, kind, level, len(data), 96, 0, additional, *file) + data


def rename_to(name: str, replace: bool = True) -> bytes:
    """The data of a rename or of a hard link."""
    path = name.encode("utf-16-le")
    return struct.pack("<B7xQI", replace, 0, len(path)) + path


def query_info_body(file: FileId, level: int, size: int = 1024) -> bytes:
    return struct.pack("<HBBIHHIIIQQ", 41, 1, level, size, 0, 0, 0, 0, 0, *file) + b"\0"


async def times_of(peer: Peer, file: FileId) -> tuple[int, int, int, int]:
    """CreationTime, LastAccessTime, LastWriteTime and ChangeTime. [MS-FSCC 2.4.7]"""
    reply = await peer.query_info(file, FileInfoClass.BASIC)
    assert reply.status == 0
    creation, access, write, change = struct.unpack_from("<4Q", reply.body, 8)
    return creation, access, write, change


async def write_time(peer: Peer, file: FileId) -> int:
    return (await times_of(peer, file))[2]


@dataclass
class Ground:
    """The server, and its clients."""

    service: Service
    folder: Path
    clients: list[Client] = field(default_factory=list)

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_connection(*self.service.listeners[0].address)
        client = Client(reader, writer)
        self.clients.append(client)
        return client

    async def peer(self, guid: bytes | None = None, previous: int = 0, user: str = "u") -> Peer:
        """A client that has logged on. ``guid``: its ClientGuid, to be the same client on another connection."""
        client = await self.connect()
        if guid is not None:
            client.guid = guid
        assert (await client.negotiate()).status == 0
        assert (await client.session_setup(user, previous=previous)).status == 0
        assert (await client.tree_connect()).status == 0
        return Peer(client, storage=self.service.server.share_list["share"].queue)

    async def lose(self, peer: Peer) -> None:
        """End a client's connection without a farewell, and wait until the server has noticed it."""
        connections = self.service.server.connection_list
        before = len(connections)
        peer.client.writer.transport.abort()
        self.clients.remove(peer.client)
        async with asyncio.timeout(10):
            while len(connections) >= before:
                await asyncio.sleep(0.002)

    async def comes_back(self, peer: Peer) -> Peer:
        """Lose the client's connection; return the same client on another one, with a new session."""
        await self.lose(peer)
        return await self.peer(peer.client.guid)


_HANGS = 100.0
"""Seconds after which a scene says what it waits for; less than a test may take."""


@asynccontextmanager
async def ground(
    folder: Path, settings: Settings | None = None, user: User | None = None, **share: Any
) -> AsyncIterator[Ground]:
    """``user``: of the host, as which the account ``u`` acts; None means that everybody acts as the tests' own user.
    ``share``: fields of its ``ShareConfig``."""
    (folder / "share").mkdir(exist_ok=True)
    settings = settings or Settings()
    settings.min_dialect = 0x0202
    settings.failed_logon_delay, settings.interim_delay = 0.0, INTERIM_DELAY
    config = Config(
        [ShareConfig("share", folder / "share", force_user=None if user else own_user.CREDENTIALS, **share)],
        [Account("u", nt_hash("pw"), user), Account("other", nt_hash("pw"))],
        settings,
        ["127.0.0.1"],
        port=0,
        state=folder / "state",
    )
    service = Service(config)
    place = Ground(service, folder / "share")
    try:
        await service.start()
        yield place
    finally:
        for client in place.clients:
            client.writer.transport.abort()
        await service.stop()


def act(
    folder: Path, scene: Callable[[Ground], Awaitable[None]], settings: Settings | None = None, **more: Any
) -> None:
    """Play a scene on a new server. The other arguments are those of ``ground``."""

    async def main() -> None:
        timer = asyncio.get_running_loop().call_later(_HANGS, _tell_tasks)
        async with ground(folder, settings, **more) as place:
            await scene(place)
        timer.cancel()

    asyncio.run(main())


def _tell_tasks() -> None:
    """Say what everybody waits for: a test that hangs is ended soon, and its traceback shows only the event loop."""
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)
    faulthandler.dump_traceback(sys.__stderr__)
