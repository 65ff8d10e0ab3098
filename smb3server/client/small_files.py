"""The data of small files in chains of related requests: one round trip for reading a file, two for writing one.

What follows a failed WRITE in a chain is done all the same. So a file that is written gets its name by a second
message, when it is known to be complete, unchanged at its source, and on the server's disk. [MS-SMB2 3.3.5.2.7.2]
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from smb3server.client import errors
from smb3server.client.link import Link
from smb3server.client.protocol import steps
from smb3server.client.protocol.messages import ServerError
from smb3server.client.protocol.tree import RemoteFile, Tree
from smb3server.wire.create import Access, CreateDisposition, CreateOptions, CreateResponse, ShareAccess
from smb3server.wire.file_info import (
    BASIC,
    DISPOSITION,
    NETWORK_OPEN,
    BasicInformation,
    DispositionInformation,
    FileInfoClass,
    RenameInformation,
    encode_rename,
)
from smb3server.wire.status import StatusError
from smbdirect.errors import ConnectionLost

SMALL = 1 << 16
"""Bytes of the largest file that is copied in this way: what one credit pays for."""
PART_ACCESS = int(Access.GENERIC_WRITE | Access.DELETE | Access.READ_ATTRIBUTES)
_NO_FOLDER = int(CreateOptions.NON_DIRECTORY_FILE)
_READ, _SHARE_READ = int(Access.GENERIC_READ), int(ShareAccess.READ)
_CLOSE, _FLUSH = steps.close(), steps.flush()
_REMOVE = steps.set_info(FileInfoClass.DISPOSITION, DISPOSITION.pack(DispositionInformation(1)))
_LOOK = int(Access.READ_ATTRIBUTES | Access.SYNCHRONIZE)
_VERSION = steps.query_info(FileInfoClass.NETWORK_OPEN, size=NETWORK_OPEN.size)
_CONTENT, _COMPRESSED_CONTENT = steps.read(SMALL), steps.read(SMALL, compressed=True)

T = TypeVar("T")


class Content(NamedTuple):
    """A small file."""

    opened: CreateResponse
    data: bytes
    now: tuple[int, int]
    """Size and last write time after the data was read."""


def goes_by_chain(link: Link, size: int) -> bool:
    """Return whether a file of this size is copied in chains. What RDMA or a loan moves is not."""
    return size <= SMALL and link.line is None and size < link.moves_by_rdma_from


async def _on_channel(link: Link, work: Callable[[Tree], Awaitable[T]]) -> T:
    """Do something on a channel for data, on which the open is made, too: one of the session that is there now."""
    await link.ready()
    channel = link.pick()
    channel.busy += 1
    try:
        return await work(channel.tree)
    finally:
        channel.busy -= 1


async def read(link: Link, name: str) -> Content | None:
    """Read a file by its name as it travels; None if it is larger than ``SMALL``, or the server answered with less than
    it has: it is to be read in pieces then. Raises ``StatusError`` and ``ConnectionLost``.
    """

    async def attempt(tree: Tree) -> Content | None:
        content = _CONTENT if tree.client.negotiated.compression is None else _COMPRESSED_CONTENT
        file, (data, now) = await tree.with_open(name, _READ, [content, _VERSION], options=_NO_FOLDER)
        if len(data) != file.size:
            return None
        link.count_as(link.kind_of(tree), 0, len(data))
        found = NETWORK_OPEN.unpack(now)
        return Content(file.response, data, (found.end_of_file, found.last_write_time))

    return await link.until_done(lambda: _on_channel(link, attempt))


class Written(NamedTuple):
    """A small file that is to be written. Names are as they travel."""

    part: str
    """The name that it has until it is complete."""
    name: str
    replaces: bool
    """Whether there may be a file of that name."""
    data: bytes
    times: BasicInformation
    is_unchanged: Callable[[], bool]
    """Asked when the data is on the server's disk: whether the source still is what was read."""


async def write(link: Link, file: Written) -> bool:
    """Write a file; return False, and leave nothing, if the source changed meanwhile.

    If the connection is lost, the part is written again: nobody else can have it. Whether the file had got its name
    then is looked at, and not tried blindly. Raises ``StatusError``, ``ConnectionLost`` and ``RemoteError``.
    """
    naming = False

    async def attempt(tree: Tree) -> bool:
        nonlocal naming
        if naming and await _is_named(tree, file):
            return True
        naming = False
        part = await _write_part(tree, file)
        if not file.is_unchanged():
            await tree.do_all(part, [_REMOVE, _CLOSE])
            return False
        naming = True
        record = encode_rename(RenameInformation(int(file.replaces), 0, file.name))
        renamed, _ = await tree.do_all(part, [steps.set_info(FileInfoClass.RENAME, record), _CLOSE])
        if isinstance(renamed, ServerError):
            naming = False
            await _remove(tree, file.part)
            raise renamed
        link.count_as(link.kind_of(tree), len(file.data), 0)
        return True

    return await link.until_done(lambda: _on_channel(link, attempt))


async def _write_part(tree: Tree, file: Written) -> RemoteFile:
    """Return the open part, whose data is on the server's disk."""
    length = len(file.data)
    wanted = [
        *([steps.write(file.data)] if length else []),
        # A last WRITE may change the time after it was set, until it is set by this very open. [MS-FSA 2.1.5.15.2]
        steps.set_info(FileInfoClass.BASIC, BASIC.pack(file.times)),
        _FLUSH,
    ]
    part, results = await tree.open_and(
        file.part, PART_ACCESS, wanted, CreateDisposition.OVERWRITE_IF, _NO_FOLDER, _SHARE_READ
    )
    error: BaseException | None = next((result for result in results if isinstance(result, ServerError)), None)
    if error is None and length and results[0] != length:
        error = errors.make(errno.EIO, reason=f"the server wrote {results[0]} of {length} bytes")
    if error is not None:
        await tree.do_all(part, [_REMOVE, _CLOSE])
        raise error
    return part


async def _is_named(tree: Tree, file: Written) -> bool:
    """Return whether the file of the final name is the one that was written."""
    with contextlib.suppress(StatusError):
        found, _ = await tree.with_open(file.name, _LOOK, (), options=int(CreateOptions.OPEN_REPARSE_POINT))
        return (found.size, found.response.last_write_time) == (len(file.data), file.times.last_write_time)
    return False


async def _remove(tree: Tree, part: str) -> None:
    """Remove a part that may not get its name. Another copy that has begun meanwhile keeps this one from opening it."""
    # What failed is told, whatever comes of the removal.
    with contextlib.suppress(StatusError, ConnectionLost):
        await tree.with_open(part, int(Access.DELETE), [_REMOVE], options=_NO_FOLDER)
