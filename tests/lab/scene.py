"""A running service in this process, and clients for it over TCP and SMB Direct."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smb3server.auth.users import Account, nt_hash
from smb3server.client.protocol import Client, ClientSession, open_rdma, open_tcp
from smb3server.client.protocol.interfaces import query_interfaces
from smb3server.config.model import Config, ShareConfig
from smb3server.service.service import Service
from smb3server.settings.server import Settings
from smb3server.status.rdma_reasons import Code
from smbdirect.providers.iwarp import IwarpProvider
from tests.lab.reports import collect
from tools.support import own_user


@dataclass
class Scene:
    """A server, and the clients a test made."""

    service: Service
    clients: list[Client] = field(default_factory=list)

    @property
    def host(self) -> str:
        return self.service.listeners[0].address[0]

    async def tcp(self, **arguments: Any) -> Client:
        transport = await open_tcp(self.host, self.service.listeners[0].address[1])
        return self._keep(await Client.connect(transport, **arguments))

    async def rdma(self, **arguments: Any) -> Client:
        port = next(listener.address[1] for name, listener in self.service.fabrics.listeners if name == "iwarp")
        return self._keep(await Client.connect(await open_rdma(IwarpProvider(), self.host, port), **arguments))

    def _keep(self, client: Client) -> Client:
        self.clients.append(client)
        return client

    def report(self) -> list[dict[str, Any]]:
        return collect(self.service.server)["channels"]

    def codes(self) -> list[Code]:
        """One per connection, oldest first."""
        return [Code(channel["rdma"]["code"]) for channel in self.report()]

    async def until(self, *codes: Code) -> None:
        """The server needs a moment for what its transport has received."""
        async with asyncio.timeout(10):
            while self.codes() != list(codes):
                await asyncio.sleep(0.01)


def play(
    tmp_path: Path,
    scene: Callable[[Scene], Awaitable[None]],
    rdma: str = "iwarp",
    host: str = "127.0.0.1",
    encrypt_share: bool = False,
    rdma_port: int = 0,
    **settings: Any,
) -> None:
    (tmp_path / "share").mkdir()
    config = Config(
        [ShareConfig("data", tmp_path / "share", encrypt=encrypt_share, force_user=own_user.CREDENTIALS)],
        [Account("u", nt_hash("pw"))],
        Settings(failed_logon_delay=0, min_dialect=0x0202, rdma_min_dialect=0x0202, **settings),
        [host],
        port=0,
        rdma=rdma,
        rdma_port=rdma_port,
        state=tmp_path / "state",
    )

    async def main() -> None:
        service = Service(config)
        acted = Scene(service)
        try:
            await service.start()
            await scene(acted)
        finally:
            for client in acted.clients:
                client.transport.abort("the test is over")
            await service.stop()

    asyncio.run(main())


async def ask(session: ClientSession) -> None:
    await query_interfaces(await session.tree_connect("IPC$"))


async def log_on(client: Client) -> ClientSession:
    return await client.log_on("u", "pw")
