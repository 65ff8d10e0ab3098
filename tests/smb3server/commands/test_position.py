"""CurrentByteOffset of an open (MS-FSCC 2.4.39)."""

from __future__ import annotations

import asyncio
import struct

import pytest

from smb3server.commands import read as read_command
from smb3server.wire.header import HEADER_SIZE, Command
from smb3server.wire.status import NtStatus
from tests.lab.wire_client import Client, running

POSITION = 14
"""FilePositionInformation."""


async def position(client: Client, file_id: bytes) -> int:
    body = struct.pack("<HBBIHHIII16s", 41, 1, POSITION, 8, 0, 0, 0, 0, 0, file_id) + b"\0"
    reply = await client.call(Command.QUERY_INFO, body)
    assert reply.status == 0
    return int.from_bytes(reply.body[8:16], "little")


async def read(client: Client, file_id: bytes, offset: int, length: int) -> int:
    body = struct.pack("<HBBIQ16sIIIHH", 49, 80, 0, length, offset, file_id, 0, 0, 0, 0, 0) + b"\0"
    return (await client.call(Command.READ, body)).status


@pytest.mark.parametrize("cached", [True, False])
def test_reads_writes_and_the_client_move_it(monkeypatch: pytest.MonkeyPatch, cached: bool) -> None:
    """However a READ gets its data."""
    if not cached:
        monkeypatch.setattr(read_command, "_read_cached", lambda found, view, offset: -1)

    async def test() -> None:
        async with running() as harness:
            client = await harness.connect()
            await client.login()
            file_id = (await client.open("f")).body[64:80]
            assert await position(client, file_id) == 0
            data = bytes(100)
            body = struct.pack("<HHIQ16sIIHHI", 49, HEADER_SIZE + 48, 100, 20, file_id, 0, 0, 0, 0, 0) + data
            assert (await client.call(Command.WRITE, body)).status == 0
            assert await position(client, file_id) == 120
            assert await read(client, file_id, 10, 30) == 0
            assert await position(client, file_id) == 40
            assert await read(client, file_id, 110, 30) == 0
            assert await position(client, file_id) == 120
            # No data, no move.
            assert await read(client, file_id, 500, 30) == NtStatus.END_OF_FILE
            assert await position(client, file_id) == 120
            setting = struct.pack("<HBBIHHI16s", 33, 1, POSITION, 8, 96, 0, 0, file_id) + struct.pack("<q", 7)
            assert (await client.call(Command.SET_INFO, setting)).status == 0
            assert await position(client, file_id) == 7

    asyncio.run(test())
