"""Moves some megabytes through a share, both ways where it may, and says how they travelled."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass

from smb3server.client import ServerError, Tree
from smb3server.client.files import RDMA_THRESHOLD, READ, READ_WRITE
from smb3server.wire import attributes as attr
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.directory_info import ListedEntry
from smb3server.wire.status import NtStatus

AMOUNT = 4 << 20
"""Bytes to move each way."""
MAX_ENTRIES = 1000
"""Entries looked at in search of a file to read."""
_NO_WRITING = frozenset(
    [NtStatus.ACCESS_DENIED, NtStatus.MEDIA_WRITE_PROTECTED, NtStatus.DISK_FULL, NtStatus.QUOTA_EXCEEDED]
)


class Garbled(Exception):
    """What was read is not what was written."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What went through a share."""

    written: int
    """Bytes."""
    read: int
    inline: str
    """Why it travelled in messages; empty: by RDMA."""
    text: str

    @property
    def by_rdma(self) -> bool:
        return not self.inline and max(self.written, self.read) >= RDMA_THRESHOLD

    @property
    def anything(self) -> bool:
        """Enough to judge by: less than this goes inline anyway."""
        return max(self.written, self.read) >= RDMA_THRESHOLD


async def move(tree: Tree) -> Moved:
    """Write and read a temporary file, which the server deletes when it is closed or the connection ends; where nothing
    may be written, read the largest file in the share's root. Raises ``Garbled``, ``ServerError``,
    ``ConnectionLost``."""
    try:
        return await _both_ways(tree)
    except ServerError as error:
        if error.status not in _NO_WRITING:
            raise
        refused = error
    return await _one_way(tree, f"the server refuses writing ({refused})")


async def _both_ways(tree: Tree) -> Moved:
    name = f".smb3server-doctor-{secrets.token_hex(8)}.tmp"
    options = int(CreateOptions.DELETE_ON_CLOSE | CreateOptions.NON_DIRECTORY_FILE)
    file = await tree.create(name, READ_WRITE, CreateDisposition.CREATE, options, share=0)
    data = os.urandom(AMOUNT)
    try:
        written = await tree.write(file, 0, data)
        found = await tree.read(file, 0, AMOUNT)
    finally:
        # Also what was not taken to its end is deleted: by this, or by the end of the connection.
        if tree.client.closed is None:
            await tree.close(file)
    if written != AMOUNT or found != data:
        raise Garbled(f"{len(found)} bytes were read after {written} of {AMOUNT} were written, and they differ")
    return Moved(written, len(found), tree.why_inline, "a temporary file was written, read and deleted")


async def _one_way(tree: Tree, why: str) -> Moved:
    root = await tree.create("", READ, options=int(CreateOptions.DIRECTORY_FILE))
    files: list[ListedEntry] = []
    seen = 0
    async with contextlib.aclosing(tree.entries(root)) as entries:
        async for entry in entries:
            seen += 1
            if not entry.attributes & attr.DIRECTORY:
                files.append(entry)
            if seen >= MAX_ENTRIES:
                break
    await tree.close(root)
    for entry in sorted(files, key=lambda entry: entry.end_of_file, reverse=True)[:10]:
        if entry.end_of_file < RDMA_THRESHOLD:
            break
        try:
            file = await tree.create(entry.name, READ)
        except ServerError:
            # Locked, or not ours to read: the next one may be.
            continue
        try:
            found = await tree.read(file, 0, AMOUNT)
        finally:
            if tree.client.closed is None:
                await tree.close(file)
        return Moved(0, len(found), tree.why_inline, f"{why}; {entry.name} was read")
    return Moved(0, 0, tree.why_inline, f"{why}, and there is no file of {RDMA_THRESHOLD} bytes or more to read")
