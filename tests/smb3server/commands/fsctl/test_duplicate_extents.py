"""FSCTL_DUPLICATE_EXTENTS_TO_FILE (MS-FSA 2.1.5.10.4): what of the range is cloned, with a store that refuses what
Linux's FICLONERANGE refuses."""

from __future__ import annotations

import errno
import struct

import pytest

from smb3server.backends.memory.backend import BLOCK, MemoryBackend, MemoryHandle
from smb3server.wire.fsctl import DUPLICATE_EXTENTS, DuplicateExtents
from smb3server.wire.header import Command
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus
from tests.lab.file_requests import opened, read, run, write
from tests.lab.wire_client import Client, Harness, ioctl_body


def clone(self: MemoryHandle, source: MemoryHandle, source_offset: int, offset: int, length: int) -> None:
    ends = source_offset + length == source.info().end_of_file and offset + length == self.info().end_of_file
    if source_offset % BLOCK or offset % BLOCK or (length % BLOCK and not ends):
        raise OSError(errno.EINVAL, "FICLONERANGE wants whole blocks")
    data = bytearray(length)
    assert source.read_into([memoryview(data)], source_offset) == length
    self.write_from([memoryview(data)], offset)


@pytest.fixture(autouse=True)
def reflinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryBackend, "supports_reflink", True)
    monkeypatch.setattr(MemoryHandle, "clone_range", clone)


async def duplicate(client: Client, source: int, size: int, count: int) -> tuple[int, bytes]:
    """Status, and the target of ``size`` bytes afterwards; the source has ``source`` bytes."""
    _, origin, _ = await opened(client, "origin")
    assert (await write(client, origin, b"x" * source)).status == 0
    _, target, _ = await opened(client, "target")
    if size:
        assert (await write(client, target, b"." * size)).status == 0
    data = DUPLICATE_EXTENTS.pack(DuplicateExtents(*origin, 0, 0, count))
    body = ioctl_body(Fsctl.DUPLICATE_EXTENTS_TO_FILE, data, struct.pack("<2Q", *target))
    status = (await client.call(Command.IOCTL, body)).status
    return status, (await read(client, target, 4 * BLOCK))[1]


@pytest.mark.parametrize(
    ("source", "size", "count", "cloned"),
    [
        (2 * BLOCK, 3 * BLOCK, 2 * BLOCK, 2 * BLOCK),
        (BLOCK + 9, BLOCK + 9, 2 * BLOCK, BLOCK + 9),
        (BLOCK + 9, BLOCK + 9, BLOCK + 9, BLOCK + 9),
        (BLOCK + 9, BLOCK + 50, 2 * BLOCK, BLOCK + 9),
        (BLOCK + 50, BLOCK + 9, 2 * BLOCK, BLOCK + 9),
        (50, 9, BLOCK, 9),
        (BLOCK, 0, BLOCK, 0),
    ],
)
def test_sizes_stay_and_the_common_part_is_cloned(source: int, size: int, count: int, cloned: int) -> None:
    async def body(_: Harness, client: Client) -> None:
        status, after = await duplicate(client, source, size, count)
        assert status == 0
        assert after == b"x" * cloned + b"." * (size - cloned)

    run(body)


def test_clusters_behind_the_source_are_refused() -> None:
    async def body(_: Harness, client: Client) -> None:
        status, after = await duplicate(client, BLOCK + 9, 3 * BLOCK, 2 * BLOCK + 1)
        assert status == NtStatus.NOT_SUPPORTED
        assert after == b"." * 3 * BLOCK

    run(body)
