"""The directory a rename puts a name into is opened to write (MS-FSA 2.1.5.15.12). See ``check_folder``."""

from __future__ import annotations

import struct

import pytest

from smb3server.wire.create import Access, CreateOptions
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.header import Command
from smb3server.wire.status import NtStatus
from tests.lab.file_requests import ALL, opened, run, second
from tests.lab.wire_client import Client, Harness

LIST, DELETE = int(Access.READ_DATA), int(Access.DELETE)


@pytest.mark.parametrize(
    ("access", "share", "status"),
    [
        (LIST, 7, 0),
        (LIST, 3, 0),
        (LIST, 5, NtStatus.SHARING_VIOLATION),
        (LIST | DELETE, 7, NtStatus.SHARING_VIOLATION),
    ],
)
def test_directory_that_a_client_has_open(access: int, share: int, status: int) -> None:
    async def body(harness: Harness, client: Client) -> None:
        directory = int(CreateOptions.DIRECTORY_FILE)
        await opened(client, "d", create_options=directory, desired_access=access, share_access=share)
        for name, renaming in (("own", client), ("other", await second(harness))):
            _, file, _ = await opened(renaming, name, desired_access=ALL)
            target = f"d\\{name}".encode("utf-16-le")
            data = struct.pack("<B7xQI", 1, 0, len(target)) + target
            request = struct.pack("<HBBIHHI2Q", 33, 1, FileInfoClass.RENAME, len(data), 96, 0, 0, *file) + data
            assert (await renaming.call(Command.SET_INFO, request)).status == status

    run(body)


@pytest.mark.parametrize("source", ["folder", "file"])
@pytest.mark.parametrize("target", ["folder", "file"])
def test_what_a_rename_may_replace(source: str, target: str) -> None:
    """A file replaces a file. MS-FSA lets a directory replace a file, too; a POSIX host does not."""

    async def body(harness: Harness, client: Client) -> None:
        kinds = {"folder": int(CreateOptions.DIRECTORY_FILE), "file": int(CreateOptions.NON_DIRECTORY_FILE)}
        _, there, _ = await opened(client, "there", create_options=kinds[target], desired_access=ALL)
        await client.call(Command.CLOSE, struct.pack("<HHI2Q", 24, 0, 0, *there))
        _, moved, _ = await opened(client, "moved", create_options=kinds[source], desired_access=ALL)
        name = "there".encode("utf-16-le")
        data = struct.pack("<B7xQI", 1, 0, len(name)) + name
        request = struct.pack("<HBBIHHI2Q", 33, 1, FileInfoClass.RENAME, len(data), 96, 0, 0, *moved) + data
        replaces = source == target == "file"
        expected = NtStatus.SUCCESS if replaces else NtStatus.ACCESS_DENIED
        assert (await client.call(Command.SET_INFO, request)).status == expected

    run(body)
