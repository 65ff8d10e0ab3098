"""Reading and writing files by RDMA without requests, where the server lends them. docs/flashnet.md describes it.

``Line`` is the RDMA connection of a link's session for it, ``Borrowed`` what is lent of one open. Whatever goes wrong
with either, the data goes by READ and WRITE: no error of theirs reaches the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from smb3server.client.protocol.tree import RemoteFile, Tree
from smb3server.wire import one_sided as wire
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.one_sided import LendRights
from smb3server.wire.oplock_break import LeaseState
from smb3server.wire.status import NtStatus, StatusError
from smbdirect import rdma
from smbdirect.codec import Buffer
from smbdirect.errors import ConnectionLost, DecodeError, ProviderError

if TYPE_CHECKING:
    from smbdirect.providers.base import Provider

log = logging.getLogger(__name__)

_TIMEOUT = 5.0
"""Seconds to connect a line."""


class Place(NamedTuple):
    """Where a line goes: the peer of a channel for data."""

    provider: Provider
    host: str
    port: int


class Line:
    """The RDMA connection of a link's session. It is made when it is first needed, and again when it is lost."""

    def __init__(self, place: Callable[[], Place | None]) -> None:
        """``place`` returns where the data goes by RDMA now, or None."""
        self.why_not = "no data has moved yet"
        """Why there is no line; empty if there is one."""
        self._place = place
        self._connection: rdma.Connection | None = None
        self._tree: Tree | None = None
        """The tree connect that the line was asked for with, or refused to."""
        self._lock = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether there is a line."""
        return self._connection is not None and self._connection.is_open

    def of(self, tree: Tree) -> rdma.Connection | None:
        """Return the line if it is there, and one of the session of ``tree``."""
        found = self._connection
        return found if found is not None and found.is_open and self._tree is tree else None

    async def connect(self, tree: Tree) -> rdma.Connection | None:
        """Return the line of the session of ``tree``, made anew if it was lost. Return None if the server lends
        nothing, or data does not go by RDMA. Raise ``ConnectionLost`` if the session is lost.

        The server ends a lost line when it is asked for a new one. Nothing that was written over the old one comes
        after that: only then may the data go another way."""
        place = self._place()
        async with self._lock:
            if self._tree is tree and (self._connection is None or self._connection.is_open):
                return self._connection
            if place is None and self._connection is None:
                self.why_not = "data does not travel by RDMA in software"
                return None
            await self.close()
            self._tree = tree
            try:
                output = await tree.ioctl(Fsctl.ONE_SIDED_TICKET)
                if len(output) != wire.TICKET_RESPONSE.size:
                    raise DecodeError("a ticket of another length")
                ticket = wire.TICKET_RESPONSE.unpack(output).ticket
            except (StatusError, DecodeError) as error:
                self.why_not = f"the server lends nothing: {error}"
                return None
            if place is None:
                self.why_not = "data travels by RDMA no longer"
                return None
            try:
                self._connection = await rdma.open_connection(
                    place.provider,
                    place.host,
                    place.port,
                    private_data=wire.pack_private_data(ticket),
                    timeout=_TIMEOUT,
                )
            except (ConnectionLost, ProviderError, OSError) as error:
                self.why_not = f"no connection for one-sided transfers: {error}"
                return None
            self.why_not = ""
            return self._connection

    async def close(self) -> None:
        """End the line. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
            self.why_not = f"the connection has ended: {connection.close_reason}"


class Borrowed:
    """What the server has lent of one open, or will when it is asked."""

    def __init__(self, line: Line, rights: LendRights) -> None:
        self._line = line
        self._rights = rights
        self._needs = int(LeaseState.READ | (LeaseState.WRITE if LendRights.WRITE in rights else LeaseState.NONE))
        self._handle: rdma.Handle | None = None
        self._over: rdma.Connection | None = None
        """The line that ``_handle`` is for."""
        self._tree: Tree | None = None
        """The tree connect on which the server was asked last."""
        self._refused = False
        """Whether it refused then."""
        self._lock = asyncio.Lock()

    def broken(self, state: int) -> None:
        """Note a lease break: the server has ended the loan already."""
        if self._needs & ~state:
            self.give_up()
            self._refused = True

    def give_up(self) -> None:
        """Forget the loan, or its refusal. The next transfer asks for it again."""
        self._handle = None
        self._refused = False

    async def read(self, tree: Tree, file: RemoteFile, offset: int, length: int) -> bytes | None:
        """Read from a lent file; None means that the data is to come by READ."""
        if LendRights.READ not in self._rights:
            return None
        found = self._present(tree) or await self._borrow(tree, file)
        if found is None or not 0 < length <= found[1].length - offset or rdma.Rights.READ not in found[1].rights:
            return None
        into = bytearray(length)
        try:
            await found[0].read(found[1], into, offset)
        except ConnectionLost as error:
            await self._lost(tree, error)
            return None
        return bytes(into)

    async def write(self, tree: Tree, file: RemoteFile, offset: int, data: Buffer) -> bool:
        """Write to a lent file. On True the data is in the server's file. False means that it is to go by WRITE."""
        if LendRights.WRITE not in self._rights:
            return False
        found = self._present(tree) or await self._borrow(tree, file)
        if found is None or not 0 < len(data) <= found[1].length - offset or rdma.Rights.WRITE not in found[1].rights:
            return False
        line, handle = found
        try:
            async with line.batch() as batch:
                batch.write(handle, data, offset)
                batch.fence()
        except ConnectionLost as error:
            await self._lost(tree, error)
            return False
        return True

    def _present(self, tree: Tree) -> tuple[rdma.Connection, rdma.Handle] | None:
        line = self._line.of(tree)
        return (line, self._handle) if line is not None and line is self._over and self._handle is not None else None

    async def _lost(self, tree: Tree, error: ConnectionLost) -> None:
        """Forget a loan whose line ended, and have the server end it, too."""
        log.debug("one-sided transfer: %s", error)
        self.give_up()
        await self._line.connect(tree)

    async def _borrow(self, tree: Tree, file: RemoteFile) -> tuple[rdma.Connection, rdma.Handle] | None:
        """Ask the server for the file; once it has refused, not again on the same session."""
        async with self._lock:
            if self._tree is tree and self._refused:
                # A lost line may still have bytes of this open under way.
                await self._line.connect(tree)
                return None
            if (found := self._present(tree)) is not None:
                return found
            line = await self._line.connect(tree)
            self._tree, self._refused = tree, line is None
            if line is None:
                return None
            handle = await self._ask(tree, file)
            if handle is None:
                self._refused = True
                return None
            if self._refused:
                return None  # its lease was broken meanwhile
            self._handle, self._over = handle, line
            return line, handle

    async def _ask(self, tree: Tree, file: RemoteFile) -> rdma.Handle | None:
        """Ask for all rights, then for those that need no write caching: others may have the file open."""
        for rights in filter(None, dict.fromkeys((self._rights, self._rights & LendRights.READ))):
            request = wire.LEND_REQUEST.pack(wire.LendRequest(wire.VERSION, int(rights)))
            try:
                return rdma.Handle.unpack(await tree.ioctl(Fsctl.ONE_SIDED_LEND, request, file))
            except (StatusError, DecodeError) as error:
                log.debug("not lent: %s", error)
                if not isinstance(error, StatusError) or error.status != NtStatus.OPLOCK_NOT_GRANTED:
                    break
        return None
