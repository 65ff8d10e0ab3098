"""Signed and encrypted READs of every length, many at a time, while the file is being written: the client checks every
signature, so a buffer that changed between signing and sending would end the connection."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from smb3server.client.protocol import Client, open_rdma, open_tcp
from smb3server.commands import read
from smb3server.commands.fsctl.smbtorture import READ_RESPONSE_BODY_PADDING8
from smb3server.crypto.encryption import SessionCipher
from smb3server.settings.server import Settings
from smb3server.wire.create import CreateDisposition
from smbdirect.codec import Buffer
from smbdirect.providers.iwarp.provider import IwarpProvider
from tests.lab.footprint import Serving, serve
from tests.lab.harness import lab
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


@pytest.mark.parametrize("cached", [True, False], ids=["in memory", "from the disk"])
def test_an_encrypted_read_is_encrypted_where_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    """Its data is not copied into another buffer, neither whole nor cut off by the end of file."""
    content = random.Random(3).randbytes(SIZE)
    copied: list[int] = []
    encrypt = SessionCipher.encrypt

    def noting(cipher: SessionCipher, segments: Sequence[Buffer], length: int, buffer: memoryview) -> None:
        copied.append(length)
        encrypt(cipher, segments, length, buffer)

    async def scenario() -> None:
        async with lab(tmp_path) as server, server.session(encrypt=True) as session:
            (tmp_path / "share" / "file").write_bytes(content)
            tree = await session.tree_connect("share")
            file = await tree.create("file", READ_WRITE, CreateDisposition.OPEN)
            monkeypatch.setattr(SessionCipher, "encrypt", noting)
            if not cached:
                monkeypatch.setattr(read, "_read_cached", lambda *_: -1)
            for offset, length in ((0, 1 << 20), (77, 100_000), (SIZE - 70_000, 1 << 20)):
                assert await tree.read(file, offset, length) == content[offset : offset + length]
            assert copied
            assert max(copied) < 65536, "only requests and their short answers"
            assert server.server.buffers.lent == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("length", [100, 70_000])
def test_an_encrypted_read_with_padding_is_answered(tmp_path: Path, length: int) -> None:
    """The buffer that the data was read into has no room for padding in front of it."""
    content = random.Random(4).randbytes(SIZE)

    async def scenario() -> None:
        settings = Settings(test_fsctls=True)
        async with lab(tmp_path, settings) as server, server.session(encrypt=True) as session:
            (tmp_path / "share" / "file").write_bytes(content)
            tree = await session.tree_connect("share")
            file = await tree.create("file", READ_WRITE, CreateDisposition.OPEN)
            await tree.ioctl(READ_RESPONSE_BODY_PADDING8, file=file)
            async with asyncio.timeout(10):
                assert await tree.read(file, 5, length) == content[5 : 5 + length]
            assert server.server.buffers.lent == 0

    asyncio.run(scenario())
