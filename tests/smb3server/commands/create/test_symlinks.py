"""Symbolic links that clients made: the server stops at them and says where they lead (MS-SMB2 2.2.2.2.1)."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from smb3server.backends.local.backend import LocalBackend
from smb3server.backends.local.reparse import symlink_buffer
from smb3server.state.share import Share
from smb3server.wire.create import CreateOptions
from smb3server.wire.header import Command
from smb3server.wire.status import NtStatus
from tests.lab.file_requests import ALL, close, opened, request
from tests.lab.wire_client import Client, Reply, compound, create_body, ioctl_body, related, running

REPARSE, DIRECTORY = int(CreateOptions.OPEN_REPARSE_POINT), int(CreateOptions.DIRECTORY_FILE)
SET_REPARSE_POINT = 0x000900A4
TARGET = "..\\real"


async def make_link(client: Client, name: str, options: int) -> None:
    _, file, _ = await opened(client, name, desired_access=ALL, create_options=options)
    body = ioctl_body(SET_REPARSE_POINT, symlink_buffer("../real"), struct.pack("<QQ", *file))
    assert (await client.call(Command.IOCTL, body)).status == 0
    await close(client, file)


def check(reply: Reply, dialect: int, unparsed: str) -> None:
    assert reply.status == NtStatus.STOPPED_ON_SYMLINK
    size, contexts, _, count = struct.unpack_from("<HBBI", reply.body)
    data = reply.body[8 : 8 + count]
    assert size == 9
    if dialect == 0x0311:
        assert contexts == 1
        length, identifier = struct.unpack_from("<II", data)
        data = data[8:]
        assert (length, identifier) == (len(data), 0)
    else:
        assert contexts == 0
    fields = struct.unpack_from("<IIIHHHHHHI", data)
    assert fields[0] == len(data) - 4
    assert fields[1:3] == (0x4C4D5953, 0xA000000C)
    assert fields[3] == len(data) - 16
    assert fields[4] == len(unparsed.encode("utf-16-le"))
    offset, length, flags = fields[5], fields[6], fields[9]
    assert data[28 + offset : 28 + offset + length].decode("utf-16-le") == TARGET
    assert flags == 1


@pytest.mark.parametrize("dialect", [0x0300, 0x0311])
@pytest.mark.parametrize("local", [False, True])
def test_stops_at_links(dialect: int, local: bool, tmp_path: Path) -> None:
    async def body() -> None:
        async with running() as harness:
            backend = LocalBackend(tmp_path)
            harness.server.add_share(Share("disk", backend=backend))
            client = await harness.connect()
            await client.login(dialect, share="disk" if local else "share")
            await make_link(client, "file", 0)
            await make_link(client, "dir", DIRECTORY)

            async def create(name: str, **fields: int) -> Reply:
                return await client.call(Command.CREATE, request(name, **fields))

            check(await create("file", create_disposition=1), dialect, "")
            for name in ("file", "dir"):
                check(await create(name, create_disposition=2), dialect, "")
                collision = await create(name, create_disposition=2, create_options=REPARSE)
                assert collision.status == NtStatus.OBJECT_NAME_COLLISION
            check(await create("dir", create_disposition=1), dialect, "")
            check(await create("dir\\below", create_disposition=1), dialect, "\\below")
            check(await create("dir\\below"), dialect, "\\below")
            check(await create("dir\\a\\b", create_disposition=1), dialect, "\\a\\b")
            check(await create("dir\\a\\b"), dialect, "\\a\\b")
            assert (await create("file", create_disposition=1, create_options=REPARSE)).status == 0
            assert (await create("none\\a", create_disposition=1)).status == NtStatus.OBJECT_PATH_NOT_FOUND
            for entry in list(harness.server.opens.by_id.values()):
                harness.server.opens.close(entry)
            backend.close()

    asyncio.run(body())


def test_commands_related_to_a_create_that_stopped_at_a_link_stop_there(tmp_path: Path) -> None:
    """3.3.5.2.7.2: they fail as the CREATE did, which is not what an error of no FileId says."""

    async def body() -> None:
        async with running() as harness:
            client = await harness.connect()
            await client.login()
            await make_link(client, "link", REPARSE)
            nothing = b"\xff" * 16
            query = struct.pack("<HBBIHHIII16s", 41, 1, 5, 1024, 0, 0, 0, 0, 0, nothing)
            await client.frame(
                compound(
                    client,
                    client.build(Command.CREATE, create_body("link", 1)),
                    related(client, Command.QUERY_INFO, query),
                    related(client, Command.CLOSE, struct.pack("<HHI16s", 24, 0, 0, nothing)),
                )
            )
            replies = await client.receive_compound()
            assert [reply.status for reply in replies] == [NtStatus.STOPPED_ON_SYMLINK] * 3

    asyncio.run(body())


@pytest.mark.parametrize(("dialect", "flags"), [(0x0210, 0), (0x0300, 1), (0x0311, 1)])
def test_create_says_whether_it_opened_a_reparse_point(dialect: int, flags: int) -> None:
    """2.2.14: Flags, from dialect 3.0 on."""

    async def body() -> None:
        async with running() as harness:
            client = await harness.connect()
            await client.login(dialect)
            await make_link(client, "link", REPARSE)
            assert (await client.open("link", 1, options=REPARSE)).body[3] == flags
            assert (await client.open("file")).body[3] == 0

    asyncio.run(body())
