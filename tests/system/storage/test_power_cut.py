"""After a loss of power, a real file system has what was acknowledged as stable, and what the client put is whole."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.client import connect
from smb3server.client.protocol import ServerError, Tree, open_tcp
from smb3server.wire.status import NtStatus
from tests.lab import power_cut
from tests.lab.command import Served, serve, stop
from tests.lab.persistent import PersistentFile
from tests.lab.power_cut import Disk
from tests.lab.process import ServerProcess
from tests.lab.stable_writes import Worker, connected, content, workers

pytestmark = pytest.mark.root
SIZES = [1, 700, 4096, 20_000, 65_536, 65_537, 300_000]
FILES = 60
PHOTOGRAPHS = 4


@pytest.fixture(
    params=["ext4", pytest.param("xfs", marks=pytest.mark.long), pytest.param("btrfs", marks=pytest.mark.long)]
)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    if reason := power_cut.missing(request.param):
        pytest.skip(reason)
    return Disk(request.param, tmp_path)


@contextlib.contextmanager
def serving(place: Path) -> Iterator[Served]:
    """Serve ``place``/share, with the server's state on the same disk."""
    served = serve(place, "--state", str(place / "state"))
    try:
        yield served
    finally:
        assert stop(served) == 0


def trees(folder: Path, version: int) -> dict[str, bytes]:
    """Make the files of one version below ``folder``. Returns their content."""
    folder.mkdir()
    found = {}
    for number in range(FILES):
        name = f"f{number}"
        found[name] = (hashlib.sha256(f"{version} {number}".encode()).digest() * 10_000)[: SIZES[number % len(SIZES)]]
        (folder / name).write_bytes(found[name])
    return found


def put(served: Served, source: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "smb3server", "client", "put", "-r", *map(str, sorted(source.iterdir()))]
    return subprocess.Popen(
        [*command, f"smb://u@127.0.0.1:{served.port}/share/"],
        env=os.environ | {"SMB3SERVER_PASSWORD": "pw"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def done(command: subprocess.Popen[str]) -> None:
    output = command.communicate(timeout=60)[0]
    assert command.returncode == 0, output


def torn(share: Path, *versions: dict[str, bytes]) -> list[str]:
    """Name the files that are neither of one version nor of another."""
    return [
        name
        for name in versions[0]
        if not (share / name).is_file() or (share / name).read_bytes() not in [version[name] for version in versions]
    ]


def test_files_that_are_put_are_whole(disk: Disk, tmp_path: Path) -> None:
    """One version replaces another, and power is lost meanwhile: each file is the one or the other."""
    old, new = trees(tmp_path / "old", 1), trees(tmp_path / "new", 2)
    photographs = [tmp_path / f"photograph{number}" for number in range(PHOTOGRAPHS)]
    with disk.mounted() as place, serving(place) as served:
        done(put(served, tmp_path / "old"))
        os.sync()
        replacing = put(served, tmp_path / "new")
        for number, photograph in enumerate(photographs[:-1]):
            enough = (number + 1) * FILES // PHOTOGRAPHS
            while sum(bool((served.share / name).read_bytes() == new[name]) for name in new) < enough:
                assert replacing.poll() is None, replacing.communicate()[0]
                time.sleep(0.01)
            disk.photograph(photograph, served.process)
        done(replacing)
        disk.photograph(photographs[-1], served.process)
    for photograph in photographs:
        with disk.after_loss(photograph) as place, serving(place) as served:
            assert torn(served.share, old, new) == [], photograph.name


def test_a_careless_client_is_found_out(disk: Disk, tmp_path: Path) -> None:
    """The judge sees what happens without a flush before the new name: the file is torn."""
    old, new = trees(tmp_path / "old", 1), trees(tmp_path / "new", 2)

    async def replace(port: int) -> None:
        async with connect(f"smb://u@127.0.0.1:{port}/share", password="pw") as share:
            for name, data in new.items():
                async with await share.open("part", "w+b") as file:
                    await file.write(data)
                await share.replace("part", name)
            # This has the journal written, with the names so far.
            async with await share.open("other", "w+b") as file:
                await file.write(b"x")
                await file.flush()

    with disk.mounted() as place, serving(place) as served:
        done(put(served, tmp_path / "old"))
        os.sync()
        asyncio.run(replace(served.port))
        disk.photograph(tmp_path / "photograph", served.process)
    with disk.after_loss(tmp_path / "photograph") as place:
        assert torn(place / "share", old, new)


def test_what_is_flushed_or_written_through_stays(disk: Disk, tmp_path: Path) -> None:
    working = workers("tcp")
    photographs: list[tuple[Path, dict[str, bytes]]] = []

    async def work(served: Served) -> None:
        async def one(worker: Worker, tree: Tree) -> None:
            await worker.run(tree, lambda: None)

        trees = [await connected(await open_tcp("127.0.0.1", served.port)) for _ in working]
        tasks = [asyncio.ensure_future(one(worker, tree)) for worker, tree in zip(working, trees, strict=True)]
        for number in range(PHOTOGRAPHS):
            while min(worker.count for worker in working) < 10 * (number + 1):
                await asyncio.sleep(0.01)
                assert not any(task.done() for task in tasks)
            photographs.append(
                (tmp_path / f"photograph{number}", {worker.name: bytes(worker.safe) for worker in working})
            )
            await asyncio.to_thread(disk.photograph, photographs[-1][0], served.process)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for tree in trees:
            tree.client.transport.abort()

    async def compare(port: int, safe: dict[str, bytes]) -> None:
        tree = await connected(await open_tcp("127.0.0.1", port))
        for name, data in safe.items():
            assert (await content(tree, name))[: len(data)] == data, name
        tree.client.transport.close()

    with disk.mounted() as place, serving(place) as served:
        asyncio.run(work(served))
    for photograph, safe in photographs:
        with disk.after_loss(photograph) as place, serving(place) as served:
            asyncio.run(compare(served.port, safe))


def test_persistent_handles_and_what_they_wrote_stay(disk: Disk, tmp_path: Path) -> None:
    """What a continuously available share has acknowledged holds when the server's machine is back."""
    photograph, data = tmp_path / "photograph", os.urandom(100_000)

    async def before(server: ServerProcess) -> list[PersistentFile]:
        client = server.client()
        files = [await client.open(f"kept{number}") for number in range(8)]
        for file in files:
            await file.write(0, data)
            await file.lock(0, 100)
        assert server.process is not None
        await asyncio.to_thread(disk.photograph, photograph, server.process)
        client.drop()
        return files

    async def after(server: ServerProcess, files: list[PersistentFile]) -> None:
        other = server.client()
        for file in files:
            assert await file.read(0, len(data)) == data
            with pytest.raises(ServerError) as refused:
                await (await other.open(file.name)).lock(50, 10)
            assert refused.value.status == NtStatus.LOCK_NOT_GRANTED
            await file.close()
        await other.close()
        await files[0].owner.close()

    async def body() -> None:
        async with asyncio.timeout(60):
            with disk.mounted() as place:
                server = ServerProcess(place)
                # The administrator's files are old.
                os.sync()
                server.start()
                try:
                    files = await before(server)
                finally:
                    server.kill()
            with disk.after_loss(photograph):
                server.start()
                try:
                    await after(server, files)
                finally:
                    server.kill()

    asyncio.run(body())
