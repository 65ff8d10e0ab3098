"""Clients that write and know what the server has acknowledged as stable. [MS-SMB2 3.3.5.11, 3.3.5.13]"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from smb3server.client.protocol import Client, RemoteFile, Tree
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.wire import read_write
from smb3server.wire.create import CreateDisposition, CreateOptions
from smbdirect.message_transport import MessageTransport

RECORD = 10_000
"""Bytes per write; big enough for RDMA."""
ENOUGH = 40
"""Acknowledged operations per worker before the server is killed."""


async def connected(transport: MessageTransport) -> Tree:
    client = await Client.connect(transport)
    return await (await client.log_on("u", "pw")).tree_connect("share")


async def write_through(tree: Tree, file: RemoteFile, offset: int, data: bytes) -> None:
    """One WRITE that asks for stable storage itself (2.2.21)."""
    record = read_write.WriteRequest(
        data_offset=read_write.TAIL,
        length=len(data),
        offset=offset,
        persistent=file.file_id[0],
        volatile=file.file_id[1],
        flags=int(read_write.WriteFlags.WRITE_THROUGH),
    )
    await tree._written([read_write.WRITE_REQUEST.pack(record), data], len(data))


async def by_rdma(tree: Tree, file: RemoteFile, offset: int, data: bytes) -> None:
    """The server fetches the data from here."""
    region = tree.client.transport.rdma.register(memoryview(bytearray(data)), readable=True)  # type: ignore[union-attr]
    try:
        await tree.write_from(file, offset, region.descriptors, len(data))
    finally:
        region.deregister()


async def plain(tree: Tree, file: RemoteFile, offset: int, data: bytes) -> None:
    await tree.write(file, offset, data)


_MAKE = CreateDisposition.OPEN_IF
Write = Callable[[Tree, RemoteFile, int, bytes], Awaitable[None]]


@dataclass
class Worker:
    """Appends records to one file; ``safe`` is what the server has to keep."""

    name: str
    write: Write
    flush: bool = False
    options: int = 0
    safe: bytearray = field(default_factory=bytearray)
    count: int = 0

    async def run(self, tree: Tree, enough: Callable[[], None]) -> None:
        folders = self.name.split("\\")[:-1]
        for depth in range(len(folders)):
            path = "\\".join(folders[: depth + 1])
            await tree.close(await tree.create(path, options=int(CreateOptions.DIRECTORY_FILE), disposition=_MAKE))
        file = await tree.create(self.name, READ_WRITE, CreateDisposition.CREATE, self.options)
        while True:
            data = os.urandom(RECORD)
            await self.write(tree, file, len(self.safe), data)
            if self.flush:
                await tree.flush(file)
            self.safe += data
            self.count += 1
            if self.count == ENOUGH:
                enough()


def workers(fabric: str) -> list[Worker]:
    through = int(CreateOptions.WRITE_THROUGH)
    found = [
        Worker("flushed", plain, flush=True),
        Worker("through-flag", write_through),
        Worker("through-option", plain, options=through),
        Worker("base:stream", plain, flush=True),
        Worker("base2:stream-through", write_through),
        Worker("folder\\in folder\\flushed", plain, flush=True),
        Worker("other folder\\base:stream", plain, flush=True),
    ]
    if fabric != "tcp":
        found += [Worker("rdma-flushed", by_rdma, flush=True), Worker("rdma-through", by_rdma, options=through)]
    return found


async def content(tree: Tree, name: str) -> bytes:
    file = await tree.create(name)
    found = bytearray()
    while data := await tree.read(file, len(found), 1 << 20):
        found += data
    await tree.close(file)
    return bytes(found)
