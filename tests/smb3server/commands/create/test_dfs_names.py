"""Names that begin with server and share: SMB2_FLAGS_DFS_OPERATIONS (MS-SMB2 2.2.13, 3.3.5.9)."""

from __future__ import annotations

import asyncio
import struct

import pytest

from smb3server.state.share import ShareFlags
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command, HeaderFlags
from smb3server.wire.status import NtStatus
from tests.lab.file_requests import ALL, opened, request
from tests.lab.wire_client import create_body, running

DFS = int(HeaderFlags.DFS_OPERATIONS)
OPEN = 1


@pytest.mark.parametrize(
    ("flags", "in_dfs", "name", "status"),
    [
        (DFS, True, "any-server\\SHARE\\folder\\file", 0),
        (DFS, True, "any-server\\share", 0),
        (DFS, True, "any-server\\share\\", 0),
        (DFS, True, "any-server", 0),
        (DFS, True, "\\\\any-server\\share\\folder\\file", 0),
        (DFS, True, "", NtStatus.INVALID_PARAMETER),
        (DFS, True, "any-server\\other\\folder\\file", NtStatus.PATH_NOT_COVERED),
        (DFS, True, "folder\\file", NtStatus.PATH_NOT_COVERED),
        (0, True, "folder\\file", 0),
        (0, True, "any-server\\share\\folder\\file", NtStatus.OBJECT_PATH_NOT_FOUND),
        (DFS, False, "folder\\file", 0),
        (DFS, False, "any-server\\share\\folder\\file", NtStatus.OBJECT_PATH_NOT_FOUND),
    ],
)
def test_a_name_to_open(flags: int, in_dfs: bool, name: str, status: int) -> None:
    async def main() -> None:
        async with running(flags=int(ShareFlags.DFS) if in_dfs else 0) as harness:
            client = await harness.connect()
            await client.login()
            await opened(client, "folder", create_options=1)
            await opened(client, "folder\\file")
            reply = await client.call(Command.CREATE, create_body(name, OPEN, 0x80), flags=flags)
            assert reply.status == status

    asyncio.run(main())


@pytest.mark.parametrize("in_dfs", [True, False])
def test_a_new_name(in_dfs: bool) -> None:
    async def main() -> None:
        async with running(flags=int(ShareFlags.DFS) if in_dfs else 0) as harness:
            client = await harness.connect()
            await client.login()
            _, file, _ = await opened(client, "file", desired_access=ALL)

            async def rename(name: str) -> int:
                text = name.encode("utf-16-le")
                data = struct.pack("<B7xQI", 0, 0, len(text)) + text
                body = struct.pack("<HBBIHHI2Q", 33, 1, FileInfoClass.RENAME, len(data), 96, 0, 0, *file) + data
                return (await client.call(Command.SET_INFO, body, flags=DFS)).status

            if in_dfs:
                assert await rename("any-server\\other\\new") == NtStatus.PATH_NOT_COVERED
                assert await rename("any-server\\share\\new") == 0
            else:
                assert await rename("any-server\\share\\new") == NtStatus.OBJECT_PATH_NOT_FOUND
                assert await rename("new") == 0
            assert (await client.call(Command.CREATE, request("new", create_disposition=OPEN))).status == 0

    asyncio.run(main())
