"""A file removed while another client keeps it open only for caching (MS-FSA 2.1.4.12, handle caching)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from smb3server.client.protocol import ServerError
from smb3server.client.protocol.tree import READ_WRITE, RemoteFile
from smb3server.files.caching import HANDLE, READ
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.create_contexts import RawContext
from smb3server.wire.oplock_break import LeaseBreakNotification, OplockLevel
from smb3server.wire.status import NtStatus
from tests.lab.scene import Scene, log_on, play

KEY = b"k" * 16
LEASE = RawContext(b"RqLs", KEY + (READ | HANDLE).to_bytes(4, "little") + bytes(12))
ON_CLOSE = int(CreateOptions.DELETE_ON_CLOSE)


@pytest.mark.parametrize("lets_go", [True, False], ids=["closes", "acknowledges"])
@pytest.mark.parametrize("how", ["close", "loss"])
def test_removed_and_made_anew(tmp_path: Path, lets_go: bool, how: str) -> None:
    """The CLOSE that deletes waits for the client that caches. If it is the connection that ends, the next CREATE
    waits."""

    async def scene(acted: Scene) -> None:
        caching = await (await log_on(await acted.tcp())).tree_connect("data")
        other = await (await log_on(await acted.tcp())).tree_connect("data")
        third = await (await log_on(await acted.tcp())).tree_connect("data")
        broken: asyncio.Queue[LeaseBreakNotification] = asyncio.Queue()
        caching.client.on_break = broken.put_nowait  # type: ignore[assignment]
        (tmp_path / "share" / "f").write_bytes(b"old")
        held = await caching.create("f", contexts=[LEASE], oplock=int(OplockLevel.LEASE))
        doomed = await other.create("f", READ_WRITE, options=ON_CLOSE)
        removing = asyncio.create_task(other.close(doomed) if how == "close" else other.client.close())
        notification = await asyncio.wait_for(broken.get(), 10)
        assert (notification.current_lease_state, notification.new_lease_state) == (READ | HANDLE, READ)
        making: asyncio.Task[RemoteFile] | None = None
        if how == "loss":
            making = asyncio.create_task(third.create("f", READ_WRITE, CreateDisposition.CREATE))
        await asyncio.sleep(0.02)
        assert not (making or removing).done()
        await (caching.close(held) if lets_go else caching.acknowledge_lease_break(KEY, READ))
        await removing
        if making is None:
            making = asyncio.create_task(third.create("f", READ_WRITE, CreateDisposition.CREATE))
        if lets_go:
            assert (await making).size == 0
        else:
            with pytest.raises(ServerError) as failure:
                await making
            assert failure.value.status in (NtStatus.DELETE_PENDING, NtStatus.OBJECT_NAME_COLLISION)
            await caching.close(held)
            assert not (tmp_path / "share" / "f").exists()

    play(tmp_path, scene)


def test_a_folder_with_entries_is_not_marked_at_a_close(tmp_path: Path) -> None:
    """It stays open to others, and the last of them does not remove it, though it is empty then. [MS-FSA 2.1.5.5]"""

    async def scene(acted: Scene) -> None:
        tree = await (await log_on(await acted.tcp())).tree_connect("data")
        folder = tmp_path / "share" / "d"
        folder.mkdir()
        (folder / "f").write_bytes(b"")
        directory = int(CreateOptions.DIRECTORY_FILE)
        held = await tree.create("d", options=directory)
        await tree.close(await tree.create("d", READ_WRITE, options=directory | ON_CLOSE))
        await tree.close(await tree.create("d", options=directory))
        await tree.delete("d\\f")
        await tree.close(held)
        assert folder.exists()
        held = await tree.create("d", options=directory)
        await tree.close(await tree.create("d", READ_WRITE, options=directory | ON_CLOSE))
        with pytest.raises(ServerError) as failure:
            await tree.create("d", options=directory)
        assert failure.value.status == NtStatus.DELETE_PENDING
        await tree.close(held)
        assert not folder.exists()

    play(tmp_path, scene)
