"""A server with its web page, and clients that use it in different ways: by RDMA, encrypted by RDMA, and over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from smb3server.client.protocol import Client, ClientSession, Tree, open_rdma, open_tcp
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.service.service import Service
from smb3server.settings.web import WebConfig
from smb3server.wire.create import CreateDisposition
from smbdirect.message_transport import MessageTransport
from smbdirect.providers.make import make_provider
from tools.support import own_user

ADMIN, USER, PASSWORD = "alice", "bob", "correct horse"
FOLDERS = ("projects", "media", "backup")
READ_WRITE = 0x0012019F
"""FILE_GENERIC_READ and FILE_GENERIC_WRITE. [MS-SMB2 2.2.13.1.1]"""
PIECE = 1 << 20


@contextlib.asynccontextmanager
async def serving(folder: Path, web: WebConfig | None = None) -> AsyncIterator[Service]:
    """A server named FILES with iWARP on loopback, on ports of its own. Its page is for ``ADMIN``."""
    arguments = ["--listen", "127.0.0.1", "--port", "0", "--rdma", "iwarp", "--rdma-port", "0"]
    arguments += ["--state", str(folder / "state")]
    for name in FOLDERS:
        (folder / name).mkdir(exist_ok=True)
        arguments += ["--share", own_user.option(name, folder / name)]
    for user in (ADMIN, USER):
        arguments += ["--user", f"{user}:{PASSWORD}"]
    config = parse_arguments(arguments)
    config.settings.server_name = "FILES"
    config.settings.admins = frozenset({ADMIN})
    config.web = web or WebConfig(port=0)
    service = Service(config)
    try:
        await service.start()
        yield service
    finally:
        await service.stop()


def url(service: Service) -> str:
    """Return the address of the page."""
    assert service.web is not None
    return service.web.url


async def connect(service: Service, by_rdma: bool) -> MessageTransport:
    """Connect over iWARP, or over TCP."""
    if not by_rdma:
        return await open_tcp("127.0.0.1", service.listeners[0].address[1])
    (_, listener), *_ = service.fabrics.listeners
    return await open_rdma(make_provider("iwarp"), *listener.address)


@contextlib.asynccontextmanager
async def session(
    service: Service, by_rdma: bool, user: str = USER, *, encrypt: bool = False
) -> AsyncIterator[ClientSession]:
    """A session that signs only if it must."""
    client = await Client.connect(await connect(service, by_rdma))
    try:
        yield await client.log_on(user, PASSWORD, encrypt=encrypt)
    finally:
        await client.close()


async def traffic(tree: Tree, name: str, pause: float) -> None:
    """Write a file and read it again and again, until it is cancelled."""
    data = os.urandom(PIECE)
    file = await tree.create(name, READ_WRITE, CreateDisposition.OPEN_IF)
    turn = 0
    while True:
        await tree.write(file, (turn % 8) * PIECE, data)
        for _ in range(1 + turn % 3):
            await tree.read(file, 0, PIECE)
            await asyncio.sleep(pause)
        turn += 1


@contextlib.asynccontextmanager
async def busy(service: Service, pause: float = 0.02) -> AsyncIterator[None]:
    """Three clients with traffic: by RDMA, encrypted by RDMA, and one that stays on TCP."""
    kinds = (("projects", ADMIN, True, False), ("media", USER, True, True), ("backup", USER, False, False))
    async with contextlib.AsyncExitStack() as stack:
        tasks = []
        for share, user, by_rdma, encrypt in kinds:
            opened = await stack.enter_async_context(session(service, by_rdma, user, encrypt=encrypt))
            tree = await opened.tree_connect(share)
            tasks.append(asyncio.ensure_future(traffic(tree, f"{share}-2026.img", pause)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
