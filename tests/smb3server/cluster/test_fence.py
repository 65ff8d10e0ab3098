"""After its deadline a node touches nothing of what another may have by now, whatever was still going on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from smb3server.client.protocol import Client
from smb3server.client.protocol.transports import open_rdma
from smb3server.client.protocol.tree import READ_WRITE, Tree
from smb3server.cluster.lease_keeper import Fence, boottime
from smb3server.commands import read
from smb3server.commands.create.opening import Opening
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.dispatch.short_forms import SHORT_FORMS
from smb3server.service.service import Service
from smb3server.state.share import Share
from smb3server.wire.create import Access, CreateDisposition, CreateOptions
from smb3server.wire.header import Command
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.errors import ConnectionLost
from smbdirect.providers.iwarp import IwarpProvider
from tests.lab.rdma_writes import ask_write_by_rdma
from tools.support import own_user


class Somewhere:
    """A service's place: here, as far as tree connects go."""

    arriving: asyncio.Future[None] | None = None

    def check(self, share: Share, address: str, dialect: int, flags: int) -> None:
        return


class Node:
    """A server with one share of a service, over SMB Direct."""

    def __init__(self, folder: Path) -> None:
        self.share = folder / "share"
        self.share.mkdir()
        arguments = [
            "--share",
            own_user.option("data", self.share),
            "--user",
            "u:pw",
            "--port",
            "0",
            "--rdma-port",
            "0",
        ]
        self.service = Service(parse_arguments([*arguments, "--rdma=iwarp", "--listen", "127.0.0.1"]))
        self.fence = Fence()
        self.fence.deadline = boottime() + 60

    async def start(self) -> Tree:
        await self.service.start()
        server = self.service.server
        server.fence = self.fence
        server.share_list["data"].placement = Somewhere()
        ((_, listener),) = self.service.fabrics.listeners
        client = await Client.connect(await open_rdma(IwarpProvider(), *listener.address))
        return await (await client.log_on("u", "pw")).tree_connect("data")

    async def settled(self) -> None:
        while self.service.server.connection_list:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("lost", [False, True], ids=["served here", "lost"])
def test_what_ends_with_the_connection(tmp_path: Path, lost: bool) -> None:
    async def body() -> None:
        node = Node(tmp_path)
        tree = await node.start()
        access, options = READ_WRITE | int(Access.DELETE), int(CreateOptions.DELETE_ON_CLOSE)
        await tree.create("f", access, CreateDisposition.CREATE, options)
        if lost:
            node.fence.deadline = 0.0
        tree.client.transport.abort("gone")
        await node.settled()
        assert (node.share / "f").exists() == lost
        await node.service.stop()

    asyncio.run(asyncio.wait_for(body(), 30))


def test_data_that_arrives_too_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A WRITE was let in, and its RDMA Read is done only after the deadline."""

    async def body() -> None:
        node = Node(tmp_path)
        tree = await node.start()
        file = await tree.create("f", READ_WRITE, CreateDisposition.CREATE)
        await tree.write(file, 0, b"A" * 65536)
        (connection,) = node.service.server.connection_list
        rdma = connection.transport.rdma
        assert rdma is not None
        read_from_peer = rdma.read_from_peer

        def late(buffers: object, views: object, done: object) -> None:
            node.fence.deadline = 0.0
            read_from_peer(buffers, views, done)  # type: ignore[arg-type]

        monkeypatch.setattr(rdma, "read_from_peer", late)
        with pytest.raises(ConnectionLost):
            await (await ask_write_by_rdma(tree, file, b"B" * 65536))
        assert not node.fence.deadline
        await node.settled()
        assert (node.share / "f").read_bytes() == b"A" * 65536
        await node.service.stop()

    asyncio.run(asyncio.wait_for(body(), 30))


def test_a_file_whose_open_fails_too_late_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CREATE made a file, and fails only after the deadline: another node's clients may have written it by then."""

    async def body() -> None:
        node = Node(tmp_path)
        tree = await node.start()

        def late(opening: Opening, handle: object, found: object) -> None:
            node.fence.deadline = 0.0
            raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)

        monkeypatch.setattr(Opening, "_open", late)
        with pytest.raises(ConnectionLost):
            await tree.create("f", READ_WRITE, CreateDisposition.CREATE)
        await node.settled()
        assert (node.share / "f").exists()
        await node.service.stop()

    asyncio.run(asyncio.wait_for(body(), 30))


@pytest.mark.parametrize("lost", [False, True], ids=["served here", "lost"])
def test_data_that_is_read_too_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool) -> None:
    """A worker reads for a READ whose data goes by RDMA."""

    async def body() -> None:
        node = Node(tmp_path)
        tree = await node.start()
        file = await tree.create("f", READ_WRITE, CreateDisposition.CREATE)
        await tree.write(file, 0, b"A" * 65536)
        rdma = tree.client.transport.rdma
        assert rdma is not None
        memory = bytearray(65536)
        region = rdma.register(memoryview(memory), writable=True)
        (connection,) = node.service.server.connection_list
        there = connection.transport.rdma
        assert there is not None
        write_to_peer = there.write_to_peer
        sent: list[object] = []

        def send(buffers: object, views: object, done: object) -> None:
            sent.append(buffers)
            write_to_peer(buffers, views, done)  # type: ignore[arg-type]

        def slow(opened: object, view: object, offset: int) -> int:
            if lost:
                node.fence.deadline = 0.0
            return -1

        monkeypatch.setattr(there, "write_to_peer", send)
        monkeypatch.setattr(read, "_read_cached", slow)
        monkeypatch.setitem(SHORT_FORMS, int(Command.READ), SHORT_FORMS[int(Command.ECHO)])
        reading = tree.read_into(file, 0, region.descriptors, len(memory), invalidate=False)
        if lost:
            with pytest.raises(ConnectionLost):
                await reading
        else:
            assert await reading == len(memory)
        assert memory == (bytes(65536) if lost else b"A" * 65536)
        assert bool(sent) is not lost
        tree.client.transport.abort("done")
        await node.settled()
        await node.service.stop()

    asyncio.run(asyncio.wait_for(body(), 30))
