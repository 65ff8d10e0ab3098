"""A server in this process, what it holds, and a client that must be served all the while."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import resource
import socket
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from smb3server.auth.users import Account, nt_hash
from smb3server.client.protocol import Client, open_tcp
from smb3server.config.model import Config, ShareConfig
from smb3server.service.service import Service
from smb3server.settings.server import Settings
from smb3server.wire.create import CreateDisposition
from smbdirect.providers.iwarp.endpoint import IwarpEndpoint
from smbdirect.providers.iwarp.provider import IwarpProvider
from tests.lab import forked_starts
from tests.lab.hostile_client import READ_WRITE
from tools.support import own_user
from tools.support.server_process import open_descriptors

PATIENCE = 20.0
"""Seconds for what takes milliseconds on an idle machine."""


BYSTANDER_LIMIT = 15.0
"""Seconds within which another client is answered, on a machine that is busy with everything else at the same time."""


class Footprint(NamedTuple):
    """What the server holds."""

    descriptors: int
    tasks: int
    connections: int
    sessions: int
    opens: int
    endpoints: int
    regions: int
    buffers: int
    """Pooled buffers in use and bytes on loan."""
    unauthenticated: int
    """Bytes of the allowance taken."""


class Serving:
    """A server on ephemeral ports, in this process, where everything can be looked at."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.port = service.listeners[0].address[1]
        self.rdma_port = service.fabrics.listeners[0][1].address[1]
        self.endpoints: weakref.WeakSet[IwarpEndpoint] = weakref.WeakSet()
        """Those that anything still refers to."""
        provider = service.fabrics._providers["iwarp"]
        assert isinstance(provider, IwarpProvider)
        make = provider.endpoint

        def endpoint(sock: socket.socket, private_data: bytes = b"") -> IwarpEndpoint:
            made = make(sock, private_data)
            self.endpoints.add(made)
            return made

        provider.endpoint = endpoint  # type: ignore[method-assign]

    def footprint(self) -> Footprint:
        gc.collect()
        server = self.service.server
        endpoints = list(self.endpoints)
        return Footprint(
            descriptors=open_descriptors(),
            tasks=len(asyncio.all_tasks()),
            connections=len(server.connection_list),
            sessions=len(server.sessions.by_id),
            opens=len(server.opens.by_id),
            endpoints=len(endpoints),
            regions=sum(len(endpoint._regions) for endpoint in endpoints),
            buffers=server.buffers.lent,
            unauthenticated=server.buffers.unauthenticated.taken,
        )

    async def until(self, condition: Callable[[], object], patience: float = PATIENCE) -> None:
        async with asyncio.timeout(patience):
            while not condition():
                await asyncio.sleep(0.02)

    async def settles(self, before: Footprint, patience: float = PATIENCE) -> None:
        """Everything that came since ``before`` is gone again."""
        connections = self.service.server.connection_list
        with contextlib.suppress(TimeoutError):
            await self.until(lambda: len(connections) == before.connections and self.footprint() == before, patience)
        now = self.footprint()
        assert now == before, f"held: {now}, before: {before}"

    @contextlib.asynccontextmanager
    async def bystander(self) -> AsyncIterator[None]:
        """Another client, which works on its file all the while and must be answered soon and rightly."""
        client = await Client.connect(await open_tcp("127.0.0.1", self.port))
        tree = await (await client.log_on("u", "pw")).tree_connect("share")
        file = await tree.create("bystander", READ_WRITE, CreateDisposition.OPEN_IF)
        rounds = 0
        slowest = 0.0

        async def work() -> None:
            nonlocal rounds, slowest
            for number in itertools.count():
                data = number.to_bytes(8, "little") * 512
                started = time.monotonic()
                await tree.write(file, 0, data)
                assert await tree.read(file, 0, len(data)) == data
                slowest = max(slowest, time.monotonic() - started)
                rounds += 1
                await asyncio.sleep(0.01)

        task = asyncio.create_task(work())
        try:
            yield
            assert not task.done(), task.exception()
            assert rounds > 0
            assert slowest < BYSTANDER_LIMIT
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.close()


def serve(
    tmp_path: Path,
    scenario: Callable[[Serving], Coroutine[Any, Any, None]],
    settings: Settings | None = None,
    hosts: tuple[str, ...] = ("127.0.0.1",),
) -> None:
    async def main() -> None:
        share = tmp_path / "share"
        share.mkdir()
        config = Config(
            shares=[ShareConfig("share", share, force_user=own_user.CREDENTIALS)],
            accounts=[Account("u", nt_hash("pw"))],
            settings=settings or Settings(),
            listen=list(hosts),
            port=0,
            rdma="iwarp",
            rdma_port=0,
        )
        service = Service(config)
        await service.start()
        try:
            serving = Serving(service)
            async with serving.bystander():
                await scenario(serving)
        finally:
            await service.stop()

    forked_starts.ready()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    try:
        asyncio.run(main())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
