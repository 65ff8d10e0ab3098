"""Writes whose data comes by RDMA, against acknowledgments that overtake it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from smb3server.client.protocol.tree import READ_WRITE
from smb3server.files.caching import Caching
from smb3server.wire import oplock_break
from smb3server.wire.create import CreateDisposition
from tests.lab.rdma_writes import ask_write_by_rdma
from tests.lab.recorder import Recorder
from tests.lab.scene import Scene, log_on, play

SIZE = 500_000


def test_after_arrivals() -> None:
    breaks = Recorder()
    caching = Caching(breaks)
    called: list[str] = []
    assert not caching.after_arrivals(lambda: called.append("idle"))
    caching.arrives(1)
    caching.arrives(2)
    assert caching.after_arrivals(lambda: called.append("both"))
    caching.arrives(3)
    assert caching.after_arrivals(lambda: called.append("three"))
    caching.arrived(1)
    assert called == []
    caching.arrived(2)
    assert called == []
    breaks.turn()
    assert called == ["both"]
    caching.arrived(3)
    breaks.turn()
    assert called == ["both", "three"]
    assert not caching.after_arrivals(lambda: called.append("idle"))


def test_acknowledgment_waits_for_data(tmp_path: Path) -> None:
    """MS-SMB2 3.3.5.22.1: who waited for the break finds what was written before the acknowledgment."""
    data = os.urandom(SIZE)

    async def scene(acted: Scene) -> None:
        broken: asyncio.Queue[oplock_break.OplockBreak] = asyncio.Queue()
        holder_session = await log_on(await acted.rdma())
        holder = await holder_session.tree_connect("data")
        other = await (await log_on(await acted.tcp())).tree_connect("data")
        holder.client.on_break = broken.put_nowait  # type: ignore[assignment]
        file = await holder.create("f", READ_WRITE, CreateDisposition.CREATE, oplock=oplock_break.OplockLevel.BATCH)
        assert file.response.oplock_level == oplock_break.OplockLevel.BATCH
        opening = asyncio.create_task(other.create("f"))
        record = await broken.get()
        written = await ask_write_by_rdma(holder, file, data)
        await holder.acknowledge_oplock_break(record)
        found = await other.read(await opening, 0, SIZE)
        assert found == data
        assert await written == SIZE

    play(tmp_path, scene)
