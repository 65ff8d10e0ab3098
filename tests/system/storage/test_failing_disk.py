"""A disk that cannot read some of its blocks: the client gets the status for that, and the server's log says it."""

from __future__ import annotations

import asyncio
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.client.protocol import ServerError, Tree, open_tcp
from smb3server.wire.status import NtStatus
from smbdirect.errors import ConnectionLost
from tests.lab import power_cut
from tests.lab.command import Served, serve, stop
from tests.lab.power_cut import Disk
from tests.lab.stable_writes import connected

pytestmark = pytest.mark.root
MIB = 1 << 20
BAD = 2 * MIB + 8192
"""Where the file has the block that was damaged. Before it, the kernel reads ahead."""
SIZE = 4 * MIB


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Serve "file" of a file system that compares checksums: btrfs reports a block that was damaged as EIO."""
    if reason := power_cut.missing("btrfs"):
        pytest.skip(reason)
    disk = Disk("btrfs", tmp_path)
    with disk.mounted() as place:
        served = serve(place, "--state", str(tmp_path / "state"))
        try:
            damage(disk.image, served.share / "file")
            yield served
        finally:
            assert stop(served) == 0


def damage(image: Path, path: Path) -> None:
    mark = os.urandom(64)
    data = bytearray(os.urandom(SIZE))
    data[BAD : BAD + len(mark)] = mark
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
        with image.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
            at = content.find(mark)
            content[at] ^= 0xFF
            content.flush()
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def log(served: Served) -> str:
    return (served.share.parent / "log").read_text()


async def read_through(tree: Tree) -> None:
    file = await tree.create("file")
    for offset in range(0, SIZE, MIB):
        assert len(await tree.read(file, offset, MIB)) == MIB


async def outcome(served: Served) -> str:
    """Read the file from its beginning, neither signed nor encrypted, and return what ends that."""
    tree = await connected(await open_tcp("127.0.0.1", served.port))
    try:
        await read_through(tree)
    except ServerError as error:
        assert error.status == NtStatus.IO_DEVICE_ERROR
        return "status"
    except ConnectionLost:
        return "connection"
    finally:
        tree.client.transport.abort()
    return "nothing"


def test_reading(served: Served) -> None:
    """What is already sent cannot be taken back, so a connection may end where the data should come out of the page
    cache. The next READ of the file has the status."""
    first, *others = (asyncio.run(outcome(served)) for _ in range(4))
    assert first in ("status", "connection") and others == ["status"] * 3
    assert "share share: READ of 'file' fails: Input/output error; see the kernel's log" in log(served)


def test_writing_a_part_of_a_bad_block(served: Served) -> None:
    async def body() -> None:
        tree = await connected(await open_tcp("127.0.0.1", served.port))
        file = await tree.create("file", access=0x0012019F)
        with pytest.raises(ServerError) as refused:
            await tree.write(file, BAD + 10, b"abc")
        assert refused.value.status == NtStatus.IO_DEVICE_ERROR
        # As a whole it is written, and then it is good again.
        await tree.write(file, BAD // 4096 * 4096, bytes(4096))
        assert await tree.read(file, BAD, 100) == bytes(100)
        await tree.client.close()

    asyncio.run(body())
    assert "share share: WRITE of 'file' fails: Input/output error" in log(served)


@pytest.mark.parametrize("options", [["--no-signing"], [], ["--encrypt"]], ids=["clear", "signed", "encrypted"])
def test_the_client_says_it(served: Served, tmp_path: Path, options: list[str]) -> None:
    command = [sys.executable, "-m", "smb3server", "client", "get", *options]
    done = subprocess.run(
        [*command, f"smb://u@127.0.0.1:{served.port}/share/file", str(tmp_path / "back")],
        env=os.environ | {"SMB3SERVER_PASSWORD": "pw"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1 and "Input/output error: 'file' (STATUS_IO_DEVICE_ERROR)" in done.stderr
    assert not (tmp_path / "back").exists()
