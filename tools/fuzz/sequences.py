"""The possible next requests of a client with a session, given its opens: valid requests, which the client then
mutates.
"""

from __future__ import annotations

import asyncio
import os
import random
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smb3server.client.protocol.session import ClientSession
from smb3server.client.protocol.tree import RemoteFile, Tree
from smb3server.wire import create_contexts as contexts
from smb3server.wire import read_write
from smb3server.wire.create import CreateRequest, pack_request
from smb3server.wire.create_contexts import RawContext
from smb3server.wire.file_info import RenameInformation, encode_rename
from smb3server.wire.header import Command
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.lock import LockElement
from smb3server.wire.oplock_break import LeaseBreakNotification
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.errors import ConnectionLost, DecodeError
from smbdirect.message_transport import RemoteBuffer
from tools.fuzz.client import FuzzClient

if TYPE_CHECKING:
    from smb3server.client.protocol.messages import Break

STEP_SECONDS = 0.3
"""Seconds that a request may wait for its answer; requests that wait by their nature are cancelled then."""
_NAMES = ("f0", "f1", "f2", "f3", "d0\\f4", "d0\\f5", "f0:s0", "f1:s1", "F0", "new", "d1\\new")
_FOLDERS = ("", "d0", "d1", "d0\\d2")
_ACCESS = (0x1F01FF, 0x1F01FF, 0x12019F, 0x120089, 0x2000000, 0x10080, 0x80)
_QUERIES = (4, 5, 6, 7, 8, 9, 14, 15, 16, 17, 18, 21, 22, 28, 34, 35, 46, 48, 59)
_LISTINGS = (1, 2, 3, 12, 37, 38, 60, 63)
_MOST_FILES = 40
_DURABLE_MILLISECONDS = 1000
_RDMA_BYTES = 1 << 16


@dataclass(slots=True)
class Held:
    """An open of the run."""

    tree: Tree
    file: RemoteFile
    name: str
    folder: bool
    lease_key: bytes = b""


