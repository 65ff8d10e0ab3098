"""One open of a file, over connections that may come and go, and its data in pieces that are in flight together."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TypeVar

from smb3server.client import errors
from smb3server.client.lasting import Lasting
from smb3server.client.link import PIECE, Channel, Link
from smb3server.client.one_sided import Borrowed
from smb3server.client.protocol.tree import SHARE_ALL, RemoteFile, Tree
from smb3server.wire.create import Access, CreateDisposition
from smb3server.wire.create_contexts import RawContext
from smb3server.wire.file_info import (
    BASIC,
    END_OF_FILE,
    STANDARD,
    BasicInformation,
    EndOfFileInformation,
    FileInfoClass,
    RenameInformation,
    encode_rename,
)
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.one_sided import LendRights
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer
from smbdirect.errors import ConnectionLost, ProviderError

T = TypeVar("T")
_CHANGES = int(Access.GENERIC_WRITE | Access.WRITE_DATA | Access.APPEND_DATA | Access.GENERIC_ALL)
_READS = int(Access.GENERIC_READ | Access.READ_DATA)
_WRITES = int(Access.GENERIC_WRITE | Access.WRITE_DATA)
_FORGOTTEN = frozenset(
    [
        NtStatus.OBJECT_NAME_NOT_FOUND,
        NtStatus.OBJECT_PATH_NOT_FOUND,
        NtStatus.INVALID_PARAMETER,
        NtStatus.ACCESS_DENIED,
        NtStatus.FILE_CLOSED,
        NtStatus.NOT_SUPPORTED,
    ]
)
"""Statuses of a server that does not have the open any more. [MS-SMB2 3.3.5.9.7, 3.3.5.9.12]"""


class Handle:
    """An open; ``open_handle`` makes one.

    If the connection is lost, what was not answered is repeated on the next one. An open that may change the file is
    durable, or persistent, where the server grants that, and is reclaimed. Otherwise it is opened by its name again: a
    file that is only read must not have changed meanwhile, and one that was written must have been flushed since. If
    it was not, the server may have lost what it acknowledged: each operation raises ``LostWritesError``, until
    ``go_back``.
    """

    def __init__(self, link: Link, path: str, name: str, access: int, options: int, share: int) -> None:
        self.link = link
        self.path = path
        """The name for people."""
        self._name = self._opened_as = name
        self._next_name = name
        """Differs while a rename is not answered."""
        self._access, self._options, self._share = access, options, share
        # Invariant: ``_file`` is an open of the session of ``_made_on``; None if it is closed. In another session the
        # same FileId may be that of another file.
        self._file: RemoteFile | None = None
        self._made_on: Channel | None = None
        self.file: RemoteFile
        """The open as it was made first: its size, times and attributes. ``open`` sets it."""
        self._opening = asyncio.Lock()
        self._borrowed = Borrowed(link.line, _rights(access)) if link.line is not None and _rights(access) else None
        """What the server lends of it; None if the data goes by requests alone."""
        self._lasting: Lasting | None = None
        if access & _CHANGES or self._borrowed is not None:
            self._lasting = Lasting(bool(access & _CHANGES), self._borrowed is not None and bool(access & _WRITES))
        # Invariant: _changes counts the changes that the server has acknowledged, of which the first _flushed are on
        # its disk.
        self._changes = self._flushed = 0

    async def open(self, disposition: int, attributes: int) -> None:
        """Open the file for the first time."""

        give_up = 0.0
        while self._file is None:
            try:
                control = await self.link.ready()
                self.file = self._file = await self._create(control, disposition, attributes)
                self._made_on = control
            except (*errors.TROUBLE, OSError) as error:
                if disposition == CreateDisposition.CREATE:
                    # A repeated CREATE would find the file that the first one made.
                    raise errors.of(error, self.path) from error
                give_up = await self._recover(error, None, give_up)

    async def _create(
        self,
        control: Channel,
        disposition: int,
        attributes: int = 0,
        reclaimed: RemoteFile | None = None,
        name: str | None = None,
    ) -> RemoteFile:
        """Send CREATE: to open the file, or to reclaim ``reclaimed``, an open of a connection that is lost."""
        lasting = self._lasting
        asked: list[RawContext] = []
        oplock = 0
        if lasting is not None:
            asked, oplock = lasting.request(control.tree) if reclaimed is None else lasting.reclaim(reclaimed)
            self.link.leases[lasting.lease_key] = self._broken
        try:
            file = await control.tree.create(
                self._name if name is None else name,
                self._access,
                disposition,
                self._options,
                self._share,
                attributes=attributes,
                contexts=asked,
                oplock=oplock,
            )
        except ProviderError as error:
            raise self.link.end(control.tree, str(error)) from error
        if lasting is not None and reclaimed is None:
            lasting.opened(file)
        return file

    def _broken(self, state: int) -> None:
        if self._lasting is not None:
            self._lasting.broken(state)
        if self._borrowed is not None:
            self._borrowed.broken(state)

    async def _open_again(self, control: Channel, before: RemoteFile) -> RemoteFile:
        """Return the open in a new session: reclaimed, or made by its name."""
        if self._lasting is not None and self._lasting.granted:
            for name in dict.fromkeys((self._name, self._next_name)):
                try:
                    found = await self._create(control, CreateDisposition.OPEN, reclaimed=before, name=name)
                except StatusError as error:
                    if error.status not in _FORGOTTEN:
                        raise
                else:
                    self._name = name
                    return found
        if self._changes > self._flushed:
            raise LostWritesError(self.path)
        found = await self._create(control, CreateDisposition.OPEN)
        if not self._access & _CHANGES and _version(found) != _version(self.file):
            reason = "the file was changed while the connection was lost"
            raise errors.make(errno.ESTALE, self.path, reason=reason)
        return found

    def go_back(self) -> None:
        """Give up what was written since the last flush: the caller will write it again."""
        self._flushed = self._changes

    async def _attached(self) -> tuple[Channel, RemoteFile]:
        """Return the open and the link's channel, which are of the same session; open it anew in a new session.

        They stay so until the caller waits for something.
        """
        if self._made_on is not None and self._file is not None and self.link.is_current(self._made_on):
            return self._made_on, self._file
        while True:
            control = await self.link.ready()
            async with self._opening:
                if self._file is None:
                    raise errors.make(errno.EBADF, self.path, reason="the file is closed")
                if self._made_on is not control:
                    self._file = await self._open_again(control, self._file)
                    self._made_on = control
                if self.link.is_current(control):
                    return control, self._file

    async def do(self, work: Callable[[Tree, RemoteFile], Awaitable[T]]) -> T:
        """Do something with the open that may be repeated if its answer is lost."""

        give_up = 0.0
        while True:
            tree = None
            try:
                control, file = await self._attached()
                tree = control.tree
                return await work(tree, file)
            except (*errors.TROUBLE, OSError) as error:
                give_up = await self._recover(error, tree, give_up)

    async def _recover(self, error: Exception, tree: Tree | None, give_up: float) -> float:
        """Do ``Link.recover`` after an error on the connection of ``tree``. Raises ``RemoteError`` for the file."""
        with errors.named(self.path):
            if tree is not None and isinstance(error, ProviderError):
                # A connection without memory for it is of no use: data goes on over another one.
                raised = error
                error = self.link.end(tree, str(error))
                error.__cause__ = raised
            return await self.link.recover(error, give_up)

    async def _piece(self, work: Callable[[Tree, RemoteFile], Awaitable[T]], count: Callable[[Channel, T], None]) -> T:
        """Move one piece over the channel that has the least to do."""

        give_up = 0.0
        while True:
            tree = None
            try:
                _, file = await self._attached()
                channel = self.link.pick()
                channel.busy += 1
                try:
                    async with channel.slots:
                        # If the channel is lost, its requests fail: they never reach another session.
                        tree = channel.tree
                        result = await work(tree, file)
                finally:
                    channel.busy -= 1
                count(channel, result)
                return result
            except (*errors.TROUBLE, OSError) as error:
                give_up = await self._recover(error, tree, give_up)

    async def read_piece(self, offset: int, length: int) -> bytes:
        """Read up to ``length`` bytes (at most ``PIECE``); fewer at the end of the file.

        A server may answer with fewer bytes than it has: the rest is asked for, until there is none. [MS-SMB2 3.3.5.12]
        """
        if self._borrowed is not None and (lent := await self._lent_read(self._borrowed, offset, length)) is not None:
            return lent
        pieces: list[bytes] = []
        done = 0
        while done < length:
            data = await self._read(offset + done, length - done)
            pieces.append(data)
            done += len(data)
            if not data:
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _lent_read(self, borrowed: Borrowed, offset: int, length: int) -> bytes | None:
        """Read from a lent file; None means that it is not lent."""
        data = await self.do(lambda tree, file: borrowed.read(tree, file, offset, length))
        if data is not None:
            self.link.count_as("one-sided", 0, len(data))
        return data

    async def _read(self, offset: int, length: int) -> bytes:
        data = await self._piece(
            lambda tree, file: tree.read(file, offset, length),
            lambda channel, data: self.link.count(channel, 0, len(data)),
        )
        if len(data) > length:
            # It would overwrite what follows.
            raise errors.make(errno.EPROTO, self.path, reason=f"the server sent {len(data)} bytes in place of {length}")
        return data

    async def write_piece(self, offset: int, data: Buffer) -> None:
        """Write all of ``data`` (at most ``PIECE`` bytes)."""
        if self._borrowed is not None:
            borrowed = self._borrowed
            if await self.do(lambda tree, file: borrowed.write(tree, file, offset, data)):
                self.link.count_as("one-sided", len(data), 0)
                self._changes += 1
                return
        count = await self._piece(
            lambda tree, file: tree.write(file, offset, data), lambda channel, count: self.link.count(channel, count, 0)
        )
        if count < len(data):
            raise errors.make(errno.EIO, self.path, reason=f"the server wrote {count} of {len(data)} bytes")
        self._changes += 1

    async def pieces(self, offset: int, end: int, whole: bool = True) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield the data between two offsets in order, as (offset, bytes).

        A file that ends before ``end`` is an error, ESTALE; without ``whole`` the data ends there, too.
        """
        waiting: deque[tuple[int, asyncio.Task[bytes]]] = deque()
        at = offset
        try:
            while at < end or waiting:
                while at < end and len(waiting) < self.link.window:
                    length = min(PIECE, end - at)
                    waiting.append((at, asyncio.ensure_future(self.read_piece(at, length))))
                    at += length
                start, task = waiting.popleft()
                data = await task
                if data:
                    yield start, data
                if len(data) < min(PIECE, end - start):
                    if whole:
                        reason = f"it ends at {start + len(data)}, and had at least {end} bytes"
                        raise errors.make(errno.ESTALE, self.path, reason=reason)
                    return
        finally:
            await _stop([task for _, task in waiting])

    async def write_pieces(self, source: AsyncIterator[tuple[int, Buffer]], done: Callable[[Buffer], None]) -> None:
        """Write the pieces of ``source``, several at a time; ``done`` is called with each when the server has it."""
        waiting: deque[asyncio.Task[None]] = deque()

        async def write(offset: int, data: Buffer) -> None:
            await self.write_piece(offset, data)
            done(data)

        try:
            async for offset, data in source:
                waiting.append(asyncio.ensure_future(write(offset, data)))
                # The oldest one is waited for: it is nearly always the first to end.
                while len(waiting) >= self.link.window or (waiting and waiting[0].done()):
                    await waiting[0]
                    waiting.popleft()
            while waiting:
                await waiting[0]
                waiting.popleft()
        finally:
            await _stop(list(waiting))

    async def rename(self, name: str, replace: bool) -> None:
        """Rename the file; ``name`` is as it travels, from the share's root. [MS-FSCC 2.4.42]"""
        record = encode_rename(RenameInformation(int(replace), 0, name))
        self._next_name = name
        control = self._made_on
        try:
            await self.do(lambda tree, file: tree.set_info(file, FileInfoClass.RENAME, record))
        except errors.RemoteError as error:
            if error.status and control is not None and self._made_on is control and self.link.is_current(control):
                # The first answer was a refusal: no answer was lost.
                self._next_name = self._name
            raise
        self._name = name

    @property
    def keeps_its_name(self) -> bool:
        """Whether the file surely has the name under which it was opened."""
        return self._opened_as == self._name == self._next_name

    async def remove(self) -> None:
        """Let the server remove the file when it is closed. [MS-FSCC 2.4.11]"""
        await self.do(lambda tree, file: tree.set_info(file, FileInfoClass.DISPOSITION, b"\1"))

    async def set_size(self, size: int) -> None:
        """Cut the file or extend it with zeros. [MS-FSCC 2.4.14]"""
        record = END_OF_FILE.pack(EndOfFileInformation(size))
        if self._borrowed is not None:
            # The server ends the loan, and lends the new size.
            self._borrowed.give_up()
        await self.do(lambda tree, file: tree.set_info(file, FileInfoClass.END_OF_FILE, record))
        self._changes += 1

    async def size(self) -> int:
        """Return the end of the file as it is now."""
        return STANDARD.unpack(await self.query(FileInfoClass.STANDARD)).end_of_file

    async def query(self, level: FileInfoClass) -> bytes:
        """Return information of the file as it is now. [MS-FSCC 2.4]"""
        return await self.do(lambda tree, file: tree.query_info(file, level))

    async def set_basic(self, record: BasicInformation) -> None:
        """Set times and attributes. [MS-FSCC 2.4.7]"""
        await self.do(lambda tree, file: tree.set_info(file, FileInfoClass.BASIC, BASIC.pack(record)))

    async def flush(self) -> None:
        """Let the server write what it has cached to its disk."""
        before = self._changes
        await self.do(lambda tree, file: tree.flush(file))
        self._flushed = max(self._flushed, before)

    async def fsctl(
        self, code: Fsctl, data: bytes = b"", max_output: int = 65536, accept: tuple[int, ...] = (0,)
    ) -> bytes:
        """Send an FSCTL that may be repeated, and return its output."""
        output = await self.do(lambda tree, file: tree.ioctl(code, data, file, max_output=max_output, accept=accept))
        self._changes += code == Fsctl.SRV_COPYCHUNK_WRITE
        return output

    async def close(self) -> None:
        """Close the open; do nothing if it is closed.

        Raises ``LostWritesError`` if the connection was lost, the open cannot be reclaimed, and the file was changed
        since the last flush.
        """
        try:
            if self._file is not None and self._changes > self._flushed:
                await self.do(lambda tree, file: tree.close(file))
                self._forget()
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Close the open if its connection is there, and promise nothing."""
        file, control = self._file, self._made_on
        self._forget()
        if file is None or control is None:
            return
        if control.tree.client.closed is not None:
            # A lasting open would keep others out until the server's time-out.
            if self._lasting is None or not self._lasting.granted or not self.link.has_connection:
                return
            try:
                control = await self.link.ready()
                file = await self._create(control, CreateDisposition.OPEN, reclaimed=file)
            except (OSError, StatusError, ConnectionLost):
                return
        try:
            await control.tree.close(file)
        except ProviderError as error:
            self.link.end(control.tree, str(error))
        except ConnectionLost:
            return

    def _forget(self) -> None:
        self._file = None
        if self._lasting is not None:
            self.link.leases.pop(self._lasting.lease_key, None)


def _rights(access: int) -> LendRights:
    """Return what an open with ``access`` may be lent for."""
    reads = LendRights.READ if access & _READS else LendRights(0)
    return reads | (LendRights.WRITE if access & _WRITES else LendRights(0))


def _version(file: RemoteFile) -> tuple[int, int, int]:
    response = file.response
    return response.end_of_file, response.last_write_time, response.creation_time


class LostWritesError(errors.RemoteError):
    """The connection was lost, and the server does not know the open any more: it may have lost what it had
    acknowledged since the last flush."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EIO, os.strerror(errno.EIO), path)
        self.reason = "the server may have lost data that was not flushed: write the file again"


async def _stop(tasks: list[asyncio.Task[T]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def open_handle(
    link: Link,
    path: str,
    name: str,
    access: int,
    disposition: int = CreateDisposition.OPEN,
    options: int = 0,
    attributes: int = 0,
    share: int = SHARE_ALL,
) -> Handle:
    """Open or create a file. ``path`` is for errors, ``name`` as it travels."""
    handle = Handle(link, path, name, access, options, share)
    await handle.open(disposition, attributes)
    return handle
