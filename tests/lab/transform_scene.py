"""This project's client, logged on to the peer as a server over any fabric or TCP."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from unittest import mock

from smb3server.client.protocol import Client, RemoteFile, Tree, open_rdma, open_tcp
from smb3server.client.protocol.negotiation import Offer as ClientOffer
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.net.listener import TcpListener
from smbdirect.rdma.pool import BufferPool
from smbdirect.transport.listen import listen
from tests.lab.transform_lab import FABRICS, PATIENCE
from tests.lab.transform_server import TransformServer


@dataclass
class Scene:
    """A client with one open file, and the peer that it is connected to."""

    server: TransformServer
    client: Client
    tree: Tree
    file: RemoteFile


@asynccontextmanager
async def scene(
    server: TransformServer, fabric: str = "loopback", offer: ClientOffer | None = None, sign: bool = False
) -> AsyncIterator[Scene]:
    """Log on to ``server`` as a client that offers ``offer``, and open the file. ``fabric`` is one of ``FABRICS``, or
    ``tcp``."""
    async with asyncio.timeout(PATIENCE):
        if fabric == "tcp":
            tcp = TcpListener("127.0.0.1", 0, BufferPool(), server.accept, 1 << 20)
            close, transport = tcp.close, await open_tcp(*tcp.address)
        else:
            provider = FABRICS[fabric]()
            listener = await listen(provider, "127.0.0.1", 0, server.accept)
            close, transport = listener.close, await open_rdma(provider, *listener.address)
        client = await Client.connect(transport, offer=offer)
        try:
            tree = await (await client.log_on("u", "pw", sign=sign)).tree_connect("share")
            yield Scene(server, client, tree, await tree.create("f", READ_WRITE))
        finally:
            await client.close()
            await close()


def play(
    server: TransformServer,
    work: Callable[[Scene], Awaitable[None]],
    fabric: str = "loopback",
    offer: ClientOffer | None = None,
    sign: bool = False,
) -> None:
    """Do ``work`` in a scene."""

    async def main() -> None:
        async with scene(server, fabric, offer, sign) as made:
            await work(made)

    with tempfile.NamedTemporaryFile("w") as accounts:
        accounts.write(":u:pw\n")
        accounts.flush()
        # pyspnego's server looks there for the password.
        with mock.patch.dict(os.environ, NTLM_USER_FILE=accounts.name):
            asyncio.run(main())
