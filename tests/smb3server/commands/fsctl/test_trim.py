"""FSCTL_FILE_LEVEL_TRIM: whole blocks are given back to the host, also of files that are not sparse.
[MS-FSA 2.1.5.10.6, MS-HVRS C0006]"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from smb3server.backends.local.backend import LocalBackend
from smb3server.wire.header import Command
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus
from tests.lab.file_requests import FileId, opened
from tests.lab.shares import share_of
from tests.lab.wire_client import Client, Harness, Reply, drive, ioctl_body

SIZE = 1 << 20


async def trim(client: Client, file: FileId, data: bytes, output: int = 4) -> Reply:
    return await client.call(Command.IOCTL, ioctl_body(Fsctl.FILE_LEVEL_TRIM, data, struct.pack("<2Q", *file), output))


async def disk_file(harness: Harness, folder: Path) -> tuple[Client, FileId]:
    (folder / "file").write_bytes(os.urandom(SIZE))
    harness.server.add_share(share_of("disk", LocalBackend(folder)))
    client = await harness.connect()
    await client.login(share="disk")
    _, file, _ = await opened(client, "file")
    return client, file


@pytest.mark.parametrize("count", [1, 32])
def test_space_is_given_back(tmp_path: Path, count: int) -> None:
    async def test(harness: Harness) -> None:
        client, file = await disk_file(harness, tmp_path)
        content = (tmp_path / "file").read_bytes()
        part = SIZE // 2 // count
        ranges = b"".join(struct.pack("<qq", index * part, part) for index in range(count))
        reply = await trim(client, file, struct.pack("<II", 0, count) + ranges)
        while reply.status == NtStatus.PENDING:
            reply = await client.receive()
        assert reply.status == 0
        os.sync()
        found = os.stat(tmp_path / "file")
        assert found.st_size == SIZE
        assert found.st_blocks * 512 <= SIZE // 2 + 65536
        assert (tmp_path / "file").read_bytes() == bytes(SIZE // 2) + content[SIZE // 2 :]

    drive(test)


def test_requests_that_are_refused(tmp_path: Path) -> None:
    async def test(harness: Harness) -> None:
        client, file = await disk_file(harness, tmp_path)
        content = (tmp_path / "file").read_bytes()
        one = struct.pack("<qq", 0, SIZE)
        for data, output in (
            (struct.pack("<II", 1, 1) + one, 4),
            (struct.pack("<II", 0, 0) + one, 4),
            (struct.pack("<II", 0, 2) + one, 4),
            (struct.pack("<II", 0, 0xFFFFFFFF) + one, 4),
            (struct.pack("<II", 0, 1) + struct.pack("<qq", -1, 4096), 4),
            (struct.pack("<II", 0, 1) + struct.pack("<qq", 4096, (1 << 63) - 4096), 4),
            (struct.pack("<II", 0, 1) + one, 3),
            (struct.pack("<I", 0), 4),
        ):
            assert (await trim(client, file, data, output)).status == NtStatus.INVALID_PARAMETER
        assert (tmp_path / "file").read_bytes() == content

    drive(test)
