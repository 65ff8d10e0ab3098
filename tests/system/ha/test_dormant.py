"""Restored opens whose clients are away: they hold their files, whatever the host does, and without having them open if
the server may find files by their identity (CAP_DAC_READ_SEARCH)."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from smb3server.client.protocol.messages import ServerError
from smb3server.wire.create import Access, CreateDisposition, CreateOptions, ShareAccess
from smb3server.wire.oplock_break import LeaseState
from smb3server.wire.status import NtStatus
from tests.lab.persistent import OpenLost, PersistentShare
from tests.lab.process import ServerProcess, run

RWH = int(LeaseState.READ | LeaseState.HANDLE | LeaseState.WRITE)
READ = int(ShareAccess.READ)

Body = Callable[[ServerProcess, PersistentShare], Awaitable[None]]


LESS = ["setpriv", "--bounding-set=-dac_read_search", "--inh-caps=-dac_read_search"]
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="capabilities are root's, and setpriv takes them away"
)


@pytest.fixture(
    params=[pytest.param(True, marks=[needs_root, pytest.mark.root], id="closed"), pytest.param(False, id="open")]
)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path)
    if not request.param and os.geteuid() == 0 and shutil.which("setpriv"):
        process.prefix = LESS
    process.start()
    yield process
    process.kill()


def sleeps(server: ServerProcess) -> bool:
    """Whether restored opens take no descriptors."""
    return os.geteuid() == 0 and not server.prefix


def open_files(server: ServerProcess) -> list[str]:
    """Files below the share named f..., by descriptor."""
    assert server.process is not None
    folder = Path(f"/proc/{server.process.pid}/fd")
    targets = []
    for entry in folder.iterdir():
        try:
            targets.append(os.readlink(entry))
        except FileNotFoundError:
            continue
    return [target for target in targets if target.startswith(str(server.share)) and Path(target).name[:1] == "f"]


def test_they_take_no_descriptors_and_keep_others_out(server: ServerProcess) -> None:
    async def body(server: ServerProcess, client: PersistentShare) -> None:
        files = [await client.open(f"f{number}", share=0) for number in range(20)]
        for file in files:
            await file.write(0, b"before")
        assert len(open_files(server)) == 20
        server.restart()
        kept = 0 if sleeps(server) else 20
        assert len(open_files(server)) == kept
        other = server.client("plain", patience=0.0)
        tree = await other.connected()
        for number in (0, 7):
            with pytest.raises(ServerError) as caught:
                await tree.create(f"f{number}")
            assert caught.value.status == NtStatus.FILE_NOT_AVAILABLE
        assert len(open_files(server)) == kept
        await files[7].write(6, b", after")
        assert str(server.share / "f7") in open_files(server)
        assert len(open_files(server)) == max(kept, 1)
        assert (server.share / "f7").read_bytes() == b"before, after"
        for file in files:
            await file.close()
        assert open_files(server) == []
        await tree.close(await tree.create("f0"))
        await other.close()

    run(server, body)


def test_a_file_that_the_host_renames_stays_open(server: ServerProcess) -> None:
    async def body(server: ServerProcess, client: PersistentShare) -> None:
        file = await client.open("f", share=READ)
        await file.write(0, b"one")
        server.restart()
        (server.share / "f").rename(server.share / "elsewhere")
        (server.share / "f").write_bytes(b"another")
        await file.write(3, b" two")
        await file.close()
        assert (server.share / "elsewhere").read_bytes() == b"one two"
        assert (server.share / "f").read_bytes() == b"another"

    run(server, body)


def test_a_file_that_the_host_replaces_is_lost_and_its_heir_untouched(server: ServerProcess) -> None:
    async def body(server: ServerProcess, client: PersistentShare) -> None:
        file = await client.open("f", share=READ, options=int(CreateOptions.DELETE_ON_CLOSE))
        await file.write(0, b"one")
        server.restart()
        (server.share / "f").unlink()
        # Many: one of them is likely to get the inode's number.
        for number in range(50):
            (server.share / f"new{number}").write_bytes(b"another")
        (server.share / "f").write_bytes(b"another")
        for number in range(50):
            await _opens(server, f"new{number}")
        await _opens(server, "f")
        if sleeps(server):
            with pytest.raises(OpenLost):
                await file.write(3, b" two")
        else:
            # It is there for as long as somebody has it open.
            await file.write(3, b" two")
            await file.close()
        assert (server.share / "f").read_bytes() == b"another"
        assert all((server.share / f"new{number}").read_bytes() == b"another" for number in range(50))
        # Nor is anything left that would keep others out, now or after one more restart.
        for _ in range(2):
            await _opens(server, "f")
            server.restart()

    run(server, body)


async def _opens(server: ServerProcess, name: str) -> None:
    """Another client does, for itself alone."""
    other = server.client("plain", patience=0.0)
    tree = await other.connected()
    await tree.close(await tree.create(name, share=0))
    await other.close()


def test_a_folder_of_theirs_keeps_its_name(server: ServerProcess) -> None:
    async def body(server: ServerProcess, client: PersistentShare) -> None:
        (server.share / "folder").mkdir()
        file = await client.open("folder\\f", share=0)
        await file.write(0, b"one")
        server.restart()
        other = server.client("ca")
        tree = await other.connected()
        options = int(CreateOptions.DIRECTORY_FILE)
        folder = await tree.create(
            "folder", int(Access.DELETE | Access.READ_ATTRIBUTES), CreateDisposition.OPEN, options
        )
        with pytest.raises(ServerError) as caught:
            await tree.rename(folder, "moved")
        assert caught.value.status == NtStatus.ACCESS_DENIED
        assert str(server.share / "folder" / "f") not in open_files(server) or not sleeps(server)
        await tree.close(folder)
        await file.write(3, b" two")
        await file.close()
        assert (server.share / "folder" / "f").read_bytes() == b"one two"
        await other.close()

    run(server, body)


def test_a_lease_is_broken_for_another_client_and_the_file_shared(server: ServerProcess) -> None:
    """The other one gets in once the owner, back for its break, gave up write caching."""

    async def body(server: ServerProcess, client: PersistentShare) -> None:
        file = await client.open("f", share=READ, lease_state=RWH)
        await file.write(0, b"one")
        server.restart()
        other = server.client("plain")
        tree = await other.connected()
        waiting = asyncio.ensure_future(tree.create("f"))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await file.write(3, b" two")
        opened = await waiting
        assert await tree.read(opened, 0, 100) == b"one two"
        await file.write(7, b" three")
        await tree.close(opened)
        await file.close()
        await other.close()

    run(server, body)
