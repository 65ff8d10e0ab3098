"""Finder information and resource forks over TCP and over SMB Direct, where their data moves by RDMA."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from smb3server.backends.local.backend import LocalOptions
from smb3server.backends.local.macos import MacBackend
from smb3server.client.protocol import ServerError
from smb3server.client.protocol.tree import READ, READ_WRITE
from smb3server.settings.share import ShareRules
from smb3server.state.share import Share
from smb3server.wire import apple
from smb3server.wire.create import CreateDisposition
from smb3server.wire.status import NtStatus
from tests.lab.harness import lab

INFO = apple.AFP_INFO_LAYOUT.pack(apple.AfpInfo(finder_info=b"TEXTttxt".ljust(32, b"\0")))


@pytest.mark.parametrize("rdma", [False, True], ids=["tcp", "smbdirect"])
def test_streams_come_back_as_written(tmp_path: Path, rdma: bool) -> None:
    async def run() -> None:
        async with lab(tmp_path) as made:
            (tmp_path / "macs").mkdir()
            backend = MacBackend(tmp_path / "macs", LocalOptions(xattrs="user"))
            made.server.add_share(Share("macs", backend=backend, rules=ShareRules(macos=True)))
            async with made.tree("macs", rdma=rdma) as tree:
                info = await tree.create("file:AFP_AfpInfo", READ_WRITE, CreateDisposition.OPEN_IF)
                with pytest.raises(ServerError) as refused:
                    await tree.write(info, 0, bytes(60))
                assert refused.value.status == NtStatus.INVALID_PARAMETER
                assert await tree.write(info, 0, INFO) == 60
                assert await tree.read(info, 16, 8) == b"AFP\0" + INFO[4:8]
                await tree.close(info)
                fork = os.urandom(min(1 << 20, tree.max_write, tree.max_read))
                file = await tree.create("file:AFP_Resource", READ_WRITE, CreateDisposition.OPEN_IF)
                assert await tree.write(file, 0, fork) == len(fork)
                await tree.close(file)
            async with made.tree("macs", rdma=rdma) as tree:
                info = await tree.create("file:AFP_AfpInfo", READ, CreateDisposition.OPEN)
                assert await tree.read(info, 0, 4096) == INFO
                file = await tree.create("file:AFP_Resource", READ, CreateDisposition.OPEN)
                assert await tree.read(file, 0, len(fork)) == fork
            for opened in list(made.server.opens.by_id.values()):
                made.server.opens.close(opened)
            assert backend.open_streams == {}
            backend.close()

    asyncio.run(run())
