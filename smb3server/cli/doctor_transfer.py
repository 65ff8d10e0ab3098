"""Move some megabytes through a share, in both directions if possible, and report how they travelled."""

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
"""Bytes to move in each direction."""
MAX_ENTRIES = 1000
"""Largest number of entries to examine when looking for a file to read."""
_NO_WRITING = frozenset(
    [NtStatus.ACCESS_DENIED, NtStatus.MEDIA_WRITE_PROTECTED, NtStatus.DISK_FULL, NtStatus.QUOTA_EXCEEDED]
)


class Garbled(Exception):
    """The data read is not the data written."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of moving data through a share."""

    written: int
    """Bytes."""
    read: int
    inline: str
    """Why the data travelled in messages; empty if it travelled by RDMA."""
    text: str

    @property
    def by_rdma(self) -> bool:
        """Whether the data travelled by RDMA."""
        return not self.inline and max(self.written, self.read) >= RDMA_THRESHOLD

    @property
    def anything(self) -> bool:
        """Whether enough data was moved to judge by: less goes inline in any case."""
        return max(self.written, self.read) >= RDMA_THRESHOLD


async def move(tree: Tree) -> Moved:
    """Write and read a temporary file, or read a file if writing is refused.

    The server deletes the temporary file when it is closed or the connection ends. The file to read is the largest one
    in the share's root. Raises ``Garbled``, ``ServerError`` and ``ConnectionLost``.
    """
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
        # Delete the file after an error, too: closing it does that, or the end of the connection.
        if tree.client.closed is None:
            await tree.close(file)
    if written != AMOUNT or found != data:
        raise Garbled(f"{len(found)} bytes were read after {written} of {AMOUNT} were written, and they differ")
    return Moved(written, len(found), tree.choice.why_inline, "a temporary file was written, read and deleted")


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
            # The file is locked, or this user may not read it; try the next one.
            continue
        try:
            found = await tree.read(file, 0, AMOUNT)
        finally:
            if tree.client.closed is None:
                await tree.close(file)
        return Moved(0, len(found), tree.choice.why_inline, f"{why}; {entry.name} was read")
    return Moved(0, 0, tree.choice.why_inline, f"{why}, and there is no file of {RDMA_THRESHOLD} bytes or more to read")
