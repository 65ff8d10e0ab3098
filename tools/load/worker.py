"""One client at work: it picks random operations and compares the answers with the model.

Several workers share a folder. Each operation holds the locks of its files, so that the model is exact. It uses an open
that may be old; the next operation may use another client's.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from smb3server.client.protocol import RemoteFile, Tree
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.ioctl import Fsctl
from tools.load.model import Model

FOLDER = "load"
MAX_FILE = 1 << 20
MAX_TRANSFER = 96 << 10


class Mismatch(Exception):
    """The server's answer differs from the model."""


class Ground:
    """The common data of all workers: the model, and a lock for each possible name."""

    def __init__(self, names: int) -> None:
        self.model = Model()
        self.names = [f"file {number}.bin" for number in range(names)]
        self.locks = {name: asyncio.Lock() for name in self.names}
        self.stamps: Counter[str] = Counter()
        """How often a name appeared or disappeared; incremented before and after the change."""
        self.done: Counter[str] = Counter()


class Worker:
    """One client with its opens."""

    def __init__(self, name: str, tree: Tree, ground: Ground, seed: int) -> None:
        self.name = name
        self.tree = tree
        self.ground = ground
        self.random = random.Random(seed)
        self.opens: dict[str, RemoteFile] = {}
        self.crew: list[Worker] = []
        """All workers, including this one."""
        self.operations: list[tuple[int, Callable[[str], Awaitable[None]]]] = [
            (30, self.read),
            (30, self.write),
            (8, self.truncate),
            (8, self.zero),
            (8, self.copy),
            (4, self.rename),
            (3, self.delete),
            (4, self.reopen),
            (3, self.flush),
            (2, self.list_folder),
        ]

    async def run(self, count: int, deadline: float) -> None:
        """Do ``count`` operations, or as many as there is time for."""
        weights = [weight for weight, _ in self.operations]
        loop = asyncio.get_running_loop()
        for _ in range(count):
            if loop.time() > deadline:
                return
            _, operation = self.random.choices(self.operations, weights)[0]
            name = self.random.choice(self.ground.names)
            async with self.ground.locks[name]:
                if name not in self.ground.model.files:
                    await self.create(name)
                await operation(name)
            self.ground.done[operation.__name__] += 1

    async def close(self) -> None:
        for name in list(self.opens):
            await self.close_open(name)

    async def verify(self) -> None:
        """Check that the folder contains exactly the expected files, byte by byte."""
        for name, content in sorted(self.ground.model.files.items()):
            file = await self.open(name)
            offset = 0
            while offset < len(content):
                offset += len(await self.check(name, file, offset, min(MAX_TRANSFER, len(content) - offset)))
            if await self.tree.read(file, len(content), 1):
                raise Mismatch(f"{self.name}: {name} is longer than {len(content)} bytes")
        await self.list_folder("")

    # Opens

    def path(self, name: str) -> str:
        return f"{FOLDER}\\{name}"

    async def open(self, name: str) -> RemoteFile:
        file = self.opens.get(name)
        if file is None:
            file = self.opens[name] = await self.tree.create(self.path(name), READ_WRITE)
        return file

    async def close_open(self, name: str) -> None:
        file = self.opens.pop(name, None)
        if file is not None:
            await self.tree.close(file)

    async def create(self, name: str) -> None:
        self.ground.stamps[name] += 1
        self.opens[name] = await self.tree.create(self.path(name), READ_WRITE, CreateDisposition.CREATE)
        self.ground.model.create(name)

    # Operations, the file's lock held

    async def check(self, name: str, file: RemoteFile, offset: int, length: int) -> bytes:
        got = await self.tree.read(file, offset, length)
        expected = self.ground.model.read(name, offset, length)
        if got != expected:
            at = next((i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), len(expected))
            raise Mismatch(f"{self.name}: {name}: {len(got)} of {len(expected)} bytes at {offset}, first at +{at}")
        return got

    def extent(self) -> tuple[int, int]:
        return self.random.randrange(MAX_FILE - MAX_TRANSFER), self.random.randrange(1, MAX_TRANSFER)

    async def read(self, name: str) -> None:
        offset, length = self.extent()
        await self.check(name, await self.open(name), offset, length)

    async def write(self, name: str) -> None:
        offset, length = self.extent()
        data = self.random.randbytes(length)
        file = await self.open(name)
        if await self.tree.write(file, offset, data) != length:
            raise Mismatch(f"{self.name}: {name}: short write of {length} bytes")
        self.ground.model.write(name, offset, data)

    async def truncate(self, name: str) -> None:
        size = self.random.randrange(MAX_FILE)
        file = await self.open(name)
        await self.tree.set_info(file, FileInfoClass.END_OF_FILE, struct.pack("<Q", size))
        self.ground.model.truncate(name, size)

    async def zero(self, name: str) -> None:
        start, length = self.extent()
        file = await self.open(name)
        await self.tree.ioctl(Fsctl.SET_ZERO_DATA, struct.pack("<QQ", start, start + length), file)
        self.ground.model.zero(name, start, start + length)

    async def copy(self, name: str) -> None:
        """Copy on the server, onto another part of the file."""
        size = len(self.ground.model.files[name])
        half = size // 2
        if half < 2:
            return
        length = self.random.randrange(1, min(half, MAX_TRANSFER))
        source, target = self.random.randrange(half - length + 1), half + self.random.randrange(half)
        file = await self.open(name)
        key = (await self.tree.ioctl(Fsctl.SRV_REQUEST_RESUME_KEY, b"", file))[:24]
        chunk = struct.pack("<24sIIQQII", key, 1, 0, source, target, length, 0)
        await self.tree.ioctl(Fsctl.SRV_COPYCHUNK, chunk, file)
        self.ground.model.copy(name, source, target, length)

    async def rename(self, name: str) -> None:
        """Rename to an unused name, if there is one that no other worker is using now."""
        free = [other for other in self.ground.names if not self.ground.locks[other].locked()]
        free = [other for other in free if other not in self.ground.model.files]
        if not free:
            return
        target = self.random.choice(free)
        async with AsyncExitStack() as held:
            await held.enter_async_context(self.ground.locks[target])
            if target in self.ground.model.files:
                # Another worker was waiting for the name.
                return
            file = await self.open(name)
            self.ground.stamps.update([name, target])
            await self.tree.rename(file, self.path(target))
            self.ground.model.rename(name, target)
            # All opens followed the file; they must not be used under the old name.
            for worker in self.crew:
                if name in worker.opens:
                    worker.opens[target] = worker.opens.pop(name)

    async def delete(self, name: str) -> None:
        for worker in self.crew:
            await worker.close_open(name)
        self.ground.stamps[name] += 1
        await self.tree.delete(self.path(name))
        self.ground.model.delete(name)

    async def reopen(self, name: str) -> None:
        await self.close_open(name)
        await self.check(name, await self.open(name), *self.extent())

    async def flush(self, name: str) -> None:
        await self.tree.flush(await self.open(name))

    async def list_folder(self, name: str) -> None:
        """Check that every file is listed that was neither created, renamed nor deleted in the meantime."""
        before = {other: self.ground.stamps[other] for other in self.ground.model.files}
        options = int(CreateOptions.DIRECTORY_FILE)
        folder = await self.tree.create(FOLDER, 0x00100081, CreateDisposition.OPEN, options)
        found = {entry.name async for entry in self.tree.entries(folder)}
        await self.tree.close(folder)
        stayed = {other for other, stamp in before.items() if self.ground.stamps[other] == stamp}
        missing = (stayed & set(self.ground.model.files)) - found
        if missing:
            raise Mismatch(f"{self.name}: {sorted(missing)} not listed")