class Actor:
    """A client's session with its trees, opens, locks and watches; each ``step`` does one more thing.

    ``trees`` has one tree connect per channel and share. Every answer of the server is accepted here; the watch detects
    faults.
    """

    def __init__(self, chance: random.Random, trees: list[Tree]) -> None:
        self.chance = chance
        self.trees = trees
        self.held: list[Held] = []
        self.breaks: list[Break] = []
        self.lease_keys = [chance.randbytes(16) for _ in range(4)]
        self._waiting: list[asyncio.Task[Any]] = []
        self._buffers: dict[int, Any] = {}
        for tree in trees:
            tree.client.on_break = self.breaks.append
        self._steps: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (10, self._open),
            (4, self._close),
            (4, self._write),
            (4, self._read),
            (3, self._lock),
            (2, self._watch),
            (2, self._cancel),
            (3, self._rename),
            (4, self._set_info),
            (2, self._set_security),
            (6, self._query_info),
            (3, self._list),
            (5, self._ioctl),
            (6, self._compound),
            (2, self._acknowledge),
            (2, self._replay),
            (1, self._flush),
            (1, self._echo),
            (1, self._tree),
        ]
        if trees[0].client.transport.rdma is not None:
            self._steps.append((15, self._remote))

    async def step(self) -> None:
        """Do one random thing. Raises ``ConnectionLost`` and similar errors once the connection has ended."""
        (action,) = self.chance.choices([action for _, action in self._steps], [weight for weight, _ in self._steps])
        try:
            async with asyncio.timeout(STEP_SECONDS):
                await action()
        except (StatusError, DecodeError, TimeoutError, struct.error):
            return

    async def end(self) -> None:
        """Cancel the requests that still wait."""
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)
        for buffer in self._buffers.values():
            buffer.deregister()

    # Picking

    def _tree_of(self) -> Tree:
        return self.chance.choice(self.trees)

    def _pick(self, folder: bool | None = None) -> Held | None:
        found = [entry for entry in self.held if folder is None or entry.folder == folder]
        return self.chance.choice(found) if found else None

    def _via(self, entry: Held) -> Tree:
        """Return the open's tree, on any channel."""
        same = [tree for tree in self.trees if tree.tree_id == entry.tree.tree_id]
        return self.chance.choice(same)

    # Steps

    async def _open(self) -> None:
        chance = self.chance
        folder = chance.random() < 0.3
        name = chance.choice(_FOLDERS if folder else _NAMES)
        tree = self._tree_of()
        options = 1 if folder else chance.choice((0, 0, 0, 0x40, 0x1000, 0x4000, 0x200000))
        oplock = chance.choice((0, 0, 1, 8, 9, 0xFF))
        wanted, key = self._contexts(oplock)
        disposition = 3 if folder else chance.choice((0, 1, 2, 3, 3, 3, 3, 4, 5))
        file = await tree.create(
            name,
            chance.choice(_ACCESS),
            disposition,
            options,
            share=chance.choice((7, 7, 7, 0, 1, 3)),
            attributes=chance.choice((0, 0, 0x80, 1, 0x20)),
            contexts=wanted,
            oplock=oplock,
        )
        self.held.append(Held(tree, file, name, folder, key))
        if len(self.held) > _MOST_FILES:
            await self._close()

    def _contexts(self, oplock: int) -> tuple[list[RawContext], bytes]:
        chance, found, key = self.chance, [], b""
        if oplock == 0xFF:
            key = chance.choice(self.lease_keys)
            state = chance.choice((1, 3, 5, 7))
            lease: bytes = contexts.LEASE_CODEC.pack(contexts.Lease(key, state))
            if chance.random() < 0.6:
                lease = contexts.LEASE_V2_CODEC.pack(contexts.LeaseV2(key, state))
            found.append(RawContext(contexts.REQUEST_LEASE, lease))
        offered = (
            RawContext(contexts.DURABLE_REQUEST, bytes(16)),
            RawContext(
                contexts.DURABLE_REQUEST_V2,
                struct.pack("<IIQ", _DURABLE_MILLISECONDS, chance.choice((0, 0, 2)), 0) + chance.randbytes(16),
            ),
            RawContext(contexts.MAXIMAL_ACCESS, b""),
            RawContext(contexts.QUERY_ON_DISK_ID, b""),
            RawContext(contexts.ALLOCATION_SIZE, struct.pack("<Q", chance.choice((0, 4096, 1 << 20)))),
            RawContext(contexts.EA_BUFFER, struct.pack("<IBBH", 0, 0, 4, 5) + b"NAME\0VALUE"),
            RawContext(contexts.APP_INSTANCE_ID, struct.pack("<HH", 20, 0) + self.lease_keys[0]),
            RawContext(contexts.SD_BUFFER, _descriptor(chance)),
        )
        found += [context for context in offered if chance.random() < 0.12]
        return found, key

    async def _close(self) -> None:
        entry = self._pick()
        if entry is not None:
            self.held.remove(entry)
            await self._via(entry).close(entry.file)

    async def _write(self) -> None:
        entry = self._pick(folder=False)
        if entry is not None:
            data = self.chance.randbytes(self.chance.choice((0, 1, 100, 4096, 70000)))
            offset = self.chance.choice((0, 0, 1, 4096, 100000, (1 << 63) - 1))
            await self._write_at(entry, offset, data)

    async def _write_at(self, entry: Held, offset: int, data: bytes) -> None:
        """Send one WRITE, even at offsets that no file can have: ``Tree.write`` would refuse those."""
        persistent, volatile = entry.file.file_id
        record = read_write.WriteRequest(
            data_offset=read_write.TAIL, length=len(data), offset=offset, persistent=persistent, volatile=volatile
        )
        body = [read_write.WRITE_REQUEST.pack(record), data or b"\0"]
        (await self._via(entry).call(Command.WRITE, body, payload=len(data))).release()

    async def _read(self) -> None:
        entry = self._pick(folder=False)
        if entry is not None:
            length = self.chance.choice((0, 1, 4096, 65536, 300000))
            await self._via(entry).read(entry.file, self.chance.choice((0, 0, 10, 1 << 40)), length)

    async def _lock(self) -> None:
        entry = self._pick(folder=False)
        if entry is None:
            return
        chance = self.chance
        elements = [
            LockElement(chance.randrange(50), chance.choice((0, 1, 10, (1 << 64) - 1)), chance.choice((0x11, 0x12, 4)))
            for _ in range(chance.choice((1, 1, 2, 5)))
        ]
        if chance.random() < 0.15 and len(elements) == 1:
            elements = [elements[0]._replace(flags=2)]
            waiting = self._via(entry)
            self._later(lambda: waiting.lock(entry.file, elements))
            return
        await self._via(entry).lock(entry.file, elements, chance.choice((0, 0, 0x11, 0x12)))

    def _later(self, waiting: Callable[[], Awaitable[Any]]) -> None:
        """Let a request wait that may wait forever; ``_cancel`` ends it."""
        task = asyncio.ensure_future(_quietly(waiting))
        self._waiting.append(task)
        self._waiting = [one for one in self._waiting if not one.done()]

    async def _watch(self) -> None:
        entry = self._pick(folder=True)
        if entry is not None and len(self._waiting) < 20:
            tree = self._via(entry)
            started = await tree.watch(entry.file, self.chance.choice((1, 3, 0x17, 0xFFF)), self.chance.random() < 0.5)
            self._later(lambda: tree.changes(started))

    async def _cancel(self) -> None:
        if self._waiting:
            self.chance.choice(self._waiting).cancel()
            await asyncio.sleep(0)

    async def _rename(self) -> None:
        entry = self._pick()
        if entry is not None:
            target = self.chance.choice((*_NAMES, *_FOLDERS[1:]))
            level = self.chance.choice((10, 10, 11, 65, 72))
            record = RenameInformation(self.chance.choice((0, 1)), 0, target)
            await self._via(entry).set_info(entry.file, level, encode_rename(record))

    async def _set_info(self) -> None:
        entry = self._pick()
        if entry is None:
            return
        chance = self.chance
        level, data = chance.choice(
            (
                (4, struct.pack("<QQQQII", *(chance.choice((0, 1 << 57, (1 << 64) - 1)) for _ in range(4)), 0x20, 0)),
                (13, bytes((chance.choice((0, 1)),))),
                (15, struct.pack("<IBBH", 0, 0, 4, 5) + b"NAME\0VALUE"),
                (16, struct.pack("<I", 2)),
                (14, struct.pack("<Q", 77)),
                (19, struct.pack("<Q", chance.choice((0, 1, 1 << 16)))),
                (20, struct.pack("<Q", chance.choice((0, 1, 5000, 1 << 24)))),
                (39, struct.pack("<Q", 10)),
                (40, struct.pack("<I", 10) + "A~1.T".encode("utf-16-le")),
                (64, struct.pack("<I", chance.choice((0, 1, 3, 0x1F)))),
            )
        )
        await self._via(entry).set_info(entry.file, level, data)

    async def _set_security(self) -> None:
        entry = self._pick()
        if entry is not None:
            which = self.chance.choice((1, 2, 4, 4, 7, 8))
            await self._via(entry).set_info(entry.file, 0, _descriptor(self.chance), 3, which)

    async def _query_info(self) -> None:
        entry = self._pick()
        if entry is None:
            return
        chance, tree = self.chance, self._via(entry)
        kind = chance.choice((1, 1, 1, 2, 3))
        level = chance.choice(_QUERIES) if kind == 1 else chance.randint(1, 11) if kind == 2 else 0
        size = chance.choice((65536, 65536, 0, 1, 8, 24, 100))
        await tree.query_info(entry.file, level, kind, size=size, additional=chance.choice((0, 7, 0xF)))

    async def _list(self) -> None:
        entry = self._pick(folder=True)
        if entry is not None:
            pattern = self.chance.choice(("*", "*", "f?", "<.<", "nothing", "f0"))
            async for _ in self._via(entry).entries(entry.file, pattern, self.chance.choice(_LISTINGS)):
                pass

    async def _ioctl(self) -> None:
        chance = self.chance
        entry = self._pick() if chance.random() < 0.9 else None
        tree = self._via(entry) if entry is not None else self._tree_of()
        code = chance.choice(list(Fsctl))
        if code == Fsctl.LMR_REQUEST_RESILIENCY:
            data = struct.pack("<II", _DURABLE_MILLISECONDS, 0)
        elif code in {Fsctl.SRV_COPYCHUNK, Fsctl.SRV_COPYCHUNK_WRITE} and entry is not None:
            key = await tree.ioctl(Fsctl.SRV_REQUEST_RESUME_KEY, b"", entry.file)
            chunks = chance.choice((1, 1, 2, 16))
            data = key[:24] + struct.pack("<II", chunks, 0) + struct.pack("<QQII", 0, 10, 100, 0) * chunks
        else:
            data = chance.choice(
                (b"", bytes(8), bytes(16), bytes(32), struct.pack("<QQ", 0, 4096), struct.pack("<IIQQ", 0, 1, 0, 4096))
            )
        file = entry.file if entry is not None else None
        await tree.ioctl(code, data, file, max_output=chance.choice((65536, 0, 16)))

    async def _compound(self) -> None:
        """Send CREATE and requests on the new open, or several requests on an existing one; related or not."""
        chance, tree = self.chance, self._tree_of()
        client = tree.client
        if not isinstance(client, FuzzClient) or client.credits < 20:
            return
        file_id = b"\xff" * 16
        parts: list[tuple[int, bytes, bool]] = []
        entry = self._pick()
        if chance.random() < 0.6 or entry is None:
            record = CreateRequest(
                desired_access=chance.choice(_ACCESS), share_access=7, create_disposition=3, create_options=0
            )
            parts.append((Command.CREATE, pack_request(record, chance.choice(_NAMES), []), False))
        else:
            tree = self._via(entry)
            client = tree.client
            file_id = struct.pack("<QQ", *entry.file.file_id)
        if not isinstance(client, FuzzClient):
            return
        for index in range(chance.randint(1, 6)):
            command, body = chance.choice(_chained(file_id, chance))
            parts.append((command, body, bool(parts) and (index > 0 or file_id[0] == 0xFF) and chance.random() < 0.9))
        calls = await client.chain(parts, tree.session, tree.tree_id)
        for call in calls:
            reply = await client.finish(call)
            if reply.header.command == Command.CREATE and reply.status == NtStatus.SUCCESS:
                found = struct.unpack_from("<QQ", reply.message, 128)
                close = struct.pack("<HHIQQ", 24, 0, 0, *found)
                closing = await client.start(Command.CLOSE, [close], tree.session, tree.tree_id)
                (await client.finish(closing)).release()
            reply.release()

    async def _acknowledge(self) -> None:
        if not self.breaks:
            return
        told = self.breaks.pop(self.chance.randrange(len(self.breaks)))
        tree = self._tree_of()
        if isinstance(told, LeaseBreakNotification):
            await tree.acknowledge_lease_break(told.lease_key, told.new_lease_state)
        else:
            await tree.acknowledge_oplock_break(told)

    async def _replay(self) -> None:
        """Send a CREATE with a CreateGuid, then the same as a replay."""
        chance, tree = self.chance, self._tree_of()
        guid = chance.randbytes(16)
        context = RawContext(contexts.DURABLE_REQUEST_V2, struct.pack("<IIQ", _DURABLE_MILLISECONDS, 0, 0) + guid)
        name = chance.choice(_NAMES)
        first = await tree.create(name, 0x12019F, 3, contexts=[context], oplock=9)
        again = await self._tree_of().create(name, 0x12019F, 3, contexts=[context], oplock=9, replay=True)
        self.held.append(Held(tree, again, name, False))
        if first.file_id != again.file_id:
            self.held.append(Held(tree, first, name, False))

    async def _flush(self) -> None:
        entry = self._pick()
        if entry is not None:
            await self._via(entry).flush(entry.file)

    async def _echo(self) -> None:
        await self._tree_of().client.echo()

    async def _tree(self) -> None:
        """Connect to one more tree, and disconnect it."""
        session = self._tree_of().session
        if isinstance(session, ClientSession):
            more = await session.tree_connect(self.chance.choice(("data", "ca", "IPC$", "nothing")))
            await more.disconnect()

    async def _remote(self) -> None:
        """Send READ or WRITE by RDMA, with right and wrong descriptors."""
        entry = self._pick(folder=False)
        if entry is None:
            return
        chance, tree = self.chance, self._via(entry)
        transport: Any = tree.client.transport
        number = id(transport)
        if number not in self._buffers:
            memory = memoryview(bytearray(os.urandom(_RDMA_BYTES)))
            self._buffers[number] = transport.rdma.register(memory, readable=True, writable=True)
        right = self._buffers[number].descriptors[0]
        wrong = (
            right._replace(token=chance.getrandbits(32)),
            right._replace(offset=right.offset + chance.choice((1, _RDMA_BYTES, 1 << 60))),
            right._replace(length=chance.choice((0, 1, _RDMA_BYTES * 2, 0xFFFFFFFF))),
        )
        remote: list[RemoteBuffer] = [
            right if chance.random() < 0.85 else chance.choice(wrong) for _ in range(chance.choice((1, 1, 1, 2, 20)))
        ]
        length = chance.choice((1, 4096, _RDMA_BYTES, 0, 1 << 23))
        act = tree.read_into if chance.random() < 0.5 else tree.write_from
        await act(entry.file, chance.choice((0, 0, 100, 1 << 40)), remote, length, invalidate=False)


