"""What a good client does: one job after the other, each of which it checks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from smb3server.client.protocol import RemoteFile, ServerError, Tree
from smb3server.client.protocol.tree import READ, READ_WRITE
from smb3server.wire.change_notify import NotifyFilter
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.create_contexts import (
    DURABLE_REQUEST_V2,
    DURABLE_REQUEST_V2_CODEC,
    LEASE_V2_CODEC,
    REQUEST_LEASE,
    DurableRequestV2,
    LeaseV2,
    RawContext,
)
from smb3server.wire.lock import LockElement
from smb3server.wire.oplock_break import ACK_REQUIRED, LeaseBreakNotification, OplockBreak
from smb3server.wire.status import NtStatus
from smbdirect.errors import SmbDirectError

LARGE = 512 << 10
COMMON = 16
"""Files that clients share."""
DURABLE_MS = 3000
"""For how long the server keeps the open of a client that was lost."""
_LEASE, _BATCH, _RWH = 0xFF, 9, 7
_LOCK, _UNLOCK = 0x12, 4
_FOLDER = int(CreateOptions.DIRECTORY_FILE)
_CHANGES_WITHIN = 60.0


class Wrong(Exception):
    """The server's answer is not right."""


class Worker:
    """One client's jobs. ``number`` is its own among all."""

    def __init__(self, tree: Tree, number: int, chance: random.Random) -> None:
        self._tree, self._number, self._chance = tree, number, chance
        self._tasks: set[asyncio.Task[None]] = set()
        tree.client.on_break = self._broken
        self.jobs: tuple[tuple[int, Callable[[], Awaitable[None]]], ...] = (
            (40, self.small),
            (8, self.large),
            (8, self.listing),
            (12, self.lock),
            (12, self.lease),
            (6, self.notify),
            (6, self.durable),
            (8, self.rename),
        )

    def choose(self) -> Callable[[], Awaitable[None]]:
        """Return a job."""
        return self._chance.choices([job for _, job in self.jobs], [weight for weight, _ in self.jobs])[0]

    def _name(self, kind: str) -> str:
        return f"{kind}-{self._number}"

    async def _open(self, name: str) -> RemoteFile:
        return await self._tree.create(name, READ_WRITE, CreateDisposition.OPEN_IF)

    async def _move(self, name: str, length: int) -> None:
        """Write, and read it back."""
        data = self._chance.randbytes(64) * (length // 64)
        file = await self._open(name)
        await self._tree.write(file, 0, data)
        if await self._tree.read(file, 0, length) != data:
            raise Wrong(f"{name} is not as it was written")
        await self._tree.close(file)

    async def small(self) -> None:
        await self._move(self._name("small"), 64 * self._chance.randint(1, 64))

    async def large(self) -> None:
        name = self._name("large")
        await self._move(name, LARGE)
        await self._tree.delete(name)

    async def listing(self) -> None:
        folder = await self._tree.create("common", READ, CreateDisposition.OPEN, _FOLDER)
        found = [entry.name async for entry in self._tree.entries(folder) if entry.name not in (".", "..")]
        await self._tree.close(folder)
        if len(found) < COMMON:
            raise Wrong(f"{len(found)} entries are listed")

    def _common(self) -> str:
        return f"common\\{self._chance.randrange(COMMON)}"

    async def lock(self) -> None:
        file = await self._open(self._common())
        offset = self._chance.randrange(100)
        try:
            await self._tree.lock(file, [LockElement(offset, 10, _LOCK)])
            await self._tree.lock(file, [LockElement(offset, 10, _UNLOCK)])
        except ServerError as error:
            if error.status != NtStatus.LOCK_NOT_GRANTED:
                raise
        await self._tree.close(file)

    async def lease(self) -> None:
        key = self._number.to_bytes(8, "little") + self._chance.randbytes(8)
        wanted = RawContext(REQUEST_LEASE, LEASE_V2_CODEC.pack(LeaseV2(key, _RWH)))
        name = self._common()
        file = await self._tree.create(name, READ_WRITE, CreateDisposition.OPEN_IF, contexts=[wanted], oplock=_LEASE)
        # No other client locks behind this.
        await self._tree.read(file, 1000, 10)
        await self._tree.close(file)

    def _broken(self, found: OplockBreak | LeaseBreakNotification) -> None:
        if isinstance(found, LeaseBreakNotification):
            if found.flags & ACK_REQUIRED:
                self._answer(self._tree.acknowledge_lease_break(found.lease_key, found.new_lease_state))
        else:
            self._answer(self._tree.acknowledge_oplock_break(found))

    def _answer(self, work: Awaitable[None]) -> None:
        async def done() -> None:
            try:
                await work
            except (ServerError, SmbDirectError, OSError):
                return  # The open was closed meanwhile, or the connection has ended.

        task = asyncio.ensure_future(done())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def notify(self) -> None:
        name = self._name("watched")
        folder = await self._tree.create(name, READ, CreateDisposition.OPEN_IF, _FOLDER)
        watching = await self._tree.watch(folder, int(NotifyFilter.FILE_NAME))
        await self._tree.close(await self._open(f"{name}\\new"))
        async with asyncio.timeout(_CHANGES_WITHIN):
            changes = await self._tree.changes(watching)
        if changes is not None and "new" not in {change.name for change in changes}:
            raise Wrong(f"changes are {changes}")
        await self._tree.delete(f"{name}\\new")
        await self._tree.close(folder)

    async def durable(self) -> None:
        record = DurableRequestV2(DURABLE_MS, 0, 0, self._chance.randbytes(16))
        wanted = RawContext(DURABLE_REQUEST_V2, DURABLE_REQUEST_V2_CODEC.pack(record))
        file = await self._tree.create(
            self._name("durable"), READ_WRITE, CreateDisposition.OPEN_IF, contexts=[wanted], oplock=_BATCH
        )
        # Some are left open: their clients vanish, or end their sessions.
        if self._chance.random() < 0.5:
            await self._tree.close(file)

    async def rename(self) -> None:
        name = self._name("renamed")
        file = await self._tree.create(name, READ_WRITE | 0x10000, CreateDisposition.OPEN_IF)
        await self._tree.rename(file, f"{name}-again", replace=True)
        await self._tree.close(file)
        await self._tree.delete(f"{name}-again")
