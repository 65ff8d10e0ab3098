"""Killed with SIGKILL, the server loses nothing that it had acknowledged as flushed or written through."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from smb3server.client.protocol import Client, RemoteFile, ServerError, Tree, open_rdma, open_tcp
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.wire import read_write
from smb3server.wire.create import CreateDisposition, CreateOptions
from smbdirect.errors import ConnectionLost, ProtocolError
from smbdirect.message_transport import MessageTransport
from smbdirect.providers.make import make_provider
from tests.lab.command import Served, serve, stop

pytestmark = pytest.mark.interop
RECORD = 10_000
"""Bytes per write; big enough for RDMA."""
ENOUGH = 40
"""Acknowledged operations per worker before the server is killed."""
LOST = (ServerError, ConnectionLost, ProtocolError, OSError)


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
    ]
    if fabric != "tcp":
        found += [Worker("rdma-flushed", by_rdma, flush=True), Worker("rdma-through", by_rdma, options=through)]
    return found


async def transport_to(served: Served, fabric: str) -> MessageTransport:
    if fabric == "tcp":
        return await open_tcp("127.0.0.1", served.port)
    return await open_rdma(make_provider(fabric), "127.0.0.1", rdma_port(served))


def rdma_port(served: Served) -> int:
    line = served.ready
    found = re.search(r"iwarp 127\.0\.0\.1:(\d+)", line)
    assert found, line
    return int(found[1])


async def work_until_killed(served: Served, fabric: str, working: list[Worker]) -> None:
    """All workers at once, on connections of their own; killed once each has done enough, in the middle of more."""
    trees = [await connected(await transport_to(served, fabric)) for _ in working]
    left = len(working)

    def enough() -> None:
        nonlocal left
        left -= 1
        if not left:
            served.process.kill()

    async def one(worker: Worker, tree: Tree) -> None:
        with contextlib.suppress(*LOST):
            await worker.run(tree, enough)

    async with asyncio.timeout(60):
        await asyncio.gather(*map(one, working, trees))
    served.process.wait()
    for tree in trees:
        tree.client.transport.abort()
    assert left == 0, [(worker.name, worker.count) for worker in working]


async def content(tree: Tree, name: str) -> bytes:
    file = await tree.create(name)
    found = bytearray()
    while data := await tree.read(file, len(found), 1 << 20):
        found += data
    await tree.close(file)
    return bytes(found)


@pytest.mark.parametrize("fabric", ["tcp", "iwarp"])
def test_nothing_flushed_is_lost(tmp_path: Path, fabric: str) -> None:
    rdma = () if fabric == "tcp" else ("--rdma", fabric, "--rdma-port", "0")
    options = ("--state", str(tmp_path / "state"), *rdma)
    served = serve(tmp_path, *options)
    working = workers(fabric)
    try:
        asyncio.run(work_until_killed(served, fabric, working))
    finally:
        kill(served)
    served = serve(tmp_path, *options)

    async def compare() -> None:
        tree = await connected(await open_tcp("127.0.0.1", served.port))
        for worker in working:
            found = await content(tree, worker.name)
            assert found[: len(worker.safe)] == worker.safe, (worker.name, len(found), len(worker.safe))
            # At most the one write that was under way follows.
            assert len(found) <= len(worker.safe) + RECORD
        tree.client.transport.close()

    try:
        asyncio.run(compare())
    finally:
        assert stop(served) == 0


def kill(served: Served) -> None:
    """SIGKILL, and nothing left of it."""
    served.process.kill()
    served.process.wait()
    if served.process.stdout is not None:
        served.process.stdout.close()


@pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed")
def test_what_smbclient_put_is_there_after_a_kill(tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(3_000_000))

    def smbclient(commands: str) -> None:
        command = ["smbclient", "//127.0.0.1/share", "-p", str(served.port), "-U", "u%pw", "-c", commands]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0, result.stdout + result.stderr

    served = serve(tmp_path, "--state", str(tmp_path / "state"))
    try:
        smbclient(f"mkdir d; put {source} d\\one; put {source} two; rename two d\\three; setmode d\\one +h")
    finally:
        kill(served)
    served = serve(tmp_path, "--state", str(tmp_path / "state"))
    try:
        for name in ("one", "three"):
            smbclient(f"get d\\{name} {back}")
            assert back.read_bytes() == source.read_bytes()
    finally:
        assert stop(served) == 0
