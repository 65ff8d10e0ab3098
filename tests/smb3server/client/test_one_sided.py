"""Files that the server lends: read and written without requests, and by requests as soon as that ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from smb3server import client
from smb3server.client import Share
from smb3server.service import Service, User
from smb3server.service import Share as ServedShare
from tests.lab.reports import collect
from tools.support import own_user

MIB = 1 << 20
DATA = os.urandom(3 * MIB + 17)


@dataclass
class Scene:
    service: Service
    folder: Path
    share: Share
    port: int

    async def another(self, **options: Any) -> Share:
        return await connect(self.service, self.port, **options)

    @property
    def lines(self) -> int:
        return len(self.service.server.one_sided.lines)


async def connect(service: Service, port: int, rdma: str = "iwarp", **options: Any) -> Share:
    options = {"password": "pw", "rdma": rdma, "one_sided": "auto", "patience": 10.0} | options
    port = port if rdma != "off" else service.address[1]
    found = await client.connect(f"smb://u@127.0.0.1:{service.address[1]}/data", rdma_port=port, **options)
    assert isinstance(found, Share)
    return found


@asynccontextmanager
async def lending(tmp_path: Path, fabric: str = "iwarp", one_sided: bool = True) -> AsyncIterator[Scene]:
    folder = tmp_path / "share"
    folder.mkdir()
    (folder / "file").write_bytes(DATA)
    shares = [ServedShare("data", str(folder), force_user=own_user.NAME, one_sided=one_sided)]
    options: dict[str, Any] = {"listen": ["127.0.0.1"], "port": 0, "rdma": fabric, "rdma_port": 0}
    async with (
        asyncio.timeout(60),
        Service(shares=shares, users=[User("u", password="pw")], **options) as service,
    ):
        port = service.fabrics.listeners[0][1].address[1]
        async with await connect(service, port) as share:
            yield Scene(service, folder, share, port)


def run(tmp_path: Path, act: Callable[[Scene], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with lending(tmp_path, **options) as scene:
            await act(scene)

    asyncio.run(main())


def test_data_moves_without_requests(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        share = scene.share
        assert share.why_not_one_sided == "no data has moved yet"
        async with await share.open("file", "r+b") as file:
            assert await file.read() == DATA
            assert await file.read_at(5, 4096) == DATA[5:4101]
            assert await file.write_at(100, b"x" * MIB) == MIB
            (session,) = collect(scene.service.server)["sessions"]
            assert session["one_sided"]["files"] == 1
            assert session["one_sided"]["bytes_written"] == MIB
            (entry,) = session["opens"]
            assert entry["bytes_read"] == entry["bytes_written"] == 0
            # A write that is done is in the server's file.
            assert (scene.folder / "file").read_bytes() == DATA[:100] + b"x" * MIB + DATA[100 + MIB :]
            await file.flush()
        assert share.transport.endswith("one-sided") and not share.why_not_one_sided
        assert share.moved == {"one-sided": (MIB, len(DATA) + 4096)}
        assert await share.read_bytes("file") == (scene.folder / "file").read_bytes()

    run(tmp_path, act)


def test_a_file_that_grows(tmp_path: Path) -> None:
    """What is behind the end is written by WRITE; a new size is lent anew."""

    async def act(scene: Scene) -> None:
        async with await scene.share.open("file", "r+b") as file:
            await file.write_at(len(DATA) - 2, b"more")
            assert await file.read_at(len(DATA) - 2, 10) == b"more"
            await file.truncate(2 * MIB)
            assert await file.read_at(MIB, 3 * MIB) == DATA[MIB : 2 * MIB]
            await file.truncate(len(DATA))
            await file.write_at(3 * MIB, b"end")
        assert scene.share.moved["one-sided"][0] == 3
        expected = DATA[: 2 * MIB] + bytes(MIB) + b"end"
        assert (scene.folder / "file").read_bytes() == expected.ljust(len(DATA), b"\0")

    run(tmp_path, act)


@pytest.mark.parametrize(
    ("options", "served", "why"),
    [
        ({"one_sided": "off"}, True, "not asked for"),
        ({"rdma": "off"}, True, "does not travel by RDMA"),
        ({}, False, "lends nothing"),
        ({"encrypt": True}, True, "lends nothing"),
    ],
)
def test_who_does_without(tmp_path: Path, options: dict[str, Any], served: bool, why: str) -> None:
    async def act(scene: Scene) -> None:
        async with await scene.another(**options) as share, await share.open("file", "r+b") as file:
            assert await file.read() == DATA
            await file.write_at(0, b"new")
            assert why in share.why_not_one_sided
            assert "one-sided" not in share.moved and "one-sided" not in share.transport
        assert (scene.folder / "file").read_bytes() == b"new" + DATA[3:]

    run(tmp_path, act, one_sided=served)


def test_another_client_comes(tmp_path: Path) -> None:
    """Its open ends the loan of the first. Both see each other's data at once."""

    async def act(scene: Scene) -> None:
        async with await scene.another(one_sided="off") as other, await scene.share.open("file", "r+b") as file:
            await file.write_at(0, b"first")
            async with await other.open("file", "r+b") as second:
                assert await second.read_at(0, 5) == b"first"
                await second.write_at(0, b"other")
                assert await file.read_at(0, 5) == b"other"
                await file.write_at(0, b"again")
                assert await second.read_at(0, 5) == b"again"
        assert scene.share.moved["one-sided"] == (5, 0)
        assert scene.share.moved["messages"] == (5, 5)

    run(tmp_path, act)


