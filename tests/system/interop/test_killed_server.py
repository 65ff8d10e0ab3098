"""Killed with SIGKILL, the server loses nothing that it had acknowledged as flushed or written through."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from smb3server.client.protocol import ServerError, Tree, open_rdma, open_tcp
from smbdirect.errors import ConnectionLost, ProtocolError
from smbdirect.message_transport import MessageTransport
from smbdirect.providers.make import make_provider
from tests.lab.command import Served, serve, stop
from tests.lab.stable_writes import RECORD, Worker, connected, content, workers

pytestmark = pytest.mark.interop
LOST = (ServerError, ConnectionLost, ProtocolError, OSError)


async def transport_to(served: Served, fabric: str) -> MessageTransport:
    if fabric == "tcp":
        return await open_tcp("127.0.0.1", served.port)
    return await open_rdma(make_provider(fabric), "127.0.0.1", rdma_port(served))


def rdma_port(served: Served) -> int:
    line = served.ready
    found = re.search(r"iwarp 127\.0\.0\.1:(\d+)", line)
    assert found, line
    return int(found[1])


async def work_until_killed(served: Served, fabric: str, working: list[Worker]) -> None:
    """All workers at once, on connections of their own; killed once each has done enough, in the middle of more."""
    trees = [await connected(await transport_to(served, fabric)) for _ in working]
    left = len(working)

    def enough() -> None:
        nonlocal left
        left -= 1
        if not left:
            served.process.kill()

    async def one(worker: Worker, tree: Tree) -> None:
        with contextlib.suppress(*LOST):
            await worker.run(tree, enough)

    async with asyncio.timeout(60):
        await asyncio.gather(*map(one, working, trees))
    served.process.wait()
    for tree in trees:
        tree.client.transport.abort()
    assert left == 0, [(worker.name, worker.count) for worker in working]


@pytest.mark.parametrize("fabric", ["tcp", "iwarp"])
def test_nothing_flushed_is_lost(tmp_path: Path, fabric: str) -> None:
    rdma = () if fabric == "tcp" else ("--rdma", fabric, "--rdma-port", "0")
    options = ("--state", str(tmp_path / "state"), *rdma)
    served = serve(tmp_path, *options)
    working = workers(fabric)
    try:
        asyncio.run(work_until_killed(served, fabric, working))
    finally:
        kill(served)
    served = serve(tmp_path, *options)

    async def compare() -> None:
        tree = await connected(await open_tcp("127.0.0.1", served.port))
        for worker in working:
            found = await content(tree, worker.name)
            assert found[: len(worker.safe)] == worker.safe, (worker.name, len(found), len(worker.safe))
            # At most the one write that was under way follows.
            assert len(found) <= len(worker.safe) + RECORD
        tree.client.transport.close()

    try:
        asyncio.run(compare())
    finally:
        assert stop(served) == 0


def kill(served: Served) -> None:
    """SIGKILL, and nothing left of it."""
    served.process.kill()
    served.process.wait()
    if served.process.stdout is not None:
        served.process.stdout.close()


@pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed")
def test_what_smbclient_put_is_there_after_a_kill(tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(3_000_000))

    def smbclient(commands: str) -> None:
        command = ["smbclient", "//127.0.0.1/share", "-p", str(served.port), "-U", "u%pw", "-c", commands]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0, result.stdout + result.stderr

    served = serve(tmp_path, "--state", str(tmp_path / "state"))
    try:
        smbclient(f"mkdir d; put {source} d\\one; put {source} two; rename two d\\three; setmode d\\one +h")
    finally:
        kill(served)
    served = serve(tmp_path, "--state", str(tmp_path / "state"))
    try:
        for name in ("one", "three"):
            smbclient(f"get d\\{name} {back}")
            assert back.read_bytes() == source.read_bytes()
    finally:
        assert stop(served) == 0
