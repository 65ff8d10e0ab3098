"""Data of encrypted sessions and shares never goes by RDMA if its client has no RDMA transforms: it would be clear
(MS-SMB2 3.3.5.12, 3.3.5.13). The request is refused, nothing is fetched or placed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from smb3server.auth.users import Account, UserDatabase, nt_hash
from smb3server.backends.local.backend import LocalBackend
from smb3server.client.protocol import Client, ServerError, open_rdma
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.server.server import Server
from smb3server.settings.server import Settings
from smb3server.settings.share import ShareRules
from smb3server.state.share import Share
from smb3server.wire.create import CreateDisposition
from smb3server.wire.status import NtStatus
from smbdirect.providers.base import Provider
from smbdirect.providers.iwarp.provider import IwarpProvider
from smbdirect.providers.loopback import LoopbackProvider
from smbdirect.transport.listen import listen
from tests.lab.harness import WITHOUT_TRANSFORMS

LONGEST_TURN = 0.1

SECRET = b"not for everybody " * 500
OTHER = b"X" * len(SECRET)


async def transfers(
    root: Path, provider: Provider, invalidate: bool, share: bool, session: bool, client_wants: bool
) -> None:
    """READ and WRITE by RDMA on one connection; refused if anybody wants encryption."""
    (root / "f").write_bytes(SECRET)
    users = UserDatabase()
    users.add(Account("u", nt_hash("pw")))
    server = Server(Settings(require_encryption=session), users)
    server.add_share(Share("data", backend=LocalBackend(root), rules=ShareRules(encrypt=share)))
    listener = await listen(provider, "127.0.0.1", 0, server.accept)
    transport = await open_rdma(provider, "127.0.0.1", listener.address[1])
    client = await Client.connect(transport, offer=WITHOUT_TRANSFORMS)
    try:
        tree = await (await client.log_on("u", "pw", encrypt=client_wants)).tree_connect("data")
        file = await tree.create("f", READ_WRITE, CreateDisposition.OPEN)
        rdma = transport.rdma
        assert rdma is not None
        memory = bytearray(OTHER)
        sink = rdma.register(memoryview(memory), writable=True)
        source = rdma.register(memoryview(bytearray(OTHER)), readable=True)
        read = tree.read_into(file, 0, sink.descriptors, len(SECRET), invalidate=invalidate)
        write = partial(tree.write_from, file, 0, source.descriptors, len(OTHER), invalidate=invalidate)
        if share or session or client_wants:
            with pytest.raises(ServerError) as caught:
                await read
            assert caught.value.status == NtStatus.INVALID_PARAMETER
            with pytest.raises(ServerError) as caught:
                await write()
            assert caught.value.status == NtStatus.INVALID_PARAMETER
            assert bytes(memory) == OTHER
            assert (root / "f").read_bytes() == SECRET
            # The connection lives on, and data in messages is served.
            assert await tree.read(file, 0, len(SECRET)) == SECRET
        else:
            assert await read == len(SECRET)
            assert bytes(memory) == SECRET
            assert await write() == len(OTHER)
            assert (root / "f").read_bytes() == OTHER
    finally:
        await client.close()
        await listener.close()
        await server.shutdown(2)


@pytest.mark.parametrize("fabric", [LoopbackProvider, IwarpProvider])
@pytest.mark.parametrize("invalidate", [False, True])
@pytest.mark.parametrize(
    ("share", "session", "client_wants"),
    [(False, False, False), (True, False, False), (False, True, False), (False, False, True)],
    ids=["clear", "share", "session", "request"],
)
def test_clear_data_by_rdma(
    tmp_path: Path, fabric: Callable[[], Provider], invalidate: bool, share: bool, session: bool, client_wants: bool
) -> None:
    asyncio.run(transfers(tmp_path, fabric(), invalidate, share, session, client_wants))
