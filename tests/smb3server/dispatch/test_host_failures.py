"""The host fails a request: the client gets the status for that, and the log says what failed."""

from __future__ import annotations

import errno
import os
import struct

import pytest

from smb3server.backends.memory.backend import MemoryBackend, MemoryHandle
from smb3server.wire.header import Command
from smb3server.wire.status import NtStatus
from tests.lab.file_requests import opened, run, status_of
from tests.lab.wire_client import Client, Harness

STORAGE = "see the kernel's log"
DESCRIPTORS = "remedy: let the server have more (LimitNOFILE=)"


@pytest.mark.parametrize(
    ("number", "status", "hint"),
    [
        (errno.EIO, NtStatus.IO_DEVICE_ERROR, STORAGE),
        (errno.EUCLEAN, NtStatus.FILE_CORRUPT_ERROR, STORAGE),
        (errno.EMFILE, NtStatus.TOO_MANY_OPENED_FILES, DESCRIPTORS),
        (errno.ENOSPC, NtStatus.DISK_FULL, ""),
    ],
)
def test_a_request_that_the_host_fails(
    number: int, status: NtStatus, hint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    async def test(_: Harness, client: Client) -> None:
        _, file, _ = await opened(client, "name")
        monkeypatch.setattr(MemoryHandle, "flush", fail)
        assert (await client.call(Command.FLUSH, struct.pack("<HHIQQ", 24, 0, 0, *file))).status == status
        monkeypatch.setattr(MemoryBackend, "open_described", fail)
        assert await status_of(client, "other") == status

    run(test)
    for text in ("FLUSH of 'name'", "CREATE of ''"):
        assert (f"share share: {text} fails: {os.strerror(number)}; {hint}" in caplog.text) is bool(hint)
