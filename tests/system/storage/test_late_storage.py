"""A share on storage that answers late, or not at all, served beside a fast one.

smbclient is the client of both, a FUSE file system (``tools.support.late_files``) is the storage. Each of its requests
is held until the ECHO of another client was answered: an event loop that waited for it would answer none."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from smb3server.client.protocol.session import Client
from smb3server.client.protocol.transports import open_tcp
from smb3server.service.service import Service
from tests.lab.serving import serving
from tools.support import late_files
from tools.support.late_files import LateFiles

pytestmark = pytest.mark.skipif(shutil.which("smbclient") is None, reason="needs smbclient")

WALK = """mkdir folder; cd folder; put {local} file; ls; allinfo file; get file {back}; setmode file +r;
setmode file -r; rename file moved; put {local} moved; ls; del moved; cd ..; rmdir folder; ls"""
"""Commands of smbclient with all kinds of requests for files."""


@contextlib.contextmanager
def mounted(root: Path) -> Iterator[LateFiles]:
    try:
        with late_files.mounted(root) as late:
            yield late
    except late_files.CannotMountError as error:
        pytest.skip(str(error))


@contextlib.asynccontextmanager
async def both_shares(tmp_path: Path, late: LateFiles) -> AsyncIterator[Service]:
    fast = tmp_path / "fast"
    fast.mkdir(mode=0o777)
    fast.chmod(0o777)
    (tmp_path / "below").chmod(0o777)
    text = f"""
[[share]]
name = "late"
path = "{late.folder}"
guest = true

[[share]]
name = "fast"
path = "{fast}"
guest = true
"""
    async with serving(tmp_path, text, "--guest") as service:
        yield service


async def smbclient(service: Service, share: str, commands: str) -> asyncio.subprocess.Process:
    port = str(service.listeners[0].address[1])
    command = ["smbclient", f"//127.0.0.1/{share}", "-p", port, "-N", "-t", "300", "-c", commands.replace("\n", " ")]
    return await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


async def said(service: Service, share: str, commands: str) -> str:
    """Return what smbclient prints, after the commands have succeeded."""
    process = await smbclient(service, share, commands)
    output, _ = await process.communicate()
    assert process.returncode == 0, output
    assert b"NT_STATUS" not in output, output
    return str(output, "utf-8", "replace")


@contextlib.asynccontextmanager
async def another_client(service: Service) -> AsyncIterator[Client]:
    client = await Client.connect(await open_tcp("127.0.0.1", service.listeners[0].address[1]))
    try:
        await client.log_on("guest", "", sign=False, guest=True)
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize("kind", ["late", "fast"])
def test_only_network_and_fuse_storage_is_slow_by_itself(tmp_path: Path, kind: str) -> None:
    async def main(late: LateFiles) -> None:
        async with both_shares(tmp_path, late) as service:
            assert (service.server.share_list[kind].queue is not None) is (kind == "late")

    with mounted(tmp_path) as late:
        asyncio.run(main(late))


def test_each_wait_for_storage_leaves_the_event_loop_to_others(tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(b"x" * 100_000)

    async def main(late: LateFiles) -> None:
        async with both_shares(tmp_path, late) as service, another_client(service) as other:
            async with late.letting_through(other.echo):
                await said(service, "late", WALK.format(local=local, back=tmp_path / "back"))
            assert (tmp_path / "back").read_bytes() == local.read_bytes()
            assert not list((tmp_path / "below").glob("[!.]*"))
            assert late.late == []
            assert late.requests > 50

    with mounted(tmp_path) as late:
        asyncio.run(main(late))


def test_a_share_that_hangs_stops_no_other_and_loses_nothing(tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(b"y" * 50_000)

    async def main(late: LateFiles) -> None:
        async with both_shares(tmp_path, late) as service:
            queue = service.server.share_list["late"].queue
            assert queue is not None
            await said(service, "late", f"put {local} before")
            with late.hang():
                waiting = [
                    asyncio.create_task(said(service, "late", f"get before {tmp_path / 'got'}; put {local} during")),
                    asyncio.create_task(said(service, "late", "ls")),
                ]
                while not (queue.silent_for() > 0.5 and len(queue) > 1):
                    await asyncio.sleep(0.01)
                walk = WALK.format(local=local, back=tmp_path / "back")
                for _ in range(3):
                    await said(service, "fast", walk)
                # A client that gives up, and one that comes anew.
                leaving = await smbclient(service, "late", "ls")
                await asyncio.sleep(0.5)
                leaving.kill()
                await leaving.wait()
                await said(service, "fast", "ls")
                assert not any(task.done() for task in waiting)
                assert queue.silent_for() > 0.5
            await asyncio.gather(*waiting)
            assert (tmp_path / "got").read_bytes() == (tmp_path / "below" / "during").read_bytes() == local.read_bytes()
            await said(service, "late", "del before; del during; ls")

    with mounted(tmp_path) as late:
        asyncio.run(main(late))


def test_the_server_ends_while_storage_hangs(tmp_path: Path) -> None:
    async def main(late: LateFiles) -> None:
        async with both_shares(tmp_path, late) as service:
            queue = service.server.share_list["late"].queue
            assert queue is not None
            with late.hang():
                process = await smbclient(service, "late", "ls")
                while not queue.silent_for():
                    await asyncio.sleep(0.01)
                await asyncio.wait_for(service.stop(), 120)
                await process.wait()

    with mounted(tmp_path) as late:
        asyncio.run(main(late))
