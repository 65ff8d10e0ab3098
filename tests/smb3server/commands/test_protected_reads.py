"""Signed and encrypted READs of every length, many at a time, while the file is being written: the client checks every
signature, so a buffer that changed between signing and sending would end the connection."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from smb3server.client import Client, open_rdma, open_tcp
from smb3server.wire.create import CreateDisposition
from smbdirect.providers.iwarp.provider import IwarpProvider
from tests.lab.footprint import Serving, serve
from tests.lab.hostile_client import READ_WRITE

SIZE = 4 << 20
DEPTH = 12
ROUNDS = 8
EDGES = (1, 2, 15, 16, 17, 4095, 4096, 4097, 16383, 16384, 65535, 65536, 65537, 131072, 173_746, 262_144, 1_000_000)


@pytest.mark.parametrize("fabric", ["tcp", "iwarp"])
@pytest.mark.parametrize("protection", ["sign", "encrypt"])
def test_reads_beside_writes(tmp_path: Path, fabric: str, protection: str) -> None:
    rng = random.Random(445)
    content = rng.randbytes(SIZE)

    async def scenario(serving: Serving) -> None:
        before = serving.footprint()
        (tmp_path / "share" / "file").write_bytes(content)
        if fabric == "tcp":
            transport = await open_tcp("127.0.0.1", serving.port)
        else:
            transport = await open_rdma(IwarpProvider(), "127.0.0.1", serving.rdma_port)
        client = await Client.connect(transport)
        session = await client.log_on("u", "pw", sign=protection == "sign", encrypt=protection == "encrypt")
        tree = await session.tree_connect("share")
        file = await tree.create("file", READ_WRITE, CreateDisposition.OPEN)

        async def read(length: int) -> None:
            length = min(length, tree.max_read)
            offset = rng.randrange(SIZE - length)
            assert await tree.read(file, offset, length) == content[offset : offset + length]

        async def write(length: int) -> None:
            # What was there, so that readers know what to expect; but the pages are written.
            offset = rng.randrange(SIZE - length)
            await tree.write(file, offset, content[offset : offset + length])

        for _ in range(ROUNDS):
            lengths = [*EDGES, *(rng.randrange(1, 1 << 20) for _ in range(DEPTH))]
            await asyncio.gather(*map(read, lengths), *(write(1 << 16) for _ in range(DEPTH)))
        await tree.close(file)
        await client.close()
        await serving.settles(before)

    serve(tmp_path, scenario)
