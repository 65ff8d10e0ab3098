"""READ and WRITE whose buffer descriptors, or whose completion, fail: every request is answered, every buffer comes
back (MS-SMB2 3.3.5.12, 3.3.5.13)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Never

import pytest

from smb3server.client.protocol import RemoteFile, ServerError, Tree
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.commands import read as read_command
from smb3server.commands import write as write_command
from smb3server.wire.status import NtStatus
from smbdirect.message_transport import RemoteBuffer
from smbdirect.transport.smb_direct import SmbDirectTransport
from tests.lab.scene import Scene, log_on, play

SIZE = 65536


async def prepared(acted: Scene) -> tuple[Tree, RemoteFile]:
    tree = await (await log_on(await acted.rdma())).tree_connect("data")
    file = await tree.create("f", READ_WRITE)
    return tree, file


async def settles(acted: Scene) -> None:
    """No request is under way, and no buffer is lent."""
    (connection,) = acted.service.server.connection_list
    assert isinstance(connection.transport, SmbDirectTransport)
    pool = connection.transport.pool
    async with asyncio.timeout(10):
        while connection.host.pending_requests or pool.lent:
            await asyncio.sleep(0.01)


def not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_command, "_read_cached", lambda found, view, offset: -1)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("offset", [(1 << 64) - SIZE + 1, (1 << 64) - 16])
def test_descriptors_end_within_the_address_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool, offset: int
) -> None:
    if not cached:
        not_cached(monkeypatch)

    async def scene(acted: Scene) -> None:
        (tmp_path / "share" / "f").write_bytes(os.urandom(SIZE))
        tree, file = await prepared(acted)
        for call in (tree.read_into, tree.write_from):
            with pytest.raises(ServerError) as caught:
                async with asyncio.timeout(10):
                    await call(file, 0, [RemoteBuffer(offset, 1, SIZE)], SIZE, invalidate=False)
            assert caught.value.status == NtStatus.INVALID_PARAMETER
        await settles(acted)
        # And the connection is as good as before.
        assert len(await tree.read(file, 0, 100)) == 100

    play(tmp_path, scene)


def _boom(*_arguments: Any, **_options: Any) -> Never:
    raise RuntimeError("made for the test")


def _failing_read(monkeypatch: pytest.MonkeyPatch) -> None:
    not_cached(monkeypatch)
    monkeypatch.setattr(read_command.FileRead, "_reply", _boom)


def _failing_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_command, "_is_plain", lambda *_: False)
    monkeypatch.setattr(write_command, "_store", _boom)


def _failing_plain_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_command.PlainPeerWrite, "store", _boom)


@pytest.mark.parametrize(
    ("verb", "prepare"),
    [("read_into", _failing_read), ("write_from", _failing_write), ("write_from", _failing_plain_write)],
)
def test_a_completion_that_fails_ends_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, prepare: Callable[[pytest.MonkeyPatch], None]
) -> None:
    prepare(monkeypatch)

    async def scene(acted: Scene) -> None:
        (tmp_path / "share" / "f").write_bytes(os.urandom(SIZE))
        tree, file = await prepared(acted)
        region = tree.client.transport.rdma.register(  # type: ignore[union-attr]
            memoryview(bytearray(SIZE)), readable=True, writable=True
        )
        with pytest.raises(ServerError) as caught:
            async with asyncio.timeout(10):
                await getattr(tree, verb)(file, 0, region.descriptors, SIZE)
        assert caught.value.status == NtStatus.INTERNAL_ERROR
        await settles(acted)

    play(tmp_path, scene)
