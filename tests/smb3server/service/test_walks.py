"""How many functions one READ passes through, and how often it changes the file, from bytes in to bytes out.

A reader follows a request the same way. The bounds keep its walk short; the walk is printed where it is longer.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from smb3server.client.protocol import Client, open_rdma, open_tcp
from smb3server.client.protocol.tree import READ_WRITE
from smbdirect.message_transport import MessageTransport
from smbdirect.providers.iwarp import IwarpProvider
from tests.lab.services import configured, port_of, running
from tests.lab.walks import Walk

WARM_UP = 50
"""READs before the first one that counts: buffers are made and registered, credits have reached their level."""
MEASURED = 20
"""READs of which the shortest walk counts: now and then one also has to grant credits or to serve a timer."""


def read_in_thread(
    connect: Callable[[], Awaitable[MessageTransport]],
    size: int,
    turn: Callable[[], None],
    failures: list[BaseException],
) -> None:
    """Be a client in a thread and a loop of its own, so that only the server's walk is seen. ``turn`` is called before
    each READ of ``size`` bytes that counts and after the last."""

    async def client_main() -> None:
        client = await Client.connect(await connect())
        session = await client.log_on("u", "pw", sign=False)
        tree = await session.tree_connect("share")
        file = await tree.create("file", READ_WRITE)
        rdma = client.transport.rdma
        region = None if rdma is None else rdma.register(memoryview(bytearray(size)), writable=True)
        for number in range(WARM_UP + MEASURED + 1):
            if number >= WARM_UP:
                # The server has finished with the READ before: acknowledgments and completions have come.
                await asyncio.sleep(0.01)
                turn()
            if region is None:
                assert len(await tree.read(file, 0, size)) == size
            else:
                assert await tree.read_into(file, 0, region.descriptors, size, invalidate=False) == size
        await client.close()

    try:
        asyncio.run(client_main())
    except BaseException as error:
        failures.append(error)
    finally:
        turn()


async def shortest_walk(tmp_path: Path, fabric: str, size: int) -> Walk:
    """Serve a client's READs of ``size`` bytes and return the shortest walk of one."""
    config = configured(tmp_path, "--listen", "127.0.0.1", "--rdma=iwarp")
    config.settings.watchdog = 0.0
    async with running(config) as service:
        # As in production: what other tests measure would lengthen the walk.
        service.server.measuring.watchdog = None
        (tmp_path / "share" / "file").write_bytes(os.urandom(size))
        port = port_of(service, fabric, "127.0.0.1")
        loop = asyncio.get_running_loop()
        walks: list[Walk] = []
        waiting: asyncio.Queue[threading.Event] = asyncio.Queue()
        failures: list[BaseException] = []

        async def connect() -> MessageTransport:
            if fabric == "tcp":
                return await open_tcp("127.0.0.1", port)
            return await open_rdma(IwarpProvider(), "127.0.0.1", port)

        def turn() -> None:
            begun = threading.Event()
            loop.call_soon_threadsafe(waiting.put_nowait, begun)
            begun.wait()

        thread = threading.Thread(target=read_in_thread, args=(connect, size, turn, failures))
        thread.start()
        try:
            for _ in range(MEASURED + 2):
                begun = await waiting.get()
                if walks:
                    walks[-1].stop()
                walks.append(Walk())
                walks[-1].start()
                begun.set()
                if failures:
                    break
        finally:
            sys.setprofile(None)
            while thread.is_alive():
                while not waiting.empty():
                    waiting.get_nowait().set()
                await asyncio.sleep(0.01)
        assert not failures, failures
        return min(walks[:MEASURED], key=lambda walk: walk.calls)


@pytest.mark.parametrize(
    ("fabric", "size", "through", "calls", "changes"),
    [
        ("tcp", 131072, "FastLane.take", 27, 20),
        ("iwarp", 65536, "FastLane.take", 74, 46),
        ("tcp", 4096, "FastLane.take", 24, 16),
        ("iwarp", 4096, "FastLane.take", 62, 36),
    ],
)
def test_a_read_takes_a_short_walk(
    tmp_path: Path, fabric: str, size: int, through: str, calls: int, changes: int
) -> None:
    walk = asyncio.run(shortest_walk(tmp_path, fabric, size))
    assert any(step.function == through for step in walk.steps), str(walk)
    assert walk.calls <= calls, str(walk)
    assert walk.changes <= changes, str(walk)
