"""A server in this process, and clients for it over direct TCP or SMB Direct."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.backends.local.backend import LocalBackend
from smb3server.client.protocol import Client, ClientSession, Tree, open_rdma, open_tcp
from smb3server.client.protocol.negotiation import Offer
from smb3server.net.listener import TcpListener
from smb3server.server.server import Server
from smb3server.settings.server import Settings
from smb3server.state.share import Share
from smb3server.wire.negotiate import Dialect
from smbdirect.message_transport import MessageTransport
from smbdirect.providers.loopback import LoopbackProvider
from smbdirect.transport.listen import listen

WITHOUT_TRANSFORMS = Offer(rdma_transforms=())
"""What clients offer that know no RDMA transforms: Linux, and Windows before 11 and Server 2022."""
DIALECTS = (Dialect.SMB_2_0_2, Dialect.SMB_2_1, Dialect.SMB_3_0, Dialect.SMB_3_0_2, Dialect.SMB_3_1_1)


class Lab:
    """One server with the shares ``share`` and ``other``, user ``u`` with password ``pw``."""

    def __init__(self, server: Server, tcp_port: int, fabric: LoopbackProvider, rdma_port: int) -> None:
        self.server = server
        self.tcp_port = tcp_port
        self.fabric = fabric
        self.rdma_port = rdma_port

    async def transport(self, rdma: bool = False) -> MessageTransport:
        if rdma:
            return await open_rdma(self.fabric, "127.0.0.1", self.rdma_port)
        return await open_tcp("127.0.0.1", self.tcp_port)

    @asynccontextmanager
    async def session(
        self,
        dialects: Sequence[int] = DIALECTS,
        *,
        rdma: bool = False,
        sign: bool = False,
        encrypt: bool = False,
        offer: Offer | None = None,
    ) -> AsyncIterator[ClientSession]:
        client = await Client.connect(await self.transport(rdma), dialects, offer)
        try:
            yield await client.log_on("u", "pw", sign=sign, encrypt=encrypt)
        finally:
            await client.close()

    @asynccontextmanager
    async def tree(self, share: str = "share", *, rdma: bool = False) -> AsyncIterator[Tree]:
        async with self.session(rdma=rdma) as session:
            yield await session.tree_connect(share)


@asynccontextmanager
async def lab(root: Path, settings: Settings | None = None) -> AsyncIterator[Lab]:
    users = UserDatabase()
    users.add(Account("u", nt_hash("pw")))
    server = Server(settings or Settings(min_dialect=0x0202, rdma_min_dialect=0x0202), users)
    for name in ("share", "other"):
        (root / name).mkdir()
        server.add_share(Share(name, backend=LocalBackend(root / name), path=str(root / name)))
    limit = server.settings.max_message_before_authentication
    listener = TcpListener("127.0.0.1", 0, server.buffers, server.accept, limit)
    fabric = LoopbackProvider()
    rdma = await listen(fabric, "127.0.0.1", 0, server.accept)
    try:
        yield Lab(server, listener.address[1], fabric, rdma.address[1])
    finally:
        await listener.close()
        await rdma.close()
        await server.shutdown(2)
        await asyncio.sleep(0)
