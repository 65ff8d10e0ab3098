"""Move some megabytes through a share, in both directions if possible, and report how they travelled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from dataclasses import dataclass

from smb3server.client.protocol import ServerError, Tree
from smb3server.client.protocol.messages import Way
from smb3server.client.protocol.tree import RDMA_THRESHOLD, READ, READ_WRITE
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


STALL_TIMEOUT = 8.0
"""Seconds in which something has to move."""


class Stalled(Exception):
    """The connection stands, and data does not get through it."""


class Garbled(Exception):
    """The data read is not the data written, or did not go the way that it should have gone."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of moving data through a share."""

    written: int
    """Bytes."""
    read: int
    way: str
    """How the data travelled: the value of a ``Way``."""
    inline: str
    """Why the data travelled in messages; empty if it travelled by RDMA."""
    in_messages: int
    """Bytes of all messages that the transport carried meanwhile, in both directions."""
    text: str

    @property
    def by_rdma(self) -> bool:
        """Whether the data travelled by RDMA."""
        return self.way != Way.INLINE.value and self.anything

    @property
    def anything(self) -> bool:
        """Whether enough data was moved to judge by: less goes inline in any case."""
        return max(self.written, self.read) >= RDMA_THRESHOLD


class _Meter:
    """Compares what a connection has carried before and after a transfer."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._before = self._messages()

    def _messages(self) -> int:
        traffic = self._tree.client.transport.traffic
        return traffic.inline_bytes_sent + traffic.inline_bytes_received

    def result(self, written: int, read: int, text: str) -> Moved:
        """Return the result of a transfer. Raises ``Garbled`` if the transport's counters contradict the way of the
        data: that is the proof that it went by RDMA."""
        choice, largest = self._tree.choice, max(written, read)
        way = choice.way if largest >= RDMA_THRESHOLD else Way.INLINE
        carried = self._messages() - self._before
        if way is not Way.INLINE and carried >= largest:
            raise Garbled(f"messages carried {carried} bytes while {largest} bytes should have gone by {way.value}")
        return Moved(written, read, way.value, choice.why_inline, carried, text)


async def move(tree: Tree) -> Moved:
    """Write and read a temporary file, or read a file if writing is refused.

    The server deletes the temporary file when it is closed or the connection ends. The file to read is the largest one
    in the share's root. Raises ``Garbled``, ``Stalled``, ``ServerError`` and ``ConnectionLost``.
    """
    task = asyncio.ensure_future(_move(tree))
    try:
        moved = None
        while not task.done():
            await asyncio.wait([task], timeout=STALL_TIMEOUT)
            before, moved = moved, tree.client.transport.traffic[:4]
            if not task.done() and moved == before:
                raise Stalled
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _move(tree: Tree) -> Moved:
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
    file = await tree.create(name, READ_WRITE, CreateDisposition.CREATE, options, 0, attr.TEMPORARY)
    data = os.urandom(AMOUNT)
    meter = _Meter(tree)
    try:
        written = await tree.write(file, 0, data)
        found = await tree.read(file, 0, AMOUNT)
    finally:
        # Delete the file after an error, too: closing it does that, or the end of the connection.
        if tree.client.closed is None and not _is_cancelled():
            await tree.close(file)
    if written != AMOUNT or found != data:
        raise Garbled(f"{len(found)} bytes were read after {written} of {AMOUNT} were written, and they differ")
    return meter.result(written, len(found), "a temporary file was written, read and deleted")


def _is_cancelled() -> bool:
    """Whether this task is being ended because nothing gets through: no answer would come."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


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
        meter = _Meter(tree)
        try:
            found = await tree.read(file, 0, AMOUNT)
        finally:
            if tree.client.closed is None and not _is_cancelled():
                await tree.close(file)
        return meter.result(0, len(found), f"{why}; {entry.name} was read")
    return _Meter(tree).result(0, 0, f"{why}, and there is no file of {RDMA_THRESHOLD} bytes or more to read")