async def _quietly(waiting: Callable[[], Awaitable[Any]]) -> None:
    try:
        await waiting()
    except (StatusError, DecodeError, ConnectionLost, OSError):
        return


def _chained(file_id: bytes, chance: random.Random) -> tuple[tuple[int, bytes], ...]:
    """Return requests on one open that may follow each other in a compound."""
    return (
        (Command.QUERY_INFO, struct.pack("<HBBIHHIII16s", 41, 1, 18, 4096, 0, 0, 0, 0, 0, file_id) + b"\0"),
        (Command.QUERY_INFO, struct.pack("<HBBIHHIII16s", 41, 3, 0, 4096, 0, 0, 0, 7, 0, file_id) + b"\0"),
        (Command.READ, struct.pack("<HBBIQ16sIIIHH", 49, 0, 0, 4096, 0, file_id, 0, 0, 0, 0, 0) + b"\0"),
        (Command.WRITE, struct.pack("<HHIQ16sIIHHI", 49, 112, 4, 0, file_id, 0, 0, 0, 0, 0) + b"data"),
        (Command.FLUSH, struct.pack("<HHI16s", 24, 0, 0, file_id)),
        (Command.SET_INFO, struct.pack("<HBBIHHI16s", 33, 1, 20, 8, 96, 0, 0, file_id) + struct.pack("<Q", 100)),
        (Command.SET_INFO, struct.pack("<HBBIHHI16s", 33, 1, 13, 1, 96, 0, 0, file_id) + b"\1"),
        (Command.LOCK, struct.pack("<HHI16s", 48, 1, 0, file_id) + struct.pack("<QQII", 0, 1, 0x12, 0)),
        (Command.QUERY_DIRECTORY, struct.pack("<HBBI16sHHI", 33, 37, 0, 0, file_id, 96, 2, 4096) + b"*\0"),
        (Command.CHANGE_NOTIFY, struct.pack("<HHI16sII", 32, 0, 4096, file_id, 0xFFF, 0)),
        (Command.CLOSE, struct.pack("<HHI16s", 24, chance.choice((0, 1)), 0, file_id)),
        (Command.ECHO, b"\4\0\0\0"),
    )


def _descriptor(chance: random.Random) -> bytes:
    """Return a self-relative descriptor with an owner and up to three entries. [MS-DTYP 2.4.6]"""
    sids = (
        bytes.fromhex("010100000000000100000000"),
        bytes.fromhex("01010000000000050b000000"),
        bytes.fromhex("01020000000000052000000020020000"),
        bytes.fromhex("010200000000001601000000ffff0000"),
    )
    entries = b""
    count = chance.randint(0, 3)
    for _ in range(count):
        sid = chance.choice(sids)
        entries += struct.pack(
            "<BBHI", chance.choice((0, 0, 0, 1, 5)), chance.choice((0, 3, 0xB)), 8 + len(sid), 0x1F01FF
        )
        entries += sid
    acl = struct.pack("<BBHHH", 2, 0, 8 + len(entries), count, 0) + entries
    owner = chance.choice(sids)
    return struct.pack("<BBHIIII", 1, 0, 0x8004, 20, 0, 0, 20 + len(owner)) + owner + acl
