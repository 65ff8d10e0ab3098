"""After its deadline a node touches nothing of what another may have by now, whatever was still going on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from smb3server.client.connection import Client
from smb3server.client.files import READ_WRITE, Tree
from smb3server.client.transports import open_rdma
from smb3server.cluster.lease_keeper import Fence, boottime
from smb3server.config.arguments import parse_arguments
from smb3server.service.service import Service
from smb3server.state.share import Share
from smb3server.wire.create import Access, CreateDisposition, CreateOptions
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
