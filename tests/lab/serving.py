"""A whole server in this process, from a configuration file, and clients for it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from smb3server.client.protocol import Client, ClientSession, Tree, open_tcp
from smb3server.client.protocol.messages import ServerError
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.service.service import Service
from smb3server.wire.create import CreateDisposition, CreateOptions

READ, WRITE, ALL = 0x00120089, 0x00120116, 0x001F01FF
WRITE_DAC = 0x00040000


@asynccontextmanager
async def serving(tmp_path: Path, text: str, *options: str) -> AsyncIterator[Service]:
    """``text``: the configuration file."""
    file = tmp_path / "smb3server.toml"
    file.write_text(text)
    file.chmod(0o600)
    given = ["--config", str(file), "--listen", "127.0.0.1", "--port", "0", *options]
    service = Service(parse_arguments(given), read=lambda: parse_arguments(given))
    try:
        await service.start()
        yield service
    finally:
        await service.stop()


@asynccontextmanager
async def session_of(service: Service, user: str, password: str = "pw") -> AsyncIterator[ClientSession]:
    """A guest's is not signed."""
    client = await Client.connect(await open_tcp("127.0.0.1", service.listeners[0].address[1]))
    try:
        known = service.server.users.find(user) is not None
        yield await client.log_on(user, password, sign=known, guest=not known)
    finally:
        await client.close()


@asynccontextmanager
async def unsigned_session_of(service: Service, user: str) -> AsyncIterator[ClientSession]:
    """Its answers need no signature: not even that of a session which is gone, which nobody could sign."""
    client = await Client.connect(await open_tcp("127.0.0.1", service.listeners[0].address[1]))
    try:
        yield await client.log_on(user, "pw", sign=False, guest=True)
    finally:
        await client.close()


@asynccontextmanager
async def tree_of(service: Service, user: str, share: str, password: str = "pw") -> AsyncIterator[Tree]:
    async with session_of(service, user, password) as session:
        yield await session.tree_connect(share)


async def make(tree: Tree, name: str, content: bytes = b"content", folder: bool = False) -> None:
    options = CreateOptions.DIRECTORY_FILE if folder else CreateOptions.NON_DIRECTORY_FILE
    file = await tree.create(name, READ | WRITE, CreateDisposition.CREATE, options)
    if not folder:
        await tree.write(file, 0, content)
    await tree.close(file)


async def status_of_open(tree: Tree, name: str, access: int) -> int:
    """0 if ``access`` to an existing file is granted."""
    try:
        await tree.close(await tree.create(name, access, CreateDisposition.OPEN))
    except ServerError as error:
        return error.status
    return 0


async def status_of_logon(service: Service, user: str, password: str) -> int:
    try:
        async with session_of(service, user, password):
            return 0
    except ServerError as error:
        return error.status


async def status_of_connect(session: ClientSession, share: str) -> int:
    """0 if the share is open to the session."""
    try:
        await session.tree_connect(share)
    except ServerError as error:
        return error.status
    return 0


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="acting as other users needs root")
