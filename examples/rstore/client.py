"""The client: regions by name, and one-sided reads and writes of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from rstore.calls import MESSAGE_SIZE, RECEIVES, Calls, StoreRefused
from rstore.layout import UNIT, Extent, Layout, Piece, pieces
from rstore.memory_server import PAGE, MemoryServer
from smbdirect import rdma

log = logging.getLogger(__name__)

JOINING = 20.0
"""Seconds that the memory of this process has to join the store."""
WATCH = 1.0
"""Seconds between two looks at which servers there are."""
TRIES = 8
"""Attempts of a transfer whose servers do not answer as its layout says."""


class RegionGone(KeyError):
    """No region has this name (any more)."""


class RegionLost(Exception):
    """A server died that had the only copy of a part of the region."""


def _named(error: StoreRefused) -> Exception:
    kinds: dict[str, Callable[[str], Exception]] = {"gone": RegionGone, "lost": RegionLost, "exists": FileExistsError}
    return kinds[error.kind](str(error)) if error.kind in kinds else error


class Region:
    """A mapped region. Its bytes are read and written by RDMA, without any server's program."""

    def __init__(self, client: Client, layout: Layout) -> None:
        self.layout = layout
        self._client = client

    @property
    def name(self) -> str:
        return self.layout.name

    def __len__(self) -> int:
        return self.layout.size

    async def read_into(self, into: Any, offset: int = 0) -> None:
        """Fill ``into`` with the bytes at ``offset``. Raise ``IndexError``, ``RegionGone`` or ``RegionLost``."""
        view = memoryview(into).cast("B")
        await self._transfer(lambda: self._columns(offset, view, self._read))

    async def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes at ``offset``."""
        into = bytearray(length)
        await self.read_into(into, offset)
        return bytes(into)

    async def write(self, data: Any, offset: int = 0) -> None:
        """Write ``data`` at ``offset``, to all copies. It is in their memory when this returns."""
        view = memoryview(data).cast("B")
        await self._transfer(lambda: self._columns(offset, view, self._write))

    async def _columns(self, offset: int, view: memoryview, act: Callable[[Layout, Piece], Awaitable[None]]) -> None:
        layout = self.layout
        found = list(pieces(layout, offset, view))
        if len(found) == 1:
            await act(layout, found[0])
        else:
            # All have ended before one failure is reported: the memory is quiet then.
            results = await asyncio.gather(*(act(layout, piece) for piece in found), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    async def _read(self, layout: Layout, piece: Piece) -> None:
        extent = layout.columns[piece.column][0]
        connection = await self._client.connection(layout, extent)
        await connection.read(_handle(extent), piece.views, piece.offset)

    async def _write(self, layout: Layout, piece: Piece) -> None:
        for extent in layout.columns[piece.column]:
            connection = await self._client.connection(layout, extent)
            async with connection.batch() as batch:
                batch.write(_handle(extent), piece.views, piece.offset)
                batch.fence()

    async def _transfer(self, act: Callable[[], Awaitable[None]]) -> None:
        """Do a transfer, again if the region has moved meanwhile: a handle of an old layout is refused."""
        for attempt in range(TRIES):
            try:
                await act()
                return
            except rdma.ConnectionLost as error:
                log.info("region %s: %s; looking where it is", self.name, error)
                # The first time, a connection may have ended for another reason: the present layout will do.
                newer = self.layout.generation if attempt else 0
                self.layout = await self._client.layout(self.name, newer)
        raise RegionLost(f"region {self.name}: its servers do not answer")


def _handle(extent: Extent) -> rdma.Handle:
    return rdma.Handle.unpack(bytes.fromhex(extent.handle))


class Client:
    """A client of a store. Made by ``connect``."""

    def __init__(self, fabric: rdma.endpoints.Fabric, master: tuple[str, int]) -> None:
        self._fabric = fabric
        self._master = master
        self._calls: Calls | None = None
        self._connecting = asyncio.Lock()
        """Held while the master is connected to: a second connection would end the first, with the calls on it."""
        self._running: list[asyncio.Task[None]] = []
        self._data: dict[str, rdma.Connection] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._lending: list[asyncio.Task[None]] = []

    async def _call(self, what: str, **fields: Any) -> Any:
        """Ask the master; reconnect to it, or to the one that took its place, for some seconds."""
        for attempt in range(40):
            try:
                return await (await self._connected()).call(what, **fields)
            except StoreRefused as error:
                raise _named(error) from None
            except rdma.ConnectionLost:
                if attempt == 39:
                    raise
                await asyncio.sleep(0.25)
        raise AssertionError("the last attempt returns or raises")

    async def _connected(self) -> Calls:
        async with self._connecting:
            if self._calls is None or not self._calls.connection.is_open:
                connection = await rdma.open_connection(
                    self._fabric, *self._master, message_size=MESSAGE_SIZE, receives=RECEIVES
                )
                self._calls = Calls(connection, {})
                for task in self._running:
                    task.cancel()
                work = self._calls.run(), self._watch(self._calls)
                self._running = [asyncio.create_task(part) for part in work]
            return self._calls

    async def _watch(self, calls: Calls) -> None:
        """End the connections to servers that the master gives up: one that hangs does not end them itself."""
        known: set[str] = set()
        try:
            while calls.connection.is_open:
                await asyncio.sleep(WATCH)
                servers = {entry["server"] for entry in await calls.call("servers")} if self._data else set()
                # A new master lists a server only when it has joined again.
                for server in known - servers:
                    if server in self._data:
                        self._data[server].abort("the master gave the server up")
                known |= servers
        except (rdma.ConnectionLost, StoreRefused, TimeoutError) as error:
            log.info("servers are not watched until the master is reached again: %s", error)

    async def connection(self, layout: Layout, extent: Extent) -> rdma.Connection:
        """Return a connection to the server of an extent. Raise ``rdma.ConnectionLost``."""
        found = self._data.get(extent.server)
        if found is not None and found.is_open:
            return found
        async with self._locks.setdefault(extent.server, asyncio.Lock()):
            found = self._data.get(extent.server)
            if found is None or not found.is_open:
                if extent.server not in layout.addresses:
                    raise rdma.ConnectionLost(f"server {extent.server} is gone")
                found = await rdma.open_connection(self._fabric, *layout.addresses[extent.server])
                self._data[extent.server] = found
            return found

    async def layout(self, name: str, newer: int = 0) -> Layout:
        answer = await self._call("look", name=name, newer=newer)
        return Layout.unpack(answer["layout"].encode())

    async def create(
        self, name: str, size: int, *, copies: int = 1, unit: int = UNIT, columns: int = 0, keep: bool = True
    ) -> Region:
        """Make a region of ``size`` zeros, striped by ``unit`` bytes over ``columns`` servers (0: all), with ``copies``
        copies. Without ``keep`` it is freed when this client is gone. Raise ``FileExistsError``."""
        answer = await self._call("create", name=name, size=size, copies=copies, unit=unit, columns=columns, keep=keep)
        return Region(self, Layout.unpack(answer["layout"].encode()))

    async def lend(self, name: str, size: int, host: str = "127.0.0.1") -> memoryview:
        """Make a region in the memory of this process, and return this memory. Others map the region by its name, and
        reach it at ``host`` (0.0.0.0: the address that the master sees). It is freed when this client is gone. Raise
        ``FileExistsError``, and ``OSError`` if nobody can be served at ``host``."""
        own = MemoryServer(self._fabric, max(-(-size // PAGE), 1) * PAGE, private=True)
        serving = asyncio.create_task(own.serve(host, 0, self._master))
        self._lending.append(serving)
        try:
            async with asyncio.timeout(JOINING):
                while all(entry["server"] != own.identity for entry in await self.servers()):
                    if serving.done():
                        await serving
                    await asyncio.sleep(0.02)
            answer = await self._call("create", name=name, size=size, unit=size, server=own.identity, keep=False)
        except BaseException:
            serving.cancel()
            raise
        layout = Layout.unpack(answer["layout"].encode())
        return own.lent[layout.columns[0][0].name].region.memory

    async def map(self, name: str) -> Region:
        """Return a region. Raise ``RegionGone`` or ``RegionLost``."""
        return Region(self, await self.layout(name))

    async def free(self, name: str) -> None:
        """Remove a region: its memory is given to others. Raise ``RegionGone``."""
        await self._call("free", name=name)

    async def regions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self._call("regions")
        return found

    async def servers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self._call("servers")
        return found

    async def close(self) -> None:
        for connection in self._data.values():
            await connection.close()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._calls is not None:
            await self._calls.connection.close()
        for task in self._lending:
            task.cancel()
        await asyncio.gather(*self._lending, return_exceptions=True)


@asynccontextmanager
async def connect(fabric: rdma.endpoints.Fabric, host: str, port: int) -> AsyncIterator[Client]:
    """Connect to the store whose master is at ``host`` and ``port``."""
    client = Client(fabric, (host, port))
    try:
        await client.servers()
        yield client
    finally:
        await client.close()
