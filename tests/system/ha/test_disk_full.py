"""The disk under the stored handles fills up: new persistent opens and locks fail cleanly, everything else goes on."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Iterator
from pathlib import Path

import pytest

from smb3server.client.protocol.messages import ServerError
from smb3server.wire.create import ShareAccess
from smb3server.wire.status import NtStatus
from tests.lab.persistent import PersistentFile, PersistentShare
from tests.lab.process import ServerProcess

pytestmark = pytest.mark.root


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
        ).returncode
    )
    if not mounted:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def test_disk_full(tmp_path: Path, small_disk: Path) -> None:
    server = ServerProcess(tmp_path, small_disk / "state")
    server.start()
    ballast = small_disk / "ballast"

    async def body() -> None:
        client = server.client(patience=10)
        before = await client.open("before", share=int(ShareAccess.READ))
        await before.lock(0, 10)
        kept: list[PersistentFile] = [await client.open(f"kept{number}") for number in range(3)]
        fill(ballast)
        failed = 0
        for number in range(3000):
            # What was allocated already is used up first.
            try:
                kept.append(await client.open(f"f{number}"))
            except ServerError as error:
                assert error.status == NtStatus.INSUFFICIENT_RESOURCES
                assert not (server.share / f"f{number}").exists()
                failed += 1
                if failed == 3:
                    break
        assert failed == 3
        with pytest.raises(ServerError) as caught:
            while True:
                for start in range(100, 2000, 10):
                    await before.lock(start, 5)
        assert caught.value.status == NtStatus.INSUFFICIENT_RESOURCES

        # Others and what is open already take no harm.
        beside = server.client("plain")
        plain = await beside.connected()
        file = await plain.create("plain", disposition=3, access=0x0012019F)
        await plain.write(file, 0, b"works")
        await plain.close(file)
        await beside.close()
        assert await before.write(0, b"goes on") == 7
        await kept.pop().close()

        ballast.unlink()
        last = await client.open("last")
        await before.lock(5000, 5)
        await asyncio.sleep(1.5)
        server.kill()
        await asyncio.to_thread(server.start)
        for file in (before, last, *kept):
            await file.write(0, b"back")
        await before.unlock(0, 10)
        await before.unlock(5000, 5)
        for file in (before, last, *kept):
            await file.close()
        await client.close()

    try:
        asyncio.run(asyncio.wait_for(body(), 90))
    finally:
        server.kill()


@pytest.mark.parametrize("step", ["open", "write", "lock", "close"])
def test_full_at_step(tmp_path: Path, small_disk: Path, step: str) -> None:
    """At each step of a handle's life: done or refused, never half; and a kill and a restart with the disk still full
    bring back what was acknowledged, nothing else."""
    server = ServerProcess(tmp_path, small_disk / "state")
    server.start()
    ballast = small_disk / "ballast"

    async def refused(action: Awaitable[object]) -> None:
        with pytest.raises(ServerError) as caught:
            await action
        assert caught.value.status == NtStatus.INSUFFICIENT_RESOURCES

    async def body() -> None:
        client = server.client(patience=10)
        file = None if step == "open" else await client.open("f", share=int(ShareAccess.READ))
        if file is not None and step != "write":
            await file.write(0, b"data")
        if file is not None and step == "close":
            await file.lock(0, 4)
        others = await until_full(client, ballast)
        if step == "open":
            await refused(client.open("f"))
            assert not (server.share / "f").exists()
        elif file is not None and step == "write":
            assert await file.write(0, b"data") == 4
        elif file is not None and step == "lock":
            await refused(file.lock(0, 4))
        elif file is not None:
            await file.close()
        server.kill()
        await asyncio.to_thread(server.start)
        if step == "open":
            await refused(client.open("f"))
        elif file is not None and step != "close":
            assert await file.read(0, 4) == b"data"
            # A lock that was refused keeps nobody out.
            other = server.client()
            tree = await other.connected()
            theirs = await tree.create("f", disposition=1, access=0x00120089, share=7)
            assert await tree.read(theirs, 0, 4) == b"data"
            await other.close()
        ballast.unlink()
        if step == "open":
            file = await client.open("f")
        if file is not None and step != "close":
            await file.lock(0, 4)
            await file.close()
        for other_file in others:
            await other_file.close()
        await client.close()

    try:
        asyncio.run(asyncio.wait_for(body(), 90))
    finally:
        server.kill()


async def until_full(client: PersistentShare, ballast: Path) -> list[PersistentFile]:
    """Fill the disk, and use up what the store had allocated before."""
    fill(ballast)
    opened: list[PersistentFile] = []
    while True:
        try:
            opened.append(await client.open(f"filler{len(opened)}"))
        except ServerError as error:
            assert error.status == NtStatus.INSUFFICIENT_RESOURCES
            return opened