def test_a_file_that_others_have_open_is_lent_for_reading(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        async with await scene.another(one_sided="off") as other, await other.open("file", "rb") as seen:
            async with await scene.share.open("file", "r+b") as file:
                assert await file.read_at(0, 100) == DATA[:100]
                await file.write_at(0, b"written")
                assert await file.read_at(0, 7) == await seen.read_at(0, 7) == b"written"
            assert scene.share.moved == {"one-sided": (0, 107), "messages": (7, 0)}

    run(tmp_path, act)


def test_lines_that_are_cut_under_load(tmp_path: Path) -> None:
    """Data goes on by requests or over another line, and every write that was done is there."""

    async def act(scene: Scene) -> None:
        async with await scene.share.open("file", "r+b") as file:
            expected = bytearray(DATA)

            async def work(slot: int) -> None:
                for turn in range(40):
                    offset = (slot * 40 + turn) * 8192
                    data = bytes([turn + 1]) * 8192
                    await file.write_at(offset, data)
                    expected[offset : offset + 8192] = data
                    assert await file.read_at(offset, 8192) == data

            working = asyncio.gather(*(work(slot) for slot in range(8)))
            cuts = 0
            while not working.done():
                for line in list(scene.service.server.one_sided.lines.values()):
                    line.connection.abort("cut by the test")
                    cuts += 1
                await asyncio.sleep(0.005)
            await working
            assert cuts > 1
            assert await file.read_at(0, len(DATA)) == expected
        assert (scene.folder / "file").read_bytes() == expected

    run(tmp_path, act)


def test_connections_that_are_cut(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        async with await scene.share.open("file", "r+b") as file:
            await file.write_at(0, b"before")
            for connection in list(scene.service.server.connection_list):
                connection.transport.abort("cut by the test")
            await file.write_at(6, b" and after")
            assert await file.read_at(0, 16) == b"before and after"
            assert scene.lines == 1

    run(tmp_path, act)


def test_a_file_that_the_host_cuts_off(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        async with await scene.share.open("file", "r+b") as file:
            assert await file.read_at(MIB, 10) == DATA[MIB : MIB + 10]
            os.truncate(scene.folder / "file", MIB + 5)
            assert await file.read_at(MIB, 10) == DATA[MIB : MIB + 5]
            assert await file.read_at(2 * MIB, 10) == b""

    run(tmp_path, act)


def test_a_cancelled_write_does_not_come_later(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        async with await scene.share.open("file", "r+b") as file:
            await file.write_at(0, bytes(10))
            for number in range(1, 30):
                task = asyncio.create_task(file.write_at(0, bytes([number]) * MIB))
                for _ in range(number):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await file.write_at(0, b"\xff" * MIB)
                assert await file.read_at(0, MIB) == b"\xff" * MIB
                assert (scene.folder / "file").read_bytes()[:MIB] == b"\xff" * MIB

    run(tmp_path, act)


def test_a_write_that_got_stuck_comes_never(tmp_path: Path) -> None:
    """The server has its bytes, and has not looked at them, when the client goes another way: they are too late."""

    async def act(scene: Scene) -> None:
        async with await scene.share.open("file", "r+b") as file:
            await file.write_at(0, b"before")
            (line,) = scene.service.server.one_sided.lines.values()
            endpoint: Any = line.connection._endpoint
            loop, sock = asyncio.get_running_loop(), endpoint._sock
            loop.remove_reader(sock)
            stuck = asyncio.create_task(file.write_at(0, b"stuck!"))
            await asyncio.sleep(0.05)
            stuck.cancel()
            await asyncio.gather(stuck, return_exceptions=True)
            # The client's end of the line is gone. The server asks for what has arrived only after this.
            await file.write_at(0, b"after!")
            if sock.fileno() >= 0:
                endpoint._readable()
            assert await file.read_at(0, 6) == b"after!"
            assert (scene.folder / "file").read_bytes()[:6] == b"after!"

    run(tmp_path, act)
