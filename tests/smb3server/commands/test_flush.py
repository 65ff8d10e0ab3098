"""FLUSH (MS-SMB2 3.3.5.11) beside what else happens to the open."""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from smb3server.backends.local.backend import LocalBackend
from smb3server.state.share import Share
from smb3server.wire.header import Command
from tests.lab.wire_client import running


def test_close_behind_a_flush_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that is synced is the one that was named, and it is open until then."""
    synced: list[tuple[int, int]] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.append((found.st_dev, found.st_ino))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(os, "fdatasync", watched)
    busy = threading.Event()

    async def test() -> None:
        async with running() as harness:
            harness.server.add_share(Share("local", backend=LocalBackend(tmp_path)))
            loop = asyncio.get_running_loop()
            loop.set_default_executor(ThreadPoolExecutor(1))
            client = await harness.connect()
            await client.login(share="local")
            file_id = (await client.open("f")).body[64:80]
            occupied = loop.run_in_executor(None, busy.wait, 20)
            named = struct.pack("<HHI16s", 24, 0, 0, file_id)
            await client.post(Command.FLUSH, named)
            await client.post(Command.CLOSE, named)
            statuses = {}
            while Command.CLOSE not in statuses:
                reply = await client.receive()
                statuses[reply.header.command] = reply.status
            busy.set()
            while Command.FLUSH not in statuses or statuses[Command.FLUSH] == 0x103:
                reply = await client.receive()
                statuses[reply.header.command] = reply.status
            await occupied
            assert statuses == {Command.FLUSH: 0, Command.CLOSE: 0}
            found = (tmp_path / "f").stat()
            assert (found.st_dev, found.st_ino) in synced
            entries = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
            assert str(tmp_path / "f") not in entries

    try:
        asyncio.run(test())
    finally:
        busy.set()
