"""Folders with very many entries: listed lazily, in memory that does not grow with them."""

from __future__ import annotations

import os
from pathlib import Path

from smb3server.backends.base import OpenRequest
from smb3server.backends.local.backend import LocalBackend
from smb3server.backends.names import short_name
from smb3server.commands.query_directory import _Listing
from smb3server.files.searches import Enumeration
from smb3server.wire.directory_info import Packer
from smb3server.wire.file_info import FileInfoClass

ENTRIES = 100_000
RESPONSE = 65536
MAX_BYTES = 24 << 20
"""Short names are remembered; nothing else is to stay of an entry."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_is_bounded(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    for number in range(ENTRIES):
        os.mknod(f"{number}.txt", dir_fd=folder)
    os.close(folder)
    backend = LocalBackend(tmp_path)
    handle = backend.open(OpenRequest((), directory=True))
    enumeration = Enumeration(handle, "*")
    found = 0
    before = peak = resident_bytes()
    while True:
        packer = Packer(FileInfoClass.ID_BOTH_DIRECTORY, RESPONSE, short_name)
        listing = _Listing(packer, enumeration, False, None, None)
        while not listing.go_on():
            pass
        if not packer.count:
            break
        found += packer.count
        peak = max(peak, resident_bytes())
    enumeration.close()
    handle.close()
    backend.close()
    assert found == ENTRIES + 2
    assert peak - before < MAX_BYTES
