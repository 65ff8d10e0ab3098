"""This project's server, and the independent peer as its client, over any fabric."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.backends.local.backend import LocalBackend
from smb3server.client.protocol import open_rdma, open_tcp
from smb3server.net.listener import TcpListener
from smb3server.server.server import Server
from smb3server.settings.server import Settings
from smb3server.settings.share import ShareRules
from smb3server.state.share import Share
from smbdirect.providers.base import Provider
from smbdirect.providers.iwarp.provider import IwarpProvider
from smbdirect.providers.loopback import CAPABILITIES, LoopbackProvider
from smbdirect.providers.roce import RoceProvider
from smbdirect.transport.listen import listen
from tests.lab.transform_client import Offer, TransformClient
from tools.support.ports import free_port

FABRICS: dict[str, Callable[[], Provider]] = {
    "loopback": LoopbackProvider,
    "registering": lambda: LoopbackProvider(replace(CAPABILITIES, requires_registration=True)),
    "iwarp": IwarpProvider,
    "roce": lambda: RoceProvider(free_port()),
}
PATIENCE = 30.0
"""Seconds until a test that waits for what does not come has failed."""


@dataclass
class Setup:
    """What the server demands."""

    fabric: str = "loopback"
    host: str = "127.0.0.1"
    must_sign: bool = False
    session_encrypts: bool = False
    share_encrypts: bool = False
    ids: tuple[int, ...] = (1, 2)


@dataclass
class TransformLab:
    """A running server with the file ``f`` in its share."""

    server: Server
    provider: Provider
    host: str
    port: int
    tcp_port: int
    path: Path
    """Of the file."""
    clients: list[TransformClient] = field(default_factory=list)

    async def client(self, offer: Offer | None = None, rdma: bool = True) -> TransformClient:
        """Connect, but do not negotiate yet."""
        if rdma:
            transport = await open_rdma(self.provider, self.host, self.port)
        else:
            transport = await open_tcp(self.host, self.tcp_port)
        made = TransformClient(transport, offer or Offer())
        self.clients.append(made)
        return made

    async def settled(self) -> None:
        """Wait until no request is under way and no buffer is lent."""
        async with asyncio.timeout(PATIENCE):
            while any(one.host.pending_requests for one in self.server.connection_list) or self.server.buffers.lent:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def transform_lab(setup: Setup | None = None) -> AsyncIterator[TransformLab]:
    """Run a server. At its end all buffers must have been given back."""
    setup = setup or Setup()
    users = UserDatabase()
    users.add(Account("u", nt_hash("pw")))
    settings = Settings(
        require_signing=setup.must_sign,
        require_encryption=setup.session_encrypts,
        rdma_transforms=setup.ids,
        failed_logon_delay=0,
    )
    server = Server(settings, users)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        server.add_share(Share("share", backend=LocalBackend(root), rules=ShareRules(encrypt=setup.share_encrypts)))
        provider = FABRICS[setup.fabric]()
        rdma = await listen(provider, setup.host, 0, server.accept)
        tcp = TcpListener(setup.host, 0, server.buffers, server.accept, settings.max_message_before_authentication)
        made = TransformLab(server, provider, setup.host, rdma.address[1], tcp.address[1], root / "f")
        try:
            yield made
            await made.settled()
        finally:
            for client in made.clients:
                client.transport.abort("the test is over")
            await rdma.close()
            await tcp.close()
            await server.shutdown(2)


def play(work: Callable[[TransformLab], Awaitable[None]], setup: Setup | None = None) -> None:
    """Do ``work`` with a server."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE), transform_lab(setup) as made:
            await work(made)

    asyncio.run(main())
